"""The figure of `txl speed`: the time of a token against the attention length, on both sides."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator

from txl.report.figures.style import finish_axes, new_figure

LINE_LETTERS = 72  # of a headline: a command line may be long
SIDES = {
    "vanilla": ("without recurrence, a window for each token", "#2f6ea5", "s"),
    "recurrent": ("with recurrence", "#c44e2b", "o"),
}


def draw_speed(entries: list[dict[str, Any]], title: str, path: Path) -> Path:
    """Draw the milliseconds of a token on both sides, on a logarithmic scale, and how far they are apart.

    Args:
        entries: one for each attention length, as `txl speed` writes them in "attention".
        title: the headline.
        path: where the figure goes.
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    entries = sorted(entries, key=lambda entry: entry["attention_length"])
    lengths = [entry["attention_length"] for entry in entries]
    for side, (label, color, marker) in SIDES.items():
        times = [entry[side]["milliseconds_per_token"] for entry in entries]
        medians = [time["median"] for time in times]
        reach = [time["median"] - time["least"] for time in times]
        beyond = [time["most"] - time["median"] for time in times]
        style = {"color": color, "marker": marker, "linewidth": 1.6, "markersize": 5, "capsize": 3}
        axes.errorbar(lengths, medians, yerr=[reach, beyond], label=label, **style)
    for entry in entries:
        middle = [entry[side]["milliseconds_per_token"]["median"] for side in SIDES]
        place = entry["attention_length"], (middle[0] * middle[1]) ** 0.5
        axes.annotate(f"{entry['slowdown']['median']:,.0f}×", place, ha="center", va="center", fontsize=9)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.08)
    axes.set_xlabel("attention length (tokens)")
    axes.set_ylabel("milliseconds for a token")
    axes.set_title(textwrap.fill(title, LINE_LETTERS), loc="left", fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    finish_axes(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
