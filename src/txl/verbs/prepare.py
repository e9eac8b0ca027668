"""`txl prepare`: fetch, check and prepare a corpus, and say what is in it."""

from __future__ import annotations

import argparse
import json
import sys

from txl.verbs.common import composing, console


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("prepare", help="fetch, check and prepare a corpus, and say what is in it")
    verb.add_argument("overrides", nargs="*", help="as for train.py: data=wikitext103 data.unit=bpe")
    verb.add_argument("--json", action="store_true", help="JSON to standard output, and nothing else")
    verb.set_defaults(run=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    import logging

    from txl.data import report
    from txl.runs.prepare import as_table, prepare

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with composing():
        corpus = prepare(arguments.overrides)
    found, folder = report(corpus), f"{corpus.folder}/report.json" if corpus.folder else ""
    if arguments.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        console.print(as_table(found, folder), soft_wrap=True)
    return 0
