"""Mean and deviation over seeds, and whether two rows differ by more than the seed noise.

The module `statistics` calculates with exact fractions, so that every machine writes the same digits.
"""

import math
import statistics
from dataclasses import dataclass

CONFIDENCE = 0.95  # of the interval around a difference
PANELS = 200  # of Simpson's rule; the error is far below the printed digits


@dataclass(frozen=True)
class Sample:
    """The mean of a row over its seeds."""

    mean: float
    deviation: float | None  # sample standard deviation (n - 1 in the denominator); `None` for one value
    n: int


@dataclass(frozen=True)
class Difference:
    """The difference of two means with its 95 % interval."""

    value: float  # the mean of a row minus that of the reference
    half_width: float | None  # of the interval; `None` if a row has one seed, so that its noise is unknown

    @property
    def exceeds_noise(self) -> bool | None:
        """Whether the interval excludes zero; `None` if the noise is unknown."""
        return None if self.half_width is None else abs(self.value) > self.half_width


def sample_of(values: list[float]) -> Sample | None:
    """Return mean and sample standard deviation of finite values; `None` if there are none."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Sample(statistics.mean(values), deviation, len(values))


def difference(row: Sample, reference: Sample) -> Difference:
    """Return the difference of a row from the reference, with Welch's interval for unequal variances.

    B. L. Welch, "The generalization of 'Student's' problem when several different population variances are
    involved", Biometrika 34 (1947).
    """
    value = row.mean - reference.mean
    if row.deviation is None or reference.deviation is None:
        return Difference(value, None)
    first, second = row.deviation**2 / row.n, reference.deviation**2 / reference.n
    if not first + second:  # all seeds of a row gave the same number
        return Difference(value, 0.0)
    freedom = (first + second) ** 2 / (first**2 / (row.n - 1) + second**2 / (reference.n - 1))
    return Difference(value, t_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(first + second))


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of the upper half of Student's t distribution.

    Args:
        probability: from 0.5 on, below 1.
        freedom: degrees of freedom, at least 1; may be fractional.

    Raises:
        ValueError: an argument is outside its range.
    """
    if not (0.5 <= probability < 1 and freedom >= 1):
        raise ValueError(
            f"expected a probability in [0.5, 1) and freedom >= 1, not {probability} and {freedom}"
        )
    low, high = 0.0, 1.0
    while t_distribution(high, freedom) < probability:
        low, high = high, 2 * high
    while high - low > 1e-11 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_distribution(middle, freedom) < probability else (low, middle)
    return high


def t_distribution(t: float, freedom: float) -> float:
    """Return the probability that Student's t is below `t` >= 0, by Simpson's rule.

    With t = sqrt(freedom) tan(angle), the density is a constant times cos(angle)^(freedom - 1).
    """
    end = math.atan(t / math.sqrt(freedom))
    heights = [math.cos(end * i / (2 * PANELS)) ** (freedom - 1) for i in range(2 * PANELS + 1)]
    area = math.fsum(
        [heights[0], heights[-1], *(4 * h for h in heights[1::2]), *(2 * h for h in heights[2:-1:2])]
    )
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 0.5 + constant * area * end / (6 * PANELS)
