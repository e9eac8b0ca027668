"""`txl describe`: what a model costs, without allocating it."""

from __future__ import annotations

import argparse
import json

from txl.verbs.common import composing, console, positive


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser(
        "describe", help="parameters, memory, operations and time of a model, without allocating it"
    )
    verb.add_argument("overrides", nargs="*", help="as for train.py: experiment=wt103_base model.n_layer=4")
    verb.add_argument("--json", action="store_true", help="JSON to standard output, and nothing else")
    verb.add_argument("--devices", type=positive(int), default=1, help="that divide the batch (1)")
    verb.add_argument("--peak", type=positive(float), help="operations a second of a device: 312e12")
    verb.add_argument("--utilization", type=positive(float), default=0.4, help="share of the peak (0.4)")
    verb.set_defaults(run=_describe)


def _describe(arguments: argparse.Namespace) -> int:
    from txl.runs.cost import as_table, describe
    from txl.settings.compose import composed

    with composing():
        settings = composed([*arguments.overrides, "name=describe"])  # it is no run and has no name
    described = describe(settings, arguments.devices, arguments.peak, arguments.utilization)
    if arguments.json:
        print(json.dumps(described, indent=2))
    else:
        console.print(as_table(" ".join(arguments.overrides) or "the defaults", described))
    return 0
