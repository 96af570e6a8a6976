"""How far what runs a norm is from the norm in float64, on inputs that tell implementations apart."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normbench.studies.candidates import Candidate, code_of
from normbench.types import keep_buffers

EXPORTED = "exported"

# What a norm is given: standard normal numbers `(1, rows, features)` in float64 to an input as large.
INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "ordinary": lambda normal: normal,
    "constant rows": lambda normal: (10 * normal[..., :1]).expand_as(normal),
    "±1e37": lambda normal: 1e37 * normal.sign(),  # whose square float32 and bfloat16 do not have
    "±0.001": lambda normal: 1e-3 * normal.sign(),  # whose square is no longer large beside an eps
    "mean of 1,000 sd": lambda normal: normal + 1000,
}


class Drift(NamedTuple):
    """How far results are from float64's; infinite where they are not finite, and float64's are.

    Attributes:
        output: the largest difference, as a share of the largest expected output, or of 1 where all are smaller.
        gradient: that of the input's gradient, as a share of the largest expected one.
    """

    output: float
    gradient: float


def inputs_for(rows: int, features: int, dtype: torch.dtype) -> Iterator[tuple[str, Float[Tensor, "1 rows features"]]]:
    """Yield each input by its name, but for those that the format does not have."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(1, rows, features, generator=generator, dtype=torch.float64)
    for name, make in INPUTS.items():
        x = make(normal).to(dtype)
        if x.isfinite().all():
            yield name, x


def measure_drift(norm: nn.Module, reference: nn.Module, x: Tensor, dy: Tensor) -> Drift:
    """Return how far a norm's output and the gradient of its input are from those in float64, of the same input.

    Args:
        norm: that is measured, whose running statistics stay as they are.
        reference: the same norm in float64 and in the same mode, which takes over parameters and running statistics.
        x: the input.
        dy: a gradient of the output, `x`'s shape.
    """
    reference.load_state_dict(norm.state_dict())
    with keep_buffers(norm):
        y, dx = run(norm, x, dy)
    expected_y, expected_dx = run(reference, x.double(), dy.double())
    return Drift(distance(y, expected_y, least=1.0), distance(dx, expected_dx, least=0.0))


def run(norm: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return a norm's output, and the gradient of its input."""
    leaf = x.detach().clone().requires_grad_()
    y = norm(leaf)
    (dx,) = torch.autograd.grad(y, leaf, dy.to(y.dtype))
    return y.detach(), dx


def distance(found: Tensor, expected: Tensor, least: float) -> float:
    """Return the largest difference as a share of the largest expected value. least: the share is of this at least."""
    if not found.isfinite().all():
        return float("inf") if expected.isfinite().all() else float("nan")
    size = max(expected.abs().max().item(), least)
    largest = (found.double() - expected).abs().max().item()
    return largest / size if largest else 0.0


def export_norm(norm: nn.Module, x: Tensor) -> Candidate:
    """Return a norm as torch.export gives it to other runtimes: in evaluation mode, as core operators.

    Raises:
        Exception: whatever torch.export raises where it cannot.
    """
    code = code_of(norm)
    with warnings.catch_warnings(action="ignore"):
        program = torch.export.export(copy.deepcopy(norm).eval(), (x,))
        exported = program.run_decompositions().module()
    return Candidate(EXPORTED, f"torch.export of {code}", exported)
