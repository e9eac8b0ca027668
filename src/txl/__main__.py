"""`python -m txl VERB …`, also installed as `txl`: everything beside training."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

console = Console(highlight=False)


def main(words: list[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 for done, 1 for a failed check or wrong input."""
    parser = argparse.ArgumentParser(prog="txl", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_prepare(verbs)
    _add_describe(verbs)
    _add_parity(verbs)
    _add_conversions(verbs)
    arguments, more = parser.parse_known_args(words)
    if arguments.verb in ("describe", "prepare") and not any(word.startswith("-") for word in more):
        arguments.overrides += more  # overrides after an option
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    try:
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _add_prepare(verbs: argparse._SubParsersAction) -> None:
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


def _add_describe(verbs: argparse._SubParsersAction) -> None:
    verb = verbs.add_parser(
        "describe", help="parameters, memory, operations and time of a model, without allocating it"
    )
    verb.add_argument("overrides", nargs="*", help="as for train.py: experiment=wt103_base model.n_layer=4")
    verb.add_argument("--json", action="store_true", help="JSON to standard output, and nothing else")
    verb.add_argument("--devices", type=_positive(int), default=1, help="that divide the batch (1)")
    verb.add_argument("--peak", type=_positive(float), help="operations a second of a device: 312e12")
    verb.add_argument("--utilization", type=_positive(float), default=0.4, help="share of the peak (0.4)")
    verb.set_defaults(run=_describe)


def _describe(arguments: argparse.Namespace) -> int:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from txl.training.command import one_line
    from txl.training.compose import CONF, composed
    from txl.training.describe import as_table, describe

    try:
        settings = composed([*arguments.overrides, "name=describe"])  # it is no run and has no name
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_line(error, CONF, "train")) from error
    described = describe(settings, arguments.devices, arguments.peak, arguments.utilization)
    if arguments.json:
        print(json.dumps(described, indent=2))
    else:
        console.print(as_table(" ".join(arguments.overrides) or "the defaults", described))
    return 0


def _add_parity(verbs: argparse._SubParsersAction) -> None:
    verb = verbs.add_parser("parity", help="compare the model with reference values of the authors' code")
    verb.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a .npz of reference values")
    verb.set_defaults(run=_parity)


def _parity(arguments: argparse.Namespace) -> int:
    from txl.interop.parity import TOLERANCE, compare

    table = Table(box=box.SIMPLE_HEAVY, title="largest absolute differences")
    for heading in ("file", *TOLERANCE, ""):
        table.add_column(heading, overflow="fold")
    failed = 0
    for path in arguments.files:
        try:
            comparison = compare(path)
        except ValueError as error:
            failed += 1
            table.add_row(path.name, *["" for _ in TOLERANCE], "error")
            print(f"error: {path}: {error}", file=sys.stderr)
            continue
        failed += not comparison.passed
        gaps = (comparison.largest[kind] for kind in TOLERANCE)
        shown = ("none" if gap is None else f"{gap:.1e}" for gap in gaps)
        table.add_row(path.stem, *shown, "same" if comparison.passed else "DIFFERS")
    table.add_section()
    table.add_row("at most", *(f"{limit:.0e}" for limit in TOLERANCE.values()), "")
    console.print(table)
    return 1 if failed else 0


def _add_conversions(verbs: argparse._SubParsersAction) -> None:
    for name, what in {
        "import": "a Hugging Face or authors' checkpoint becomes ours, one safe file",
        "export": "a run or a checkpoint becomes one safe file, .safetensors",
    }.items():
        verb = verbs.add_parser(name, help=what)
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


def _positive(kind: type):
    def convert(word: str):
        value = kind(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive and finite, not {word}")
        return value

    return convert


if __name__ == "__main__":
    sys.exit(main())
