"""The ledger of a run: what silently differs between published comparisons, read from what was really built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from normbench.settings import Tree
from normbench.types import KEEPS_NORM, Model, Norm, Placement


def make_ledger(model: Model, norms: Mapping[str, nn.Module], tree: Tree, device: torch.device) -> dict[str, Any]:
    """Return the ledger of a run; where norms or placements differ in a fact, it lists all values that occur."""
    trainer = tree["trainer"]
    init = tree["init"]
    init_class = str(init["_target_"]).rpartition(".")[2]
    return {
        **norm_rows(list(norms.values())),
        "norm_parameters_decayed": trainer["decay_norms"],
        **dtype_row(trainer),
        "parameters": parameter_counts(model, norms.values()),
        "init": init_class.lower(),
        **gain_rows(model),
        "residual_scale": init.get("residual_scale"),
        **share_row(tree),
        **model.ledger(),
        "precision": trainer["precision"],
        "float32_matrix_products": torch.get_float32_matmul_precision(),
        "batches_a_step": trainer["accumulate"],
        "compiled": trainer["compile"],
        "threads": torch.get_num_threads(),
        "device": str(device),
    }


def norm_rows(norms: Sequence[nn.Module]) -> dict[str, Any]:
    """Return what the norms are: how many, their eps, what they compute in which order, and their own settings."""
    values_by_key: dict[str, list[Any]] = {
        "eps": [],
        "eps_place": [],
        "cast_order": [],
        "implementation": [],
        "affine_parameters": [],
    }
    for norm in norms:
        eps = getattr(norm, "eps", None)
        if isinstance(eps, float):  # another library's may be anything
            values_by_key["eps"].append(eps)
        names = [name for name, _ in norm.named_parameters()]
        values_by_key["affine_parameters"].append("+".join(names) or "none")
        if not isinstance(norm, Norm):
            continue
        if norm.eps is not None:
            values_by_key["eps_place"].append(norm.eps_place)
        values_by_key["cast_order"].append(norm.cast_order)
        values_by_key["implementation"].append(norm.implementation)
        for key, value in norm.settings().items():  # as they were decided at construction
            values_by_key.setdefault(key, []).append(value)
    rows: dict[str, Any] = {"norms": len(norms)}
    for key, values in values_by_key.items():
        rows[key] = find_distinct(values)
    return rows


def gain_rows(model: Model) -> dict[str, Any]:
    """Return by how much the placements scale the branches' weights and the residual stream."""
    branch_gains: list[float] = []
    residual_gains: list[float] = []
    for module in model.modules():
        if isinstance(module, Placement):
            branch_gains.append(round(module.branch_gain, 6))
            residual_gains.append(round(module.residual_gain, 6))
    return {"branch_gain": find_distinct(branch_gains), "residual_gain": find_distinct(residual_gains)}


def kept_norms_row(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return how many matrices have a norm that the optimizer keeps, and so no decay, where there are any."""
    kept = count_kept_norms(optimizer)
    return {"matrices_kept_at_their_norm": kept} if kept else {}


def count_kept_norms(optimizer: torch.optim.Optimizer) -> int:
    """Count the matrices whose norm the optimizer keeps."""
    number = 0
    for group in optimizer.param_groups:
        if group.get(KEEPS_NORM):
            number += group["parts"] * len(group["params"])
    return number


def dtype_row(trainer: Tree) -> dict[str, Any]:
    """Return in which number format the norms' parameters are kept, where that is not float32."""
    dtype = trainer.get("norm_dtype", "fp32")
    return {} if dtype == "fp32" else {"norm_parameters_dtype": dtype}


def share_row(tree: Tree) -> dict[str, Any]:
    """Return which share of the training data is used, where it is not all."""
    share = tree.get("data", {}).get("train_share", 1)
    return {} if share == 1 else {"train_share": share}


def parameter_counts(model: nn.Module, norms: Iterable[nn.Module]) -> dict[str, int]:
    """Count the parameters in the norms and outside them, and those that are trained where that is not all."""
    sizes: dict[int, int] = {}
    for norm in norms:
        for parameter in norm.parameters():
            sizes[id(parameter)] = parameter.numel()  # norms may share one
    inside = sum(sizes.values())
    total = trained = 0
    for parameter in model.parameters():
        total += parameter.numel()
        if parameter.requires_grad:
            trained += parameter.numel()
    counts = {"in_norms": inside, "outside_norms": total - inside, "total": total}
    if trained < total:
        counts["trained"] = trained
    return counts


def find_distinct(values: Iterable[Any]) -> Any:
    """Return the value if all are the same, a list of those that occur if not, and None where there are none."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct[0]
    return distinct or None
