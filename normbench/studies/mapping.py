"""What the norm layers of a trained model do to their input: a line for each token, and the S of a tanh for all."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.evidence.arms import Arm
from normbench.evidence.labels import label_of
from normbench.norms.fitting import Lines, find_slope, fit_lines
from normbench.results.rows import Column, ResultTable, StudyResult, arms_of, compare, compare_kinds, is_arm
from normbench.results.statistics import ROUNDING
from normbench.settings import Setting
from normbench.show.figures import plots, style
from normbench.show.figures.captions import at_most
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import Axis, Series, Subplot
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.training.evaluation import to_device
from normbench.wording import compact, fixed

Values = Float[np.ndarray, " values"]
Vectors = Float[Tensor, "positions features"]
Tokens = Annotated[int, Setting("random tokens, or pixels, that are fitted", low=2, high=10**6)]
Drawn = Annotated[int, Setting("of these drawn, each with as many features", low=2, high=200)]

NO_ARM = style.Entry(Arm({}), "", style.INK, (0, ()), "")  # what is drawn is no arm's


class Passed(NamedTuple):
    """Vectors that enter a norm, and what it makes of each without γ and β."""

    x: Vectors
    y: Vectors


class Mapping(Study):
    """Show the output of each norm layer of a trained model against its input, and fit γ·tanh(αx)+β and a line to it.

    LayerNorm maps the features of one token along a straight line. Tokens differ in slope, and all lines together make
    an S, in the later layers of large models above all, which is why DyT has a tanh in its place. Measured on
    validation data, before the norm's own γ and β; the fits are by least squares over all values of a layer.
    """

    trains = True

    def __init__(self, *, tokens: Tokens = 1024, drawn: Drawn = 32) -> None:
        self.tokens = tokens
        self.drawn = drawn

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        batch = to_device(next(subject.data.eval_batches("val", 1)), subject.device)
        passed_by_site = dict[str, Passed]()
        for site, norm in norms.items():
            norm.register_forward_hook(partial(self.see, passed_by_site, site, bare(norm)), with_kwargs=True)
        with torch.no_grad():
            model(*batch.arguments)
        layers_with_points = {0, len(passed_by_site) // 2, len(passed_by_site) - 1}
        for layer, (site, passed) in enumerate(passed_by_site.items()):
            place = {"layer": layer, "site": site}
            x = passed.x.flatten().numpy()
            y = passed.y.flatten().numpy()
            yield {**place, "kind": "fit", **fit(x, y)}
            if layer in layers_with_points:
                for point in self.points(passed):
                    yield {**place, "kind": "point", **point}

    def see(
        self, seen: dict[str, Passed], site: str, plain: Any, _: nn.Module, inputs: Any, context: Any, output: Any
    ) -> None:
        """Keep some random vectors that enter a norm in a call, and what it makes of them without γ and β.

        Args:
            seen: what was kept so far, by site.
            site: of the norm.
            plain: a copy of the norm with γ = 1 and β = 0.
            inputs, context, output: of the call, as torch gives them to a hook; the output is not used.
        """
        mask = context.get("mask")
        x = vectors(inputs[0], plain.channel_dim, mask).cpu().double()
        y = vectors(plain(*inputs, **context), plain.channel_dim, mask).cpu().double()
        generator = torch.Generator().manual_seed(0)
        some = torch.randperm(len(x), generator=generator)[: self.tokens]
        passed = Passed(x[some], y[some])
        if site in seen:  # a norm that is called several times
            before = seen[site]
            passed = Passed(torch.cat([before.x, passed.x]), torch.cat([before.y, passed.y]))
        seen[site] = passed

    def points(self, passed: Passed) -> Iterator[Row]:
        """Yield some values of some tokens, from those with the smallest spread to those with the largest."""
        tokens, features = passed.x.shape
        by_spread = passed.x.std(dim=1).argsort()
        drawn_tokens = by_spread[evenly_spread(self.drawn, tokens)]
        drawn_features = evenly_spread(self.drawn, features)
        for token, place in enumerate(drawn_tokens.tolist()):
            inputs = passed.x[place, drawn_features].tolist()
            outputs = passed.y[place, drawn_features].tolist()
            for input_value, output_value in zip(inputs, outputs, strict=True):
                yield {"token": token, "input": input_value, "output": output_value}

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[StudyResult]:
        fits = both_fits(rows)
        is_tanh = fits["fit"] == "of a tanh"
        kinds = ("with a fitted γ·tanh(αx)+β", "with a fitted line")
        return compare_kinds(fits, is_tanh, ~is_tanh, "left", "mean share of variance left", kinds, "")

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        fits = rows[rows["kind"] == "fit"]
        title = "How well a tanh and a line describe norm layers"
        values = ["tanh_left", "line_left", "reach"]
        means = compare(
            fits,
            values=values,
            columns=self.columns,
            baseline=self.baseline,
            title=f"{title}, the mean over layers",
        )
        layers = compare(
            fits,
            values=values,
            columns=self.columns,
            by=["site"],
            key="layers",
            title=f"{title}, by layer",
        )
        return [means, layers]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        captions = self.captions
        errors = draw_curves(
            "errors",
            both_fits(rows),
            x="layer",
            y="left",
            panel="fit",
            columns={**self.columns, "left": Column("variance that the fit leaves", "share")},
            **captions["errors"],
        )
        layers = drawn_layers(rows)
        shown, more = style.take_first(layers, style.MOST_PANELS, "panels")
        points = draw_points(shown, **captions["mapping"])
        histograms = draw_histograms(shown, **captions["histograms"])
        return [replace(points, sentences=[*points.sentences, *more]), *errors, histograms]


def both_fits(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each fit to each layer: of a tanh and of a line, with the share of variance that it leaves."""
    layers = rows[rows["kind"] == "fit"]
    tanh = layers.assign(fit="of a tanh", left=layers["tanh_left"])
    line = layers.assign(fit="of a line", left=layers["line_left"])
    return pd.concat([tanh, line], ignore_index=True)


def evenly_spread(count: int, size: int) -> Tensor:
    """Return `count` indices below `size`, spread evenly from the first to the last; all of them if there are fewer."""
    return torch.linspace(0, size - 1, min(count, size)).long()


@torch.no_grad()
def bare(norm: nn.Module) -> nn.Module:
    """Return a copy of a norm with γ = 1 and β = 0."""
    plain = copy.deepcopy(norm)
    for name, parameter in plain.named_parameters():
        if name == "weight":
            parameter.fill_(1.0 - getattr(norm, "offset", 0.0))
        elif name == "bias":
            parameter.fill_(0.0)
    return plain


def vectors(x: Tensor, channel_dim: int, mask: Bool[Tensor, "batch time *heads"] | None) -> Vectors:
    """Return the vectors of all positions that are not padding, of each head where there are several."""
    x = x.movedim(channel_dim, -1)
    if mask is None or mask.ndim != x.ndim - 1:
        return x.flatten(0, -2)
    in_front = x.shape[1] - mask.shape[1]  # a class token
    of_heads = (0, 0) * (mask.ndim - 2)
    return x[F.pad(mask, (*of_heads, in_front, 0), value=True)]


def fit(x: Values, y: Values) -> dict[str, float]:
    """Fit γ·tanh(αx)+β and a line by least squares: given α, what is left is a line through tanh(αx)."""

    def fit_with(alpha: float) -> Lines:
        return fit_lines(np.tanh(alpha * x)[:, None], y[:, None])

    def left_by_tanh(alpha: float) -> float:
        return fit_with(alpha).left

    alpha = find_slope(float(x.std()), left_by_tanh)
    tanh = fit_with(alpha)
    line = fit_lines(x[:, None], y[:, None])
    largest = float(np.quantile(np.abs(x), 0.99))
    bend = line.left - tanh.left
    return {
        "gamma": float(tanh.gamma[0]),
        "alpha": alpha,
        "beta": float(tanh.beta[0]),
        "reach": alpha * largest,
        "tanh_left": tanh.left,
        "line_left": line.left,
        "bend": bend,
        "bend_share": bend / line.left if line.left > ROUNDING else 0.0,
    }


# ---- drawings


def drawn_layers(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the layers whose points are drawn, of the first seed, by arm."""
    of_first_seed = rows[rows["seed"] == rows["seed"].min()]
    layers = []
    for arm in arms_of(of_first_seed):
        for _, rows_of_layer in of_first_seed[is_arm(of_first_seed, arm.settings)].groupby("layer"):
            if len(rows_of_layer) > 1:
                layers.append((f"{label_of(arm)} · {rows_of_layer['site'].iloc[0]}", rows_of_layer))
    return layers


def draw_points(layers: Sequence[tuple[str, pd.DataFrame]], title: str, caption: str) -> Figure:
    """Draw outputs against inputs, and the fitted tanh. layers: the title and the rows of each."""
    subplots, fits = [], []
    for words, rows in layers:
        fitted = rows.iloc[0]
        x = np.linspace(rows["input"].min(), rows["input"].max(), 200)
        gamma, alpha, beta = fitted[["gamma", "alpha", "beta"]]
        line = pd.DataFrame({"x": x, "mean": gamma * np.tanh(alpha * x) + beta})
        points = rows.dropna(subset=["input"])
        dots = pd.DataFrame({"x": points["input"], "y": points["output"], "color": points["token"]})
        subplots.append(Subplot(words, [Series(NO_ARM, line)], dots))
        fits.append(f"{words} {compact(fitted['tanh_left'])}, {compact(fitted['line_left'])}")
    with style.use_our_style():
        canvas = plots.lines(subplots, Axis("input"), Axis("output"))
    alt = f"{caption} Variance that the tanh leaves, and a line: {at_most(fits)}."
    return Figure("mapping", title, [caption], alt, canvas, rows_of(layers))


def draw_histograms(layers: Sequence[tuple[str, pd.DataFrame]], title: str, caption: str) -> Figure:
    """Draw how inputs and outputs are spread. layers: the title and the rows of each."""
    subplots, farthest = [], []
    for words, rows in layers:
        series = []
        for name, color in (("input", style.FAINT), ("output", style.OWN[1])):
            values = (rows[name] - rows[name].mean()) / rows[name].std()
            density, edges = np.histogram(values.dropna(), np.linspace(-5, 5, 41), density=True)
            stairs = pd.DataFrame({"x": edges, "mean": [*density, np.nan]})
            series.append(Series(replace(NO_ARM, label=f"{name}s", color=color), stairs))
            farthest.append(f"{words}, {name}s: {fixed(values.abs().max(), 1)}")
        subplots.append(Subplot(words, series))
    with style.use_our_style():
        canvas = plots.steps(subplots, Axis("standard deviations"), Axis("density", "log"))
    alt = f"{caption} Farthest from the mean, in standard deviations: {at_most(farthest)}."
    return Figure("histograms", title, [caption], alt, canvas, rows_of(layers))


def rows_of(layers: Sequence[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return the rows of all layers."""
    return pd.concat([rows for _, rows in layers], ignore_index=True)
