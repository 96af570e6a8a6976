"""What stands where in a model: each kind of block, drawn once, with its placement and the norms at its places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from normbench.build import Assembled, factory
from normbench.config.recipe import Part
from normbench.runs.flow import draw_block
from normbench.training.devices import seed_draws
from normbench.types import Block, Site, norms_in

Description = TypeVar("Description", bound=Hashable)
Choice = tuple[str, str]  # a place, and what was chosen for it

MOST_PLACES = 4  # inside a branch are named in a drawing


@dataclass(frozen=True)
class Layout:
    """What stands in a block.

    Attributes:
        drawing: how the stream passes through it; empty where that cannot be drawn.
        placement: what was chosen for it.
        norms: by place.
        weights: how those of its branches are treated, by place; empty where they are plain.
    """

    drawing: str
    placement: str
    norms: tuple[Choice, ...]
    weights: tuple[Choice, ...]


def lay_out_blocks(made: Assembled) -> dict[int, Layout]:
    """Return what stands in each block of a model."""
    norms: dict[int | None, dict[Site, Part]] = defaultdict(dict)  # by block
    for site, part in made.norm_parts.items():
        if part is not None:
            norms[site.layer][site] = part
    weights = weights_by_block(made)
    sites = {site.layer or 0: site for site in made.placement_parts}
    layouts: dict[int, Layout] = {}
    for block in made.model.anatomy().blocks:
        layer = block.layer
        norm_choices = []
        for norm_site, chosen in norms[layer].items():
            norm_choices.append((place_of(norm_site), tell_choice(chosen)))
        weight_choices = []
        for place, chosen in weights[layer].items():
            weight_choices.append((place, tell_choice(chosen)))
        if made.model.hosted:
            layouts[layer] = Layout("", made.recipe["placement"].option, tuple(norm_choices), tuple(weight_choices))
        elif layer in sites:
            placement = made.placement_parts[sites[layer]]
            assert placement is not None
            drawing = draw_with_norms(placement, block, sites[layer], norms[layer], weights[layer])
            layouts[layer] = Layout(drawing, tell_choice(placement), tuple(norm_choices), tuple(weight_choices))
    return layouts


def weights_by_block(made: Assembled) -> dict[int | None, dict[str, Part]]:
    """Return the part that treats weights, by their place in a block, for each block; None: outside.

    A place is the role of a branch, such as `mlp`, or, where not all of its weights are treated alike, `mlp.out` and
    `mlp, all but out`.
    """
    by_role: dict[int | None, dict[str, dict[str, Part]]] = defaultdict(lambda: defaultdict(dict))
    for module in made.treated:
        site = module.site
        by_role[site.layer][site.role][site.slot] = module.part
    by_block: dict[int | None, dict[str, Part]] = defaultdict(dict)
    for layer, roles in by_role.items():
        for role, parts in roles.items():
            slots = [slot for slot in parts if slot]
            are_alike = len({part.section for part in parts.values()}) == 1
            for slot, part in parts.items():
                if are_alike:
                    place = role
                elif slot:
                    place = f"{role}.{slot}"
                else:
                    place = f"{role}, all but {' and '.join(slots)}"
                if part.option not in ("", "plain"):
                    by_block[layer][place] = part
    return by_block


def draw_with_norms(
    placement: Part,
    block: Block,
    site: Site,
    norms: Mapping[Site, Part],
    weights: Mapping[str, Part],
) -> str:
    """Draw a block of a model with what stands inside of its branches; nothing where that cannot be drawn.

    Args:
        placement: the one that makes the block.
        block: of the model.
        site: of its placement.
        norms: what was chosen for each of its norms.
        weights: what was chosen for each place whose weights are treated.
    """
    labels: dict[str, str] = {}
    for role, branch in block.branches.items():
        names_inside = norms_in(branch)
        inside = {}
        for norm_site, chosen in norms.items():
            if norm_site.name in names_inside:
                inside[norm_site.slot] = chosen.option
        for place, chosen in weights.items():
            if place == role or place.startswith((f"{role}.", f"{role}, ")):
                rest = place.removeprefix(role).replace(".", " of ")
                inside[f"weights{rest}"] = chosen.option
        labels[role] = label_branch(role, inside)

    def name_norm(norm_site: Site) -> str:
        return norms[norm_site].option

    with suppress(Exception), seed_draws("drawing"):  # a placement of a person's own may do what cannot be drawn
        return draw_block(factory(placement), site, labels, name_norm)
    return ""


def label_branch(role: str, inside: Mapping[str, str]) -> str:
    """Return the name of a branch, with what stands inside of it in brackets: `attention (q, k: rmsnorm)`.

    Args:
        role: of the branch.
        inside: what was chosen for each place inside, which has no name where it is the only one; `none` counts as
            nothing.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for place, chosen in inside.items():
        if chosen != "none":
            places[chosen].append(place)
    labels: list[str] = []
    for chosen, names in places.items():
        named = ", ".join(names) if len(names) <= MOST_PLACES else f"{len(names)} places"
        labels.append(f"{named}: {chosen}" if named else chosen)
    return f"{role} ({'; '.join(labels)})" if labels else role


def lay_out_outside(made: Assembled) -> list[Choice]:
    """Return what stands outside of all blocks: norms, and weights that are treated."""
    choices: list[Choice] = []
    for site, norm in made.norm_parts.items():
        if site.layer is None and norm is not None:
            choices.append((place_of(site), tell_choice(norm)))
    for place, treatment in weights_by_block(made)[None].items():
        choices.append((f"weights of {place}", tell_choice(treatment)))
    return choices


def place_of(site: Site) -> str:
    """Return the place of a norm within its block, with its slot in brackets where its name does without it."""
    place = site.name
    if site.layer is not None:
        block = site.at("block").name
        place = "block" if place == block else place.removeprefix(f"{block}.")
    return f"{place} ({site.slot})" if site.sole else place


def tell_choice(part: Part) -> str:
    """Say what was chosen for a place, and by which rule."""
    return f"{part.option}, by {part.section}" if part.rule else part.option


def merge_alike(blocks: Mapping[int, Description]) -> dict[str, Description]:
    """Return what is told of blocks, each thing once, by the names of the blocks of which it is told."""
    kinds: dict[Description, list[int]] = {}
    for layer, description in blocks.items():
        kinds.setdefault(description, []).append(layer)
    by_names = {}
    for description, layers in kinds.items():
        by_names[name_blocks(layers)] = description
    return by_names


def name_blocks(layers: Sequence[int]) -> str:
    """Return the names of blocks as ranges: `block00 to block02, block05`."""
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and ranges[-1][-1] == layer - 1:
            ranges[-1].append(layer)
        else:
            ranges.append([layer])
    names: list[str] = []
    for block_range in ranges:
        first = Site("block", block_range[0]).name
        last = Site("block", block_range[-1]).name
        names.append(first if first == last else f"{first} to {last}")
    return ", ".join(names)


def draw_model(made: Assembled) -> str:
    """Draw a model for a font of fixed width: each kind of block once, then what stands outside."""
    drawn: dict[int, str] = {}
    for layer, layout in lay_out_blocks(made).items():
        drawing = layout.drawing or "\n".join(write_choices(layout.norms))
        drawn[layer] = f"{layout.placement}\n{drawing}".rstrip()
    parts = []
    for names, description in merge_alike(drawn).items():
        parts.append(f"{names}: {description}")
    outside = []
    for place, chosen in lay_out_outside(made):
        if chosen != "none":
            outside.append((place, chosen))
    if outside:
        parts.append("\n".join(["outside the blocks", *write_choices(outside)]))
    return "\n\n".join(parts)


def write_choices(choices: Iterable[Choice]) -> list[str]:
    """Write what was chosen for places, a line each."""
    return [f"{place}: {chosen}" for place, chosen in choices]
