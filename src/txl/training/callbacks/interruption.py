"""Ctrl-C, SIGTERM and SLURM's warning end a training after a whole step, with everything saved.

SLURM warns with the signal that the job asks for (`#SBATCH --signal=USR1@120`): the run saves and asks SLURM
to queue the job again. On SIGTERM it only saves: SLURM itself queues a preempted job again, and a cancelled
one must not be.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch

from txl.launch.stop import StopRequest, end_at_once

log = logging.getLogger(__name__)


class Interrupted(BaseException):
    """A signal asked the run to stop. Not an `Exception`, so that nothing in between swallows it."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


class Interruption(StopRequest, pl.Callback):
    """Turns a request to stop into `Interrupted`, raised where the run can be resumed from.

    While batches are processed it waits for the end of the batch, where parameters, optimizer and data agree,
    and saves a checkpoint; all processes do so after the same batch, whichever of them the signal reached. At
    any other time, and on a second signal, it raises at once.
    """

    def __init__(self, record_failure: Callable[[BaseException], object]) -> None:
        super().__init__(self._first, self._second)
        self.record_failure = record_failure  # called first when the training ends with an exception
        self.save: Callable[[pl.Trainer], object] = lambda trainer: None  # saves a checkpoint
        self.in_batches = False
        self.leaving = False  # the run is ending already; only a second signal still has an effect

    def _first(self, number: int) -> None:
        # A process that is leaving may get the signal for which another one made it leave.
        if not (self.leaving or self.in_batches):
            raise Interrupted(number)

    def _second(self, number: int) -> None:
        if self.leaving:
            end_at_once(number)
        raise Interrupted(number)

    def _raise_if_received(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.in_batches = True
        self._raise_if_received()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        self._stop_everywhere(trainer)

    def on_validation_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        # The parameters are those of the last training step.
        if self.in_batches:
            self._stop_everywhere(trainer)
        else:
            self._raise_if_received()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self.record_failure(exception)

    def _stop_everywhere(self, trainer: pl.Trainer) -> None:
        """Save and stop if any process received a signal."""
        received = self.received
        if trainer.world_size > 1:
            number = torch.tensor(received or 0, device=trainer.strategy.root_device)
            torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
            received = int(number) or None  # a signal since then waits for the next batch, which all reach
        if received is not None:
            self.received, self.leaving = received, True
            self.save(trainer)
            raise Interrupted(received)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.in_batches = False
        self._raise_if_received()


def queue_again() -> None:
    """Ask SLURM to queue this job again, if it is one, and log the answer."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
        log.info("SLURM requeued job %s, which will continue from here", job)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        log.warning("SLURM did not requeue job %s: %s; submit it yourself", job, reason.strip())
