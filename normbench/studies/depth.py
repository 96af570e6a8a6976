"""What each block of a trained model is worth: the loss without it, and how far it turns the stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.evidence.labels import label_of
from normbench.results.rows import Column, ResultTable, StudyResult, arms_of, compare, compare_kinds, is_arm, keys_of
from normbench.settings import Setting
from normbench.show.figures import plots, style
from normbench.show.figures.captions import at_most
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.mapping import Vectors, vectors
from normbench.training.evaluation import evaluate, to_device
from normbench.types import Batch
from normbench.wording import compact, short

EXAMPLES = 16  # of a batch whose streams are compared


class Depth(Study):
    """Measure what each block of a trained model is worth: the loss without it, and how far it turns the stream.

    A block is skipped (what it reads is what it gives), or changes places with the next. The angular distance of two
    streams is arccos(cosine) / π, the mean over positions: 0.5 is a right angle. That deep blocks under pre-norm
    hardly count is the curse of depth. Blocks that change the stream's shape, as in a CNN, are left out. Where a
    placement has several streams, a block is skipped or swapped for all of them, and the angle is that of one vector
    with the features of all.
    """

    trains = True

    def __init__(self, *, batches: Annotated[int, Setting("validation batches", low=1, high=10**6)] = 4) -> None:
        self.batches = batches

    def check(self, subject: Subject) -> None:
        batch = to_device(subject.data.train_batch(0), subject.device)
        if batch.previous is not None:
            raise UsageError("study depth is for one stack of blocks, and a translator has two: use model=nano")
        keeps = keep_shape(streams_of(subject, batch))
        if not any(keeps):
            raise UsageError(
                "study depth skips blocks that keep the stream's shape, and none here does: use model=nano"
            )

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, _ = subject.build()
        batches = [to_device(batch, subject.device) for batch in subject.data.eval_batches("val", self.batches)]
        streams = streams_of(subject, batches[0].map(lambda tensor: tensor[:EXAMPLES]))
        blocks = [block.module for block in model.anatomy().blocks]

        def loss_of(order: Sequence[nn.Module | None]) -> float:
            with run_in_order(blocks, order):
                return evaluate(model, batches, subject.task, subject.device)["loss"]

        yield {"what": "model", "loss": loss_of(blocks)}
        yield from measure_blocks(blocks, streams, loss_of)
        yield from measure_pairs(streams)

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[StudyResult]:
        blocks = in_halves(rows)
        deeper = blocks["blocks"] == "deeper half"
        kinds = ("in the deeper half", "in the first half")
        number = "loss that skipping a block adds"
        return compare_kinds(blocks, deeper, ~deeper, "skipped", number, kinds, self.columns["skipped"].unit)

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        whole_model = compare(
            rows,
            values=["loss"],
            key="loss",
            title="Validation loss of the whole model",
            columns=self.columns,
            baseline=self.baseline,
        )
        left_out = rows[rows["what"] == "left out"]["layer"].unique()
        notes = []
        if len(left_out):
            layers = ", ".join(map(short, left_out))
            notes.append(f"Blocks that change the stream's shape are left out: {layers}.")
        values = ["skipped", "swapped", "turned"]
        halves = compare(
            in_halves(rows),
            values=values,
            columns=self.columns,
            by=["blocks"],
            baseline=self.baseline,
            key="halves",
            title="What a block is worth, by half of the stack",
            notes=notes,
        )
        each_block = compare(
            rows[rows["what"] == "block"],
            values=values,
            columns=self.columns,
            by=["layer"],
            key="blocks",
            title="What each block is worth",
            notes=notes,
        )
        return [whole_model, halves, each_block]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        blocks = rows[rows["what"] == "block"]
        skipped = blocks.assign(block="skipped", added=blocks["skipped"])
        swapped = blocks.assign(block="swapped", added=blocks["swapped"])
        worth = draw_curves(
            "worth",
            pd.concat([skipped, swapped]),
            x="layer",
            y="added",
            panel="block",
            columns={**self.columns, "added": Column("loss added", "nats")},
            **self.captions["worth"],
        )
        pairs = rows[rows["what"] == "pair"]
        return [*worth, draw_maps(pairs, **self.captions["distances"])]


# ---- the worth of blocks


def keep_shape(streams: list[Vectors]) -> list[bool]:
    """Tell of each block whether it gives a stream of the shape that it reads."""
    return [before.shape == after.shape for before, after in pairwise(streams)]


def measure_blocks(
    blocks: list[nn.Module], streams: list[Vectors], loss_of: Callable[[Sequence[nn.Module | None]], float]
) -> Iterator[Row]:
    """Yield what each block is worth. loss_of: the loss of the model with blocks in an order, None for one left out."""
    keeps = keep_shape(streams)
    whole_loss = loss_of(blocks)
    for layer, block in enumerate(blocks):
        before = blocks[:layer]
        after = blocks[layer + 1 :]
        row: Row = {"what": "block" if keeps[layer] else "left out", "layer": layer, "swapped": math.nan}
        if keeps[layer]:
            row["skipped"] = loss_of([*before, None, *after]) - whole_loss
            row["turned"] = angular_distance(streams[layer], streams[layer + 1])
        can_be_swapped = bool(after) and keeps[layer] and keeps[layer + 1]
        if can_be_swapped:
            following, *rest = after
            row["swapped"] = loss_of([*before, following, block, *rest]) - whole_loss
        yield row


@contextmanager
def run_in_order(blocks: list[nn.Module], order: Sequence[nn.Module | None]) -> Iterator[None]:
    """Let a model run its blocks in this order inside the `with`; the places that have None do nothing."""
    forwards = [pass_on if block is None else block.forward for block in order]
    for block, forward in zip(blocks, forwards, strict=True):
        block.forward = forward
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # that of its class is back


def pass_on(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return the stream as it is."""
    return x


# ---- streams, and the angles between them


def measure_pairs(streams: list[Vectors]) -> Iterator[Row]:
    """Yield the angular distance of any two streams of one shape."""
    for (layer, stream), (to, other_stream) in combinations(enumerate(streams), 2):
        if stream.shape == other_stream.shape:
            yield {"what": "pair", "layer": layer, "to": to, "distance": angular_distance(stream, other_stream)}


@torch.no_grad()
def streams_of(subject: Subject, batch: Batch) -> list[Vectors]:
    """Return the stream before each block, and after the last: the vectors of all positions but padding."""
    model, _ = subject.build()
    blocks = model.anatomy().blocks
    last = blocks[-1]
    streams = list[Vectors]()

    def keep(x: Tensor) -> None:
        stream = last.join_streams(x)
        at_positions = vectors(stream, last.channel_dim, batch.mask)
        streams.append(at_positions.cpu().double())

    def keep_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        keep(inputs[0])

    def keep_output(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        keep(output)

    for block in blocks:
        block.module.register_forward_pre_hook(keep_input)
    last.module.register_forward_hook(keep_output)
    model(*batch.arguments)
    return streams


def angular_distance(one: Vectors, other: Vectors) -> float:
    """Return arccos(cosine) / π of two vectors, the mean over positions (Gromov et al. 2024, equation 5)."""
    cosine = torch.cosine_similarity(one, other, dim=-1)
    angles = cosine.clamp(-1, 1).acos()
    return float(angles.mean() / math.pi)


# ---- what is shown


def in_halves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of blocks, each with the half of the stack in which it stands."""
    blocks = rows[rows["what"] == "block"]
    last = blocks.groupby(keys_of(rows), dropna=False)["layer"].transform("max")
    is_first = blocks["layer"] * 2 < last
    return blocks.assign(blocks=is_first.map({True: "first half", False: "deeper half"}))


def draw_maps(pairs: pd.DataFrame, title: str, caption: str) -> Figure:
    """Draw the angular distance between any two streams, a map for each arm."""
    shown, more = style.take_first(arms_of(pairs), style.MOST_PANELS, "panels")
    maps, wholes = [], []
    for arm in shown:
        rows = pairs[is_arm(pairs, arm.settings)]
        last = int(rows["to"].max())
        means = rows.groupby(["to", "layer"])["distance"].mean().unstack()
        maps.append(plots.Cells(label_of(arm), means.reindex(range(1, last + 1), columns=range(last))))
        is_whole = (rows["layer"] == 0) & (rows["to"] == last)
        wholes.append(f"{label_of(arm)} {compact(rows.loc[is_whole, 'distance'].mean())}".strip())
    with style.use_our_style():
        canvas = plots.grid(maps, "blocks passed by one stream", "by the other stream", "half turns", (0, 0.5))
    whole = f"All blocks together turn the stream by half turns: {at_most(wholes)}."
    return Figure("distances", title, [caption, whole, *more], f"{caption} {whole}", canvas, pairs)
