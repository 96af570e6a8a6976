"""Adam and Muon that keep each matrix of a model's blocks at the norm with which it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.training.matrices import MatrixOptimizer
from normbench.training.muon import MuonAdamW
from normbench.types import KEEPS_NORM

SMALLEST = 1e-10  # what a norm is divided by at the least

Rate = Annotated[
    float,
    Setting(
        "peak learning rate of matrices: a step as a share of their norm; sweep.lr=each chooses", above=0, high=1e3
    ),
]
AdamRate = Annotated[float, Setting("peak learning rate of AdamW, which has all but the matrices", above=0, high=1e3)]
Decay = Annotated[
    float, Setting("decay of embeddings, stem and head; matrices of blocks, norms and biases have none", low=0, high=10)
]
Betas = Annotated[list[float], Setting("Adam's averaging factors", length=2, low=0, below=1)]
Eps = Annotated[float, Setting("added to Adam's denominator", low=0, high=1)]


class AdamH(MatrixOptimizer):
    """Adam's steps for matrices, whose norms stay, and AdamW for other parameters (Wen et al. 2026).

    V = W − η·R·u/‖u‖, then W ← R·V/‖V‖, with the Frobenius norms ‖·‖ of one matrix, R = ‖W‖, and Adam's step u for a
    learning rate of 1: the mean gradient over the root of the mean squared one. So η is the length of a step as a share
    of the weights', whatever the width and the start of a matrix. Decay would change V by a factor alone, hence there
    is none.

    R is taken from the weights before each step, as the authors do (KellerJordan/modded-nanogpt
    `records/track_3_optimization/results/20260430_muonh/train_gpt_simple_muonh.py:197`@f411b3d), where their paper has
    the norm at the start; the two differ by rounding alone. So a checkpoint needs no more than the weights.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: Rate,
        adam_lr: AdamRate,
        weight_decay: Decay,
        betas: Betas,
        eps: Eps,
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps}
        super().__init__(keep_norms(params, adam_lr), settings)

    def step_matrices(self, group: dict[str, Any]) -> None:
        """Move the parameters of a group of matrices."""

        def step(changed: dict[str, Any]) -> None:
            self.step_as_adamw([changed])

        step_on_spheres(group, step, self.found_inf)


class MuonH(MuonAdamW):
    """Muon's steps for matrices, whose norms stay, and AdamW for other parameters (Wen et al. 2026).

    As AdamH, with Muon's orthogonalized momentum for u. It has singular values near 1, so that u/‖u‖ is it over the
    root of its rank, and no factor for the shape of a matrix is left.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: Rate,
        adam_lr: AdamRate,
        weight_decay: Decay,
        momentum: Annotated[float, Setting("Muon's momentum", low=0, below=1)],
        nesterov: Annotated[bool, Setting("Nesterov's form of Muon's momentum")],
        betas: Betas,
        eps: Eps,
    ) -> None:
        super().__init__(
            keep_norms(params, adam_lr),
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            betas=betas,
            eps=eps,
        )

    def step_matrices(self, group: dict[str, Any]) -> None:
        """Move the parameters of a group of matrices."""
        step_on_spheres(group, super().step_matrices, self.found_inf)


def keep_norms(groups: Iterable[dict[str, Any]], adam_lr: float) -> Iterator[dict[str, Any]]:
    """Yield groups of parameters: those of matrices without decay, the others with a learning rate of their own."""
    for group in groups:
        if "parts" in group:
            yield {**group, "weight_decay": 0.0, KEEPS_NORM: True}
        else:
            yield {"lr": adam_lr, **group}


def step_on_spheres(group: dict[str, Any], step: Callable[[dict[str, Any]], None], found_inf: Tensor | None) -> None:
    """Move the parameters of a group of matrices along the steps of another optimizer, each matrix on its sphere.

    Args:
        group: of matrices.
        step: the other optimizer's, for a group. It starts at 0 with a learning rate of 1, and so ends at −u.
        found_inf: where it is 1, nothing is to change.
    """
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    starts = [parameter.detach().clone() for parameter in parameters]
    torch._foreach_zero_(parameters)
    step({**group, "params": parameters, "lr": 1.0, "weight_decay": 0.0})
    for parameter, start in zip(parameters, starts, strict=True):
        matrices = matrices_of(start, group["parts"])
        directions = matrices_of(parameter.detach(), group["parts"])
        ends = list[Tensor]()
        for matrix, direction in zip(matrices, directions, strict=True):
            ends.append(move_on_sphere(matrix, direction, group["lr"]))
        end = torch.cat(ends).view_as(start)
        if found_inf is not None:
            end = torch.where(found_inf != 0, start, end)
        parameter.copy_(end)


def move_on_sphere(matrix: Tensor, direction: Tensor, lr: float) -> Tensor:
    """Return a matrix after a step along a direction, whose length is a share of its norm, and with the same norm."""
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    radius = vector_norm(matrix, dtype=dtype)
    moved = matrix + direction * (lr * radius / vector_norm(direction, dtype=dtype).clamp(min=SMALLEST))
    return moved * (radius / vector_norm(moved, dtype=dtype).clamp(min=SMALLEST))


def matrices_of(parameter: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Return the matrices that lie in a parameter one below the other."""
    return parameter.flatten(1).chunk(parts)


def check_start(model: nn.Module, groups: Iterable[Mapping[str, Any]], given: str) -> None:
    """Refuse matrices that start at 0, where they would stay.

    Args:
        model: whose weights have their start.
        groups: of its parameters, those of matrices with `parts`.
        given: the words that chose the optimizer.

    Raises:
        UsageError: there is one.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in groups:
        for parameter in group["params"] if "parts" in group else ():
            if not all(matrix.any() for matrix in matrices_of(parameter.detach(), group["parts"])):
                what = f"{given} keeps each matrix at the norm with which it starts, and {names[parameter]} starts at 0"
                raise UsageError(f"{what}, where it would stay: use another init, or optim=adamw or muon")
