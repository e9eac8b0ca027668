"""The data behind a report: a sweep, its rows, their runs and the figures of its evaluations."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txl.report.measures import attention_at


@dataclass
class RunRecord:
    """One job: a row with a seed.

    Attributes:
        seed: `None` if unknown.
        results: empty if there are none.
        status: completed, running, failed, interrupted, missing (no results.json) or unreadable.
        error: one line, unless completed.
        evaluation: why an evaluation of the run gave no result.
    """

    seed: int | None
    directory: Path
    overrides: list[str]
    results: dict[str, Any]
    status: str
    error: str | None
    evaluation: str | None = None


@dataclass
class Row:
    """A line of the table.

    Attributes:
        name: identifies the row across sweeps.
        cells: what distinguishes the row, by column.
        published: the paper's numbers, by measure.
        same_run: the row whose runs this row takes further numbers from.
        attention_length: of those numbers, if it is not that of the other row.
        ours: whether the row is run here; others are published numbers of another system.
        runs: sorted by seed.
    """

    name: str
    label: str
    cells: dict[str, str] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    same_run: str | None = None
    attention_length: int | None = None
    ours: bool = True
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def completed(self) -> list[RunRecord]:
        return [run for run in self.runs if run.status == "completed"]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of completed runs, reduced to the row's attention length if it has one."""
        results = [run.results for run in self.completed]
        if self.attention_length is None:
            return results
        return [one | {"attention": attention_at(one, self.attention_length)} for one in results]


@dataclass
class EvaluationFigures:
    """One evaluation of a sweep.

    Attributes:
        place: its directory within that of the sweep.
    """

    title: str
    place: str
    figures: list[Path] = field(default_factory=list)


@dataclass
class Sweep:
    name: str
    scale: str | None
    title: str
    source: str | None
    published_on: str | None
    note: str | None
    columns: dict[str, str]
    measures: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    evaluations: list[EvaluationFigures] = field(default_factory=list)

    @property
    def reference(self) -> Row | None:
        """The row that others are compared with: the first one with runs."""
        return next((row for row in self.rows if row.runs), None)
