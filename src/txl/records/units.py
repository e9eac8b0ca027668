"""How a loss in nats is shown for each unit of text."""

from __future__ import annotations

import math


def perplexity(loss: float) -> float:
    """Return exp of a loss in nats; infinity where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def bits(loss: float) -> float:
    """Return a loss in nats as bits."""
    return loss / math.log(2)


def metric_of(unit: str) -> tuple[str, str]:
    """Return the key and the name of the metric that people read for a unit."""
    if unit in ("word", "bpe"):
        return "perplexity", "perplexity"
    name = "byte" if unit == "byte" else "character"
    return f"bits_per_{name}", f"bits per {name}"


def score_key(unit: str) -> str:
    """Return the key that the same metric has in a score of `results.json`, whatever the symbol is."""
    return "perplexity" if unit in ("word", "bpe") else "bits_per_character"


def shown(value: float | None, digits: int) -> str:
    """Return a number for people; what was not finite, and so is null in JSON, as "not finite"."""
    return "not finite" if value is None else f"{value:.{digits}f}"
