"""Internal covariate shift, and how smooth the loss is along the gradient, while a model trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
from normbench.config.recipe import Recipe
from normbench.evidence.labels import PROPER_NAMES, label_of
from normbench.results.rows import ResultTable, Stated, arms_of, compare, is_arm
from normbench.settings import Setting, Tree
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.steps import TrainingStep, check_steps, steps
from normbench.types import Data, Model, keep_buffers
from normbench.wording import short

CHOOSING_SEEDS = (-1, -2)  # of the runs that choose a learning rate: no run that is measured can have them
DISTANCES = (0.5, 1.0, 2.0, 4.0)  # along the gradient, in learning rates
PRODUCTS = 20  # with the Hessian: so many for its eigenvalue, and as many for its trace

BANDS = {"loss_range": "loss", "change_high": "change"}  # drawn as the band from loss_low to loss_high, and so on

Vector = Float[Tensor, " elements"]
Loss = Callable[[], Tensor]


@dataclass(frozen=True)
class WatchedModel:
    """A model that is watched while it trains.

    Attributes:
        parameters: all of them.
        layers: the same by layer, from the inputs on.
        weights: those of each layer whose gradient counts: matrices that belong to no norm.
    """

    model: Model
    parameters: list[Tensor]
    layers: list[list[nn.Parameter]]
    weights: list[list[nn.Parameter]]


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured before its update.

    Attributes:
        loss: returns the step's loss again, as `TrainingStep.repeat` does.
        parameters: as they were before the update.
    """

    number: int
    loss: Loss
    parameters: list[Tensor]


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
        self.every = every
        self.noise = noise
        self.hessian = hessian
        self.rates = sorted(rates or ())
        self.chosen: dict[str, float] = {}

    def check(self, subject: Subject) -> None:
        check_steps(subject)

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        at_best_rate = at_rate(subject, self.best_rate(subject), subject.seed)
        for row in self.train_and_measure(at_best_rate, noise=False):
            yield {"noise": False, **row}
        if self.noise and subject.facts.statistics_over != "none":
            for row in self.train_and_measure(at_best_rate, noise=True):
                yield {"noise": True, **row}

    def best_rate(self, subject: Subject) -> float:
        """Return the rate that trains an arm to the lowest loss at the end, on seeds that are not measured."""
        if not self.rates:
            rate: float = subject.tree["optim"]["lr"]
            return rate
        arm = str({**subject.tree, "seed": None})
        if arm not in self.chosen:
            losses = {}
            for tried in self.rates:
                ends = [final_loss(at_rate(subject, tried, seed)) for seed in CHOOSING_SEEDS]
                losses[tried] = fmean(ends)
            self.chosen[arm] = min(self.rates, key=losses.__getitem__)
        return self.chosen[arm]

    def train_and_measure(self, subject: Subject, noise: bool) -> Iterator[Row]:
        """Train a model once, and yield what is measured every few steps. noise: add it to what the norms put out."""
        model, norms = subject.build()
        watched = watch_model(model, norms)
        before: MeasuredStep | None = None
        with add_noise(norms, noise):
            for step in steps(subject, model, norms):
                if before:
                    yield from self.measure_shift(before, watched)
                before = None
                if step.number % self.every == 0:
                    yield self.measure_landscape(step, watched)
                    copies = [parameter.detach().clone() for parameter in watched.parameters]
                    before = MeasuredStep(step.number, step.repeat, copies)

    def measure_landscape(self, step: TrainingStep, watched: WatchedModel) -> Row:
        """Return what is measured of a step before its update: the loss along its gradient, and its curvature."""
        row = {"step": step.number, "rate": step.rate}
        distances = [step.rate * distance for distance in DISTANCES]
        with keep_buffers(watched.model):
            row |= landscape(step.repeat, watched.parameters, distances)
            if self.hessian:
                row |= curvature(step.repeat, watched.parameters, PRODUCTS, step.number)
        return row

    def measure_shift(self, before: MeasuredStep, watched: WatchedModel) -> Iterator[Row]:
        """Yield how the update of the step before has shifted each layer's gradient."""
        after = {parameter: parameter.detach().clone() for parameter in watched.parameters}
        back = torch._foreach_sub(before.parameters, watched.parameters)
        with keep_buffers(watched.model), move_along(watched.parameters, back, 1.0):
            shifts = list(covariate_shift(before.loss, watched.layers, watched.weights, after))
        for shift in shifts:
            yield {"step": before.number, **shift}

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[Stated]:
        number = "mean effective smoothness"
        return self.compare_or_tell(with_noise_named(rows), "smoothness", number, ratio=True)

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        rows = with_noise_named(rows)
        rates = f"Learning rates: {'; '.join(self.rates_used(rows))}."
        results = []
        for value, title_and_caption in self.captions.items():
            if value not in rows:
                continue
            table = compare(
                rows,
                values=[value],
                key=value,
                title=title_and_caption["title"],
                notes=[title_and_caption["caption"], rates],
                ratio=self.columns[value].scale == "log",
                columns=self.columns,
                baseline=self.baseline,
            )
            results.append(table)
        return results

    def rates_used(self, rows: pd.DataFrame) -> Iterator[str]:
        """Say at which rate each arm trained, whether it is an end of those tried, and how many seeds diverged."""
        for arm in arms_of(rows):
            rows_of_arm = rows[is_arm(rows, arm.settings)]
            rate = rows_of_arm["rate"].max()
            words = f"{label_of(arm)} {short(rate)}"
            if self.rates and rate in (self.rates[0], self.rates[-1]):
                words += " (an end of study.rates)"
            last_steps = rows_of_arm.groupby("seed")["step"].max()
            diverged = (last_steps < rows["step"].max()).sum()
            if diverged:
                words += f", {diverged} seeds diverged"
            yield words

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        rows = with_noise_named(rows)
        drawings = list[Figure]()
        for value, title_and_caption in self.captions.items():
            if value not in rows:
                continue
            how: dict[str, Any] = {"x": "step", "y": value, "columns": self.columns, **title_and_caption}
            if value in BANDS:
                word = BANDS[value]
                how |= {"y": f"{word}_high", "band": (f"{word}_low", f"{word}_high")}
            measured = rows.dropna(subset=[how["y"]])
            if measured["layer"].notna().any():
                how["panel"] = "layer"
            drawings += draw_curves(value, rows, **how)
        return drawings


def with_noise_named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the noise in the name of the norm."""
    proper = rows["norm"].replace(PROPER_NAMES)
    return rows.assign(norm=rows["norm"].where(~rows["noise"], proper + " + noise"))


# ---- learning rates


def final_loss(subject: Subject) -> float:
    """Return the mean training loss over the last quarter of the steps; infinite where it diverges before."""
    total = subject.tree["trainer"]["steps"]
    losses = [step.loss for step in steps(subject, *subject.build())]
    if len(losses) < total:
        return math.inf
    return fmean(losses[-math.ceil(total / 4) :])


def at_rate(subject: Subject, rate: float, seed: int) -> Subject:
    """Return a subject with another learning rate and seed."""
    optim = {**subject.tree["optim"], "lr": rate}
    tree = {**subject.tree, "seed": seed, "optim": optim}
    load = subject.load
    if seed != subject.seed:
        load = partial(load_alike, subject, tree, seed)
    return replace(subject, tree=tree, load=load)


def load_alike(subject: Subject, tree: Tree, seed: int) -> Data:
    """Return the data of a subject, drawn by another seed."""
    return build.make_data(Recipe(tree), seed).as_of(subject.load().fingerprint)


# ---- layers


def watch_model(model: Model, norms: Mapping[str, nn.Module]) -> WatchedModel:
    """Return what is watched of a model."""
    layers = layers_of(model)
    in_norms = set[nn.Parameter]()
    for norm in norms.values():
        in_norms.update(norm.parameters())
    weights = []
    for layer in layers:
        layer_weights = []
        for parameter in layer:
            if parameter.ndim > 1 and parameter not in in_norms:
                layer_weights.append(parameter)
        weights.append(layer_weights)
    return WatchedModel(model, list(model.parameters()), layers, weights)


def layers_of(model: Model) -> list[list[nn.Parameter]]:
    """Return the parameters by layer, from the inputs on: the stem, each block, and what follows the blocks."""
    blocks = [list(block.module.parameters()) for block in model.anatomy().blocks]
    in_blocks = set[nn.Parameter]()
    for block in blocks:
        in_blocks.update(block)
    stem = list[nn.Parameter]()
    rest = list[nn.Parameter]()
    is_past_stem = False
    for parameter in model.parameters():
        if parameter in in_blocks:
            is_past_stem = True
        elif is_past_stem:
            rest.append(parameter)
        else:
            stem.append(parameter)
    return [layer for layer in (stem, *blocks, rest) if layer]


# ---- the loss, its gradient and its curvature


def landscape(loss: Loss, parameters: Sequence[Tensor], distances: Sequence[float]) -> Row:
    """Return what the loss and its gradient g do along −g, at some distances η from the weights W.

    loss_low and loss_high are the range of L(W − ηg); change_low and change_high that of ‖g(W) − g(W − ηg)‖, how
    predictive the gradient is; smoothness is the effective one, the largest ‖g(W) − g(W − ηg)‖ / ‖ηg‖ (Santurkar et al.
    2018, §3.2).
    """
    start = loss()
    gradient = torch.autograd.grad(start, parameters)
    length = flat(gradient).norm().item()
    losses = list[float]()
    changes = list[float]()
    for distance in distances:
        with move_along(parameters, gradient, -distance):
            moved_loss = loss()
            difference = flat(torch.autograd.grad(moved_loss, parameters)) - flat(gradient)
        losses.append(moved_loss.item())
        changes.append(difference.norm().item())
    slopes = np.divide(changes, np.multiply(distances, length))
    return {
        "loss": start.item(),
        "gradient": length,
        "loss_low": min(losses),
        "loss_high": max(losses),
        "loss_range": max(losses) - min(losses),
        "change_low": min(changes),
        "change_high": max(changes),
        "smoothness": float(slopes.max()),
    }


def covariate_shift(
    loss: Loss, layers: Sequence[Sequence[Tensor]], weights: Sequence[Sequence[Tensor]], after: Mapping[Tensor, Tensor]
) -> Iterator[Row]:
    """Yield how the gradient of each layer's weights changes when the layers below it take their step.

    shift is the difference's norm ‖G − G'‖, relative_shift its ratio to ‖G‖, cosine that of the two (Santurkar et al.
    2018, definition 2.1). The first layer has none below.

    Args:
        loss: as a function of the parameters as they are.
        layers: the parameters of each, which are moved to `after`, layer by layer, and stay there.
        weights: those of each layer whose gradient counts.
        after: each parameter as it is one step on.
    """
    counted = list[Tensor]()
    for layer_weights in weights:
        counted += layer_weights
    before = torch.autograd.grad(loss(), counted)
    gradients = dict(zip(counted, before, strict=True))
    for layer, (below, layer_weights) in enumerate(zip(layers, weights[1:], strict=False), start=1):
        with torch.no_grad():
            torch._foreach_copy_([*below], [after[parameter] for parameter in below])
        if not layer_weights:
            continue
        old = flat(gradients[weight] for weight in layer_weights)
        new = flat(torch.autograd.grad(loss(), layer_weights))
        shift = (new - old).norm()
        yield {
            "layer": layer,
            "shift": shift.item(),
            "relative_shift": (shift / old.norm()).item(),
            "cosine": F.cosine_similarity(old, new, dim=0).item(),
        }


def curvature(loss: Loss, parameters: Sequence[Tensor], iterations: int, seed: int) -> Row:
    """Return two numbers of the Hessian H: its eigenvalue of largest absolute value, and its trace.

    The eigenvalue is found by power iteration; the trace, by Hutchinson's method, is the mean of zᵀHz over as many
    vectors z of random signs as there are iterations.
    """
    generator = torch.Generator().manual_seed(seed)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        gradient = flat(torch.autograd.grad(loss(), parameters, create_graph=True))

        def product(vector: Vector) -> Vector:
            return flat(torch.autograd.grad(gradient, parameters, vector, retain_graph=True))

        bits = torch.randint(2, (iterations + 1, len(gradient)), generator=generator).to(gradient)
        image, *probes = bits * 2 - 1
        for _ in range(iterations):
            vector = image / image.norm()
            image = product(vector)
        products = [(probe @ product(probe)).item() for probe in probes]
    return {"eigenvalue": (vector @ image).item(), "trace": fmean(products)}


@contextmanager
def move_along(parameters: Sequence[Tensor], direction: Sequence[Tensor], distance: float) -> Iterator[None]:
    """Move parameters along a direction inside the `with`, and back at the end."""
    copies = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        torch._foreach_add_([*parameters], [*direction], alpha=distance)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_([*parameters], copies)


def flat(tensors: Iterable[Tensor]) -> Vector:
    """Return all elements of tensors as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


# ---- noise after the norms


def noise(norm: nn.Module, inputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """Return a norm's output with noise, whose mean and scale are drawn anew for each activation and step.

    μ ~ U(−½, ½) and σ ~ U(1, 1.25) for each activation of a sample; then m ~ U(μ − 0.1, μ + 0.1) and s ~ N(σ, 0.1) for
    each sample, and x becomes s·x + m (Santurkar et al. 2018, algorithm 1 of the appendix).
    """
    mean = torch.rand_like(x[:1]) - 0.5
    scale = 1 + 0.25 * torch.rand_like(x[:1])
    scales = scale + 0.1 * torch.randn_like(x)
    return x * scales + mean + 0.2 * torch.rand_like(x) - 0.1


@contextmanager
def add_noise(norms: Mapping[str, nn.Module], wanted: bool = True) -> Iterator[None]:
    """Add noise to what norms put out inside the `with`, if it is wanted."""
    handles = []
    if wanted:
        handles = [norm.register_forward_hook(noise) for norm in norms.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
