"""Profiling: the time spent waiting for data, and a trace of a few steps."""

import logging
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.profilers import Profiler
from torch.profiler import ProfilerActivity, profile

log = logging.getLogger(__name__)

# Lightning's names of the actions that wait for a batch.
TRAINING, VALIDATION = "[_TrainingEpochLoop].train_dataloader_next", "[_EvaluationLoop].val_next"
SKIP = 5  # steps before the trace: the first ones allocate memory and select kernels


class DataWait(Profiler):
    """Sums the seconds that training and validation wait for batches."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = {TRAINING: 0.0, VALIDATION: 0.0}

    def start(self, action_name: str) -> None:
        if action_name in self.seconds:
            self.begin = time.perf_counter()

    def stop(self, action_name: str) -> None:
        if action_name in self.seconds:
            self.seconds[action_name] += time.perf_counter() - self.begin


class Trace(pl.Callback):
    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps
        self.recorder: profile | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Choose the first step to record, after the first `SKIP` if there are enough."""
        self.begin = max(trainer.global_step, min(trainer.global_step + SKIP, trainer.max_steps - self.steps))

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.begin:
            used = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (module.device.type == "cuda")]
            self.recorder = profile(activities=used)
            self.recorder.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step in (self.begin + self.steps, trainer.max_steps) and self.recorder:
            self.recorder.stop()
            self.recorder.export_chrome_trace(str(self.path))
            self.recorder = None
            log.info("trace of %d steps: %s; open it in https://ui.perfetto.dev", self.steps, self.path)
