"""A model of a recipe, with its norms and placements where they stand, and its starting weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normbench.build.parts import factory
from normbench.build.places import ByPlace, NormsByPlace, NormsBySite
from normbench.build.treatments import TreatedAs, TreatedModule, choose_treatments
from normbench.config.recipe import Part, Recipe, help_command
from normbench.errors import ContractError, UsageError
from normbench.models import initialize
from normbench.norms.foreign import Fitted
from normbench.training.devices import seed_draws
from normbench.training.precision import DTYPES
from normbench.types import Block, Branch, Model, Norm, NormFactory, Placement, Site, Task


@dataclass(frozen=True)
class Assembled:
    """A model as its classes make it.

    Attributes:
        model: with what they draw of their own.
        norms: by the name of their site.
        recipe: its parts.
        norm_parts: the one that made the norm at each site, None where there is no norm.
        placement_parts: the one that made each block.
        weight_parts: the one that treats the weights at each place, None where there is none.
        treated: what has a weight that will be treated.
    """

    model: Model
    norms: dict[str, nn.Module]
    recipe: Recipe
    norm_parts: Mapping[Site, Part | None]
    placement_parts: Mapping[Site, Part | None]
    weight_parts: Mapping[Site, Part | None]
    treated: list[TreatedModule]

    def treat_weights(self, seed: int) -> None:
        """Treat the weights, which have their start."""
        for each in self.treated:
            module: Any = each.module
            with seed_draws(seed, "weights", each.name):
                each.treatment.apply(module, each.site)
            module.treated_as = TreatedAs(each.treatment, each.site)


def assemble(recipe: Recipe, task: Task, seed: int) -> Assembled:
    """Make a model, its norms and its placements.

    What the model itself draws does not depend on what norms and placements draw in between, so that it starts alike
    with any of them.

    Raises:
        UsageError: a setting that does not fit.
    """
    norms_by_place = NormsByPlace(recipe)
    placements_by_place = ByPlace(recipe, "placement")
    norms = NormsBySite(norms_by_place, seed)

    def place(branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> Placement:
        make_placement = placements_by_place.factory_at(site)
        with seed_draws(seed, "placement", site.name):
            return make_placement(branches, norm, site)

    with seed_draws(seed, "model"):
        model: Model = factory(recipe["model"])(task, norms, place)
    if type(model).anatomy is Model.anatomy and not hasattr(model, "blocks"):
        what = f"{recipe['model'].where} has no blocks"
        raise ContractError(f"{what}, and no anatomy of its own: {help_command(Model)} says what it is for")
    norms_by_place.check_used()
    placements_by_place.check_used()
    check_streams(model, placements_by_place.parts)
    made = dict(model.anatomy().norms) if model.hosted else norms.made  # norm=own is none of those that were made
    treated, weight_parts = choose_treatments(recipe, model, made.values())
    return Assembled(
        model=model,
        norms=made,
        recipe=recipe,
        norm_parts=norms_by_place.parts,
        placement_parts=placements_by_place.parts,
        weight_parts=weight_parts,
        treated=treated,
    )


def check_streams(model: Model, placements: Mapping[Site, Part | None]) -> None:
    """Refuse a stack of blocks whose placements do not have the same streams.

    Args:
        model: the model.
        placements: the part that made each block.

    Raises:
        UsageError: with the first two placements that do not go together.
    """
    section_at_layer = {site.layer: part.section for site, part in placements.items() if part}
    first_of_side: dict[str, Block] = {}
    for block in model.anatomy().blocks:
        first = first_of_side.setdefault(block.side, block)
        if max(first.streams, block.streams) == 1:
            continue
        if describe_streams(first) != describe_streams(block):
            both = []
            for either_block in (first, block):
                _, what = describe_streams(either_block)
                where = f"block {either_block.layer} ({section_at_layer.get(either_block.layer)})"
                both.append(f"{type(either_block.module).__name__} in {where} has {what}")
            cure = "give all blocks of a stack the same placement, or choose among those with one stream"
            raise UsageError(f"{both[0]}, and {both[1]} of its own: {cure}")


def describe_streams(block: Block) -> tuple[type[nn.Module], str]:
    """Return the kind of a block's placement, and what must be the same of it in all blocks of a stack, in words."""
    module: Any = block.module
    words = ["1 stream" if block.streams == 1 else f"{block.streams} streams"]
    words += [f"{name} {getattr(module, name)}" for name in getattr(module, "stack_settings", ())]
    return type(module), " and ".join(words)


def build_model(recipe: Recipe, task: Task, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """Return the model as its classes make it, to be given other weights, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    assembled = assemble(recipe, task, seed)
    assembled.treat_weights(seed)
    return assembled.model, assembled.norms


def lay_out(recipe: Recipe, task: Task) -> Assembled:
    """Make a model without memory for its weights, to see what stands where.

    Raises:
        UsageError: a setting that does not fit, or a rule that fits no place.
    """
    with suppress(Exception), torch.device("meta"):
        return assemble(recipe, task, seed=0)
    return assemble(recipe, task, seed=0)  # some classes need numbers; what is wrong shows here too


def make_model(recipe: Recipe, task: Task, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """Return the model with its starting weights, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    started = start_model(recipe, task, seed)
    return started.model, started.norms


def start_model(recipe: Recipe, task: Task, seed: int) -> Assembled:
    """Make a model with its starting weights.

    Raises:
        UsageError: a setting that does not fit.
    """
    assembled = assemble(recipe, task, seed)
    initialize(assembled.model, factory(recipe["init"])(), seed, assembled.norms.values())
    assembled.treat_weights(seed)
    trainer = recipe.tree.get("trainer", {})
    freeze_others(assembled.model, assembled.norms.values(), trainer.get("train", "all"))
    keep_norms_in(assembled.norms, trainer.get("norm_dtype", "fp32"))
    return assembled


def keep_norms_in(norms: Mapping[str, nn.Module], name: str) -> None:
    """Keep the parameters of norms in a number format, as `trainer.norm_dtype` says, and their buffers as they are.

    Raises:
        UsageError: a norm is of another library, whose code may not take parameters in another format than its input.
    """
    dtype = DTYPES[name]
    if dtype == torch.float32:
        return
    for site, norm in norms.items():
        parameters = list(norm.parameters())
        is_ours = isinstance(norm, Norm) and not isinstance(norm, Fitted)
        if parameters and not is_ours:
            kind = f"{type(norm).__module__}.{type(norm).__qualname__}"
            cure = "choose a norm of normbench, or leave trainer.norm_dtype out"
            raise UsageError(f"trainer.norm_dtype={name} is for norms of normbench, and {site} is {kind}: {cure}")
        for parameter in parameters:
            parameter.data = parameter.data.to(dtype)


def freeze_others(model: Model, norms: Iterable[nn.Module], trained: str) -> None:
    """Let only some parameters be trained, as `trainer.train` says; all others stay as they start.

    Raises:
        UsageError: there are none of a kind that is to be trained.
    """
    if trained == "all":
        return
    trainable = set[nn.Parameter]()
    if "norms" in trained:
        for norm in norms:
            trainable.update(norm.parameters())
        if not trainable:
            why = "the norms of this model have no parameters"
            raise UsageError(f"trainer.train={trained}: {why}, choose a norm that has, with norm.affine=true")
    if "head" in trained:
        head = getattr(model, "head", None)
        parameters_of_head = [] if head is None else list(head.parameters())
        if not parameters_of_head:
            why = "this model has no output layer of its own"
            raise UsageError(f"trainer.train={trained}: {why}, set model.tied=false or choose another model")
        trainable.update(parameters_of_head)
    for parameter in model.parameters():
        if parameter not in trainable:
            parameter.requires_grad_(False)
