"""Progress of a training: a bar on a terminal, plain lines elsewhere, and the logged metrics."""

import logging
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from txl.launch.environment import world_size
from txl.model import TransformerXL
from txl.model.cost import flops_per_token, training_flops_per_token
from txl.records.units import bits, metric_of, perplexity
from txl.settings.schema import Config
from txl.terminal import console
from txl.training.callbacks.checkpoints import State
from txl.training.callbacks.divergence import DivergenceGuard
from txl.training.callbacks.profiler import TRAINING, VALIDATION, DataWait
from txl.training.hardware import device_name, matmul_peak, peak_memory, used_memory
from txl.training.module import LanguageModel
from txl.training.network import flops_per_target

log = logging.getLogger(__name__)

PLAIN_LINE_SECONDS = 10.0  # without a terminal, the least time between lines
Record = Callable[[dict[str, Any]], None]

# The attributes of `Monitor` that checkpoints hold, by name.
STORED = ("steps", "tokens", "seconds", "validating", "loss_sum", "loss_count", "steps_before")


class Monitor(pl.Callback):
    """Logs and shows loss, bits or perplexity, learning rate, gradient norm, speed and memory.

    The losses of the steps stay on the device until a line is logged or a checkpoint written: only then are
    they read, summed over all processes and checked by the guard. Lightning's progress bar and logging would
    read them every step.

    Args:
        record: called with the "training" part of the results after each validation and at the end.

    Attributes:
        flops, validation_flops: operations for each token that is scored.
        seconds: of training so far, validations included.
        tokens: read in training so far by all processes.
        validating: seconds of validation so far.
        pending: for each step not yet counted, the sum of its scores and their number, on the device.
        loss_sum, loss_count: of the counted steps since the last logged line.
        steps_before: the step of that line.
    """

    def __init__(
        self, config: Config, model: TransformerXL, unit: str, guard: DivergenceGuard, record: Record
    ) -> None:
        self.unit, self.guard, self.record, self.wait = unit, guard, record, DataWait()
        self.log_every, self.peak_flops = config.trainer.log_every, config.trainer.peak_flops
        world = world_size(config.trainer)
        self.flops = flops_per_target(training_flops_per_token, model, config.training, world)
        self.validation_flops = flops_per_target(flops_per_token, model, config.evaluation, world)
        self.steps = self.tokens = self.steps_before = 0
        self.seconds = self.validating = self.loss_sum = self.loss_count = 0.0
        self.pending: list[torch.Tensor] = []
        self.bar: Progress | None = None

    def _metric(self, loss: float) -> tuple[str, float]:
        return metric_of(self.unit)[0], bits(loss) if self.unit in ("byte", "char") else perplexity(loss)

    def summary(self, trainer: pl.Trainer) -> dict[str, Any]:
        speed = self.tokens / max(self.seconds - self.validating, 1e-9)
        device = trainer.strategy.root_device
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": speed,
            "model_flops_utilization": self._utilization(trainer, speed * self.flops),
            "peak_memory_bytes": peak_memory(device),
            "device": device_name(device),
            "precision": trainer.precision,
            "world_size": trainer.world_size,
        }

    def _utilization(self, trainer: pl.Trainer, operations: float) -> float:
        assert self.peak_flops is not None, "measured when training starts"
        return operations / (self.peak_flops * trainer.world_size)

    def on_train_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        if self.peak_flops is None:
            self.peak_flops = matmul_peak(module.device, trainer.precision)
        self.since = self.printed = time.perf_counter()
        self.begin = self.since - self.seconds
        self.steps = trainer.global_step
        self.tokens_before, self.wait_before = self.tokens, self.wait.seconds[TRAINING]
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
            self.task = self.bar.add_task("", total=trainer.max_steps, completed=self.steps, shown="")
            self.bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: LanguageModel, *_: Any) -> None:
        assert module.score_sum_and_count_2 is not None
        self.pending.append(module.score_sum_and_count_2)
        self.steps = trainer.global_step
        self.seconds = time.perf_counter() - self.begin
        if self.bar:
            self.bar.update(self.task, completed=trainer.global_step)
        if trainer.global_step % self.log_every == 0 or trainer.global_step == trainer.max_steps:
            self._count_pending(trainer)
            self._log(trainer, module)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: LanguageModel, checkpoint: State) -> None:
        """Check the losses first: no checkpoint may follow one that is not finite."""
        self._count_pending(trainer)
        checkpoint["progress"] = {name: getattr(self, name) for name in STORED}
        checkpoint["guard"] = self.guard.state_dict()
        checkpoint["clipped_steps"] = int(module.clipped_steps)

    def on_load_checkpoint(self, trainer: pl.Trainer, module: LanguageModel, checkpoint: State) -> None:
        if trainer.state.fn != "fit":
            return
        for name in STORED:
            setattr(self, name, checkpoint["progress"][name])
        self.guard.load_state_dict(checkpoint["guard"])
        module.clipped_steps = checkpoint["clipped_steps"]

    def _count_pending(self, trainer: pl.Trainer, everywhere: bool = True) -> None:
        """Read the pending sums from the device, count their tokens, and let the guard check their losses.

        If not all processes take part (`everywhere=False`), the sums of this one stand for all.
        """
        if not self.pending:
            return
        sums_S2, self.pending = torch.stack(self.pending), []
        reduce = trainer.strategy.reduce
        sums_S2 = reduce(sums_S2, reduce_op="sum") if everywhere else sums_S2 * trainer.world_size
        for step, (total, count) in enumerate(sums_S2.tolist(), self.steps - len(sums_S2) + 1):
            self.tokens += round(count)
            self.loss_sum += total
            self.loss_count += count
            if everywhere:
                self.guard.check(step, total / max(count, 1.0))

    def _log(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        now = time.perf_counter()
        loss = self.loss_sum / max(self.loss_count, 1.0)
        trained = max(now - self.since, 1e-9)
        speed = (self.tokens - self.tokens_before) / trained
        waited = self.wait.seconds[TRAINING] - self.wait_before
        name, value = self._metric(loss)
        rate = module.learning_rate
        metrics = {
            "train/loss": loss,
            f"train/{name}": value,
            "learning_rate": rate,
            "gradient_norm": float(module.gradient_norm),
            "clipped_share": float(module.clipped_steps) / max(self.steps - self.steps_before, 1),
            "tokens_per_second": speed,
            "model_flops_utilization": self._utilization(trainer, speed * self.flops),
            "data_wait_seconds": waited,
            "data_wait_share": waited / trained,
        }
        self._log_metrics(trainer, module, metrics)
        left = (trainer.max_steps - trainer.global_step) * self.seconds / max(trainer.global_step, 1)
        shown = f"loss {loss:.3f}  {name.replace('_', ' ')} {value:.3f}  lr {rate:.2e}  {speed:,.0f} tokens/s"
        if self.bar:
            short = {"bits_per_byte": "bpb", "bits_per_character": "bpc", "perplexity": "ppl"}[name]
            compact = f"loss {loss:.3f} {short} {value:.3f} lr {rate:.1e} {speed:,.0f} tokens/s"
            self.bar.update(self.task, shown=compact)
        elif now - self.printed >= PLAIN_LINE_SECONDS or trainer.global_step == trainer.max_steps:
            log.info("step %d of %d  %s  %s left", trainer.global_step, trainer.max_steps, shown, clock(left))
            self.printed = now
        self.loss_sum, self.loss_count, module.clipped_steps = 0.0, 0.0, 0
        self.tokens_before, self.steps_before, self.since = self.tokens, self.steps, now
        self.wait_before = self.wait.seconds[TRAINING]

    def _log_metrics(self, trainer: pl.Trainer, module: LanguageModel, metrics: dict[str, float]) -> None:
        """Log metrics, with the progress, how full the recurrence memory is, and the memory in use."""
        assert module.memory is not None, "no step was trained"
        filled = float(module.memory.length.float().mean())
        line: dict[str, Any] = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            **metrics,
            "memory_length": filled,
            "memory_share": filled / max(module.training_settings.memory_length, 1),
            "used_memory_bytes": used_memory(module.device),
            "peak_memory_bytes": peak_memory(module.device),
        }
        for logger in trainer.loggers:
            logger.log_metrics(line, trainer.global_step)

    def on_validation_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        self.paused, self.waited_before = time.perf_counter(), self.wait.seconds[VALIDATION]

    def on_validation_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        if trainer.state.fn != "fit":
            return
        self._count_pending(trainer)
        self.guard.check_finite(self.steps, module.scores.loss, "validation loss", good=self.steps - 1)
        now = time.perf_counter()
        took = max(now - self.paused, 1e-9)
        self.since += took  # not training time
        self.validating += took
        self.seconds = now - self.begin
        name, value = self._metric(module.scores.loss)
        speed, waited = module.scores.count / took, self.wait.seconds[VALIDATION] - self.waited_before
        metrics = {
            "valid/loss": module.scores.loss,
            f"valid/{name}": value,
            "valid/tokens_per_second": speed,
            "valid/model_flops_utilization": self._utilization(trainer, speed * self.validation_flops),
            "valid/data_wait_seconds": waited,
            "valid/data_wait_share": waited / took,
        }
        self._log_metrics(trainer, module, metrics)
        log.info("step %d  valid %s %.4f", trainer.global_step, name.replace("_", " "), value)
        self.record(self.summary(trainer))

    def on_train_end(
        self, trainer: pl.Trainer, pl_module: Any, exception: BaseException | None = None
    ) -> None:
        """Record the progress, and remove the bar before an error is printed."""
        if self.bar:
            self.bar.stop()
            self.bar = None
        if self.steps:
            self._count_pending(trainer, everywhere=False)
            self.record(self.summary(trainer))

    on_exception = on_train_end


def clock(seconds: float) -> str:
    """Format a duration: "4:05" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
