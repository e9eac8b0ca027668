"""What the verbs share."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rich.console import Console

console = Console(highlight=False)
Kind = TypeVar("Kind")


def positive(kind: type) -> Callable:
    """Return what argparse turns a word into a positive, finite number of a kind with."""

    def convert(word: str):
        value = kind(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive and finite, not {word}")
        return value

    return convert


def add_source(verb: argparse.ArgumentParser, kind: type) -> None:
    """Give a verb a model as its first argument, and `key=value` words after it.

    Args:
        verb: the verb's parser.
        kind: the dataclass of its settings; what its docstring says stands in the help.
    """
    verb.add_argument(
        "source", metavar="SOURCE", help="a run directory, a checkpoint or a .safetensors of a model"
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings, see below")
    explain(verb, kind)


def explain(verb: argparse.ArgumentParser, kind: type) -> None:
    """Let a verb's help end with what the docstring of its settings says of each."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.epilog = inspect.getdoc(kind).split("Attributes:")[-1].replace("`", "")


@contextmanager
def composing() -> Iterator[None]:
    """Inside, settings are composed as for `train.py`: what is wrong with them is one line.

    Raises:
        ValueError: words that do not compose.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from txl.settings.compose import CONF
    from txl.settings.errors import one_line

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_line(error, CONF, "train")) from error


def settings(words: Iterable[str], kind: type[Kind]) -> Kind:
    """Return a dataclass filled in from `key=value` words, the last of each key.

    Its fields may be `int`, `float`, `bool`, `str`, `Path`, lists of these (`[64,128]` or `64,128`), and each
    of them `| None` (`null`). Its `__post_init__` may check them further.

    Raises:
        ValueError: a word without `=`, a name that is not known, a value of another type.
    """
    from txl.settings.errors import nearest  # which imports OmegaConf

    hints, given = get_type_hints(kind), {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(
                f"{word!r} is no setting: expected key=value, where the keys are {', '.join(hints)}"
            )
        if key not in hints:
            raise ValueError(f"there is no setting {key}{nearest(key, hints)}")
        try:
            given[key] = converted(value, hints[key])
        except ValueError:
            raise ValueError(f"{key}={value}: expected {named(hints[key])}") from None
    return kind(**given)


def converted(value: str, kind: Any) -> Any:
    """Return what a word says, as a type that `settings` knows; ValueError if it does not say one."""
    if isinstance(kind, types.UnionType):
        if value in ("null", "None"):
            return None
        return converted(value, get_args(kind)[0])
    if get_origin(kind) is list:
        inside = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        return [converted(item.strip(), get_args(kind)[0]) for item in inside.split(",") if item.strip()]
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(value)
        return value.lower() == "true"
    return Path(value).expanduser() if kind is Path else kind(value)


def named(kind: Any) -> str:
    """Return what a value of a type looks like, for people."""
    if isinstance(kind, types.UnionType):
        return f"{named(get_args(kind)[0])}, or null"
    if get_origin(kind) is list:
        return f"a list of which each is {named(get_args(kind)[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text")


def result_path(directory: Path, verb: str, words: Iterable[str], out: Path | None) -> Path:
    """Return where a verb writes its JSON: `out`, or a file of the run's `evaluations/`.

    Its name ends in a hash of the settings, so that the same command finds its file again.

    Args:
        directory: of the run.
        verb: which verb.
        words: the settings that were given.
        out: where the user wants it; `None` for the usual place.
    """
    if out is not None:
        return out
    said = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:8]
    return directory / "evaluations" / f"{verb}-{said}.json"


def check_place(path: Path) -> None:
    """Raise ValueError where a file cannot be written: to be known before the long work that makes it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir():
        raise ValueError(f"{path} cannot be written: {there} is no folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"{path} cannot be written: {there} must not be changed")


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all; what is not finite becomes null."""
    from txl.records.files import (
        finite,  # which imports Lightning
        write_atomically,
    )

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(finite(result), indent=2, ensure_ascii=False) + "\n")
