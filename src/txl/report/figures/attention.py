"""The figures of `txl attention`, from its JSON and the arrays beside it: the paper's Figures 5, 6 and 7."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, NullFormatter

from txl.report.figures.style import RED, new_figure, save_all

COLORMAP, FONT = "Blues", "DejaVu Sans Mono"
NAMES = {
    "attention": "attention",
    "a": "(a) content-based addressing",
    "b": "(b) content-dependent positional bias",
    "c": "(c) global content bias",
    "d": "(d) global positional bias",
}
MAX_SIDE = 60.0  # inches of a figure; larger ones get a smaller font


@dataclass(frozen=True)
class Maps:
    """What `txl attention` wrote.

    Attributes:
        result: the JSON. `layers`, `heads`, `memory_length`, `complete`, `tokens`, `terms` and its `segment`:
            `position`, `tokens` (the labels of the memory and the segment), `heads` and why each was chosen.
        arrays: `mean_attention` and for each term `mean_a` …, `[N · H, M + 1]`, column d for the distance d;
            `segment_attention` `[heads, L, M + L]`.
    """

    result: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: Path) -> Maps:
        """Read a JSON and the arrays beside it, under the same name with `.npz`."""
        with np.load(path.with_suffix(".npz")) as stored:
            return cls(json.loads(path.read_text("utf-8")), dict(stored))

    @property
    def means(self) -> dict[str, np.ndarray]:
        """The means by name: "attention", and the terms that this model's scores have."""
        return {name: self.arrays[f"mean_{name}"] for name in ("attention", *self.result["terms"])}

    @cached_property
    def headline(self) -> str:
        result = self.result
        partial = "" if result["complete"] else "INTERRUPTED: "
        shape = f"{result['layers']} layers × {result['heads']} heads"
        counted = f"mean over {result['tokens']:,} {result['unit']}s of {result['split']}"
        return f"{partial}{result['name']}, {shape}, {counted}"


def top_of_memory(attention_LK: np.ndarray, memory_length: int, share: float) -> np.ndarray:
    """Return the memory positions that get the most attention from the whole segment, ascending.

    Args:
        attention_LK: of one head, a row for each token of the segment; the first M columns are the memory.
        share: of the memory to return, rounded up.
    """
    total_M = attention_LK[:, :memory_length].sum(0)
    return np.sort(np.argsort(-total_M, kind="stable")[: int(np.ceil(share * memory_length))])


def draw_attention(path: Path, folder: Path) -> list[Path]:
    """Draw what `txl attention` measured, as PNG and PDF.

    Returns:
        The paths: `<name of the JSON>-mean.png`, if single heads were read `-heads.png`, and if terms were
        measured `-terms.png`, each with its PDF. Equal numbers give equal bytes.
    """
    figures = {f"{path.stem}-{name}": figure for name, figure in make_figures(Maps.read(path)).items()}
    return save_all(figures, folder)


def make_figures(maps: Maps) -> dict[str, Figure]:
    figures = {"mean": mean_figure(maps)}
    if maps.result["segment"]["heads"]:
        figures["heads"] = heads_figure(maps)
    return figures | ({"terms": terms_figure(maps)} if len(maps.means) > 1 else {})


def mean_figure(maps: Maps) -> Figure:
    """Return Figure 5: a row for each head, a column for each distance; darker is more attention."""
    rows = len(maps.means["attention"])
    figure = new_figure(9.0, 1.9 + np.clip(rows * 0.16, 1.6, 9.0))
    axes = figure.add_subplot()
    _color_bar(figure, axes, _by_distance(axes, maps, "attention", _norm(maps.means["attention"])))
    axes.set_title(f"Mean attention by distance\n{maps.headline}", loc="left", fontsize=9.5)
    return figure


def terms_figure(maps: Maps) -> Figure:
    """Return Figure 7: Figure 5 for each term alone, after a softmax over the same distances."""
    terms = list(maps.means)[1:]
    columns = min(2, len(terms))
    lines = -(-len(terms) // columns)
    rows = len(maps.means["attention"])
    figure = new_figure(1.2 + 5.4 * columns, 1.0 + lines * (0.9 + np.clip(rows * 0.12, 1.4, 6.0)))
    grid = figure.subplots(lines, columns, squeeze=False)
    norm = _norm(np.stack([maps.means[term] for term in terms]))  # one scale: the panels are compared
    for axes, term in zip(grid.flat, terms, strict=False):
        image = _by_distance(axes, maps, term, norm)
        axes.set_title(NAMES[term], loc="left", fontsize=9.5)
    _color_bar(figure, grid, image)
    for axes in grid.flat[len(terms) :]:
        axes.set_visible(False)
    title = f"Softmax of each term of the scores alone, by distance\n{maps.headline}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
    return figure


def heads_figure(maps: Maps) -> Figure:
    """Return Figure 6: single heads, a row for each token of a segment, a column for each of its context.

    The memory tokens that get the most attention from the segment are red.
    """
    segment, memory = maps.result["segment"], maps.result["memory_length"]
    labels = [visible(label) for label in segment["tokens"]]
    chosen = maps.arrays["segment_attention"]
    count, length, keys = chosen.shape
    longest = max(map(len, labels))
    cell = min(0.13, MAX_SIDE / keys, MAX_SIDE / (count * length))
    font_size = cell * 72 * 0.8
    edge = longest * font_size * 0.62 / 72
    # A fixed layout: the automatic one would spend most of the time on hundreds of labels.
    left, bottom, top, gap = 0.35 + edge, 0.35 + edge, 0.62, 0.32 + edge
    width = left + keys * cell + 0.1
    height = top + count * length * cell + (count - 1) * gap + bottom
    figure = new_figure(width, height, layout="none")
    grid = figure.subplots(count, 1, squeeze=False)
    figure.subplots_adjust(
        left / width, bottom / height, 1 - 0.1 / width, 1 - top / height, hspace=gap / (length * cell)
    )
    for axes, attention_LK, head in zip(grid.flat, chosen, segment["heads"], strict=True):
        axes.imshow(attention_LK, cmap=COLORMAP, norm=_norm(attention_LK, memory + 1), aspect="auto")
        style = {"fontsize": font_size, "fontfamily": FONT, "parse_math": False}
        axes.set_xticks(range(keys), labels, rotation=90, **style)
        axes.set_yticks(range(length), labels[memory:], **style)
        axes.tick_params(length=0, pad=1)
        for column in top_of_memory(attention_LK, memory, segment["top_share"]):
            axes.get_xticklabels()[column].set(color=RED, fontweight="bold")
        axes.axvline(memory - 0.5, color="#555555", linewidth=0.8)
        layer = head["head"] // maps.result["heads"] + 1
        name = f"head {head['head']} (layer {layer} of {maps.result['layers']}): {head['why']}"
        share = f"red: the {segment['top_share']:.0%} of the memory with the most attention"
        axes.set_title(f"{name}; {share}", loc="left", fontsize=8.5)
    figure.supylabel("tokens of the segment", x=0.06 / width, fontsize=8, ha="left")
    figure.supxlabel("context: the memory, then the segment", y=0.06 / height, fontsize=8, va="bottom")
    title = f"Single heads at token {segment['position']:,} of {maps.result['split']}: {maps.result['name']}"
    figure.suptitle(title, x=0.1 / width, y=1 - 0.08 / height, ha="left", va="top", fontsize=9.5)
    return figure


def visible(label: str) -> str:
    """Replace characters that the font lacks by a box, so that matplotlib does not warn."""
    known = get_font(findfont(FONT)).get_charmap()
    return "".join(character if ord(character) in known else "□" for character in label)


def _norm(values: np.ndarray, distances: int | None = None) -> LogNorm:
    """Return a logarithmic color scale from a tenth of uniform attention up."""
    low = 0.1 / (distances or values.shape[-1])
    return LogNorm(low, max(float(values.max()), 2 * low), clip=True)


def _color_bar(figure: Figure, axes: Axes | np.ndarray, image: AxesImage) -> None:
    bar = figure.colorbar(image, ax=axes, pad=0.015, aspect=30)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.tick_params(labelsize=7.5)


def _by_distance(axes: Axes, maps: Maps, name: str, norm: LogNorm) -> AxesImage:
    """Draw means by distance, the token itself at the right end, in reading order."""
    values, heads = maps.means[name], maps.result["heads"]
    rows, distances = values.shape
    extent = (distances - 0.5, -0.5, rows - 0.5, -0.5)
    image = axes.imshow(
        values[:, ::-1], cmap=COLORMAP, norm=norm, aspect="auto", interpolation="nearest", extent=extent
    )
    for border in range(heads, rows, heads):
        axes.axhline(border - 0.5, color="#888888", linewidth=0.5)
    if rows <= 16:
        axes.set_yticks(range(rows))
    axes.set_xlabel("distance: tokens before the token that looks", fontsize=8)
    axes.set_ylabel(f"head ({heads} a layer)", fontsize=8)
    axes.tick_params(labelsize=7.5)
    return image
