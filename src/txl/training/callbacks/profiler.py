"""Where the time goes: the share that is spent waiting for data, and a trace of a few steps."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.profilers import Profiler
from torch.profiler import ProfilerActivity, profile

log = logging.getLogger(__name__)

SKIP = 5  # steps before the trace: the first ones allocate and choose kernels


class DataWait(Profiler):
    """Adds up the time spent waiting for the next batch. Lightning calls it around everything it does.

    Attributes:
        seconds: that training waited so far.
        validating: seconds that validation waited so far.
    """

    training = "[_TrainingEpochLoop].train_dataloader_next"
    validation = "[_EvaluationLoop].val_next"

    def __init__(self) -> None:
        super().__init__()
        self.seconds = self.validating = 0.0

    def start(self, action_name: str) -> None:
        """Start the clock if this is the next batch."""
        if action_name in (self.training, self.validation):
            self.began = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """Stop the clock."""
        if action_name == self.training:
            self.seconds += time.perf_counter() - self.began
        elif action_name == self.validation:
            self.validating += time.perf_counter() - self.began


class Trace(pl.Callback):
    """Records a few training steps in a file that a browser opens.

    Args:
        path: of the file to write, a Chrome trace.
        steps: how many to record.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps
        self.recorder: profile | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Choose the first step to record: not one of the first, if there are enough."""
        self.begin = max(trainer.global_step, min(trainer.global_step + SKIP, trainer.max_steps - self.steps))

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Begin to record."""
        if trainer.global_step == self.begin:
            used = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (module.device.type == "cuda")]
            self.recorder = profile(activities=used)
            self.recorder.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Write the file after the last step."""
        if trainer.global_step in (self.begin + self.steps, trainer.max_steps) and self.recorder:
            self.recorder.stop()
            self.recorder.export_chrome_trace(str(self.path))
            self.recorder = None
            log.info("trace of %d steps: %s; open it in https://ui.perfetto.dev", self.steps, self.path)
