"""One job of a sweep: a run in processes of its own, which says in its `results.json` how it ended.

This is what a launcher calls: Hydra's own in the process of the sweep, joblib's in a worker beside it,
submitit's on some machine of a cluster. A job that fails is written down and never raised, so that no
launcher ends the others because of it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from txl.launch import processes
from txl.records.files import LockedError, write_atomically
from txl.records.results import initial_results, read_results, read_status, record_failure
from txl.runs import assemble
from txl.runs.directory import RunDirectory
from txl.training.hardware import failure_reason

STOP = ".stop"  # in the sweep's directory: the number of the signal that asks all jobs to save and end
SWEEP = "sweep.json"
LOOK_SECONDS = 1.0  # between looks at that file
REQUEUE_SECONDS = 300.0  # how long SLURM may take to end a job that it queues again


class Stop:
    """What a signal does to a sweep: the jobs that run save and end, wherever they are, and no more begin.

    A second signal ends the sweep at once. As a context it puts the handlers in place and takes them away.

    Args:
        directory: of the sweep.

    Attributes:
        received: the signal that came.
    """

    here: Stop | None = None  # that of this process, which is then the sweep's own and no worker

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.received: int | None = None

    def __enter__(self) -> Stop:
        (self.directory / STOP).unlink(missing_ok=True)
        self._before = {
            number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        Stop.here = self
        return self

    def __exit__(self, *_: object) -> None:
        Stop.here = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        (self.directory / STOP).unlink(missing_ok=True)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise SystemExit(128 + self.received)
        self.ask(number)

    def ask(self, number: int) -> None:
        """Ask all jobs to stop because of a signal."""
        self.received = self.received or number
        write_atomically(self.directory / STOP, str(self.received))


def asked_to_stop(sweep: Path) -> int | None:
    """Return the signal that a sweep's jobs were asked to stop with.

    A sweep that was killed asks for nothing, but its lock is free: a worker on the same machine then stops.
    """
    try:
        return int((sweep / STOP).read_text("ascii"))
    except (OSError, ValueError):
        return signal.SIGTERM if _abandoned(sweep) else None


def _abandoned(sweep: Path) -> bool:
    """Return whether this is a worker of a sweep that is no more.

    SLURM's jobs may outlive the sweep that waits for them.
    """
    if Stop.here or "SLURM_JOB_ID" in os.environ or not (sweep / SWEEP).exists():
        return False
    descriptor = os.open(sweep, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is held, or this file system has no locks
        return False
    finally:
        os.close(descriptor)
    return True


def now_and_then(look: Callable[[], int | None], seconds: float = LOOK_SECONDS) -> Callable[[], int | None]:
    """Return a function that calls another at most so often."""
    due = 0.0

    def looked() -> int | None:
        nonlocal due
        if time.monotonic() < due:
            return None
        due = time.monotonic() + seconds
        return look()

    return looked


def run_job(settings: DictConfig, script: str) -> float | None:
    """RunDirectory one job in processes of its own.

    Args:
        settings: composed.
        script: the program.

    Returns:
        The loss on the validation split in nats, for sweepers that look for a low one; `None` for none.

    Raises:
        ValueError, SystemExit: it failed or was stopped, under another sweeper than ours: those look for
            nothing in the run directory.
    """
    hydra = HydraConfig.get()
    sweep, directory = Path(hydra.sweep.dir).absolute(), Path(hydra.runtime.output_dir)
    ours = (sweep / SWEEP).exists()
    if ours and asked_to_stop(sweep):
        return None
    if read_status(directory) != "completed":  # SLURM may start a job again that was done
        stop = now_and_then(lambda: asked_to_stop(sweep)) if ours else lambda: None
        try:
            _run(settings, hydra, directory, [script, *options(hydra)], stop)
        except SystemExit as end:
            number = int(end.code or 0) - 128
            if "SLURM_JOB_ID" in os.environ and number == signal.SIGUSR1:
                time.sleep(REQUEUE_SECONDS)  # until SLURM ends it: submitit would take it for done
            elif Stop.here:
                Stop.here.ask(number)
            elif not ours:
                raise
    if read_status(directory) == "completed":
        return read_results(directory)["valid"]["loss"]
    if not ours:
        raise ValueError(f"{directory} is not completed; what it said is in its console.log")
    return None


def _run(
    settings: DictConfig,
    hydra: DictConfig,
    directory: Path,
    program: list[str],
    stop: Callable[[], int | None],
) -> None:
    """Start the processes, wait for them, and write down whatever goes wrong."""
    results, before = directory / "results.json", stamp(directory / "results.json")
    run: RunDirectory | None = None

    def begin() -> dict[str, Any]:
        return (
            run.results
            if run
            else initial_results(None, settings.get("seed"), list(hydra.overrides.task), None)
        )

    with (directory / "console.log").open("a", encoding="utf-8") as console:
        printed = console.tell()
        try:
            run = assemble.run(settings)
            config = assemble.config(settings)
            run.look()
            processes.start(config, directory, run.results["overrides"], program, console, stop)
        except LockedError as error:  # its results are another's to write
            print(f"error: {error}", file=console)
        except processes.ProcessError as error:
            said_why = run.status() == "failed" and stamp(results) != before
            if not error.has_ended or not said_why:
                said = last_line(directory / "console.log", printed) if error.has_ended else None
                record_failure(directory, said or str(error), begin())
        except Exception as error:
            traceback.print_exc(file=console)
            record_failure(directory, " ".join(failure_reason(error).split()), begin())
        finally:
            if run:
                run.release()


def options(hydra: DictConfig) -> list[str]:
    """Return the options of a command line that say where the settings are which Hydra has composed."""
    places = [source for source in hydra.runtime.config_sources if source.provider == "command-line"]
    more = [word for source in places for word in ("--config-dir", source.path)]
    return [*more, "--config-name", hydra.job.config_name]


def stamp(path: Path) -> int:
    """Return when a file was written; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


def last_line(path: Path, since: int) -> str | None:
    """Return the last line of what a process printed, if it printed anything.

    Args:
        path: of the file it printed to.
        since: how many bytes that file had before, of earlier attempts.
    """
    lines = path.read_bytes()[since:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
