"""The learning rate over the steps."""

import itertools
import math

import pytest

from txl.training.schedules import constant, cosine, inverse_square_root


def test_cosine_rises_to_one_and_falls_to_the_floor():
    factors = [cosine(step, total=100, warmup_steps=10, floor=0.1) for step in range(101)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.1 + 0.9 / 2)
    assert factors[100] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(factors[9:]))


def test_the_authors_pytorch_cosine_begins_at_the_first_step():
    falling = [cosine(step, total=100, warmup_steps=10, subtract_warmup=False) for step in range(101)]
    assert falling[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert falling[10:] == pytest.approx([0.5 * (1 + math.cos(math.pi * s / 100)) for s in range(10, 101)])


def test_without_warm_up_it_begins_at_the_top():
    assert cosine(0, total=10, warmup_steps=0) == 1.0
    assert cosine(5, total=10, warmup_steps=0) == pytest.approx((1 + math.cos(math.pi / 2)) / 2)


def test_a_warm_up_longer_than_the_training_only_rises():
    assert [cosine(step, total=4, warmup_steps=8) for step in range(4)] == pytest.approx(
        [1 / 8, 2 / 8, 3 / 8, 4 / 8]
    )


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="warmup_steps"):
        cosine(0, total=10, warmup_steps=-1)
    with pytest.raises(ValueError, match="floor"):
        cosine(0, total=10, warmup_steps=1, floor=2.0)
    for schedule in (constant, inverse_square_root):
        with pytest.raises(ValueError, match="warmup_steps"):
            schedule(0, total=10, warmup_steps=-1)


def test_the_inverse_square_root_is_vaswanis_scaled_to_one():
    """min(s^-0.5, s·w^-1.5) of "Attention is all you need", times w^0.5; s counts from 1."""
    for warmup in (1, 16, 400):
        vaswani = [min(s**-0.5, s * warmup**-1.5) for s in range(1, 1001)]
        factors = [inverse_square_root(step, total=7, warmup_steps=warmup) for step in range(1000)]
        assert factors == pytest.approx([factor * warmup**0.5 for factor in vaswani])
        assert max(factors) == factors[warmup - 1] == 1.0
    assert inverse_square_root(3, total=7, warmup_steps=0) == 0.5


def test_constant_stays_after_the_warm_up():
    assert [constant(step, total=9, warmup_steps=4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert constant(0, total=9, warmup_steps=0) == 1.0
