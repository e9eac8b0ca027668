"""`txl describe`: what a model costs, without allocating it."""

import argparse
import json
from collections.abc import Callable

from txl.verbs.runner import Verbs, compose_unnamed, composition_errors, console


def add_to(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "describe", help="parameters, memory, operations and time of a model, without allocating it"
    )
    verb.add_argument("overrides", nargs="*", help="as for train.py: experiment=wt103_base model.n_layer=4")
    verb.add_argument("--json", action="store_true", help="JSON to standard output, and nothing else")
    verb.add_argument("--devices", type=_positive(int), default=1, help="devices that share the batch (1)")
    verb.add_argument("--peak", type=_positive(float), help="operations a second of a device: 312e12")
    verb.add_argument("--utilization", type=_positive(float), default=0.4, help="share of the peak (0.4)")
    verb.set_defaults(run=_describe)


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a converter for argparse to a positive, finite number."""

    def convert(word: str) -> float:
        value = kind(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive and finite, not {word}")
        return value

    return convert


def _describe(arguments: argparse.Namespace) -> int:
    from txl.runs.cost import as_table, describe

    with composition_errors():
        settings = compose_unnamed(arguments.overrides, "describe")
    described = describe(settings, arguments.devices, arguments.peak, arguments.utilization)
    if arguments.json:
        print(json.dumps(described, indent=2))
    else:
        console.print(as_table(" ".join(arguments.overrides) or "the defaults", described))
    return 0
