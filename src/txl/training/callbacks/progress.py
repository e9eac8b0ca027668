"""What one sees while a model learns: a bar on a terminal, plain lines elsewhere, and the logged metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from txl.data import Batch
from txl.records.units import bits, metric_of, perplexity
from txl.terminal import console
from txl.training.callbacks.divergence import DivergenceGuard
from txl.training.callbacks.profiler import DataWait
from txl.training.hardware import device_name, matmul_peak, peak_memory, used_memory
from txl.training.module import LanguageModel

log = logging.getLogger(__name__)

PLAIN_LINE_SECONDS = 10.0  # without a terminal, a line at most this often


# What a run that goes on counts on from.
COUNTS = ("steps", "tokens", "seconds", "validating", "loss_sum", "loss_count", "steps_before")


class Monitor(pl.Callback):
    """Logs loss, bits or perplexity, learning rate, gradient norm, speed and memory, and shows them.

    Nothing is read from the device between two logged lines: the losses of the steps wait there, and are then
    summed over all processes, looked at by the guard, and logged. No checkpoint is written before that.

    Args:
        unit: what a token is: "byte", "char", "word" or "bpe".
        log_every: steps between logged lines.
        flops_per_token: of training, for the utilization.
        validation_flops_per_token: of validation.
        peak_flops: operations a second of one device; `None` to measure it at the start.
        guard: stops a training that diverges.
        wait: measures the time spent waiting for data.
        record: called with the "training" part of the results after each validation and at the end.

    Attributes:
        seconds: spent in training so far, validations included.
        steps, tokens: trained on so far, the tokens of all processes together.
    """

    def __init__(
        self,
        unit: str,
        log_every: int,
        flops_per_token: float,
        validation_flops_per_token: float,
        peak_flops: float | None,
        guard: DivergenceGuard,
        wait: DataWait,
        record: Callable[[dict[str, Any]], None],
    ) -> None:
        self.unit, self.log_every, self.flops_per_token = unit, log_every, flops_per_token
        self.validation_flops_per_token = validation_flops_per_token
        self.peak_flops, self.guard, self.wait, self.record = peak_flops, guard, wait, record
        self.seconds, self.steps, self.tokens = 0.0, 0, 0
        self.validating = 0.0  # seconds, of all
        # Of each step not yet looked at, where it was computed: the sum of the scores, and their number.
        self.unseen: list[torch.Tensor] = []
        self.loss_sum, self.loss_count = 0.0, 0.0  # of the steps looked at since the last logged line
        self.steps_before = 0  # that line's step
        self.bar: Progress | None = None

    def metric(self, loss: float) -> tuple[str, float]:
        """Return the name and value of the metric people read, for this unit."""
        return metric_of(self.unit)[0], bits(loss) if self.unit in ("byte", "char") else perplexity(loss)

    def summary(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Return the "training" part of the results."""
        speed = self.tokens / max(self.seconds - self.validating, 1e-9)
        device = trainer.strategy.root_device
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": speed,
            "model_flops_utilization": speed * self.flops_per_token / (self.peak_flops * trainer.world_size),
            "peak_memory_bytes": peak_memory(device),
            "device": device_name(device),
            "precision": trainer.precision,
            "world_size": trainer.world_size,
        }

    def on_train_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Measure the peak, start the clock and the bar."""
        if self.peak_flops is None:
            self.peak_flops = matmul_peak(module.device, trainer.precision)
        self.since = self.printed = time.perf_counter()
        self.began = self.since - self.seconds
        self.steps = trainer.global_step
        self.tokens_before, self.wait_before = self.tokens, self.wait.seconds
        self.away = 0.0  # validation time since the last logged line: it is no training time
        if console.is_terminal and not console.is_dumb_terminal and trainer.is_global_zero:
            self.bar = Progress(
                TextColumn("[bold]{task.completed}/{task.total}"),
                BarColumn(bar_width=8),
                TextColumn("{task.fields[shown]}"),
                TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
                TextColumn("left"),
                console=console,
                transient=True,
            )
            self.task = self.bar.add_task(
                "", total=trainer.max_steps, completed=trainer.global_step, shown=""
            )
            self.bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: LanguageModel, outputs: Any, batch: Batch, index: int
    ) -> None:
        """Count the step, and at every `log_every`-th write a line."""
        self.unseen.append(module.score_sum_and_count_2)
        self.steps = trainer.global_step
        self.seconds = time.perf_counter() - self.began
        if self.bar:
            self.bar.update(self.task, completed=trainer.global_step)
        if trainer.global_step % self.log_every == 0 or trainer.global_step == trainer.max_steps:
            self._look(trainer)
            self._log(trainer, module)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Look before anything is written, so that no checkpoint follows a loss that is not finite."""
        self._look(trainer)
        checkpoint["progress"] = {name: getattr(self, name) for name in COUNTS}
        checkpoint["guard"] = self.guard.state_dict()
        checkpoint["clipped_steps"] = int(module.clipped_steps)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count on from where the checkpoint was written."""
        if trainer.state.fn != "fit":
            return
        for name in COUNTS:
            setattr(self, name, checkpoint["progress"][name])
        self.guard.load_state_dict(checkpoint["guard"])
        module.clipped_steps = checkpoint["clipped_steps"]

    def _look(self, trainer: pl.Trainer, everywhere: bool = True) -> None:
        """Count the tokens of the steps not yet looked at, and let the guard see their losses.

        Args:
            trainer: Lightning's.
            everywhere: all processes are here, and their sums are added.
        """
        if not self.unseen:
            return
        sums_S2 = torch.stack(self.unseen)
        self.unseen = []
        sums_S2 = (
            trainer.strategy.reduce(sums_S2, reduce_op="sum") if everywhere else sums_S2 * trainer.world_size
        )
        first = self.steps - len(sums_S2) + 1
        for step, (total, count) in enumerate(sums_S2.tolist(), first):
            self.tokens += round(count)
            self.loss_sum += total
            self.loss_count += count
            if everywhere:
                self.guard.check(step, total / max(count, 1.0))

    def _log(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        now = time.perf_counter()
        loss = self.loss_sum / max(self.loss_count, 1.0)
        trained = max(now - self.since - self.away, 1e-9)
        speed = (self.tokens - self.tokens_before) / trained
        waited = self.wait.seconds - self.wait_before
        name, value = self.metric(loss)
        rate = module.learning_rate
        metrics = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "train/loss": loss,
            f"train/{name}": value,
            "learning_rate": rate,
            "gradient_norm": float(module.gradient_norm),
            "clipped_share": float(module.clipped_steps) / max(self.steps - self.steps_before, 1),
            "tokens_per_second": speed,
            "model_flops_utilization": speed * self.flops_per_token / (self.peak_flops * trainer.world_size),
            "data_wait_seconds": waited,
            "data_wait_share": waited / trained,
            **self._memory(module),
        }
        for logger in trainer.loggers:
            logger.log_metrics(metrics, trainer.global_step)
        left = (trainer.max_steps - trainer.global_step) * self.seconds / max(trainer.global_step, 1)
        shown = f"loss {loss:.3f}  {name.replace('_', ' ')} {value:.3f}  lr {rate:.2e}  {speed:,.0f} tokens/s"
        if self.bar:
            short = {"bits_per_byte": "bpb", "bits_per_character": "bpc", "perplexity": "ppl"}[name]
            brief = f"loss {loss:.3f} {short} {value:.3f} lr {rate:.1e} {speed:,.0f} tokens/s"
            self.bar.update(self.task, shown=brief)
        elif now - self.printed >= PLAIN_LINE_SECONDS or trainer.global_step == trainer.max_steps:
            log.info("step %d of %d  %s  %s left", trainer.global_step, trainer.max_steps, shown, clock(left))
            self.printed = now
        self.loss_sum, self.loss_count, module.clipped_steps = 0.0, 0.0, 0
        self.tokens_before, self.steps_before, self.wait_before = self.tokens, self.steps, self.wait.seconds
        self.since, self.away = now, 0.0

    @staticmethod
    def _memory(module: LanguageModel) -> dict[str, Any]:
        """Return how much of the recurrence memory is real, and how much memory the process needs."""
        remembered = float(module.memory.length.float().mean())
        return {
            "memory_length": remembered,
            "memory_share": remembered / max(module.training_settings.memory_length, 1),
            "used_memory_bytes": used_memory(module.device),
            "peak_memory_bytes": peak_memory(module.device),
        }

    def on_validation_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Note when training pauses."""
        self.paused, self.waited_before = time.perf_counter(), self.wait.validating

    def on_validation_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Log and show the validation score."""
        if trainer.state.fn != "fit":
            return
        self._look(trainer)
        self.guard.check_finite(self.steps, module.scores.loss, "validation loss", good=self.steps - 1)
        now = time.perf_counter()
        took = max(now - self.paused, 1e-9)
        self.away += took
        self.validating += took
        self.seconds = now - self.began
        name, value = self.metric(module.scores.loss)
        speed, waited = module.scores.count / took, self.wait.validating - self.waited_before
        operations = speed * self.validation_flops_per_token
        metrics = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "valid/loss": module.scores.loss,
            f"valid/{name}": value,
            "valid/tokens_per_second": speed,
            "valid/model_flops_utilization": operations / (self.peak_flops * trainer.world_size),
            "valid/data_wait_seconds": waited,
            "valid/data_wait_share": waited / took,
            **self._memory(module),
        }
        for logger in trainer.loggers:
            logger.log_metrics(metrics, trainer.global_step)
        log.info("step %d  valid %s %.4f", trainer.global_step, name.replace("_", " "), value)
        self.record(self.summary(trainer))

    def on_train_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Record the training, and take the bar away."""
        self._stop(trainer)

    def on_exception(self, trainer: pl.Trainer, module: LanguageModel, exception: BaseException) -> None:
        """Record how far it came, and take the bar away, so that the message can be read."""
        self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None
        if self.steps:
            self._look(trainer, everywhere=False)
            self.record(self.summary(trainer))


def clock(seconds: float) -> str:
    """Return a duration as people read it: "4:05" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
