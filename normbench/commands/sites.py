"""What stands where in a model: each block drawn, with its placement and the norm at each of its places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from click import HelpFormatter

from normbench.build import Assembled, factory, lay_out
from normbench.config.compose import read
from normbench.config.rules import is_rule
from normbench.runs.flow import draw_block
from normbench.runs.plan import prepare
from normbench.settings import Tree
from normbench.types import Site


@dataclass(frozen=True)
class Layout:
    """What stands in a block, or outside of all blocks.

    Attributes:
        drawing: how the stream passes through the block; empty where that cannot be drawn.
        rows: place, and what stands there.
    """

    drawing: str
    rows: tuple[tuple[str, str], ...]


def sites_page(formatter: HelpFormatter, words: Sequence[str]) -> None:
    """Write what stands where in the model that `train` would make."""
    run = prepare(read(words))
    tree = run.config.tree
    options = run.config.choices.groups
    made = lay_out(tree, run.data.task)
    layouts: dict[str, Layout] = {}
    for site in made.placement_sections:
        layouts[site.name] = lay_out_block(tree, made, site, options)
    outside: list[tuple[str, str]] = []
    for site, section in made.norm_sections.items():
        if site.layer is None and section is not None:
            outside.append((place_of(site), tell_choice(section, options)))
    if outside:
        layouts["outside the blocks"] = Layout("", tuple(outside))
    for title, layout in merge_alike(layouts):
        with formatter.section(title):
            for line in layout.drawing.splitlines():
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")
            if layout.drawing:
                formatter.write_paragraph()
            formatter.write_dl(layout.rows)
    unused = dict.fromkeys(place_of(site) for site, section in made.norm_sections.items() if section is None)
    if unused:
        example = next(iter(unused))
        formatter.write_paragraph()
        formatter.write_text(f"No norm, unless a rule such as norm@{example}=rmsnorm names them: {', '.join(unused)}.")


def lay_out_block(tree: Tree, made: Assembled, site: Site, options: Mapping[str, str]) -> Layout:
    """Return what stands in a block.

    Args:
        tree: the configuration.
        made: the model.
        site: of the block.
        options: what was chosen, by section.
    """
    section = made.placement_sections[site]
    assert section is not None
    rows = [("placement", tell_choice(section, options))]
    for norm_site, norm_section in made.norm_sections.items():
        if norm_site.layer == site.layer and norm_section is not None:
            rows.append((place_of(norm_site), tell_choice(norm_section, options)))

    def name_norm(norm_site: Site) -> str:
        return options[made.norm_sections[norm_site] or "norm"]

    blocks = made.model.anatomy().blocks
    branches = blocks[site.layer or 0].branches
    drawing = ""
    with suppress(Exception):  # a placement of a person's own may do what cannot be drawn
        drawing = draw_block(factory(tree, section), site, branches, name_norm)
    return Layout(drawing, tuple(rows))


def place_of(site: Site) -> str:
    """Return the place of a norm within its block, with its slot in brackets where its name does without it."""
    place = site.name
    if site.layer is not None:
        block = site.at("block").name
        place = "block" if place == block else place.removeprefix(f"{block}.")
    return f"{place} ({site.slot})" if site.sole else place


def tell_choice(section: str, options: Mapping[str, str]) -> str:
    """Say what was chosen for a place, and by which rule."""
    return f"{options[section]}, by {section}" if is_rule(section) else options[section]


def merge_alike(layouts: Mapping[str, Layout]) -> list[tuple[str, Layout]]:
    """Return layouts with their titles; blocks in a row that are alike share one, under the first and the last name."""
    found: list[tuple[list[str], Layout]] = []
    for name, layout in layouts.items():
        if found and found[-1][1] == layout:
            found[-1][0].append(name)
        else:
            found.append(([name], layout))
    titled: list[tuple[str, Layout]] = []
    for names, layout in found:
        title = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        titled.append((title, layout))
    return titled
