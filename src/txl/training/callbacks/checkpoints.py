"""Exact checkpoints: a resumed run computes the same numbers as one that was never interrupted.

A checkpoint is the state after a whole step, and after the validation of that step if there is one. Besides
what Lightning stores (parameters, optimizer, schedule, loss scale) it holds the position in the data, the
memory of every row, the random state of every process and the best validation loss, none of which Lightning's
ModelCheckpoint stores: plain types and tensors only.

`last.ckpt` is the newest, `previous.ckpt` the one before, `best.ckpt` that of the lowest validation loss,
`step-00001000.ckpt` one that is never deleted. A file gets its name only when it is complete and on disk.
"""

import logging
import math
import os
import random
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
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
from txl.records.files import atomic_path
from txl.settings.schema import TrainerSettings
from txl.training.module import LanguageModel

log = logging.getLogger(__name__)

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
NEW = ".new.ckpt"  # written, but not yet named
State = dict[str, Any]


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints atomically. If that fails (a full disk), it logs a warning and training goes on."""

    failed = False  # whether the newest checkpoint could not be written

    def save_checkpoint(self, checkpoint: State, path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        with self.tolerating_failure(checkpoint["global_step"]):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path, "part") as part, part.open("wb") as file:
                torch.save(checkpoint, file)

    @contextmanager
    def tolerating_failure(self, step: int) -> Iterator[None]:
        """Log a failure to write this step's checkpoint, and set `failed`, instead of raising."""
        self.failed = False
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
            self.failed = True
            log.warning(
                "the checkpoint of step %d could not be written (%s); the previous one stays",
                step,
                str(error).splitlines()[0],
            )

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Load a checkpoint to the CPU, without running any code in it."""
        return torch.load(path, map_location="cpu", weights_only=True)


def newest(folder: Path) -> tuple[Path, int] | None:
    """Return the newest intact checkpoint and its step; `None` if the folder holds no checkpoint.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    for paths in ([folder / LAST], [folder / PREVIOUS], [folder / BEST, *folder.glob("step-*.ckpt")]):
        if found := newest_of(paths):
            return found
    if any(folder.glob("*.ckpt")):
        raise ValueError(
            f"no checkpoint in {folder} can be read; choose another hydra.run.dir to train from the beginning"
        )
    return None


def newest_of(paths: Iterable[Path], until: float = math.inf) -> tuple[Path, int] | None:
    """Return the intact checkpoint of the highest step up to `until`, and that step."""
    steps = [(path, _step(path)) for path in paths]
    intact = [(path, step) for path, step in steps if step is not None and step <= until]
    return max(intact, key=lambda found: found[1], default=None)


def _step(path: Path) -> int | None:
    """Return the step of a checkpoint; `None` if it does not exist or is damaged, which is logged."""
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:  # torch stores checksums in it but verifies none
            damaged = archive.testzip()
        if damaged:
            raise ValueError(f"wrong checksum of {damaged}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["global_step"]
    except Exception as error:  # a damaged file can make torch raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("%s is damaged (%s); trying the one before", path, reason)
        return None


class Checkpoints(pl.Callback):
    """Saves, keeps and restores the whole state of a training. A checkpoint follows each validation, too."""

    def __init__(self, folder: Path, settings: TrainerSettings, streams: Streams, seed: int) -> None:
        self.folder, self.settings, self.streams, self.seed = folder, settings, streams, seed
        self.files = WholeFiles()
        self.best = math.inf  # the lowest validation loss
        self.saved = -1  # the step of the last checkpoint
        self._random: Mapping[str, Any] | None = None

    def validation_due(self, trainer: pl.Trainer, module: LanguageModel) -> bool:
        """Return whether the last step is still to be validated."""
        step = trainer.global_step
        return step > 0 and step % self.settings.validate_every == 0 and module.validated_at != step

    def on_train_batch_end(self, trainer: pl.Trainer, module: LanguageModel, *_: Any) -> None:
        """Save if due, unless the validation of this step comes first."""
        step, intervals = trainer.global_step, (self.settings.checkpoint_every, self.settings.keep_every)
        due = any(every and step % every == 0 for every in intervals)
        if due and not self.validation_due(trainer, module):
            self.save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        if trainer.state.fn == "fit":
            before, self.best = self.best, min(self.best, module.scores.loss)
            if not self.save(trainer, best=self.best < before):
                self.best = before

    def on_train_end(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        if self.saved != trainer.global_step:
            self.save(trainer)

    def save(self, trainer: pl.Trainer, best: bool = False) -> bool:
        """Write a checkpoint under all of its names; return whether that succeeded.

        `last.ckpt` is replaced last: a run killed before that resumes from the old one and repeats the rest.
        """
        step, new, last = trainer.global_step, self.folder / NEW, self.folder / LAST
        names = [BEST] if best else []
        if self.settings.keep_every and step % self.settings.keep_every == 0:
            names.append(f"step-{step:08}.ckpt")
        trainer.save_checkpoint(new)
        if trainer.is_global_zero and not self.files.failed:
            with self.files.tolerating_failure(step):
                if last.exists() and self.saved != step:
                    link(last, self.folder / PREVIOUS)
                for name in names:
                    link(new, self.folder / name)
                os.replace(new, last)
        written = trainer.strategy.broadcast(not self.files.failed)
        if written:
            self.saved = step
        return written

    def on_save_checkpoint(self, trainer: pl.Trainer, module: LanguageModel, checkpoint: State) -> None:
        """Add the state that Lightning does not store; all processes take part."""
        states = [random_state()] * trainer.world_size
        if trainer.world_size > 1:
            distributed.all_gather_object(states, states[0])
        checkpoint["resume"] = {
            "streams": self.streams.state_dict(),
            "memory": _gather_memory(module.memory, trainer),
            "random": states,
            "best": self.best,
            "validated_at": module.validated_at,
        }

    def on_load_checkpoint(self, trainer: pl.Trainer, module: LanguageModel, checkpoint: State) -> None:
        """Restore that state, before Lightning restores parameters and optimizer."""
        if trainer.state.fn != "fit":
            return
        state, step = checkpoint["resume"], checkpoint["global_step"]
        self.streams.load_state_dict(state["streams"])
        self.best, module.validated_at, self.saved = state["best"], state["validated_at"], step
        if (memory := state["memory"]) is not None:
            rows, device = torch.from_numpy(self.streams.rows), trainer.strategy.root_device
            states = tuple(layer[rows].to(device) for layer in memory["states"])
            module.memory = Memory(states, memory["length"][rows].to(device))
        if len(state["random"]) == trainer.world_size:
            self._random = state["random"][trainer.global_rank]
        # Lightning resumes inside an epoch by rules that depend on when the checkpoint was saved. The
        # streams know their position, so its loops only need to continue counting from this step.
        checkpoint.pop("loops", None)
        loop = trainer.fit_loop.epoch_loop
        steps = loop.automatic_optimization.optim_progress.optimizer.step.total
        steps.completed = steps.ready = step
        loop.batch_progress.total.ready = step
        loop._batches_that_stepped = step

    def on_train_start(self, trainer: pl.Trainer, module: LanguageModel) -> None:
        """Restore the random state just before the first step, and run a validation that was interrupted."""
        if self._random is not None:
            set_random_state(self._random)
        elif trainer.global_rank or trainer.global_step:
            # Dropout must differ between processes, and from the steps before if their number has changed.
            seed = self.seed + 1_000_003 * trainer.global_step + trainer.global_rank
            pl.seed_everything(seed % 2**32, verbose=False)
        if self.validation_due(trainer, module):
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True


def random_state() -> dict[str, Any]:
    state: Any = np.random.get_state()
    kind, keys, *rest = state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def _gather_memory(memory: Memory | None, trainer: pl.Trainer) -> State | None:
    """Return the memory of the rows of all processes, `[B, M, D]` for each layer, on the CPU."""

    def all_rows(tensor: Tensor) -> Tensor:
        # A view would be saved with its whole storage.
        rows = trainer.strategy.all_gather(tensor.contiguous())
        return (rows.flatten(0, 1) if trainer.world_size > 1 else rows).cpu()

    if memory is None:
        return None
    return {"states": [all_rows(states) for states in memory.states], "length": all_rows(memory.length)}


def link(path: Path, name: Path) -> None:
    """Give a file a second name, atomically replacing the file that had it."""
    with atomic_path(name, "part") as part:
        part.unlink(missing_ok=True)
        try:
            os.link(path, part)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, part)
