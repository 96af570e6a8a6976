"""Muon for the matrices of a model's blocks, and AdamW for all else, as one optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.training.optimizer import without_compiler
from normbench.types import Model, Placement

FUSES = ("cpu", "cuda", "mps")  # devices on which torch's AdamW is one kernel


class MuonAdamW(torch.optim.Optimizer):
    """Steps along orthogonalized momentum for matrices (Jordan et al. 2024), and as AdamW for other parameters.

    B ← μB + (1−μ)G, and with Nesterov's form M = μB + (1−μ)G, else M = B. Five Newton–Schulz iterations, of the
    coefficients (3.4445, −4.7750, 2.0315) and in bfloat16, bring the singular values of M near 1: O. Then
    W ← (1 − ηλ)W − 0.2·√max(rows, columns)·ηO, so that a step is as large as one of AdamW usually is, and one
    learning rate η serves both (Liu et al. 2025, §2.2; MoonshotAI/Moonlight `toy_train.py:146`@c2ad5b2). Jordan et
    al. have √max(1, rows/columns) in the place of 0.2·√max(rows, columns) (KellerJordan/Muon `muon.py:40`@857d1ad):
    their η is 0.2·√columns times ours for the same step, whether a matrix is wide or tall. The momentum of Liu et al.
    is without the factor 1−μ, which does not matter, since O does not depend on the scale of M.

    A group is of matrices where it has `parts`: so many matrices lie in each of its parameters one below the other,
    as queries, keys and values do, and each is orthogonalized by itself. A kernel of a convolution is a matrix with a
    row for each output channel.

    Attributes:
        found_inf: where it is set, as a GradScaler and the guard of a GPU do for torch's fused optimizers, a step while
            it is 1 changes nothing, and nobody waits to read it.
    """

    can_skip = True
    found_inf: Tensor | None = None

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
            raise UsageError(f"optim=muon needs torch 2.9 or newer, and this is {torch.__version__}: install it")
        groups = [{**group} for group in params]
        device = groups[0]["params"][0].device
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        make_muon: Any = without_compiler(torch.optim.Muon)
        make_adamw: Any = without_compiler(torch.optim.AdamW)
        # these two keep nothing: each step lends them the groups and the state, and their defaults complete the groups
        self.muon: torch.optim.Optimizer = make_muon(
            [torch.empty(0, 0)], **shared, momentum=momentum, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
        )
        self.adamw: torch.optim.Optimizer = make_adamw(
            [torch.empty(0, device=device)], **shared, betas=tuple(betas), eps=eps, fused=device.type in FUSES
        )
        for group in groups:
            stepper = self.muon if "parts" in group else self.adamw
            for name, value in stepper.defaults.items():
                group.setdefault(name, value)
        super().__init__(groups, shared)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is called
        """Move all parameters that have a gradient."""
        others = []
        for group in self.param_groups:
            if "parts" in group:
                self.step_matrices(group)
            else:
                others.append(group)
        self.adamw.param_groups = others
        self.adamw.state = self.state
        vars(self.adamw)["found_inf"] = self.found_inf
        self.adamw.step()

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


def matrices_in_blocks(model: Model, norms: Iterable[nn.Module]) -> dict[nn.Parameter, int]:
    """Return the matrices and kernels of a model's blocks, with the number of maps that are fused in each.

    Those that a placement learns beside its branches, as hyper-connections do, are none of these.

    Args:
        norms: of the model, whose parameters are none of these.
    """
    in_norms = set[nn.Parameter]()
    for norm in norms:
        in_norms.update(norm.parameters())
    matrices = dict[nn.Parameter, int]()
    for block in model.anatomy().blocks:
        parts_of_block = nn.ModuleList([block.module])
        if isinstance(block.module, Placement):
            parts_of_block = nn.ModuleList(block.branches.values())
        for module in parts_of_block.modules():
            if isinstance(module, nn.Embedding | parametrize.ParametrizationList):
                continue
            parts = getattr(module, "parts", 1) if isinstance(module, nn.Linear) else 1  # of a FusedLinear
            parameters = list(module.parameters(recurse=False))
            if parametrize.is_parametrized(module):  # a treatment of weights: what it makes the weight of
                treated: Any = module.parametrizations  # a ModuleDict
                parameters += [parametrization.original for parametrization in treated.values()]
            for parameter in parameters:
                if parameter.ndim >= 2 and parameter not in in_norms:
                    matrices[parameter] = parts
    return matrices


def separate_matrices(groups: Iterable[dict[str, Any]], matrices: Mapping[nn.Parameter, int]) -> list[dict[str, Any]]:
    """Return groups of matrices, which have `parts`, and then groups of all else.

    Args:
        groups: those of `parameter_groups`.
        matrices: with the number of parts of each.

    Raises:
        UsageError: there is no matrix, or none is trained.
    """
    of_matrices = list[dict[str, Any]]()
    of_others = list[dict[str, Any]]()
    for group in groups:
        by_parts = defaultdict[int, list[nn.Parameter]](list)
        others = list[nn.Parameter]()
        for parameter in group["params"]:
            if parameter in matrices:
                by_parts[matrices[parameter]].append(parameter)
            else:
                others.append(parameter)
        for parts, parameters in sorted(by_parts.items()):
            of_matrices.append({**group, "params": parameters, "parts": parts})
        if others:
            of_others.append({**group, "params": others})
    if not of_matrices and matrices:
        what = "optim=muon is for the matrices of blocks, and trainer.train leaves none of them to be trained"
        raise UsageError(f"{what}: set optim=adamw, which trains all else with muon too, or trainer.train=all")
    if not of_matrices:
        raise UsageError("optim=muon finds no matrix in the blocks of this model: use optim=adamw")
    return of_matrices + of_others
