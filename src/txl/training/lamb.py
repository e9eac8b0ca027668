"""LAMB, from the package pytorch-optimizer (`pip install 'txl[lamb]'`)."""

from collections.abc import Iterable

import torch
from pytorch_optimizer import Lamb
from torch import nn


def lamb(
    parameters: Iterable[nn.Parameter], lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return LAMB (You et al. 2020): Adam's step, scaled in proportion to the norm of the parameters.

    As in NVIDIA's Transformer-XL: no bias correction of the moments, weight decay is part of the step that is
    scaled, and the norm of the parameters is clamped to 10.

    Raises:
        ValueError: a learning rate, eps or decay below 0, or a beta outside [0, 1).
    """
    if lr < 0.0:  # the package raises another error
        raise ValueError(f"Invalid learning rate: {lr}")
    return Lamb(
        parameters,
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        weight_decouple=False,
        adam_debias=True,  # in this package, no bias correction of the first moment
    )
