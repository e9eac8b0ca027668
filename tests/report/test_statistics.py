"""Means, deviations and Welch's interval, against scipy and printed tables."""

import math
import random

import pytest

from txl.report.statistics import difference, sample_of, t_distribution, t_quantile


@pytest.mark.parametrize(
    ("freedom", "value"),  # Student's table, two-sided 95 %
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (120, 1.980), (1e6, 1.960)],
)
def test_the_quantile_is_that_of_the_printed_table(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)


def test_the_quantile_is_the_closed_form_where_there_is_one():
    for probability in (0.6, 0.9, 0.975, 0.999):
        assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
        twice = 2 * probability - 1
        of_two = twice * math.sqrt(2 / (1 - twice**2))
        assert t_quantile(probability, 2) == pytest.approx(of_two, rel=1e-9)


def test_the_distribution_and_the_interval_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(0)
    for _ in range(15):
        freedom, t = draw.uniform(1, 60), draw.uniform(0, 8)
        assert t_distribution(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-11)
        one = [draw.gauss(2.3, 0.02) for _ in range(draw.randint(2, 6))]
        other = [draw.gauss(2.3, 0.005) for _ in range(draw.randint(2, 6))]
        found = difference(sample_of(one), sample_of(other))
        test = stats.ttest_ind(one, other, equal_var=False)
        low, high = test.confidence_interval(0.95)
        assert found.value - found.half_width == pytest.approx(low, rel=1e-7)
        assert found.value + found.half_width == pytest.approx(high, rel=1e-7)
        assert found.exceeds_noise == (test.pvalue < 0.05)


def test_one_seed_has_no_noise_that_is_known():
    found = difference(sample_of([2.4]), sample_of([2.3, 2.31]))
    assert found.value == pytest.approx(0.095)
    assert found.half_width is None
    assert found.exceeds_noise is None
    assert sample_of([]) is None
    assert sample_of([2.4]).deviation is None


def test_equal_seeds_and_one_that_does_not_scatter():
    assert difference(sample_of([1.0, 1.0]), sample_of([2.0, 2.0])).exceeds_noise is True
    assert difference(sample_of([1.0, 1.0]), sample_of([1.0, 1.0])).exceeds_noise is False
    half = difference(sample_of([1.0, 1.0]), sample_of([2.0, 2.2])).half_width
    assert half == pytest.approx(12.7062 * 0.1, rel=1e-4)  # the one degree of freedom there is


def test_what_is_no_probability_is_an_error():
    with pytest.raises(ValueError, match=r"\[0.5, 1\)"):
        t_quantile(1.0, 3)
