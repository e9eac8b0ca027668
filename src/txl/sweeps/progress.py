"""Progress of a sweep: a bar on a terminal, plain lines elsewhere, and a line when a job ends.

It is read from the files of the run directories, and so works with every launcher.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from txl.records.results import read_results
from txl.records.units import shown
from txl.report.measures import metric_for
from txl.sweeps.jobs import Job
from txl.sweeps.worker import modification_time
from txl.terminal import console
from txl.training.callbacks.progress import clock

POLL_SECONDS = 0.5  # between two readings of the files
PLAIN_LINE_SECONDS = 30.0  # without a terminal, a line at most this often
MIN_SHARE = 0.1  # share of its steps from which a job's own pace counts: the first steps are slow
TAIL_BYTES = 4096  # of metrics.jsonl: more than a line


class SweepProgress:
    """Watches the jobs of a sweep from a thread, as a context around the launcher.

    Args:
        others: number of other jobs.
        failed: how many of the others have failed.
    """

    def __init__(self, sweep: Path, jobs: list[Job], others: int, failed: int) -> None:
        self.jobs, self.others, self.failed = jobs, others, failed
        self.results = {job.directory: sweep / job.directory / "results.json" for job in jobs}
        self.total = {job.directory: job.config["trainer"]["max_steps"] for job in jobs}
        self.before = {key: modification_time(path) for key, path in self.results.items()}
        self.step = {key: last_step(path.with_name("metrics.jsonl")) for key, path in self.results.items()}
        self.began = dict(self.step)  # the steps from which jobs resume
        self.ended: dict[str, str] = {}  # the status of each job that has ended
        self.seen: dict[str, float] = {}  # when each job was first found running
        self.at_once = 1  # most jobs that ran at the same time
        self.pace: dict[str, list[float]] = defaultdict(list)  # by row: seconds a step, those of a whole job
        self.bar: Progress | None = None
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> SweepProgress:
        self.printed = time.monotonic()
        if console.is_terminal and not console.is_dumb_terminal:
            ended, shown = TextColumn("[bold]{task.fields[ended]}"), TextColumn("{task.fields[shown]}")
            self.bar = Progress(ended, BarColumn(bar_width=8), shown, console=console, transient=True)
            self.task = self.bar.add_task("", total=1.0, ended="", shown="")
            self.bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()
        self.update()
        if self.bar:
            self.bar.stop()

    def _watch(self) -> None:
        while not self._leave.wait(POLL_SECONDS):
            self.update()
            self._show()

    def update(self) -> None:
        """Read the step of each job, and print those that have ended."""
        now = time.monotonic()
        for job in self.jobs:
            key, path = job.directory, self.results[job.directory]
            if key in self.ended or modification_time(path) == self.before[key]:
                continue
            self.seen.setdefault(key, now)
            results = read_results(path.parent)
            status = results["status"]
            if status in ("completed", "failed"):
                self.ended[key] = status
                if status == "completed" and not self.began[key]:
                    self.pace[job.row].append((now - self.seen[key]) / self.total[key])
                self.step[key] = self.total[key]
                console.print(outcome_line(job, results), soft_wrap=True)
            else:
                self.step[key] = last_step(path.with_name("metrics.jsonl"))
        self.at_once = max(self.at_once, len(self.seen) - len(self.ended))

    def _show(self) -> None:
        running = [
            f"{job.row} seed {job.seed} step {self.step[job.directory]} of {self.total[job.directory]}"
            for job in self.jobs
            if job.directory in self.seen and job.directory not in self.ended
        ]
        failed = self.failed + list(self.ended.values()).count("failed")
        done = f"{self.others + len(self.ended)} of {self.others + len(self.jobs)} jobs"
        seconds = self.seconds_left()
        left = f"{clock(seconds)} left" if seconds is not None else ""
        parts = [part for part in (", ".join(running), f"{failed} failed" if failed else "", left) if part]
        if self.bar:
            resumed = sum(self.began.values())
            share = (sum(self.step.values()) - resumed) / max(sum(self.total.values()) - resumed, 1)
            self.bar.update(self.task, completed=max(share, 0.0), ended=done, shown="  ".join(parts))
        elif running and time.monotonic() - self.printed >= PLAIN_LINE_SECONDS:
            console.print(Text("  ".join([done, *parts])), soft_wrap=True)
            self.printed = time.monotonic()

    def seconds_left(self) -> float | None:
        """Return the seconds left; `None` before the first step.

        A job is expected to take as long as the completed ones of its row, or else of all rows, evaluation
        included; or longer, judged by its own steps. Before any is completed only the pace of the steps is
        known, without evaluation.
        """
        now = time.monotonic()
        spent = {key: now - since for key, since in self.seen.items() if key not in self.ended}
        steps = {key: self.step[key] - self.began[key] for key in spent}
        own = {key: spent[key] / steps[key] for key in spent if steps[key] > 0}
        known = [pace for paces in self.pace.values() for pace in paces] or list(own.values())
        if not known:
            return None
        left = []
        for job in self.jobs:
            key = job.directory
            if key in self.ended:
                continue
            todo, pace = self.total[key] - self.began[key], median(self.pace[job.row] or known)
            if steps.get(key, 0) >= MIN_SHARE * todo:
                pace = max(pace, own.get(key, 0.0))
            left.append(max(0.0, pace * todo - spent.get(key, 0.0)))
        return max(sum(left) / self.at_once, *left, 0.0)


def last_step(metrics: Path) -> int:
    """Return the step of the last whole line of `metrics.jsonl`; 0 if there is none."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            *lines, _torn = file.read().split(b"\n")
        return json.loads(lines[-1])["step"]
    except (OSError, ValueError, IndexError, KeyError):
        return 0


def outcome_line(job: Job, results: dict[str, Any]) -> Text:
    """Return a line with the score of a job, or its error."""
    name = Text(f"{job.row} seed {job.seed}  ", "bold")
    if results["status"] != "completed":
        return name + Text(f"{results['status']}: {' '.join(str(results['error']).split())}", "red")
    metric, seconds = metric_for({results["data"]["unit"]}), results["training"]["seconds"]
    score = shown(results["valid"][metric.key], metric.digits)
    return name + Text(f"valid {score} {metric.name} after {seconds:.0f} s of training")
