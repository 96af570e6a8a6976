"""One pass of a whole model of another library: how it is called, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.hosts.tape import evaluating, tensors_in, without_fast_path

CallModel = Callable[[nn.Module], object]


@contextmanager
def hooked(model: nn.Module) -> Iterator[ExitStack]:
    """Run passes in evaluation mode without gradients and fused layers; hooks that the stack is given go at the end."""
    with ExitStack() as stack:
        for context in (evaluating(model), without_fast_path(), torch.no_grad()):
            stack.enter_context(context)
        yield stack


def first_output(output: Any) -> Tensor:
    """Return the first tensor of floating point of what a model gives."""
    for tensor in tensors_in(output):
        if tensor.is_floating_point():
            return tensor.clone()
    raise UsageError("the model gives no numbers")
