"""Ctrl-C, SIGTERM and SLURM's warning: end at the next whole step, with everything kept.

SLURM warns with the signal that the job asks for (`#SBATCH --signal=USR1@120`): the run saves and asks SLURM
to queue the job again. On SIGTERM it only saves: a job that is preempted is queued again by SLURM itself, and
one that is cancelled must not be.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch

log = logging.getLogger(__name__)

# SLURM signals every process of a job, and a program that starts others passes on what it gets as well.
ECHO_SECONDS = 0.5


class Interrupted(BaseException):
    """The run was asked to stop. Not an `Exception`: nothing on the way may swallow it."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


class Interruption(pl.Callback):
    """Turns the first of the signals into `Interrupted`.

    While batches are processed it waits for the end of the batch, where parameters, optimizer and data agree,
    and saves a checkpoint. All processes do so after the same batch, whichever the signal reached. At any
    other time, or on a second signal, it raises at once. As a context it puts the handlers in place and takes
    them away.

    Args:
        note_failure: called first of all when the training ends with an exception.

    Attributes:
        save: what saves, called with the trainer.
        received: the signal that came.
    """

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, note_failure: Callable[[BaseException], object]) -> None:
        self.note_failure = note_failure
        self.save: Callable[[pl.Trainer], object] = lambda trainer: None
        self.received: int | None = None
        self.in_batches = False
        self.leaving = False  # on the way out: what this signal asks for is being done
        self._first: float | None = None  # when the first signal came

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._handle) for number in self.signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        now, first = time.monotonic(), self._first
        if first is not None and now - first <= ECHO_SECONDS:
            return
        again, self._first = first is not None, now
        self.received = self.received or number
        if not self.leaving and (again or not self.in_batches):
            raise Interrupted(number)
        if self.leaving and again:  # not the first one, which another process may have heard of earlier
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _raise_if_received(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """From here on, wait for the end of the batch."""
        self.in_batches = True
        self._raise_if_received()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Save and stop if a signal came."""
        self._stop_everywhere(trainer)

    def on_validation_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Stop if a signal came; the parameters are those of the last training step."""
        if self.in_batches:
            self._stop_everywhere(trainer)
        self._raise_if_received()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Let it be written down."""
        self.note_failure(exception)

    def _stop_everywhere(self, trainer: pl.Trainer) -> None:
        if trainer.world_size > 1:
            number = torch.tensor(self.received or 0, device=trainer.strategy.root_device)
            torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
            self.received = int(number) or None
        if self.received is not None:
            self.leaving = True
            self.save(trainer)
        self._raise_if_received()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """After training, signals raise at once."""
        self.in_batches = False
        self._raise_if_received()


def queue_again() -> None:
    """Ask SLURM to queue this job again, if it is one; say whether it will."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
        log.info("SLURM queues job %s again; it will go on from here", job)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        log.warning("SLURM does not queue job %s again: %s; submit it yourself", job, reason.strip())
