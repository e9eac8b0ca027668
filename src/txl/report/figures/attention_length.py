"""The figure of the loss against the attention length."""

import math
from pathlib import Path
from typing import Any

from txl.report.figures.style import ORANGE, finish_axes, new_figure, save, tick_lengths
from txl.report.measures import metric_for


def draw_attention_lengths(entries: list[dict[str, Any]], unit: str, title: str, path: Path) -> Path:
    """Draw perplexity, or bits per symbol, at each attention length, with its confidence interval.

    Args:
        entries: with "attention_length", "perplexity" or "bits_per_character", and the same "_low" and
            "_high"; as `txl evaluate` writes them.
    """
    metric = metric_for({unit})
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    entries = sorted(entries, key=lambda entry: entry["attention_length"])
    lengths = [entry["attention_length"] for entry in entries]
    scores = [entry[metric.key] for entry in entries]
    axes.plot(lengths, scores, color=ORANGE, marker="o", linewidth=1.6, markersize=4.5)
    low: list[Any] = [entry.get(f"{metric.key}_low") for entry in entries]
    high: list[Any] = [entry.get(f"{metric.key}_high") for entry in entries]
    if all(isinstance(bound, float) and not math.isnan(bound) for bound in low + high):
        axes.fill_between(lengths, low, high, color=ORANGE, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    tick_lengths(axes, lengths)
    finish_axes(axes, title, "attention length (tokens)", metric.name)
    return save(figure, path)
