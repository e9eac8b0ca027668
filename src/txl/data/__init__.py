"""Text to tokens to batches: corpora, vocabularies and streams. Knows no model and no trainer.

Preparing text needs no torch: `txl.data.streams`, which makes tensors, is imported on its own.
"""

from txl.data.corpora.catalogue import enwiki_sample, large_text, lm1b, ptb, sotu, text, wikitext
from txl.data.corpora.preparation import Corpus, report
from txl.data.corpora.synthetic import lagged_copy, lagged_copy_entropy
from txl.data.vocabulary import Vocabulary
