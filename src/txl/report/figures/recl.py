"""The figures of `txl recl`: the gain from more context (Figure 3), and perplexity by context (Figure 4)."""

import json
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from txl.report.figures.style import GRAY, SERIES, finish_axes, new_figure, save_all


def draw_recl(path: Path) -> list[Path]:
    """Draw both figures as PNG and PDF into `figures/` beside `path`, the file that `txl recl` wrote."""
    result = json.loads(path.read_text("utf-8"))
    figures = {f"{path.stem}_gain": _gains(result), f"{path.stem}_perplexity": _perplexities(result)}
    return save_all(figures, path.parent / "figures")


def _gains(result: dict[str, Any]) -> Figure:
    """Return Figure 3: exp f(c, c) - exp f(c, c + step) of each model, a panel for each r."""
    figure = new_figure(4.2 * len(result["r"]) + 0.6, 3.9)
    panels = figure.subplots(1, len(result["r"]), squeeze=False)[0]
    step, starts = result["step"], result["lengths"][:-1]
    for place, (axes, share) in enumerate(zip(panels, result["r"], strict=True)):
        gains = [model["effective"][place]["differences"] for model in result["models"]]
        _draw_lines(axes, result["models"], starts, gains)
        finish_axes(axes, f"r = {share:g}", f"context, from c to c + {step:,} {result['data']['unit']}s")
        axes.axhline(0, color=GRAY, linewidth=0.8, zorder=1)
    panels[0].set_ylabel("gain in perplexity over the group's best")
    panels[0].legend(frameon=False)
    return figure


def _perplexities(result: dict[str, Any]) -> Figure:
    """Return Figure 4: the perplexity of each model at each length of context."""
    figure = new_figure(5.6, 3.9)
    axes = figure.add_subplot()
    perplexities = [[math.exp(min(loss, 700)) for loss in model["losses"]] for model in result["models"]]
    _draw_lines(axes, result["models"], result["lengths"], perplexities)
    title = f"{result['data']['name']}, {result['data']['split']}, {result['positions']:,} positions"
    finish_axes(axes, title, f"context ({result['data']['unit']}s)", "perplexity")
    axes.legend(frameon=False)
    return figure


def _draw_lines(axes: Axes, models: list[dict[str, Any]], x: list[int], lines: list[list[float]]) -> None:
    axes.set_prop_cycle(color=SERIES, marker=list("os^Dv*"))
    for model, y in zip(models, lines, strict=True):
        label = model["name"] + (f" (reads {model['cap']:,})" if model["cap"] else "")
        axes.plot(x, y, label=label, markersize=4.5, linewidth=1.6)
