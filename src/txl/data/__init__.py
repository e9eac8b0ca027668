"""Text to tokens to batches: corpora, vocabularies and streams. Knows no model and no trainer.

Letters: `B` rows in the batch, `L` tokens in a segment.
"""

import importlib
from typing import TYPE_CHECKING

from txl.data.corpora.catalogue import enwiki_sample, large_text, lm1b, ptb, sotu, text, wikitext
from txl.data.corpora.preparation import Corpus, report
from txl.data.corpora.synthetic import lagged_copy, lagged_copy_entropy
from txl.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from txl.data.streams.base import Batch, OrderedStreams, Streams, longest_segment
    from txl.data.streams.orders import STREAM_ORDERS, DocumentStreams, border_places, border_text

__all__ = [
    "STREAM_ORDERS",
    "Batch",
    "Corpus",
    "DocumentStreams",
    "OrderedStreams",
    "Streams",
    "Vocabulary",
    "border_places",
    "border_text",
    "enwiki_sample",
    "lagged_copy",
    "lagged_copy_entropy",
    "large_text",
    "lm1b",
    "longest_segment",
    "ptb",
    "report",
    "sotu",
    "text",
    "wikitext",
]


def __getattr__(name: str) -> object:
    """Import what makes tensors, and with it torch, where it is first used: preparing text needs neither."""
    if name in __all__:
        modules = (importlib.import_module(f"txl.data.streams.{module}") for module in ("base", "orders"))
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
