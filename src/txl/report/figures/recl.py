"""The figures of `txl recl`: the gain from more context (Figure 3), and perplexity by context (Figure 4)."""

import json
import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from txl.report.figures.style import GRAY, SERIES, finish_axes, new_figure, save_all

MARKERS = "os^Dv*"


def draw_recl(path: Path) -> list[Path]:
    """Draw both figures as PNG and PDF into `figures/` beside `path`, the file that `txl recl` wrote."""
    path = Path(path)
    result = json.loads(path.read_text("utf-8"))
    figures = {f"{path.stem}_gain": _gains(result), f"{path.stem}_perplexity": _perplexities(result)}
    return save_all(figures, path.parent / "figures")


def _gains(result: dict[str, Any]) -> Figure:
    """Return Figure 3: exp f(c, c) - exp f(c, c + step) of each model, a panel for each r."""
    figure = new_figure(4.2 * len(result["r"]) + 0.6, 3.9)
    panels = figure.subplots(1, len(result["r"]), squeeze=False)[0]
    step, starts = result["step"], result["lengths"][:-1]
    for place, (axes, share) in enumerate(zip(panels, result["r"], strict=True)):
        for model, style in _styled(result["models"]):
            axes.plot(starts, model["effective"][place]["differences"], **style)
        finish_axes(axes, f"r = {share:g}", f"context, from c to c + {step:,} {result['data']['unit']}s")
        axes.axhline(0, color=GRAY, linewidth=0.8, zorder=1)
    panels[0].set_ylabel("gain in perplexity over the group's best")
    panels[0].legend(frameon=False)
    return figure


def _perplexities(result: dict[str, Any]) -> Figure:
    """Return Figure 4: the perplexity of each model at each length of context."""
    figure = new_figure(5.6, 3.9)
    axes = figure.add_subplot()
    for model, style in _styled(result["models"]):
        perplexities = [math.exp(min(loss, 700)) for loss in model["losses"]]
        axes.plot(result["lengths"], perplexities, **style)
    title = f"{result['data']['name']}, {result['data']['split']}, {result['positions']:,} positions"
    finish_axes(axes, title, f"context ({result['data']['unit']}s)", "perplexity")
    axes.legend(frameon=False)
    return figure


def _styled(models: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each model with the style of its line; color and marker both tell models apart."""
    return [
        (
            model,
            {
                "label": model["name"] + (f" (reads {model['cap']:,})" if model["cap"] else ""),
                "color": SERIES[place % len(SERIES)],
                "marker": MARKERS[place % len(MARKERS)],
                "markersize": 4.5,
                "linewidth": 1.6,
            },
        )
        for place, model in enumerate(models)
    ]
