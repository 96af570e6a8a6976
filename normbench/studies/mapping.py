"""What the norm layers of a trained model do to their input: a line for each token, and the S of a tanh for all."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.analysis.figures import style
from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.settings import Setting
from normbench.studies.findings import arms_of, change_in_arms, compared, curves, draw_cells, is_arm, labelled, number
from normbench.studies.frame import Column, Difference, Row, Study, Subject
from normbench.training.evaluation import to_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = Float[np.ndarray, " values"]
Vectors = Float[Tensor, "positions features"]
Tokens = Annotated[int, Setting("random tokens, or pixels, that are fitted", low=2, high=10**6)]
Drawn = Annotated[int, Setting("of these drawn, each with as many features", low=2, high=200)]

HEIGHT = 1.7  # inches of a drawing
STEEPNESS = -3, 2  # log10 of α × the inputs' standard deviation: from a line to a step


class Mapping(Study):
    """Show the output of each norm layer of a trained model against its input, and fit γ·tanh(αx)+β and a line to it.

    LayerNorm maps the features of one token along a straight line. Tokens differ in slope, and all lines together make
    an S, in the later layers of large models above all, which is why DyT has a tanh in its place. Measured on
    validation data, before the norm's own γ and β; the fits are by least squares over all values of a layer.
    """

    trains = True

    def __init__(self, *, tokens: Tokens = 1024, drawn: Drawn = 32) -> None:
        self.tokens, self.drawn = tokens, drawn

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        batch = to_device(next(subject.data.eval_batches("val", 1)), subject.device)
        seen: dict[str, tuple[Vectors, Vectors]] = {}
        for site, norm in norms.items():
            norm.register_forward_hook(partial(self.see, seen, site, bare(norm)), with_kwargs=True)
        with torch.no_grad():
            model(*batch.arguments)
        for layer, (site, (x, y)) in enumerate(seen.items()):
            place = {"layer": layer, "site": site}
            yield {**place, "kind": "fit", **fitted(x.flatten().numpy(), y.flatten().numpy())}
            if layer in (0, len(seen) // 2, len(seen) - 1):
                tokens, features = (torch.linspace(0, size - 1, min(self.drawn, size)).long() for size in x.shape)
                some = torch.stack((x, y), dim=-1)[x.std(dim=1).argsort()[tokens]][:, features]
                for token, pair in ((token, pair) for token, pairs in enumerate(some.tolist()) for pair in pairs):
                    yield {**place, "kind": "point", "token": token, "input": pair[0], "output": pair[1]}

    def see(self, seen: Any, site: str, plain: Any, _: nn.Module, inputs: Any, context: Any, output: Any) -> None:
        """Keep some random vectors of each call's input of a norm, and what it makes of them without γ and β."""
        both = inputs[0], plain(*inputs, **context)
        x, y = (vectors(part, plain.channel_dim, context.get("mask")).cpu().double() for part in both)
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: self.tokens]
        calls = [*([seen[site]] if site in seen else []), (x[some], y[some])]
        seen[site] = [torch.cat(parts) for parts in zip(*calls, strict=True)]

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        fits = rows[rows["kind"] == "fit"]
        both = pd.concat(
            [fits.assign(of=word, left=fits[f"{word}_left"]) for word in ("tanh", "line")], ignore_index=True
        )
        what = "Variance that γ·tanh(αx)+β leaves, less what a line leaves, mean over layers"
        return change_in_arms(both, both["of"] == "tanh", both["of"] == "line", "left", what, "")

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        fits, title = rows[rows["kind"] == "fit"], "How well a tanh and a line describe norm layers"
        values: Any = {"values": ["tanh_left", "line_left", "reach"], "columns": self.columns}
        layers = compared(fits, by=["site"], key="layers", title=f"{title}, by layer", **values)
        return [compared(fits, baseline=self.baseline, title=f"{title}, the mean over layers", **values), layers]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        fits, first = rows[rows["kind"] == "fit"], rows[rows["seed"] == rows["seed"].min()]
        both = pd.concat([fits.assign(fit=f"of a {word}", left=fits[f"{word}_left"]) for word in ("tanh", "line")])
        columns = self.columns | {"left": Column("variance that the fit leaves", "share")}
        layers = [(f"{labelled(arm)} · {own['site'].iloc[0]}", own) for arm in arms_of(first)
                  for _, own in first[is_arm(first, arm.settings)].groupby("layer") if len(own) > 1]  # fmt: skip
        said = self.captions
        return [
            *draw_cells("mapping", layers, draw_points, **said["mapping"]),
            *curves("errors", both, x="layer", y="left", panel="fit", columns=columns, **said["errors"]),
            *draw_cells("histograms", layers, draw_histograms, **said["histograms"]),
        ]


def draw_points(rows: pd.DataFrame) -> tuple[Axes, str]:
    """Draw outputs against inputs, and the fitted tanh."""
    pane = style.draw_pane(HEIGHT, "input", "output")
    fit, x = rows.iloc[0], np.linspace(rows["input"].min(), rows["input"].max(), 200)
    pane.scatter(rows["input"], rows["output"], 2, rows["token"], cmap="viridis", rasterized=True)
    pane.plot(x, fit["gamma"] * np.tanh(fit["alpha"] * x) + fit["beta"], color=style.INK)
    left = f"The tanh leaves {number(fit['tanh_left'])} of the variance, a line {number(fit['line_left'])}."
    return pane, left


def draw_histograms(rows: pd.DataFrame) -> tuple[Axes, str]:
    """Draw how inputs and outputs are spread."""
    pane, far = style.draw_pane(HEIGHT, "standard deviations", "density"), dict[str, float]()
    for name, look in (("input", {"color": style.FAINT}), ("output", {"edgecolor": style.OWN[1], "fill": False})):
        values = (rows[name] - rows[name].mean()) / rows[name].std()
        far[name] = float(values.abs().max())
        pane.hist(values.dropna(), np.linspace(-5, 5, 41).tolist(), density=True, histtype="stepfilled", **look)
    style.log_scale(pane, "y")
    inputs, outputs = (f"{far[name]:.1f}" for name in ("input", "output"))
    return pane, f"Farthest from the mean: an input by {inputs} standard deviations, an output by {outputs}."


@torch.no_grad()
def bare(norm: nn.Module) -> nn.Module:
    """Return a copy of a norm with γ = 1 and β = 0."""
    plain = copy.deepcopy(norm)
    for name, parameter in plain.named_parameters():
        if name in ("weight", "bias"):
            parameter.fill_(name == "weight")
    return plain


def vectors(x: Tensor, channel_dim: int, mask: Bool[Tensor, "batch time"] | None) -> Vectors:
    """Return the vectors of all positions that are no padding."""
    x = x.movedim(channel_dim, -1)
    if mask is None or x.ndim != 3:
        return x.flatten(0, -2)
    return x[F.pad(mask, (x.shape[1] - mask.shape[1], 0), value=True)]  # a class token stands in front


def fitted(x: Values, y: Values) -> dict[str, float]:
    """Fit γ·tanh(αx)+β and a line by least squares: given α, what is left is a linear regression on tanh(αx)."""
    scale = float(x.std())

    def left(steepness: float) -> float:
        return 1 - float(np.corrcoef(np.tanh(10**steepness / scale * x), y)[0, 1]) ** 2

    best = minimize_scalar(left, bounds=STEEPNESS, method="bounded")
    alpha = 10 ** float(best.x) / scale
    gamma, beta = np.polyfit(np.tanh(alpha * x), y, 1).tolist()
    found = {"gamma": gamma, "alpha": alpha, "beta": beta, "reach": alpha * float(np.quantile(np.abs(x), 0.99))}
    return found | {"tanh_left": float(best.fun), "line_left": 1 - float(np.corrcoef(x, y)[0, 1]) ** 2}
