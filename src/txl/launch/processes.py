"""Several processes for one run: which one this is, and starting them on one machine.

torchrun and SLURM start the processes themselves. Without them the program that the user started only starts
one process a device, passes signals on, and when one of them fails ends the others: none waits for ever for
one that has gone. Each job of a sweep has processes of its own in the same way, also where there is only one,
and so has each call of a verb that measures what was trained.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning_fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning_fabric.plugins.environments.lightning import find_free_network_port

from txl.launch.lifeline import LIFELINE
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, TrainerSettings

GRACE_SECONDS = 20.0  # to save and leave: for the others when one process has failed, for a verb on a signal


def environment() -> ClusterEnvironment:
    """Return who started the processes, for Lightning: torchrun, SLURM or nobody but us."""
    if torch.distributed.is_torchelastic_launched():
        return TorchElasticEnvironment()
    try:
        if LIFELINE not in os.environ and not in_sweep() and SLURMEnvironment.detect():
            return SLURMEnvironment(auto_requeue=False)  # the interruption does it, see there
    except RuntimeError as error:  # what Lightning cannot use of SLURM's settings
        raise ConfigError(f"SLURM: {error}") from error
    return LightningEnvironment()


def in_sweep() -> bool:
    """Return whether this is a job of a sweep, whose processes are started here, one SLURM task or not."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def started_elsewhere() -> int | None:
    """Return how many processes torchrun or SLURM started; `None`: neither did."""
    kind = environment()
    return None if isinstance(kind, LightningEnvironment) else kind.world_size()


def rank() -> int:
    """Return which of the processes this is, from 0."""
    kind = environment()
    return kind.local_rank() if isinstance(kind, LightningEnvironment) else kind.global_rank()


def devices(settings: TrainerSettings) -> int:
    """Return the devices of each machine: those asked for, or all there are."""
    if settings.strategy == "single":
        return 1
    if settings.devices is not None:
        return settings.devices
    started = started_elsewhere()
    if started is not None:
        return max(1, started // settings.num_nodes)
    return max(1, torch.cuda.device_count())


def world_size(settings: TrainerSettings) -> int:
    """Return the number of processes of the run."""
    return devices(settings) * settings.num_nodes


def check_processes(config: Config) -> None:
    """Raise ConfigError unless the rows of every batch can be divided, and the right processes run."""
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
            f"trainer.num_nodes={config.trainer.num_nodes} machines need somebody to start the processes on "
            "each: use torchrun or SLURM's srun"
        )


def check_command(words: Sequence[str]) -> None:
    """Raise ValueError if several processes would each take a directory of their own.

    Args:
        words: of the command line.
    """
    started = started_elsewhere() or 1
    if started > 1 and any(word in ("-m", "--multirun") for word in words):
        raise ValueError(
            f"{started} processes were started, but a sweep starts those of each job itself: call it once"
        )
    if started > 1 and not any(word.startswith("hydra.run.dir=") for word in words):
        raise ValueError(
            f"{started} processes were started and need one directory for their run: give hydra.run.dir=…"
        )


def to_be_started(config: Config) -> bool:
    """Return whether this is the program that the user started, and the processes are still to come."""
    return world_size(config.trainer) > 1 and started_elsewhere() is None and LIFELINE not in os.environ


def start(
    config: Config,
    directory: Path,
    overrides: Sequence[str],
    program: Sequence[str] | None = None,
    output: IO | None = None,
    asked_to_stop: Callable[[], int | None] = lambda: None,
) -> None:
    """Run this program once for each device, with the same settings in the same run directory.

    Args:
        config: the settings.
        directory: of the run.
        overrides: what the user changed on the command line.
        program: the script and the options that say where its settings are; `None` for this one's.
        output: where they print to; `None` for where this one does.
        asked_to_stop: called again and again; a signal that it returns is passed on.

    Raises:
        SystemExit: a process did not end well; its exit code, or 128 and the signal that this one received.
    """
    program = program or [os.path.abspath(sys.argv[0]), *config_options(sys.argv[1:])]
    command = [sys.executable, *program, *overrides, run_in(directory)]
    world = world_size(config.trainer)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_network_port()),
        "WORLD_SIZE": str(world),
        "NODE_RANK": "0",
    }
    ranks = [shared | {"LOCAL_RANK": str(local_rank)} for local_rank in range(world)]
    received = run_together(command, ranks, output, asked_to_stop)
    if received:
        raise SystemExit(128 + received)


def run_together(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    output: IO | None = None,
    asked_to_stop: Callable[[], int | None] = lambda: None,
    leave_seconds: float = math.inf,
) -> int | None:
    """Run a command once for each environment, pass signals on, and end all when one fails or this one ends.

    Args:
        command: the program and its words. It holds its lifeline.
        environments: what each has beside this program's own.
        output: see `start`.
        asked_to_stop: see `start`.
        leave_seconds: how long they may take to leave after a signal before they are killed; by default as
            long as the step of a training and its saving take.

    Returns:
        The signal that was passed on though all ended well; `None` for none.

    Raises:
        ProcessError: one did not end well.
        SystemExit: they ended because of a signal; 128 and that signal.
    """
    reading, writing = os.pipe()
    received: list[int] = []
    running: list[subprocess.Popen] = []
    due = math.inf  # when those that were asked to leave are killed

    def pass_on(number: int, *_: object) -> None:
        nonlocal due
        due = min(due, time.monotonic() + leave_seconds)
        received.append(number)
        _signal(running, number)

    def look_around() -> None:
        number = asked_to_stop()
        if number is not None and number not in received:
            pass_on(number)
        if time.monotonic() > due:
            _signal(running, signal.SIGKILL)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        for more in environments:
            child = os.environ | more | {LIFELINE: str(reading)}
            # A session of its own: Ctrl-C reaches this program alone, which passes it on once.
            process = subprocess.Popen(
                command,
                env=child,
                pass_fds=[reading],
                start_new_session=True,
                stdout=output,
                stderr=output and subprocess.STDOUT,
            )
            running.append(process)
            if received:
                process.send_signal(received[-1])
        failed = _wait(running, look_around)
    finally:
        _signal(running, signal.SIGKILL)
        os.close(reading)
        os.close(writing)
        for number, handler in before.items():
            signal.signal(number, handler)
    # One that was still starting, without handlers of its own, ends by the signal itself.
    stopped = {code for number in received for code in (128 + number, -number)}
    if time.monotonic() > due:
        stopped.add(-signal.SIGKILL)
    if failed is None:
        return received[0] if received else None
    if running[failed].returncode in stopped:
        raise SystemExit(128 + received[0])
    raise ProcessError(failed, len(running), running[failed].returncode)


def run_in(directory: Path) -> str:
    """Return the word of a command line that names the run directory."""
    return f"hydra.run.dir={quoted(directory)}"


def quoted(value: object) -> str:
    """Return a value as Hydra reads it from a command line, whatever letters it has."""
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def config_options(words: Sequence[str]) -> list[str]:
    """Return the words of a command line that say where settings are: `--config-dir DIR` and its like."""
    names = ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp")
    found = []
    for index, word in enumerate(words):
        if word in names:
            found += words[index : index + 2]
        elif word.startswith(tuple(f"{name}=" for name in names)):
            found.append(word)
    return found


class ProcessError(RuntimeError):
    """One of the processes of a run did not end well. The others were ended.

    Args:
        number: which one.
        world: of how many.
        code: its exit code; negative for the signal that killed it.

    Attributes:
        has_ended: whether it ended by itself, so that it could say why.
    """

    def __init__(self, number: int, world: int, code: int) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL:  # so ends whom the kernel chooses when memory runs out
            how += ", perhaps for lack of memory"
        several = f"process {number} of {world} {how}; the others were ended"
        super().__init__(several if world > 1 else f"the process {how}")
        self.number, self.has_ended = number, code > 0


def _wait(running: Sequence[subprocess.Popen], look_around: Callable[[], None]) -> int | None:
    """Wait until all have ended; return which one failed first, having ended the others.

    Args:
        running: the processes.
        look_around: called again and again while waiting.
    """
    failed, deadline = None, float("inf")
    while None in [process.poll() for process in running]:
        if failed is None:
            failed = _first_failed(running)
            if failed is not None:
                deadline = time.monotonic() + GRACE_SECONDS
                if running[failed].returncode < 128:  # it failed; if it was stopped, the others were too
                    _signal(running, signal.SIGTERM)
        if time.monotonic() > deadline:
            _signal(running, signal.SIGKILL)
        look_around()
        time.sleep(0.05)
    return failed if failed is not None else _first_failed(running)


def _first_failed(running: Sequence[subprocess.Popen]) -> int | None:
    return next((i for i, process in enumerate(running) if process.returncode), None)


def _signal(running: Sequence[subprocess.Popen], number: int) -> None:
    for process in running:
        if process.poll() is None:
            process.send_signal(number)
