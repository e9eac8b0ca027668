"""`txl prepare`: fetch, check and prepare a corpus, and report its contents."""

import argparse
import json
import logging
import sys
from typing import Any

from omegaconf import OmegaConf
from rich.console import Group
from rich.text import Text

from txl.data import report
from txl.settings.components import check_given, component
from txl.terminal import new_table
from txl.verbs.runner import composed_settings, console


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with composed_settings(arguments.overrides, "prepare") as settings:
        check_given(settings.data)
        corpus = component(OmegaConf.to_container(settings.data, resolve=True), "data")()
    contents = report(corpus)
    if arguments.json:
        print(json.dumps(contents, indent=2, ensure_ascii=False))
    else:
        path = f"{corpus.folder}/report.json" if corpus.folder else ""
        console.print(as_table(contents, path), soft_wrap=True)
    return 0


def as_table(report: dict[str, Any], path: str) -> Group:
    """Return the report of a corpus as a table, with the path of its file if it has one."""
    columns = {"bytes_splits": "bytes", "tokens": f"{report['unit']}s", "unknown": "unknown"}
    columns = {key: name for key, name in columns.items() if key in report}
    hashes = report.get("sha256_splits", {})
    table = new_table("split", *columns.values(), *(["sha256"] if hashes else []), left=("split", "sha256"))
    for split in report["tokens"]:
        values = (report[key][split] for key in columns)
        cells = [f"{value:,}" if isinstance(value, int) else f"{value:.2%}" for value in values]
        table.add_row(split, *cells, *([f"{hashes[split][:16]}…"] if hashes else []))
    lines = [f"{report['name']}: vocabulary {report['vocabulary']:,}, sha256 {report['sha256']}"]
    if report.get("newlines") == "drop":
        lines.append("newlines left out (data.newlines=drop): scores are per remaining token")
    notes = []
    if "commonest" in report:
        counts = "  ".join(f"{symbol!r} {number:,}" for symbol, number in report["commonest"])
        notes += [f"commonest: {counts}", "a line: " + report["line"]]
    return Group(Text("\n".join(lines)), table, Text("\n".join([*notes, path])))
