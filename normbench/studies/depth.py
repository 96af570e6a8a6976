"""What each block of a trained model is worth: the loss without it, and how far it turns the stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.analysis.figures import style
from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.studies.findings import (
    arms_of,
    change_in_arms,
    compared,
    curves,
    draw_cells,
    is_arm,
    keys_of,
    labelled,
    number,
)
from normbench.studies.frame import Column, Difference, Row, Study, Subject
from normbench.studies.mapping import Vectors, vectors
from normbench.training.evaluation import evaluate, to_device
from normbench.types import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 1.7  # inches of a map
EXAMPLES = 16  # of a batch, whose streams are compared


class Depth(Study):
    """Measure what each block of a trained model is worth: the loss without it, and how far it turns the stream.

    A block is skipped (what it reads is what it gives), or changes places with the next. The angular distance of two
    streams is arccos(cosine) / π, the mean over positions: 0.5 is a right angle. That deep blocks under pre-norm
    hardly count is the curse of depth. Blocks that change the stream's shape, as in a CNN, are left out.
    """

    trains = True

    def __init__(self, *, batches: Annotated[int, Setting("validation batches", low=1, high=10**6)] = 4) -> None:
        self.batches = batches

    def check(self, subject: Subject) -> None:
        batch = to_device(subject.data.train_batch(0), subject.device)
        if batch.previous is not None:
            raise UsageError("study depth is for one stack of blocks, and a translator has two: use model=nano")
        streams = streams_of(subject, batch)
        if not any(one.shape == other.shape for one, other in pairwise(streams)):
            raise UsageError(
                "study depth skips blocks that keep the stream's shape, and none here does: use model=nano"
            )

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, _ = subject.build()
        batches = [to_device(batch, subject.device) for batch in subject.data.eval_batches("val", self.batches)]

        def loss(*order: nn.Module) -> float:
            model.blocks = nn.ModuleList(order)
            return evaluate(model, batches, subject.task, subject.device)["loss"]

        streams = streams_of(subject, batches[0].map(lambda tensor: tensor[:EXAMPLES]))
        keeps = [one.shape == other.shape for one, other in pairwise(streams)]
        blocks = [*model.blocks]
        whole = loss(*blocks)
        yield {"what": "model", "loss": whole}
        for layer, block in enumerate(blocks):
            row: Row = {"what": "block" if keeps[layer] else "left out", "layer": layer, "swapped": math.nan}
            before, after = blocks[:layer], blocks[layer + 1 :]
            if keeps[layer]:
                row["skipped"] = loss(*before, *after) - whole
                row["turned"] = angular_distance(streams[layer], streams[layer + 1])
            if keeps[layer : layer + 2] == [True, True]:
                row["swapped"] = loss(*before, after[0], block, *after[1:]) - whole
            yield row
        for (layer, one), (to, other) in combinations(enumerate(streams), 2):
            if one.shape == other.shape:
                yield {"what": "pair", "layer": layer, "to": to, "distance": angular_distance(one, other)}

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        blocks = in_halves(rows)
        what = "Loss that skipping a block adds, in the deeper half less that in the first"
        deeper = blocks["blocks"] == "deeper half"
        return change_in_arms(blocks, deeper, ~deeper, "skipped", what, self.columns["skipped"].unit)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        blocks, values = rows[rows["what"] == "block"], ["skipped", "swapped", "turned"]
        out = ", ".join(f"{layer:g}" for layer in rows[rows["what"] == "left out"]["layer"].unique())
        about: Any = {"columns": self.columns, "values": values}
        about["notes"] = [f"Blocks that change the stream's shape are left out: {out}."] if out else []
        whole = compared(rows, values=["loss"], key="loss", title="Validation loss of the whole model",
                         columns=self.columns, baseline=self.baseline)  # fmt: skip
        title = "What a block is worth, by half of the stack"
        halved = compared(in_halves(rows), by=["blocks"], key="halves", title=title, baseline=self.baseline, **about)
        return [whole, halved, compared(blocks, by=["layer"], key="blocks", title="What each block is worth", **about)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        blocks, pairs = rows[rows["what"] == "block"], rows[rows["what"] == "pair"]
        both = pd.concat([blocks.assign(block=words, added=blocks[words]) for words in ("skipped", "swapped")])
        columns = self.columns | {"added": Column("loss added", "nats")}
        maps = [(labelled(arm), pairs[is_arm(pairs, arm.settings)]) for arm in arms_of(pairs)]
        worth = curves("worth", both, x="layer", y="added", panel="block", columns=columns, **self.captions["worth"])
        return [*worth, *draw_cells("distances", maps, draw_map, **self.captions["distances"])]


def in_halves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of blocks, each with the half of the stack in which it stands."""
    blocks = rows[rows["what"] == "block"]
    last = blocks.groupby(keys_of(rows), dropna=False)["layer"].transform("max")
    return blocks.assign(blocks=(blocks["layer"] * 2 < last).map({True: "first half", False: "deeper half"}))


def draw_map(rows: pd.DataFrame) -> tuple[Axes, str]:
    """Draw the angular distance between any two streams."""
    last = int(rows["to"].max())
    cells = rows.groupby(["to", "layer"])["distance"].mean().unstack().reindex(range(1, last + 1), columns=range(last))
    pane = style.draw_pane(HEIGHT, "blocks passed by one stream", "by the other stream", right=style.BESIDE)
    drawn = pane.pcolormesh(cells.columns, cells.index, cells, vmin=0, vmax=0.5, rasterized=True)
    style.add_color_bar(pane, drawn, "half turns")
    pane.locator_params(integer=True)
    whole = rows.loc[(rows["layer"] == 0) & (rows["to"] == last), "distance"].mean()
    return pane, f"All blocks together turn the stream by {number(whole)} half turns."


@torch.no_grad()
def streams_of(subject: Subject, batch: Batch) -> list[Vectors]:
    """Return the stream in front of each block, and behind the last: the vectors of all positions but padding."""
    model, found = subject.build()[0], list[Tensor]()
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    block.register_forward_hook(lambda _, __, output: found.append(output))
    model(*batch.arguments)
    branch: Any = next(iter(block.branches.values()))  # type: ignore[operator]  # a placement has them
    return [vectors(x, branch.channel_dim, batch.mask).cpu().double() for x in found]


def angular_distance(one: Vectors, other: Vectors) -> float:
    """Return arccos(cosine) / π of two vectors, the mean over positions (Gromov et al. 2024, equation 5)."""
    cosine = torch.cosine_similarity(one, other, dim=-1)
    return float(cosine.clamp(-1, 1).acos().mean() / math.pi)
