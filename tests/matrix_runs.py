"""What tests of optimizers that take matrices as matrices share: small models' words, gradients and steps."""

from __future__ import annotations

import torch
from torch import nn

from normbench.training.loop import Loop

TRANSFORMER = ["model=nano", "model.depth=1", "model.width=16", "model.heads=2", "model.context=16", "data=pydocs"]
CNN = ["model=cnn", "model.width=4", "data=digits", "data.batch_size=16", "norm=batchnorm"]


def draw_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    """Give each parameter a gradient that lies in memory as the parameter does, as autograd's do.

    Parameters of two dtypes get the same numbers, but for rounding.
    """
    random = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        drawn = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        parameter.grad = torch.empty_like(parameter).copy_(drawn)


def take_step(loop: Loop, number: int) -> None:
    """Take the training step of a number, without what a run does around it."""
    stepper = loop.stepper
    stepper.set_learning_rates(number)
    stepper.gradients(stepper.local_batches(number))
    stepper.update()
