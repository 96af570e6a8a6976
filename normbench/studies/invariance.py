"""Which changes of weights and data leave a norm's output as it is, beside the published tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.build import factory, seeded
from normbench.studies.findings import curves, keys_of, plain_table
from normbench.studies.frame import Column, Row, Study, Subject

Inputs = Float[Tensor, "sample ... features"]
Layer = Callable[[Tensor, Tensor], Tensor]  # (weights, inputs) to norm(Wx)

RANDOM, C = "random", 3.0
CHANGES: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "as it is": lambda w, x, shift: (w, x),
    "W × c": lambda w, x, shift: (C * w, x),
    "W + 1·cᵀ": lambda w, x, shift: (w + shift, x),
    "one weight vector × c": lambda w, x, shift: (first_times_c(w), x),
    "data × c": lambda w, x, shift: (w, C * x),
    "data + c": lambda w, x, shift: (w, x + shift),
    "one sample × c": lambda w, x, shift: (w, first_times_c(x)),
}
SIX = [*CHANGES][1:]
# in the order of the six changes; of DyT and none it follows from the formula
PUBLISHED = dict.fromkeys(("rmsnorm", "prmsnorm"), "yes no no yes no yes") | {"layernorm": "yes yes no yes no yes"}
PUBLISHED |= {"batchnorm": "yes no yes yes yes no", "weightnorm": "yes no yes no no no"}
PUBLISHED |= dict.fromkeys(("dyt", "none"), "no no no no no no")
VERDICTS = (
    "Yes: for all data, in both precisions, of output and gradient. Exponent: of c in |d/d(cW)|. Statistics over: "
)
LARGEST = "The largest of all data and seeds. Gradient: of a loss of the output, by the weights before the change."
BEFORE = "Random data in float64: mean and standard deviation of Wx and of norm(Wx), and the first number of that."


class Invariance(Study):
    """Measure what six changes of weights or data do to norm(Wx), before γ and β, and to the weights' gradient.

    An invariance holds where the relative deviation is below the square root of the precision's machine epsilon. Data
    are random, or what enters the first and the last norm of a model at initialisation; a sample is one of the batch,
    with all its positions. eps is 0; what the norm's own eps does, a sweep of the input's scale shows. Where scaling W
    changes nothing, larger weights have smaller gradients: d/d(cW) = 1/c · d/dW. WeightNorm, which normalizes weights,
    is measured where the norm itself does nothing.
    """

    title = "Invariances"
    source = "Ba et al. 2016, table 1; Zhang & Sennrich 2019, table 1; Salimans & Kingma 2016 (WeightNorm)"
    words = ("norm=batchnorm,layernorm,rmsnorm,prmsnorm,groupnorm,instancenorm,dyt,none",
             "model=nano", "data=digits", "model.patch=2")  # fmt: skip
    columns: ClassVar = {
        **{"deviation": Column("relative deviation"), "gradient": Column("gradient norm over that before")},
        **{"scale": Column("RMS of Wx"), "eps_deviation": Column("deviation from eps = 0")},
        **{"mean_in": Column("mean of Wx"), "std_in": Column("std of Wx"), "mean_out": Column("mean of norm(Wx)")},
        **{"std_out": Column("std of norm(Wx)"), "first_out": Column("first of norm(Wx)")},
    }

    def measure(self, subject: Subject) -> Iterator[Row]:
        for name, (data, channel_dim) in inputs(subject).items():
            with seeded(subject.seed, "invariance", name):
                drawn = [data, *map(torch.randn, (2 * data.shape[-1:], data.shape[-1:], data.shape))]
            for dtype in (torch.float32, torch.float64):
                x, w, *others = (tensor.to(subject.device, dtype) for tensor in drawn)
                w, here = w / len(w) ** 0.5, {"input": name, "precision": str(dtype).removeprefix("torch.")}
                exact, own = (normed(subject, x, channel_dim, **eps) for eps in ({"eps": 0.0}, {}))
                layers = [(exact, {"over": subject.facts.statistics_over})]
                if torch.equal(exact(w, x), x @ w.T):
                    layers += [(weight_normed(w), {"norm": "weightnorm", "over": "a weight vector"})]
                yield from (here | row | more for layer, more in layers for row in changed(layer, w, x, *others))
            x = x / (x @ w.T).square().mean().sqrt()
            for scale in np.logspace(-4, 4, 17).tolist() if "eps" in subject.tree["norm"] else ():
                yield {"input": name, "scale": scale, "eps_deviation": deviation(own(w, scale * x), exact(w, x))}

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        front, known = keys_of(rows), rows.dropna(subset=["deviation"])
        found, growth = (by_change(known, front, *how) for how in (("holds", verdict), ("gradient", "mean")))
        found["exponent"] = np.log(growth[SIX[0]]) / np.log(C) - 1  # d/dW is c · d/d(cW)
        marks, published = found[SIX].agg(" ".join, axis=1), found["norm"].map(PUBLISHED).fillna("–")
        found["published"] = published.where(published != marks, "the same")
        layouts = [": ".join(pair) for pair in known[["norm", "over"]].drop_duplicates().to_numpy()]
        worst = by_change(known, [*front, "of", "precision"], "deviation", "max")
        words = {name: column.words for name, column in self.columns.items() if name.endswith(("_in", "_out"))}
        once = known[known["seed"] == known["seed"].min()].query(f"input == '{RANDOM}' and precision == 'float64'")
        once = once[~once["change"].str.startswith("one")].dropna(subset=[*words])[[*front, "change", *words]]
        tables = (("invariances", found, 0, VERDICTS + "; ".join(layouts)), ("deviations", worst, 2, LARGEST))
        return [
            plain_table(key, key.capitalize(), frame.to_dict("records"), len(front) + heads, note)
            for key, frame, heads, note in (*tables, ("moments", once.rename(columns=words), 1, BEFORE))
        ]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        y, caption = "eps_deviation", "Relative deviation of norm(Wx) from that with eps = 0."
        return [curves("eps", rows, x="scale", y=y, panel="input", columns=self.columns, title="What eps does",
                       caption=caption, log="xy")] if y in rows else []  # fmt: skip


def inputs(subject: Subject) -> dict[str, tuple[Inputs, int]]:
    """Return what enters the first and the last norm, with the norm's channel_dim, and random data like the first."""
    model, norms = subject.build()
    names, seen = {norm: name for name, norm in norms.items()}, dict[str, tuple[Inputs, int]]()

    def see(norm: Any, given: tuple[Tensor, ...]) -> None:
        seen[names[norm]] = given[0].movedim(norm.channel_dim, -1), norm.channel_dim

    for place in (0, -1):
        [*names][place].register_forward_pre_hook(see)
    with torch.no_grad(), seeded(subject.seed, RANDOM):
        model.train()(*subject.data.train_batch(0).map(lambda tensor: tensor.to(subject.device)).arguments)
        data, channel_dim = next(iter(seen.values()))
        return {RANDOM: (torch.randn(data.shape), channel_dim)} | seen


def normed(subject: Subject, x: Inputs, channel_dim: int, **settings: float) -> Layer:
    """Return norm(Wx) with the norm in training; settings: of the norm, where it has them."""
    values = {key: settings.get(key, value) for key, value in subject.tree["norm"].items()}
    norm = factory({"norm": values}, "norm")(x.shape[-1], channel_dim=channel_dim).to(x).requires_grad_(False)
    return lambda w, x: norm((x @ w.T).movedim(-1, channel_dim)).movedim(channel_dim, -1)


def weight_normed(w: Tensor) -> Layer:
    """Return Wx with the weight vectors, whatever their lengths, at those of the given ones."""
    g = w.norm(dim=1, keepdim=True)
    return lambda w, x: x @ (g * w / w.norm(dim=1, keepdim=True)).T


def changed(layer: Layer, w: Tensor, x: Inputs, shift: Tensor, target: Inputs) -> Iterator[Row]:
    """Yield what each change does to the output, and to the gradient of a loss by the weights before the change.

    Where a change leaves the output as it is, whatever the weights, it leaves that gradient too.
    """
    w, before = w.detach().requires_grad_(), list[Tensor]()
    for change, apply in CHANGES.items():
        new_w, new_x = apply(w, x, shift)
        y = layer(new_w, new_x)
        (gradient,) = torch.autograd.grad((y * target + y.square() / 2).sum(), w)
        before = before or [y.detach(), gradient]
        sides = {"in": (new_x @ new_w.T).detach(), "out": y.detach()}
        moments = {f"{word}_{side}": getattr(z, word)() for side, z in sides.items() for word in ("mean", "std")}
        numbers = moments | {"first_out": sides["out"].flatten()[0]}, {"gradient": gradient.norm() / before[1].norm()}
        for of, new, old, more in zip(("output", "gradient"), (sides["out"], gradient), before, numbers, strict=True):
            off = deviation(new, old)
            row = {"change": change, "of": of, "deviation": off, "holds": off < torch.finfo(x.dtype).eps ** 0.5}
            yield row | {name: float(value) for name, value in more.items()}


def deviation(x: Tensor, reference: Tensor) -> float:
    """Return |x − reference| / |reference|."""
    return float((x - reference).norm() / reference.norm())


def first_times_c(x: Tensor) -> Tensor:
    """Return x with its first row times c."""
    return torch.cat((C * x[:1], x[1:]))


def by_change(rows: pd.DataFrame, by: list[str], value: str, how: Any) -> pd.DataFrame:
    """Return a value of the six changes in columns."""
    return (
        rows.groupby([*by, "change"], dropna=False, sort=False)[value].agg(how).unstack(sort=False)[SIX].reset_index()
    )


def verdict(holds: pd.Series) -> str:
    """Return yes where all hold, no where none does."""
    return "yes" if holds.all() else "mixed" if holds.any() else "no"
