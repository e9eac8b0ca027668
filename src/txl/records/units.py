"""How a loss in nats is shown for each unit of text."""

import math


def perplexity(loss: float) -> float:
    """Return the exponential of a loss in nats; infinity where it overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def bits(loss: float) -> float:
    return loss / math.log(2)


def metric_of(unit: str) -> tuple[str, str]:
    """Return key and name of the metric that is usual for a unit of text."""
    if unit in ("word", "bpe"):
        return "perplexity", "perplexity"
    name = "byte" if unit == "byte" else "character"
    return f"bits_per_{name}", f"bits per {name}"


def score_key(unit: str) -> str:
    """Return the key of that metric in the scores of `results.json`, which is the same for bytes."""
    return "perplexity" if unit in ("word", "bpe") else "bits_per_character"


def shown(value: float | None, digits: int) -> str:
    """Return a number as text; null, which stands for nan and infinity in JSON, as "not finite"."""
    return "not finite" if value is None else f"{value:.{digits}f}"
