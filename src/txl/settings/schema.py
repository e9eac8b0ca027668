"""The settings of a run: their types and their checks.

The files in `conf/` hold the values and describe every key. Sections with fixed keys are dataclasses; groups
whose keys depend on their `_target_` are checked by `components`. A mistake raises `ConfigError`, one line,
before any work begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, get_type_hints

from omegaconf import DictConfig

from txl.data.streams import STREAM_ORDERS, border_text, longest_segment
from txl.settings.components import SUPPLIED, check_given, component
from txl.settings.errors import ConfigError, typed

POSITIVE = "positive", lambda value: value > 0
NOT_NEGATIVE = "0 or more", lambda value: value >= 0


def one_of(*names: str) -> tuple[str, Callable[[str], bool]]:
    return f"one of {', '.join(names)}", names.__contains__


class Section:
    """Settings whose annotations hold checks: the expected value in words, and a function that tests it."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        for key, hint in get_type_hints(type(self), include_extras=True).items():
            for expected, is_valid in getattr(hint, "__metadata__", ()):
                value = getattr(self, key)
                if value is not None and not is_valid(value):
                    raise ConfigError(f"{self.section}.{key}={value} must be {expected}")


@dataclass
class ReadingSettings(Section):
    """How a text is read.

    Attributes:
        attention_length: the authors' `same_length` is `attention_length` = `memory_length`.
        loss: with "half", at least L/2 tokens of the segment precede each target.
        streams: a key of `txl.data.streams.STREAM_ORDERS`.
        border: a backslash and an n stand for a newline, for the command line.
    """

    batch_size: Annotated[int, POSITIVE]
    segment_length: Annotated[int, POSITIVE]
    memory_length: Annotated[int, NOT_NEGATIVE]
    attention_length: Annotated[int | None, POSITIVE]
    loss: Annotated[str, one_of("full", "half")]
    streams: Annotated[str, one_of(*STREAM_ORDERS)]
    border: str

    def __post_init__(self) -> None:
        super().__post_init__()
        section = self.section
        self.border = border_text(self.border)
        if self.loss == "half" and self.segment_length % 2:
            raise ConfigError(f"{section}: half loss needs an even segment_length, not {self.segment_length}")
        if self.streams == "shuffled" and self.memory_length:
            raise ConfigError(
                f"{section}.streams=shuffled has nothing to remember from segment to segment, but "
                f"{section}.memory_length={self.memory_length}; use memory_length=0, or streams=ordered"
            )

    @property
    def longest_segment(self) -> int:
        return self.segment_length

    @property
    def remembered(self) -> int | None:
        """The tokens of a segment that the memory caches, those before the next segment; None for all."""
        return self.step if self.step < self.segment_length else None

    @property
    def longest_attention(self) -> int:
        """The largest number of keys that a query can attend to."""
        reach = self.memory_length + self.segment_length
        return min(reach, self.attention_length or reach)

    @property
    def step(self) -> int:
        """The distance between the beginnings of two segments."""
        return self.segment_length // 2 if self.loss == "half" else self.segment_length


@dataclass
class TrainingSettings(ReadingSettings):
    """How the training text is read. `variable_length` is the authors' `varlen`."""

    section = "training"

    random_start: bool
    variable_length: bool
    batch_chunks: Annotated[int, POSITIVE]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_start and self.streams != "ordered":
            raise ConfigError(
                f"training.random_start=true needs training.streams=ordered, not {self.streams}"
            )
        if self.variable_length and (self.streams not in ("ordered", "sentences") or self.loss != "full"):
            raise ConfigError(
                "training.variable_length=true needs training.streams=ordered or sentences and "
                f"training.loss=full, not {self.streams} and {self.loss}"
            )

    @property
    def longest_segment(self) -> int:
        return longest_segment(self.segment_length) if self.variable_length else self.segment_length


@dataclass
class EvaluationSettings(ReadingSettings):
    """How validation and test text is read."""

    section = "evaluation"

    clamp_length: Annotated[int | None, POSITIVE]
    stride: Annotated[int | None, POSITIVE]
    attention_lengths: list[int]
    attention_stride: Annotated[int, POSITIVE]
    attention_tokens: Annotated[int | None, POSITIVE]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and (self.loss == "half" or self.stride > self.segment_length):
            raise ConfigError(
                f"evaluation.stride={self.stride} needs evaluation.loss=full, not {self.loss}, and an "
                f"evaluation.segment_length of at least as many, not {self.segment_length}"
            )
        for length in self.attention_lengths:
            if length < self.attention_stride:
                raise ConfigError(
                    f"evaluation.attention_lengths={self.attention_lengths}: {length} is shorter than "
                    f"evaluation.attention_stride={self.attention_stride}: use longer ones, or another"
                )

    @property
    def step(self) -> int:
        return self.stride or super().step

    def at(self, attention_length: int) -> EvaluationSettings:
        """Return settings for an attention length A: from A - stride + 1 to A tokens precede each target.

        With recurrence, segments have the length of a stride and the memory holds the rest. Without, a window
        of A tokens is read anew for each stride, as the authors evaluate models without memory (`ext_len`).
        """
        stride = self.attention_stride
        recurrent = self.memory_length > 0
        return replace(
            self,
            segment_length=stride if recurrent else attention_length,
            memory_length=attention_length - stride if recurrent else 0,
            attention_length=None,
            loss="full",
            stride=stride,
        )


@dataclass
class TrainerSettings(Section):
    """Hardware, length and intervals of the training.

    Attributes:
        precision: "auto", or one of Lightning's names.
        attention: "auto", or a key of `txl.model.transformer.ATTENTION_BACKENDS`.
    """

    section = "trainer"

    accelerator: Annotated[str, one_of("auto", "cpu", "gpu")]
    strategy: Annotated[str, one_of("single", "ddp", "fsdp")]
    devices: Annotated[int | None, POSITIVE]
    num_nodes: Annotated[int, POSITIVE]
    precision: Annotated[str, one_of("auto", "32-true", "bf16-mixed", "16-mixed")]
    recompute: bool
    attention: Annotated[str, one_of("auto", "plain", "blocked", "flex")]
    compile: bool
    max_steps: Annotated[int, POSITIVE]
    gradient_clip: Annotated[float | None, POSITIVE]
    validate_every: Annotated[int, POSITIVE]
    log_every: Annotated[int, POSITIVE]
    max_loss_rise: Annotated[float | None, POSITIVE]
    peak_flops: Annotated[float | None, POSITIVE]
    train_batches: Annotated[int | None, POSITIVE]
    evaluation_batches: Annotated[int | None, POSITIVE]
    profile_steps: Annotated[int, NOT_NEGATIVE]
    checkpoint_every: Annotated[int, POSITIVE]
    keep_every: Annotated[int | None, POSITIVE]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "single" and (self.devices != 1 or self.num_nodes != 1):
            raise ConfigError(
                f"trainer.strategy=single is one process, not trainer.devices={self.devices} on "
                f"trainer.num_nodes={self.num_nodes}; use trainer=ddp, ddp_cpu or fsdp for several"
            )


@dataclass
class SampleSettings(Section):
    """The text that the trained model generates at the end."""

    section = "sample"

    prompt_tokens: Annotated[int, POSITIVE]
    tokens: Annotated[int, POSITIVE]
    temperature: Annotated[float, NOT_NEGATIVE]
    top_k: Annotated[int | None, POSITIVE]


@dataclass
class Config:
    """All settings of a run. `Any` marks the groups whose keys depend on their `_target_`."""

    name: str
    seed: int
    model: Any
    position: Any
    data: Any
    optimizer: Any
    schedule: Any
    training: TrainingSettings
    evaluation: EvaluationSettings
    trainer: TrainerSettings
    sample: SampleSettings
    logger: dict[str, Any]

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed={self.seed} must be from 0 to {2**32 - 1}")


def check(settings: DictConfig) -> Config:
    """Return the composed settings as typed objects.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of range or sizes that do not fit.
    """
    check_given(settings)
    config = typed(Config, settings)
    for group in SUPPLIED.keys() - {"logger"}:
        component(getattr(config, group), group)
    for name, logger in config.logger.items():
        component(logger, f"logger.{name}")
    model = config.model
    if {"n_head", "d_head", "d_model"} <= set(model):
        heads = model["n_head"] * model["d_head"]
        if heads != model["d_model"]:
            raise ConfigError(
                f"model.n_head={model['n_head']} × model.d_head={model['d_head']} = {heads} does not fit "
                f"model.d_model={model['d_model']}; make the product equal to d_model"
            )
    if config.trainer.attention == "flex" and model.get("attention_dropout"):
        raise ConfigError(
            "trainer.attention=flex cannot drop attention probabilities, and model.attention_dropout="
            f"{model['attention_dropout']}; use model.attention_dropout=0, or trainer.attention=plain or "
            "blocked"
        )
    return config


def check_lengths(config: Config, tokens: dict[str, int]) -> None:
    """Raise ConfigError unless each split has enough tokens for the configured lengths."""
    training = config.training
    rows = 1 if training.streams == "shuffled" else training.batch_size
    per_row = (tokens["train"] - 1) // rows
    for name, length in {"segment": training.segment_length, "memory": training.memory_length}.items():
        if length > per_row:
            raise ConfigError(
                f"training.{name}_length={length} is longer than the data: {tokens['train']:,} training "
                f"tokens in {rows} rows are {per_row:,} a row; use a smaller length or training.batch_size, "
                "or more text"
            )
    for split in ("valid", "test"):
        if tokens[split] < 2:
            raise ConfigError(
                f"the {split} split has {tokens[split]} tokens, evaluation needs at least 2: use more text"
            )
        if config.evaluation.memory_length > tokens[split]:
            raise ConfigError(
                f"evaluation.memory_length={config.evaluation.memory_length} is longer than the data: the "
                f"{split} split has {tokens[split]:,} tokens; use a smaller length or more text"
            )
    if config.evaluation.segment_length > max(tokens.values()):
        raise ConfigError(
            f"evaluation.segment_length={config.evaluation.segment_length} is longer than the data: no split "
            f"has more than {max(tokens.values()):,} tokens; use a smaller length or more text"
        )
