"""Whether every parameter takes part."""

from __future__ import annotations

from torch import nn


def without_gradient(module: nn.Module) -> list[str]:
    """Names of the parameters that a backward pass has left without a finite gradient."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    return [name for name, parameter in trained if parameter.grad is None or not parameter.grad.isfinite().all()]
