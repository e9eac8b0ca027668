"""The figure of the loss against the attention length."""

from pathlib import Path
from typing import Any

from txl.records.units import metric_of, score_key
from txl.report.figures.style import ORANGE, finish_axes, new_figure, save, tick_lengths


def draw_attention_lengths(entries: list[dict[str, Any]], unit: str, title: str, path: Path) -> Path:
    """Draw perplexity, or bits per symbol, at each attention length, with its confidence interval.

    Args:
        entries: with "attention_length", "perplexity" or "bits_per_character", and the same "_low" and
            "_high"; as `txl evaluate` writes them.
    """
    key, (_, name) = score_key(unit), metric_of(unit)
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    entries = sorted(entries, key=lambda entry: entry["attention_length"])
    lengths = [entry["attention_length"] for entry in entries]
    axes.plot(
        lengths, [entry[key] for entry in entries], color=ORANGE, marker="o", linewidth=1.6, markersize=4.5
    )
    bounds: list[list[Any]] = [[entry.get(f"{key}_{side}") for entry in entries] for side in ("low", "high")]
    if all(isinstance(value, float) and value == value for side in bounds for value in side):
        axes.fill_between(lengths, bounds[0], bounds[1], color=ORANGE, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    tick_lengths(axes, lengths)
    finish_axes(axes, title, "attention length (tokens)", name)
    return save(figure, path)
