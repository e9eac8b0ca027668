"""`txl prepare`: prepare the corpus that the settings name, and say what it is."""

from __future__ import annotations

from omegaconf import OmegaConf
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from txl.data import Corpus
from txl.settings.components import check_given, component
from txl.settings.compose import composed


def prepare(overrides: list[str]) -> Corpus:
    """Return the corpus that `overrides`, as for `train.py`, choose.

    Raises:
        ConfigError: a setting of the corpus that is wrong or missing.
        ValueError, OSError: see `txl.data.corpora.catalogue`.
    """
    settings = composed([*overrides, "name=prepare"]).data  # it is no run and has no name
    check_given(settings)
    return component(OmegaConf.to_container(settings, resolve=True), "data")()


def as_table(report: dict, folder: str) -> Group:
    """Return a corpus's report to be printed.

    Args:
        report: what `txl.data.report` says of it.
        folder: where it lies.
    """
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False)
    table.add_column("split")
    columns = {"bytes_splits": "bytes", "tokens": f"{report['unit']}s", "unknown": "unknown"}
    columns = {key: name for key, name in columns.items() if key in report}
    for name in columns.values():
        table.add_column(name, justify="right")
    hashes = report.get("sha256_splits", {})
    if hashes:
        table.add_column("sha256")
    for split in report["tokens"]:
        values = (report[key][split] for key in columns)
        cells = [f"{value:,}" if isinstance(value, int) else f"{value:.2%}" for value in values]
        table.add_row(split, *cells, *([f"{hashes[split][:16]}…"] if hashes else []))
    lines = [f"{report['name']}: vocabulary {report['vocabulary']:,}, sha256 {report['sha256']}"]
    if report.get("newlines") == "drop":
        lines.append("newlines left out (data.newlines=drop): scores are per remaining token")
    more = []
    if "commonest" in report:
        more.append(
            "commonest: " + "  ".join(f"{symbol!r} {number:,}" for symbol, number in report["commonest"])
        )
        more.append("a line: " + report["line"])
    return Group(Text("\n".join(lines)), table, Text("\n".join([*more, folder])))
