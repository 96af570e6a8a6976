"""One forward pass before anything is written, so that what does not fit leaves no run directory behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import ContractError, UsageError
from normbench.types import Data, Model

EXAMPLES = 2  # enough for every statistic that a larger batch can give


@torch.no_grad()
def rehearse(model: Model, norms: Mapping[str, nn.Module], data: Data, device: torch.device) -> None:
    """Run the start of the first batch through the model, as in training; buffers and generators stay as they are.

    Raises:
        UsageError: a norm changes its input's shape or dtype, or takes a statistic over one value; the logits are
            misshaped.
    """
    batch = data.train_batch(0).map(lambda tensor: tensor[:EXAMPLES].to(device))
    with untouched(model, device), watched(norms):
        logits = model.train()(*batch.arguments)
    expected = (*batch.targets.shape, data.task.num_classes)
    if logits.shape != expected:
        raise UsageError(
            f"the model's logits have the shape {tuple(logits.shape)}, and the data need {expected}: change its forward"
        )


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put running statistics and random numbers back at the end."""
    buffers = [(module, name, buffer, buffer.clone()) for module in model.modules()
               for name, buffer in module.named_buffers(recurse=False)]  # fmt: skip
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
    for module, name, buffer, before in buffers:
        setattr(module, name, buffer.copy_(before))  # a module may have put another tensor in its place


@contextmanager
def watched(norms: Mapping[str, nn.Module]) -> Iterator[None]:
    """Check the shape and, where autocast does not choose it, the dtype of what each norm returns."""
    hooks = [norm.register_forward_hook(partial(check_shape, site)) for site, norm in norms.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_shape(site: str, norm: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
    """Raises ContractError unless the output is a tensor of the input's shape and dtype."""
    x, returned = inputs[0], getattr(output, "shape", None)
    given = tuple(x.shape)
    if returned != x.shape:
        what = f"the shape {tuple(returned)}" if returned is not None else f"a {type(output).__name__}"
        raise ContractError(
            f"{type(norm).__name__} returns {what} for an input of {given} at {site}: a norm keeps its input's shape"
        )
    if output.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ContractError(
            f"{type(norm).__name__} returns {output.dtype} for an input of {x.dtype} at {site}: a norm keeps its "
            "input's dtype, end its forward with .to(x.dtype)"
        )
