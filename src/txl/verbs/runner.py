"""What the verbs share: loading the model, composing settings of `train.py`, the files they leave."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from txl.records.files import finite, write_atomically
from txl.verbs.arguments import MODEL_VERBS
from txl.verbs.settings import parse_settings

if TYPE_CHECKING:
    from omegaconf import DictConfig

INTERRUPTED = 130  # exit code
console = Console(highlight=False)


@dataclass
class Outcome:
    """What a verb leaves behind."""

    table: RenderableType | None = None  # printed for people
    files: list[Path] = field(default_factory=list)  # those written, whose paths are printed
    interrupted: str | None = None  # what Ctrl-C left, to be printed; `None` if completed

    def show(self) -> int:
        if self.table is not None:
            console.print(self.table)
        print_paths(self.files)
        if self.interrupted is not None:
            console.print(self.interrupted, style="red", markup=False, soft_wrap=True)
            return INTERRUPTED
        return 0


def print_paths(paths: Iterable[Path]) -> None:
    for path in paths:
        console.print(os.path.relpath(path), markup=False, soft_wrap=True)


def run(arguments: argparse.Namespace) -> int:
    """Run a verb, the function `run` of its module, and return the exit code.

    It takes the arguments; that of a model's verb the loaded model, the settings and the path of its JSON.
    """
    name = arguments.verb
    kind = MODEL_VERBS.get(name)
    settings: Any = kind and parse_settings(arguments.overrides, kind)  # before torch, which takes seconds
    verb = import_module("txl.verbs." + {"import": "convert", "export": "convert"}.get(name, name))
    if kind is None:
        return verb.run(arguments)
    from txl.runs.trained import load

    trained = load(arguments.source, settings.trust)
    path = result_path(trained.directory, name, arguments.overrides, settings.out)
    return verb.run(trained, settings, path).show()


@contextmanager
def composed_settings(words: Iterable[str], verb: str) -> Iterator[DictConfig]:
    """Compose settings of `train.py` for a verb, which is no run and needs no `name=`.

    Errors of Hydra and OmegaConf in this context become a ValueError of one line.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from txl.settings.compose import CONF, composed
    from txl.settings.errors import one_line

    try:
        yield composed([*words, f"name={verb}"])
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_line(error, CONF, "train")) from error


def result_path(directory: Path, verb: str, words: Iterable[str], out: Path | None) -> Path:
    """Return where a verb writes its JSON: `out`, or a file in `evaluations/` of the run.

    The name ends in a hash of the settings, so that the same command finds its file again.

    Raises:
        ValueError: the file cannot be written.
    """
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:8]
    path = out or directory / "evaluations" / f"{verb}-{digest}.json"
    check_writable(path)
    return path


def check_writable(path: Path) -> None:
    """Raise ValueError if a file cannot be written, before the long work whose result it holds."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: {folder} is not a folder")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: {folder} is read-only")


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all; NaN and infinity become null, which JSON can express."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(finite(result), indent=2, ensure_ascii=False) + "\n")
