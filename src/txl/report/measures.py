"""The measures that a table can show: numbers of a run, read from `results.json`."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from txl.records.units import metric_of, score_key

Results = dict[str, Any]
Reader = Callable[[Results], float | None]  # `None` if the results lack the number, nan if it was not finite


@dataclass(frozen=True)
class Metric:
    """How losses are shown: as perplexity, bits or nats."""

    key: str  # in the scores of `results.json`
    logged: str  # in `metrics.jsonl`, after `train/` or `valid/`
    name: str
    digits: int  # decimals printed


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    key: str  # its name in the definition of a table
    heading: str
    value: Reader
    unit: str = ""  # empty for a plain count
    digits: int = 0  # decimals printed
    compared: bool = False  # whether the table shows differences to its first row
    size: int = 1  # of one printed unit, in the unit of `value`

    def shown(self, value: float) -> str:
        return f"{value / self.size:,.{self.digits}f}"

    def with_unit(self, heading: str) -> str:
        return f"{heading}, {self.unit}" if self.unit else heading


def at(results: Results | None, *keys: str) -> Any:
    """Return the value under nested keys, `None` where one is missing."""
    found: Any = results
    for key in keys:
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def metric_for(units: set[str]) -> Metric:
    """Return how losses on texts in these units are shown: in nats if the units have no metric in common."""
    metrics = {(score_key(unit), *metric_of(unit)) for unit in units}
    if len(metrics) == 1:
        key, logged, name = metrics.pop()
        return Metric(key, logged, name, 2 if key == "perplexity" else 3)
    return Metric("loss", "loss", "nats per token" if metrics else "", 3)


def measures_for(keys: list[str], metric: Metric, measured: bool) -> list[Measure]:
    """Return the measures of a table.

    Args:
        measured: whether any row is run here; a table of published numbers alone may have other measures.

    Raises:
        ValueError: a key is unknown; the error names the nearest one.
    """
    known = {measure.key: measure for measure in _all(metric)}
    for key in keys:
        if measured and key not in known:
            nearest = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"measure {key!r} is not one of {', '.join(known)}{hint}")
    return [known.get(key) or Measure(key, key.replace("_", " "), lambda _: None, digits=3) for key in keys]


def _all(metric: Metric) -> list[Measure]:
    def score(split: str) -> Reader:
        return lambda results: _number(results[split].get(metric.key)) if results.get(split) else None

    def number(*keys: str) -> Reader:
        return lambda results: None if (value := at(results, *keys)) is None else float(value)

    def init(results: Results) -> float | None:
        length = trained_attention(results)
        return None if length is None else attention_scores(results, metric).get(length)

    losses: dict[str, Reader] = {"valid": score("valid"), "test": score("test"), "init": init}
    losses["best"] = partial(_best, metric=metric)
    return [
        *(Measure(key, key, value, metric.name, metric.digits, True) for key, value in losses.items()),
        Measure("attention_length", "attention length", partial(best_attention, metric=metric)),
        Measure("parameters", "parameters", number("model", "parameters")),
        Measure("peak_memory", "peak memory", number("training", "peak_memory_bytes"), "MiB", size=2**20),
        Measure("tokens_per_second", "tokens per second", number("training", "tokens_per_second")),
        Measure("slowdown", "slowdown", _slowdown),
        Measure("recl_r10", "r = 0.1", number("recl", "0.1")),
        Measure("recl_r50", "r = 0.5", number("recl", "0.5")),
        Measure("recl_r100", "r = 1.0", number("recl", "1")),
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def trained_attention(results: Results) -> int | None:
    """Return the attention length of training; `None` if it is unknown."""
    training = at(results, "config", "training") or {}
    if training.get("attention_length"):
        return training["attention_length"]
    segment, memory = training.get("segment_length"), training.get("memory_length")
    return None if segment is None or memory is None else segment + memory


def attention_scores(results: Results, metric: Metric) -> dict[int, float]:
    """Return the validation score by attention length, of all lengths tried; nan where it was not finite."""
    entries = results.get("attention") or []
    return {entry["attention_length"]: _number(entry.get(metric.key)) for entry in entries}


def best_attention(results: Results, metric: Metric) -> float | None:
    """Return the shortest attention length with the best score in printed digits.

    `None` if no length was tried, nan if no score was finite.
    """
    best = _best(results, metric)
    if best is None or math.isnan(best):
        return best
    printed = f"{best:.{metric.digits}f}"
    scores = attention_scores(results, metric)
    return float(min(length for length, score in scores.items() if f"{score:.{metric.digits}f}" == printed))


def _best(results: Results, metric: Metric) -> float | None:
    scores = attention_scores(results, metric)
    finite = [score for score in scores.values() if math.isfinite(score)]
    return min(finite) if finite else math.nan if scores else None


def _slowdown(results: Results) -> float | None:
    """Return the slowdown of a token without recurrence, at the only attention length of the row."""
    entries = results.get("attention") or []
    return at(entries[0], "slowdown", "median") if len(entries) == 1 else None
