"""Reading the files of a run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_results(directory: Path) -> dict[str, Any]:
    """Return `results.json` of a run.

    Raises:
        ValueError: it is damaged.
    """
    path = Path(directory) / "results.json"
    try:
        results = json.loads(path.read_text("utf-8"))
        results["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); bring it back, or delete it to begin the "
            "run anew"
        ) from error
    return results


def read_status(directory: Path) -> str | None:
    """Return the status of a run; `None` if it has not begun."""
    return read_results(directory)["status"] if (Path(directory) / "results.json").exists() else None


def read_metrics(directory: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` that hold all of `keys`, with numbers.

    A last line that a dying disk or machine cut short is left out.

    Raises:
        ValueError: a line in the middle is damaged.
    """
    path = Path(directory) / "metrics.jsonl"
    if not path.exists():
        return []
    *whole, _torn = path.read_text("utf-8").split("\n")
    lines = []
    for number, line in enumerate(whole, 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path} is damaged in line {number} ({error}); delete that line") from error
    return [line for line in lines if all(line.get(key) is not None for key in keys)]


def shown(value: float | None, digits: int) -> str:
    """Return a number for people; what was not finite, and so is null in JSON, as "not finite"."""
    return "not finite" if value is None else f"{value:.{digits}f}"


def metric_of(unit: str) -> tuple[str, str]:
    """Return the key and the name of the metric that people read for a unit."""
    if unit in ("word", "bpe"):
        return "perplexity", "perplexity"
    name = "byte" if unit == "byte" else "character"
    return f"bits_per_{name}", f"bits per {name}"


def score_key(unit: str) -> str:
    """Return the key that the same metric has in a score of `results.json`, whatever the symbol is."""
    return "perplexity" if unit in ("word", "bpe") else "bits_per_character"
