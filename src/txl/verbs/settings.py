"""The settings of the verbs: `key=value` words, typed and checked."""

from __future__ import annotations

import types
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

MIN_TEMPERATURE = 1e-6  # below, dividing logits by it can overflow
Settings = TypeVar("Settings")


def setting(text: str, default: Any = None) -> Any:
    """Return a dataclass field with its text for `--help`."""
    return field(default_factory=lambda: copy(default), metadata={"help": text})


def help_of(kind: type) -> str:
    """Return the text of each setting, those of the verb itself first."""
    known = {each.name: f"{each.name}: {each.metadata['help']}" for each in fields(kind)}
    keys = [key for each in kind.__mro__ for key in vars(each).get("__annotations__", ())]
    return "\n".join(fill(known[key], 110, initial_indent=4 * " ", subsequent_indent=8 * " ") for key in keys)


@dataclass(kw_only=True)
class ModelSettings:
    """Settings of every verb that reads a model."""

    device: str = setting("auto, cpu, cuda, cuda:1, …", "auto")
    trust: bool = setting("true to run code of your own that a run or a checkpoint names", False)


@dataclass(kw_only=True)
class PrecisionSettings(ModelSettings):
    """Settings of the verbs that compute in a precision of your choice."""

    precision: str = setting("auto, 32-true, 64-true, bf16-mixed or 16-mixed", "auto")


@dataclass
class EvaluateSettings(PrecisionSettings):
    """Settings of `txl evaluate`; null takes the value of the run's own evaluation."""

    split: str = setting("valid, test or train of the run's corpus (test)", "test")
    text: Path | None = setting("a text file of your own instead")
    attention_length: list[int] | None = setting(
        "keys a query may attend to, itself included; several to compare: [64,128,256]"
    )
    memory_length: int | None = setting("slots of the memory; as many as needed with an attention length")
    segment_length: int | None = setting("tokens of a segment")
    clamp_length: int | None = setting("distances are clamped to this")
    batch_size: int = setting("parts of the text read side by side; changes the speed, not the score (8)", 8)
    stride: int | None = setting(
        "targets scored in each window of the attention length, without memory; 1 is one prediction a "
        "forward pass"
    )
    reset_every: int | None = setting("clear the memory every so many segments")
    warm_up: int | None = setting("unscored tokens before each part; null for all that a score can depend on")
    tokens: int | None = setting("how many tokens are read, from the beginning; null for all")
    scores: Path | None = setting("a file for the score of every token, tab-separated")
    out: Path | None = setting("path of the JSON; null for evaluations/ of the run")

    def __post_init__(self) -> None:
        lengths = "segment_length", "clamp_length", "batch_size", "stride", "reset_every", "tokens"
        check_at_least(self, 1, *lengths, "attention_length")
        check_at_least(self, 0, "memory_length", "warm_up")
        if self.stride is not None and self.memory_length:
            raise ValueError(f"stride is for windows without memory, not memory_length={self.memory_length}")


@dataclass
class ReclSettings(ModelSettings):
    """Settings of `txl recl`."""

    names: list[str] | None = setting("of the models, in their order; null for the last parts of their paths")
    split: str = setting(
        "train, valid or test, of the corpus of the first model that knows one (test)", "test"
    )
    text: Path | None = setting("a text file of your own instead")
    positions: int = setting("how many tokens are scored (2000)", 2000)
    start: int = setting("the shortest context, in tokens (100)", 100)
    step: int = setting("increment from one context to the next (100)", 100)
    longest: int = setting("the longest context scored (1000)", 1000)
    r: list[float] = setting(
        "fractions of the tokens, the hardest first, to average over ([0.1,0.5,1.0])", [0.1, 0.5, 1.0]
    )
    threshold: float = setting("the relative gain below which a longer context is of no use (0.01)", 0.01)
    attention_length: list[int | None] | None = setting(
        "keys a query of our models may attend to, one number or one for each model; null for "
        "evaluation.attention_length of its run, or else the whole context"
    )
    cap: list[int | None] | None = setting(
        "the longest context a model reads, one number or one for each; null for what it was made for"
    )
    batch_size: int = setting("windows read side by side (8)", 8)
    seed: int = setting("for the choice of tokens (1)", 1)
    out: Path | None = setting("folder of the results; null for one beside the first of our models")

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size")
        check_at_least(self, 0, "seed")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold={self.threshold:g} must be between 0 and 1")
        if not self.r:
            raise ValueError("r needs at least one share, r=[0.1,0.5,1.0]")

    def for_each(self, name: str, models: int) -> list[int | None]:
        """Return one value for each model, of a setting that may be one value for all."""
        values = getattr(self, name)
        if values is None or len(values) == 1:
            return (values or [None]) * models
        if len(values) != models:
            raise ValueError(
                f"{name} has {len(values)} values for {models} models; give one, or one for each"
            )
        return values


@dataclass
class SpeedSettings(PrecisionSettings):
    """Settings of `txl speed`, beside those of `train.py`."""

    attention_length: list[int] = setting(
        "keys a prediction attends to, itself included ([800,1800,2800,3800], as in Table 9)",
        [800, 1800, 2800, 3800],
    )
    segment_length: int | None = setting(
        "tokens the recurrent side reads at a time; null for evaluation.segment_length (the paper does "
        "not state its own)"
    )
    batch_size: int | None = setting(
        "rows the recurrent side reads side by side; null for evaluation.batch_size, 10 of a SOURCE (the "
        "paper does not state its own)"
    )
    segments: int | None = setting(
        "how many it reads in a turn; null for as many as there are between two moves of its keys"
    )
    windows: int | None = setting(
        "windows the vanilla side reads side by side; null for batch_size on a GPU, and 1 on a CPU, which "
        "one long window keeps busy"
    )
    passes: int = setting(
        "forward passes of the vanilla side in a turn: windows × passes tokens are measured (1)", 1
    )
    rounds: int = setting("measured turns of each side, alternating, after one unmeasured turn (5)", 5)
    tokens: int = setting(
        "length of the text to which both times are extrapolated (5000000, enwik8's test text)", 5_000_000
    )
    out: Path | None = setting(
        "path of the JSON, beside which the figure goes; null for evaluations/ and figures/ of the run, "
        "or of outputs/"
    )

    def __post_init__(self) -> None:
        lengths = "segment_length", "batch_size", "segments", "windows", "passes", "rounds", "tokens"
        check_at_least(self, 1, *lengths)
        if not self.attention_length or min(self.attention_length) < 2:
            given = ",".join(map(str, self.attention_length))
            raise ValueError(
                f"attention_length=[{given}]: expected lengths of 2 or more, for example [800,3800]"
            )


@dataclass
class AttentionSettings(ModelSettings):
    """Settings of `txl attention`."""

    split: str = setting("train, valid or test of the run's corpus (valid)", "valid")
    text: Path | None = setting("a text file of your own instead")
    memory_length: int | None = setting(
        "slots of the memory; each token attends to itself and as many before it (as in the run)"
    )
    segment_length: int | None = setting(
        "tokens read at once, and the rows of a single head (memory_length, at most 64)"
    )
    tokens: int | None = setting(
        "average over this many tokens, from the first with a full memory; null for all"
    )
    heads: list[int] | None = setting(
        "heads to show singly, counted through all layers from 0: [8,78,158] (chosen by entropy)"
    )
    position: str = setting("where in the text to show them: the number of a token, or random", "random")
    terms: bool = setting("separate the terms of the scores: true or false (true)", True)
    batch_size: int = setting("rows read side by side; changes the speed, not the numbers (8)", 8)
    seed: int = setting("of the random position (0)", 0)
    out: Path | None = setting("folder of all files; null for evaluations/ and figures/ of the run")

    def __post_init__(self) -> None:
        check_at_least(self, 1, "tokens")
        check_at_least(self, 0, "seed")
        check_position(self.position)
        if self.out is not None:
            self.out = self.out / "attention.json"  # from now on the path of the JSON, as of other verbs


@dataclass
class GenerateSettings(PrecisionSettings):
    """Settings of `txl generate`, which by default continues the split at a random token."""

    prompt: str | None = setting("the text to continue")
    file: Path | None = setting("a file with the text, or with several, separated by lines of ---")
    position: str | None = setting("random, or a number: continue the text of a split from this token")
    split: str = setting("test, valid or train of the run's corpus, for position (test)", "test")
    context: int = setting("tokens read before the position, the paper's longest (512)", 512)
    tokens: int = setting("how many to generate (200)", 200)
    memory_length: int | None = setting(
        "slots of the memory; null for the attention length of the run's evaluation"
    )
    top_k: int | None = setting(
        "sample from the k most probable tokens, 40 as in the paper; null for all", 40
    )
    top_p: float | None = setting("sample from the fewest tokens with this total probability; null for all")
    temperature: float = setting("divides the logits (1)", 1.0)
    greedy: bool = setting("true to take the most probable token always", False)
    seed: int = setting("of sampling and of the random position (1)", 1)
    samples: int = setting("how many for each prompt (1)", 1)
    out: Path | None = setting(
        "path of the JSON, beside which the .md goes; null for evaluations/ of the run"
    )

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.prompt, self.file, self.position)) > 1:
            raise ValueError("prompt, file and position exclude each other; give one of them")
        check_at_least(self, 1, "context", "tokens", "top_k", "samples")
        check_at_least(self, 0, "memory_length")
        check_position(self.position)
        if not MIN_TEMPERATURE <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature} must be {MIN_TEMPERATURE} or more; greedy=true takes the "
                "most probable token"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**63 - 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        if self.out is not None and self.out.suffix == ".md":
            raise ValueError(f"out={self.out} is the path of the page; name the JSON, out=….json")


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
                f"{word!r} is not a setting: expected key=value, where the keys are {', '.join(hints)}"
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
        return f"a list, each item {_expected(get_args(kind)[0])}"
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
