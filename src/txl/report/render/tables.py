"""A sweep's table in files: `table.md`, `table.csv`, `table.tex`, and the page `report.html`.

The same results give the same bytes, on every machine and at every time.
"""

from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from txl.report.grids import Column, problems_of, report_of
from txl.report.render.formats import as_csv, latex, markdown
from txl.report.render.page import page
from txl.report.sweeps import read_sweeps

NAMES = ("table.md", "table.csv", "table.tex", "report.html")


def write_tables(directories: Path | list[Path], out: Path | None = None) -> list[Path]:
    """Write the table of a sweep, or of several together, as Markdown, CSV, LaTeX and one HTML page.

    Args:
        directories: of sweeps, of runs, or folders with runs below them.
        out: where the files go; `None` for the sweep's directory, if it is one.

    Raises:
        ValueError: see `txl.report.sweeps.read_sweeps`; or several directories and no `out`.
    """
    directories = [directories] if isinstance(directories, Path) else directories
    if out is None and len(directories) > 1:
        raise ValueError("the table of several directories needs its own folder: out=DIR")
    out = out or directories[0]
    sweep = read_sweeps(directories)
    report = report_of(sweep)
    texts = (markdown(report), as_csv(sweep), latex(report), page(sweep, report))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in zip(NAMES, texts, strict=True):
        (out / name).write_text(text, "utf-8", newline="\n")
    return [out / name for name in NAMES]


def summary_of(directories: Path | list[Path], width: int = 100) -> Group:
    """Return a short table of a sweep, to be printed: each row's numbers, the paper's, and its status.

    Args:
        width: of the terminal, in characters; where it does not suffice, the paper's numbers are left out,
            then the last measures.
    """
    sweep = read_sweeps([directories] if isinstance(directories, Path) else directories)
    grid = report_of(sweep).results
    skipped = {"model", *sweep.columns.values()}  # the row's name says it
    columns = [column for column in grid.columns if column.group or column.heading not in skipped]

    def fits() -> bool:
        return sum(_width(column) + 2 for column in columns) + 2 <= width

    if not fits():
        columns = [column for column in columns if column.heading != "paper"]
    while not fits() and len(columns) > 4:  # the last measures go first, the status stays
        columns.pop(-2)
    table = Table(box=box.SIMPLE_HEAVY, padding=(0, 1, 0, 0), title=Text(grid.title), title_justify="left")
    for column in columns:
        table.add_column(
            Text(_heading(column)), justify="right" if column.number else "left", width=_width(column)
        )
    for line in replace(grid, columns=columns).rows:
        table.add_row(*(Text(cell.text) for cell in line))
    return Group(table, *(Text(line) for line in problems_of(sweep)))


def _heading(column: Column) -> str:
    return f"{column.group}\n{column.heading}" if column.group else column.heading


def _width(column: Column) -> int:
    """Return the characters that a column needs: its cells whole, its heading broken between words."""
    longest = 12 if column.heading == "status" else None  # a status may be broken as well
    return max(map(len, [*(cell.text[:longest] for cell in column.cells), *_heading(column).split()]))
