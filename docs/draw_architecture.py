"""Draw the rooms of the package, their sizes and their imports: docs/architecture.svg.

The layers are those of import-linter's contract in pyproject.toml, the imports are read from the code.

python docs/draw_architecture.py             # or: make architecture
python docs/draw_architecture.py --out FILE
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

import grimp
import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

if sys.version_info >= (3, 11):
    import tomllib
else:  # import-linter brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 2.0, 0.62  # of a box, in inches; a row is one inch high
COLUMN = 2.6  # between the centers of boxes in one layer


def layers() -> list[list[str]]:
    """Return the rooms of each layer, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (rows,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in row.split("|")] for row in rows]


def imports(rooms: list[str]) -> dict[str, set[str]]:
    """Return which rooms each room imports."""
    graph = grimp.build_graph("txl", cache_dir=None)
    for room in rooms:
        if graph.find_children(room):
            graph.squash_module(room)
    return {room: graph.find_modules_directly_imported_by(room) & set(rooms) - {room} for room in rooms}


def lines(room: str) -> int:
    """Return the number of lines of a room's Python files."""
    path = ROOT.joinpath("src", *room.split("."))
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def reachable(room: str, imported: dict[str, set[str]]) -> set[str]:
    """Return the rooms that a room imports, directly or through others."""
    return imported[room].union(*(reachable(other, imported) for other in imported[room]))


def draw(path: Path) -> None:
    """Draw the rooms.

    An import that others already imply is a pale arrow, so that the skeleton stays visible.
    """
    rows = layers()
    rooms = list(chain.from_iterable(rows))
    imported = imports(rooms)
    places = {}
    for number, row in enumerate(rows):
        shift = (
            0.9 * (-1) ** number if len(row) == 1 else 0.0
        )  # zigzag: arrows that skip a layer stay visible
        for column, room in enumerate(row):
            places[room] = (shift + (column - (len(row) - 1) / 2) * COLUMN, -number)

    side = max(map(len, rows)) * COLUMN
    figure = Figure(figsize=(side, len(rows)))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-side / 2, side / 2), ylim=(0.5 - len(rows), 0.5))
    axes.axis("off")
    for room in rooms:
        for other in sorted(imported[room]):
            implied = any(other in reachable(step, imported) for step in imported[room] - {other})
            (x, y), (to_x, to_y) = places[room], places[other]
            axes.add_patch(
                FancyArrowPatch(
                    (x, y - HEIGHT / 2),
                    (to_x, to_y + HEIGHT / 2),
                    connectionstyle=f"arc3,rad={0.12 if implied else 0.0}",
                    arrowstyle="-|>",
                    mutation_scale=9,
                    shrinkA=0,
                    shrinkB=0,
                    linewidth=0.7 if implied else 1.3,
                    color="#c3ccd6" if implied else "#44546a",
                    zorder=1 if implied else 2,
                )
            )
    for room, (x, y) in places.items():
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        style = {"facecolor": "#eef3f8", "edgecolor": "#44546a", "zorder": 3}
        axes.add_patch(
            FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", **style)
        )
        name = room.removeprefix("txl.")
        axes.text(x, y + 0.1, name, ha="center", va="center", fontsize=12, weight="bold", zorder=4)
        axes.text(x, y - 0.14, f"{lines(room):,} lines", ha="center", va="center", fontsize=9, zorder=4)
    with matplotlib.rc_context({"svg.hashsalt": "txl", "svg.fonttype": "none"}):  # the same bytes every time
        figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "architecture.svg")
    draw(parser.parse_args().out)
