"""Text to tokens to batches: corpora, vocabularies and streams. Knows no model and no trainer.

Letters: `B` rows in the batch, `L` tokens in a segment.
"""

import importlib
from typing import TYPE_CHECKING

from txl.data.corpora import enwiki_sample, large_text, lm1b, ptb, sotu, text, wikitext
from txl.data.preparation import Corpus, report
from txl.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from txl.data.streams import Batch, OrderedStreams, Streams, segment_step

__all__ = [
    "Batch",
    "Corpus",
    "OrderedStreams",
    "Streams",
    "Vocabulary",
    "enwiki_sample",
    "large_text",
    "lm1b",
    "ptb",
    "report",
    "segment_step",
    "sotu",
    "text",
    "wikitext",
]


def __getattr__(name: str) -> object:
    """Import what makes tensors, and with it torch, where it is first used: preparing text needs neither."""
    if name in __all__:
        return getattr(importlib.import_module("txl.data.streams"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
