"""Measurements of a sweep's trained models: `txl recl` of a group, `txl attention` of each model.

Or `txl speed`, which needs no trained model. The ablation's `evaluation` names the verb, its settings and the
rows it measures together. Each evaluation is a process with a directory below `evaluations/`: the results of
the verb, its output in `console.log`, and its status in `evaluation.json`. One that is completed is not
repeated unless a model was trained again since.
"""

import json
import os
import re
import signal
import sys
import time
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
from txl.sweeps.worker import SweepStop, modification_time, stop_order
from txl.terminal import console


@dataclass(frozen=True)
class SweepEvaluation:
    """One call of a verb.

    Attributes:
        jobs: the run directories of its models, relative to the sweep's; none if it needs no trained model.
        settings: `key=value` words for the verb.
        figures: stems of those that the report shows; `None` for all.
    """

    verb: str
    name: str
    rows: list[str]
    jobs: list[str]
    settings: list[str]
    figures: list[str] | None = None

    @property
    def directory(self) -> str:
        """Relative to the sweep's."""
        return f"evaluations/{self.name}"

    def described(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "directory": self.directory,
            "jobs": self.jobs,
            "settings": self.settings,
            "figures": self.figures,
        }

    def words(self, sweep: Path) -> list[str]:
        """Return the arguments of the verb beside models and paths.

        A model is read with the best of the attention lengths it was tried at, or else with that of training:
        far beyond it, scores jump about, which looks like a gain.
        """
        if self.verb != "recl":
            return self.settings
        lengths = [attention_length(read_results(sweep / job)) for job in self.jobs]
        listed = ",".join(map(str, lengths))
        return [f"names=[{','.join(self.rows)}]", f"attention_length=[{listed}]", *self.settings]

    def command(self, sweep: Path) -> list[str]:
        """Return the command line. The models are our own, so that their code may be imported."""
        place = Path(os.path.relpath(sweep))  # so that the results name no path of this machine
        models = [os.path.join(".", place, job) for job in self.jobs]
        folder = place / self.directory
        out = result_of(folder, self.verb) if self.verb == "speed" else folder
        return [
            *(sys.executable, "-m", "txl", self.verb, *models, *self.words(sweep)),
            *("trust=true", f"out={out}"),
        ]

    def is_done(self, sweep: Path) -> bool:
        """Return whether there is a result of these settings and of the models as they are now."""
        folder = sweep / self.directory
        result, outcome = modification_time(result_of(folder, self.verb)), read_outcome(folder)
        trained = [
            modification_time(path)
            for job in self.jobs
            for path in (sweep / job / "checkpoints").glob("*.ckpt")
        ]
        return (
            outcome.get("status") == "completed"
            and (outcome.get("jobs"), outcome.get("words")) == (self.jobs, self.words(sweep))
            and result >= max(trained, default=1)
        )

    def missing(self, sweep: Path) -> str | None:
        """Return a message about the first model that is not trained."""
        for job in self.jobs:
            if (status := read_status(sweep / job)) != "completed":
                return f"{job} is {status or 'not there'}"
        return None


def attention_length(results: dict[str, Any]) -> int | None:
    unit = results["data"]["unit"]
    best = best_attention(results, metric_for({unit}))
    return trained_attention(results) if best is None or best != best else int(best)


def read_outcome(folder: Path) -> dict[str, Any]:
    """Return `evaluation.json`; empty if it is missing or damaged."""
    try:
        outcome = json.loads((folder / EVALUATION).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return outcome if isinstance(outcome, dict) else {}


def evaluations_of(table: dict[str, Any] | None, jobs: list[dict[str, Any]]) -> list[SweepEvaluation]:
    """Return the evaluations of a sweep: one for each seed and each group of rows, or each single row.

    Args:
        table: of the ablation; `None` for an ordinary sweep.
        jobs: as in `sweep.json`.
    """
    definition = (table or {}).get("evaluation")
    if table is None or definition is None:
        return []
    if definition["verb"] == "speed":
        return [SweepEvaluation("speed", "speed", [], [], definition["settings"])]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in table["rows"]:  # in the table's order
        group = (
            f"{definition['together']}-{table['rows'][row][definition['together']]}"
            if "together" in definition
            else row
        )
        for job in jobs:
            if job["row"] == row:
                groups.setdefault((group, job["seed"]), []).append(job)
    return [
        SweepEvaluation(
            definition["verb"],
            re.sub(r"[^A-Za-z0-9.+_-]+", "_", f"{definition['verb']}-{group}-seed{seed}"),
            [job["row"] for job in of],
            [job["directory"] for job in of],
            definition["settings"],
            definition.get("figures"),
        )
        for (group, seed), of in groups.items()
    ]


def run_evaluations(sweep: Path, evaluations: list[SweepEvaluation]) -> tuple[list[str], int | None]:
    """Run those evaluations that are not done yet, one after the other.

    Returns:
        The status of each, and the signal that stopped them, if one did.
    """
    statuses = []
    with SweepStop(sweep) as stop:
        for one in evaluations:
            missing = one.missing(sweep)
            if stop.received or missing:
                statuses.append("to do")
                if missing:
                    _print(one, f"not run: {missing}", "red")
            elif one.is_done(sweep):
                statuses.append("completed")
            else:
                statuses.append(_run(one, sweep))
    return statuses, stop.received


def _run(one: SweepEvaluation, sweep: Path) -> str:
    folder, began = sweep / one.directory, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVALUATION).unlink(missing_ok=True)
    status, error = "completed", None
    with (folder / "console.log").open("a", encoding="utf-8") as output, _spinner(one):
        try:
            run_together(one.command(sweep), [{}], output, lambda: stop_order(sweep), GRACE_SECONDS)
        except ProcessError as failure:
            status, error = "failed", str(failure).removeprefix("error: ")
        except SystemExit as end:
            status, error = "interrupted", f"stopped by {signal.Signals(int(end.code or 0) - 128).name}"
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


def _spinner(one: SweepEvaluation) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    shown = console.is_terminal and not console.is_dumb_terminal
    bar = Progress(*columns, console=console, transient=True, disable=not shown)
    bar.add_task(f"txl {one.verb} {' '.join(one.jobs)}", total=None)
    return bar


def _print(one: SweepEvaluation, text: str, style: str = "") -> None:
    name = Text(f"{one.verb} {' '.join(one.jobs)}  ", "bold")
    console.print(name + Text(text, style), soft_wrap=True)
