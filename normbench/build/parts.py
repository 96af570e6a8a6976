"""What makes a part, what norms declare, which parts do not go together; and the parts that need nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch

from normbench.config.recipe import Part, Recipe, check_made, missing_attributes, signature_of
from normbench.config.refusals import OF_MAKING, Combination, refuse
from normbench.config.sections import BY_NAME
from normbench.errors import ContractError, RunFailure, UsageError, explain
from normbench.models import Initialization
from normbench.norms.foreign import make_fitted, measure_facts, takes_place
from normbench.record.loggers import Logger
from normbench.settings import drop_keys, flat
from normbench.training.devices import seed_draws
from normbench.training.hyperball import AdamH, MuonH
from normbench.training.matrices import MatrixOptimizer
from normbench.training.optimizer import may_fuse
from normbench.types import Data, NormFacts, Task, worst_of


def factory(part: Part) -> Callable[..., Any]:
    """Return a part's class with its settings, to be called with the rest.

    Raises:
        UsageError: when called, it does not take what it is given, or makes something else.
    """
    make = partial(part.maker, **part.settings)
    if part.group == "optim":
        return make  # what an optimizer refuses, make_optimizer says
    if part.group == "norm" and not takes_place(part.maker):
        make = partial(make_fitted, make)
    kind = part.kind
    where = part.where

    @wraps(part.maker, assigned=(), updated=())  # with the signature, and none of the attributes of a class
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature_of(make.func).bind(*make.args, *args, **{**make.keywords, **kwargs})
        except (TypeError, ValueError) as error:
            takes = f"{BY_NAME[part.group].given} and {part.section}'s settings"
            raise ContractError(f"{where} must take {takes} ({error}): change it") from error
        made = make(*args, **kwargs)
        if kind not in type(made).__mro__:
            what = f"{where} gives something of type {type(made).__name__}"
            raise ContractError(f"{what}: return something of a class derived from {kind.__qualname__}")
        check_made(where, kind, missing_attributes(made, kind))
        return made

    return call


# ---- what goes together


def norm_facts(recipe: Recipe) -> NormFacts:
    """Return what holds of the norms of a run, at whatever site they stand: the worst case of all of them."""
    width = recipe.tree.get("model", {}).get("width")
    return worst_of([facts_of(part, width) for part in recipe.parts_of("norm")])


def facts_of(norm: Part, width: Any = None) -> NormFacts:
    """Return what a norm declares about itself under its settings; what is measured, of another library's.

    Args:
        norm: the part.
        width: of the model; that of one which has no single width is not known.
    """
    if hasattr(norm.made, "facts_for") and hasattr(norm.made, "facts"):
        facts: NormFacts = norm.made.facts_for(**norm.settings)
        takes_mask = "mask" in inspect.signature(norm.made.forward).parameters
        if takes_mask or facts.sees_future == "never":
            return facts
        return replace(facts, counts_padding=True)
    if not takes_place(norm.maker) and isinstance(width, int):
        with seed_draws("facts"), suppress(Exception):  # what makes it fail is said when the model is built
            return measure_facts(factory(norm)(width), width)
    return NormFacts(statistics_over="unknown", centers=False)


def combine(recipe: Recipe, making: Mapping[str, Any] | None = None, given: Collection[str] = ()) -> Combination:
    """Return what decides whether a run is refused.

    Args:
        recipe: of the run.
        making: how the run is made, as far as that is known, by `refusals.OF_MAKING`.
        given: the keys that words set.

    Raises:
        UsageError: a part cannot be imported, or is not for its section.
    """
    recipe.all_parts()
    optim = recipe["optim"]
    data = recipe["data"].made
    return Combination(
        norm=norm_facts(recipe),
        placement=recipe["placement"].made,
        model=recipe["model"].made,
        data=data,
        task=Task.by_kind.get(data.kind),
        init=recipe["init"].made,
        scales_rates=scales_rates(recipe["init"]),
        not_adam=not issubclass(optim.made, torch.optim.Adam),
        needs_matrices=takes_matrices(optim),
        keeps_norms=keeps_norms(optim),
        not_fused=not (optim.settings.get("fused") or may_fuse(factory(optim))),
        ramps=getattr(recipe["schedule"].made, "ramps", False),
        settings={**drop_keys(flat(recipe.tree), *OF_MAKING), **(making or {})},
        given=given,
        recipe=recipe,
    )


def check_parts(recipe: Recipe, making: Mapping[str, Any] | None = None) -> NormFacts:
    """Refuse parts that cannot be used, and what does not go together; return the norm's facts.

    Args:
        recipe, making: as for `combine`.

    Raises:
        UsageError: a part cannot be imported, or is not for its section.
        CombinationRefused: they do not go together.
    """
    run = combine(recipe, making)
    recipe.loggers()
    for placement in recipe.parts_of("placement"):
        refuse(replace(run, placement=placement.made))
    run.model.check_settings(recipe["model"].settings, run.data.kind)
    return run.norm


def scales_rates(init: Part) -> bool:
    """Tell whether the start of weights comes with learning rates of their own."""
    return getattr(init.made, "lr_factors", Initialization.lr_factors) is not Initialization.lr_factors


def takes_matrices(optim: Part) -> bool:
    """Tell whether the optimizer treats a matrix as one, and so needs it whole and by itself."""
    return issubclass(optim.made, MatrixOptimizer)


def keeps_norms(optim: Part) -> bool:
    """Tell whether the optimizer keeps the norm of each matrix of blocks."""
    return issubclass(optim.made, (AdamH, MuonH))


# ---- data and loggers


def make_data(recipe: Recipe, seed: int) -> Data:
    """Return the data, read or decoded.

    Raises:
        UsageError: they are not there, or a setting does not fit.
    """
    data: Data = factory(recipe["data"])(seed=seed)
    return data


def make_loggers(recipe: Recipe, directory: Path, step: int) -> list[Logger]:
    """Return the loggers of the run in a directory, which goes on after a step.

    Raises:
        UsageError: one is not a logger, or needs a package that is not installed.
        RunFailure: one of another library's cannot start.
    """
    try:
        return [factory(part)(directory, step) for part in recipe.loggers()]
    except (OSError, UsageError):
        raise
    except Exception as error:  # another library's client may raise anything
        raise RunFailure(f"a logger cannot start ({explain(error)}): see its settings, or leave it out") from error
