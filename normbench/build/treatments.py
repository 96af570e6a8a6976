"""Which weights of a model are treated, and how, by the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from normbench.build.places import ByPlace
from normbench.config.recipe import Part, Recipe
from normbench.types import Branch, Model, Site, with_parts
from normbench.weights import Weights

MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # whose weights can be treated: (out, in, *kernel)


@dataclass(frozen=True)
class TreatedModule:
    """A linear map, a convolution or an embedding, and how its weight will be treated.

    Attributes:
        name: in the model.
        site: its place: the role of its branch, and its block; or its role outside the blocks.
        part: that was chosen for this place.
        treatment: what the part makes; it is applied once the weights have their start.
    """

    name: str
    module: nn.Module
    site: Site
    part: Part
    treatment: Weights


class TreatedAs(NamedTuple):
    """What is noted on each module with a treated weight: the treatment, and its place."""

    treatment: Weights
    site: Site


def places_of_weights(model: Model, norms: Iterable[nn.Module]) -> dict[nn.Module, Site]:
    """Return the linear maps, convolutions and, outside the blocks, embeddings, less those of norms, with their places.

    In a block that is the role of the branch; the slot is `out` where the branch names what writes to the stream.
    """
    inside_norms = with_parts(norms)
    anatomy = model.anatomy()
    sides = Counter(block.side for block in anatomy.blocks)
    places: dict[nn.Module, Site] = {}
    inside_blocks = set[nn.Module]()
    for block in anatomy.blocks:
        inside_blocks.update(block.module.modules())
        side: Any = block.side
        place = Site("block", block.layer, len(anatomy.blocks), side=side, sides=(sides["encoder"], sides["decoder"]))
        for role, branch in block.branches.items():
            output = branch.output if isinstance(branch, Branch) else ()
            writers = [branch.get_submodule(name) for name in output]
            for module in branch.modules():
                if isinstance(module, MAPS) and module not in inside_norms:
                    places[module] = place.at(role, "out" if module in writers else "")
    in_stem = set(anatomy.stem.modules()) if anatomy.stem else set[nn.Module]()
    for module in model.modules():
        if module in inside_blocks or module in inside_norms:
            continue
        if isinstance(module, nn.Embedding):
            places[module] = Site("embedding")
        elif isinstance(module, MAPS):
            places[module] = Site("stem" if module in in_stem else "head")
    return places


class WeightsByPlace(ByPlace):
    """Chooses the treatment of each weight by the rules; one treatment for all places of a section."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, "weights")
        self.treatments: dict[str, Weights] = {section: make() for section, make in self.factories.items()}

    def part_for(self, site: Site) -> Part | None:
        """Return the part that treats a weight; None of one outside the blocks where nothing asks for it."""
        if site.layer is not None:
            return self.part_at(site)
        part = self.part_asked_for(site)
        if part is None and self.treatments[self.usual.section].everywhere:
            part = self.usual
            self.parts[site] = part
        return part


def choose_treatments(
    recipe: Recipe, model: Model, norms: Iterable[nn.Module]
) -> tuple[list[TreatedModule], Mapping[Site, Part | None]]:
    """Return how the weights of a model will be treated, by the rules, and the part that holds at each place.

    Raises:
        UsageError: a setting or a rule that does not fit.
    """
    if not recipe.treats_weights:
        return [], {}
    by_place = WeightsByPlace(recipe)
    sites = places_of_weights(model, norms)
    treated: list[TreatedModule] = []
    for name, module in model.named_modules():
        if module in sites:
            part = by_place.part_for(sites[module])
            if part is not None:
                treatment = by_place.treatments[part.section]
                treated.append(TreatedModule(name, module, sites[module], part, treatment))
    by_place.check_used()
    return treated, by_place.parts


def untreated_weights(model: Model, norms: Iterable[nn.Module]) -> list[str]:
    """Return the names of matrices and kernels in branches that no treatment knows, such as those of an nn.LSTM."""
    known = set[nn.Parameter]()
    for norm in norms:
        known.update(norm.parameters())
    for module in model.modules():
        if isinstance(getattr(module, "treated_as", None), TreatedAs):
            known.update(module.parameters())
    in_branches = set[nn.Parameter]()
    for block in model.anatomy().blocks:
        for branch in block.branches.values():
            in_branches.update(branch.parameters())
    names: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter in in_branches and parameter not in known:
            names.append(name)
    return names


def treatments_after_step(model: Model) -> list[Callable[[], None]]:
    """Return what the treatments of a model's weights do after each step of the optimizer; most do nothing."""
    treatments: dict[int, Weights] = {}
    modules_of: dict[int, dict[nn.Module, Site]] = {}
    for module in model.modules():
        noted = getattr(module, "treated_as", None)
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        if isinstance(noted, TreatedAs) and is_trained:
            key = id(noted.treatment)
            treatments[key] = noted.treatment
            modules_of.setdefault(key, {})[module] = noted.site
    functions: list[Callable[[], None]] = []
    for key, treatment in treatments.items():
        if type(treatment).after_step is not Weights.after_step:
            functions.append(partial(treatment.after_step, modules_of[key]))
    return functions
