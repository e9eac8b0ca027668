"""The LightningModule: one segment per step, the memory carried over to the next."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from txl.data.streams import Batch
from txl.evaluation.scores import ScoreSum
from txl.model import Memory, TransformerXL
from txl.settings.schema import EvaluationSettings, ReadingSettings, TrainingSettings


class LanguageModel(pl.LightningModule):
    """Trains and evaluates a model on streams.

    The memory is an attribute, not a buffer. Only a batch resets it, row by row (`fresh`). Optimization is
    Lightning's automatic one: one backward pass a segment; no gradient flows into the memory.

    Args:
        optimizer: called with `parameters=`.
        schedule: the factor of the learning rate, called with `step=` and `total=`.
        extra: stored in checkpoints, plain types only: the settings and the vocabulary.
    """

    def __init__(
        self,
        model: TransformerXL,
        training: TrainingSettings,
        evaluation: EvaluationSettings,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Callable[..., float],
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.training_settings, self.evaluation_settings = training, evaluation
        self.make_optimizer, self.schedule = optimizer, schedule
        self.extra = extra or {}
        self.memory: Memory | None = None
        self.evaluation_memory: Memory | None = None
        self.scores = ScoreSum()
        self.score_sum_and_count_2: Tensor | None = None  # of the last step, in this process
        self.gradient_norm: float | Tensor = 0.0
        self.learning_rate = 0.0
        self.clipped_steps: int | Tensor = 0  # since the last logged line
        self.validated_at = -1  # the step of the last complete validation

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return this process's part of the mean score of the segment, in nats.

        Processes can have different numbers of targets. Their gradients are averaged, so each divides its sum
        by the total number of targets and multiplies it by the number of processes.
        """
        count = batch.scored.sum()
        share = _mean_targets(count)
        if self.training_settings.batch_chunks == 1:
            scores_BL, self.memory = self._read(batch, self.memory, self.training_settings)
            total = (scores_BL * batch.scored).sum()
            self.score_sum_and_count_2 = torch.stack([total.detach(), count])
            return total / share
        return self._read_in_chunks(batch, count, share)

    def _read_in_chunks(self, batch: Batch, count: Tensor, share: Tensor) -> Tensor:
        """Run the rows in chunks, with a backward pass after each, and accumulate the gradients.

        The trainer runs the backward pass of the last chunk, whose loss is returned.
        """
        chunks = self.training_settings.batch_chunks
        memory = self._memory_for(batch, self.memory, self.training_settings)
        rows = len(batch.fresh) // chunks
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        total, memories = torch.zeros_like(count, dtype=torch.float32), []
        for chunk in range(chunks):
            part = slice(chunk * rows, (chunk + 1) * rows)
            chunk_batch = Batch(*(tensor[part] for tensor in batch))
            scores_BL, after = self._read(chunk_batch, memory.select_rows(part), self.training_settings)
            memories.append(after)
            loss = (scores_BL * chunk_batch.scored).sum()
            total += loss.detach()
            if chunk + 1 < chunks:
                # DistributedDataParallel exchanges gradients only in the trainer's backward pass, that of the
                # last chunk, with what has accumulated until then.
                self.trainer.strategy.backward(loss / share, None)
        self.memory = Memory.concatenate(memories)
        self.score_sum_and_count_2 = torch.stack([total, count])
        return loss / share

    def optimizer_zero_grad(self, epoch: int, batch_index: int, optimizer: torch.optim.Optimizer) -> None:
        """Zero the gradients, unless `_read_in_chunks` has accumulated some of this step."""
        if self.training_settings.batch_chunks == 1:
            optimizer.zero_grad()

    def on_validation_epoch_start(self) -> None:
        self.scores, self.evaluation_memory = ScoreSum(), None

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        settings = self.evaluation_settings
        with self.clamped():
            scores_BL, self.evaluation_memory = self._read(batch, self.evaluation_memory, settings)
        self.scores.add(scores_BL, batch.scored)

    def on_validation_epoch_end(self) -> None:
        self.on_test_epoch_end()
        self.validated_at = self.trainer.global_step

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        self.scores.gather()
        self.evaluation_memory = None

    def clamped(self) -> AbstractContextManager[None]:
        """Clamp distances at `evaluation.clamp_length`, if that is set, within the context."""
        clamp = self.evaluation_settings.clamp_length
        return nullcontext() if clamp is None else changed(self.model.position, clamp_length=clamp)

    def _read(self, batch: Batch, memory: Memory | None, settings: ReadingSettings) -> tuple[Tensor, Memory]:
        """Return the scores `[B, L]` of a segment and the memory after it."""
        memory = self._memory_for(batch, memory, settings).forget(batch.fresh)
        hidden_BLD, memory = self.model(batch.inputs, memory, settings.attention_length, settings.remembered)
        return self.model.embedding.scores(hidden_BLD, batch.targets), memory

    def _memory_for(self, batch: Batch, memory: Memory | None, settings: ReadingSettings) -> Memory:
        return self.model.empty_memory(len(batch.fresh), settings.memory_length) if memory is None else memory

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.make_optimizer(parameters=self.parameters())
        total = self.trainer.max_steps
        scheduler = LambdaLR(optimizer, lambda step: self.schedule(step=step, total=total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the norm over all parameters, as the authors do; keep it and the learning rate for the log."""
        self.learning_rate = optimizer.param_groups[0]["lr"]
        limit = float("inf") if gradient_clip_val is None else gradient_clip_val
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning leaves this to the fused optimizer, whose step comes after clipping.
            scaler.unscale_(optimizer)
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, FullyShardedDataParallel):
            self.gradient_norm = wrapped.clip_grad_norm_(limit)  # each process holds a shard of the gradient
        else:
            self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)
        self.clipped_steps = self.clipped_steps + (self.gradient_norm > limit)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["txl"] = self.extra


@contextmanager
def changed(owner: object, **attributes: Any) -> Iterator[None]:
    """Give an object other attributes within the context."""
    with ExitStack() as stack:
        for name, value in attributes.items():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _mean_targets(count: Tensor) -> Tensor:
    """Return the number of targets in this step, averaged over all processes."""
    processes = 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        count, processes = count.clone(), torch.distributed.get_world_size()
        torch.distributed.all_reduce(count)
    return count.clamp(min=1) / processes
