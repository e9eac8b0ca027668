"""`txl prepare`: fetch, check and prepare a corpus, and say what is in it."""

from __future__ import annotations

import argparse
import json
import sys

from txl.verbs.common import console


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("prepare", help="fetch, check and prepare a corpus, and say what is in it")
    verb.add_argument("overrides", nargs="*", help="as for train.py: data=wikitext103 data.unit=bpe")
    verb.add_argument("--json", action="store_true", help="JSON to standard output, and nothing else")
    verb.set_defaults(run=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    import logging

    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from txl.data import report
    from txl.training.command import one_line
    from txl.training.compose import CONF
    from txl.training.prepare import as_table, prepare

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        corpus = prepare(arguments.overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_line(error, CONF, "train")) from error
    found, folder = report(corpus), f"{corpus.folder}/report.json" if corpus.folder else ""
    if arguments.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        console.print(as_table(found, folder), soft_wrap=True)
    return 0
