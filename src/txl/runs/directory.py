"""The run directory: what a run leaves behind, whatever happens to it.

`results.json` is there from the first moment and is replaced as the run proceeds. Records and checkpoints
are written under a temporary name and renamed, so that a run killed at any moment leaves whole ones.
"""

import logging
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException

from txl.launch.processes import LIFELINE
from txl.records import results as records
from txl.records.files import flatten, lock_directory, write_atomically
from txl.records.metrics import truncate_metrics
from txl.report import draw_learning_curve
from txl.training.callbacks.checkpoints import LAST, newest
from txl.training.callbacks.divergence import DivergedError
from txl.training.callbacks.interruption import Interrupted, Interruption, queue_again
from txl.training.hardware import failure_reason
from txl.training.loggers.jsonl import RunLogger

log = logging.getLogger(__name__)

# Errors of the input and not of the program: one line is enough, the traceback goes to train.log.
INPUT_ERRORS = (ValueError, OSError, ImportError, MisconfigurationException)
STOPPED = (Interrupted, KeyboardInterrupt, SIGTERMException)


class RunDirectory:
    """A run directory as a context: inside it the run happens, at its end `results.json` says how it ended.

    A run that was interrupted or failed resumes from its newest checkpoint, or starts again if it has none.
    Of several processes only the first one writes.

    Args:
        settings: composed; only resolved values are stored.
        hydra: Hydra's own settings.
    """

    def __init__(self, settings: DictConfig, hydra: Any, rank: int) -> None:
        self.directory, self.settings, self.rank = Path(hydra.runtime.output_dir), settings, rank
        self.home = Path(hydra.runtime.cwd)  # from which paths are shown
        self.resumed_from: Path | None = None  # a checkpoint
        self.held = ExitStack()  # the lock and, in the context, the handlers of signals
        self.claimed = False  # whether this run may write into the directory
        self.preparing = True  # until the first step errors are those of the input, and one line
        self.interruption = Interruption(self.record_failure)
        self.loggers: list[RunLogger] = []
        name, seed, overrides = settings.get("name"), settings.get("seed"), list(hydra.overrides.task)
        config: Any = OmegaConf.to_container(settings, resolve=True)
        self.results = records.initial_results(name, seed, overrides, config)

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def inspect(self) -> int:
        """Lock the directory and check that this run may start or resume in it.

        Returns:
            The step of the checkpoint to resume from, 0 to start.

        Raises:
            ValueError: it holds a completed run or one with other settings, or is locked by another process.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if LIFELINE not in os.environ:  # otherwise the process that started this one holds the lock
            self.held.callback(os.close, lock_directory(self.directory))
        if not (self.directory / "results.json").exists():
            return 0
        earlier = records.read_results(self.directory)
        if earlier["status"] == "completed":
            raise ValueError(f"{self.directory} holds a completed run; choose another hydra.run.dir")
        self.resumed_from, step = newest(self.checkpoints) or (None, 0)
        if self.resumed_from:
            check_same(self.directory, earlier["config"], self.results["config"])
            if step > self.settings.trainer.max_steps:
                raise ValueError(
                    f"{self.directory} holds a run that is at step {step}, beyond trainer.max_steps="
                    f"{self.settings.trainer.max_steps}; give at least {step}"
                )
            self.results["training"] = earlier["training"]
        return step

    def claim(self) -> None:
        """Write the first `results.json`, and `config.yaml`; see `inspect` for what it raises."""
        if self.rank:
            self.resumed_from, _ = newest(self.checkpoints) or (None, 0)
            return
        step = self.inspect()
        self.write()
        self.claimed = True
        write_atomically(self.directory / "config.yaml", OmegaConf.to_yaml(self.settings, resolve=True))
        truncate_metrics(self.directory / "metrics.jsonl", step)
        if self.resumed_from:
            log.info("resuming from %s, step %d", self.resumed_from, step)

    def failure_elsewhere(self) -> str | None:
        """Return the failure that another process has recorded, because of which this one will fail, too."""
        failed = records.read_status(self.directory) == "failed"
        return records.read_results(self.directory)["error"] if failed else None

    def write(self) -> None:
        if not self.rank:
            records.write_results(self.directory, self.results)

    def record(self, **parts: Any) -> None:
        if self.claimed and self.results["status"] == "running" and (error := self.failure_elsewhere()):
            self.results.update(status="failed", error=error)
        self.results.update(parts)
        self.write()

    def record_training(self, training: dict[str, Any]) -> None:
        """Record the progress of the training, which goes on where that cannot be written."""
        try:
            self.record(training=training)
        except OSError as error:
            log.warning("results.json cannot be written (%s); training continues", error)

    def record_failure(self, error: BaseException) -> None:
        """Record why this process fails before the others notice and fail because of it."""
        stopped = self.interruption.received or isinstance(error, (Interrupted, SIGTERMException))
        if stopped or records.read_status(self.directory) != "running":
            return
        if self.rank:
            records.record_outcome(self.directory, "failed", f"process {self.rank}: {failure_reason(error)}")
        else:
            self.record(status="failed", error=failure_reason(error))

    def __enter__(self) -> "RunDirectory":
        """Claim the directory, once signals are handled: a program that sees `results.json` may send one."""
        self.held.enter_context(self.interruption)
        try:
            self.claim()
        except BaseException as error:
            if self.claimed:
                self.__exit__(type(error), error, error.__traceback__)
            self.held.close()
            if isinstance(error, Interrupted):
                raise SystemExit(128 + error.signal_number) from None
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Record and log how the run ended; raise SystemExit unless it was completed."""
        self.interruption.leaving = True
        try:
            self._conclude(error)
        finally:
            self._close_loggers()
            self.held.close()

    def _conclude(self, error: BaseException | None) -> None:
        self.results["finished_at"] = records.utc_now()
        if error is None:
            self.record(status="completed", error=None)
            return
        received = self.interruption.received
        stopped = received is not None or isinstance(error, STOPPED)
        message = failure_reason(Interrupted(received) if received else error)
        if not self.rank and (failure := self.failure_elsewhere()):
            message, stopped = failure, False
        end = SystemExit(128 + (received or 15) if stopped else 1)
        if self.rank:
            if not stopped:
                log.error("process %d: %s", self.rank, message, exc_info=error)
                self.record_failure(error)
            raise end from None
        self.record(status="interrupted" if stopped else "failed", error=message)
        if self.results["model"] and self.results["training"]:
            draw_learning_curve(self.directory)
        if stopped:
            last = self.checkpoints / LAST
            kept = f"kept {last}" if last.exists() else "no checkpoint yet"
            log.warning("interrupted: %s; %s", message, kept)
            if received == signal.SIGUSR1:
                queue_again()
        elif isinstance(error, DivergedError) or (self.preparing and isinstance(error, INPUT_ERRORS)):
            log.error("error: %s", message, exc_info=error, extra={"brief": True})
        else:
            log.error("failed; results so far are in %s", self.directory, exc_info=error)
        raise end from None

    def _close_loggers(self) -> None:
        for logger in self.loggers if not self.rank else []:
            try:
                logger.close(self.results)
            except Exception as error:  # the run is over, whatever happens to a logger
                log.warning("logger %s could not be closed: %s", logger.name, error, exc_info=True)


# Settings that may change when a run resumes: length, hardware, what it keeps; nothing that affects learning.
MAY_CHANGE = (
    "trainer.max_steps", "trainer.accelerator", "trainer.strategy", "trainer.devices", "trainer.num_nodes",
    "trainer.checkpoint_every", "trainer.keep_every", "data.cache", "logger",
)  # fmt: skip


def check_same(
    directory: Path,
    earlier: dict[str, Any],
    current: dict[str, Any],
    may_change: tuple[str, ...] = MAY_CHANGE,
    setting: str = "hydra.run.dir",
) -> None:
    """Raise ValueError unless a run resumes with the settings that it had.

    Args:
        may_change: prefixes of the keys that may differ.
        setting: chooses the directory, for the error.
    """
    before, after = flatten(earlier), flatten(current)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key) and not key.startswith(may_change):
            raise ValueError(
                f"{directory} holds a run with {key}={before.get(key)}, not {after.get(key)}; resume "
                f"with the same settings, or choose another {setting}"
            )
