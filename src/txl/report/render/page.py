"""The page of a report: one self-contained file with the tables and interactive figures.

`page.js` draws the figures in the browser from the numbers that the page embeds as JSON.
"""

import base64
import html
import math
from typing import Any

from txl.records.metrics import read_metrics
from txl.report.grids import Report, failed_rows
from txl.report.measures import Metric, at, attention_scores, trained_attention
from txl.report.records import Row, RunRecord, Sweep
from txl.report.render.environment import script_json, template


def page(sweep: Sweep, report: Report) -> str:
    return template("page.html", html.escape).render(
        report=report,
        failed=failed_rows(sweep),
        evaluations=sweep.evaluations,
        base64=lambda path: base64.b64encode(path.read_bytes()).decode("ascii"),
        data=script_json(_figures(sweep, report.metric), separators=(",", ":"), allow_nan=False),
    )


def _figures(sweep: Sweep, metric: Metric) -> dict[str, Any]:
    """Return the numbers of the figures, by row and seed: plain JSON, no nan."""
    rows = [row for row in sweep.rows if row.runs and not row.same_run]
    return {
        "metric": metric.name,
        "digits": metric.digits,
        "logarithmic": metric.key == "perplexity",
        "rows": [{"name": row.name, "label": row.label, "runs": _runs(row, metric)} for row in rows],
    }


def _runs(row: Row, metric: Metric) -> list[dict[str, Any]]:
    return [
        {
            "seed": run.seed,
            "status": run.status,
            "trained": trained_attention(run.results),
            "curve": _curve(run, metric),
            "attention": _points(attention_scores(run.results, metric)),
            "cost": _points(_costs(run.results)),
        }
        for run in row.runs
    ]


def _curve(run: RunRecord, metric: Metric) -> list[list[float]]:
    """Return (tokens read, validation score) of each validation, if the log of the run is there."""
    if not at(run.results, "data", "unit"):
        return []
    key = f"valid/{metric.logged}"
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
