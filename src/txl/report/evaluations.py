"""Evaluations of a sweep's models: the numbers go to the runs, the figures to the page.

`sweep.json` lists the evaluations. Each directory holds `evaluation.json` with the status, and the result as
`recl.json`, `attention.json` or `speed.json`.
"""

import json
from pathlib import Path
from typing import Any

from txl.report.records import EvaluationFigures, RunRecord

EVALUATION = "evaluation.json"


def result_of(folder: Path, verb: str) -> Path:
    return folder / f"{verb}.json"


def files_of(sweep: Path, evaluation: dict[str, Any]) -> list[Path]:
    """Return the files of an evaluation that a report needs: status, numbers, figures."""
    folder, shown = sweep / evaluation["directory"], evaluation.get("figures")
    figures = [path for path in sorted(folder.rglob("*.png")) if shown is None or path.stem in shown]
    return [folder / EVALUATION, result_of(folder, evaluation["verb"]), *figures]


def read_evaluations(
    directory: Path, description: dict[str, Any], runs: dict[str, RunRecord]
) -> tuple[list[EvaluationFigures], list[str]]:
    """Add to each run what was measured of it, or the reason why nothing was.

    Args:
        runs: by their directories within that of the sweep.

    Returns:
        The finished evaluations, and notes on their numbers.
    """
    done: list[EvaluationFigures] = []
    notes: list[str] = []
    for evaluation in description.get("evaluations") or []:
        verb, folder = evaluation["verb"], directory / evaluation["directory"]
        members = [runs[job] for job in evaluation["jobs"]]
        title = f"txl {verb}" + (f" of {', '.join(evaluation['jobs'])}" if members else "")
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
            notes += _add_recl(result, evaluation["jobs"], members)
        figures = [path for path in files_of(directory, evaluation) if path.suffix == ".png"]
        done.append(EvaluationFigures(title, evaluation["directory"], figures))
    return done, notes


def measured_without_runs(directory: Path, description: dict[str, Any]) -> RunRecord | None:
    """Return the evaluation that uses no models of the sweep, as a run; `None` if there is none."""
    evaluations = description.get("evaluations") or []
    evaluation = next((evaluation for evaluation in evaluations if not evaluation["jobs"]), None)
    if evaluation is None:
        return None
    folder = directory / evaluation["directory"]
    if problem := _problem(folder):
        status, _, error = problem.partition(": ")
        return RunRecord(None, folder, [], {}, status if error else "missing", error or problem)
    result = json.loads(result_of(folder, evaluation["verb"]).read_text("utf-8"))
    return RunRecord(None, folder, [], {"attention": result["attention"]}, "completed", None)


def _problem(folder: Path) -> str | None:
    """Return why there is no result; `None` if there is one."""
    try:
        ended = json.loads((folder / EVALUATION).read_text("utf-8"))
        return None if ended["status"] == "completed" else f"{ended['status']}: {ended['error']}"
    except FileNotFoundError:
        return "has not run yet"
    except (ValueError, KeyError, TypeError):
        return f"left a damaged {EVALUATION}"


def _add_recl(result: dict[str, Any], jobs: list[str], runs: list[RunRecord]) -> list[str]:
    """Add the effective contexts by r to the runs of a group; return notes on those that are lower bounds."""
    notes = []
    for job, run, model in zip(jobs, runs, result["models"], strict=True):
        run.results = run.results | {"recl": {f"{one['r']:g}": one["recl"] for one in model["effective"]}}
        if beyond := [f"{one['r']:g}" for one in model["effective"] if one["beyond"]]:
            notes.append(
                f"{job}: the effective context at r = {', '.join(beyond)} is at least as long as shown; "
                "every step up to the longest context gained enough."
            )
    return notes
