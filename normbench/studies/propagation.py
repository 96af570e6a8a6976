"""How signals and gradients pass through a stack at initialisation, by norm, placement and depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.build import build_model
from normbench.probes import statistics
from normbench.settings import Setting
from normbench.studies.findings import curves, interval, keys_of, number, plain_table, span
from normbench.studies.frame import Column, Row, Study, Subject, check_memory

DEPTH, LAST = "model.depth", "position_gradient"
BY_LAYER = ("rms", "gradient", "similarity", "angle")
EXPONENTS = (
    "Slope of the logarithm of the last layer's gradient norm on that of depth, mean over seeds with Student's 95 % "
    "interval. Theorem 1 of Xiong et al. 2020, of the loss at one position: 0 under post, −0.5 under pre."
)


class Propagation(Study):
    """Measure one forward and backward pass through a stack at initialisation, layer by layer.

    The position gradient is what Xiong et al. bound: that of the loss at one position, in the last branch's output
    weights (the last FFN's); with depth it stays under post and falls as 1/√depth under pre. In the gradient of a whole
    batch positions add up the more, the more alike they have become. Blocks keep their inputs only, and are computed
    again on the way back (Chen et al. 2016), so that 1,000 layers fit.
    """

    title = "Signal propagation at initialisation"
    source = "Xiong et al. 2020, theorem 1; Wang et al. 2022 (DeepNet); Dong et al. 2021 (rank collapse)"
    words = (
        *("norm=layernorm,rmsnorm,batchnorm,dyt", "placement=pre,post", "seed=0,1,2", "data.batch_size=4"),
        *(f"{DEPTH}=2,4,8,16,32", "model.width=256", "model.mlp=relu"),
    )
    columns: ClassVar = {
        "layer": Column("layer"),
        DEPTH: Column("depth", "layers", "log"),
        "rms": Column("RMS of the stream", "", "log"),
        "gradient": Column("gradient norm of the output weights", "", "log"),
        "similarity": Column("similarity of positions", "cosine"),
        "angle": Column("angle between layers", "°"),
        LAST: Column("last layer's gradient of one position", "", "log"),
    }

    def __init__(self, *, layers: Annotated[int, Setting("layers shown, spread evenly", low=2)] = 64) -> None:
        self.layers = layers

    def check(self, subject: Subject) -> None:
        with torch.device("meta"):  # shapes without values
            model, _ = build_model(subject.tree, subject.task, subject.seed)
        weights = sum(parameter.numel() for parameter in model.parameters())
        stream = subject.data.train_batch(0).targets.numel() * subject.tree["model"].get("width", 1)
        check_memory(4 * (2 * weights + len(model.blocks) * stream), "a stack with its gradients", subject.device)

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        for norm in norms.values():
            norm.train()  # running statistics are those of no batch yet
        depth = len(model.blocks)
        shown = sorted({round(place) for place in np.linspace(0, depth - 1, min(self.layers, depth))})
        passings = {place: Passing(model.blocks[place]) for place in shown}
        batch = subject.data.train_batch(0).map(lambda tensor: tensor.to(subject.device))
        passings[depth - 1].watch_positions(batch.targets.numel())
        for block in model.blocks[:-1]:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        subject.task.loss(model(*batch.arguments), batch.targets).backward()
        for place, passing in passings.items():
            yield {"layer": place + 1} | passing.row()

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        deep = deepest(rows)
        ends, front = deep[deep["layer"].isin([1, deep["layer"].max()])], [*keys_of(rows), "layer"]
        means = ends.groupby(front, dropna=False, sort=False)[[name for name in BY_LAYER if name in rows]].mean()
        found = means.reset_index().rename(columns={name: column.label for name, column in self.columns.items()})
        return [*exponents(rows), plain_table("ends", "First and last layer", found.to_dict("records"), len(front))]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        drawn = [(name, "layer", deepest(rows), "y" * (self.columns[name].scale == "log")) for name in BY_LAYER]
        return [
            curves(name, own, x=x, y=name, columns=self.columns, log=log, wide=True, title=self.columns[name].words,
                   caption="At initialisation; by layer: in the deepest stack.")
            for name, x, own, log in (*drawn, (LAST, DEPTH, rows, "xy")) if {name, x} <= {*rows}
        ]  # fmt: skip


class Passing:
    """What passes through one block: the stream on its way forward, and the gradient of what writes to it last.

    weights: the output weights of the last branch; of one that names none, all of its.
    """

    def __init__(self, block: nn.Module) -> None:
        self.branch: Any = [*block.branches.values()][-1]  # type: ignore[operator]  # a Placement's
        self.weights = self.branch.output_weights() or [*self.branch.parameters()]
        self.seen: dict[str, Tensor] = {}
        block.register_forward_hook(self.see_stream)

    @torch.no_grad()
    def see_stream(self, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Read the stream that leaves a block, and how far it has turned there."""
        channel_dim = self.branch.channel_dim
        self.seen["rms"] = statistics.rms(output)
        if output[0].numel() > output.shape[channel_dim]:  # more than one position
            self.seen["similarity"] = statistics.token_similarity(output, channel_dim)
        if output.shape == inputs[0].shape:
            self.seen["angle"] = angle(inputs[0], output, channel_dim)

    def watch_positions(self, predictions: int) -> None:
        """Read what one position adds to the gradient of a linear map's weights, for the loss of one prediction.

        That is the outer product of h, which enters the map there, and δ, the gradient of what leaves it: |h|·|δ|.
        """

        def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            lengths = inputs[0].detach().norm(dim=-1)

            def keep(delta: Tensor) -> None:
                self.seen[LAST] = predictions * (lengths * delta.norm(dim=-1)).mean()

            output.register_hook(keep)

        for module in (getattr(self.branch, name) for name in self.branch.output):
            if isinstance(module, nn.Linear):
                module.register_forward_hook(see)

    def row(self) -> Row:
        """Return the numbers."""
        gradient = statistics.total_norm([weight.grad for weight in self.weights])
        return {"gradient": float(gradient)} | {name: float(value) for name, value in self.seen.items()}


def angle(x: Float[Tensor, "..."], y: Float[Tensor, "..."], channel_dim: int) -> Float[Tensor, ""]:
    """Return the mean angle between the vectors of x and y at each position, in degrees.

    2·atan2(|u − v|, |u + v|) of the unit vectors u and v is exact for small angles too (Kahan 2006, §12).
    """
    u, v = (nn.functional.normalize(side.float(), dim=channel_dim) for side in (x, y))
    apart, along = (torch.linalg.vector_norm(side, dim=channel_dim) for side in (u - v, u + v))
    return torch.rad2deg(2 * torch.atan2(apart, along)).mean()


def deepest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the deepest stacks."""
    return rows[rows[DEPTH] == rows[DEPTH].max()] if DEPTH in rows else rows


def exponents(rows: pd.DataFrame) -> list[Table]:
    """Say with which exponent of depth the last layer's gradient changes; nothing where depth does not vary."""
    if DEPTH not in rows or LAST not in rows:
        return []
    keys, found = [key for key in keys_of(rows) if key != DEPTH], []
    for settings, own in rows.dropna(subset=[LAST]).groupby(keys, dropna=False, sort=False):
        row = dict(zip(keys, settings, strict=True))
        for name, words in ((LAST, "one position"), ("gradient", "a batch")):
            mean, *ends = interval(slopes(own, name))
            row |= {f"gradient of {words}": number(mean), f"95 % interval, {words}": span(ends)}
        found.append(row)
    return [plain_table("exponents", "Exponents of the last layer's gradient", found, len(keys), EXPONENTS)]


def slopes(rows: pd.DataFrame, name: str) -> list[float]:
    """Return for each seed the slope of a value against depth, both as logarithms, by least squares."""
    seeds = [own for _, own in rows.groupby("seed") if own[name].between(0, np.inf, inclusive="neither").all()]
    return [float(np.polyfit(np.log(own[DEPTH].astype(float)), np.log(own[name]), 1)[0]) for own in seeds]
