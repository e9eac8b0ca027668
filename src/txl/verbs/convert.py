"""`txl import` and `txl export`: convert checkpoints."""

import argparse

from txl.interop.checkpoints import export, load_foreign
from txl.interop.huggingface import read_json
from txl.model.cost import parameter_counts
from txl.verbs.runner import console


def run(arguments: argparse.Namespace) -> int:
    config = read_json(arguments.config) if arguments.config else None
    if arguments.target.exists():
        raise FileExistsError(f"{arguments.target} exists already; choose another name or remove it")
    model, description = load_foreign(arguments.source, config)
    export(model, description, arguments.target)
    total, layers = parameter_counts(model)
    console.print(f"{arguments.target}: {total:,} parameters ({layers:,} in the layers)", soft_wrap=True)
    return 0
