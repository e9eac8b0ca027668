"""The figures of `txl recl`: what more context gains (Figure 3), and perplexity by context (Figure 4)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from txl.report.figures.style import finish_axes, new_figure

COLORS = ("#c44e2b", "#2f6ea5", "#4a8f5b", "#8a5fa8", "#b58a1f", "#6b6b6b")
MARKERS = "os^Dv*"


def draw_recl(path: Path) -> list[Path]:
    """Draw the figures of a group of models, each as PNG and PDF, in `figures/` beside the file.

    Args:
        path: what `txl recl` wrote.

    Returns:
        The paths of the figures.
    """
    path = Path(path)
    result = json.loads(path.read_text("utf-8"))
    folder = path.parent / "figures"
    folder.mkdir(exist_ok=True)
    drawn = {f"{path.stem}_gain": _gains(result), f"{path.stem}_perplexity": _perplexities(result)}
    paths = [folder / f"{name}.{kind}" for name in drawn for kind in ("png", "pdf")]
    for file in paths:
        # Without the date a PDF of the same numbers is the same file.
        drawn[file.stem].savefig(
            file, dpi=160, metadata={"CreationDate": None} if file.suffix == ".pdf" else None
        )
    return paths


def _gains(result: dict[str, Any]) -> Figure:
    """Return Figure 3: exp f(c, c) - exp f(c, c + step) of each model, a panel for each r."""
    figure = new_figure(4.2 * len(result["r"]) + 0.6, 3.9)
    panels = figure.subplots(1, len(result["r"]), squeeze=False)[0]
    step, begins = result["step"], result["lengths"][:-1]
    for place, (axes, share) in enumerate(zip(panels, result["r"], strict=True)):
        for model, style in _styled(result["models"]):
            axes.plot(begins, model["effective"][place]["differences"], **style)
        _finish(axes, f"r = {share:g}", f"context, from c to c + {step:,} {result['data']['unit']}s")
        axes.axhline(0, color="#8a8a8a", linewidth=0.8, zorder=1)
    panels[0].set_ylabel("gain in perplexity over the group's best")
    panels[0].legend(frameon=False)
    return figure


def _perplexities(result: dict[str, Any]) -> Figure:
    """Return Figure 4: the perplexity of each model at each length of context."""
    figure = new_figure(5.6, 3.9)
    axes = figure.add_subplot()
    for model, style in _styled(result["models"]):
        shown = [math.exp(min(loss, 700)) for loss in model["losses"]]
        axes.plot(result["lengths"], shown, **style)
    title = f"{result['data']['name']}, {result['data']['split']}, {result['positions']:,} positions"
    _finish(axes, title, f"context ({result['data']['unit']}s)")
    axes.set_ylabel("perplexity")
    axes.legend(frameon=False)
    return figure


def _styled(models: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each model with how its line looks; the color tells models apart, and so does the marker."""
    return [
        (
            model,
            {
                "label": model["name"] + (f" (reads {model['cap']:,})" if model["cap"] else ""),
                "color": COLORS[place % len(COLORS)],
                "marker": MARKERS[place % len(MARKERS)],
                "markersize": 4.5,
                "linewidth": 1.6,
            },
        )
        for place, model in enumerate(models)
    ]


def _finish(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_xlabel(below)
    finish_axes(axes)
