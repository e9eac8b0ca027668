"""The data of a report: a sweep, its rows, their runs and the figures of its evaluations."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class RunRecord:
    """One job: a row with a seed."""

    seed: int | None  # `None` if unknown
    directory: Path
    overrides: list[str]
    results: dict[str, Any]  # empty if there are none
    status: str  # completed, running, failed, interrupted, missing (no results.json) or unreadable
    error: str | None = None  # one line, unless completed
    evaluation: str | None = None  # why an evaluation of the run gave no result, in one line


def one_line(error: Any) -> str:
    """Return an error as one line of at most 160 characters."""
    line = " ".join(str(error or "no reason given").split())
    return line if len(line) <= 160 else f"{line[:159]}…"


@dataclass
class Row:
    """A line of the table."""

    name: str  # identifies the row across sweeps
    label: str
    cells: dict[str, str] = field(default_factory=dict)  # what distinguishes the row, by column
    published: dict[str, Any] = field(default_factory=dict)  # the paper's numbers, by measure
    same_run: str | None = None  # the row whose runs this one shows further numbers of
    attention_length: int | None = None  # that the numbers are for; `None` for all lengths tried
    ours: bool = True  # whether it is run here; others are published numbers of another system
    runs: list[RunRecord] = field(default_factory=list)  # sorted by seed

    @property
    def completed(self) -> list[RunRecord]:
        return [run for run in self.runs if run.status == "completed"]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of completed runs, reduced to the row's attention length if it has one."""
        results = []
        for run in self.completed:
            tried = run.results.get("attention") or []
            if self.attention_length is not None:
                tried = [entry for entry in tried if entry["attention_length"] == self.attention_length]
            results.append(run.results | {"attention": tried})
        return results


@dataclass
class EvaluationFigures:
    title: str
    directory: str  # within that of the sweep
    figures: list[Path]


@dataclass
class Sweep:
    name: str
    rows: list[Row]
    measures: list[str]
    title: str = ""
    scale: str | None = None
    source: str | None = None
    published_on: str | None = None
    note: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    evaluations: list[EvaluationFigures] = field(default_factory=list)
    defined: bool = False  # by a file of ablations/, not by its runs

    @property
    def runs(self) -> list[RunRecord]:
        return [run for row in self.rows for run in row.runs]

    @property
    def reference(self) -> Row | None:
        """The row that others are compared with: the first one with runs."""
        return next((row for row in self.rows if row.runs), None)
