"""Learning-rate schedules: functions from the step to the factor of the learning rate, one option each."""

from __future__ import annotations

import math


def cosine(step: int, total: int, warmup_steps: int, floor: float = 0.0) -> float:
    """Rise linearly for `warmup_steps`, then fall along half a cosine to `floor` at the last step.

    The cosine begins where the warm-up ends, as in the authors' TensorFlow code.

    Args:
        step: the step to come, from 0.
        total: the steps of the whole training.
        warmup_steps: steps until the full learning rate is reached.
        floor: the factor at the end.

    Raises:
        ValueError: a negative warm-up, or a floor outside [0, 1].
    """
    if warmup_steps < 0:
        raise ValueError(f"schedule.warmup_steps={warmup_steps} must be 0 or more")
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"schedule.floor={floor} must be from 0 to 1")
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, total - warmup_steps))
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
