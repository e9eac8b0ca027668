"""What the verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console

console = Console(highlight=False)


def positive(kind: type) -> Callable:
    """Return what argparse turns a word into a positive, finite number of a kind with."""

    def convert(word: str):
        value = kind(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive and finite, not {word}")
        return value

    return convert
