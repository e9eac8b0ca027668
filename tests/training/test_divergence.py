"""A training that diverges is stopped: when, what, and which checkpoint is good. A healthy one is not."""

import math
import random

import pytest
import torch

from txl.training.callbacks.divergence import BEGIN, DivergedError, DivergenceGuard


@pytest.fixture
def folder(tmp_path):
    for name, step in {"best": 100, "last": 400, "step_300": 300}.items():
        torch.save({"global_step": step}, tmp_path / f"{name}.ckpt")
    (tmp_path / "broken.ckpt").write_bytes(b"not a checkpoint")
    return tmp_path


def feed(guard: DivergenceGuard, losses) -> None:
    for step, loss in enumerate(losses, 1):
        guard.check(step, loss)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_found_at_its_step(folder, bad):
    """The weights of step 399 gave it: those of step 398 are the last that are known to be good."""
    with pytest.raises(DivergedError, match=f"at step 400 the loss is {bad};.*step_300.ckpt, of step 300"):
        feed(DivergenceGuard(None, folder), [2.0] * 399 + [bad])
    with pytest.raises(DivergedError, match=r"at step 403 the loss.*last.ckpt, of step 400"):
        feed(DivergenceGuard(None, folder), [2.0] * 402 + [bad])
    with pytest.raises(DivergedError, match="there is no earlier checkpoint"):
        feed(DivergenceGuard(None, folder), [2.0] * 50 + [bad])
    with pytest.raises(DivergedError, match=r"at step 400 the validation loss is .*last.ckpt"):
        DivergenceGuard(None, folder).check_finite(400, bad, "validation loss", good=400)


def test_a_loss_that_jumps_up_and_stays_is_stopped_soon(folder):
    """As users of the authors' code saw it: falls to 4, jumps to 8, stays there."""
    falling = [4 + 6 * math.exp(-step / 100) for step in range(350)]
    with pytest.raises(DivergedError) as stopped:
        feed(DivergenceGuard(2.0, folder), falling + [8.0] * 100)
    message = str(stopped.value)
    step = int(message.split("at step ")[1].split()[0])
    assert 350 < step < 400
    assert "at step 350 by more than trainer.max_loss_rise=2;" in message
    assert "step_300.ckpt, of step 300" in message
    feed(DivergenceGuard(None, folder), falling + [8.0] * 100)


def test_healthy_trainings_are_not_stopped(folder):
    chance = random.Random(0)
    noisy = [max(0.1, 1.5 + 8 * math.exp(-step / 50) + chance.gauss(0, 1)) for step in range(5000)]
    feed(DivergenceGuard(2.0, folder), noisy)
    hump = [10.0] * 10 + [14.0] * 30 + [9.0] * 300  # before a warm-up has done its work
    assert BEGIN > 40
    feed(DivergenceGuard(2.0, folder), hump)
    odd = [0.5] * 300 + [11.0] * 4 + [0.5] * 300  # a page in another language
    feed(DivergenceGuard(2.0, folder), odd)
