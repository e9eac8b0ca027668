"""One job of a sweep: a run in processes of its own, whose `results.json` says how it ended.

This is what a launcher calls: Hydra's own in the process of the sweep, joblib's in a worker process,
submitit's on a machine of a cluster. A job that fails is recorded and never raised, so that no launcher ends
the others.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from txl.launch.processes import KILL_SECONDS, ProcessError, StalledError, StopOrder
from txl.launch.stop import StopRequest
from txl.records.files import LockedError, is_locked, write_atomically
from txl.records.results import read_results, read_status, record_outcome
from txl.runs import assemble
from txl.runs.start import start_run
from txl.training.hardware import failure_reason

# Jobs may run on other machines, and joblib's workers inherit no descriptors: a file in the sweep's directory
# is the one channel that all launchers have. A killed sweep cannot write it, but its lock becomes free.
STOP = ".stop"
SWEEP = "sweep.json"
ABANDONED_SECONDS = 60.0  # for a job to save and exit after its sweep was killed
# submitit counts a job that returns as completed, so one to be requeued waits until SLURM ends it.
REQUEUE_SECONDS = 300.0
PROGRESS = ("metrics.jsonl", "results.json", "console.log", "train.log")  # files that grow while a job works


class SweepStop(StopRequest):
    """Stops a sweep: the first signal lets its jobs save and end, wherever they are, and starts no more."""

    def __init__(self, sweep: Path) -> None:
        super().__init__(self._save, self._kill, (signal.SIGINT, signal.SIGTERM))
        self.file = sweep / STOP

    def __enter__(self) -> SweepStop:
        self.file.unlink(missing_ok=True)
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.urgent_since is None:  # jobs elsewhere may not have read an urgent one yet
            self.file.unlink(missing_ok=True)

    def _save(self, number: int) -> None:
        write_atomically(self.file, json.dumps([number, None]))

    def _kill(self, number: int) -> None:
        write_atomically(self.file, json.dumps([self.received, KILL_SECONDS]))
        raise SystemExit(128 + (self.received or number))


def stop_order(sweep: Path) -> StopOrder | None:
    """Return the order that a sweep gives its jobs; `None` to carry on."""
    try:
        number, seconds = json.loads((sweep / STOP).read_text("ascii"))
        return StopOrder(int(number)) if seconds is None else StopOrder(int(number), float(seconds))
    except (OSError, ValueError, TypeError):
        # The jobs of SLURM may outlive the sweep that waits for them.
        abandoned = "SLURM_JOB_ID" not in os.environ and (sweep / SWEEP).exists() and not is_locked(sweep)
        return StopOrder(signal.SIGTERM, ABANDONED_SECONDS) if abandoned else None


@dataclass
class JobMonitor:
    """Called every second while a job runs: passes on the sweep's orders and finds a job that hangs."""

    sweep: Path | None  # the directory; `None` under a sweeper other than ours
    directory: Path
    stall_seconds: float | None  # without progress after which the job is killed; `None` for never
    sizes: list[tuple[int, int]] = field(default_factory=list)
    progress: float = field(default_factory=time.monotonic)  # when the files last grew

    def __call__(self) -> StopOrder | None:
        if self.stall_seconds is not None:
            files = (self.directory / name for name in PROGRESS)
            stats = [path.stat() for path in files if path.exists()]
            sizes = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
            if sizes != self.sizes:
                self.sizes, self.progress = sizes, time.monotonic()
            elif time.monotonic() - self.progress > self.stall_seconds:
                raise StalledError(self.stall_seconds)
        return None if self.sweep is None else stop_order(self.sweep)


def run_job(settings: DictConfig, script: str) -> float | None:
    """Run one job in processes of its own.

    Returns:
        The validation loss in nats per token, for sweepers that minimize it; `None` if there is none.

    Raises:
        ValueError, SystemExit: the job failed or was stopped, under a sweeper that does not read its results.
    """
    hydra: Any = HydraConfig.get()
    sweep, directory = Path(hydra.sweep.dir).absolute(), Path(hydra.runtime.output_dir)
    ours = (sweep / SWEEP).exists()
    if ours and stop_order(sweep):
        return None
    if read_status(directory) != "completed":  # SLURM may start a job again that was completed
        monitor = JobMonitor(sweep if ours else None, directory, hydra.sweeper.get("stall_seconds"))
        given = [source for source in hydra.runtime.config_sources if source.provider == "command-line"]
        places = [word for source in given for word in ("--config-dir", source.path)]
        try:
            _run(settings, directory, [script, *places, "--config-name", hydra.job.config_name], monitor)
        except SystemExit as end:
            if "SLURM_JOB_ID" in os.environ and end.code == 128 + signal.SIGUSR1:
                time.sleep(REQUEUE_SECONDS)
            elif not ours:
                raise
    if read_status(directory) == "completed":
        return read_results(directory)["valid"]["loss"]
    if not ours:
        raise ValueError(f"{directory} is not completed; see its console.log")
    return None


def _run(settings: DictConfig, directory: Path, program: list[str], monitor: JobMonitor) -> None:
    with (directory / "console.log").open("a", encoding="utf-8") as console:
        run = assemble.run(settings)
        try:
            start_run(run, assemble.config(settings), program, console, monitor)
        except LockedError as error:  # its results belong to another process
            print(f"error: {error}", file=console)
        except ProcessError:  # recorded
            pass
        except Exception as error:
            traceback.print_exc(file=console)
            reason = " ".join(failure_reason(error).split())
            record_outcome(directory, "failed", reason, True, run.results)


def modification_time(path: Path) -> int:
    """Return when a file was written, in nanoseconds; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0
