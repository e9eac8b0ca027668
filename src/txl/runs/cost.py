"""Models that are not trained: their cost, and random parameters for measurements that need no others."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich import box
from rich.table import Table

from txl.model import TransformerXL, cost
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, check
from txl.training.network import check_clamp, flops_per_target, network

FLOAT32 = 4  # bytes


def describe(
    settings: DictConfig, devices: int = 1, peak: float | None = None, utilization: float = 0.4
) -> dict[str, Any]:
    """Return the parameters, memory, operations and time of a configuration.

    Args:
        settings: composed. Without `data.vocabulary`, the text is prepared to count its tokens.
        devices: divide the batch; each holds the whole model (data parallel).
        peak: operations per second of one device, for the time to train; `None` leaves the time out.
        utilization: share of the peak that is reached.

    Raises:
        ConfigError: impossible settings, or a batch that the devices do not divide.
    """
    if OmegaConf.is_missing(settings.data, "path") and not settings.data.get("vocabulary"):
        raise ConfigError("data.path is missing; give data.path=…, or data.vocabulary=N, which is enough")
    config = check_without_text(settings)
    training, evaluation = config.training, config.evaluation
    if training.batch_size % devices:
        raise ConfigError(
            f"training.batch_size={training.batch_size} cannot be divided among {devices} devices"
        )
    vocabulary = config.data.get("vocabulary") or len(component(config.data, "data")().vocabulary)
    with torch.device("meta"):
        model = network(config, vocabulary)
    rows = training.batch_size // devices
    parameters, in_layers = cost.parameter_counts(model)
    weights = FLOAT32 * parameters
    memory = {
        "parameters": weights,
        "gradients": weights,
        "optimizer": 2 * weights,  # Adam's two moments
        "layer_activations": cost.activation_bytes(
            model, rows, training.segment_length, training.memory_length
        ),
        "softmax": cost.softmax_bytes(model, rows, training.segment_length),
        "recurrence": cost.memory_bytes(model, rows, training.memory_length),
    }
    train_flops = flops_per_target(cost.training_flops_per_token, model, training, devices)
    tokens = training.batch_size * training.step * config.trainer.max_steps
    described = {
        "vocabulary": vocabulary,
        "parameters": parameters,
        "parameters_in_layers": in_layers,
        "devices": devices,
        "rows_per_device": rows,
        "memory_bytes_per_device": {**memory, "sum": sum(memory.values())},
        "training_flops_per_token": train_flops,
        "evaluation_flops_per_token": flops_per_target(cost.flops_per_token, model, evaluation, devices),
        "training_tokens": tokens,
        "training_flops": train_flops * tokens,
        "seconds": None if peak is None else train_flops * tokens / (peak * utilization * devices),
    }
    return described if peak is None else described | {"peak_flops": peak, "utilization": utilization}


def untrained(settings: DictConfig) -> tuple[TransformerXL, Config]:
    """Return an untrained model in evaluation mode, clamped as in evaluation, and its settings.

    No text is read: `data.vocabulary` is the number of tokens.

    Raises:
        ConfigError: impossible settings, or no `data.vocabulary`.
    """
    vocabulary = settings.data.get("vocabulary")
    if not vocabulary:
        raise ConfigError(
            "data.vocabulary, the number of different tokens, is missing, and no text is read to count them; "
            "give data.vocabulary=N"
        )
    config = check_without_text(settings)
    torch.manual_seed(config.seed)
    model = network(config, vocabulary).eval()
    check_clamp(config, model)
    clamp: Any = config.evaluation.clamp_length
    if clamp is not None:
        model.position.clamp_length = clamp
    return model, config


def check_without_text(settings: DictConfig) -> Config:
    """Return the settings checked, also where `data.path` is missing."""
    if OmegaConf.is_missing(settings.data, "path"):
        settings.data.path = "not read"
    return check(settings)


def as_table(name: str, described: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAVY, title=name, show_header=False, title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    for key in ("vocabulary", "parameters", "parameters_in_layers"):
        table.add_row(key.replace("_", " "), f"{described[key]:,}")
    table.add_row("rows per device × devices", f"{described['rows_per_device']} × {described['devices']}")
    for part, size in described["memory_bytes_per_device"].items():
        what = "memory of a device, float32" if part == "sum" else f"  {part}"
        table.add_row(what.replace("_", " "), f"{size / 2**30:,.2f} GiB")
    table.add_row("training, operations per token", f"{described['training_flops_per_token']:.3e}")
    table.add_row("evaluation, operations per token", f"{described['evaluation_flops_per_token']:.3e}")
    table.add_row("training, tokens", f"{described['training_tokens']:,}")
    table.add_row("training, operations", f"{described['training_flops']:.3e}")
    if described["seconds"] is not None:
        share = f"{described['utilization']:.0%} of {described['peak_flops']:.3g} operations per second"
        table.add_row(f"time to train at {share}", f"{described['seconds'] / 3600:,.1f} h")
    return table
