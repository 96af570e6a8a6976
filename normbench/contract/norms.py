"""The contract of a norm: how it is made, shapes, precision, gradients, copies, and what its output depends on.

What it depends on is measured in float64, and compared with the facts that the norm declares.
"""

from __future__ import annotations

import copy
import inspect
import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normbench import build
from normbench.contract import checks, trials
from normbench.contract.checks import Check, Fact, NotApplicable, Part, difference, expect, expect_small
from normbench.types import NormFacts, Site

SITE = Site("mlp", 0, depth=2, branches=4)
TOLERANCE = 1e-9  # in float64, of the largest value
FLOAT32_ERROR = 1e-5  # of the largest value: about 80 roundings
BFLOAT16_STEP = 2.0**-7  # between neighbours, as a share of the value at most
MOST_STEPS = 2.0  # a result that is rounded once is off by half a step
INVARIANT = 1e-3  # ε is next to 0 where the norm has an `eps`, and another's formula may round to this
FIRST_SAMPLE, FIRST_STEPS = (slice(1),), (slice(None), slice(3))

# What may leave norm(Wx) as it is: table 1 of Ba et al. 2016 and of Zhang & Sennrich 2019.
Change = Callable[[Tensor, Tensor], Tensor]
INVARIANCES: dict[str, Change] = {
    "W × c": lambda w, x: x @ (3 * w).T,
    "W + 1·cᵀ": lambda w, x: x @ (w + w[:1]).T,
    "one weight vector × c": lambda w, x: x @ torch.cat((3 * w[:1], w[1:])).T,
    "data × c": lambda w, x: 3 * x @ w.T,
    "data + c": lambda w, x: (x + 3) @ w.T,
    "one sample × c": lambda w, x: torch.cat((3 * x[:1], x[1:])) @ w.T,
}


class NormPart(Part):
    """A norm, and how models make it."""

    section = "norm"

    @cached_property
    def width(self) -> int:
        """Features that it is tried on: an even number, four or more in each of its groups."""
        groups = self.tree["norm"].get("groups")
        return 2 * groups * max(2, math.ceil(trials.WIDTH / (2 * groups))) if isinstance(groups, int) else trials.WIDTH

    @cached_property
    def facts(self) -> NormFacts | None:
        """What the norm declares about itself, if anything."""
        return build.norm_facts(self.tree) if hasattr(self.made_class, "facts") else None

    @cached_property
    def layouts(self) -> list[str]:
        """The layouts that the norm is made for."""
        facts = build.norm_facts({**self.tree, "model": {"width": self.width}})  # measured, if another library's
        return [layout for layout in trials.LAYOUTS if not (facts.needs_positions and layout == "flat")]

    def input(self, layout: str, seed: int = 0) -> Tensor:
        """Return a random input of its width, in float64."""
        if layout not in self.layouts:
            raise NotApplicable("it needs positions")
        return trials.random_input(layout, seed, width=self.width)

    def make(self, layout: str = "sequence", **changes: Any) -> nn.Module:
        """Return the norm as a model would make it, with some settings changed."""
        with build.seeded(0, "norm", SITE.name):
            made: nn.Module = self.factory(**changes)(self.width, channel_dim=trials.channel_dim(layout), site=SITE)
        return made

    def trained(self, layout: str) -> nn.Module:
        """Return the norm in float64 after a few batches, its parameters unlike their start, so that each shows."""
        norm, generator = self.make(layout).double(), torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
        for seed in range(3):
            run(norm, self.input(layout, seed=10 + seed))
        return norm

    def cases(self) -> Iterator[tuple[nn.Module, Tensor]]:
        """Yield the norm after a few batches, and another input, for each layout that it is made for."""
        for layout in self.layouts:
            yield self.trained(layout), self.input(layout)

    def contract(self) -> dict[str, Check]:
        """Return the checks of a norm by name."""
        return {
            "constructor": is_made,
            **{f"keeps {axes}": partial(keeps_shape, layout=layout) for layout, axes in trials.AXES.items()},
            "layouts agree at one position": layouts_agree,
            "float32 against float64": partial(small, measure=float32_error),
            "gradcheck": gradients_are_right,
            "gradient in every parameter": parameters_learn,
            "deepcopy and state_dict": copies_agree,
            "torch.no_grad changes nothing": partial(small, measure=without_grad),
            "bfloat16 against float64": bfloat16_is_close,
            "draws random numbers": draws_random_numbers,
            "evaluation differs from training": partial(large, measure=between_modes),
            "crosses samples in training": partial(large, measure=moved_by_others, fact="crosses_samples"),
            "crosses samples in evaluation": partial(large, measure=partial(moved_by_others, training=False)),
            "sees later time steps": sees_future,
            "centers: norm(x + c) = norm(x)": partial(invariant, change=lambda w, x: x @ w.T + 3, fact="centers"),
            **{f"invariant: {name}": partial(invariant, change=change) for name, change in INVARIANCES.items()},
            **{f"trains: {ground}": partial(trains, ground=ground) for ground in trials.GROUNDS},
        }


def run(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the output; a norm that draws random numbers draws the same each time.

    Raises:
        ContractError: it is no tensor of x's shape and dtype.
    """
    torch.manual_seed(0)
    y: Tensor = norm(x)
    build.check_output(SITE.name, norm, (x,), y)
    return y


def run_copy(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the output, and leave running statistics as they are."""
    return run(copy.deepcopy(norm), x)


def run_both(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the output in evaluation, and that in training."""
    return torch.stack((run(norm.eval(), x), run(norm.train(), x)))


# ---- what is measured of a norm and an input in each layout

Measure = Callable[[nn.Module, Tensor], float]


def small(part: NormPart, measure: Measure) -> str:
    """The largest of what is measured is no more than rounding in float32."""
    return expect_small(max(measure(*case) for case in part.cases()), FLOAT32_ERROR)


def large(part: NormPart, measure: Measure, fact: str = "") -> str | Fact:
    """Tell whether the largest of what is measured is more than rounding in float64, as this fact says, if given."""
    largest = max(measure(*case) for case in part.cases())
    return declared(part, fact, Fact(largest > TOLERANCE, f"deviation {largest:.1e}"))


def float32_error(norm: nn.Module, x: Tensor) -> float:
    """Return how far output and input gradient in float32 are from the same norm's in float64."""
    results = []
    for dtype in (torch.float32, torch.float64):
        norm, x = norm.to(dtype), x.detach().to(dtype).requires_grad_()
        y = run_copy(norm, x)
        results.append(torch.stack((y, *torch.autograd.grad(y.cos().sum(), x))))
    return difference(*results)


def without_grad(norm: nn.Module, x: Tensor) -> float:
    """Return how far the output under torch.no_grad is from that in training."""
    with torch.no_grad():
        found = run_both(copy.deepcopy(norm), x)
    return difference(found, run_both(norm, x))


def between_modes(norm: nn.Module, x: Tensor) -> float:
    """Return how far apart evaluation and training are after a few batches."""
    return difference(*run_both(norm, x))


def moved_by_others(norm: nn.Module, x: Tensor, training: bool = True, kept: Any = FIRST_SAMPLE) -> float:
    """Return how far a kept part of the output moves when the rest of the input changes."""
    changed = 3 * x.flip(0) + 1
    changed[kept] = x[kept]
    norm.train(training)
    return difference(run_copy(norm, changed)[kept], run_copy(norm, x)[kept])


# ---- other checks


def is_made(part: NormPart) -> str:
    """It can be made in every way in which models and placements do, where only torch's random numbers are seeded."""
    norm = part.make()
    for keywords in ({}, {"site": SITE}, {"channel_dim": 1, "site": SITE}):
        part.factory()(part.width, **keywords)
    drawn = checks.drawn_by(part.make)
    expect(not drawn, f"draws from {drawn}: draw from torch, whose random numbers are seeded")
    sizes = [f"{name} {list(parameter.shape)}" for name, parameter in norm.named_parameters()]
    return f"(num_features, *, channel_dim=-1, site=None); parameters: {', '.join(sizes) or 'none'}"


def keeps_shape(part: NormPart, layout: str) -> str:
    """Its output has its input's shape and dtype."""
    x = part.input(layout)
    for dtype in (torch.float32, torch.float64):
        run_both(part.make(layout).to(dtype), x.to(dtype))
    return f"{list(x.shape)}"


def layouts_agree(part: NormPart) -> str:
    """An image of one pixel has the same output as a row of features."""
    x = part.input("flat", seed=3)
    last, first = part.trained("flat"), part.trained("image")
    first.load_state_dict(last.state_dict())
    return expect_small(difference(run_both(first, x[:, :, None, None]).flatten(2), run_both(last, x)), TOLERANCE)


def gradients_are_right(part: NormPart) -> None:
    """torch's gradcheck on input and parameters, in training."""
    for norm, x in part.cases():

        def call(x: Tensor, *_: Tensor, norm: nn.Module = norm) -> Tensor:
            torch.manual_seed(0)
            y: Tensor = functional_call(norm, {name: buffer.clone() for name, buffer in norm.named_buffers()}, (x,))
            return y

        torch.autograd.gradcheck(call, (x.requires_grad_(), *norm.parameters()), fast_mode=True)


def parameters_learn(part: NormPart) -> str:
    """A backward pass in training leaves a finite gradient in each parameter."""
    if not list(part.make().parameters()):
        raise NotApplicable("it has no parameters")
    for norm, x in part.cases():
        run(norm, x.requires_grad_()).pow(3).sum().backward()
        arrived = checks.gradients_arrive(norm)
    return arrived


def copies_agree(part: NormPart) -> str:
    """A deepcopy, and a new norm with the state_dict, give the same as the norm after some training."""
    return expect_small(
        max(
            checks.between_copies(part.trained(each), part.make(each).double(), partial(run_both, x=part.input(each)))
            for each in part.layouts
        )
    )


def bfloat16_is_close(part: NormPart) -> str:
    """Measure in a process of its own, since some CPUs stop one that uses bfloat16."""
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(bfloat16_error, part).result()
    except BrokenExecutor as error:
        raise NotApplicable("this machine, or the norm, stops a process that uses bfloat16 on the CPU") from error


@torch.no_grad()
def bfloat16_error(part: NormPart) -> str:
    """Count by how many steps of bfloat16 a result is off, below the root mean square in steps there.

    The parameters stay float32, as in a run with `trainer.precision=bf16`. Inputs far from 0 show statistics that were
    taken in bfloat16.
    """
    steps = []
    for norm, features in part.cases():
        for shift in (0, 16):
            x = (features + shift).bfloat16()
            y, expected = run_copy(norm.float(), x), run_copy(norm.double(), x.double())
            scale = expected.abs().clamp_min(expected.square().mean().sqrt().item())
            steps.append(((y.double() - expected).abs() / (scale * BFLOAT16_STEP)).max())
    most = torch.stack(steps).max().item()
    figure = f"off by up to {most:.2g} steps of bfloat16"
    return expect(most <= MOST_STEPS, figure if most <= MOST_STEPS else f"{figure}: take statistics in float32")


def draws_random_numbers(part: NormPart) -> Fact:
    """Its draws come before those of the dropout behind it, whose masks then differ from other norms'."""
    norm, x = part.make("image"), part.input("image").float()
    drawn = checks.drawn_by(lambda: (norm.train()(x), norm.eval()(x)))
    return Fact(bool(drawn), f"{drawn}: dropout behind it gets other masks than with other norms" if drawn else "")


def invariant(part: NormPart, change: Change, fact: str = "") -> str | Fact:
    """Tell whether a change of W or x leaves norm(Wx) as it is, in training, before γ and β, as this fact says."""
    generator = torch.Generator().manual_seed(0)
    w, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((part.width, 5), (6, 4, 5)))
    takes_eps = "eps" in inspect.signature(part.made_class).parameters
    norm = part.make("sequence", **({"eps": 1e-30} if takes_eps else {})).double()
    moved = difference(run_copy(norm, change(w, x)), run(norm, x @ w.T))
    return declared(part, fact, Fact(moved < INVARIANT, f"deviation {moved:.1e}"))


def declared(part: NormPart, fact: str, found: Fact) -> str | Fact:
    """What is found is what the norm's facts say, if it has any."""
    said, word = getattr(part.facts, fact, None), "yes" if found.holds else "no"
    return found if said is None else expect(found.holds == said, f"{word} ({found.measured}), facts.{fact}={said}")


def sees_future(part: NormPart) -> str | Fact:
    """An output depends on later time steps `never`, in `training` alone, or `always`."""
    norm, x = part.trained("sequence"), part.input("sequence")
    in_training, later = (moved_by_others(norm, x, training, FIRST_STEPS) for training in (True, False))
    word = "always" if later > TOLERANCE else "training" if in_training > TOLERANCE else "never"
    figure = f"{word} (deviation {in_training:.1e} in training, {later:.1e} in evaluation)"
    if part.facts is None:
        warned = word == "never" or not build.takes_place(build.target(part.tree, "norm")[0])  # train measures those
        cure = "" if warned else ": declare it as facts.sees_future, or train cannot warn of it"
        return Fact(word != "never", figure + cure)
    return expect(word == part.facts.sees_future, f"{figure}, facts.sees_future={part.facts.sees_future}")


def trains(part: NormPart, ground: str) -> str:
    """It trains in every placement that goes with it."""
    words, task = trials.GROUNDS[ground]
    tree = trials.composed(words)
    tree = {**tree, "norm": part.tree["norm"], "model": {**tree["model"], "width": part.width}}
    return trials.train_with_each("placement", tree, task)
