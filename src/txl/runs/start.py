"""A run in processes of its own: started, waited for, and recorded however they end."""

import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from omegaconf import DictConfig

from txl.launch import processes
from txl.records.results import record_outcome
from txl.runs import assemble
from txl.runs.directory import RunDirectory
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
    if not processes.to_be_started(config):
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
    """Run in processes of its own; `results.json` says how it ended, also when no process could.

    Args:
        program: see `txl.launch.processes.start`.
        output: the file the processes print to, whose last line then says why one failed; `None` for where
            this process prints.
        poll: see `txl.launch.processes.run_together`.

    Raises:
        ValueError: see `RunDirectory.inspect`.
        ProcessError, SystemExit: see `txl.launch.processes.run_together`.
    """
    printed = output.tell() if output else 0
    try:
        run.inspect()
        run.write()
        processes.start(config, run.directory, run.results["overrides"], program, output, poll)
    except SystemExit as end:
        name = signal.Signals(int(end.code or 0) - 128).name
        record_outcome(run.directory, "interrupted", f"stopped by {name}")
        raise
    except processes.ProcessError as error:
        last = last_line(Path(output.name), printed) if output and not error.killed else None
        # When one process is killed, the others fail because of it, and record that.
        record_outcome(run.directory, "failed", last or str(error), replace=error.killed)
        raise
    finally:
        run.release()


def last_line(path: Path, since: int) -> str | None:
    """Return the last line of a file that is not empty, of what was written after `since` bytes."""
    lines = path.read_bytes()[since:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
