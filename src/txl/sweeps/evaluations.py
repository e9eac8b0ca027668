"""What is measured when a sweep's models are trained: `txl recl` of a group, `txl attention` of each.

Or `txl speed`, for which no model is trained. The ablation's `evaluation` says which verb, of which rows
together, with which settings. Each is a process of its own with a directory below `evaluations/`: what the
verb writes, what it printed in `console.log`, and in `evaluation.json` how it ended. One that is done is not
repeated unless a model was trained anew since.
"""

from __future__ import annotations

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
from txl.runs.start import last_line
from txl.sweeps.worker import SweepStop, modification_time, stop_order
from txl.terminal import console


@dataclass(frozen=True)
class SweepEvaluation:
    """One call of a verb.

    Attributes:
        verb: of `txl`.
        name: of its directory.
        rows: of its models.
        jobs: their run directories in that of the sweep; none for what needs no trained model.
        settings: `key=value` words for the verb.
        figures: that the report shows, by their names without ending; `None` for all.
    """

    verb: str
    name: str
    rows: list[str]
    jobs: list[str]
    settings: list[str]
    figures: list[str] | None = None

    @property
    def directory(self) -> str:
        """Its directory in that of the sweep."""
        return f"evaluations/{self.name}"

    def described(self) -> dict[str, Any]:
        """Return it as `sweep.json` has it."""
        return {
            "verb": self.verb,
            "directory": self.directory,
            "jobs": self.jobs,
            "settings": self.settings,
            "figures": self.figures,
        }

    def words(self, sweep: Path) -> list[str]:
        """Return what the verb is told beside its models and places.

        A model reads with the attention length at which it is best, of those that it was tried at, or else
        with that of its training: read far beyond, its scores jump about, which looks like a gain.
        """
        if self.verb != "recl":
            return self.settings
        lengths = [attention_length(read_results(sweep / job)) for job in self.jobs]
        names, lengths = ",".join(self.rows), ",".join(map(str, lengths))
        return [f"names=[{names}]", f"attention_length=[{lengths}]", *self.settings]

    def command(self, sweep: Path) -> list[str]:
        """Return the command line. The models are this sweep's own, so that their code may be imported."""
        place = Path(os.path.relpath(sweep))  # so that what the verb writes names no place of a machine
        models = [os.path.join(".", place, job) for job in self.jobs]
        folder = place / self.directory
        out = result_of(folder, self.verb) if self.verb == "speed" else folder
        return [
            *(sys.executable, "-m", "txl", self.verb, *models, *self.words(sweep)),
            *("trust=true", f"out={out}"),
        ]

    def is_done(self, sweep: Path) -> bool:
        """Return whether its result is there, of these settings and of the models as they are now."""
        folder = sweep / self.directory
        result, said = modification_time(result_of(folder, self.verb)), how(folder)
        trained = [
            modification_time(path)
            for job in self.jobs
            for path in (sweep / job / "checkpoints").glob("*.ckpt")
        ]
        return (
            said.get("status") == "completed"
            and (said.get("jobs"), said.get("words")) == (self.jobs, self.words(sweep))
            and result >= max(trained, default=1)
        )

    def missing(self, sweep: Path) -> str | None:
        """Return the first model that is not trained, in words."""
        for job in self.jobs:
            if (status := read_status(sweep / job)) != "completed":
                return f"{job} is {status or 'not there'}"
        return None


def attention_length(results: dict[str, Any]) -> int:
    """Return the attention length that a trained model is best read with."""
    unit = results["data"]["unit"]
    best = best_attention(results, metric_for({unit}))
    return trained_attention(results) if best is None or best != best else int(best)


def how(folder: Path) -> dict[str, Any]:
    """Return how an evaluation ended; nothing if it never did, or nobody can read how."""
    try:
        said = json.loads((folder / EVALUATION).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def evaluations_of(table: dict[str, Any] | None, jobs: list[dict[str, Any]]) -> list[SweepEvaluation]:
    """Return the evaluations of a sweep: of each seed, each group of rows, or each row by itself.

    Args:
        table: of the ablation; `None` for an ordinary sweep.
        jobs: as `sweep.json` has them.
    """
    said = (table or {}).get("evaluation")
    if said is None:
        return []
    if said["verb"] == "speed":
        return [SweepEvaluation("speed", "speed", [], [], said["settings"])]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in table["rows"]:  # in the table's order, not that in which they were run
        group = f"{said['together']}-{table['rows'][row][said['together']]}" if "together" in said else row
        for job in jobs:
            if job["row"] == row:
                groups.setdefault((group, job["seed"]), []).append(job)
    return [
        SweepEvaluation(
            said["verb"],
            re.sub(r"[^A-Za-z0-9.+_-]+", "_", f"{said['verb']}-{group}-seed{seed}"),
            [job["row"] for job in of],
            [job["directory"] for job in of],
            said["settings"],
            said.get("figures"),
        )
        for (group, seed), of in groups.items()
    ]


def run_evaluations(sweep: Path, evaluations: list[SweepEvaluation]) -> tuple[list[str], int | None]:
    """Run the evaluations that are not done yet, one after the other.

    Args:
        sweep: the directory.
        evaluations: of it.

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
                    _say(one, f"not run: {missing}", "red")
            elif one.is_done(sweep):
                statuses.append("completed")
            else:
                statuses.append(_run(one, sweep))
    return statuses, stop.received


def _run(one: SweepEvaluation, sweep: Path) -> str:
    """Run an evaluation, record how it ended, and return its status."""
    folder, began = sweep / one.directory, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVALUATION).unlink(missing_ok=True)
    status, error = "completed", None
    with (folder / "console.log").open("a", encoding="utf-8") as output, _spinner(one):
        before = output.tell()
        try:
            run_together(one.command(sweep), [{}], output, lambda: stop_order(sweep), GRACE_SECONDS)
        except ProcessError as failure:
            last = None if failure.killed else last_line(folder / "console.log", before)
            status, error = "failed", (last or str(failure)).removeprefix("error: ")
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
        _say(one, f"{status}: {error}" + (f" (see {log})" if status == "failed" else ""), "red")
    else:
        _say(one, f"done after {seconds:.0f} s")
    return status


def _spinner(one: SweepEvaluation) -> Progress:
    """Return what shows in a terminal that it runs."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    shown = console.is_terminal and not console.is_dumb_terminal
    bar = Progress(*columns, console=console, transient=True, disable=not shown)
    bar.add_task(f"txl {one.verb} {' '.join(one.jobs)}", total=None)
    return bar


def _say(one: SweepEvaluation, text: str, style: str = "") -> None:
    of = Text(f"{one.verb} {' '.join(one.jobs)}  ", "bold")
    console.print(of + Text(text, style), soft_wrap=True)
