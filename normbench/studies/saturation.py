"""How far a norm keeps the sigmoids of an MLP from saturating in training, and what scaled inputs do beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.results.rows import ResultTable, Stated, compare, keys_of
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.steps import check_steps, steps
from normbench.training.evaluation import to_device
from normbench.types import Model, keep_buffers
from normbench.wording import short

SCALING = "data.scaling"
SHARES = {"low": 0.15, "median": 0.5, "high": 0.85}  # of the values, as in the paper's figure 1
BANDS = {"unit_median": ("unit_low", "unit_high"), "median": ("low", "high")}  # around a median


class Saturation(Study):
    """Measure what the sigmoids of an MLP read while it trains, with and without a norm, by the scaling of its inputs.

    Every few steps the same validation images pass through the network in training mode. The first unit of the last
    layer is followed as in the paper's figure 1, beside the percentiles of all units of each layer. A unit is saturated
    where its sigmoid is within `study.edge` of 0 or 1, where hardly any gradient passes.
    """

    def __init__(
        self,
        *,
        every: Annotated[int, Setting("steps from one measurement to the next", "steps", low=1)] = 20,
        edge: Annotated[float, Setting("how near to 0 or 1 a saturated sigmoid is", above=0, below=0.5)] = 0.05,
    ) -> None:
        self.every = every
        self.edge = edge

    def check(self, subject: Subject) -> None:
        check_steps(subject)
        if subject.tree["model"].get("activation") != "sigmoid":
            raise UsageError("the model has no sigmoids to measure: use model=mlp_plain model.activation=sigmoid")

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        batch = to_device(next(subject.data.eval_batches("val", 1)), subject.device)
        first = next(parameter for parameter in model.parameters() if parameter.ndim > 1)
        for step in steps(subject, model, norms):
            if step.number % self.every or first.grad is None:
                continue
            inputs, logits = sigmoid_inputs(model, batch.inputs)
            is_right = logits.argmax(-1) == batch.targets
            accuracy = is_right.float().mean().item()
            yield {"step": step.number, "gradient": first.grad.norm().item(), "accuracy": accuracy}
            for layer, values in enumerate(inputs, start=1):
                row: Row = {"step": step.number, "layer": layer, "saturated": saturated_share(values, self.edge)}
                row |= percentiles(values)
                for name, value in percentiles(values[:, 0]).items():
                    row[f"unit_{name}"] = value
                yield row

    def finding(self, rows: pd.DataFrame) -> list[Stated]:
        first = rows[rows["layer"] == 1]
        return self.compare_or_tell(first, "saturated", "mean share of saturated units of the first layer")

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        edge = short(self.edge)
        note = f"A unit is saturated for an image where its sigmoid is within {edge} of 0 or 1. Mean over steps."
        layers = rows.dropna(subset=["layer"]).astype({"layer": int})
        saturation = compare(
            layers,
            values=["saturated"],
            by=["layer"],
            key="saturated",
            title="Saturation",
            notes=[note],
            columns=self.columns,
            baseline=self.baseline,
        )
        gradient = compare(
            rows,
            values=["gradient"],
            key="gradient",
            title="Gradient at the first layer",
            ratio=True,
            columns=self.columns,
            baseline=self.baseline,
        )
        return [saturation, gradient]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        panel = None
        if SCALING in keys_of(rows):
            panel = SCALING
            # a column after the seed is a coordinate, and no longer a setting of the arm
            rows = rows[[*rows.columns.drop(SCALING), SCALING]]
        first_seed = rows[rows["seed"] == rows["seed"].min()]
        rows_by_figure = {
            "unit_median": last_layer(first_seed),
            "median": last_layer(rows),
            "saturated": rows[rows["layer"] == 1],
            "gradient": rows,
            "accuracy": rows,
        }
        drawings = list[Figure]()
        for name, rows_of_figure in rows_by_figure.items():
            title_and_caption = self.captions[name]
            band = BANDS.get(name)
            drawings += draw_curves(
                name,
                rows_of_figure,
                x="step",
                y=name,
                columns=self.columns,
                panel=panel,
                band=band,
                **title_and_caption,
            )
        return drawings


def percentiles(values: Float[Tensor, "..."]) -> dict[str, float]:
    """Return the values below which 15, 50 and 85 % lie."""
    on_host = values.detach().cpu().numpy()
    quantiles = np.quantile(on_host, list(SHARES.values()))
    return dict(zip(SHARES, quantiles.tolist(), strict=True))


def saturated_share(values: Float[Tensor, "..."], edge: float) -> float:
    """Return the share of values whose sigmoid lies within `edge` of 0 or 1."""
    outputs = values.detach().sigmoid()
    is_saturated = (outputs < edge) | (outputs > 1 - edge)
    return is_saturated.float().mean().item()


@torch.no_grad()
def sigmoid_inputs(model: Model, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return what each sigmoid reads for these inputs, in their order, and the logits; buffers stay as they are."""
    sigmoid_reads = list[Tensor]()

    def keep_input(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        sigmoid_reads.append(given[0])

    sigmoids = [module for module in model.modules() if isinstance(module, nn.Sigmoid)]
    handles = [sigmoid.register_forward_pre_hook(keep_input) for sigmoid in sigmoids]
    try:
        with keep_buffers(model):
            logits = model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return sigmoid_reads, logits


def last_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last layer."""
    return rows[rows["layer"] == rows["layer"].max()]
