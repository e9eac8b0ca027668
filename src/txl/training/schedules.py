"""Learning-rate schedules: the factor of the learning rate at `step`, from 0, of `total` steps.

All raise ValueError if `warmup_steps` is negative.
"""

import math


def cosine(
    step: int, total: int, warmup_steps: int, floor: float = 0.0, subtract_warmup: bool = True
) -> float:
    """Rise linearly for `warmup_steps`, then fall along half a cosine to `floor` at the last step.

    Args:
        subtract_warmup: the cosine begins where the warm-up ends, as in the authors' TensorFlow code;
            otherwise at the first step, as in their PyTorch code.

    Raises:
        ValueError: a floor outside [0, 1].
    """
    warmed = warmup(step, warmup_steps)
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"schedule.floor={floor} must be from 0 to 1")
    if step < warmup_steps:
        return warmed
    start = warmup_steps if subtract_warmup else 0
    done = min(1.0, (step - start) / max(1, total - start))
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))


def inverse_square_root(step: int, total: int, warmup_steps: int) -> float:
    """Rise linearly for `warmup_steps`, then fall as 1 / √step (Vaswani et al. 2017).

    The peak is 1, so that the learning rate of the optimizer is the highest.
    """
    return min(warmup(step, warmup_steps), math.sqrt(max(warmup_steps, 1) / (step + 1)))


def constant(step: int, total: int, warmup_steps: int) -> float:
    """Rise linearly for `warmup_steps`, then stay."""
    return warmup(step, warmup_steps)


def warmup(step: int, warmup_steps: int) -> float:
    """Return the factor of a linear warm-up; 1 after it."""
    if warmup_steps < 0:
        raise ValueError(f"schedule.warmup_steps={warmup_steps} must be 0 or more")
    return min(1.0, (step + 1) / max(warmup_steps, 1))
