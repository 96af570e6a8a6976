"""The contract of a norm: how it is made, shapes, precision, gradients, copies."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normbench import assembly
from normbench.checking.gradients import without_gradient
from normbench.checking.outcomes import Check, Outcome, failed, judged, measured, not_applicable, passed
from normbench.checking.randomness import draws_of
from normbench.checking.samples import AXES, LAYOUTS, WIDTH, channel_dim, random_input
from normbench.config import Tree
from normbench.rehearsal import check_shape
from normbench.types import NormFacts, Site

SITE = Site("mlp", 0, depth=2, branches=4)
FLOAT32_ERROR = 1e-5  # of the largest value: about 80 roundings
MOST_GROUPS = 64  # more would take minutes
TOLERANCE = 1e-9  # in float64, of the largest value


@dataclass(frozen=True)
class NormPart:
    """A norm and its settings."""

    tree: Tree

    @cached_property
    def width(self) -> int:
        """Features that it is tried on: an even number, four or more in each of its groups."""
        groups = self.tree["norm"].get("groups")
        if not isinstance(groups, int) or not 0 < groups <= MOST_GROUPS:
            return WIDTH
        return 2 * groups * max(2, math.ceil(WIDTH / (2 * groups)))

    def input(self, layout: str, seed: int = 0, **moments: float) -> Tensor:
        """A random input of its width, in float64."""
        return random_input(layout, seed, width=self.width, **moments)

    def make(self, channel_dim: int = -1, **changes: Any) -> nn.Module:
        """The norm as a model would make it, with some settings changed."""
        factory = assembly.factory({"norm": {**self.tree["norm"], **changes}}, "norm")
        with assembly.seeded(0, "norm", SITE.name):
            made: nn.Module = factory(self.width, channel_dim=channel_dim, site=SITE)
        return made

    def lively(self, layout: str) -> nn.Module:
        """The norm with parameters unlike their start, so that each of them shows in the result."""
        norm, generator = self.make(channel_dim(layout)), torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
        return norm

    @cached_property
    def facts(self) -> NormFacts | None:
        """What the norm declares about itself, if anything."""
        declares = hasattr(assembly.made_class(self.tree, "norm"), "facts")
        return assembly.norm_facts(self.tree) if declares else None

    @property
    def layouts(self) -> list[str]:
        """The layouts that the norm is made for."""
        needs_positions = self.facts is not None and self.facts.needs_positions
        return [layout for layout in LAYOUTS if not (needs_positions and layout == "flat")]


def contract(part: NormPart) -> Iterator[Check]:
    """The checks of what every norm must do."""
    yield Check("constructor", partial(construct, part), decisive=True)
    for layout in LAYOUTS:
        yield Check(f"keeps {AXES[layout]}", partial(keeps_shape, part, layout))
    yield Check("layouts agree at one position", partial(layouts_agree, part, "flat"))
    yield Check("layouts agree over time and space", partial(layouts_agree, part, "sequence"))
    yield Check("float64", partial(keeps_float64, part))
    yield Check("float32 against float64", partial(float32_error, part))
    yield Check("gradcheck", partial(gradients_are_right, part))
    yield Check("gradient in every parameter", partial(parameters_learn, part))
    yield Check("the seed decides the start", partial(start_is_seeded, part))
    yield Check("deepcopy and state_dict", partial(copies_agree, part))
    yield Check("torch.no_grad changes nothing", partial(same_without_grad, part))
    yield Check("takes a mask", partial(takes_mask, part))


def construct(part: NormPart) -> Outcome:
    """Make it in every way in which models and placements do."""
    norm = part.make()
    factory = assembly.factory(part.tree, "norm")
    for keywords in ({}, {"site": SITE}, {"channel_dim": 1, "site": SITE}):
        factory(part.width, **keywords)
    sizes = [f"{name} {list(parameter.shape)}" for name, parameter in norm.named_parameters()]
    return passed(f"(num_features, *, channel_dim=-1, site=None); parameters: {', '.join(sizes) or 'none'}")


def keeps_shape(part: NormPart, layout: str) -> Outcome:
    """Forward in training and evaluation."""
    if layout not in part.layouts:
        return not_applicable("its facts say that it needs positions")
    x = part.input(layout).float()
    norm = part.make(channel_dim(layout))
    for training in (True, False):
        run(norm.train(training), x)
    return passed(f"{list(x.shape)}")


def run(norm: nn.Module, x: Tensor) -> Tensor:
    """The output, if it is a tensor of x's shape and dtype; a norm that draws random numbers draws the same each time.

    Raises:
        UsageError: it is not.
    """
    torch.manual_seed(0)
    y: Tensor = norm(x)
    check_shape(SITE.name, norm, (x,), y)
    return y


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest expected value; infinite where something is not finite.

    Of several errors the largest counts, and Python's `max` may pass over a NaN.
    """
    difference = (found.detach().double() - expected.detach().double()).abs().max()
    share = float(difference / expected.detach().abs().max().clamp_min(1e-30))
    return share if math.isfinite(share) else math.inf


def layouts_agree(part: NormPart, layout: str) -> Outcome:
    """An image of one row is a sequence, and an image of one pixel a row of features.

    Over several positions it is only measured: the pixels of an image may share statistics where the steps of a
    sequence do not, as in GroupNorm.
    """
    if layout not in part.layouts:
        return not_applicable("its facts say that it needs positions")
    last, first = part.lively(layout).double(), part.lively("image").double()
    first.load_state_dict(last.state_dict())
    errors = []
    for training in (True, False):
        x = part.input(layout, seed=3)
        image = x.reshape(x.shape[0], -1, 1, part.width).permute(0, 3, 2, 1)
        y = run(first.train(training), image).permute(0, 3, 2, 1).reshape(x.shape)
        errors.append(error(y, run(last.train(training), x)))
    agree, figure = max(errors) < TOLERANCE, f"largest difference {max(errors):.1e}"
    return judged(agree, figure) if layout == "flat" else measured(agree, figure)


def keeps_float64(part: NormPart) -> Outcome:
    """A norm in float64 on float64."""
    for layout in part.layouts:
        run(part.lively(layout).double(), part.input(layout))
    return passed()


def float32_error(part: NormPart) -> Outcome:
    """Output and input gradient in float32, against the same norm in float64."""
    outputs, gradients = [], []
    for layout in part.layouts:
        norm, x = part.lively(layout), part.input(layout).float()
        (y, gradient), (y64, gradient64) = forward_backward(norm, x), forward_backward(norm.double(), x.double())
        outputs.append(error(y, y64))
        gradients.append(error(gradient, gradient64))
    largest = max(*outputs, *gradients)
    figure = f"{max(outputs):.1e} of the largest output, {max(gradients):.1e} of the largest gradient"
    return judged(largest < FLOAT32_ERROR, figure)


def forward_backward(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Output of a copy of the norm, and the input's gradient of a random sum of it."""
    x = x.clone().requires_grad_()
    y = run(copy.deepcopy(norm), x)
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (y * weights.to(x.dtype)).sum().backward()
    return y.detach(), torch.zeros_like(x) if x.grad is None else x.grad


def gradients_are_right(part: NormPart) -> Outcome:
    """torch's gradcheck on input and parameters, in training; buffers are put back for each call."""
    for layout in part.layouts:
        norm = part.lively(layout).double()
        parameters = dict(norm.named_parameters())

        def call(x: Tensor, *values: Tensor, norm: nn.Module = norm, parameters: dict[str, Any] = parameters) -> Tensor:
            buffers = {name: buffer.clone() for name, buffer in norm.named_buffers()}
            state = {**dict(zip(parameters, values, strict=True)), **buffers}
            torch.manual_seed(0)
            y: Tensor = functional_call(norm, state, (x,))
            return y

        x = part.input(layout).requires_grad_()
        torch.autograd.gradcheck(call, (x, *parameters.values()), fast_mode=True)
    return passed()


def parameters_learn(part: NormPart) -> Outcome:
    """Backward in training: a finite gradient in each parameter."""
    names: list[str] = []
    for layout in part.layouts:
        norm = part.lively(layout)
        forward_backward_in_place(norm, part.input(layout).float())
        if without := without_gradient(norm):
            return failed(f"none in {', '.join(without)} for {AXES[layout]}")
        names = [name for name, _ in norm.named_parameters()]
    return passed(", ".join(names)) if names else not_applicable("it has no parameters")


def forward_backward_in_place(norm: nn.Module, x: Tensor) -> None:
    """Leave gradients in the norm's own parameters."""
    y = run(norm, x)
    if y.requires_grad:
        y.pow(3).sum().backward()


def start_is_seeded(part: NormPart) -> Outcome:
    """Where a model is made only torch's random numbers are seeded: a start drawn from others cannot be repeated."""
    _, draws = draws_of(part.make)
    return judged(not draws, f"draws from {draws}: draw from torch, whose random numbers are seeded" if draws else "")


def copies_agree(part: NormPart) -> Outcome:
    """After some training a deepcopy, and a new norm with the state_dict, go on as the norm itself does."""
    differences = []
    for layout in part.layouts:
        norm = part.lively(layout)
        for seed in range(3):
            run(norm, part.input(layout, seed).float())
        reloaded = part.make(channel_dim(layout))
        reloaded.load_state_dict(norm.state_dict())
        x = part.input(layout, seed=7).float()
        for training in (False, True):
            outputs = [run(one.train(training), x) for one in (copy.deepcopy(norm), reloaded, norm)]
            differences += [error(output, outputs[-1]) for output in outputs]
    largest = max(differences)
    return judged(largest == 0, "to the bit" if largest == 0 else f"largest difference {largest:.1e}")


def same_without_grad(part: NormPart) -> Outcome:
    """As in an evaluation."""
    differences = []
    for layout in part.layouts:
        norm, x = part.lively(layout), part.input(layout).float()
        for training in (True, False):
            y = run(copy.deepcopy(norm).train(training), x)
            with torch.no_grad():
                differences.append(error(run(copy.deepcopy(norm).train(training), x), y))
    return judged(max(differences) < FLOAT32_ERROR, f"largest difference {max(differences):.1e}")


def takes_mask(part: NormPart) -> Outcome:
    """Whether padding can be left out of its statistics."""
    return measured("mask" in inspect.signature(part.make().forward).parameters)
