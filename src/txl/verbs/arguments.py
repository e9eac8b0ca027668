"""The command line of `txl`: the words and options of every verb. No torch here: `--help` stays fast."""

import argparse
from collections.abc import Callable
from pathlib import Path

from txl.verbs import settings

VERBS = {
    "prepare": "fetch, check and prepare a corpus, and report its contents",
    "describe": "parameters, memory, operations and time of a model, without allocating it",
    "evaluate": "perplexity or bits of a text, at one or many attention lengths",
    "recl": "the relative effective context length of a group of models",
    "speed": "time to evaluate a token with recurrence, and with vanilla windows",
    "attention": "what the heads attend to: by distance, by term, in the text",
    "generate": "continue a prompt, or a position of the test text",
    "parity": "compare the model with reference values of the authors' code",
    "import": "convert a checkpoint of Hugging Face or the authors to one safe file",
    "export": "convert a run or a checkpoint to one safe file, .safetensors",
    "report": "a sweep's table.md, table.csv, table.tex and report.html, from its result files",
}
# Verbs that take a model as their first argument, and `key=value` settings after it.
MODEL_VERBS = {
    "evaluate": settings.EvaluateSettings,
    "attention": settings.AttentionSettings,
    "generate": settings.GenerateSettings,
}
OTHER_SETTINGS = {"recl": settings.ReclSettings, "speed": settings.SpeedSettings}


def parse(words: list[str] | None, description: str | None) -> argparse.Namespace:
    """Return the arguments of a command line, and in `verb` the key of `VERBS`."""
    parser = argparse.ArgumentParser(prog="txl", description=description)
    parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs = {name: parsers.add_parser(name, help=text) for name, text in VERBS.items()}
    for name, example in {
        "prepare": "data=wikitext103 data.unit=bpe",
        "describe": "experiment=wt103_base model.n_layer=4",
    }.items():
        verb = verbs[name]
        verb.add_argument("overrides", nargs="*", help=f"as for train.py: {example}")
        verb.add_argument("--json", action="store_true", help="JSON to standard output, and nothing else")
    verb = verbs["describe"]
    verb.add_argument("--devices", type=positive(int), default=1, help="devices that share the batch (1)")
    verb.add_argument("--peak", type=positive(float), help="operations per second of a device: 312e12")
    verb.add_argument("--utilization", type=positive(float), default=0.4, help="share of the peak (0.4)")
    for name in MODEL_VERBS:
        verbs[name].add_argument(
            "source", metavar="SOURCE", help="a run directory, a checkpoint or a .safetensors of a model"
        )
        verbs[name].add_argument("overrides", nargs="*", metavar="key=value", help="settings, see below")
    verbs["recl"].add_argument(
        "overrides",
        nargs="+",
        metavar="MODEL|key=value",
        help="run directories, checkpoints, .safetensors, directories of save_pretrained; and settings",
    )
    verbs["speed"].add_argument(
        "overrides",
        nargs="+",
        metavar="SOURCE|key=value",
        help="a run directory, a checkpoint or a .safetensors; or words as for train.py, "
        "experiment=enwik8_24l, for random parameters of that shape; and settings, see below",
    )
    for name, kind in (MODEL_VERBS | OTHER_SETTINGS).items():
        verbs[name].formatter_class = argparse.RawDescriptionHelpFormatter
        verbs[name].epilog = settings.help_of(kind)
    verbs["parity"].add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a .npz of reference values"
    )
    for name in ("import", "export"):
        verb = verbs[name]
        verb.add_argument(
            "source",
            type=Path,
            help="a directory of save_pretrained, a state_dict of the authors' code, a run directory or its "
            ".ckpt, a .safetensors of ours",
        )
        verb.add_argument("target", type=Path, help="the .safetensors to write")
        verb.add_argument("--config", type=Path, help="JSON of the authors' options, for their state_dict")
    verb = verbs["report"]
    verb.add_argument(
        "words",
        nargs="+",
        metavar="DIR",
        help="of a sweep or a run, or a folder that contains runs; several become one table. "
        "out=DIR: where the files go, if not into the one DIR",
    )
    verb.add_argument(
        "--wandb",
        action="store_true",
        help="make a report and a workspace on W&B as well; without a login their file wandb_report.json",
    )
    for name in ("project", "entity"):
        help_of_name = f"the {name} on W&B, if not that of the runs"
        verb.add_argument(f"--wandb-{name}", metavar="NAME", help=help_of_name)
    arguments, more = parser.parse_known_args(words)
    if hasattr(arguments, "overrides") and not any(word.startswith("-") for word in more):
        arguments.overrides += more  # overrides after an option
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    return arguments


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a converter for argparse to a positive, finite number."""

    def convert(word: str) -> float:
        value = kind(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive and finite, not {word}")
        return value

    return convert
