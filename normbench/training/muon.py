"""Muon for the matrices of a model's blocks, and AdamW for all else, as one optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from torch import Tensor

from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.training.matrices import MatrixOptimizer
from normbench.training.optimizer import without_compiler


class MuonAdamW(MatrixOptimizer):
    """Steps along orthogonalized momentum for matrices (Jordan et al. 2024), and as AdamW for other parameters.

    B ← μB + (1−μ)G, and with Nesterov's form M = μB + (1−μ)G, else M = B. Five Newton–Schulz iterations, of the
    coefficients (3.4445, −4.7750, 2.0315) and in bfloat16, bring the singular values of M near 1: O. Then
    W ← (1 − ηλ)W − 0.2·√max(rows, columns)·ηO, so that a step is as large as one of AdamW usually is, and one
    learning rate η serves both (Liu et al. 2025, §2.2; MoonshotAI/Moonlight `toy_train.py:146`@c2ad5b2). Jordan et
    al. have √max(1, rows/columns) in the place of 0.2·√max(rows, columns) (KellerJordan/Muon `muon.py:40`@857d1ad):
    their η is 0.2·√columns times ours for the same step, whether a matrix is wide or tall. The momentum of Liu et al.
    is without the factor 1−μ, which does not matter, since O does not depend on the scale of M.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: Annotated[
            float, Setting("peak learning rate, Muon's and AdamW's; sweep.lr=each chooses", above=0, high=1e3)
        ],
        weight_decay: Annotated[float, Setting("decay of matrices; norms and biases have none", low=0, high=10)],
        momentum: Annotated[float, Setting("Muon's momentum", low=0, below=1)],
        nesterov: Annotated[bool, Setting("Nesterov's form of Muon's momentum")],
        betas: Annotated[list[float], Setting("AdamW's averaging factors", length=2, low=0, below=1)],
        eps: Annotated[float, Setting("added to AdamW's denominator", low=0, high=1)],
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise UsageError(f"Muon needs torch 2.9 or newer, and this is {torch.__version__}: install it")
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        make_muon: Any = without_compiler(torch.optim.Muon)
        # it keeps nothing, as AdamW: each step lends it the matrices and their state
        self.muon: torch.optim.Optimizer = make_muon(
            [torch.empty(0, 0)], **shared, momentum=momentum, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
        )
        super().__init__(params, {**shared, "betas": tuple(betas), "eps": eps}, self.muon.defaults)

    def step_matrices(self, group: dict[str, Any]) -> None:
        """Move the parameters of a group of matrices."""
        matrices = list[Tensor]()
        flattened = list[tuple[Tensor, Tensor]]()
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            weight = parameter.detach().flatten(1)
            momentum = state["momentum_buffer"].flatten(1)
            flattened += [(parameter, weight), (state["momentum_buffer"], momentum)]
            weights = weight.chunk(group["parts"])
            gradients = parameter.grad.flatten(1).chunk(group["parts"])
            momenta = momentum.chunk(group["parts"])
            for matrix, gradient, momentum_of_matrix in zip(weights, gradients, momenta, strict=True):
                matrix.grad = gradient
                self.muon.state[matrix] = {"momentum_buffer": momentum_of_matrix}
                matrices.append(matrix)
        before = list[tuple[Tensor, Tensor]]()
        if self.found_inf is not None:
            skips = self.found_inf != 0
            momenta_of_matrices = [kept["momentum_buffer"] for kept in self.muon.state.values()]
            changed = [*matrices, *momenta_of_matrices]
            before = [(tensor, tensor.clone()) for tensor in changed]
        self.muon.param_groups = [{**group, "params": matrices}]
        self.muon.step()
        for tensor, old in before:
            tensor.copy_(torch.where(skips, old, tensor))
        self.muon.state.clear()
        self.muon.param_groups = []
        for tensor, matrix in flattened:
            if matrix.data_ptr() != tensor.data_ptr():  # flattened into a copy, as kernels whose channels lie last
                tensor.copy_(matrix.view_as(tensor))
