"""`txl describe`: what a model costs, without allocating it."""

import argparse
import json

from txl.runs.cost import as_table, describe
from txl.verbs.runner import composed_settings, console


def run(arguments: argparse.Namespace) -> int:
    with composed_settings(arguments.overrides, "describe") as settings:
        described = describe(settings, arguments.devices, arguments.peak, arguments.utilization)
    if arguments.json:
        print(json.dumps(described, indent=2))
    else:
        console.print(as_table(" ".join(arguments.overrides) or "the defaults", described))
    return 0
