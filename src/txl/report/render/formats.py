"""A report as Markdown, LaTeX and CSV."""

import csv
import io
import re
from dataclasses import replace

from txl.report.grids import Measured, Report, measured, status_of
from txl.report.records import Sweep
from txl.report.render.environment import template


def markdown(report: Report) -> str:
    return template("table.md", _escape_markdown).render(report=report).rstrip("\n") + "\n"


def _escape_markdown(text: str) -> str:
    """Return a text as one line that Markdown shows literally."""
    return re.sub(r"([\\`*_|\[\]<>#~])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
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
TEX_SYNTAX = {  # braces and percent signs are LaTeX's own
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}


def latex(report: Report) -> str:
    """Return the tables as LaTeX, for a document with the packages booktabs and graphicx.

    The status column is left out if all runs completed.
    """
    results = report.results
    if {cell.text for cell in results.columns[-1].cells} <= {"completed", "published only"}:
        results = replace(results, columns=results.columns[:-1])
    return template("table.tex", _escape_latex, **TEX_SYNTAX).render(report=report, results=results)


def _escape_latex(text: str) -> str:
    signed = re.sub(r"(?<![\w.-])-(?=\d)", "−", " ".join(text.split()))  # minus signs, not hyphens
    return "".join(TEX.get(sign, sign) for sign in signed)


NUMBERS = [
    *("mean", "deviation", "n", "runs", "values", "difference", "low", "high", "beyond_noise"),
    *("published", "published_difference"),
]


def as_csv(sweep: Sweep) -> str:
    """Return a line for each row and measure, in full precision; `docs/report.md` explains the columns."""
    measures, found = measured(sweep)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    before, after = ("table", "scale", "row", "label"), ("measure", "unit", *NUMBERS, "status", "error")
    writer.writerow([*before, *sweep.columns, *after])
    for row in sweep.rows:
        cells = [row.cells.get(column, "") for column in sweep.columns]
        errors = [f"seed {run.seed}: {run.error}" for run in row.runs if run.error]
        about = [sweep.name, sweep.scale or "", row.name, row.label, *cells]
        for measure in measures:
            unit = "bytes" if measure.key == "peak_memory" else measure.unit
            numbers = _csv_numbers(found[row.name, measure.key])
            writer.writerow([*about, measure.key, unit, *numbers, status_of(row), "; ".join(errors)])
        if not measures:  # a figure's
            writer.writerow([*about, *[""] * (len(NUMBERS) + 2), status_of(row), "; ".join(errors)])
    return file.getvalue()


def _csv_numbers(one: Measured) -> list[str]:
    sample, found = one.sample, one.difference
    values = [("" if seed is None else f"{seed}:") + _whole(value) for seed, value in one.values.items()]
    low = high = None
    if found and found.half_width is not None:
        low, high = found.value - found.half_width, found.value + found.half_width
    return [
        _exact(sample.mean if sample else None),
        _exact(sample.deviation if sample else None),
        str(sample.n if sample else 0),
        str(len(one.row.runs)),
        " ".join(values),
        _exact(found.value if found else None),
        _exact(low),
        _exact(high),
        {True: "yes", False: "no", None: "unknown"}[found.exceeds_noise] if found else "",
        one.published or "",
        _exact(one.published_difference),
    ]


def _exact(value: float | None) -> str:
    """Return twelve digits, which are the same on every machine."""
    return "" if value is None else f"{value:.12g}"


def _whole(value: float) -> str:
    """Return all digits of a value of the results."""
    return str(int(value)) if value.is_integer() else repr(value)
