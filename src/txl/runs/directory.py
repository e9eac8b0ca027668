"""The run directory: what a run leaves behind, whatever happens to it.

`results.json` is there from the first moment, saying "interrupted", and is replaced as the run goes on; every
file is written beside its place and renamed, so that a run killed at any moment leaves whole files.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException

from txl.data import Corpus
from txl.evaluation.scores import ScoreSum
from txl.launch.lifeline import LIFELINE
from txl.records.files import finite, flatten, lock_directory, write_atomically
from txl.records.metrics import truncate_metrics
from txl.records.results import (
    initial_results,
    read_results,
    read_status,
    record_failure,
    score_entry,
    utc_now,
)
from txl.report import draw_learning_curve
from txl.settings.schema import EvaluationSettings
from txl.training.callbacks.checkpoints import LAST, newest
from txl.training.callbacks.divergence import DivergedError
from txl.training.callbacks.interruption import Interrupted, Interruption, queue_again
from txl.training.hardware import failure_reason
from txl.training.loggers.jsonl import RunLogger

log = logging.getLogger(__name__)

# What is wrong with the input and not with the program: one line is enough, the traceback goes to train.log.
INPUT_ERRORS = (ValueError, OSError, ImportError, MisconfigurationException)


class RunDirectory:
    """A run directory as a context: inside it the run happens, and at its end `results.json` is written.

    A run that was interrupted or failed goes on from its newest checkpoint, or begins anew if it has none.
    With several processes the first one alone writes.

    Args:
        directory: of the run.
        settings: the composed settings. Only resolved values are stored.
        overrides: what the user changed on the command line.
        home: where the user stood; paths are shown from there.
        rank: which process of the run this is.

    Attributes:
        resumed_from: the checkpoint to go on from; `None` to begin.
    """

    def __init__(
        self, directory: Path, settings: DictConfig, overrides: list[str], home: Path, rank: int = 0
    ) -> None:
        self.directory, self.home, self.rank = Path(directory), Path(home), rank
        self.resumed_from: Path | None = None
        self._lock: int | None = None
        self.claimed = False  # whether the directory is this run's, to be written in
        self.preparing = True  # until the first step an error is the input's, and one line
        self.interruption = Interruption(self.note_failure)
        self.loggers: list[RunLogger] = []
        config = OmegaConf.to_container(settings, resolve=True)
        self.results = initial_results(settings.get("name"), settings.get("seed"), overrides, config)
        self.settings = settings

    def look(self) -> int:
        """Look at what the directory holds, and keep other programs out of it.

        Returns:
            The step of the checkpoint to go on from, 0 to begin.

        Raises:
            ValueError: it holds a completed run, one that another program is at, or one with other settings.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if LIFELINE not in os.environ:  # or the program that started this one has done it
            self._lock = lock_directory(self.directory)
        if not (self.directory / "results.json").exists():
            return 0
        earlier = read_results(self.directory)
        if earlier["status"] == "completed":
            raise ValueError(f"{self.directory} holds a run already; choose another hydra.run.dir")
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

    def release(self) -> None:
        """Let other programs have the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self) -> None:
        """Make the directory this run's: write its first `results.json`, and `config.yaml`.

        Raises:
            ValueError: see `look`.
        """
        if self.rank:
            self.resumed_from, _ = newest(self.checkpoints) or (None, 0)
            return
        step = self.look()
        self.write()
        self.claimed = True
        write_atomically(self.directory / "config.yaml", OmegaConf.to_yaml(self.settings, resolve=True))
        truncate_metrics(self.directory / "metrics.jsonl", step)
        if self.resumed_from:
            log.info("going on from %s, step %d", self.resumed_from, step)

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.directory / "checkpoints"

    def record(self, **parts: Any) -> None:
        """Set parts of the results and write them."""
        if self.claimed and self.results["status"] == "interrupted" and self.status() == "failed":
            # Another process has noted its failure, for which this one will fail as well.
            self.results.update(status="failed", error=read_results(self.directory)["error"])
        self.results.update(parts)
        self.write()

    def record_training(self, training: dict[str, Any]) -> None:
        """Record how far the training is. Where that cannot be written it is said, and training goes on."""
        try:
            self.record(training=training)
        except OSError as error:
            log.warning("results.json cannot be written (%s); it is when there is room, at the end", error)

    def record_data(self, corpus: Corpus) -> None:
        """Record which tokens are read."""
        data = {
            "name": corpus.name,
            "unit": corpus.unit,
            "sha256": corpus.sha256,
            "vocabulary": len(corpus.vocabulary),
            "tokens": {split: len(tokens) for split, tokens in corpus.tokens.items()},
        }
        self.record(data=data)

    def record_scores(self, split: str, scores: ScoreSum, unit: str, settings: EvaluationSettings) -> None:
        """Record the score of a split and the settings it was measured under."""
        self.record(**{split: score_entry(scores, unit, settings)})

    def status(self) -> str | None:
        """Return the status that `results.json` has utc_now, whichever process wrote it."""
        return read_status(self.directory)

    def note_failure(self, error: BaseException) -> None:
        """Write down why this process fails, before the others notice and fail because of it."""
        stopped = self.interruption.received or isinstance(error, (Interrupted, SIGTERMException))
        if stopped or self.status() != "interrupted":  # so it is while a run goes on
            return
        message = failure_reason(error)
        if self.rank:
            record_failure(self.directory, f"process {self.rank}: {message}", self.results)
        else:
            self.record(status="failed", error=message)

    def write(self) -> None:
        """Write `results.json`, whole or not at all."""
        if self.rank:
            return
        write_atomically(self.directory / "results.json", self.as_json())

    def as_json(self) -> str:
        """Return the results as JSON, which has no nan and no infinity: they become null."""
        return json.dumps(finite(self.results), indent=2) + "\n"

    def __enter__(self) -> RunDirectory:
        """Claim the directory, once the signals are handled: whoever sees `results.json` may interrupt."""
        self.interruption.__enter__()
        try:
            self.claim()
        except BaseException as error:
            if self.claimed:
                self.__exit__(type(error), error, error.__traceback__)
            self.interruption.__exit__()
            self.release()
            if isinstance(error, Interrupted):
                raise SystemExit(128 + error.signal_number) from None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how it ended, write it down, and leave with an exit code that is not 0 unless all went well."""
        self.interruption.leaving = True
        try:
            self._conclude(kind, error, trace)
        finally:
            self._close_loggers()
            self.release()
            self.interruption.__exit__()

    def _conclude(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.results["finished_at"] = utc_now()
        if error is None:
            self.record(status="completed", error=None)
            return
        received = self.interruption.received
        stopped = received or isinstance(error, (Interrupted, KeyboardInterrupt, SIGTERMException))
        message = failure_reason(Interrupted(received) if received else error)
        if self.rank:
            if not stopped:
                log.error("process %d: %s", self.rank, message, exc_info=(kind, error, trace))
                self.note_failure(error)
            raise SystemExit(128 + (received or 15) if stopped else 1) from None
        if self.status() == "failed":  # another process was first: its end is why this one ends
            message, stopped = read_results(self.directory)["error"], None
        self.record(status="interrupted" if stopped else "failed", error=message)
        if self.results["model"] and self.results["training"]:
            draw_learning_curve(self.directory)
        if stopped:
            kept = self.checkpoints / LAST
            log.warning(
                "interrupted: %s; %s", message, f"kept {kept}" if kept.exists() else "no checkpoint yet"
            )
            if received == signal.SIGUSR1:
                queue_again()
            raise SystemExit(128 + (received or 15)) from None
        if isinstance(error, DivergedError) or (self.preparing and isinstance(error, INPUT_ERRORS)):
            log.error("error: %s", message, exc_info=(kind, error, trace), extra={"brief": True})
        else:
            log.error("failed; results so far are in %s", self.directory, exc_info=(kind, error, trace))
        raise SystemExit(1) from None

    def _close_loggers(self) -> None:
        """Tell the loggers how it ended. What goes wrong there takes nothing away from a run that is over."""
        for logger in self.loggers if not self.rank else []:
            try:
                logger.close(self.results)
            except Exception as error:
                log.warning("logger %s could not be closed: %s", logger.name, error, exc_info=True)


# What may change when a run goes on: how long, on what and how much is kept, not what is learned.
MAY_CHANGE = (
    "trainer.max_steps", "trainer.accelerator", "trainer.strategy", "trainer.devices", "trainer.num_nodes",
    "trainer.checkpoint_every", "trainer.keep_every", "data.cache", "logger",
)  # fmt: skip


def check_same(
    directory: Path,
    earlier: dict[str, Any],
    utc_now: dict[str, Any],
    may_change: tuple[str, ...] = MAY_CHANGE,
    setting: str = "hydra.run.dir",
) -> None:
    """Raise ValueError unless a run goes on with the settings that it had.

    Args:
        directory: of the run.
        earlier: its settings.
        utc_now: those to go on with.
        may_change: how the keys begin that may differ.
        setting: what chooses the directory.
    """
    before, after = flatten(earlier), flatten(utc_now)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key) and not key.startswith(may_change):
            raise ValueError(
                f"{directory} holds a run with {key}={before.get(key)}, not {after.get(key)}; go on with the "
                f"same settings, or choose another {setting}"
            )
