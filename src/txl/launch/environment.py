"""Which process of a run this is, and how many there are: torchrun and SLURM say it, or our own launcher."""

import os
from collections.abc import Sequence

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning_fabric.plugins import environments

from txl.launch.processes import LIFELINE
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, TrainerSettings


def environment() -> environments.ClusterEnvironment:
    """Return what started the processes, for Lightning: torchrun, SLURM or this program."""
    if torch.distributed.is_torchelastic_launched():
        return environments.TorchElasticEnvironment()
    try:
        if LIFELINE not in os.environ and not in_sweep() and environments.SLURMEnvironment.detect():
            return environments.SLURMEnvironment(auto_requeue=False)  # `Interruption` requeues
    except RuntimeError as error:  # SLURM settings that Lightning refuses
        raise ConfigError(f"SLURM: {error}") from error
    return environments.LightningEnvironment()


def in_sweep() -> bool:
    """Return whether this is a job of a sweep, which starts its processes itself, also under SLURM."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def started_elsewhere() -> int | None:
    """Return how many processes torchrun or SLURM started; `None` if neither did."""
    kind = environment()
    return None if isinstance(kind, environments.LightningEnvironment) else kind.world_size()


def rank() -> int:
    kind = environment()
    return kind.local_rank() if isinstance(kind, environments.LightningEnvironment) else kind.global_rank()


def devices(settings: TrainerSettings) -> int:
    """Return the number of devices of each machine: as configured, or all of them."""
    if settings.devices is not None:
        return settings.devices
    started = started_elsewhere()
    return max(1, torch.cuda.device_count() if started is None else started // settings.num_nodes)


def world_size(settings: TrainerSettings) -> int:
    return devices(settings) * settings.num_nodes


def check_processes(config: Config) -> None:
    """Raise ConfigError unless the configured processes run and can share the rows of each batch."""
    world, started = world_size(config.trainer), started_elsewhere()
    for section in ("training", "evaluation"):
        rows = getattr(config, section).batch_size
        if rows % world:
            raise ConfigError(
                f"{section}.batch_size={rows} cannot be divided among {world} processes; use a multiple of "
                f"{world}, or other trainer.devices"
            )
    chunks = config.training.batch_chunks
    if chunks > 1 and config.trainer.strategy == "fsdp":
        raise ConfigError(
            "training.batch_chunks needs the whole model in each process, and trainer.strategy=fsdp divides "
            "it; use trainer.recompute=true for less memory"
        )
    if (config.training.batch_size // world) % chunks:
        raise ConfigError(
            f"training.batch_chunks={chunks} does not divide the {config.training.batch_size // world} rows "
            "of a process; use a divisor"
        )
    if started is not None and started != world:
        raise ConfigError(
            f"{started} processes were started, but trainer.strategy={config.trainer.strategy} with "
            f"{devices(config.trainer)} devices on {config.trainer.num_nodes} machines needs {world}: start "
            "one process for each device, or set trainer.devices and trainer.num_nodes to what was started"
        )
    if started is None and config.trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={config.trainer.num_nodes} machines: start the processes on each of them "
            "with torchrun or SLURM's srun"
        )


def check_command(words: Sequence[str]) -> None:
    """Raise ValueError if a command line lets each of several processes choose its own run directory."""
    started = started_elsewhere() or 1
    problem = None
    if any(word in ("-m", "--multirun") for word in words):
        problem = ", but a sweep starts those of each job itself: call it once"
    elif not any(word.startswith("hydra.run.dir=") for word in words):
        problem = " and need one directory for their run: give hydra.run.dir=…"
    if started > 1 and problem:
        raise ValueError(f"{started} processes were started{problem}")
