"""Stops a training that has diverged: a loss that is not finite, or one that rises and stays high."""

import math
from dataclasses import dataclass
from pathlib import Path

from txl.training.callbacks.checkpoints import newest_of

WINDOW = 50  # steps, roughly, that the running mean covers
BEGIN = 2 * WINDOW  # steps before a rise can stop the training


class DivergedError(RuntimeError):
    pass


@dataclass
class DivergenceGuard:
    """Checks the loss of every step.

    A training has diverged when the running mean of its loss is more than `max_rise` above its minimum. One
    bad segment hardly moves a mean of `WINDOW` steps, and the first `BEGIN` steps are not judged, so neither
    noise nor an early hump stops a training.
    """

    max_rise: float | None  # in nats; None for no limit
    checkpoints: Path
    seen: int = 0
    mean: float = 0.0
    lowest: float = math.inf
    lowest_step: int = 0

    def check(self, step: int, loss: float) -> None:
        """Check the mean loss of a step, counted from 1.

        Raises:
            DivergedError: it is not finite, or the running mean has risen too far.
        """
        self.check_finite(step, loss, "loss", good=step - 2)  # the weights after step - 1 gave this loss
        self.seen += 1
        # A plain mean at first, then an exponential one.
        self.mean += (loss - self.mean) / min(self.seen, WINDOW)
        if self.seen < BEGIN:
            return
        if self.mean < self.lowest:
            self.lowest, self.lowest_step = self.mean, step
        if self.max_rise is not None and self.mean > self.lowest + self.max_rise:
            raise DivergedError(
                f"training diverged: at step {step} the running mean of the loss is {self.mean:.3f}, risen "
                f"from {self.lowest:.3f} at step {self.lowest_step} by more than trainer.max_loss_rise="
                f"{self.max_rise:g}; {self._advice(self.lowest_step)}"
            )

    def state_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("seen", "mean", "lowest", "lowest_step")}

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)

    def check_finite(self, step: int, loss: float, name: str, good: int) -> None:
        """Raise DivergedError if a loss is not finite; `good` is the last step known to have a finite one."""
        if not math.isfinite(loss):
            raise DivergedError(
                f"training diverged: at step {step} the {name} is {loss}; {self._advice(good)}"
            )

    def _advice(self, until: int) -> str:
        """Return how to fix it, and the newest checkpoint of at most step `until`."""
        advice = "lower optimizer.lr, lengthen schedule.warmup_steps or lower trainer.gradient_clip"
        good = newest_of(self.checkpoints.glob("*.ckpt"), until)
        if good is None:
            return f"{advice}; there is no earlier checkpoint"
        return f"{advice}; the last good checkpoint is {good[0]}, of step {good[1]}"
