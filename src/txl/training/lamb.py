"""LAMB, from the package pytorch-optimizer (`pip install 'txl[lamb]'`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pytorch_optimizer import Lamb
from torch import nn


def lamb(
    parameters: Iterable[nn.Parameter], lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return LAMB (You et al. 2020): Adam's step, of a length in proportion to that of the parameters.

    As in NVIDIA's Transformer-XL: no correction of the moments at the beginning, the decay is part of the
    step whose length is scaled, and the norm of the parameters counts as at most 10.

    Raises:
        ValueError: a learning rate, eps or decay below 0, or a beta outside [0, 1).
    """
    if lr < 0.0:  # theirs is no ValueError
        raise ValueError(f"Invalid learning rate: {lr}")
    return Lamb(
        parameters,
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        weight_decouple=False,
        adam_debias=True,  # what they call so leaves the first moment as it is
    )
