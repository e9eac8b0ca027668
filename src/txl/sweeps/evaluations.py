"""Measurements of a sweep's trained models: `txl recl` of a group, `txl attention` of each model.

Or `txl speed`, which needs no trained model. The ablation's `evaluation` names the verb, its settings and the
rows it measures together. Each evaluation is a process with a directory below `evaluations/`: the results of
the verb, its output in `console.log`, and its status in `evaluation.json`. One that is completed is not
repeated unless a model was trained again since.
"""

import json
import os
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from txl.launch.processes import GRACE_SECONDS, ProcessError, run_together
from txl.records.files import write_atomically
from txl.records.results import read_results, read_status, utc_now
from txl.report.evaluations import EVALUATION, result_of
from txl.report.measures import best_attention, metric_for, trained_attention
from txl.runs.start import ending
from txl.sweeps.worker import SweepStop, modification_time, stop_order
from txl.terminal import console


@dataclass(frozen=True)
class SweepEvaluation:
    """One call of a verb."""

    verb: str
    directory: str  # of its files, relative to the sweep's
    jobs: list[str]  # the run directories of its models, relative to the sweep's; empty for none
    settings: list[str]  # `key=value` words for the verb
    figures: list[str] | None = None  # stems of those that the report shows; `None` for all

    def words(self, sweep: Path) -> list[str]:
        """Return the arguments of the verb beside models and paths.

        A model reads with the best of the attention lengths it was evaluated at, or else with that of
        training: far beyond it, scores fluctuate, which would look like a gain.
        """
        if self.verb != "recl":
            return self.settings
        names = ",".join(job.partition("/")[0] for job in self.jobs)
        lengths = ",".join(str(attention_length(read_results(sweep / job))) for job in self.jobs)
        return [f"names=[{names}]", f"attention_length=[{lengths}]", *self.settings]

    def command(self, sweep: Path) -> list[str]:
        """Return the command line. The models are our own, so that their code may be imported."""
        place = Path(os.path.relpath(sweep))  # so that the results name no path of this machine
        models = [os.path.join(".", place, job) for job in self.jobs]
        folder = place / self.directory
        out = result_of(folder, self.verb) if self.verb == "speed" else folder
        program = [sys.executable, "-m", "txl", self.verb]
        return [*program, *models, *self.words(sweep), "trust=true", f"out={out}"]

    def is_done(self, sweep: Path) -> bool:
        """Return whether there is a result of these settings and of the models as they are now."""
        folder = sweep / self.directory
        done = {"status": "completed", "jobs": self.jobs, "words": self.words(sweep)}
        try:
            outcome = json.loads((folder / EVALUATION).read_text("utf-8"))
            same = outcome == outcome | done
        except (FileNotFoundError, ValueError, TypeError):  # missing or damaged
            same = False
        checkpoints = [path for job in self.jobs for path in (sweep / job / "checkpoints").glob("*.ckpt")]
        trained = max(map(modification_time, checkpoints), default=1)
        return same and modification_time(result_of(folder, self.verb)) >= trained

    def missing(self, sweep: Path) -> str | None:
        """Return a message about the first model that is not trained."""
        for job in self.jobs:
            if (status := read_status(sweep / job)) != "completed":
                return f"{job} is {status or 'not trained yet'}"
        return None


def attention_length(results: dict[str, Any]) -> int | None:
    unit = results["data"]["unit"]
    best = best_attention(results, metric_for({unit}))
    return trained_attention(results) if best is None or best != best else int(best)


def evaluations_of(table: dict[str, Any] | None, jobs: list[dict[str, Any]]) -> list[SweepEvaluation]:
    """Return the evaluations of a sweep: one for each seed and each group of rows, or each single row.

    `table` and `jobs` are as in `sweep.json`.
    """
    if table is None or "evaluation" not in table:
        return []
    definition = table["evaluation"]
    verb, settings = definition["verb"], definition["settings"]
    together, figures = definition.get("together"), definition.get("figures")
    if verb == "speed":
        return [SweepEvaluation(verb, "evaluations/speed", [], settings)]
    groups: dict[str, list[str]] = defaultdict(list)
    for name, row in table["rows"].items():  # in the table's order
        group = f"{together}-{row[together]}" if together else name
        for job in jobs:
            if job["row"] == name:
                groups[f"{verb}-{group}-seed{job['seed']}"].append(job["directory"])
    unsafe = "[^A-Za-z0-9.+_-]+"
    return [
        SweepEvaluation(verb, f"evaluations/{re.sub(unsafe, '_', name)}", members, settings, figures)
        for name, members in groups.items()
    ]


def run_evaluations(sweep: Path, evaluations: list[SweepEvaluation]) -> tuple[list[str], int | None]:
    """Run those evaluations that are not done yet, one after the other.

    Returns:
        The status of each, and the signal that stopped them, if one did.
    """
    statuses = []
    with SweepStop(sweep) as stop:
        for one in evaluations:
            status = "to do"
            if missing := one.missing(sweep):
                _print(one, f"not run: {missing}", "red")
            elif not stop.received:
                status = "completed" if one.is_done(sweep) else _run(one, sweep)
            statuses.append(status)
    return statuses, stop.received


def _run(one: SweepEvaluation, sweep: Path) -> str:
    folder, began = sweep / one.directory, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVALUATION).unlink(missing_ok=True)
    status, error = "completed", None
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    hidden = not console.is_terminal or console.is_dumb_terminal
    spinner = Progress(*columns, console=console, transient=True, disable=hidden)
    spinner.add_task(f"txl {one.verb} {' '.join(one.jobs)}", total=None)
    with (folder / "console.log").open("a", encoding="utf-8") as output, spinner:
        try:
            run_together(one.command(sweep), [{}], output, lambda: stop_order(sweep), GRACE_SECONDS)
        except (ProcessError, SystemExit) as end:
            status, error = ending(end)
            error = error.removeprefix("error: ")
    seconds = time.monotonic() - began
    described = {
        "schema": 1,
        "status": status,
        "error": error,
        "jobs": one.jobs,
        "words": one.words(sweep),
        "seconds": seconds,
        "finished_at": utc_now(),
    }
    write_atomically(folder / EVALUATION, json.dumps(described, indent=2) + "\n")
    if error:
        log = os.path.relpath(folder / "console.log")
        _print(one, f"{status}: {error}" + (f" (see {log})" if status == "failed" else ""), "red")
    else:
        _print(one, f"done after {seconds:.0f} s")
    return status


def _print(one: SweepEvaluation, text: str, style: str = "") -> None:
    name = Text(f"{one.verb} {' '.join(one.jobs)}  ", "bold")
    console.print(name + Text(text, style), soft_wrap=True)
