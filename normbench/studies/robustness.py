"""What outliers, noise and dropped positions cost a trained model, in its inputs and in its hidden channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.results.rows import (
    Column,
    ResultTable,
    Stated,
    StudyResult,
    Value,
    at_largest,
    compare,
    compare_with_baseline,
    values_of,
)
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.training.devices import seed_draws
from normbench.training.evaluation import evaluate
from normbench.types import Model
from normbench.wording import short

Levels = Sequence[float]
Change = Callable[[float, Tensor, int], Tensor]  # (level, values, their axis of channels) to changed values

# How each changes the stream at half the depth.
OF_STREAM = {
    "outlier": "making the largest hidden channel {} times as large",
    "noise": "noise of {} times the root mean square of the hidden stream",
    "dropped": "dropping a share of {} of the hidden positions",
}

LEVELS = {
    "outlier": "factor on the largest channel",
    "noise": "noise over the root mean square",
    "dropped": "share of positions dropped",
}


class Robustness(Study):
    """Measure what outliers, noise and dropped positions cost a trained model, by norm.

    The values are changed at the model's input, pixels or embedded tokens, or in the residual stream that enters the
    block at half the depth: the largest channel is multiplied (of pixels a colour; of grey ones all), Gaussian noise is
    added, or whole positions are set to 0. Several streams are changed as one that has the channels of all. The
    increase is that of the same model's loss over the unchanged one, with the same random numbers whatever the norm.
    """

    trains = True

    def __init__(
        self,
        *,
        outlier: Annotated[Levels, Setting("factors on a channel", low=0)] = (1.0, 10.0, 100.0, 1000.0),
        noise: Annotated[Levels, Setting("noise over the root mean square", low=0)] = (0.1, 0.3, 1.0, 3.0),
        dropped: Annotated[Levels, Setting("shares of positions", low=0, high=1)] = (0.05, 0.1, 0.3),
        batches: Annotated[int, Setting("batches of validation data", low=1)] = 2,
    ) -> None:
        self.levels = {"outlier": outlier, "noise": noise, "dropped": dropped}
        self.batches = batches

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, _ = subject.build()
        batches = list(subject.data.eval_batches("val", self.batches))

        def loss() -> float:
            return evaluate(model, batches, subject.task, subject.device)["loss"]

        clean = loss()
        for kind, change in CHANGES.items():
            for place in ("input", "hidden"):
                for level in self.levels[kind]:
                    change_values = partial(change, level)
                    with seed_draws(subject.seed, kind, place, level), apply_change(model, place, change_values):
                        changed_loss = loss()
                    yield {
                        "kind": kind,
                        "place": place,
                        "strength": level,
                        "loss": changed_loss,
                        "increase": changed_loss - clean,
                    }

    def finding(self, rows: pd.DataFrame) -> Sequence[Stated]:
        differences = list[StudyResult]()
        values = list[Value]()
        column = self.columns["increase"]
        for kind, rows_of_kind in rows[rows["place"] == "hidden"].groupby("kind", sort=False):
            level = rows_of_kind["strength"].max()
            strongest = rows_of_kind[rows_of_kind["strength"] == level]
            number = f"loss added by {OF_STREAM[str(kind)].format(short(level))}"
            differences += compare_with_baseline(
                strongest, "increase", self.baseline, number, column.unit, better=column.better
            )
            values += values_of(strongest, "increase", number, column.unit)
        return differences or values

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        table = compare(
            at_largest(rows, "strength", by="kind"),
            values=["increase"],
            by=["kind", "place", "strength"],
            columns=self.columns,
            baseline=self.baseline,
            title="The strongest changes",
        )
        return [table]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        drawings = list[Figure]()
        for kind, rows_of_kind in rows.groupby("kind", sort=False):
            columns = {**self.columns, "strength": Column(LEVELS[str(kind)])}
            title_and_caption = self.captions[str(kind)]
            drawings += draw_curves(
                str(kind),
                rows_of_kind,
                x="strength",
                y="loss",
                panel="place",
                log="xy",
                columns=columns,
                **title_and_caption,
            )
        return drawings


def outlier(factor: float, x: Tensor, axis: int) -> Tensor:
    """Return x with its largest channel multiplied by a factor. axis: that of the channels."""
    moved = x.movedim(axis, -1)
    mean_squares = moved.square().flatten(0, -2).mean(0)
    largest = mean_squares.argmax()
    channels = torch.arange(moved.shape[-1], device=x.device)
    scale = torch.where(channels == largest, factor, 1.0)
    return (moved * scale).movedim(-1, axis)


def noise(level: float, x: Tensor, axis: int) -> Tensor:
    """Return x with Gaussian noise of `level` times its root mean square."""
    rms = x.square().mean().sqrt()
    return x + level * rms * torch.randn(x.shape).to(x)


def drop(share: float, x: Tensor, axis: int) -> Tensor:
    """Return x with 0 at a share of its positions (tokens or pixels), in all channels."""
    positions = list(x.shape)
    positions[axis] = 1
    is_kept = torch.rand(positions) >= share
    return x * is_kept.to(x)


CHANGES: dict[str, Change] = {"outlier": outlier, "noise": noise, "dropped": drop}


@contextmanager
def apply_change(model: Model, place: str, change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Let a model meet changed values inside the `with`: at its input (pixels, embedded text) or at half its depth."""
    anatomy = model.anatomy()
    middle = anatomy.blocks[len(anatomy.blocks) // 2]

    def change_input(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = given
        if not x.is_floating_point():
            return given
        return (change(x, 1), *others)

    def change_stream(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = given
        changed = change(middle.join_streams(x), middle.channel_dim)
        return (middle.split_streams(changed), *others)

    def change_embedding(module: Any, given: tuple[Any, ...], output: Tensor) -> Tensor:
        is_text = not given[0].is_floating_point()
        return change(output, -1) if is_text else output

    if place == "input":
        handles = [model.register_forward_pre_hook(change_input)]
        if anatomy.stem is not None:
            handles.append(anatomy.stem.register_forward_hook(change_embedding))
    else:
        handles = [middle.module.register_forward_pre_hook(change_stream)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
