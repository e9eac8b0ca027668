"""Checkpoints from which a run goes on as if it had never stopped.

A checkpoint is the state after a whole step, and after the validation of that step if there is one. Beside
what Lightning stores (parameters, optimizer, schedule, loss scale) it holds the place in the data, the memory
of every row, the random numbers of every process and the best validation: plain types and tensors only.
Lightning's own counters of epochs and batches are not restored but set, from the one number of steps.

`last.ckpt` is the newest, `previous.ckpt` the one before, `best.ckpt` that of the lowest validation loss,
`step-00001000.ckpt` one that is kept for good. A file has its name once it is whole and on the disk.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from torch import Tensor, distributed

from txl.data.streams.base import Streams
from txl.model import Memory
from txl.training.module import LanguageModel

log = logging.getLogger(__name__)

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
NEW = ".new.ckpt"  # one that is written and has no name yet


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place, waits until it is on the disk, and renames it.

    What cannot be written (a full disk) is said and left out; the training goes on.

    Attributes:
        failed: whether the newest could not be written.
    """

    failed = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write the checkpoint."""
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        with self.trying(checkpoint["global_step"]):
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        if self.failed:
            part.unlink(missing_ok=True)

    @contextmanager
    def trying(self, step: int) -> Iterator[None]:
        """Do what a checkpoint of this step takes; what fails of it is said and noted."""
        self.failed = False
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
            self.failed = True
            log.warning(
                "the checkpoint of step %d could not be written (%s); the one before stays, training goes on",
                step,
                str(error).splitlines()[0],
            )

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read a checkpoint onto the CPU; nothing in it can run code."""
        return torch.load(path, map_location="cpu", weights_only=True)


def newest(folder: Path) -> tuple[Path, int] | None:
    """Return the newest checkpoint that is whole, and its step; `None` if there is none at all.

    One that is damaged is named in the log.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    folder = Path(folder)
    for path in (folder / LAST, folder / PREVIOUS):
        step = _step_of(path)
        if step is not None:
            return path, step
    kept = {path: _step_of(path) for path in [folder / BEST, *folder.glob("step-*.ckpt")]}
    whole = [(path, step) for path, step in kept.items() if step is not None]
    if not whole and any(folder.glob("*.ckpt")):
        raise ValueError(
            f"no checkpoint in {folder} can be read; choose another hydra.run.dir to train from the beginning"
        )
    return max(whole, key=lambda one: one[1], default=None)


def _step_of(path: Path) -> int | None:
    """Return the step of a checkpoint; `None` if there is none, or one that is damaged, which is said."""
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:  # what torch writes; it stores checksums but reads none
            wrong = archive.testzip()
        if wrong:
            raise ValueError(f"wrong checksum of {wrong}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["global_step"]
    except Exception as error:  # whatever a damaged file makes torch raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("%s is damaged (%s); trying the one before", path, reason)
        return None


class Checkpoints(pl.Callback):
    """Saves, keeps and restores the whole state of a training.

    Args:
        folder: of the checkpoints.
        every: steps between checkpoints; each validation is followed by one too.
        validate_every: steps between validations.
        keep_every: steps between checkpoints that are kept for good; `None` for none.
        streams: the training data.
        seed: of the run.
        files: what writes them.

    Attributes:
        best: the lowest validation loss so far.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        validate_every: int,
        keep_every: int | None,
        streams: Streams,
        seed: int,
        files: WholeFiles,
    ) -> None:
        self.folder, self.every, self.keep_every = Path(folder), every, keep_every
        self.validate_every = validate_every
        self.streams, self.seed, self.files = streams, seed, files
        self.best = float("inf")
        self.saved = -1  # the step of the last checkpoint
        self._random: Mapping[str, Any] | None = None

    def validation_due(self, trainer: pl.Trainer, module: LanguageModel) -> bool:
        """Return whether the step that was done is still to be validated."""
        step = trainer.global_step
        return step > 0 and step % self.validate_every == 0 and module.validated_at != step

    def on_train_batch_end(self, trainer: pl.Trainer, module: LanguageModel, *_: Any) -> None:
        """Save if it is time, unless a validation comes first."""
        step = trainer.global_step
        due = step % self.every == 0 or (self.keep_every and step % self.keep_every == 0)
        if due and not self.validation_due(trainer, module):
            self.save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Save, as the best if it is."""
        if trainer.state.fn == "fit":
            before, self.best = self.best, min(self.best, module.scores.loss)
            if not self.save(trainer, best=self.best < before):
                self.best = before

    def on_train_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Save the last step."""
        if self.saved != trainer.global_step:
            self.save(trainer)

    def save(self, trainer: pl.Trainer, best: bool = False) -> bool:
        """Write a checkpoint under all of its names; return whether it could be written.

        `last.ckpt` comes last: from what is there before, a run goes on to write the same again.
        """
        step, new, last = trainer.global_step, self.folder / NEW, self.folder / LAST
        names = [BEST] if best else []
        if self.keep_every and step % self.keep_every == 0:
            names.append(f"step-{step:08}.ckpt")
        trainer.save_checkpoint(new)
        if trainer.is_global_zero and not self.files.failed:
            with self.files.trying(step):
                if last.exists() and self.saved != step:
                    link(last, self.folder / PREVIOUS)
                for name in names:
                    link(new, self.folder / name)
                os.replace(new, last)
        written = trainer.strategy.broadcast(not self.files.failed)
        if written:
            self.saved = step
        return written

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: LanguageModel, checkpoint: dict[str, Any]
    ) -> None:
        """Add all that Lightning does not know. Every process takes part; the first one writes."""
        checkpoint["resume"] = {
            "streams": self.streams.state_dict(),
            "memory": _gathered(module.memory),
            "random": _of_all(random_state()),
            "best": self.best,
            "validated_at": module.validated_at,
        }

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: LanguageModel, checkpoint: dict[str, Any]
    ) -> None:
        """Take all of it back, before Lightning restores parameters and optimizer."""
        if trainer.state.fn != "fit":
            return
        progress, step = checkpoint["resume"], checkpoint["global_step"]
        self.streams.load_state_dict(progress["streams"])
        self.best, module.validated_at, self.saved = progress["best"], progress["validated_at"], step
        memory, rows = progress["memory"], torch.from_numpy(self.streams.rows)
        if memory is not None:
            states = tuple(layer[rows].to(trainer.strategy.root_device) for layer in memory["states"])
            module.memory = Memory(states, memory["length"][rows].to(trainer.strategy.root_device))
        if len(progress["random"]) == trainer.world_size:
            self._random = progress["random"][trainer.global_rank]
        # Lightning would go on inside an epoch by its own rules, different for each moment of saving. The
        # streams know the place; of its loops we need that they count on from this step.
        checkpoint.pop("loops", None)
        loop = trainer.fit_loop.epoch_loop
        loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
        loop.automatic_optimization.optim_progress.optimizer.step.total.ready = step
        loop.batch_progress.total.ready = step
        loop._batches_that_stepped = step

    def on_train_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Restore the random numbers, the last thing before the first step; finish what was interrupted."""
        if self._random is not None:
            set_random_state(self._random)
        elif trainer.global_rank or trainer.global_step:
            # Another dropout in each process, and after a change of their number another one than before.
            seed = self.seed + 1_000_003 * trainer.global_step + trainer.global_rank
            pl.seed_everything(seed % 2**32, verbose=False)
        if self.validation_due(trainer, module):
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True


def random_state() -> dict[str, Any]:
    """Return the state of every source of random numbers of this process."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def _gathered(memory: Memory | None) -> dict[str, Any] | None:
    """Return the memory of the rows of all processes, `[B, M, D]` of each layer, on the CPU."""
    if memory is None:
        return None
    return {
        "states": [_rows_of_all(states) for states in memory.states],
        "length": _rows_of_all(memory.length),
    }


def _rows_of_all(tensor: Tensor) -> Tensor:
    if not (distributed.is_available() and distributed.is_initialized()):
        return tensor.contiguous().cpu()  # a part of a larger tensor would be saved with all of it
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor.contiguous())
    return torch.cat([part.cpu() for part in parts])


def _of_all(value: Any) -> list[Any]:
    """Return the values of all processes, by rank."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def link(path: Path, name: Path) -> None:
    """Give a file a second name, at once; what had that name is gone."""
    part = name.with_name(f".{name.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:  # a file system where a file has one name
        shutil.copyfile(path, part)
    os.replace(part, name)
