"""What one sees while a model learns: a bar on a terminal, plain lines elsewhere, and the logged metrics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from txl.data import Batch
from txl.evaluation.scores import bits, perplexity
from txl.report.files import metric_of
from txl.training.console import console
from txl.training.hardware import device_name, matmul_peak, peak_memory
from txl.training.module import LanguageModel

log = logging.getLogger(__name__)


class DivergedError(RuntimeError):
    """The loss is not a number any more."""


PLAIN_LINE_SECONDS = 10.0  # without a terminal, a line at most this often


class Monitor(pl.Callback):
    """Logs loss, bits or perplexity, learning rate, gradient norm, speed and memory, and shows them.

    Args:
        unit: what a token is: "byte", "char" or "word".
        log_every: steps between logged lines.
        flops_per_token: of training, for the utilization of the peak that is measured at the start.
        record: called with the "training" part of the results after each validation and at the end.

    Attributes:
        seconds: spent in training so far, validations included.
        steps, tokens: trained on so far, the tokens of all processes together.
    """

    def __init__(
        self, unit: str, log_every: int, flops_per_token: float, record: Callable[[dict[str, Any]], None]
    ) -> None:
        self.unit, self.log_every, self.flops_per_token = unit, log_every, flops_per_token
        self.record = record
        self.seconds, self.steps, self.tokens = 0.0, 0, 0
        self.validating = 0.0  # seconds, of all
        self.bar: Progress | None = None

    def metric(self, loss: float) -> tuple[str, float]:
        """Return the name and value of the metric people read, for this unit."""
        return metric_of(self.unit)[0], perplexity(loss) if self.unit == "word" else bits(loss)

    def summary(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Return the "training" part of the results."""
        speed = self.tokens / max(self.seconds - self.validating, 1e-9)
        device = trainer.strategy.root_device
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": speed,
            "model_flops_utilization": speed * self.flops_per_token / self.peak_flops,
            "peak_memory_bytes": peak_memory(device),
            "device": device_name(device),
            "precision": trainer.precision,
            "world_size": trainer.world_size,
        }

    def on_train_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Measure the peak, start the clock and the bar."""
        self.peak_flops = matmul_peak(module.device, trainer.precision) * trainer.world_size
        self.began = self.since = self.printed = time.perf_counter()
        self.tokens_before = self.tokens
        self.away = 0.0  # validation time since the last logged line: it is no training time
        self.loss_sum, self.loss_steps = 0.0, 0
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
        self.loss_sum = self.loss_sum + outputs["loss"].detach()
        self.loss_steps += 1
        self.steps = trainer.global_step
        self.tokens += int(batch.scored.sum()) * trainer.world_size
        self.seconds = time.perf_counter() - self.began
        if self.bar:
            self.bar.update(self.task, completed=trainer.global_step)
        if trainer.global_step % self.log_every == 0 or trainer.global_step == trainer.max_steps:
            self._log(trainer, module)

    def _log(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        now = time.perf_counter()
        loss = float(self.loss_sum) / self.loss_steps
        self._refuse(loss, trainer)
        speed = (self.tokens - self.tokens_before) / max(now - self.since - self.away, 1e-9)
        name, value = self.metric(loss)
        rate = module.learning_rate
        metrics = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "train/loss": loss,
            f"train/{name}": value,
            "learning_rate": rate,
            "gradient_norm": float(module.gradient_norm),
            "tokens_per_second": speed,
            "model_flops_utilization": speed * self.flops_per_token / self.peak_flops,
            "memory_length": float(module.memory.length.float().mean()),
            "peak_memory_bytes": peak_memory(module.device),
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
        self.loss_sum, self.loss_steps, self.tokens_before = 0.0, 0, self.tokens
        self.since, self.away = now, 0.0

    def on_validation_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Note when training pauses."""
        self.paused = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Log and show the validation score."""
        if trainer.state.fn != "fit":
            return
        self._refuse(module.scores.loss, trainer)
        now = time.perf_counter()
        self.away += now - self.paused
        self.validating += now - self.paused
        self.seconds = now - self.began
        name, value = self.metric(module.scores.loss)
        metrics = {"tokens": self.tokens, "seconds": self.seconds, "valid/loss": module.scores.loss}
        for logger in trainer.loggers:
            logger.log_metrics({**metrics, f"valid/{name}": value}, trainer.global_step)
        log.info("step %d  valid %s %.4f", trainer.global_step, name.replace("_", " "), value)
        self.record(self.summary(trainer))

    @staticmethod
    def _refuse(loss: float, trainer: pl.Trainer) -> None:
        """Raise DivergedError unless the loss is a number."""
        if not math.isfinite(loss):
            raise DivergedError(
                f"training diverged: at step {trainer.global_step} the loss is {loss}; lower optimizer.lr, "
                "lengthen schedule.warmup_steps or lower trainer.gradient_clip"
            )

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
            self.record(self.summary(trainer))


def clock(seconds: float) -> str:
    """Return a duration as people read it: "4:05" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
