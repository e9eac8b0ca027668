"""What the figures share: how one is made, and its axes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new_figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """Return an empty figure, its sides in inches, that needs no display."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def finish_axes(axes: Axes) -> None:
    """Draw horizontal grid lines behind the data, and no frame above or to the right of it."""
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
