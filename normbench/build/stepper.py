"""What trains a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from normbench.build.parts import factory, keeps_norms, takes_matrices
from normbench.build.treatments import treatments_after_step
from normbench.config.recipe import Recipe
from normbench.training.hyperball import check_start
from normbench.training.matrices import matrices_in_blocks, separate_matrices
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.training.parallel import Group
from normbench.training.precision import Precision
from normbench.training.step import Stepper
from normbench.types import Data, Model


def make_stepper(
    recipe: Recipe,
    model: Model,
    norms: Mapping[str, nn.Module],
    data: Data,
    precision: Precision,
    steps: int,
    group: Group | None = None,
) -> Stepper:
    """Return what trains a model for so many steps as the configuration says.

    Args:
        norms: of the model, by site.
        group: of processes that do it together.

    Raises:
        UsageError: a setting that does not fit.
    """
    trainer = recipe.tree["trainer"]
    optim = recipe["optim"]
    weight_decay = optim.settings.get("weight_decay", 0.0)
    lr_factors = factory(recipe["init"])().lr_factors(model.anatomy())
    groups = parameter_groups(model, norms.values(), weight_decay, trainer["decay_norms"], lr_factors)
    given = recipe.in_words("optim")
    if takes_matrices(optim):
        groups = separate_matrices(groups, matrices_in_blocks(model, norms.values()), given)
    if keeps_norms(optim):
        check_start(model, groups, given)
    return Stepper(
        model=model,
        data=data,
        optimizer=make_optimizer(factory(optim), groups, precision.device),
        schedule=factory(recipe["schedule"])(),
        precision=precision,
        device=precision.device,
        seed=recipe.tree["seed"],
        steps=steps,
        accumulate=trainer["accumulate"],
        grad_clip=trainer["grad_clip"],
        group=group or Group(),
        treatments=treatments_after_step(model),
    )
