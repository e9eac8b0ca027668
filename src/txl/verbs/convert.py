"""`txl import` and `txl export`: convert checkpoints."""

import argparse
import json

from txl.interop.checkpoints import export, load_foreign
from txl.model.cost import parameter_counts
from txl.verbs.runner import console


def run(arguments: argparse.Namespace) -> int:
    config = None
    if arguments.config:
        try:
            config = json.loads(arguments.config.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{arguments.config} is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise ValueError(f"{arguments.config} must be a JSON object: the authors' options by name")
    if arguments.target.exists():
        raise FileExistsError(f"{arguments.target} exists already; choose another name or remove it")
    model, description = load_foreign(arguments.source, config)
    export(model, description, arguments.target)
    total, layers = parameter_counts(model)
    console.print(f"{arguments.target}: {total:,} parameters ({layers:,} in the layers)", soft_wrap=True)
    return 0
