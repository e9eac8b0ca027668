"""Text to tokens to batches: corpora, vocabularies and streams. Knows no model and no trainer.

Letters: `B` rows in the batch, `L` tokens in a segment.
"""

from txl.data.corpora import Corpus, enwiki_sample, sotu, text
from txl.data.streams import Batch, OrderedStreams, Streams, segment_step
from txl.data.vocabulary import Vocabulary

__all__ = [
    "Batch",
    "Corpus",
    "OrderedStreams",
    "Streams",
    "Vocabulary",
    "enwiki_sample",
    "segment_step",
    "sotu",
    "text",
]
