"""Which part of a run something is, and the checks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from normbench import assembly
from normbench.checking import behaviour, data, models, norms, placements
from normbench.checking.bfloat16 import bfloat16_error
from normbench.checking.matrix import GROUNDS, STEPS, Ground, over_placements
from normbench.checking.outcomes import Check, Outcome, passed
from normbench.config import Tree
from normbench.errors import UsageError
from normbench.keys import show
from normbench.targets import product
from normbench.types import Branch, Data, Model, Placement

BASES: dict[str, type] = {"placement": Placement, "model": Model, "data": Data}


def section_of(path: str, found: Any) -> str:
    """The section of the configuration that a class, or a function annotated to return one, belongs to.

    Raises:
        UsageError: none that can be checked.
    """
    made = product(found)
    if isinstance(made, type):
        for section, base in BASES.items():
            if issubclass(made, base):
                return section
        if issubclass(made, nn.Module) and not issubclass(made, Branch):
            return "norm"
    raise UsageError(
        f"{path} is nothing that can be checked: give a norm (a torch.nn.Module), or a class derived from Placement, "
        "Model or Data of normbench.types, or a function annotated to return one"
    )


def checks(section: str, tree: Tree) -> Iterator[Check]:
    """The checks of a section of a resolved configuration, those first without which the others say nothing."""
    yield Check("class", partial(class_fits, section, tree), decisive=True)
    yield from MAKE[section](tree)


def class_fits(section: str, tree: Tree) -> Outcome:
    """What the class itself must have, and whether it takes its settings."""
    assembly.factory(tree, section)
    settings = ", ".join(f"{key}={show(value)}" for key, value in tree[section].items() if not key.startswith("_"))
    return passed(f"{tree[section]['_target_']}({settings})")


def norm_checks(tree: Tree) -> Iterator[Check]:
    """A norm's: contract, precision, behaviour, invariances, training."""
    part = norms.NormPart(tree)
    yield from norms.contract(part)
    yield Check("bfloat16 against float64", partial(bfloat16_error, part))
    yield from behaviour.behaviour(part)
    yield from behaviour.invariances(part)
    for ground in GROUNDS:
        yield Check(f"trains: {ground.name}", partial(norm_trains, part, ground))


def norm_trains(part: norms.NormPart, ground: Ground) -> Outcome:
    """Every placement that goes with it."""
    model = {**ground.tree["model"], "width": part.width}
    return over_placements({**ground.tree, "model": model, "norm": part.tree["norm"]}, ground.data, STEPS)


MAKE: dict[str, Callable[[Tree], Iterator[Check]]] = {
    "norm": norm_checks,
    "placement": lambda tree: placements.contract(placements.PlacementPart(tree)),
    "model": lambda tree: models.contract(models.ModelPart(tree)),
    "data": lambda tree: data.contract(data.DataPart(tree)),
}
