"""Starts the processes of a run, waits for them and records how they ended."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import IO

from lightning_fabric.plugins.environments.lightning import find_free_network_port
from omegaconf import DictConfig

from txl.launch import processes
from txl.launch.environment import started_elsewhere, world_size
from txl.records.results import record_outcome
from txl.runs import assemble
from txl.runs.directory import RunDirectory
from txl.settings.overrides import config_options, quoted
from txl.settings.schema import Config

log = logging.getLogger(__name__)


def started_processes(settings: DictConfig) -> bool:
    """Run the training in several processes if the settings ask for them; return whether it did.

    Raises:
        ConfigError: impossible settings, or rows that the processes cannot share.
        SystemExit: the run failed or was stopped.
    """
    if settings.trainer.get("strategy") == "single":
        return False
    config = assemble.config(settings)
    if world_size(config.trainer) == 1 or started_elsewhere() is not None or processes.LIFELINE in os.environ:
        return False
    run = assemble.run(settings)
    try:
        start_run(run, config)
    except processes.ProcessError as error:
        log.error("failed: %s; see %s", error, run.directory / "train.log")
        raise SystemExit(1) from None
    return True


def start_run(
    run: RunDirectory,
    config: Config,
    program: Sequence[str] | None = None,
    output: IO | None = None,
    poll: processes.Poll = lambda: None,
) -> None:
    """Run one process for each device; `results.json` says how it ended, even if no process could record it.

    Args:
        program: the script and the options that say where its settings are; `None` for this one's.
        output, poll: see `txl.launch.processes.run_together`.

    Raises:
        ValueError: see `RunDirectory.inspect`.
        ProcessError, SystemExit: see `run_together`; SystemExit also if all ended well after a signal.
    """
    program = program or [os.path.abspath(sys.argv[0]), *config_options(sys.argv[1:])]
    command = [sys.executable, *program, *run.results["overrides"], f"hydra.run.dir={quoted(run.directory)}"]
    world = world_size(config.trainer)
    port = str(find_free_network_port())
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "NODE_RANK": "0"}
    ranks = [shared | {"LOCAL_RANK": str(local_rank)} for local_rank in range(world)]
    try:
        run.inspect()
        run.write()
        if received := processes.run_together(command, ranks, output, poll):
            raise SystemExit(128 + received)
    except (processes.ProcessError, SystemExit) as error:
        # When one process is killed, the others fail because of it, and record that.
        record_outcome(run.directory, *ending(error), replace=getattr(error, "killed", False))
        raise
    finally:
        run.held.close()


def ending(error: processes.ProcessError | SystemExit) -> tuple[str, str]:
    """Return the status of a run whose processes ended with an error, and the reason."""
    if isinstance(error, SystemExit):
        return "interrupted", f"stopped by {signal.Signals(int(error.code or 0) - 128).name}"
    return "failed", str(error)
