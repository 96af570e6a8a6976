"""What a trained model loses as its norms are taken out one by one: with their statistics held they are linear."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench import build
from normbench.config.recipe import Recipe
from normbench.errors import UsageError
from normbench.hosts import Adapter
from normbench.results.rows import Column, ResultTable, Value, compare, values_of
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.folding import change_between, fold
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.fx_graph import is_blind_to_mean
from normbench.studies.mapping import vectors
from normbench.studies.steps import check_precision
from normbench.training.evaluation import evaluate, to_device
from normbench.training.precision import Precision
from normbench.types import Batch, Model, Site

ROLES = ("mlp", "attention")  # whose norms go first, in this order; those outside the blocks go last
TUNE_STEPS = {"tune_steps": Column("steps of tuning")}
LAST_REMOVAL = 1 / 3  # of the steps of tuning: by then all norms are taken out
TOLERANCE = 1e-4
FOLDED_BATCHES = 2  # on which logits of the folded model are compared


class Removal(Study):
    """Take norms out of a trained model one by one, and measure its loss after each.

    The deviation σ of LayerNorm, or the root mean square of RMSNorm, is held at its mean over a training batch, of the
    model as it is by then. What is left is linear in its input but for β, and is folded into the layers that read it,
    where they can take it. Norms of MLPs go first, then those of attention, then others in the blocks, then those
    outside, each from the first block to the last.

    The model is tuned as the run trained it, on the batches that follow the run's, with its schedule anew: norms go at
    even distances over the first third of these steps, and the rest follows. Loss is added to that of the same model
    tuned as long with its norms.
    """

    trains = True

    def __init__(
        self,
        *,
        tune_steps: Annotated[
            Sequence[int], Setting("steps of training in all, while norms go and after; 0: none", "steps", low=0)
        ] = (0, 300),
        tune_lr: Annotated[
            float | None, Setting("learning rate of these steps, before its schedule; null: the run's", above=0)
        ] = None,
    ) -> None:
        self.tune_steps = tune_steps
        self.tune_lr = tune_lr

    def check(self, subject: Subject) -> None:
        if any(self.tune_steps):
            check_precision(subject)
        model, norms = subject.build()
        batch = subject.task.random_batch(2, torch.Generator().manual_seed(0))
        self.removable(model, norms, to_device(batch, subject.device))

    def removable(self, model: Model, norms: dict[str, nn.Module], batch: Batch) -> list[str]:
        """Return the sites of norms that are linear where their statistics are held, in the order in which they go.

        Raises:
            UsageError: no norm is.
        """
        sites = []
        for site, (x, _) in see_norms(model, norms, batch).items():
            if fix(norms[site], x) is not None:
                sites.append(site)
        if not sites:
            why = "none of its norms is linear where its statistics are held"
            raise UsageError(f"nothing can be taken out of this model ({why}): take norm=layernorm or norm=rmsnorm")
        return sorted(sites, key=lambda site: order_of(norms[site]))

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        for steps in self.tune_steps:
            for row in self.take_out(subject, steps):
                yield {"tune_steps": steps, **row}

    def take_out(self, subject: Subject, steps: int) -> Iterator[Row]:
        """Take the norms out of a model that is tuned for so many steps, and yield its loss after each."""
        model, norms = subject.build()
        whole_model, norms_of_whole = subject.build()
        tuning = Tuning(subject, model, norms, steps, self.tune_lr)
        control = Tuning(subject, whole_model, norms_of_whole, steps, self.tune_lr)
        calibration = to_device(subject.data.train_batch(0), subject.device)
        batches = list(subject.data.eval_batches("val", subject.tree["trainer"]["eval_batches"]))

        def loss_of(model: Model) -> float:
            return evaluate(model, batches, subject.task, subject.device)["loss"]

        sites = self.removable(model, norms, calibration)
        loss = control_loss = loss_of(whole_model)
        row: Row = {"round": 0, "left": len(sites), "site": "none", "loss": loss, "control": loss, "increase": 0.0}
        held: dict[str, HeldNorm] = {}
        for number, site in enumerate(sites, 1):
            yield row
            x, mask = see_norms(model, norms, calibration)[site]
            held[site] = hold_at_mean(norms[site], x, mask)
            norms[site].register_forward_hook(held[site].hold)
            left = len(sites) - number
            until = int(LAST_REMOVAL * steps * number / len(sites)) if left else steps
            tuning.go_on(until)
            loss = loss_of(model)
            if steps:
                control.go_on(until)
                control_loss = loss_of(whole_model)
            row = {"round": number, "left": left, "site": site, "loss": loss, "control": control_loss}
            row["increase"] = loss - control_loss
        ready = [to_device(batch, subject.device) for batch in batches[:FOLDED_BATCHES]]
        yield {**row, **fold_held(model, norms, held, ready)}

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[Value]:
        stated = []
        for steps, rows_of_steps in without_norms(rows).groupby("tune_steps", sort=False):
            tuned = f"with {steps} steps of tuning" if steps else "without tuning"
            number = f"loss added by taking out all norms that can be, {tuned},"
            stated += values_of(rows_of_steps, "increase", number, self.columns["increase"].unit)
        return stated

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        columns = {**self.columns, **TUNE_STEPS}
        all_out = compare(
            without_norms(rows),
            values=["increase", "loss", "control", "round"],
            by=["tune_steps"],
            columns=columns,
            baseline=self.baseline,
            title="Without norms",
        )
        folded = compare(
            without_norms(rows),
            values=["folded", "unfolded", "change"],
            by=["tune_steps"],
            columns=columns,
            key="folded",
            title="What is left of them, folded into the layers after them",
        )
        by_round = compare(
            rows,
            values=["increase"],
            by=["tune_steps", "round"],
            columns=columns,
            key="rounds",
            title="Norm by norm",
        )
        return [all_out, folded, by_round]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        title_and_caption = self.captions["increase"]
        columns = {**self.columns, **TUNE_STEPS}
        return draw_curves(
            "increase", rows, x="round", y="increase", panel="tune_steps", columns=columns, **title_and_caption
        )


def without_norms(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of models of which no norm is left that can be taken out."""
    return rows[rows["left"] == 0]


def order_of(norm: Any) -> tuple[int, int]:
    """Return by what norms are ordered: the rank of their role, and their block."""
    site: Site = norm.stands_at
    if site.layer is None:
        return len(ROLES) + 1, 0
    is_of_branch = site.role in ROLES and site.slot in ("", "in", "out")
    rank = ROLES.index(site.role) if is_of_branch else len(ROLES)
    return rank, site.layer


@torch.no_grad()
def see_norms(model: Model, norms: Mapping[str, nn.Module], batch: Batch) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return what enters each norm for a batch in its last call, and the mask that comes with it."""
    inputs = dict[str, tuple[Tensor, Tensor | None]]()
    hooks = []
    for site, norm in norms.items():

        def see(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any], site: str = site) -> None:
            inputs[site] = given[0], named.get("mask")

        hooks.append(norm.register_forward_pre_hook(see, with_kwargs=True))
    model(*batch.arguments)
    for hook in hooks:
        hook.remove()
    return inputs


class Tuning:
    """Goes on with the training of a subject's model where its run has ended, with the schedule anew.

    Args:
        subject: whose run it was.
        model: the model.
        norms: of the model, by site.
        steps: how many there will be.
        rate: the learning rate; None: the run's.
    """

    def __init__(
        self, subject: Subject, model: Model, norms: Mapping[str, nn.Module], steps: int, rate: float | None
    ) -> None:
        tree = subject.tree
        recipe = subject.recipe
        if rate is not None:
            recipe = Recipe({**tree, "optim": {**tree["optim"], "lr": rate}})
        self.model = model
        self.done = 0
        self.of_run = tree["trainer"]["steps"] or 0
        precision = Precision(tree["trainer"]["precision"], subject.device)
        self.stepper = build.make_stepper(recipe, model, norms, subject.data, precision, steps)

    def go_on(self, until: int) -> None:
        """Train until so many steps are done, or until a loss or a gradient is not finite."""
        self.model.train()
        while self.done < until:
            self.stepper.set_learning_rates(self.done)
            loss = self.stepper.gradients(self.stepper.local_batches(self.of_run + self.done))
            if not self.stepper.admits(self.done, loss):
                break
            self.stepper.update()
            self.done += 1
        self.model.eval()


# ---- norms whose statistic is held


@dataclass(frozen=True)
class HeldNorm:
    """LayerNorm or RMSNorm with a statistic that is held.

    Attributes:
        axis: of the features.
        centers: whether the mean is subtracted.
        eps: added to the mean square.
        scale: what is divided by in place of the statistic.
    """

    axis: int
    centers: bool
    eps: float
    scale: Tensor

    def center(self, x: Tensor) -> Tensor:
        """Return x without its mean over the features, if the norm subtracts that."""
        return x - x.mean(self.axis, keepdim=True) if self.centers else x

    def spread(self, x: Tensor) -> Tensor:
        """Return what the norm divides by at each position."""
        return torch.sqrt(self.center(x).square().mean(self.axis, keepdim=True) + self.eps)

    def hold(self, norm: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> Tensor:
        """Return what the norm, which gives y, gives with the scale; a hook of its forward."""
        shift = shift_of(norm, given[0])
        return (y - shift) * self.spread(given[0]) / self.scale + shift


def shift_of(norm: Any, x: Tensor) -> Tensor:
    """Return what a norm makes of zeros, β, with one position, in the axes of x."""
    shape = [1] * x.ndim
    shape[norm.channel_dim] = x.shape[norm.channel_dim]
    shift: Tensor = norm.forward(x.new_zeros(shape))  # without its hooks
    return shift


@torch.no_grad()
def read_norm(norm: Any, x: Tensor) -> HeldNorm:
    """Return what a norm would be with its statistic held at 1, from what it does to its input x."""
    eps = Adapter(norm.channel_dim).read_eps(norm) or 0.0
    precise = copy.deepcopy(norm).double()  # a mean of 1 leaves few digits of what is small
    return HeldNorm(norm.channel_dim, is_blind_to_mean(precise, x.double()), eps, x.new_ones(()))


@torch.no_grad()
def hold_at_mean(norm: nn.Module, x: Tensor, mask: Tensor | None) -> HeldNorm:
    """Return a norm with its statistic held at the mean over the positions of x that are no padding."""
    held = read_norm(norm, x)
    return replace(held, scale=vectors(held.spread(x), held.axis, mask).mean())


class FixedNorm(nn.Module):
    """LayerNorm or RMSNorm whose statistic is a number: γ(x − μ)/σ + β, or γx/σ + β.

    Attributes:
        channel_dim: the axis of the features.
        centers: whether their mean μ is subtracted.
        weight: γ/σ, with an element for each feature; None: 1.
        bias: β likewise; None: 0.
    """

    def __init__(self, channel_dim: int, centers: bool, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        self.centers = centers
        self.weight: Tensor | None = nn.Parameter(weight)
        self.bias: Tensor | None = nn.Parameter(bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.centers:
            x = x - x.mean(self.channel_dim, keepdim=True)
        moved = x.movedim(self.channel_dim, -1)
        if self.weight is not None:
            moved = moved * self.weight
        if self.bias is not None:
            moved = moved + self.bias
        return moved.movedim(-1, self.channel_dim)


@torch.no_grad()
def fix(norm: Any, x: Tensor, held: HeldNorm | None = None) -> FixedNorm | None:
    """Return what a norm is with its statistic held, in float64; None where that is no γ(x − μ) + β.

    Args:
        norm: the norm.
        x: an input, of which the shape is read.
        held: the norm as it is held; None: at 1.
    """
    norm = copy.deepcopy(norm).double()
    norm._forward_hooks.clear()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x[:2].shape, dtype=torch.float64, generator=generator).to(x.device)
    held = held or read_norm(norm, x)
    positions = list(range(x.ndim))
    positions.remove(held.axis % x.ndim)
    shift = shift_of(norm, x)
    centered = held.center(x)
    scaled = held.hold(norm, (x,), norm(x)) - shift
    weight = (scaled * centered).sum(positions) / centered.square().sum(positions)
    fixed_norm = FixedNorm(held.axis, held.centers, weight, shift.flatten())
    for test_input in (x, 0.3 * x.roll(1, held.axis) + x.flip(held.axis)):
        expected = held.hold(norm, (test_input,), norm(test_input))
        error = (fixed_norm(test_input) - expected).abs().max()
        if not error <= TOLERANCE * (expected - shift).abs().max():
            return None
    return fixed_norm if weight.any() else None


def fold_held(
    model: Model, norms: Mapping[str, nn.Module], held: Mapping[str, HeldNorm], batches: Sequence[Batch]
) -> Row:
    """Fold held norms into the layers that read them; return how many are, and what that changes in float64.

    Args:
        model: with the norms held by hooks; stays as it is.
        norms: its norms by site.
        held: those that are held.
        batches: on which logits are compared.
    """
    inputs = see_norms(model, norms, batches[0])
    changed, own_norms = copy.deepcopy((model, dict(norms)))
    paths = {module: path for path, module in changed.named_modules()}
    for site, held_norm in held.items():
        norm = fix(norms[site], inputs[site][0], held_norm)
        assert norm is not None  # as it is linear
        changed.set_submodule(paths[own_norms[site]], norm)
        own_norms[site] = norm
    try:
        folded = fold(changed, own_norms, batches[0])
    except UsageError:  # its way of computing is not seen through
        return {"folded": 0, "unfolded": len(held)}
    count = sum(site in folded.done for site in held)
    exact = copy.deepcopy(model).double()
    change = change_between(exact, folded.model, batches)["change"]
    return {"folded": count, "unfolded": len(held) - count, "change": change}
