"""Evaluations of a sweep's models: their numbers are added to the runs, their figures to the page.

`sweep.json` lists the evaluations. Each directory holds `evaluation.json` with the status, and the result as
`recl.json`, `attention.json` or `speed.json`.
"""

import json
from pathlib import Path
from typing import Any

from txl.report.records import EvaluationFigures, RunRecord, one_line

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
) -> tuple[list[EvaluationFigures], list[str], RunRecord | None]:
    """Add its evaluations to each run: the numbers, or the reason why there are none.

    Args:
        description: the `sweep.json` of the directory.
        runs: by their directories within that of the sweep.

    Returns:
        The finished evaluations; notes on their numbers; and, as a run, the evaluation that uses no models
        of the sweep, `None` if there is none.
    """
    done: list[EvaluationFigures] = []
    notes: list[str] = []
    without_models = None
    for evaluation in description.get("evaluations") or []:
        verb, jobs, folder = evaluation["verb"], evaluation["jobs"], directory / evaluation["directory"]
        result, problem = _read(folder, verb)
        if result is None:
            if not jobs:
                status, error = problem.split(": ", 1) if ": " in problem else ("missing", problem)
                without_models = RunRecord(None, folder, [], {}, status, one_line(error))
            for job in jobs:
                runs[job].evaluation = one_line(f"txl {verb} {problem}")
            continue
        if not jobs:
            without_models = RunRecord(None, folder, [], {"attention": result["attention"]}, "completed")
        if verb == "recl":
            notes += _add_recl(result, jobs, runs)
        title = f"txl {verb}" + (f" of {', '.join(jobs)}" if jobs else "")
        figures = [path for path in files_of(directory, evaluation) if path.suffix == ".png"]
        done.append(EvaluationFigures(title, evaluation["directory"], figures))
    return done, notes, without_models


def _read(folder: Path, verb: str) -> tuple[dict[str, Any] | None, str]:
    """Return the result of an evaluation, or `None` and the reason why there is none."""
    try:
        ended = json.loads((folder / EVALUATION).read_text("utf-8"))
        if ended["status"] != "completed":
            return None, f"{ended['status']}: {ended['error']}"
    except FileNotFoundError:
        return None, "has not run yet"
    except (ValueError, KeyError, TypeError):
        return None, f"left a damaged {EVALUATION}"
    try:
        return json.loads(result_of(folder, verb).read_text("utf-8")), ""
    except (OSError, ValueError):
        return None, f"its {verb}.json is damaged"


def _add_recl(result: dict[str, Any], jobs: list[str], runs: dict[str, RunRecord]) -> list[str]:
    """Add the effective contexts by r to the runs of a group; return notes on those that are lower bounds."""
    notes = []
    for job, model in zip(jobs, result["models"], strict=True):
        effective = model["effective"]
        runs[job].results |= {"recl": {f"{one['r']:g}": one["recl"] for one in effective}}
        if beyond := [f"{one['r']:g}" for one in effective if one["beyond"]]:
            notes.append(
                f"{job}: the effective context at r = {', '.join(beyond)} is at least as long as shown; "
                "every step up to the longest context gained enough."
            )
    return notes
