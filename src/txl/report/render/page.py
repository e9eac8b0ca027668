"""The page of a report: one file that needs no other, with the tables and interactive figures.

The tables are in the page as HTML; the figures are drawn in the browser by `page.js` from the numbers that
the page carries as JSON.
"""

from __future__ import annotations

import json
import math
from html import escape
from importlib.resources import files
from typing import Any

from txl.records.metrics import read_metrics
from txl.records.units import metric_of
from txl.report.evaluations import figures_html
from txl.report.grids import DIFFERENCES, Cell, Column, Grid, Report, failed, grouped
from txl.report.measures import Metric, at, attention_scores, trained_attention
from txl.report.records import Row, RunRecord, Sweep


def page(sweep: Sweep, report: Report) -> str:
    """Return the page as HTML."""
    sections = [_table(report.results, failed(sweep))]
    if report.differences:
        sections += [f"<h2>{_html(report.differences.title)}</h2>", f"<p>{_html(DIFFERENCES)}</p>"]
        sections.append(_table(report.differences))
    sections += figures_html(sweep.evaluations)
    if report.problems:
        sections += ["<h2>Runs without a number</h2>", _list(report.problems, "problems")]
    if report.notes:
        sections += ["<h2>Notes</h2>", _list(report.notes, "notes")]
    settings = []
    if report.settings:
        pairs = (f"<dt>{_html(name)}</dt><dd>{_html(value)}</dd>" for name, value in report.settings)
        settings += ["<h2>Settings of all rows</h2>", f"<dl>{''.join(pairs)}</dl>"]
    if report.row_settings:
        settings += [f"<h2>{_html(report.row_settings.title)}</h2>", _table(report.row_settings)]
    parts = {
        "TITLE": _html(report.title),
        "STYLE": _part("page.css"),
        "ABOUT": "\n".join(f"<p>{_html(line)}</p>" for line in report.about),
        "TABLES": "\n".join(sections),
        "SETTINGS": "\n".join(settings),
        "DATA": _json(figures(sweep, report.metric)),
        "SCRIPT": _part("page.js"),
    }
    text = _part("page.html")
    before, *rest = text.split("{{")
    filled = [before]
    for piece in rest:  # each place once, so that no text put in is taken for a place
        name, _, after = piece.partition("}}")
        filled += [parts[name], after]
    return "".join(filled)


def _part(name: str) -> str:
    return files("txl.report.render").joinpath("templates", name).read_text("utf-8")


def _html(text: str) -> str:
    return escape(text)


def _json(value: Any) -> str:
    """Return JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _list(lines: list[str], kind: str) -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{_html(line)}</li>" for line in lines)}</ul>'


def _table(grid: Grid, marked: frozenset[str] = frozenset()) -> str:
    """Return a grid as a table; rows whose first cell is in `marked` are shown as failed."""
    above = "".join(
        f'<th colspan="{width}" scope="colgroup">{_html(group)}</th>'
        if group
        else f'<td colspan="{width}"></td>'
        for group, width in grouped(grid)
    )
    head = f"<tr>{above}</tr>" if any(column.group for column in grid.columns) else ""
    head += f"<tr>{''.join(_heading(column) for column in grid.columns)}</tr>"
    lines = []
    for cells in grid.rows:
        kind = ' class="failed"' if cells[0].text in marked else ""
        first, *rest = zip(cells, grid.columns, strict=True)
        name = _html(first[0].text).replace("_", "_<wbr>")
        line = f'<th scope="row">{name}</th>' + "".join(_cell(*pair) for pair in rest)
        lines.append(f"<tr{kind}>{line}</tr>")
    body = "\n".join(lines)
    label = _html(grid.title)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="sortable">'
        f"<thead>{head}</thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _heading(column: Column) -> str:
    kind = ' class="number"' if column.number else ""
    spoken = f' aria-label="{_html(column.group)}: {_html(column.heading)}"' if column.group else ""
    return f'<th scope="col"{kind}><button type="button"{spoken}>{_html(column.heading)}</button></th>'


def _cell(cell: Cell, column: Column) -> str:
    kind = ' class="number"' if column.number else ""
    number = "" if cell.number is None else f' data-number="{cell.number:.12g}"'
    return f"<td{kind}{number}>{_html(cell.text)}</td>"


def figures(sweep: Sweep, metric: Metric) -> dict[str, Any]:
    """Return the numbers of the figures, by row and seed: plain JSON, no nan."""
    rows = [row for row in sweep.rows if row.runs and not row.same_run]
    return {
        "metric": metric.name,
        "digits": metric.digits,
        "logarithmic": metric.key == "perplexity",
        "rows": [{"name": row.name, "label": row.label, "runs": _runs(row, metric)} for row in rows],
    }


def _runs(row: Row, metric: Metric) -> list[dict[str, Any]]:
    found = []
    for run in row.runs:
        results = run.results or {}
        found.append(
            {
                "seed": run.seed,
                "status": run.status,
                "trained": trained_attention(results),
                "curve": _curve(run, metric),
                "attention": _points(attention_scores(results, metric)),
                "cost": _points(_costs(results)),
            }
        )
    return found


def _curve(run: RunRecord, metric: Metric) -> list[list[float]]:
    """Return (tokens read, validation score) of each validation, if the log of the run is there."""
    unit = at(run.results, "data", "unit")
    if unit is None:
        return []
    key = "valid/loss" if metric.key == "loss" else f"valid/{metric_of(unit)[0]}"
    return [[line["tokens"], line[key]] for line in read_metrics(run.directory, "tokens", key)]


def _costs(results: dict[str, Any]) -> dict[int, float]:
    """Return the microseconds for each scored token, by attention length."""
    return {
        entry["attention_length"]: 1e6 * entry["seconds"] / entry["tokens_scored"]
        for entry in results.get("attention") or []
        if entry.get("seconds") is not None and entry.get("tokens_scored")
    }


def _points(values: dict[int, float]) -> list[list[float]]:
    return [[length, value] for length, value in sorted(values.items()) if math.isfinite(value)]
