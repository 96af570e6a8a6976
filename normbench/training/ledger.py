"""What silently differs between published comparisons, written down for each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from normbench.types import Model, Norm, Placement


def parameter_counts(model: nn.Module, norms: Iterable[nn.Module]) -> dict[str, int]:
    """Count the trained parameters in the norms and outside them."""
    inside = {id(parameter): parameter.numel() for norm in norms for parameter in norm.parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    return {"in_norms": sum(inside.values()), "outside_norms": total - sum(inside.values()), "total": total}


def distinct(values: Iterable[Any]) -> Any:
    """Return the one value, or all that occur."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else found or None


def norm_entries(norms: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Return eps, its place, cast order, affine, implementation, and what each norm decided at its construction."""
    ours = [norm for norm in norms.values() if isinstance(norm, Norm)]
    settings = [norm.settings() for norm in ours]
    parameters = ("+".join(name for name, _ in norm.named_parameters()) or "none" for norm in norms.values())
    return {
        "norms": len(norms),
        "eps": distinct(eps for norm in norms.values() if isinstance(eps := getattr(norm, "eps", None), float | None)),
        "eps_place": distinct(norm.eps_place for norm in ours if norm.eps is not None),
        "cast_order": distinct(norm.cast_order for norm in ours),
        "implementation": distinct(norm.implementation for norm in ours),
        "affine_parameters": distinct(parameters),
        **{key: distinct(each[key] for each in settings if key in each) for made in settings for key in made},
    }


def make_ledger(
    model: Model, norms: Mapping[str, nn.Module], tree: Mapping[str, Any], device: torch.device
) -> dict[str, Any]:
    """Return the ledger of a run, from what was really built."""
    placement = next(module for module in model.modules() if isinstance(module, Placement))
    init = tree["init"]
    return {
        **norm_entries(norms),
        "norm_parameters_decayed": tree["trainer"]["decay_norms"],
        "parameters": parameter_counts(model, norms.values()),
        "init": str(init["_target_"]).rpartition(".")[2].lower(),
        "branch_gain": round(placement.branch_gain, 6),
        "residual_gain": round(placement.residual_gain, 6),
        "residual_scale": init.get("residual_scale"),
        "precision": tree["trainer"]["precision"],
        "float32_matrix_products": torch.get_float32_matmul_precision(),
        "batches_a_step": tree["trainer"]["accumulate"],
        "compiled": tree["trainer"]["compile"],
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
