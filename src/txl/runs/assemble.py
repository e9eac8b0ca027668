"""From settings to objects: what `train.py` puts together before it trains."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, Strategy

from txl.data import POLICIES, Corpus, Streams, border_places
from txl.launch import environment
from txl.launch.lifeline import hold_lifeline
from txl.model import LearnedPosition, TransformerXL
from txl.model.cost import flops_per_token, parameter_counts, training_flops_per_token
from txl.model.transformer import Layer
from txl.runs.directory import RunDirectory
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, EvaluationSettings, ReadingSettings, check, check_lengths
from txl.settings.schema import TrainerSettings as TrainerSettings
from txl.training.callbacks.checkpoints import Checkpoints, WholeFiles
from txl.training.callbacks.divergence import DivergenceGuard
from txl.training.callbacks.profiler import DataWait, Trace
from txl.training.callbacks.progress import Monitor
from txl.training.hardware import (
    check_device,
    device_name,
    resolve_attention,
    resolve_precision,
    retain_freed_pages,
)
from txl.training.loggers.jsonl import JsonLines
from txl.training.module import LanguageModel

log = logging.getLogger(__name__)

# Lightning 2.6 asks torch's pytree in a way that torch 2.13 calls deprecated; no user can change that.
warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")


def run(settings: DictConfig) -> RunDirectory:
    """Return the run directory that Hydra chose."""
    use_absolute_paths(settings)
    hydra, rank = HydraConfig.get(), environment.rank()
    hold_lifeline()
    if rank:
        logging.getLogger().setLevel(logging.WARNING)  # the first process says it for all
    directory, overrides = Path(hydra.runtime.output_dir), list(hydra.overrides.task)
    named = any(word.startswith("hydra.run.dir=") for word in hydra.overrides.hydra)
    if "SLURM_JOB_ID" in os.environ and hydra.mode == RunMode.RUN and not named:
        log.warning("SLURM may start this job again, which goes on only if you give hydra.run.dir=…")
    return RunDirectory(directory, settings, overrides, Path(hydra.runtime.cwd), rank)


def use_absolute_paths(settings: DictConfig) -> None:
    """Let a relative path of the data begin where the user stood."""
    if not OmegaConf.is_missing(settings.data, "path") and settings.data.get("path") is not None:
        settings.data.path = to_absolute_path(os.path.expanduser(str(settings.data.path)))


def config(settings: DictConfig) -> Config:
    """Return the settings as typed objects.

    Raises:
        ConfigError: a mistake in the settings, or processes that do not fit them.
    """
    checked = check(settings)
    environment.check_processes(checked)
    check_device(checked.trainer)
    if checked.trainer.compile:
        check_compiler()
    return checked


def corpus(config: Config, run: RunDirectory) -> Corpus:
    """Return the corpus, long enough for the lengths asked for, and seed the random numbers."""
    pl.seed_everything(config.seed, verbose=False)
    prepared = component(config.data, "data")()
    run.record_data(prepared)
    sizes = " / ".join(f"{len(tokens):,}" for tokens in prepared.tokens.values())
    log.info(
        "data: %s, %s %ss for train / valid / test, vocabulary %s, sha256 %s…",
        prepared.name,
        sizes,
        prepared.unit,
        f"{len(prepared.vocabulary):,}",
        prepared.sha256[:12],
    )
    check_lengths(config, {split: len(tokens) for split, tokens in prepared.tokens.items()})
    return prepared


def network(config: Config, vocabulary: int) -> TransformerXL:
    """Return the model that the settings describe, for so many different tokens."""
    key_length = config.training.segment_length + config.training.memory_length
    position = functools.partial(component(config.position, "position"), key_length=key_length)
    model = component(config.model, "model")(vocabulary=vocabulary, position=position)
    settings = config.trainer
    model.recompute = settings.recompute
    precision, _ = resolve_precision(settings.precision, settings.accelerator)
    model.attention = resolve_attention(
        settings.attention,
        settings.accelerator,
        settings.compile,
        precision,
        config.training.segment_length,
    )
    return model


def module(config: Config, corpus: Corpus, run: RunDirectory) -> LanguageModel:
    """Return the model for this corpus, ready to train."""
    model = network(config, len(corpus.vocabulary))
    longest = {
        f"{name}.segment_length": getattr(config, name).longest_segment for name in ("training", "evaluation")
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
    if config.evaluation.clamp_length is not None and not hasattr(model.position, "clamp_length"):
        raise ConfigError(
            f"evaluation.clamp_length={config.evaluation.clamp_length}: the position encoding has no clamp; "
            "use null, or position=relative, shaw or sinusoidal"
        )
    parameters, in_layers = parameter_counts(model)
    run.record(model={"parameters": parameters, "parameters_non_embedding": in_layers})
    extra = {
        "config": run.results["config"],
        "data": run.results["data"],
        "vocabulary": {"unit": corpus.unit, "lines": corpus.vocabulary.lines()},
    }
    optimizer, schedule = component(config.optimizer, "optimizer"), component(config.schedule, "schedule")
    try:  # settings that it refuses: say so now
        optimizer(parameters=[torch.nn.Parameter(torch.zeros(1))])
    except ValueError as error:
        raise ConfigError(f"optimizer: {error}") from error
    schedule(step=0, total=config.trainer.max_steps)
    log.info(
        "model: Transformer-XL, %d layers of width %d, %s parameters (%s in the layers)",
        model.n_layer,
        model.d_model,
        f"{parameters:,}",
        f"{in_layers:,}",
    )
    return LanguageModel(model, config.training, config.evaluation, optimizer, schedule, extra)


def streams(config: Config, corpus: Corpus) -> dict[str, Streams]:
    """Return the streams of each split, and say which they are."""
    settings = {"train": config.training, "valid": config.evaluation, "test": config.evaluation}
    made = {split: _streams(split, reading, config, corpus) for split, reading in settings.items()}
    log.info("reading: %s", made["train"].describe())
    if config.evaluation.streams != config.training.streams:
        log.info("evaluation: %s", made["valid"].describe())
    return made


def attention_streams(config: Config, corpus: Corpus, reading: EvaluationSettings) -> Streams:
    """Return the streams that read the validation text at one of the attention lengths."""
    targets = config.evaluation.attention_tokens
    return _streams("valid", reading, config, corpus, None if targets is None else targets + 1)


def _streams(
    split: str, reading: ReadingSettings, config: Config, corpus: Corpus, tokens: int | None = None
) -> Streams:
    """Return the streams of one split, or of so many of its first tokens."""
    section, options = reading.section, reading.stream_options
    if reading.has_border:
        try:
            border = corpus.vocabulary.encode(reading.border.encode())
        except ValueError as error:
            raise ConfigError(
                f"{section}.border={reading.border!r}: {error}; name a text that separates"
            ) from error
        options["border"] = border.tolist()
        if split == "train" and not len(border_places(corpus.tokens[split], options["border"])):
            raise ConfigError(
                f"{section}.border={reading.border!r} is nowhere in the training text, so "
                f"{section}.streams={reading.streams} has nothing to go by; name a text that separates"
            )
    if split != "test" and reading.streams == "sentences" and reading.memory_length:
        log.warning(
            "%s.streams=sentences with %s.memory_length=%d: the memory goes on from one sentence to the "
            "next, which means little if they were shuffled; use memory_length=0, or streams=documents to "
            "forget",
            section,
            section,
            reading.memory_length,
        )
    return POLICIES[reading.streams](
        corpus.tokens[split][:tokens],
        reading.batch_size,
        reading.segment_length,
        step=reading.step,
        seed=config.seed,
        rank=environment.rank(),
        world_size=environment.world_size(config.trainer),
        **options,
    )


def trainer(
    config: Config, module: LanguageModel, corpus: Corpus, streams: dict[str, Streams], run: RunDirectory
) -> pl.Trainer:
    """Return Lightning's trainer with our callbacks. It never touches the order of the data."""
    retain_freed_pages()
    settings = config.trainer
    precision, reason = resolve_precision(settings.precision, settings.accelerator)
    world = environment.world_size(settings)
    flops = per_target(training_flops_per_token, module.model, config.training, world)
    validation_flops = per_target(flops_per_token, module.model, config.evaluation, world)
    run.loggers = [
        JsonLines(run.directory / "metrics.jsonl"),
        *(
            component(logger, f"logger.{name}")(directory=run.directory, config=run.results["config"])
            for name, logger in config.logger.items()
            if not run.rank  # the first process logs for all
        ),
    ]
    wait = DataWait()
    guard = DivergenceGuard(settings.max_loss_rise, run.checkpoints)
    monitor = Monitor(
        corpus.unit,
        settings.log_every,
        flops,
        validation_flops,
        settings.peak_flops,
        guard,
        wait,
        run.record_training,
    )
    trace = [Trace(run.directory / "trace.json", settings.profile_steps)] if settings.profile_steps else []
    files = WholeFiles()
    checkpoints = Checkpoints(
        run.checkpoints,
        settings.checkpoint_every,
        settings.validate_every,
        settings.keep_every,
        streams["train"],
        config.seed,
        files,
    )
    run.interruption.save = checkpoints.save
    built = pl.Trainer(
        accelerator=settings.accelerator,
        strategy=strategy(settings),
        devices=environment.devices(settings),
        num_nodes=settings.num_nodes,
        plugins=[files, environment.environment()],
        precision=precision,
        max_steps=settings.max_steps,
        max_epochs=-1,
        gradient_clip_val=settings.gradient_clip,
        val_check_interval=settings.validate_every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=0,  # the monitor logs
        limit_train_batches=settings.train_batches,
        limit_val_batches=settings.evaluation_batches,
        limit_test_batches=settings.evaluation_batches,
        profiler=wait,
        use_distributed_sampler=False,
        logger=run.loggers,
        callbacks=[
            monitor,
            *trace,
            checkpoints,
            run.interruption,
        ],
        default_root_dir=run.directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,  # the callback above does it
    )
    # Lightning would put its own signal handlers before ours, and theirs talk to the other processes at any
    # moment, in the middle of what these are saying to each other.
    built._signal_connector.register_signal_handlers = lambda: None
    if settings.compile:
        module.model.compile(dynamic=False)
    log.info("device: %s, precision %s (%s)", device_name(built.strategy.root_device), precision, reason)
    return built


def per_target(
    flops: Callable[..., float], model: TransformerXL, reading: ReadingSettings, devices: int
) -> float:
    """Return the operations for each token that is scored: with half loss every token is read twice.

    Args:
        flops: counts them for each token that is read.
        model: the model.
        reading: how the text is read.
        devices: that share the rows.
    """
    rows = max(1, reading.batch_size // devices)
    read = flops(model, reading.segment_length, reading.memory_length, rows)
    return read * (reading.segment_length / reading.step)


def strategy(settings: TrainerSettings) -> str | Strategy:
    """Return how Lightning divides the work."""
    if environment.world_size(settings) == 1:
        return "auto"
    if settings.strategy == "ddp":
        # Every parameter has a gradient in every step (see `TiedEmbedding`), so none need be searched for.
        return DDPStrategy(gradient_as_bucket_view=True)
    return FSDPStrategy(auto_wrap_policy={Layer}, state_dict_type="full")


def check_compiler() -> None:
    """Raise ConfigError unless there is a C++ compiler, which torch.compile calls."""
    names = [os.environ.get("CXX"), "g++", "clang++"]
    if not any(name and shutil.which(name) for name in names):
        raise ConfigError(
            "trainer.compile=true needs a C++ compiler, and there is none: install g++, name one in the "
            "variable CXX, or use trainer.compile=false"
        )
