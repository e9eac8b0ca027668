"""The content of a report as plain grids of text, which every output format renders."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from txl.report.measures import Measure, Metric, at, measures_for, metric_for
from txl.report.records import Row, RunRecord, Sweep
from txl.report.settings import differences_within, settings_of
from txl.report.statistics import Difference, Sample, difference, sample_of

NONE = "–"
DIFFERENCES = (
    "Ours with Welch's 95 % interval, which allows the two rows different variances; beyond noise: the "
    "interval leaves out zero."
)


@dataclass(frozen=True)
class Cell:
    """A text, and its sort key if it is a number."""

    text: str
    number: float | None = None


@dataclass(frozen=True)
class Column:
    """A column; neighbours with the same group share a heading."""

    heading: str
    cells: Sequence[Cell]
    group: str = ""
    number: bool = False


def text_column(heading: str, texts: Iterable[str]) -> Column:
    return Column(heading, [Cell(text) for text in texts])


@dataclass
class Grid:
    title: str
    columns: list[Column]
    note: str = ""

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The heading of each run of columns with the same group, and how many columns it spans."""
        return [(group, len(list(columns))) for group, columns in groupby(self.columns, lambda c: c.group)]


@dataclass
class Report:
    about: list[str]
    metric: Metric
    results: Grid
    differences: Grid | None
    problems: list[str]
    settings: list[tuple[str, str]]
    row_settings: Grid | None
    notes: list[str]


@dataclass(frozen=True)
class Measured:
    """One measure of a row: our number and the published one."""

    row: Row
    measure: Measure
    values: dict[int | None, float]  # finite values of completed runs, by seed
    not_finite: int  # number of runs that gave nan or infinity
    sample: Sample | None
    published: str | None = None  # as printed
    published_number: float | None = None
    difference: Difference | None = None  # to the reference, if both have a number on the same text
    published_difference: float | None = None


Found = dict[tuple[str, str], Measured]  # by row name and measure key


def measured(sweep: Sweep) -> tuple[list[Measure], Found]:
    metric = metric_for(_units(run for run in sweep.runs if run.status == "completed") or {"byte"})
    measures = measures_for(sweep.measures, metric, bool(sweep.runs))
    found: Found = {}
    reference = sweep.reference
    for measure in measures:
        decimals = max((_decimals(row.published.get(measure.key)) for row in sweep.rows), default=0)
        ours = {row.name: _measure_row(row, measure, decimals) for row in sweep.rows}
        base = ours[reference.name] if reference else None
        found |= {(name, measure.key): _compare(one, base) for name, one in ours.items()}
    return measures, found


def _units(runs: Iterable[RunRecord]) -> set[str]:
    return {unit for run in runs if (unit := at(run.results, "data", "unit"))}


def _measure_row(row: Row, measure: Measure, decimals: int) -> Measured:
    pairs = [(run.seed, measure.value(one)) for run, one in zip(row.completed, row.results, strict=True)]
    values = {seed: value for seed, value in pairs if value is not None and math.isfinite(value)}
    not_finite = sum(value is not None and not math.isfinite(value) for _, value in pairs)
    one = Measured(row, measure, values, not_finite, sample_of(list(values.values())))
    published = row.published.get(measure.key)
    if published is None:
        return one
    return replace(one, published=f"{published:,.{decimals}f}", published_number=float(published))


def _compare(one: Measured, base: Measured | None) -> Measured:
    if base is None or one.row is base.row or not one.measure.compared:
        return one
    ours = paper = None
    if one.sample and base.sample and _text_hashes(one.row) == _text_hashes(base.row):
        ours = difference(one.sample, base.sample)
    if one.published_number is not None and base.published_number is not None:
        paper = one.published_number - base.published_number
    return replace(one, difference=ours, published_difference=paper)


def _text_hashes(row: Row) -> set[str | None]:
    return {at(run.results, "data", "sha256") for run in row.completed}


def _decimals(value: Any) -> int:
    return len(str(value).partition(".")[2]) if isinstance(value, (int, float)) else 0


def status_of(row: Row) -> str:
    if not row.ours:
        return "published only"
    if not row.runs:
        return "not run"
    done, total = len(row.completed), len(row.runs)
    if done and row.attention_length is not None and not any(one["attention"] for one in row.results):
        return f"attention length {row.attention_length} was not tried"
    if done == total:
        lacking = {run.evaluation.partition(":")[0]: None for run in row.completed if run.evaluation}
        return "completed" + "".join(f"; {what}" for what in lacking)
    if total == 1:
        return row.runs[0].status
    statuses = Counter(run.status for run in row.runs if run.status != "completed")
    rest = ", ".join(f"{number} {status}" for status, number in statuses.items())
    return f"{done} of {total} completed, {rest}" if done else rest


def problems_of(sweep: Sweep) -> list[str]:
    """Return a line for each row and reason why some of its runs gave no number."""
    lines = []
    for row in sweep.rows:
        if row.same_run:
            continue
        seeds_by_reason: dict[str, list[str]] = {}
        for run in row.runs:
            reason = run.evaluation if run.status == "completed" else f"{run.status}: {run.error}"
            if reason:
                seeds_by_reason.setdefault(reason, []).append(str(run.seed))
        for reason, seeds in seeds_by_reason.items():
            named = "" if seeds == ["None"] else f", seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
            lines.append(f"{row.name}{named}: {reason}")
    return lines


def report_of(sweep: Sweep) -> Report:
    measures, found = measured(sweep)
    rows = [row for row in sweep.rows if row.completed and not row.same_run]
    shared, differing = settings_of([row.results for row in rows])
    columns = [text_column(heading, texts) for heading, texts in differing.items()]
    names = text_column("row", [row.name for row in rows])
    return Report(
        _about(sweep, found),
        metric_for(_units(sweep.runs)),
        _results(sweep, measures, found),
        _differences(sweep, measures, found),
        problems_of(sweep),
        shared,
        Grid("Settings that differ between rows", [names, *columns]) if columns else None,
        sweep.notes + _mixed_notes(rows),
    )


def _about(sweep: Sweep, found: Found) -> list[str]:
    lines = [sweep.name + (f", scale {sweep.scale}." if sweep.scale else ".")]
    if sweep.note:
        lines.append(f"Ours: {sweep.note.rstrip('.')}.")
    if sweep.source:
        where = f", on {sweep.published_on.rstrip('.')}" if sweep.published_on else ""
        lines.append(f"Paper: {sweep.source}{where}.")
    if any(one.sample for one in found.values()):
        lines.append(
            "Ours is the mean over n seeds ± their sample standard deviation; only completed runs count."
        )
    return lines


def _mixed_notes(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        if keys := differences_within(row.results):
            lines.append(f"{row.name}: its seeds were not run with the same settings: {', '.join(keys)}.")
    if len({frozenset(_text_hashes(row)) for row in rows}) > 1:
        lines.append("Not all rows read the same text; no difference is taken between those that did not.")
    return lines


def _results(sweep: Sweep, measures: list[Measure], found: Found) -> Grid:
    rows = sweep.rows
    columns = [text_column("row", [row.name for row in rows])]
    if any(row.label != row.name for row in rows):
        columns.append(text_column("model", [row.label for row in rows]))
    for key, heading in sweep.columns.items():
        columns.append(text_column(heading, [row.cells.get(key, "") for row in rows]))
    ours = any(row.ours for row in rows)
    if ours and measures:
        columns.append(Column("n", [_count(row) for row in rows], number=True))
    for measure in measures:
        numbers = [found[row.name, measure.key] for row in rows]
        paper = any(one.published is not None for one in numbers)
        group = measure.heading if ours and paper else ""
        if ours:
            heading = measure.with_unit("ours" if paper else measure.heading)
            columns.append(Column(heading, [_our_number(one) for one in numbers], group, True))
        if paper:
            cells = [Cell(one.published or NONE, one.published_number) for one in numbers]
            columns.append(Column("paper" if ours else measure.heading, cells, group, True))
    return Grid(sweep.title, [*columns, text_column("status", map(status_of, rows))])


def _count(row: Row) -> Cell:
    done, total = len(row.completed), len(row.runs)
    if not row.runs:
        return Cell(NONE)
    return Cell(str(done) if done == total else f"{done} of {total}", float(done))


def _our_number(one: Measured) -> Cell:
    """Return mean ± deviation, with n if not all completed runs have the measure."""
    lost = f"{one.not_finite} not finite" if one.not_finite else ""
    if one.sample is None:
        return Cell(lost or NONE)
    mean, deviation, n = one.sample.mean, one.sample.deviation, one.sample.n
    text = one.measure.shown(mean)
    if deviation is not None and not (one.measure.key == "parameters" and deviation == 0):
        text += f" ± {one.measure.shown(deviation)}"
    if n != len(one.row.completed):
        text += f" (n = {n}{', ' + lost if lost else ''})"
    return Cell(text, mean)


def _differences(sweep: Sweep, measures: list[Measure], found: Found) -> Grid | None:
    reference = sweep.reference
    if reference is None:
        return None
    rows = [row for row in sweep.rows if row is not reference]
    columns = [text_column("row", [row.name for row in rows])]
    for measure in measures:
        group, numbers = measure.heading, [found[row.name, measure.key] for row in rows]
        if any(one.difference for one in numbers):
            ours, beyond_noise = zip(*(difference_of(one, reference) for one in numbers), strict=True)
            columns.append(Column(measure.with_unit("ours"), ours, group, True))
            columns.append(Column("beyond noise", beyond_noise, group))
        if any(one.published_difference is not None for one in numbers):
            columns.append(Column("paper", [_signed(one, reference) for one in numbers], group, True))
    title = f"Differences to {reference.name}"
    return Grid(title, columns, DIFFERENCES) if len(columns) > 1 else None


def difference_of(one: Measured, reference: Row) -> tuple[Cell, Cell]:
    """Return the cells of our difference with its interval, and of whether it exceeds the seed noise."""
    digits, found = one.measure.digits, one.difference
    if found is None:
        other = one.sample and _text_hashes(one.row) != _text_hashes(reference)
        return Cell("other text" if other else NONE), Cell(NONE)
    text = f"{found.value:+.{digits}f}"
    if found.half_width is None:
        return Cell(text, found.value), Cell("n = 1, noise unknown")
    low, high = found.value - found.half_width, found.value + found.half_width
    text += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    return Cell(text, found.value), Cell("yes" if found.exceeds_noise else "no")


def _signed(one: Measured, reference: Row) -> Cell:
    value = one.published_difference
    if value is None:
        return Cell(NONE)
    decimals = max(_decimals(one.published_number), _decimals(reference.published.get(one.measure.key)))
    return Cell(f"{value:+.{decimals}f}", value)


def failed_rows(sweep: Sweep) -> frozenset[str]:
    """Return the names of rows with a failed or unreadable run, or a failed evaluation."""
    broken = ("failed", "unreadable")
    return frozenset(
        row.name
        for row in sweep.rows
        if any(run.status in broken or " failed:" in (run.evaluation or "") for run in row.runs)
    )
