"""The network that the settings describe, and whether its position encoding fits them."""

import functools
from collections.abc import Callable

from txl.model import LearnedPosition, TransformerXL
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, ReadingSettings
from txl.training.hardware import resolve_attention, resolve_precision


def network(config: Config, vocabulary: int) -> TransformerXL:
    """Return the model that the settings describe, for a vocabulary of this size."""
    settings, length = config.trainer, config.training.segment_length
    key_length = length + config.training.memory_length
    position = functools.partial(component(config.position, "position"), key_length=key_length)
    model = component(config.model, "model")(vocabulary=vocabulary, position=position)
    model.recompute = settings.recompute
    precision, _ = resolve_precision(settings.precision, settings.accelerator)
    model.attention = resolve_attention(
        settings.attention, settings.accelerator, settings.compile, precision, length
    )
    return model


def check_positions(config: Config, model: TransformerXL) -> None:
    """Raise ConfigError unless the position encoding reaches far enough, and has the clamp asked for."""
    longest = {
        "training.segment_length": config.training.longest_segment,
        "evaluation.segment_length": config.evaluation.longest_segment,
    }
    if config.evaluation.attention_lengths and not config.evaluation.memory_length:
        longest["evaluation.attention_lengths"] = max(config.evaluation.attention_lengths)
    for name, length in longest.items():
        if isinstance(model.position, LearnedPosition) and length > model.position.key_length:
            raise ConfigError(
                f"{name}: segments of {length} tokens are longer than the "
                f"{model.position.key_length} positions that position=learned has from training; use a "
                "shorter segment, or another position encoding"
            )
    check_clamp(config, model)


def check_clamp(config: Config, model: TransformerXL) -> None:
    clamp = config.evaluation.clamp_length
    if clamp is not None and not hasattr(model.position, "clamp_length"):
        raise ConfigError(
            f"evaluation.clamp_length={clamp}: the position encoding has no clamp; use null, or "
            "position=relative, shaw or sinusoidal"
        )


def flops_per_target(
    flops: Callable[..., float], model: TransformerXL, reading: ReadingSettings, devices: int
) -> float:
    """Return the operations for each token that is scored: with half loss every token is read twice.

    Args:
        flops: counts the operations for each token that is read.
    """
    rows = max(1, reading.batch_size // devices)
    read = flops(model, reading.segment_length, reading.memory_length, rows)
    return read * (reading.segment_length / reading.step)
