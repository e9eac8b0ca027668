"""The definitions of the paper's tables and figures, `ablations/NAME.yaml`: read and checked.

A file defines the rows of a table, the overrides that train each row at each scale, the published numbers and
the measures to show. `ablations/README.md` explains the keys. Any mistake is a `ConfigError` of one line.
"""

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from txl.report.measures import measures_for, metric_for
from txl.settings.compose import CONF
from txl.settings.errors import MISTAKES, ConfigError, nearest, typed

ABLATIONS = CONF.parent / "ablations"
SCALES = ("laptop", "paper")
NO_ROW = "base"  # the row of a sweep over seeds alone
VERBS = ("recl", "attention", "speed")  # that measure trained models; speed needs none


@dataclass
class _Scale:
    note: str
    overrides: list[str]


@dataclass
class _Row:
    # Beside the table's columns; see ablations/README.md.
    label: str
    published: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] | None = None
    laptop: list[str] | None = None
    paper: list[str] | None = None
    same_run: str | None = None
    at_attention_length: dict[str, int] | None = None


@dataclass
class _Evaluation:
    verb: str
    together: str | None = None
    figures: list[str] | None = None
    laptop: list[str] = field(default_factory=list)
    paper: list[str] = field(default_factory=list)


@dataclass
class _File:
    """A whole file. Rows are checked one by one, because they have the table's own columns."""

    title: str
    source: str
    published_on: str
    columns: dict[str, str]
    measures: list[str]
    scales: dict[str, _Scale]
    rows: dict[str, Any]
    plots: dict[str, str] | None = None
    evaluation: _Evaluation | None = None


@dataclass(frozen=True)
class Ablation:
    """A table or figure at one scale.

    Attributes:
        table: the file's content at this scale, as plain JSON data: `scales` holds this scale alone, a row
            has its own overrides in one list, or no such key if it is not run at this scale,
            `at_attention_length` and the `settings` of the `evaluation` are this scale's.
        jobs: all overrides of each row that is run, in the table's order: the scale's, then its own, each
            setting once.
    """

    name: str
    scale: str
    table: dict[str, Any]
    jobs: dict[str, list[str]]

    def chosen(self, rows: list[str]) -> dict[str, list[str]]:
        """Return the jobs of some rows, in the table's order.

        Raises:
            ConfigError: an unknown row, or one that is not run.
        """
        for name in rows:
            if name not in self.table["rows"]:
                raise ConfigError(f"{self.name} has no row {name}{nearest(name, self.jobs)}")
            if name not in self.jobs:
                reason = f"it has no overrides at scale={self.scale}, only published numbers"
                if other := self.table["rows"][name].get("same_run"):
                    reason = f"its numbers are of the run of {other}; choose that row"
                raise ConfigError(f"{self.name}: the row {name} is not run: {reason}")
        return {name: overrides for name, overrides in self.jobs.items() if name in rows}


def names(folder: Path = ABLATIONS) -> list[str]:
    """Return the names of the tables and figures in natural order: table2 before table10."""

    def parts(name: str) -> list[str | int]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    return sorted((path.stem for path in folder.glob("*.yaml")), key=parts)


def read(name: str, scale: str = "laptop", folder: Path = ABLATIONS) -> Ablation:
    """Return a table or figure at one scale.

    Raises:
        ConfigError: no such file or scale, or a file that is not as `ablations/README.md` says.
    """
    path = folder / f"{name}.yaml"
    if name not in names(folder):
        raise ConfigError(f"there is no ablation {name} in {folder}{nearest(name, names(folder))}")
    try:
        # Through plain data, because an ablation has no interpolations and its dots are dots.
        return _read(name, scale, OmegaConf.to_container(OmegaConf.load(path)))
    except (*MISTAKES, YAMLError) as error:
        raise ConfigError(f"{path.name}: {' '.join(str(error).split())}") from error


def last_of_each(overrides: list[str]) -> list[str]:
    """Return the overrides with each setting once: its last value, which wins."""
    kept: dict[str, str] = {}
    for word in overrides:
        key = word.partition("=")[0]
        kept.pop(key, None)
        kept[key] = word
    return list(kept.values())


def row_name(row: str, variant: str) -> str:
    return "_".join(part for part in (row if row != NO_ROW or not variant else "", variant) if part)


def with_variants(table: dict[str, Any], variants: list[str]) -> dict[str, Any]:
    """Return a table with a row for each variant of each row."""
    if variants in ([""], []):
        return table
    rows, together = {}, table.get("evaluation", {}).get("together")
    for variant, (name, row) in itertools.product(variants, table["rows"].items()):
        varied = {**row, "label": f"{row['label']}, {variant}"}
        if "same_run" in row:
            varied["same_run"] = row_name(row["same_run"], variant)
        if together in row:
            varied[together] = f"{row[together]}, {variant}"  # each variant is its own group
        rows[row_name(name, variant)] = varied
    return {**table, "rows": rows}


def with_missing_rows(
    jobs: list[dict[str, Any]], table: dict[str, Any], earlier: dict[str, Any] | None
) -> dict[str, Any]:
    """Return a table in which every job has a row, if need be from the table of the `earlier` call."""
    rows, before = dict(table["rows"]), earlier["rows"] if earlier else {}
    for name in (job["row"] for job in jobs):
        same_name = rows.get(name.rpartition("-")[0], {})  # it got a number, see `make_jobs`
        found = before.get(name) or {"overrides": [], **same_name, "label": name}
        rows.setdefault(name, dict.fromkeys(table["columns"], "") | found)
    return {**table, "rows": rows}


def _read(name: str, scale: str, content: Any) -> Ablation:
    if not isinstance(content, dict):
        raise ConfigError(f"expected a mapping, not {content}")
    file = typed(_File, content)
    for key in file.scales:
        _known("scale", key, SCALES)
    _known("scale", scale, file.scales)
    for column in file.columns:
        if column in _Row.__dataclass_fields__:
            raise ConfigError(f"columns.{column}: this is a row's own key; call the column something else")
    table = {key: value for key, value in content.items() if key not in ("scales", "rows", "evaluation")}
    if file.evaluation is not None:
        table["evaluation"] = _evaluation(file.evaluation, scale, file)
    table |= {"scales": {scale: content["scales"][scale]}, "rows": {}}
    jobs = {}
    for row_name, given in file.rows.items():
        try:
            row = table["rows"][row_name] = _row(row_name, given, scale, file)
        except ConfigError as error:
            raise ConfigError(f"rows.{row_name}: {error}") from error
        if "overrides" in row:
            jobs[row_name] = last_of_each([*file.scales[scale].overrides, *row["overrides"]])
    try:
        measures_for(file.measures, metric_for(set()), measured=bool(jobs))
    except ValueError as error:
        raise ConfigError(f"measures: {error}") from error
    for row_name, row in table["rows"].items():
        other = row.get("same_run")
        if other is not None and "overrides" not in table["rows"].get(other, {}):
            raise ConfigError(
                f"rows.{row_name}.same_run={other} is not a row that is run{nearest(other, jobs)}"
            )
    return Ablation(name, scale, table, jobs)


def _evaluation(spec: _Evaluation, scale: str, file: _File) -> dict[str, Any]:
    _known("verb", spec.verb, VERBS)
    if spec.together is not None:
        _known("column", spec.together, file.columns)
    given = vars(spec) | {"settings": getattr(spec, scale)}
    kept = ("verb", "together", "figures", "settings")
    return {key: given[key] for key in kept if given[key] is not None}


def _row(name: str, given: Any, scale: str, file: _File) -> dict[str, Any]:
    if not re.fullmatch("[a-z0-9_]+", name):  # it becomes a folder
        raise ConfigError("a row's name has only a to z, 0 to 9 and _")
    if not isinstance(given, dict):
        raise ConfigError("a row is a mapping, with a label at least")
    for key in given:
        _known("setting", key, [*_Row.__dataclass_fields__, *file.columns])
    columns = {key: value for key, value in given.items() if key in file.columns}
    row = typed(_Row, {key: value for key, value in given.items() if key not in columns})
    for column in file.columns:
        if row.same_run is None and column not in columns:
            raise ConfigError(f"the row has no value for the column {column}")
    for column, value in columns.items():
        if not isinstance(value, str):
            raise ConfigError(f'{column}: {value} is not a text; write it in quotes ("yes", "128")')
    for measure, value in row.published.items():
        _known("measure", measure, file.measures)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"published.{measure}: {value} is not a number")
    own = getattr(row, scale)
    if row.same_run is not None and (row.overrides is not None or own is not None):
        raise ConfigError(f"a row with same_run={row.same_run} has no overrides: it is not run itself")
    if (row.same_run is None) != (row.at_attention_length is None) and not file.evaluation:
        raise ConfigError("same_run and at_attention_length belong together: one of them is missing")
    lengths = row.at_attention_length
    if lengths is not None and scale not in lengths:
        raise ConfigError(f"at_attention_length.{scale} is missing")
    is_run = row.overrides is not None or own is not None
    kept = {
        "label": row.label,
        **columns,
        "published": row.published,
        "overrides": [*(row.overrides or []), *(own or [])] if is_run else None,
        "same_run": row.same_run,
        "at_attention_length": lengths and lengths[scale],
    }
    return {key: value for key, value in kept.items() if value is not None}


def _known(what: str, name: str, allowed: Any) -> None:
    if name not in allowed:
        raise ConfigError(f"there is no {what} {name}{nearest(name, allowed)}")
