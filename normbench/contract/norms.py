"""The contract of a norm: how it is made, shapes, precision, gradients, copies, and what its output depends on.

What it depends on is measured in float64, and compared with the facts that the norm declares.
"""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normbench import build
from normbench.contract import checks, trials
from normbench.contract.checks import Check, Fact, NotApplicable, difference, expect, expect_small
from normbench.contract.trials import ModulePart, run, run_both
from normbench.processes import begin_trial
from normbench.types import NormFacts, Site

SITE = Site("mlp", 0, depth=2, branches=4)
TOLERANCE = 1e-9  # in float64, of the largest value
FLOAT32_ERROR = 1e-5  # of the largest value: about 80 roundings
BFLOAT16_STEP = 2.0**-7  # between neighbours, as a share of the value at most
MOST_STEPS = 2.0  # a result that is rounded once is off by half a step
INVARIANT = 1e-3  # ε is next to 0 where the norm has an `eps`, and another's formula may round to this
FIRST_SAMPLE, FIRST_STEPS = (slice(1),), (slice(None), slice(3))

C = 3.0  # the factor, and a shift
Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]  # x, W and a vector c to arguments of torch's linear

# What may leave norm(Wx) as it is: table 1 of Ba et al. 2016 and of Zhang & Sennrich 2019.
INVARIANCES: dict[str, Change] = {
    "W × c": lambda x, w, c: (x, C * w),
    "W + 1·cᵀ": lambda x, w, c: (x, w + c),
    "one weight vector × c": lambda x, w, c: (x, torch.cat((C * w[:1], w[1:]))),
    "data × c": lambda x, w, c: (C * x, w),
    "data + c": lambda x, w, c: (x + c, w),
    "one sample × c": lambda x, w, c: (torch.cat((C * x[:1], x[1:])), w),
}


def shifted(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Shift Wx by the same number everywhere."""
    return x, w, C * torch.ones_like(w[:, 0])


class NormPart(ModulePart):
    """A norm, and how models make it."""

    section, partners = "norm", "placement"

    @cached_property
    def facts(self) -> NormFacts | None:
        """What the norm declares about itself, if anything."""
        return build.norm_facts(self.tree) if hasattr(self.made_class, "facts") else None

    @cached_property
    def layouts(self) -> list[str]:
        """The layouts that the norm is made for."""
        facts = build.norm_facts({**self.tree, "model": {"width": self.width}})  # measured, if another library's
        return [layout for layout in trials.LAYOUTS if not (facts.needs_positions and layout == "flat")]

    def module(self, layout: str = "sequence", **changes: Any) -> nn.Module:
        """Return the norm as a model would make it, with some settings changed."""
        with build.seeded(0, "norm", SITE.name):
            made: nn.Module = self.factory(**changes)(self.width, channel_dim=trials.channel_dim(layout), site=SITE)
        return made

    def contract(self) -> dict[str, Check]:
        """Return the checks of a norm by name."""
        return {
            "constructor": is_made,
            **{f"keeps {axes}": partial(trials.keeps_shape, layout=layout) for layout, axes in trials.AXES.items()},
            "layouts agree at one position": layouts_agree,
            "float32 against float64": partial(small, measure=float32_error),
            "gradcheck": gradients_are_right,
            "gradient in every parameter": trials.parameters_learn,
            "deepcopy and state_dict": trials.copies_agree,
            "torch.no_grad changes nothing": partial(small, measure=without_grad),
            "bfloat16 against float64": bfloat16_is_close,
            "draws random numbers": draws_random_numbers,
            "evaluation differs from training": partial(large, measure=between_modes),
            "crosses samples in training": partial(large, measure=moved_by_others, fact="crosses_samples"),
            "crosses samples in evaluation": partial(large, measure=partial(moved_by_others, training=False)),
            "sees later time steps": sees_future,
            "counts padding": counts_padding,
            "centers: norm(x + c) = norm(x)": partial(invariant, change=shifted, fact="centers"),
            **{f"invariant: {name}": partial(invariant, change=change) for name, change in INVARIANCES.items()},
            **{f"trains: {ground}": partial(trials.trains, ground=ground) for ground in trials.GROUNDS},
        }


def run_copy(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the output, and leave running statistics as they are."""
    return run(copy.deepcopy(norm), x)


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


def counts_padding(part: NormPart) -> str | Fact:
    """Tell whether in training outputs at real tokens depend on the padding, which the norm is told of."""
    norm, x = build.taking_mask(part.trained("sequence")), part.input("sequence")
    mask = torch.arange(x.shape[1]) < torch.arange(x.shape[1], 0, -2)[: len(x), None]
    norm.register_forward_pre_hook(lambda module, inputs: (*inputs, mask))
    moved = moved_by_others(norm, x, kept=mask)
    return declared(part, "counts_padding", Fact(moved > TOLERANCE, f"deviation {moved:.1e}"))


def is_made(part: NormPart) -> str:
    """It can be made in every way in which models and placements do, where only torch's random numbers are seeded."""
    norm = part.module()
    for keywords in ({}, {"site": SITE}, {"channel_dim": 1, "site": SITE}):
        part.factory()(part.width, **keywords)
    drawn = checks.drawn_by(part.module)
    expect(not drawn, f"draws from {drawn}: draw from torch, whose random numbers are seeded")
    sizes = [f"{name} {list(parameter.shape)}" for name, parameter in norm.named_parameters()]
    return f"(num_features, *, channel_dim=-1, site=None); parameters: {', '.join(sizes) or 'none'}"


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


def bfloat16_is_close(part: NormPart) -> str:
    """Measure in a process of its own, since some CPUs stop one that uses bfloat16."""
    try:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, begin_trial, (os.getpid(),)) as pool:
            return pool.submit(bfloat16_error, part).result()
    except BrokenExecutor as error:
        raise NotApplicable("this machine, or the norm, stops a process that uses bfloat16 on the CPU") from error


@torch.no_grad()
def bfloat16_error(part: NormPart) -> str:
    """Count by how many steps of bfloat16 a result is off, below the root mean square in steps there.

    The parameters stay float32, as in a run with `trainer.precision=bf16`. Inputs far from 0 show statistics that were
    taken in bfloat16. A result in float32, as float32 parameters may give, is as good: under autocast a run takes it.
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
    figure += "" if y.dtype == x.dtype else f"; the result is {y.dtype}, which trainer.precision=bf16 takes too"
    return expect(most <= MOST_STEPS, figure if most <= MOST_STEPS else f"{figure}: take statistics in float32")


def draws_random_numbers(part: NormPart) -> Fact:
    """Its draws come before those of the dropout behind it, whose masks then differ from other norms'."""
    norm, x = part.module("image"), part.input("image").float()
    drawn = checks.drawn_by(lambda: (norm.train()(x), norm.eval()(x)))
    return Fact(bool(drawn), f"{drawn}: dropout behind it gets other masks than with other norms" if drawn else "")


def invariant(part: NormPart, change: Change, fact: str = "") -> str | Fact:
    """Tell whether a change of W or x leaves norm(Wx) as it is, in training, before γ and β, as this fact says."""
    generator = torch.Generator().manual_seed(0)
    w, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((part.width, 5), (6, 4, 5)))
    takes_eps = "eps" in inspect.signature(part.made_class).parameters
    norm = part.module("sequence", **({"eps": 1e-30} if takes_eps else {})).double()
    moved = difference(run_copy(norm, nn.functional.linear(*change(x, w, w[0]))), run(norm, x @ w.T))
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
