"""Optimizers that take the matrices of a model's blocks as matrices, and leave all else to AdamW."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normbench.errors import UsageError
from normbench.training.optimizer import without_compiler
from normbench.types import Model, Placement

FUSES = ("cpu", "cuda", "mps")  # devices on which torch's AdamW is one kernel


class MatrixOptimizer(torch.optim.Optimizer):
    """Steps by a rule of its own for matrices, and as AdamW for other parameters.

    A group is of matrices where it has `parts`: so many matrices lie in each of its parameters one below the other,
    as queries, keys and values do, and each is taken by itself. A kernel of a convolution is a matrix with a row for
    each output channel.

    Attributes:
        found_inf: where it is set, as a GradScaler and the guard of a GPU do for torch's fused optimizers, a step while
            it is 1 changes nothing, and nobody waits to read it.
    """

    can_skip = True
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        adamw: Mapping[str, Any],
        of_matrices: Mapping[str, Any] | None = None,
    ) -> None:
        """Complete the groups with settings that they do not have.

        Args:
            groups: of parameters; see `separate_matrices`.
            adamw: settings of AdamW.
            of_matrices: settings of the rule for matrices; None: AdamW's.
        """
        groups = [{**group} for group in groups]
        device = groups[0]["params"][0].device
        make_adamw: Any = without_compiler(torch.optim.AdamW)
        # it keeps nothing: each step lends it the groups and the state, and its defaults complete the groups
        self.adamw: torch.optim.Optimizer = make_adamw(
            [torch.empty(0, device=device)], **adamw, fused=device.type in FUSES
        )
        for group in groups:
            settings = self.adamw.defaults
            if of_matrices is not None and "parts" in group:
                settings = dict(of_matrices)
            for name, value in settings.items():
                group.setdefault(name, value)
        super().__init__(groups, {"lr": adamw["lr"], "weight_decay": adamw["weight_decay"]})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is called
        """Move all parameters that have a gradient."""
        others = []
        for group in self.param_groups:
            if "parts" in group:
                self.step_matrices(group)
            else:
                others.append(group)
        self.step_as_adamw(others)

    @abstractmethod
    def step_matrices(self, group: dict[str, Any]) -> None:
        """Move the parameters of a group of matrices."""

    def step_as_adamw(self, groups: list[dict[str, Any]]) -> None:
        """Move the parameters of some groups as AdamW does."""
        self.adamw.param_groups = groups
        self.adamw.state = self.state
        vars(self.adamw)["found_inf"] = self.found_inf
        self.adamw.step()


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


def separate_matrices(
    groups: Iterable[dict[str, Any]], matrices: Mapping[nn.Parameter, int], given: str
) -> list[dict[str, Any]]:
    """Return groups of matrices, which have `parts`, and then groups of all else.

    Args:
        groups: those of `parameter_groups`.
        matrices: with the number of parts of each.
        given: the words that chose the optimizer, such as `optim=muon`.

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
        what = f"{given} is for the matrices of blocks, and trainer.train leaves none of them to be trained"
        raise UsageError(f"{what}: set optim=adamw, which trains all else in any case, or trainer.train=all")
    if not of_matrices:
        raise UsageError(f"{given} finds no matrix in the blocks of this model: use optim=adamw")
    return of_matrices + of_others
