"""How signals and gradients pass through a stack at initialisation, by norm, placement and depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normbench.build import lay_out
from normbench.errors import UsageError
from normbench.evidence.labels import label_of
from normbench.probes import tensor_statistics
from normbench.results.rows import (
    Column,
    ResultTable,
    Stated,
    Value,
    arms_of,
    compare,
    keys_of,
    mean_by_seed,
    values_of,
)
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.show.study_tables import rows_table
from normbench.show.tables import Table
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject, check_memory
from normbench.training.evaluation import to_device
from normbench.types import Block, Branch

DEPTH = "model.depth"
POSITION_GRADIENT = "position_gradient"
THEOREM = {"−½": -0.5, "0": 0.0}  # of Xiong et al. 2020: pre, post
BY_LAYER = ("rms", "gradient", "similarity", "angle")
SLOPES = {POSITION_GRADIENT: Column("gradient of one position"), "gradient": Column("gradient of a batch")}
EXPONENTS_NOTE = (
    "Slope of the logarithm of the last layer's gradient norm on that of depth, mean over seeds with Student's 95 % "
    "interval. Theorem 1 of Xiong et al. 2020, of the loss at one position: 0 under post, −0.5 under pre."
)


class Passing(NamedTuple):
    """What enters a module, and what leaves it."""

    x: Tensor
    y: Any


class Propagation(Study):
    """Measure one forward and backward pass through a stack at initialisation, layer by layer.

    The position gradient is what Xiong et al. bound: that of the loss at one position, in the last branch's output
    weights (the last FFN's); with depth it stays under post and falls as 1/√depth under pre. It is left out where not
    every position has a loss, as in classifiers. In the gradient of a whole batch positions add up, and the more so the
    more alike they have become. Of a placement with several streams the stream is all of them, with the features of one
    after those of another. Blocks keep their inputs only, and are computed again on the way back (Chen et al.
    2016), so that 1,000 layers fit.
    """

    def __init__(self, *, layers: Annotated[int, Setting("layers shown, spread evenly", low=2)] = 64) -> None:
        self.layers = layers

    def check(self, subject: Subject) -> None:
        if subject.task.may_pad:
            raise UsageError(
                f"study propagation counts every position, and {subject.task.unit} may have padding: "
                "use a language model or images, such as data=pydocs or data=digits"
            )
        model = lay_out(subject.recipe, subject.task).model  # shapes without values, where that can be
        weights = sum(parameter.numel() for parameter in model.parameters())
        positions = subject.data.train_batch(0).targets.numel()
        stream = positions * subject.tree["model"].get("width", 1)
        streams = sum(block.streams for block in model.anatomy().blocks)
        needed = 2 * weights + streams * stream
        check_memory(4 * needed, "a stack with its gradients", subject.device)

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        for norm in norms.values():
            norm.train()  # running statistics are those of no batch yet
        blocks = model.anatomy().blocks
        last = len(blocks) - 1
        through_blocks = dict[int, Passing]()
        through_weights = dict[int, Passing]()  # the output weights of the last block
        for layer in self.shown(len(blocks)):
            blocks[layer].module.register_forward_hook(partial(keep, through_blocks, layer))
        if subject.task.causal:
            for module in output_layers(blocks[last]):
                module.register_forward_hook(partial(keep, through_weights, last))
        recompute(blocks[:last])
        batch = to_device(subject.data.train_batch(0), subject.device)
        loss = subject.task.loss(model(*batch.arguments), batch.targets)
        loss.backward()
        for layer, passing in through_blocks.items():
            row = {"layer": layer + 1, **what_passed(blocks[layer], passing)}
            if layer in through_weights:
                positions = batch.targets.numel()  # over which the loss is a mean
                row[POSITION_GRADIENT] = positions * position_gradient(through_weights[layer])
            yield row

    def shown(self, depth: int) -> list[int]:
        """Return the blocks that are shown, spread evenly from the first to the last."""
        places = np.linspace(0, depth - 1, min(self.layers, depth))
        return sorted({round(place) for place in places})

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> Sequence[Stated]:
        if DEPTH not in rows or POSITION_GRADIENT not in rows:
            return values_of(deepest(rows), "rms", "mean RMS of the stream", self.columns["rms"].unit)
        exponents = exponents_by_seed(rows)
        stated = []
        for arm in arms_of(exponents):
            what = f"{label_of(arm)}: the last layer's gradient of one position changes with depth to the power of"
            values = mean_by_seed(exponents, POSITION_GRADIENT, arm).values
            if values:
                stated.append(Value(what, values, references=THEOREM))
        return stated

    def tables(self, rows: pd.DataFrame) -> list[Table | ResultTable]:
        results = list[Table | ResultTable]()
        if DEPTH in rows and POSITION_GRADIENT in rows:
            results.append(exponents_table(rows))
        deep = deepest(rows)
        front = [*keys_of(rows), "layer"]
        is_end = deep["layer"].isin([1, deep["layer"].max()])
        values = [name for name in BY_LAYER if name in rows]
        means = deep[is_end].groupby(front, dropna=False, sort=False)[values].mean().reset_index()
        named = means.rename(columns={name: column.label for name, column in self.columns.items()})
        results.append(rows_table("ends", "Ends of the deepest stack", named.to_dict("records"), len(front)))
        return results

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        deep = deepest(rows)
        caption = "At initialisation; by layer: in the deepest stack."
        drawings = list[Figure]()
        for name in (*BY_LAYER, POSITION_GRADIENT):
            x = DEPTH if name == POSITION_GRADIENT else "layer"
            drawn_rows = rows if name == POSITION_GRADIENT else deep
            if name in rows and x in rows:
                title = self.columns[name].words
                drawings += draw_curves(
                    name, drawn_rows, x=x, y=name, columns=self.columns, title=title, caption=caption
                )
        return drawings


# ---- one pass


def keep(seen: dict[int, Passing], layer: int, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
    """Keep what enters and leaves a module, and later the gradient of what leaves."""
    stream: Tensor = output[0] if isinstance(output, tuple) else output  # of a block of another library the first part
    stream.retain_grad()
    seen[layer] = Passing(inputs[0], stream)


def last_branch(block: Block) -> nn.Module:
    """Return the branch of a block that writes to the stream last; the block itself where no branch of it is known."""
    *_, last = [block.module, *block.branches.values()]
    return last


def output_layers(block: Block) -> list[nn.Linear]:
    """Return the linear layers that write to the stream last."""
    branch = last_branch(block)
    names = branch.output if isinstance(branch, Branch) else ()
    modules = [getattr(branch, name) for name in names]
    return [module for module in modules if isinstance(module, nn.Linear)]


def recompute(blocks: Iterable[Block]) -> None:
    """Let blocks keep their inputs only, and be computed again on the way back."""
    for block in blocks:
        forward = block.module.forward
        block.module.forward = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)


@torch.no_grad()
def what_passed(block: Block, passing: Passing) -> dict[str, float]:
    """Return numbers on what passed through a block: the stream, from x to y, and the gradient on the way back.

    The gradient is that of the last branch's output weights; of all its parameters, if it names none.
    """
    x = block.join_streams(passing.x)
    y = block.join_streams(passing.y)
    branch = last_branch(block)
    weights: list[Any] = branch.output_weights() if isinstance(branch, Branch) else []
    weights = weights or list(branch.parameters())
    gradients = [weight.grad for weight in weights]
    numbers = {"rms": tensor_statistics.rms(y), "gradient": tensor_statistics.total_norm(gradients)}
    has_positions = y[0].numel() > y.shape[block.channel_dim]
    if has_positions:
        numbers["similarity"] = tensor_statistics.token_similarity(y, block.channel_dim)
    if y.shape == x.shape:
        numbers["angle"] = angle(x, y, block.channel_dim)
    return {name: float(value) for name, value in numbers.items()}


def angle(x: Float[Tensor, "..."], y: Float[Tensor, "..."], channel_dim: int) -> Float[Tensor, ""]:
    """Return the mean angle between the vectors of x and y at each position, in degrees.

    2·atan2(|u − v|, |u + v|) of the unit vectors u and v is exact for small angles too (Kahan 2006, §12).
    """
    u = nn.functional.normalize(x.float(), dim=channel_dim)
    v = nn.functional.normalize(y.float(), dim=channel_dim)
    apart = torch.linalg.vector_norm(u - v, dim=channel_dim)
    along = torch.linalg.vector_norm(u + v, dim=channel_dim)
    return torch.rad2deg(2 * torch.atan2(apart, along)).mean()


def position_gradient(passing: Passing) -> float:
    """Return the norm of what one position adds to the gradient of the weights of y = Wx, the mean over positions.

    That is the outer product of x there and δ, the gradient of y: |x|·|δ|.
    """
    inputs = passing.x.detach().norm(dim=-1)
    gradients = passing.y.grad.norm(dim=-1)
    return float((inputs * gradients).mean())


# ---- what is shown


def deepest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the deepest stacks."""
    if DEPTH not in rows:
        return rows
    return rows[rows[DEPTH] == rows[DEPTH].max()]


def exponents_table(rows: pd.DataFrame) -> ResultTable:
    """Return a table of the exponents of depth with which the last layer's gradient changes."""
    return compare(
        exponents_by_seed(rows),
        values=list(SLOPES),
        columns=SLOPES,
        key="exponents",
        title="Exponents of the last layer's gradient",
        notes=[EXPONENTS_NOTE],
    )


def exponents_by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the exponents of each arm and seed."""
    keys = [key for key in keys_of(rows) if key != DEPTH]
    groups = rows.dropna(subset=[POSITION_GRADIENT]).groupby([*keys, "seed"], dropna=False, sort=False)
    return groups[[DEPTH, *SLOPES]].apply(slopes).reset_index()


def slopes(rows: pd.DataFrame) -> pd.Series:
    """Return the slope of each gradient against depth, both as logarithms, by least squares, or NaN."""
    logs = np.log(rows.where(rows > 0).astype(float))
    slopes_by_name = pd.Series(np.nan, index=list(SLOPES))
    for name in SLOPES:
        if np.isfinite(logs[name]).all():
            slope, _ = np.polyfit(logs[DEPTH], logs[name], 1)
            slopes_by_name[name] = slope
    return slopes_by_name
