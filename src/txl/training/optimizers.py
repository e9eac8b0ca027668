"""Optimizers, one function each, with settings that `conf/optimizer/` fills in. LAMB is in `lamb.py`."""

from collections.abc import Iterable

import torch
from torch import nn


def adam(parameters: Iterable[nn.Parameter], lr: float, beta1: float, beta2: float) -> torch.optim.Optimizer:
    """Return Adam (Kingma and Ba 2015), fused: one kernel for all parameters.

    Raises:
        ValueError: a learning rate below 0, or a beta outside [0, 1).
    """
    return torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), fused=True)


def adamw(
    parameters: Iterable[nn.Parameter], lr: float, beta1: float, beta2: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019), fused: one kernel for all parameters.

    Raises:
        ValueError: a learning rate or decay below 0, or a beta outside [0, 1).
    """
    return torch.optim.AdamW(parameters, lr=lr, betas=(beta1, beta2), weight_decay=weight_decay, fused=True)
