"""A report as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import replace

from txl.report.grids import DIFFERENCES, Grid, Measured, Report, measured, status_of
from txl.report.records import Row, Sweep
from txl.report.sweeps import one_line


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"# {_md(report.title)}", "", *_paragraphs(report.about), *_md_grid(report.results)]
    if report.differences:
        lines += [f"## {_md(report.differences.title)}", "", DIFFERENCES, "", *_md_grid(report.differences)]
    if report.problems:
        lines += ["## Runs without a number", "", *(f"- {_md(line)}" for line in report.problems), ""]
    if report.notes:
        lines += ["## Notes", "", *(f"- {_md(line)}" for line in report.notes), ""]
    if report.settings:
        lines += ["## Settings of all rows", ""]
        lines += [*(f"- {_md(name)}: {_md(value)}" for name, value in report.settings), ""]
    if report.row_settings:
        lines += [f"## {_md(report.row_settings.title)}", "", *_md_grid(report.row_settings)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _paragraphs(lines: Iterable[str]) -> list[str]:
    return [part for line in lines for part in (_md(line), "")]


def _md(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    text = " ".join(text.split())
    for sign in "\\`*_|[]<>#~":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;")


def _md_grid(grid: Grid) -> list[str]:
    headings = [
        f"{column.group}: {column.heading}" if column.group else column.heading for column in grid.columns
    ]
    lines = [headings, ["---:" if column.number else "---" for column in grid.columns]]
    cells = [[_md(cell.text) for cell in line] for line in grid.rows]
    lines = [[_md(heading) for heading in headings], lines[1], *cells]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
    "†": r"\dag{}",
    "×": r"$\times$",
    "−": "$-$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "§": r"\S{}",
}


def _tex(text: str) -> str:
    signed = re.sub(r"(?<![\w.-])-(?=\d)", "−", " ".join(text.split()))  # a hyphen is too short for a minus
    return "".join(TEX.get(sign, sign) for sign in signed)


def latex(report: Report) -> str:
    """Return the tables as LaTeX, for a document with the packages booktabs and graphicx.

    How the runs of a row went is left out where all of them went well.
    """
    results = report.results
    if {line[-1].text for line in results.rows} <= {"completed", "published only"}:
        rows = [line[:-1] for line in results.rows]
        results = replace(results, columns=results.columns[:-1], rows=rows)
    lines = ["% \\usepackage{booktabs,graphicx} belongs into the preamble. Wide tables shrink to the text."]
    lines += _tex_grid(results, report.about)
    if report.differences:
        lines += ["", *_tex_grid(report.differences, [DIFFERENCES])]
    if report.problems:
        lines += ["", "\\paragraph{Runs without a number}", "\\begin{itemize}"]
        lines += [*(f"  \\item {_tex(line)}" for line in report.problems), "\\end{itemize}"]
    return "\n".join(lines) + "\n"


# Makes a table that is wider than the text as wide as it, and leaves others as they are.
TEX_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"


def _tex_grid(grid: Grid, caption: list[str]) -> list[str]:
    above, rules, at_column = [], [], 1
    for group, width in grid.groups:
        above.append(f"\\multicolumn{{{width}}}{{c}}{{{_tex(group)}}}" if group else " & ".join([""] * width))
        if group:
            rules.append(f"\\cmidrule(lr){{{at_column}-{at_column + width - 1}}}")
        at_column += width
    kinds = "".join("r" if column.number else "l" for column in grid.columns)
    lines = ["\\begin{table}", "  \\centering", f"  {TEX_FIT}{{%"]
    lines += [f"  \\begin{{tabular}}{{{kinds}}}", "    \\toprule"]
    if rules:
        lines += [f"    {' & '.join(above)} \\\\", f"    {' '.join(rules)}"]
    lines.append(f"    {' & '.join(_tex(column.heading) for column in grid.columns)} \\\\")
    lines.append("    \\midrule")
    lines += [f"    {' & '.join(_tex(cell.text) for cell in line)} \\\\" for line in grid.rows]
    title = _tex(" ".join([grid.title.rstrip(".") + ".", *caption]))
    return [*lines, "    \\bottomrule", "  \\end{tabular}}", f"  \\caption{{{title}}}", "\\end{table}"]


NUMBERS = ("mean", "deviation", "n", "runs", "values", "difference", "low", "high", "beyond_noise")
NUMBERS += ("published", "published_difference")


def as_csv(sweep: Sweep) -> str:
    """Return a line for each row and measure, in full precision.

    Its columns: table, scale, row, label, those of the definition, measure, unit (bytes for memory), mean,
    deviation, n, runs (that were to be), values (`seed:value`, by seed), difference (to the first row that
    is run), low and high (of its 95 % interval, after Welch), beyond_noise (yes, no, unknown), published,
    published_difference, status, error.
    """
    measures, found = measured(sweep)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    before, after = ("table", "scale", "row", "label"), ("measure", "unit", *NUMBERS, "status", "error")
    writer.writerow([*before, *sweep.columns, *after])
    for row in sweep.rows:
        cells = [row.cells.get(column, "") for column in sweep.columns]
        errors = [f"seed {run.seed}: {one_line(run.error)}" for run in row.runs if run.error]
        about = [sweep.name, sweep.scale or "", row.name, row.label, *cells]
        for measure in measures:
            unit = "bytes" if measure.key == "peak_memory" else measure.unit
            numbers = _csv_numbers(row, found[row.name, measure.key])
            writer.writerow([*about, measure.key, unit, *numbers, status_of(row), "; ".join(errors)])
        if not measures:  # a figure's
            writer.writerow([*about, *[""] * (len(NUMBERS) + 2), status_of(row), "; ".join(errors)])
    return file.getvalue()


def _csv_numbers(row: Row, one: Measured) -> list[str]:
    sample, found = one.sample, one.difference
    values = " ".join(
        _whole(value) if seed is None else f"{seed}:{_whole(value)}" for seed, value in one.values.items()
    )
    interval = ["", ""]
    beyond = ""
    if found:
        beyond = {True: "yes", False: "no", None: "unknown"}[found.exceeds_noise]
        if found.half_width is not None:
            interval = [_exact(found.value - found.half_width), _exact(found.value + found.half_width)]
    return [
        _exact(sample and sample.mean),
        _exact(sample and sample.deviation),
        str(sample.n if sample else 0),
        str(len(row.runs)),
        values,
        _exact(found and found.value),
        *interval,
        beyond,
        one.published or "",
        _exact(one.published_difference),
    ]


def _exact(value: float | None) -> str:
    """Return twelve digits: those that do not depend on a machine's rounding of the last one."""
    return "" if value is None else f"{value:.12g}"


def _whole(value: float) -> str:
    """Return all digits of a value as the results have it."""
    return str(int(value)) if value.is_integer() else repr(value)
