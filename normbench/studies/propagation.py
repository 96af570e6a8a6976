"""How signals and gradients pass through a stack at initialisation, by norm, placement and depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.build import build_model
from normbench.errors import UsageError
from normbench.probes import statistics
from normbench.settings import Setting
from normbench.studies.findings import (
    arms_of,
    by_seed,
    compared,
    curves,
    estimated,
    keys_of,
    labelled,
    plain_table,
    values_told,
)
from normbench.studies.frame import Column, Row, Study, Subject, check_memory
from normbench.training.evaluation import to_device
from normbench.types import Branch

Passing = tuple[Tensor, Tensor]  # what enters a module, and what leaves it

DEPTH, LAST = "model.depth", "position_gradient"
THEOREM = {"−½": -0.5, "0": 0.0}  # of Xiong et al. 2020: pre, post
BY_LAYER = ("rms", "gradient", "similarity", "angle")
SLOPES = {LAST: Column("gradient of one position"), "gradient": Column("gradient of a batch")}
EXPONENTS = (
    "Slope of the logarithm of the last layer's gradient norm on that of depth, mean over seeds with Student's 95 % "
    "interval. Theorem 1 of Xiong et al. 2020, of the loss at one position: 0 under post, −0.5 under pre."
)


class Propagation(Study):
    """Measure one forward and backward pass through a stack at initialisation, layer by layer.

    The position gradient is what Xiong et al. bound: that of the loss at one position, in the last branch's output
    weights (the last FFN's); with depth it stays under post and falls as 1/√depth under pre. It is left out where not
    every position has a loss, as in classifiers. In the gradient of a whole batch positions add up the more, the more
    alike they have become. Blocks keep their inputs only, and are computed again on the way back (Chen et al. 2016), so
    that 1,000 layers fit.
    """

    def __init__(self, *, layers: Annotated[int, Setting("layers shown, spread evenly", low=2)] = 64) -> None:
        self.layers = layers

    def check(self, subject: Subject) -> None:
        if subject.task.may_pad:
            raise UsageError(f"study propagation counts every position, and {subject.task.unit} may have padding: "
                             "use a language model or images, such as data=pydocs or data=digits")  # fmt: skip
        with torch.device("meta"):  # shapes without values
            model, _ = build_model(subject.tree, subject.task, subject.seed)
        weights = sum(parameter.numel() for parameter in model.parameters())
        stream = subject.data.train_batch(0).targets.numel() * subject.tree["model"].get("width", 1)
        check_memory(4 * (2 * weights + len(model.blocks) * stream), "a stack with its gradients", subject.device)

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        for norm in norms.values():
            norm.train()  # running statistics are those of no batch yet
        depth, last = len(model.blocks), last_branch(model.blocks[-1])
        shown = {round(place) for place in np.linspace(0, depth - 1, min(self.layers, depth))}
        watched: dict[Any, nn.Module] = {place: model.blocks[place] for place in sorted(shown)}
        outputs = [getattr(last, name) for name in last.output] if subject.task.causal else []
        watched.update((LAST, module) for module in outputs if isinstance(module, nn.Linear))
        seen: dict[Any, Passing] = {}
        for key, module in watched.items():
            module.register_forward_hook(partial(keep, seen, key))
        for block in model.blocks[:-1]:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        batch = to_device(subject.data.train_batch(0), subject.device)
        subject.task.loss(model(*batch.arguments), batch.targets).backward()
        at_end = {LAST: batch.targets.numel() * position_gradient(*seen.pop(LAST))} if LAST in seen else {}
        for place, passing in seen.items():
            row = {"layer": place + 1, **passed(last_branch(model.blocks[place]), *passing)}
            yield row | (at_end if place == depth - 1 else {})

    def finding(self, rows: pd.DataFrame) -> list[str]:
        if DEPTH not in rows or LAST not in rows:
            return values_told(deepest(rows), "rms", self.columns["rms"], "RMS of the stream, mean over layers")
        what = "the last layer's gradient of one position changes with depth to the power of"
        found = exponents_by_seed(rows)
        return [f"{labelled(arm)}: {what} {estimated(by_seed(found, arm.settings, LAST), THEOREM)}."
                for arm in arms_of(found) if by_seed(found, arm.settings, LAST)]  # fmt: skip

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        deep, front = deepest(rows), [*keys_of(rows), "layer"]
        ends = deep[deep["layer"].isin([1, deep["layer"].max()])].groupby(front, dropna=False, sort=False)
        means = ends[[name for name in BY_LAYER if name in rows]].mean().reset_index()
        found = means.rename(columns={name: column.label for name, column in self.columns.items()})
        return [
            *exponents(rows),
            plain_table("ends", "Ends of the deepest stack", found.to_dict("records"), len(front)),
        ]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        caption = "At initialisation; by layer: in the deepest stack."
        drawn = [*((name, "layer", deepest(rows)) for name in BY_LAYER), (LAST, DEPTH, rows)]
        about: Any = {"columns": self.columns, "caption": caption}
        figures = [curves(name, own, x=x, y=name, title=self.columns[name].words, **about)
                   for name, x, own in drawn if {name, x} <= {*rows}]  # fmt: skip
        return [figure for own in figures for figure in own]


def keep(seen: dict[Any, Passing], key: Any, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Keep what enters and leaves a module, and later the gradient of what leaves."""
    output.retain_grad()
    seen[key] = inputs[0], output


def last_branch(block: Any) -> Branch:
    """Return the branch of a block that writes to the stream last."""
    return [*block.branches.values()][-1]


@torch.no_grad()
def passed(branch: Branch, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return what passed through a block with this last branch: the stream, x to y, and the gradient on the way back.

    That is the gradient of the branch's output weights; of one that names none, of all its parameters.
    """
    weights: list[Any] = branch.output_weights() or [*branch.parameters()]
    found = {"rms": statistics.rms(y), "gradient": statistics.total_norm([weight.grad for weight in weights])}
    if y[0].numel() > y.shape[branch.channel_dim]:  # more than one position
        found["similarity"] = statistics.token_similarity(y, branch.channel_dim)
    if y.shape == x.shape:
        found["angle"] = angle(x, y, branch.channel_dim)
    return {name: float(value) for name, value in found.items()}


def angle(x: Float[Tensor, "..."], y: Float[Tensor, "..."], channel_dim: int) -> Float[Tensor, ""]:
    """Return the mean angle between the vectors of x and y at each position, in degrees.

    2·atan2(|u − v|, |u + v|) of the unit vectors u and v is exact for small angles too (Kahan 2006, §12).
    """
    u, v = (nn.functional.normalize(side.float(), dim=channel_dim) for side in (x, y))
    apart, along = (torch.linalg.vector_norm(side, dim=channel_dim) for side in (u - v, u + v))
    return torch.rad2deg(2 * torch.atan2(apart, along)).mean()


def position_gradient(x: Tensor, y: Any) -> float:
    """Return the norm of what one position adds to the gradient of the weights of y = Wx, the mean over positions.

    That is the outer product of x there and δ, the gradient of y: |x|·|δ|.
    """
    return float((x.detach().norm(dim=-1) * y.grad.norm(dim=-1)).mean())


def deepest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the deepest stacks."""
    return rows[rows[DEPTH] == rows[DEPTH].max()] if DEPTH in rows else rows


def exponents(rows: pd.DataFrame) -> list[Table]:
    """Say with which exponent of depth the last layer's gradient changes; nothing where depth does not vary."""
    if DEPTH not in rows or LAST not in rows:
        return []
    title = "Exponents of the last layer's gradient"
    return [compared(exponents_by_seed(rows), values=[*SLOPES], columns=SLOPES, key="exponents", title=title,
                     notes=(EXPONENTS,))]  # fmt: skip


def exponents_by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the exponents of each arm and seed."""
    keys = [*(key for key in keys_of(rows) if key != DEPTH), "seed"]
    groups = rows.dropna(subset=[LAST]).groupby(keys, dropna=False, sort=False)
    return groups[[DEPTH, *SLOPES]].apply(slopes).reset_index()


def slopes(rows: pd.DataFrame) -> pd.Series:
    """Return the slope of each gradient against depth, both as logarithms, by least squares, or NaN."""
    logs = np.log(rows.where(rows > 0).astype(float))
    finite = [name for name in SLOPES if np.isfinite(logs[name]).all()]
    return pd.Series({name: np.polyfit(logs[DEPTH], logs[name], 1)[0] for name in finite}, index=[*SLOPES])
