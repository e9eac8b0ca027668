"""`txl import` and `txl export`: convert checkpoints."""

import argparse
import json
from pathlib import Path

from txl.verbs.runner import Verbs, console


def add_to(verbs: Verbs) -> None:
    for name, description in {
        "import": "convert a checkpoint of Hugging Face or the authors to one safe file",
        "export": "convert a run or a checkpoint to one safe file, .safetensors",
    }.items():
        verb = verbs.add_parser(name, help=description)
        verb.add_argument(
            "source",
            type=Path,
            help="a directory of save_pretrained, a state_dict of the authors' code, a run directory or its "
            ".ckpt, a .safetensors of ours",
        )
        verb.add_argument("target", type=Path, help="the .safetensors to write")
        verb.add_argument("--config", type=Path, help="JSON of the authors' options, for their state_dict")
        verb.set_defaults(run=_convert)


def _convert(arguments: argparse.Namespace) -> int:
    from txl.interop.checkpoints import export, load_foreign
    from txl.model.cost import parameter_counts

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
