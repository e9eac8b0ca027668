"""Lightning's trainer, with the callbacks and loggers of a run."""

import logging
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, Strategy

from txl.data import Corpus, Streams
from txl.launch import environment
from txl.model.cost import flops_per_token, training_flops_per_token
from txl.model.transformer import Layer
from txl.runs.directory import RunDirectory
from txl.settings.components import component
from txl.settings.schema import Config, TrainerSettings
from txl.training.callbacks.checkpoints import Checkpoints
from txl.training.callbacks.divergence import DivergenceGuard
from txl.training.callbacks.profiler import Trace
from txl.training.callbacks.progress import Monitor
from txl.training.hardware import device_name, resolve_precision, retain_freed_pages
from txl.training.loggers.jsonl import JsonLines
from txl.training.module import LanguageModel
from txl.training.network import flops_per_target

log = logging.getLogger(__name__)


def trainer(
    config: Config, module: LanguageModel, corpus: Corpus, streams: dict[str, Streams], run: RunDirectory
) -> pl.Trainer:
    """Return the trainer; the streams, not Lightning, determine the order of the data."""
    retain_freed_pages()
    settings = config.trainer
    precision: Any
    precision, reason = resolve_precision(settings.precision, settings.accelerator)
    world = environment.world_size(settings)
    flops = flops_per_target(training_flops_per_token, module.model, config.training, world)
    validation_flops = flops_per_target(flops_per_token, module.model, config.evaluation, world)
    run.loggers = [
        JsonLines(run.directory / "metrics.jsonl"),
        *(
            component(logger, f"logger.{name}")(directory=run.directory, config=run.results["config"])
            for name, logger in config.logger.items()
            if not run.rank  # the first process logs for all
        ),
    ]
    guard = DivergenceGuard(settings.max_loss_rise, run.checkpoints)
    monitor = Monitor(corpus.unit, settings, flops, validation_flops, guard, run.record_training)
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
