"""The figure of `txl speed`: time per token against the attention length, with and without recurrence."""

import textwrap
from pathlib import Path
from typing import Any

from txl.report.figures.style import BLUE, ORANGE, finish_axes, new_figure, save, tick_lengths

SIDES = {
    "vanilla": ("without recurrence, a window for each token", BLUE, "s"),
    "recurrent": ("with recurrence", ORANGE, "o"),
}


def draw_speed(entries: list[dict[str, Any]], title: str, path: Path) -> Path:
    """Draw the milliseconds per token of both sides on a logarithmic scale, and the slowdown between them.

    Args:
        entries: one for each attention length, as `txl speed` writes them in "attention".
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    entries = sorted(entries, key=lambda entry: entry["attention_length"])
    lengths = [entry["attention_length"] for entry in entries]
    for side, (label, color, marker) in SIDES.items():
        times = [entry[side]["milliseconds_per_token"] for entry in entries]
        medians = [time["median"] for time in times]
        below = [time["median"] - time["least"] for time in times]
        above = [time["most"] - time["median"] for time in times]
        style: dict[str, Any] = {"color": color, "marker": marker, "linewidth": 1.6, "markersize": 5}
        axes.errorbar(lengths, medians, yerr=[below, above], label=label, capsize=3, **style)
    for entry in entries:
        middle = [entry[side]["milliseconds_per_token"]["median"] for side in SIDES]
        place = entry["attention_length"], (middle[0] * middle[1]) ** 0.5
        axes.annotate(f"{entry['slowdown']['median']:,.0f}×", place, ha="center", va="center", fontsize=9)
    axes.set_yscale("log")
    tick_lengths(axes, lengths)
    axes.margins(x=0.08)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    title = textwrap.fill(title, 72)  # it holds a command line
    finish_axes(axes, title, "attention length (tokens)", "milliseconds for a token", 10)
    return save(figure, path)
