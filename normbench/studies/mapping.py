"""What the norm layers of a trained model do to their input: a line for each token, and the S of a tanh for all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

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
from normbench.studies.findings import arms_of, change_in_arms, compared, curves, is_arm, labelled
from normbench.studies.frame import Column, Difference, Row, Study, Subject
from normbench.training.evaluation import to_device

Values = Float[np.ndarray, " values"]
Vectors = Float[Tensor, "positions features"]
Draw = Callable[[Any, pd.DataFrame], None]
Tokens = Annotated[int, Setting("random tokens, or pixels, that are fitted", low=2, high=10**6)]
Drawn = Annotated[int, Setting("of these drawn, each with as many features", low=2, high=200)]

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
            grid("mapping", layers, draw_points, **said["mapping"]),
            curves("errors", both, x="layer", y="left", panel="fit", columns=columns, **said["errors"]),
            grid("histograms", layers, draw_histograms, **said["histograms"]),
        ]


def grid(name: str, cells: list[tuple[str, pd.DataFrame]], draw: Draw, title: str, caption: str) -> Figure:
    """Return a figure with a panel, three in a row, for each cell: its words and its rows."""
    drawn, more = style.first(cells, style.MOST_PANELS, "panels")
    with style.our_style(style.PAGE):
        canvas = style.blank(0.2 + 1.8 * -(-len(drawn) // 3))
        canvas.set_layout_engine("constrained")
        for place, (words, own) in enumerate(drawn, 1):
            draw(canvas.add_subplot(-(-len(drawn) // 3), 3, place, title=words), own)
    return Figure(name, title, caption + more, caption, canvas, pd.concat([own for _, own in drawn]))


def draw_points(pane: Any, rows: pd.DataFrame) -> None:
    """Draw outputs against inputs, and the fitted tanh."""
    fit, x = rows.iloc[0], np.linspace(rows["input"].min(), rows["input"].max(), 200)
    pane.scatter(rows["input"], rows["output"], 2, rows["token"], cmap="viridis", rasterized=True)
    pane.plot(x, fit["gamma"] * np.tanh(fit["alpha"] * x) + fit["beta"], color=style.INK)
    pane.set(xlabel="input", ylabel="output")


def draw_histograms(pane: Any, rows: pd.DataFrame) -> None:
    """Draw how inputs and outputs are spread."""
    for name, look in (("input", {"color": style.FAINT}), ("output", {"edgecolor": style.OWN[1], "fill": False})):
        values = (rows[name] - rows[name].mean()) / rows[name].std()
        pane.hist(values.dropna(), np.linspace(-5, 5, 41), density=True, histtype="stepfilled", **look)
    style.log_scale(pane, "y")
    pane.set(xlabel="standard deviations", ylabel="density")


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
