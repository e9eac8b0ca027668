"""What verbs measured of a sweep's models: the numbers go to the runs, the figures to the page.

`sweep.json` lists the evaluations. Each directory holds `evaluation.json`, how it ended, and the result as
`recl.json`, `attention.json` or `speed.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from txl.report.records import EvaluationFigures, RunRecord

EVALUATION = "evaluation.json"


def result_of(folder: Path, verb: str) -> Path:
    """Return the file that a verb writes its numbers to, in the directory of an evaluation."""
    return folder / f"{verb}.json"


def files_of(sweep: Path, said: dict[str, Any]) -> list[Path]:
    """Return the files of an evaluation that a report is made of: how it ended, numbers, figures.

    Args:
        sweep: the directory of the sweep.
        said: the evaluation in `sweep.json`.
    """
    folder, shown = sweep / said["directory"], said.get("figures")
    figures = [path for path in sorted(folder.rglob("*.png")) if shown is None or path.stem in shown]
    return [folder / EVALUATION, result_of(folder, said["verb"]), *figures]


def read_evaluations(
    directory: Path, described: dict[str, Any], runs: dict[str, RunRecord]
) -> tuple[list[EvaluationFigures], list[str]]:
    """Give each run what was measured of it, or why it was not.

    Args:
        directory: of the sweep.
        described: its `sweep.json`.
        runs: by their directories in that of the sweep.

    Returns:
        The evaluations that are done, and notes on what they measured.
    """
    done, notes = [], []
    for said in described.get("evaluations") or []:
        verb, folder = said["verb"], directory / said["directory"]
        members = [runs[job] for job in said["jobs"]]
        of = f"txl {verb}" + (f" of {', '.join(said['jobs'])}" if members else "")
        problem = _problem(folder)
        try:
            result = None if problem else json.loads(result_of(folder, verb).read_text("utf-8"))
        except (OSError, ValueError):
            result, problem = None, f"its {verb}.json is damaged"
        if result is None:
            for run in members:
                run.evaluation = f"txl {verb} {problem}"
            continue
        if verb == "recl":
            notes += _give_recl(result, said["jobs"], members)
        figures = [path for path in files_of(directory, said) if path.suffix == ".png"]
        done.append(EvaluationFigures(of, said["directory"], figures))
    return done, notes


def measured_without_runs(
    directory: Path, described: dict[str, Any]
) -> tuple[Path, list[str], dict[str, Any] | None, str, str | None] | None:
    """Return what an evaluation without models of the sweep measured, as one run of every row.

    Returns:
        Its directory, no overrides, its numbers in the form of a run's results, status and error; `None` if
        there is no such evaluation.
    """
    said = next((one for one in described.get("evaluations") or [] if not one["jobs"]), None)
    if said is None:
        return None
    folder = directory / said["directory"]
    if problem := _problem(folder):
        status, _, error = problem.partition(": ")
        return folder, [], None, status if error else "missing", error or problem
    result = json.loads(result_of(folder, said["verb"]).read_text("utf-8"))
    return folder, [], {"attention": result["attention"]}, "completed", None


def _problem(folder: Path) -> str | None:
    """Return why there is no result to be read; `None` if there is one."""
    try:
        ended = json.loads((folder / EVALUATION).read_text("utf-8"))
        return None if ended["status"] == "completed" else f"{ended['status']}: {ended['error']}"
    except FileNotFoundError:
        return "has not run yet"
    except (ValueError, KeyError, TypeError):
        return f"left a damaged {EVALUATION}"


def _give_recl(result: dict[str, Any], jobs: list[str], runs: list[RunRecord]) -> list[str]:
    """Give each model of a group its effective contexts by r, and return which are only lower bounds."""
    notes = []
    for job, run, model in zip(jobs, runs, result["models"], strict=True):
        run.results = (run.results or {}) | {
            "recl": {f"{one['r']:g}": one["recl"] for one in model["effective"]}
        }
        if beyond := [f"{one['r']:g}" for one in model["effective"] if one["beyond"]]:
            notes.append(
                f"{job}: the effective context at r = {', '.join(beyond)} is at least as long as shown; "
                "every step up to the longest context gained enough."
            )
    return notes
