"""What the verbs share: parsing their settings, loading the model, the files they leave."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from txl.runs.trained import TrainedModel

INTERRUPTED = 130  # exit code
console = Console(highlight=False)
Settings = TypeVar("Settings")
Verbs = argparse._SubParsersAction  # what `add_to` of each verb adds its parser to


@dataclass(kw_only=True)
class ModelSettings:
    """Settings of every verb that reads a model.

    Attributes:
        device: auto, cpu, cuda, cuda:1, …
        trust: true to run code of your own that a run or a checkpoint names
    """

    device: str = "auto"
    trust: bool = False


@dataclass(kw_only=True)
class PrecisionSettings(ModelSettings):
    """Settings of the verbs that compute in a precision of your choice.

    Attributes:
        precision: auto, 32-true, 64-true, bf16-mixed or 16-mixed
    """

    precision: str = "auto"


@dataclass
class Outcome:
    """What a verb leaves behind.

    Attributes:
        table: printed for people; `None` for nothing.
        files: those written, whose paths are printed.
        interrupted: what Ctrl-C left, to be printed; `None` where the work was completed.
    """

    table: RenderableType | None = None
    files: list[Path] = field(default_factory=list)
    interrupted: str | None = None

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


def add_model_verb(
    verbs: Verbs,
    name: str,
    description: str,
    kind: type[Settings],
    measure: Callable[[TrainedModel, Settings, Path], Outcome],
    out_is_folder: bool = False,
) -> None:
    """Add a verb that takes a model as its first argument, and `key=value` settings after it.

    `kind` is the dataclass of the settings, with `trust` and `out`; `measure` writes its JSON to the path.
    With `out_is_folder`, `out` is the folder of all files, not the path of the JSON.
    """

    def run(arguments: argparse.Namespace) -> int:
        settings: Any = parse_settings(arguments.overrides, kind)

        from txl.runs.trained import load

        trained = load(arguments.source, settings.trust)
        out = settings.out / f"{name}.json" if settings.out and out_is_folder else settings.out
        path = result_path(trained.directory, name, arguments.overrides, out)
        check_writable(path)
        return measure(trained, settings, path).show()

    verb = verbs.add_parser(name, help=description)
    verb.add_argument(
        "source", metavar="SOURCE", help="a run directory, a checkpoint or a .safetensors of a model"
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings, see below")
    add_settings_help(verb, kind)
    verb.set_defaults(run=run)


def add_settings_help(verb: argparse.ArgumentParser, kind: type) -> None:
    """Append the attributes in the docstring of the settings to the help of a verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    described = [inspect.cleandoc(each.__doc__ or "") for each in kind.__mro__ if is_dataclass(each)]
    verb.epilog = "\n".join(text.partition("Attributes:\n")[2].replace("`", "") for text in described)


@contextmanager
def composition_errors() -> Iterator[None]:
    """Turn the errors of Hydra and OmegaConf into a ValueError of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from txl.settings.compose import CONF
    from txl.settings.errors import one_line

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_line(error, CONF, "train")) from error


def compose_unnamed(words: Iterable[str], verb: str) -> DictConfig:
    """Compose settings of `train.py` for a verb, which is no run and needs no `name=`."""
    from txl.settings.compose import composed

    return composed([*words, f"name={verb}"])


# OmegaConf would read names=[010,on] as 8 and True, and ${…} in a prompt as an interpolation; the exceptions
# would take as many lines as this parser.
def parse_settings(words: Iterable[str], kind: type[Settings]) -> Settings:
    """Return a dataclass filled in from `key=value` words; of a repeated key the last word counts.

    Its fields may be `int`, `float`, `bool`, `str`, `Path`, lists of these (`[64,128]` or `64,128`), and each
    of them `| None` (`null`). Text is taken literally.

    Raises:
        ValueError: a word without `=`, an unknown key, a value of another type, or one that the dataclass
            refuses.
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
            given[key] = _parse(value, hints[key])
        except ValueError:
            raise ValueError(f"{key}={value}: expected {_expected(hints[key])}") from None
    return kind(**given)


def _parse(text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return None if text in ("null", "None") else _parse(text, get_args(kind)[0])
    if get_origin(kind) is list:
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        return [_parse(item.strip(), get_args(kind)[0]) for item in inside.split(",") if item.strip()]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return Path(text).expanduser() if kind is Path else kind(text)


def _expected(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return f"{_expected(get_args(kind)[0])}, or null"
    if get_origin(kind) is list:
        return f"a list of which each is {_expected(get_args(kind)[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text")


def check_at_least(settings: Any, minimum: int, *keys: str) -> None:
    """Raise ValueError if one of the settings, or an item of a list, is below 0 or 1; `None` passes."""
    for key in keys:
        value = getattr(settings, key)
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item < minimum:
                raise ValueError(f"{key}={item} must be {'positive' if minimum else '0 or more'}")


def check_position(position: str | None) -> None:
    if position not in (None, "random") and not position.isdecimal():
        raise ValueError(f"position={position}: expected random or the number of a token")


def result_path(directory: Path, verb: str, words: Iterable[str], out: Path | None) -> Path:
    """Return where a verb writes its JSON: `out`, or a file in `evaluations/` of the run.

    The name ends in a hash of the settings, so that the same command finds its file again.
    """
    if out is not None:
        return out
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:8]
    return directory / "evaluations" / f"{verb}-{digest}.json"


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
    from txl.records.files import finite, write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(finite(result), indent=2, ensure_ascii=False) + "\n")
