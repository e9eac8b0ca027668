"""What a report is made of: a sweep, its rows, their runs and the figures of its evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txl.report.measures import attention_at


@dataclass
class RunRecord:
    """One job: a row with a seed.

    Attributes:
        seed: of the run; `None` if nobody knows it.
        directory: of the run.
        overrides: what was asked for.
        results: its results; `None` if there are none.
        status: completed, failed, interrupted, missing (no results.json) or unreadable.
        error: one line, if it is not completed.
        evaluation: why what was to be measured of it then was not.
    """

    seed: int | None
    directory: Path
    overrides: list[str]
    results: dict[str, Any] | None
    status: str
    error: str | None
    evaluation: str | None = None


@dataclass
class Row:
    """A line of the table.

    Attributes:
        name: by which the rows of several sweeps are one.
        label: for people.
        cells: what distinguishes it, by column.
        published: the paper's numbers, by measure.
        same_run: the row whose runs these numbers are further ones of.
        attention_length: at which they are, where it is another one.
        ours: whether it is a row to be run here, and not one of another system.
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
        """The runs that came to their end."""
        return [run for run in self.runs if run.status == "completed"]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of these; of further numbers of a run those at their attention length."""
        results = [run.results for run in self.completed]
        if self.attention_length is None:
            return results
        return [one | {"attention": attention_at(one, self.attention_length)} for one in results]


@dataclass
class EvaluationFigures:
    """One evaluation of a sweep.

    Attributes:
        title: the verb and its models, for people.
        place: its directory in that of the sweep.
        figures: PNG files to be shown.
    """

    title: str
    place: str
    figures: list[Path] = field(default_factory=list)


@dataclass
class Sweep:
    """A table before it is printed: what it is about, its columns, measures and rows."""

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
        """The first row that is run here: the one others are compared with."""
        return next((row for row in self.rows if row.runs), None)
