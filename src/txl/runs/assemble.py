"""Builds what `train.py` trains with, from the settings."""

import logging
import os
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, Strategy

from txl.data import Corpus
from txl.data.streams import STREAM_ORDERS, Streams, border_places
from txl.launch import environment
from txl.launch.processes import hold_lifeline
from txl.model.cost import parameter_counts
from txl.model.transformer import Layer
from txl.runs.directory import RunDirectory
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, ReadingSettings, TrainerSettings, check, check_lengths
from txl.training.callbacks.checkpoints import Checkpoints
from txl.training.callbacks.divergence import DivergenceGuard
from txl.training.callbacks.profiler import Trace
from txl.training.callbacks.progress import Monitor
from txl.training.hardware import check_device, device_name, resolve_precision, retain_freed_pages
from txl.training.loggers.jsonl import JsonLines
from txl.training.module import LanguageModel
from txl.training.network import check_positions, network

log = logging.getLogger(__name__)

# Lightning 2.6 uses an interface of torch's pytree that torch 2.13 deprecates; users cannot change that.
warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")


def run(settings: DictConfig) -> RunDirectory:
    use_absolute_paths(settings)
    hydra, rank = HydraConfig.get(), environment.rank()
    hold_lifeline()
    if rank:
        logging.getLogger().setLevel(logging.WARNING)  # the first process logs for all
    named = any(word.startswith("hydra.run.dir=") for word in hydra.overrides.hydra)
    if "SLURM_JOB_ID" in os.environ and hydra.mode == RunMode.RUN and not named:
        log.warning("SLURM may start this job again, which resumes the run only if you give hydra.run.dir=…")
    return RunDirectory(settings, hydra, rank)


def use_absolute_paths(settings: DictConfig) -> None:
    """Resolve a relative data.path against the directory that the program was started in."""
    if not OmegaConf.is_missing(settings.data, "path") and settings.data.get("path") is not None:
        settings.data.path = to_absolute_path(os.path.expanduser(str(settings.data.path)))


def config(settings: DictConfig) -> Config:
    """Return the settings as typed objects, checked against this machine.

    Raises:
        ConfigError: a mistake in the settings, or something they need that is missing.
    """
    checked = check(settings)
    environment.check_processes(checked)
    check_device(checked.trainer)
    return checked


def corpus(config: Config, run: RunDirectory) -> Corpus:
    """Seed the random numbers, prepare the corpus and check that it is long enough."""
    pl.seed_everything(config.seed, verbose=False)
    prepared = component(config.data, "data")()
    sizes = {split: len(tokens) for split, tokens in prepared.tokens.items()}
    data = {name: getattr(prepared, name) for name in ("name", "unit", "sha256")}
    run.record(data=data | {"vocabulary": len(prepared.vocabulary), "tokens": sizes})
    counts = " / ".join(f"{size:,}" for size in sizes.values())
    log.info(
        f"data: {prepared.name}, {counts} {prepared.unit}s for train / valid / test, vocabulary "
        f"{len(prepared.vocabulary):,}, sha256 {prepared.sha256[:12]}…"
    )
    check_lengths(config, sizes)
    return prepared


def module(config: Config, corpus: Corpus, run: RunDirectory) -> LanguageModel:
    model = network(config, len(corpus.vocabulary))
    check_positions(config, model)
    parameters, in_layers = parameter_counts(model)
    run.record(model={"parameters": parameters, "parameters_non_embedding": in_layers})
    extra = {key: run.results[key] for key in ("config", "data")}
    extra["vocabulary"] = {"unit": corpus.unit, "lines": corpus.vocabulary.lines()}
    optimizer, schedule = component(config.optimizer, "optimizer"), component(config.schedule, "schedule")
    try:  # report settings that the optimizer rejects before training starts
        optimizer(parameters=[torch.nn.Parameter(torch.zeros(1))])
    except ValueError as error:
        raise ConfigError(f"optimizer: {error}") from error
    schedule(step=0, total=config.trainer.max_steps)
    log.info(
        f"model: Transformer-XL, {model.n_layer} layers of width {model.d_model}, {parameters:,} parameters "
        f"({in_layers:,} in the layers)"
    )
    return LanguageModel(model, config.training, config.evaluation, optimizer, schedule, extra)


def streams(config: Config, corpus: Corpus) -> dict[str, Streams]:
    """Return the streams of each split, and log what they are."""
    settings = {"train": config.training, "valid": config.evaluation, "test": config.evaluation}
    made = {split: streams_of(split, reading, config, corpus) for split, reading in settings.items()}
    log.info("reading: %s", made["train"].describe())
    if config.evaluation.streams != config.training.streams:
        log.info("evaluation: %s", made["valid"].describe())
    return made


def streams_of(
    split: str, reading: ReadingSettings, config: Config, corpus: Corpus, tokens: int | None = None
) -> Streams:
    """Return the streams of one split, or of its first `tokens` tokens."""
    section, of_training = reading.section, ("random_start", "variable_length")
    options: dict[str, Any] = {key: True for key in of_training if getattr(reading, key, False)}
    if reading.streams in ("documents", "sentences"):
        try:
            options["border"] = corpus.vocabulary.encode(reading.border.encode()).tolist()
        except ValueError as error:
            raise ConfigError(
                f"{section}.border={reading.border!r}: {error}; give the text between documents"
            ) from error
        if split == "train" and not len(border_places(corpus.tokens[split], options["border"])):
            raise ConfigError(
                f"{section}.border={reading.border!r} is nowhere in the training text, so "
                f"{section}.streams={reading.streams} finds no boundaries; give the text between documents"
            )
    if split != "test" and reading.streams == "sentences" and reading.memory_length:
        log.warning(
            f"{section}.streams=sentences with {section}.memory_length={reading.memory_length}: the memory "
            "carries over from one sentence to the next, which is meaningless if they were shuffled; use "
            "memory_length=0, or streams=documents to reset it"
        )
    return STREAM_ORDERS[reading.streams](
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
    """Return the trainer; the streams, not Lightning, determine the order of the data."""
    retain_freed_pages()
    settings = config.trainer
    precision: Any
    precision, reason = resolve_precision(settings.precision, settings.accelerator)
    place = {"directory": run.directory, "config": run.results["config"]}
    named = {} if run.rank else config.logger  # the first process logs for all
    loggers = [component(logger, f"logger.{name}")(**place) for name, logger in named.items()]
    run.loggers = [JsonLines(**place), *loggers]
    guard = DivergenceGuard(settings.max_loss_rise, run.checkpoints)
    monitor = Monitor(config, module.model, corpus.unit, guard, run.record_training)
    trace = [Trace(run.directory / "trace.json", settings.profile_steps)] if settings.profile_steps else []
    checkpoints = Checkpoints(run.checkpoints, settings, streams["train"], config.seed)
    run.interruption.save = checkpoints.save
    built = pl.Trainer(
        accelerator=settings.accelerator,
        strategy=_strategy(settings),
        devices=environment.devices(settings),
        num_nodes=settings.num_nodes,
        plugins=[checkpoints.files, environment.environment()],
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
        profiler=monitor.wait,
        use_distributed_sampler=False,
        logger=run.loggers,
        callbacks=[monitor, *trace, checkpoints, run.interruption],
        default_root_dir=run.directory,
        enable_progress_bar=False,  # the monitor shows one
        enable_model_summary=False,
        enable_checkpointing=False,  # our callback saves exact checkpoints
    )
    # Lightning's signal handlers would run before ours, and would communicate with the other processes in the
    # middle of other collective operations.
    connector: Any = built._signal_connector
    connector.register_signal_handlers = lambda: None
    if settings.compile:
        module.model.compile(dynamic=False)
    log.info("device: %s, precision %s (%s)", device_name(built.strategy.root_device), precision, reason)
    return built


def _strategy(settings: TrainerSettings) -> str | Strategy:
    if environment.world_size(settings) == 1:
        return "auto"
    if settings.strategy == "ddp":
        # Every parameter has a gradient in every step (see `TiedEmbedding`), so DDP need not search for
        # unused ones.
        return DDPStrategy(gradient_as_bucket_view=True)
    return FSDPStrategy(auto_wrap_policy={Layer}, state_dict_type="full")
