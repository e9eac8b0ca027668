"""Stops a training that has diverged: a loss that is not a number, or one that climbs and stays high."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import torch

WINDOW = 50  # steps: how far back the running mean reaches, more or less
BEGIN = 2 * WINDOW  # steps seen before a rise is judged


class DivergedError(RuntimeError):
    """The training has diverged: when, how, and which checkpoint is still good."""


class DivergenceGuard:
    """Sees the loss of every step.

    The loss has exploded when its running mean is more than `max_rise` above the lowest that this mean has
    been. A single bad segment moves a mean of `WINDOW` steps by little, and before `BEGIN` steps nothing is
    judged, so neither noise nor a first hump stops a training.

    Args:
        max_rise: in nats; `None` for any.
        checkpoints: the folder with the checkpoints, to name one in the message.
    """

    def __init__(self, max_rise: float | None, checkpoints: Path) -> None:
        self.max_rise, self.checkpoints = max_rise, checkpoints
        self.seen, self.mean = 0, 0.0
        self.lowest, self.lowest_step = math.inf, 0

    def check(self, step: int, loss: float) -> None:
        """Look at the mean loss of a step, counted from 1.

        Raises:
            DivergedError: it is not finite, or the running mean has risen too far.
        """
        self.check_finite(step, loss, "loss", good=step - 2)  # the weights after step - 1 gave this loss
        self.seen += 1
        # A plain mean at first, then one in which older steps count less and less.
        self.mean += (loss - self.mean) / min(self.seen, WINDOW)
        if self.seen < BEGIN:
            return
        if self.mean < self.lowest:
            self.lowest, self.lowest_step = self.mean, step
        if self.max_rise is not None and self.mean > self.lowest + self.max_rise:
            raise DivergedError(
                f"training diverged: at step {step} the running mean of the loss is {self.mean:.3f}, risen "
                f"from {self.lowest:.3f} at step {self.lowest_step} by more than trainer.max_loss_rise="
                f"{self.max_rise:g}; {self._mend(self.lowest_step)}"
            )

    def state_dict(self) -> dict[str, float]:
        """Return what has been seen so far."""
        return {name: getattr(self, name) for name in ("seen", "mean", "lowest", "lowest_step")}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from what had been seen."""
        for name, value in state.items():
            setattr(self, name, value)

    def check_finite(self, step: int, loss: float, name: str, good: int) -> None:
        """Look at a loss that has no part in the running mean.

        Args:
            step: when.
            loss: its value.
            name: what to call it.
            good: the last step whose weights have shown a finite loss.

        Raises:
            DivergedError: it is not finite.
        """
        if not math.isfinite(loss):
            raise DivergedError(f"training diverged: at step {step} the {name} is {loss}; {self._mend(good)}")

    def _mend(self, until: int) -> str:
        """Return what to do, and the newest checkpoint from no later than step `until`."""
        steps = {path: _step(path) for path in self.checkpoints.glob("*.ckpt")}
        good = {path: step for path, step in steps.items() if step <= until}
        advice = "lower optimizer.lr, lengthen schedule.warmup_steps or lower trainer.gradient_clip"
        if not good:
            return f"{advice}; no checkpoint is from before"
        newest = max(good, key=good.get)
        return f"{advice}; the last good checkpoint is {newest}, of step {good[newest]}"


def _step(path: Path) -> float:
    """Return the step of a checkpoint; of a file that is none, infinity: it is never good."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["global_step"]
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError):
        return math.inf
