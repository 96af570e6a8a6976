"""What outliers, noise and dropped positions cost a trained model, in its inputs and in its hidden channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Tensor

from normbench.analysis.figures.style import Figure
from normbench.analysis.statistics import Sample
from normbench.analysis.tables import Table
from normbench.build import seeded
from normbench.settings import Setting
from normbench.studies.findings import against_baseline, compared, curves, differences_told, values_told
from normbench.studies.frame import Column, Difference, Row, Study, Subject
from normbench.training.evaluation import evaluate
from normbench.types import Model

Levels = Sequence[float]


def outlier(factor: float, x: Tensor, axis: int) -> Tensor:
    """Return x with its largest channel times a factor; axis: of the channels."""
    moved = x.movedim(axis, -1)
    largest = moved.square().flatten(0, -2).mean(0).argmax()
    scale = torch.where(torch.arange(moved.shape[-1], device=x.device) == largest, factor, 1.0)
    return (moved * scale).movedim(-1, axis)


def noise(level: float, x: Tensor, axis: int) -> Tensor:
    """Return x with Gaussian noise of `level` times its root mean square."""
    return x + level * x.square().mean().sqrt() * torch.randn(x.shape).to(x)


def dropped(share: float, x: Tensor, axis: int) -> Tensor:
    """Return x with 0 at a share of its positions (tokens or pixels), in all channels."""
    positions = [1 if place == axis % x.ndim else size for place, size in enumerate(x.shape)]
    return x * (torch.rand(positions) >= share).to(x)


CHANGES: dict[str, tuple[Callable[[float, Tensor, int], Tensor], str]] = {
    "outlier": (outlier, "factor on the largest channel"),
    "noise": (noise, "noise over the root mean square"),
    "dropped": (dropped, "share of positions dropped"),
}


@contextmanager
def changed(model: Model, place: str, change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Let a model meet changed values inside the `with`: at its input (pixels, embedded text) or at half its depth."""

    def before(module: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        axis = 1 if module is model else next(iter(module.branches.values())).channel_dim
        return change(given[0], axis) if given[0].is_floating_point() else given[0], *given[1:]

    def behind(module: Any, given: tuple[Any, ...], output: Tensor) -> Tensor:
        return output if given[0].is_floating_point() else change(output, -1)

    stem: Any = model.stem
    middle = model.blocks[len(model.blocks) // 2]
    handles = [(model if place == "input" else middle).register_forward_pre_hook(before)]
    handles += [stem.register_forward_hook(behind)] if place == "input" else []
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Robustness(Study):
    """Measure what outliers, noise and dropped positions cost a trained model, by norm.

    The values are changed at the model's input, pixels or embedded tokens, or in the residual stream that enters the
    block at half the depth: the largest channel is multiplied (of pixels a colour; of grey ones all), Gaussian noise is
    added, or whole positions are set to 0. The increase is that of the same model's loss over the unchanged one, with
    the same random numbers whatever the norm.
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
        batches = [*subject.data.eval_batches("val", self.batches)]
        clean = evaluate(model, batches, subject.task, subject.device)["loss"]
        for kind, (change, _) in CHANGES.items():
            for place in ("input", "hidden"):
                for level in self.levels[kind]:
                    with seeded(subject.seed, kind, place, level), changed(model, place, partial(change, level)):
                        loss = evaluate(model, batches, subject.task, subject.device)["loss"]
                    yield {"kind": kind, "place": place, "strength": level, "loss": loss, "increase": loss - clean}

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        found, told = dict[str, Sample](), list[str]()
        column = self.columns["increase"]
        for kind, own in rows[rows["place"] == "hidden"].groupby("kind", sort=False):
            strongest = own[own["strength"] == own["strength"].max()]
            what = f"Loss added in the hidden stream by {kind} at {strongest['strength'].iloc[0]:g}"
            found |= against_baseline(strongest, "increase", self.baseline, what)
            told += values_told(strongest, "increase", column, what)
        return differences_told(found, column.unit) or told

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        strongest = rows[rows["strength"] == rows.groupby("kind")["strength"].transform("max")]
        return [compared(strongest, values=["increase"], by=["kind", "place", "strength"], columns=self.columns,
                         baseline=self.baseline, title="The strongest changes")]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        named = {kind: {**self.columns, "strength": Column(words)} for kind, (_, words) in CHANGES.items()}
        drawn = [curves(kind, own, x="strength", y="loss", panel="place", log="xy",
                        columns=named[kind], **self.captions[kind])
                 for kind, own in rows.groupby("kind", sort=False)]  # fmt: skip
        return [figure for figures in drawn for figure in figures]
