"""What stands where in a model, place by place: its blocks drawn, with their placements, norms and weights."""

from __future__ import annotations

from collections.abc import Sequence

from click import HelpFormatter

from normbench.build import lay_out
from normbench.config.compose import read
from normbench.runs.layout import lay_out_blocks, lay_out_outside, merge_alike, place_of
from normbench.runs.plan import prepare
from normbench.types import Model


def write_host(formatter: HelpFormatter, model: Model) -> None:
    """Write the norms that a model of another library has, a line each, and what is to be known of it."""
    rows = model.norms_of_host()
    if not rows:
        return
    table = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    with formatter.section("norms of the model, in the order in which they run"):
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            line = "  ".join(cells).rstrip()
            formatter.write(f"{' ' * formatter.current_indent}{line}\n")
    for note in model.notes():
        formatter.write_paragraph()
        formatter.write_text(f"{note[0].upper()}{note[1:]}.")


def sites_page(formatter: HelpFormatter, words: Sequence[str]) -> None:
    """Write what stands where in the model that `train` would make."""
    run = prepare(read(words))
    made = lay_out(run.config.recipe, run.data.task)
    for names, layout in merge_alike(lay_out_blocks(made)).items():
        with formatter.section(names):
            for line in layout.drawing.splitlines():
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")
            if layout.drawing:
                formatter.write_paragraph()
            weights = [(f"weights of {place}", chosen) for place, chosen in layout.weights]
            formatter.write_dl([("placement", layout.placement), *layout.norms, *weights])
    outside = lay_out_outside(made)
    if outside:
        with formatter.section("outside the blocks"):
            formatter.write_dl(outside)
    write_host(formatter, made.model)
    unused: dict[str, None] = {}  # each place once, in their order
    for site, part in made.norm_parts.items():
        if part is None:
            unused[place_of(site)] = None
    if unused:
        example = next(iter(unused))
        formatter.write_paragraph()
        formatter.write_text(f"No norm, unless a rule such as norm@{example}=rmsnorm names them: {', '.join(unused)}.")
