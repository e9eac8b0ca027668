"""Reading sweeps: the rows of a table and the runs of each, from one or several directories.

Needs only the `sweep.json` of a sweep directory and the `results.json` of each run.
"""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from txl.records.results import read_results
from txl.report.evaluations import read_evaluations
from txl.report.measures import at
from txl.report.records import Row, RunRecord, Sweep, one_line
from txl.report.settings import NO_SETTINGS, comparable

SCHEMA = 1
STATUSES = ("missing", "unreadable", "interrupted", "failed", "running", "completed")  # worst first


def read_sweeps(directories: list[Path]) -> Sweep:
    """Merge the sweeps of several directories.

    Args:
        directories: of sweeps, of runs, or folders with runs below them.

    Raises:
        ValueError: a directory holds neither, a file is damaged, the sweeps belong to different tables, or
            two runs of the same row and seed have different results.
    """
    sweeps = [_read(directory) for directory in directories]
    definitions = [sweep for sweep in sweeps if sweep.defined]
    for other in definitions[1:]:
        first = definitions[0]
        if (other.name, other.scale) != (first.name, first.scale):
            both = f"{_full_name(first)} and of {_full_name(other)}"
            raise ValueError(f"sweeps of {both} are not one table; report each on its own")
        if _definition(other) != _definition(first):
            raise ValueError(
                f"the sweeps of {_full_name(first)} differ in its rows, columns or published numbers; "
                "run them with the same version of the table"
            )
    if definitions and len(definitions) < len(sweeps):
        raise ValueError(f"a sweep of {_full_name(definitions[0])} and runs of no table are not one table")
    merged = sweeps[0]
    for other in sweeps[1:]:
        merged.name = merged.name if other.name == merged.name else f"{merged.name}, {other.name}"
        merged.evaluations += other.evaluations
        merged.notes += other.notes
        merged.measures += [key for key in other.measures if key not in merged.measures]
        rows = {row.name: row for row in merged.rows}
        for row in other.rows:
            if row.name in rows:
                rows[row.name].runs += row.runs
            else:
                merged.rows.append(row)
    for row in merged.rows:
        row.runs = _one_run_per_seed(row, merged.notes)
    if not definitions:
        merged.title = f"Runs on {merged.name}"
        _label(merged.rows)
    rows = {row.name: row for row in merged.rows}
    for row in merged.rows:
        if row.same_run and not row.runs:
            if row.same_run not in rows:
                raise ValueError(
                    f"row {row.name} shows the runs of row {row.same_run!r}, which does not exist"
                )
            row.runs = rows[row.same_run].runs
    return merged


def _full_name(sweep: Sweep) -> str:
    return f"{sweep.name} (scale {sweep.scale})" if sweep.scale else sweep.name


def _definition(sweep: Sweep) -> list:
    rows = [(row.name, row.label, row.cells, row.published) for row in sweep.rows]
    return [sweep.columns, sweep.measures, rows]


def _read(directory: Path) -> Sweep:
    if (directory / "sweep.json").exists():
        return _read_sweep(directory)
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; name one of a sweep or of a run")
    runs = [_read_run(path.parent) for path in sorted(directory.rglob("results.json"))]
    if not runs:
        raise ValueError(f"{directory} holds neither a sweep.json nor a results.json; name a sweep or a run")
    return _group(runs)


def _read_sweep(directory: Path) -> Sweep:
    path = directory / "sweep.json"
    try:
        description = json.loads(path.read_text("utf-8"))
        schema = description["schema"]
        if schema == SCHEMA:
            jobs, runs = description["jobs"], {}
            for job in jobs:
                place = job["directory"]
                runs[place] = _read_run(directory / place, job["seed"], job["overrides"])
            sweep = _from_table(description)
            sweep.evaluations, sweep.notes, measured = read_evaluations(directory, description, runs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged ({what}); the sweep's command writes it anew") from error
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema}, this version reads {SCHEMA}")
    rows = {row.name: row for row in sweep.rows}
    for job in jobs:
        name = job["row"]
        if name not in rows:
            if sweep.defined:
                raise ValueError(f"{path} has a job of row {name!r}, which its table does not have")
            rows[name] = Row(name, name)
            sweep.rows.append(rows[name])
        rows[name].runs.append(runs[job["directory"]])
    for row in sweep.rows:
        if measured and row.attention_length is not None and not row.same_run:
            row.runs.append(replace(measured))
    if not sweep.defined:
        sweep.measures = _plain_measures(sweep.runs)
    return sweep


def _from_table(description: dict[str, Any]) -> Sweep:
    """Return a sweep without runs, as its table defines it; without rows if it has no table."""
    name, scale, table = description["name"], description.get("scale"), description.get("table")
    if not table:
        return Sweep(name, [], [], name, scale)
    columns = dict(table.get("columns") or {})
    rows = [
        Row(
            row_name,
            str(row.get("label", row_name)),
            {column: str(row.get(column, "")) for column in columns},
            row.get("published") or {},
            row.get("same_run"),
            row.get("at_attention_length"),
            bool({"overrides", "same_run", "at_attention_length"} & set(row)),
        )
        for row_name, row in table["rows"].items()
    ]
    return Sweep(
        name,
        rows,
        list(table["measures"]),
        table.get("title") or name,
        scale,
        table.get("source"),
        table.get("published_on"),
        table.get("note") or at(table, "scales", str(scale), "note"),
        columns,
        defined=True,
    )


def _plain_measures(runs: list[RunRecord]) -> list[str]:
    """Return the measures to show where no table defines them."""
    tried = any(run.results.get("attention") for run in runs)
    attention = ["init", "best", "attention_length"] if tried else []
    return ["valid", "test", *attention, "parameters", "tokens_per_second", "peak_memory"]


def _read_run(directory: Path, seed: int | None = None, overrides: list[str] | None = None) -> RunRecord:
    """Read a run; seed and overrides are those of its results if they are not given."""
    record = partial(RunRecord, seed, directory, overrides or [], {})
    try:
        results = read_results(directory)
    except FileNotFoundError:
        return record("missing", "it has no results yet")
    except ValueError:
        return record("unreadable", "its results.json is damaged")
    schema, status = results.get("schema"), results["status"]
    if schema != SCHEMA or status not in STATUSES[2:]:
        problem = f"its results.json has schema {schema} and status {status}, this version reads {SCHEMA}"
        return record("unreadable", problem)
    reasons = {"completed": None, "running": "it is still running"}
    error = reasons[status] if status in reasons else one_line(results.get("error"))
    seed = results.get("seed") if seed is None else seed
    overrides = results.get("overrides") or [] if overrides is None else overrides
    return RunRecord(seed, directory, overrides, results, status, error)


def _group(runs: list[RunRecord]) -> Sweep:
    """Make a sweep of runs outside any sweep; runs that differ only in their seed form a row."""
    rows: dict[str, Row] = {}
    names = [str(run.results.get("name") or "?") for run in runs]
    for run, name in zip(runs, names, strict=True):
        key = json.dumps(comparable(run.results) or _row_overrides(run), sort_keys=True)
        rows.setdefault(key, Row(key, name)).runs.append(run)
    return Sweep(", ".join(dict.fromkeys(names)), list(rows.values()), _plain_measures(runs))


def _row_overrides(run: RunRecord) -> list[str]:
    """Return the overrides that may distinguish rows, sorted."""
    ignored = (*NO_SETTINGS, "hydra.", "hydra/")
    return sorted(one for one in run.overrides if not one.lstrip("+~").startswith(ignored))


def _label(rows: list[Row]) -> None:
    """Name each row by the overrides that not all rows share."""
    overrides = [_row_overrides(row.runs[0]) if row.runs else [] for row in rows]
    common = set(overrides[0]).intersection(*overrides[1:]) if overrides else set()
    taken: Counter[str] = Counter()
    for row, own in zip(rows, overrides, strict=True):
        rest = [override for override in own if override not in common]
        label = " ".join(rest) or ("defaults" if len(rows) > 1 else row.label)
        taken[label] += 1
        row.name = row.label = label if taken[label] == 1 else f"{label} ({taken[label]})"


def _one_run_per_seed(row: Row, notes: list[str]) -> list[RunRecord]:
    """Return one run for each seed: the most complete one if several directories have the seed."""
    kept: dict[int | None, RunRecord] = {}
    for run in row.runs:
        other = kept.setdefault(run.seed, run)
        if other is run:
            continue
        if other.status == run.status == "completed" and _fingerprint(other) != _fingerprint(run):
            raise ValueError(
                f"row {row.name}, seed {run.seed} has different results in {other.directory} and in "
                f"{run.directory}; leave one out, or run one with another seed"
            )
        worse, better = sorted((run, other), key=lambda one: STATUSES.index(one.status))
        kept[run.seed] = better
        if worse.status not in (better.status, "missing"):
            verbs = {
                "running": "is still running",
                "interrupted": "was interrupted",
                "unreadable": "cannot be read",
            }
            verb = verbs.get(worse.status, worse.status)
            notes.append(f"{row.name}, seed {run.seed}: a run that {verb} is replaced by another")
    return sorted(kept.values(), key=lambda run: (run.seed is None, run.seed or 0))


def _fingerprint(run: RunRecord) -> list[Any]:
    """Return the results of a run that do not depend on its speed."""
    results = run.results
    scores = [(entry.get("attention_length"), entry.get("loss")) for entry in results.get("attention") or []]
    fields = [("valid", "loss"), ("test", "loss"), ("data", "sha256"), ("training", "steps")]
    return [*scores, *(at(results, *keys) for keys in (*fields, ("model", "parameters")))]
