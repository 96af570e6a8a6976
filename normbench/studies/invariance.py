"""Which changes of weights and data leave a norm's output as it is, beside the published tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normbench.analysis.figures.style import PALETTE, Figure
from normbench.analysis.tables import Table
from normbench.analysis.wording import count
from normbench.build import seeded
from normbench.contract.norms import INVARIANCES, C, Change, NormPart
from normbench.studies.findings import curves, keys_of, plain_table
from normbench.studies.frame import Row, Study, Subject
from normbench.training.evaluation import to_device

Inputs = Float[Tensor, "sample ... features"]
Layer = Callable[[Tensor, Tensor], Tensor]  # (weights, inputs) to norm(Wx)

RANDOM = "random"
CHANGES: dict[str, Change] = {"as it is": lambda x, w, c: (x, w), **INVARIANCES}
SIX = [*INVARIANCES]
# in the order of the six changes; of DyT and none it follows from the formula
PUBLISHED = dict.fromkeys(("rmsnorm", "prmsnorm"), "yes no no yes no yes") | {"layernorm": "yes yes no yes no yes"}
PUBLISHED |= {"batchnorm": "yes no yes yes yes no", "weightnorm": "yes no yes no no no"}
PUBLISHED |= dict.fromkeys(("dyt", "none"), "no no no no no no")
VERDICTS = "Yes: for all data, both precisions, output and gradient. Exponent: of c in |d/d(cW)|. Statistics over: "
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

    def measure(self, subject: Subject) -> Iterator[Row]:
        part, no_eps = NormPart(subject.tree), {"eps": 0.0} if "eps" in subject.tree["norm"] else {}
        for name, (data, channel_dim) in inputs(subject).items():
            with seeded(subject.seed, "invariance", name):
                drawn = [data, *map(torch.randn, (2 * data.shape[-1:], data.shape[-1:], data.shape))]
            for dtype in (torch.float32, torch.float64):
                x, w, c, target = (tensor.to(subject.device, dtype) for tensor in drawn)
                w = w / len(w) ** 0.5
                own, exact = (normed(part, x, channel_dim, settings) for settings in ({}, no_eps))
                layers = [(exact, {"over": subject.facts.statistics_over})]
                if torch.equal(exact(w, x), x @ w.T):
                    layers.append((weight_normed(w), {"norm": "weightnorm", "over": "a weight vector"}))
                here = {"input": name, "precision": str(dtype).removeprefix("torch.")}
                yield from (here | row | of for layer, of in layers for row in changed(layer, w, x, c, target))
            x = x / (x @ w.T).square().mean().sqrt()
            for scale in np.logspace(-4, 4, 17).tolist() if no_eps else ():
                yield {"input": name, "scale": scale, "eps_deviation": deviation(own(w, scale * x), exact(w, x))}

    def finding(self, rows: pd.DataFrame) -> list[str]:
        verdicts = by_change(rows.dropna(subset=["deviation"]), ["norm"], "holds", verdict).set_index("norm")[SIX]
        marks = verdicts[verdicts.index.isin([*PUBLISHED])].agg(" ".join, axis=1)
        others = [str(norm) for norm, own in marks.items() if own != PUBLISHED[str(norm)]]
        agree = f"{len(marks) - len(others)} of {len(marks)} norms respond to all six changes as published"
        apart = f"; not {', '.join(others)}" if others else ""
        found = [f"{agree}, on all data, in both precisions, of {count(rows['seed'].nunique(), 'seed')}{apart}."]
        for norm, own in verdicts.iterrows():
            held = ", ".join(own.index[own == "yes"]) or "none of the six"
            found.append(f"{PALETTE['names'].get(str(norm), norm)} is invariant to: {held}.")
        return found

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        front, known = keys_of(rows), rows.dropna(subset=["deviation"])
        found, growth = by_change(known, front, "holds", verdict), by_change(known, front, "gradient", "mean")
        found["exponent"] = np.log(growth["W × c"]) / np.log(C) - 1  # d/dW is c · d/d(cW)
        marks, published = found[SIX].agg(" ".join, axis=1), found["norm"].map(PUBLISHED).fillna("–")
        found["published"] = published.where(published != marks, "the same")
        layouts = [": ".join(pair) for pair in known[["norm", "over"]].drop_duplicates().to_numpy()]
        worst = by_change(known, [*front, "of", "precision"], "deviation", "max")
        words = {name: column.words for name, column in self.columns.items() if name.endswith(("_in", "_out"))}
        once = known[known["seed"] == known["seed"].min()].query(
            f"input == '{RANDOM}' and precision == 'float64' and of == 'output'"
        )
        once = once[~once["change"].str.startswith("one")][[*front, "change", *words]]
        tables = (("invariances", found, 0, VERDICTS + "; ".join(layouts)), ("deviations", worst, 2, LARGEST),
                  ("moments", once.rename(columns=words), 1, BEFORE))  # fmt: skip
        return [plain_table(key, key.capitalize(), frame.to_dict("records"), len(front) + heads, note)
                for key, frame, heads, note in tables]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        caption = "Relative deviation of norm(Wx) from that with eps = 0."
        about: Any = {"columns": self.columns, "title": "What eps does", "caption": caption, "panel": "input"}
        return curves("eps", rows, x="scale", y="eps_deviation", **about) if "eps_deviation" in rows else []


def inputs(subject: Subject) -> dict[str, tuple[Inputs, int]]:
    """Return what enters the first and the last norm, with the norm's channel_dim, and random data like the first."""
    (model, norms), seen = subject.build(), dict[str, tuple[Inputs, int]]()

    def see(name: str, norm: Any, given: tuple[Tensor, ...]) -> None:
        seen[name] = given[0].movedim(norm.channel_dim, -1), norm.channel_dim

    for place in (0, -1):
        site = [*norms][place]
        norms[site].register_forward_pre_hook(partial(see, site))
    with torch.no_grad(), seeded(subject.seed, RANDOM):
        model.train()(*to_device(subject.data.train_batch(0), subject.device).arguments)
        data, channel_dim = next(iter(seen.values()))
        return {RANDOM: (torch.randn(data.shape), channel_dim), **seen}


def normed(part: NormPart, x: Inputs, channel_dim: int, settings: dict[str, float]) -> Layer:
    """Return norm(Wx) with the norm in training, under other settings."""
    norm = part.factory(**settings)(x.shape[-1], channel_dim=channel_dim).to(x).requires_grad_(False)
    return lambda w, x: norm((x @ w.T).movedim(-1, channel_dim)).movedim(channel_dim, -1)


def weight_normed(w: Tensor) -> Layer:
    """Return Wx with the weight vectors, whatever their lengths, at those of the given ones."""
    g = w.norm(dim=1, keepdim=True)
    return lambda w, x: x @ (g * w / w.norm(dim=1, keepdim=True)).T


def changed(layer: Layer, w: Tensor, x: Inputs, c: Tensor, target: Inputs) -> Iterator[Row]:
    """Yield what each change does to the output, and to the gradient of a loss by the weights before the change.

    Where a change leaves the output as it is, whatever the weights, it leaves that gradient too.
    """
    w, before = w.detach().requires_grad_(), dict[str, Tensor]()
    for change, apply in CHANGES.items():
        new_x, new_w = apply(x, w, c)
        y = layer(new_w, new_x)
        (gradient,) = torch.autograd.grad((y * target + y.square() / 2).sum(), w)
        found = {"output": y.detach(), "gradient": gradient}
        before = before or found
        numbers = {"gradient": gradient.norm() / before["gradient"].norm(), "first_out": found["output"].flatten()[0]}
        for side, values in (("in", (new_x @ new_w.T).detach()), ("out", found["output"])):
            numbers |= {f"mean_{side}": values.mean(), f"std_{side}": values.std()}
        row = {"change": change} | {name: float(value) for name, value in numbers.items()}
        for of, new in found.items():
            off = deviation(new, before[of])
            yield row | {"of": of, "deviation": off, "holds": off < torch.finfo(x.dtype).eps ** 0.5}


def deviation(x: Tensor, reference: Tensor) -> float:
    """Return |x − reference| / |reference|."""
    return float((x - reference).norm() / reference.norm())


def by_change(rows: pd.DataFrame, by: list[str], value: str, how: Any) -> pd.DataFrame:
    """Return a value of the six changes in columns."""
    grouped = rows.groupby([*by, "change"], dropna=False, sort=False)[value]
    return grouped.agg(how).unstack(sort=False)[SIX].reset_index()


def verdict(holds: pd.Series) -> str:
    """Return yes where all hold, no where none does."""
    return "yes" if holds.all() else "mixed" if holds.any() else "no"
