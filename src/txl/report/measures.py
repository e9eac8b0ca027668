"""What a table can show of a run: its measures, read from `results.json`."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txl.records.units import metric_of

Results = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """How a loss is shown: what of perplexity, bits and nats, with how many digits."""

    key: str
    name: str
    digits: int


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Attributes:
        key: its name in a table's definition.
        unit: what it is measured in; empty for a plain count.
        digits: behind the point, where it is printed.
        value: reads it from the results: `None` if they do not have it, nan if it was not finite.
        compared: whether differences to the first row are of interest.
        size: what one printed unit is in the units of `value`.
    """

    key: str
    heading: str
    unit: str
    digits: int
    value: Callable[[Results], float | None]
    compared: bool = False
    size: int = 1

    def shown(self, value: float) -> str:
        return f"{value / self.size:,.{self.digits}f}"


def at(results: Results | None, *keys: str) -> Any:
    """Return what stands under nested keys, `None` where one is missing."""
    found: Any = results
    for key in keys:
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def metric_for(units: set[str]) -> Metric:
    """Return how losses of texts in these units are shown: nats where they have no unit in common."""
    if not units:  # no run came so far as to read a text
        return Metric("loss", "", 3)
    kinds = {metric_of(unit) for unit in units}
    if len(kinds) != 1:
        return Metric("loss", "nats per token", 3)
    ((key, name),) = kinds
    return Metric(key, name, 2) if key == "perplexity" else Metric("bits_per_character", name, 3)


def measures_for(keys: list[str], metric: Metric, measured: bool) -> list[Measure]:
    """Return the measures of a table.

    Args:
        measured: whether any row is run here; a table of published numbers alone may have others.

    Raises:
        ValueError: no such measure, with the nearest name.
    """
    known = {measure.key: measure for measure in _all(metric)}
    for key in keys:
        if measured and key not in known:
            nearest = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"measure {key!r} is not one of {', '.join(known)}{hint}")
    return [known.get(key) or Measure(key, key.replace("_", " "), "", 3, lambda _: None) for key in keys]


def attention_at(results: Results, length: int | None) -> list[dict[str, Any]]:
    """Return the entries of an attention length among those that were tried."""
    return [entry for entry in results.get("attention") or [] if entry["attention_length"] == length]


def attention_scores(results: Results, metric: Metric) -> dict[int, float]:
    """Return the validation score at each attention length that was tried; nan where it was not finite."""
    entries = results.get("attention") or []
    return {entry["attention_length"]: _number(entry.get(metric.key)) for entry in entries}


def _all(metric: Metric) -> list[Measure]:
    loss: dict[str, Any] = {"unit": metric.name, "digits": metric.digits, "compared": True}

    def score(split: str) -> Callable[[Results], float | None]:
        return lambda results: _number(results[split].get(metric.key)) if results.get(split) else None

    def number(*keys: str) -> Callable[[Results], float | None]:
        return lambda results: None if (value := at(results, *keys)) is None else float(value)

    return [
        Measure("valid", "valid", value=score("valid"), **loss),
        Measure("test", "test", value=score("test"), **loss),
        Measure("init", "init", value=lambda results: _init(results, metric), **loss),
        Measure("best", "best", value=lambda results: _best(results, metric), **loss),
        Measure(
            "attention_length", "attention length", "", 0, lambda results: best_attention(results, metric)
        ),
        Measure("parameters", "parameters", "", 0, number("model", "parameters")),
        Measure("peak_memory", "peak memory", "MiB", 0, number("training", "peak_memory_bytes"), size=2**20),
        Measure("tokens_per_second", "tokens per second", "", 0, number("training", "tokens_per_second")),
        Measure("slowdown", "slowdown", "", 0, _slowdown),
        Measure("recl_r10", "r = 0.1", "", 0, number("recl", "0.1")),
        Measure("recl_r50", "r = 0.5", "", 0, number("recl", "0.5")),
        Measure("recl_r100", "r = 1.0", "", 0, number("recl", "1")),
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def trained_attention(results: Results) -> int | None:
    training = at(results, "config", "training") or {}
    if training.get("attention_length"):
        return training["attention_length"]
    segment, memory = training.get("segment_length"), training.get("memory_length")
    return None if segment is None or memory is None else segment + memory


def best_attention(results: Results, metric: Metric) -> float | None:
    """Return the shortest attention length whose score, as printed, is the best of those that were tried.

    `None` if none was, nan if no score was finite.
    """
    best = _best(results, metric)
    if best is None or math.isnan(best):
        return best
    printed = f"{best:.{metric.digits}f}"
    scores = attention_scores(results, metric)
    return float(min(length for length, score in scores.items() if f"{score:.{metric.digits}f}" == printed))


def _slowdown(results: Results) -> float | None:
    """Return how much slower a token is without recurrence, at the one attention length of a row."""
    found = [at(entry, "slowdown", "median") for entry in results.get("attention") or []]
    return found[0] if len(found) == 1 else None


def _init(results: Results, metric: Metric) -> float | None:
    length = trained_attention(results)
    return None if length is None else attention_scores(results, metric).get(length)


def _best(results: Results, metric: Metric) -> float | None:
    scores = attention_scores(results, metric)
    finite = [score for score in scores.values() if math.isfinite(score)]
    return min(finite) if finite else math.nan if scores else None
