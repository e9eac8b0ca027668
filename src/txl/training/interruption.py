"""Ctrl-C and SIGTERM: end at the next whole step, with everything kept."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import pytorch_lightning as pl


class Interrupted(BaseException):
    """The run was asked to stop. Not an `Exception`: nothing on the way may swallow it."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


class Interruption(pl.Callback):
    """Turns the first Ctrl-C or SIGTERM into `Interrupted`.

    While batches are processed it waits for the end of the batch, where parameters, optimizer and data agree,
    and saves a checkpoint if that batch was a training step. At any other time, or on a second signal, it
    raises at once. As a context it puts the handlers in place and takes them away.

    Args:
        checkpoint: where to save.
    """

    signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.received: int | None = None
        self.in_batches = False

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._handle) for number in self.signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        again, self.received = self.received is not None, number
        if again or not self.in_batches:
            raise Interrupted(number)

    def _raise_if_received(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """From here on, wait for the end of the batch."""
        self.in_batches = True
        self._raise_if_received()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Save and stop if a signal came."""
        if self.received is not None:
            trainer.save_checkpoint(self.checkpoint)
        self._raise_if_received()

    def on_validation_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Stop if a signal came; the parameters are those of the last training step."""
        if self.received is not None and self.in_batches:
            trainer.save_checkpoint(self.checkpoint)
        self._raise_if_received()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """After training, signals raise at once."""
        self.in_batches = False
        self._raise_if_received()
