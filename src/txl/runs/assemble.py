"""Builds what `train.py` trains with, from the settings."""

import logging
import os
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from txl.data import POLICIES, Corpus, Streams, border_places
from txl.launch import environment
from txl.launch.processes import hold_lifeline
from txl.model.cost import parameter_counts
from txl.runs.directory import RunDirectory
from txl.runs.trainer import trainer as trainer  # `train.py` takes all of its parts from here
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, ReadingSettings, check, check_lengths
from txl.training.hardware import check_device
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
    directory, overrides = Path(hydra.runtime.output_dir), list(hydra.overrides.task)
    named = any(word.startswith("hydra.run.dir=") for word in hydra.overrides.hydra)
    if "SLURM_JOB_ID" in os.environ and hydra.mode == RunMode.RUN and not named:
        log.warning("SLURM may start this job again, which resumes the run only if you give hydra.run.dir=…")
    return RunDirectory(directory, settings, overrides, Path(hydra.runtime.cwd), rank)


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
    section, options = reading.section, reading.stream_options
    if reading.has_border:
        try:
            options["border"] = corpus.vocabulary.encode(reading.border.encode()).tolist()
        except ValueError as error:
            raise ConfigError(
                f"{section}.border={reading.border!r}: {error}; name a text that separates"
            ) from error
        if split == "train" and not len(border_places(corpus.tokens[split], options["border"])):
            raise ConfigError(
                f"{section}.border={reading.border!r} is nowhere in the training text, so "
                f"{section}.streams={reading.streams} has nothing to go by; name a text that separates"
            )
    if split != "test" and reading.streams == "sentences" and reading.memory_length:
        log.warning(
            f"{section}.streams=sentences with {section}.memory_length={reading.memory_length}: the memory "
            "carries over from one sentence to the next, which is meaningless if they were shuffled; use "
            "memory_length=0, or streams=documents to reset it"
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
