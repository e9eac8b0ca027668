"""Shared by all figures: colors, axes and files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

SERIES = ("#c44e2b", "#2f6ea5", "#4a8f5b", "#8a5fa8", "#b58a1f", "#6b6b6b")
ORANGE, BLUE = SERIES[:2]
LIGHT_BLUE, RED, GRAY, GRID = "#8fb3d9", "#c1121f", "#8a8a8a", "#e6e6e6"


def new_figure(width: float, height: float, layout: Any = "constrained") -> Figure:
    """Return an empty figure that needs no display; its sides are in inches."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def finish_axes(axes: Axes, title: str, x: str, y: str = "", title_size: float = 10.5) -> None:
    """Label the axes, draw horizontal grid lines behind the data, and hide the top and right spines."""
    axes.set_title(title, loc="left", fontsize=title_size)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def tick_lengths(axes: Axes, lengths: list[int]) -> None:
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG or PDF and return its path; equal figures give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return path


def save_all(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    kinds = ("png", "pdf")
    return [save(figure, folder / f"{name}.{kind}") for name, figure in figures.items() for kind in kinds]
