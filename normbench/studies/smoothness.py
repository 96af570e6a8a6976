"""Internal covariate shift, and how smooth the loss is along the gradient, while a model trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from normbench import build
from normbench.analysis.figures.style import PALETTE, Figure
from normbench.analysis.tables import Table
from normbench.settings import Setting
from normbench.studies.findings import (
    against_baseline,
    arms_of,
    compared,
    curves,
    differences_told,
    is_arm,
    labelled,
    values_told,
)
from normbench.studies.frame import Difference, Row, Study, Subject
from normbench.studies.steps import check_steps, steps
from normbench.training.guard import buffers_kept
from normbench.types import Batch, Model, Task, stable_seed

CHOOSING_SEEDS = -1, -2  # of the runs that choose a learning rate: no run that is measured can have them
DISTANCES = 0.5, 1.0, 2.0, 4.0  # along the gradient, in learning rates
PRODUCTS = 20  # with the Hessian, for each of two numbers

BANDS = {"loss_range": "loss", "change_high": "change"}  # the first word of the columns of a band

Vector = Float[Tensor, " elements"]
Loss = Callable[[], Tensor]


def layers_of(model: Model) -> list[list[nn.Parameter]]:
    """Return the parameters by layer, from the inputs on: stem, blocks, what is behind."""
    blocks = [[*block.parameters()] for block in model.blocks]
    inside = {parameter for block in blocks for parameter in block}
    before = [*takewhile(lambda parameter: parameter not in inside, model.parameters())]
    behind = [parameter for parameter in model.parameters() if parameter not in inside.union(before)]
    return [layer for layer in (before, *blocks, behind) if layer]


def batch_loss(model: Model, batch: Batch, task: Task, *words: object) -> Loss:
    """Return the loss of a batch as a function of the weights alone: what is random follows from the words."""

    def loss() -> Tensor:
        torch.manual_seed(stable_seed(*words))
        return task.loss(model(*batch.arguments), batch.targets)

    return loss


@contextmanager
def moved(parameters: Sequence[Tensor], direction: Sequence[Tensor], distance: float) -> Iterator[None]:
    """Move parameters along a direction, and back at the end."""
    kept = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        torch._foreach_add_([*parameters], [*direction], alpha=distance)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_([*parameters], kept)


def flat(tensors: Iterable[Tensor]) -> Vector:
    """Return all elements of tensors in a row."""
    return torch.cat([tensor.flatten() for tensor in tensors])


# ---- what is measured


def landscape(loss: Loss, parameters: Sequence[Tensor], distances: Sequence[float]) -> Row:
    """Return what the loss and its gradient g do along −g, at some distances η from the weights W.

    loss_low, loss_high: the range of L(W − ηg). change_low, change_high: that of ‖g(W) − g(W − ηg)‖, how predictive
    the gradient is. smoothness: the effective one, the largest ‖g(W) − g(W − ηg)‖ / ‖ηg‖ (Santurkar et al. 2018, §3.2).
    """
    start = loss()
    gradient = torch.autograd.grad(start, parameters)
    losses, changes = list[float](), list[float]()
    for distance in distances:
        with moved(parameters, gradient, -distance):
            there = loss()
            changes.append((flat(torch.autograd.grad(there, parameters)) - flat(gradient)).norm().item())
        losses.append(there.item())
    length = flat(gradient).norm().item()
    low, high, slopes = min(losses), max(losses), np.divide(changes, np.multiply(distances, length))
    ranges = {"loss_low": low, "loss_high": high, "loss_range": high - low}
    ranges |= {"change_low": min(changes), "change_high": max(changes)}
    return {"loss": start.item(), "gradient": length, **ranges, "smoothness": float(slopes.max())}


def covariate_shift(
    loss: Loss, layers: Sequence[Sequence[Tensor]], weights: Sequence[Sequence[Tensor]], after: Mapping[Tensor, Tensor]
) -> Iterator[Row]:
    """Yield how the gradient of each layer's weights changes when the layers below it take their step.

    layers: their parameters. weights: those whose gradient counts. after: each parameter as it is one step on.
    The parameters are moved to `after`, layer by layer, and stay there. shift is the difference's norm ‖G − G'‖,
    relative_shift its ratio to ‖G‖, cosine that of the two. The first layer has none below (definition 2.1).
    """
    counted = [weight for some in weights for weight in some]
    gradients = dict(zip(counted, torch.autograd.grad(loss(), counted), strict=True))
    for layer, (below, own) in enumerate(zip(layers, weights[1:], strict=False), start=1):
        with torch.no_grad():
            torch._foreach_copy_([*below], [after[parameter] for parameter in below])
        if own:
            old, new = flat(gradients[weight] for weight in own), flat(torch.autograd.grad(loss(), own))
            shift, cosine = (new - old).norm(), F.cosine_similarity(old, new, dim=0)
            relative = (shift / old.norm()).item()
            yield {"layer": layer, "shift": shift.item(), "relative_shift": relative, "cosine": cosine.item()}


def curvature(loss: Loss, parameters: Sequence[Tensor], iterations: int, seed: int) -> Row:
    """Return the Hessian's eigenvalue of largest absolute value by power iteration, and its trace by Hutchinson's.

    The trace is the mean of zᵀHz over as many vectors z of random signs as there are iterations.
    """
    generator = torch.Generator().manual_seed(seed)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        gradient = flat(torch.autograd.grad(loss(), parameters, create_graph=True))

        def product(vector: Vector) -> Vector:
            return flat(torch.autograd.grad(gradient, parameters, vector, retain_graph=True))

        drawn = torch.randint(2, (iterations + 1, len(gradient)), generator=generator).to(gradient) * 2 - 1
        image, *probes = drawn
        for _ in range(iterations):
            vector = image / image.norm()
            image = product(vector)
        trace = fmean((probe @ product(probe)).item() for probe in probes)
    return {"eigenvalue": (vector @ image).item(), "trace": trace}


# ---- noise behind the norms


def noise(norm: nn.Module, inputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """Return what a norm puts out with noise that has a mean and a scale of its own for each activation and step.

    μ ~ U(−½, ½) and σ ~ U(1, 1.25) for each activation of a sample; then m ~ U(μ − 0.1, μ + 0.1) and s ~ N(σ, 0.1) for
    each sample, and x becomes s·x + m (Santurkar et al. 2018, algorithm 1 of the appendix).
    """
    mean, scale = torch.rand_like(x[:1]) - 0.5, 1 + 0.25 * torch.rand_like(x[:1])
    return x * (scale + 0.1 * torch.randn_like(x)) + mean + 0.2 * torch.rand_like(x) - 0.1


@contextmanager
def noisy(norms: Mapping[str, nn.Module], wanted: bool = True) -> Iterator[None]:
    """Put noise behind norms, if it is wanted, and take it away at the end."""
    handles = [norm.register_forward_hook(noise) for norm in norms.values()] if wanted else []
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ---- the study


class Smoothness(Study):
    """Measure internal covariate shift and the loss along the gradient while a model trains.

    Does a norm keep lower layers' updates from moving the gradients of higher ones, or does it smooth the loss? Every
    few steps the step's own batch is used again, with the same dropout masks: with lower layers one step on (the shift
    of a layer's gradient), and along the gradient by half to four learning rates (range of the loss, change of the
    gradient, effective smoothness; smaller is smoother). Each arm trains at its own learning rate: of `study.rates`
    that with the lowest training loss at the end, on two seeds that are not measured.
    """

    def __init__(
        self,
        *,
        every: Annotated[int, Setting("steps from one measurement to the next", "steps", low=1)] = 20,
        rates: Annotated[
            Sequence[float] | None, Setting("learning rates, of which each arm takes its best; null: optim.lr", above=0)
        ] = (0.01, 0.03, 0.1, 0.3),
        noise: Annotated[bool, Setting("measure each norm also with noise behind it")] = False,
        hessian: Annotated[bool, Setting("measure the Hessian's top eigenvalue and trace too")] = False,
    ) -> None:
        self.every, self.noise, self.hessian = every, noise, hessian
        self.rates = sorted(rates or ())
        self.chosen: dict[str, float] = {}

    def check(self, subject: Subject) -> None:
        check_steps(subject)

    def measure(self, subject: Subject) -> Iterator[Row]:
        own = at_rate(subject, self.best_rate(subject), subject.seed)
        both = self.noise and subject.facts.statistics_over != "none"
        for noise in (False, True)[: 1 + both]:
            yield from ({"noise": noise, **row} for row in self.watch(own, noise))

    def best_rate(self, subject: Subject) -> float:
        """Return the rate that trains an arm to the lowest loss at the end, on seeds that are not measured."""
        arm = str({**subject.tree, "seed": None})
        if self.rates and arm not in self.chosen:
            trials = {rate: [at_rate(subject, rate, seed) for seed in CHOOSING_SEEDS] for rate in self.rates}
            self.chosen[arm] = min(self.rates, key=lambda rate: fmean(map(final_loss, trials[rate])))
        return self.chosen.get(arm) or subject.tree["optim"]["lr"]

    def watch(self, subject: Subject, noise: bool) -> Iterator[Row]:
        """Yield what is measured of one training."""
        model, norms = subject.build()
        layers = layers_of(model)
        parameters: list[Tensor] = [*model.parameters()]
        in_norms = {parameter for norm in norms.values() for parameter in norm.parameters()}
        weights = [[each for each in layer if each.ndim > 1 and each not in in_norms] for layer in layers]
        before: tuple[int, Loss, list[Tensor]] | None = None
        with noisy(norms, noise):
            for step in steps(subject, model, norms):
                if before:
                    place, loss, old = before
                    after: dict[Tensor, Tensor] = {each: each.detach().clone() for each in parameters}
                    with buffers_kept(model), moved(parameters, torch._foreach_sub(old, parameters), 1.0):
                        shifts = [*covariate_shift(loss, layers, weights, after)]
                    yield from ({"step": place, **shift} for shift in shifts)
                before = None
                if step.number % self.every == 0:
                    loss = batch_loss(model, step.batch, subject.task, subject.seed, "dropout", step.number)
                    with buffers_kept(model):
                        found = landscape(loss, parameters, [step.rate * each for each in DISTANCES])
                        if self.hessian:
                            found |= curvature(loss, parameters, PRODUCTS, step.number)
                    yield {"step": step.number, "rate": step.rate, **found}
                    before = step.number, loss, [parameter.detach().clone() for parameter in parameters]

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        what = "Effective smoothness, mean over steps, smaller is smoother"
        found = against_baseline(named(rows), "smoothness", self.baseline, what, ratio=True)
        column = self.columns["smoothness"]
        return differences_told(found, column.unit, ratio=True) or values_told(
            named(rows), "smoothness", column, what, ratio=True
        )

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        rows, used = named(rows), list[str]()
        for arm in arms_of(rows):
            own = rows[is_arm(rows, arm.settings)]
            end = " (an end of study.rates)" if own["rate"].max() in (self.rates[:1] + self.rates[-1:]) else ""
            diverged = (own.groupby("seed")["step"].max() < rows["step"].max()).sum()
            used.append(f"{labelled(arm)} {own['rate'].max():g}{end}" + f", {diverged} seeds diverged" * bool(diverged))
        rates = f"Learning rates: {'; '.join(used)}."
        how: dict[str, Any] = {"columns": self.columns, "baseline": self.baseline}
        return [
            compared(rows, values=[value], key=value, title=said["title"], notes=(said["caption"], rates),
                     ratio=self.columns[value].scale == "log", **how)
            for value, said in self.captions.items() if value in rows
        ]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        rows, found = named(rows), list[Figure]()
        for value, said in self.captions.items():
            if value in rows:
                y, band = value, None
                if word := BANDS.get(value):
                    y, band = f"{word}_high", (f"{word}_low", f"{word}_high")
                panel = "layer" if rows.dropna(subset=[y])["layer"].notna().any() else None
                how: dict[str, Any] = {"x": "step", "y": y, "band": band, "panel": panel, "columns": self.columns}
                found += curves(value, rows, **said, **how)
        return found


def final_loss(subject: Subject) -> float:
    """Return the mean training loss over the last quarter of the steps; infinite where it diverges before."""
    losses, total = [step.loss for step in steps(subject, *subject.build())], subject.tree["trainer"]["steps"]
    return fmean(losses[-math.ceil(total / 4) :]) if len(losses) == total else math.inf


def at_rate(subject: Subject, rate: float, seed: int) -> Subject:
    """Return a subject with another learning rate and seed."""
    tree = {**subject.tree, "seed": seed, "optim": {**subject.tree["optim"], "lr": rate}}
    load = subject.load if seed == subject.seed else lambda: build.make_data(tree, seed)
    return replace(subject, tree=tree, load=load)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the noise in the name of the norm."""
    return rows.assign(norm=rows["norm"].where(~rows["noise"], rows["norm"].replace(PALETTE["names"]) + " + noise"))
