"""How far a norm keeps the sigmoids of an MLP from saturating in training, and what scaled inputs do beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.studies.findings import against_baseline, compared, curves, differences_told, keys_of, values_told
from normbench.studies.frame import Difference, Row, Study, Subject
from normbench.studies.steps import check_steps, steps
from normbench.training.evaluation import to_device
from normbench.training.guard import buffers_kept
from normbench.types import Model

SCALING = "data.scaling"
SHARES = {"low": 0.15, "median": 0.5, "high": 0.85}  # of the values, as in the paper's figure 1


def percentiles(values: Float[Tensor, "..."]) -> dict[str, float]:
    """Return the values below which 15, 50 and 85 % lie."""
    return dict(zip(SHARES, np.quantile(values.detach().cpu().numpy(), [*SHARES.values()]).tolist(), strict=True))


def saturated(values: Float[Tensor, "..."], edge: float) -> float:
    """Return the share of values whose sigmoid lies within `edge` of 0 or 1."""
    outputs = values.detach().sigmoid()
    return ((outputs < edge) | (outputs > 1 - edge)).float().mean().item()


@torch.no_grad()
def sigmoid_inputs(model: Model, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return what each sigmoid reads for these inputs, in their order, and the logits; buffers stay as they are."""
    seen = list[Tensor]()
    sigmoids = [module for module in model.modules() if isinstance(module, nn.Sigmoid)]
    handles = [each.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for each in sigmoids]
    try:
        with buffers_kept(model):
            return seen, model(inputs)
    finally:
        for handle in handles:
            handle.remove()


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
        self.every, self.edge = every, edge

    def check(self, subject: Subject) -> None:
        check_steps(subject)
        if subject.tree["model"].get("activation") != "sigmoid":
            raise UsageError("the model has no sigmoids to measure: use model=mlp_plain model.activation=sigmoid")

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        batch = to_device(next(subject.data.eval_batches("val", 1)), subject.device)
        first = next(parameter for parameter in model.parameters() if parameter.ndim > 1)
        for step in steps(subject, model, norms):
            if step.number % self.every == 0 and first.grad is not None:
                inputs, logits = sigmoid_inputs(model, batch.inputs)
                right = (logits.argmax(-1) == batch.targets).float().mean().item()
                yield {"step": step.number, "gradient": first.grad.norm().item(), "accuracy": right}
                for layer, values in enumerate(inputs, start=1):
                    own = {f"unit_{name}": value for name, value in percentiles(values[:, 0]).items()}
                    found = {"saturated": saturated(values, self.edge), **percentiles(values), **own}
                    yield {"step": step.number, "layer": layer, **found}

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        first = rows[rows["layer"] == 1]
        what = "Share of saturated units of the first layer, mean over steps"
        found = against_baseline(first, "saturated", self.baseline, what)
        column = self.columns["saturated"]
        return differences_told(found, column.unit) or values_told(first, "saturated", column, what)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        how: dict[str, Any] = {"columns": self.columns, "baseline": self.baseline}
        note = f"A unit is saturated for an image where its sigmoid is within {self.edge:g} of 0 or 1. Mean over steps."
        own = rows.dropna(subset=["layer"]).astype({"layer": int})
        return [
            compared(own, values=["saturated"], by=["layer"], key="saturated", title="Saturation", notes=[note], **how),
            compared(rows, values=["gradient"], key="gradient", title="Gradient at the first layer", ratio=True, **how),
        ]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        panel = SCALING if SCALING in keys_of(rows) else None
        rows = rows[[*rows.columns.drop(panel), panel]] if panel else rows  # no setting of an arm, but a coordinate
        one = rows[rows["seed"] == rows["seed"].min()]
        percent = "Median and band from the 15th to the 85th percentile, over validation images"

        def drawn(own: pd.DataFrame, y: str, title: str, caption: str, **how: Any) -> list[Figure]:
            how |= {"x": "step", "y": y, "panel": panel, "columns": self.columns}
            return curves(y, own, title=title, caption=caption, **how)

        figures = [
            drawn(last(one), "unit_median", "What one sigmoid reads", f"{percent}, of seed {one['seed'].iloc[0]}.",
                  band=("unit_low", "unit_high")),
            drawn(last(rows), "median", "What the last sigmoids read", f"{percent}.", band=("low", "high")),
            drawn(rows[rows["layer"] == 1], "saturated", "Saturated units", "Of the first layer, over all images."),
            drawn(rows, "gradient", "Gradient at the first layer", "Of its weights, on the step's batch.", log="y"),
            drawn(rows, "accuracy", "Accuracy", "On validation images, with their own statistics."),
        ]  # fmt: skip
        return [figure for own in figures for figure in own]


def last(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last layer."""
    return rows[rows["layer"] == rows["layer"].max()]
