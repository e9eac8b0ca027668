"""`txl parity`: compare the model with reference values of the authors' code."""

import argparse
import sys

from rich import box
from rich.table import Table

from txl.interop.parity import TOLERANCE, compare
from txl.model.transformer import ATTENTION_BACKENDS
from txl.verbs.runner import console


def run(arguments: argparse.Namespace) -> int:
    table = Table(box=box.SIMPLE_HEAVY, title="largest absolute differences")
    for heading in ("file", "attention", *TOLERANCE, ""):
        table.add_column(heading, overflow="fold")  # a file's name is never cut short
    failed = 0
    for path in arguments.files:
        try:
            for attention in ATTENTION_BACKENDS:
                comparison = compare(path, attention)
                failed += not comparison.passed
                gaps = (comparison.largest[kind] for kind in TOLERANCE)
                shown = ("none" if gap is None else f"{gap:.1e}" for gap in gaps)
                verdict = "same" if comparison.passed else "DIFFERS"
                table.add_row(path.stem, attention, *shown, verdict)
        except ValueError as error:
            failed += 1
            table.add_row(path.name, "", *["" for _ in TOLERANCE], "error")
            print(f"error: {path}: {error}", file=sys.stderr)
    table.add_section()
    table.add_row("at most", "", *(f"{limit:.0e}" for limit in TOLERANCE.values()), "")
    console.print(table)
    return 1 if failed else 0
