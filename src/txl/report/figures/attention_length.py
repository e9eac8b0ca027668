"""The figure of the loss against the attention length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator

from txl.records.units import metric_of, score_key
from txl.report.figures.style import finish_axes, new_figure

LINE = "#c44e2b"


def draw_attention_lengths(entries: list[dict[str, Any]], unit: str, title: str, path: Path) -> Path:
    """Draw perplexity, or bits per symbol, at each attention length, with its confidence interval.

    Args:
        entries: with "attention_length", "perplexity" or "bits_per_character", and the same "_low" and
            "_high"; as `txl evaluate` writes them.
        unit: of the tokens.
        title: the headline.
        path: where the figure goes.
    """
    key, (_, name) = score_key(unit), metric_of(unit)
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    entries = sorted(entries, key=lambda entry: entry["attention_length"])
    lengths, values = ([entry[name_] for entry in entries] for name_ in ("attention_length", key))
    axes.plot(lengths, values, color=LINE, marker="o", linewidth=1.6, markersize=4.5)
    bounds = [[entry.get(f"{key}_{side}") for entry in entries] for side in ("low", "high")]
    if all(isinstance(value, float) and value == value for side in bounds for value in side):
        axes.fill_between(lengths, *bounds, color=LINE, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("attention length (tokens)")
    axes.set_ylabel(name)
    axes.set_title(title, loc="left", fontsize=10.5)
    finish_axes(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
