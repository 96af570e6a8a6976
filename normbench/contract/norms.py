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
from normbench.config.recipe import Recipe, resolve
from normbench.contract import checks, trials
from normbench.contract.checks import Check, Fact, NotApplicable, difference, expect, expect_small
from normbench.contract.trials import ModulePart, run, run_both
from normbench.errors import ContractError, explain
from normbench.norms.foreign import accept_mask, takes_place
from normbench.processes import begin_trial
from normbench.training.devices import seed_draws
from normbench.types import NormFacts, Site

SITE = Site("mlp", 0, depth=2, branches=4)
TOLERANCE = 1e-9  # in float64, of the largest value
FLOAT32_ERROR = 1e-5  # of the largest value: about 80 roundings
BFLOAT16_STEP = 2.0**-7  # between neighbours, as a share of the value at most
MOST_STEPS = 2.0  # a result that is rounded once is off by half a step
INVARIANT = 1e-3  # ε is next to 0 where the norm has an `eps`, and another's formula may round to this
FIRST_SAMPLE = (slice(1),)
FIRST_STEPS = (slice(None), slice(3))

C = 3.0  # the factor, and a shift
Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]  # x, W and a vector c to arguments of torch's linear


def scale_first(x: Tensor) -> Tensor:
    """Return x with its first row times c."""
    return torch.cat((C * x[:1], x[1:]))


# What may leave norm(Wx) as it is: table 1 of Ba et al. 2016 and of Zhang & Sennrich 2019.
INVARIANCES: dict[str, Change] = {
    "W × c": lambda x, w, c: (x, C * w),
    "W + 1·cᵀ": lambda x, w, c: (x, w + c),
    "one weight vector × c": lambda x, w, c: (x, scale_first(w)),
    "data × c": lambda x, w, c: (C * x, w),
    "data + c": lambda x, w, c: (x + c, w),
    "one sample × c": lambda x, w, c: (scale_first(x), w),
}


def shift(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Shift Wx by the same number everywhere."""
    bias = C * torch.ones_like(w[:, 0])
    return x, w, bias


class NormPart(ModulePart):
    """A norm, and how models make it."""

    section = "norm"
    partners = "placement"

    @cached_property
    def facts(self) -> NormFacts | None:
        """What the norm declares about itself, if anything."""
        return build.norm_facts(Recipe(self.tree)) if hasattr(self.made_class, "facts") else None

    @cached_property
    def layouts(self) -> list[str]:
        """The layouts that the norm is made for."""
        facts = build.norm_facts(
            Recipe({**self.tree, "model": {"width": self.width}})
        )  # measured, if another library's
        layouts = list(trials.LAYOUTS)
        if facts.needs_positions:
            layouts.remove("flat")
        return layouts

    def module(self, layout: str = "sequence", **changes: Any) -> nn.Module:
        """Return the norm as a model would make it, with some settings changed."""
        factory = self.factory(**changes)
        with seed_draws(0, "norm", SITE.name):
            made: nn.Module = factory(self.width, channel_dim=trials.channel_dim(layout), site=SITE)
        return made

    def contract(self) -> dict[str, Check]:
        """Return the checks of a norm by name."""
        return {
            "constructor": is_made,
            **trials.shape_checks(),
            "layouts agree at one position": layouts_agree,
            "float32 against float64": partial(small, measure=float32_error),
            "gradcheck": gradients_are_right,
            "gradient in every parameter": trials.parameters_learn,
            "what follows in place": bears_what_follows,
            "deepcopy and state_dict": trials.copies_agree,
            "torch.no_grad changes nothing": partial(small, measure=without_grad),
            "bfloat16 against float64": bfloat16_is_close,
            "draws random numbers": draws_random_numbers,
            "evaluation differs from training": partial(large, measure=between_modes),
            "crosses samples in training": partial(large, measure=moved_by_others, fact="crosses_samples"),
            "crosses samples in evaluation": partial(large, measure=partial(moved_by_others, training=False)),
            "sees later time steps": sees_future,
            "counts padding": counts_padding,
            "centers: norm(x + c) = norm(x)": partial(invariant, change=shift, fact="centers"),
            **invariance_checks(),
            **trials.training_checks(),
        }


def invariance_checks() -> dict[str, Check]:
    """Return a check of each change that a norm may be invariant to, by name."""
    return {f"invariant: {name}": partial(invariant, change=change) for name, change in INVARIANCES.items()}


# ---- what is measured of a norm and an input in each layout

Measure = Callable[[nn.Module, Tensor], float]


def run_copy(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the output, and leave running statistics as they are."""
    return run(copy.deepcopy(norm), x)


def small(part: NormPart, measure: Measure) -> str:
    """The largest of what is measured is no more than rounding in float32."""
    return expect_small(max(measure(*case) for case in part.cases()), FLOAT32_ERROR)


def large(part: NormPart, measure: Measure, fact: str = "") -> str | Fact:
    """Tell whether the largest of what is measured is more than rounding in float64, as this fact says, if given."""
    largest = max(measure(*case) for case in part.cases())
    return agree_with_facts(part, fact, Fact(largest > TOLERANCE, f"deviation {largest:.1e}"))


def float32_error(norm: nn.Module, x: Tensor) -> float:
    """Return how far output and input gradient in float32 are from the same norm's in float64."""
    results = []
    for dtype in (torch.float32, torch.float64):
        norm = norm.to(dtype)
        x = x.detach().to(dtype).requires_grad_()
        y = run_copy(norm, x)
        (gradient,) = torch.autograd.grad(y.cos().sum(), x)
        results.append(torch.stack((y, gradient)))
    single, double = results
    return difference(single, double)


def without_grad(norm: nn.Module, x: Tensor) -> float:
    """Return how far the output under torch.no_grad is from that in training."""
    with torch.no_grad():
        output = run_both(copy.deepcopy(norm), x)
    expected = run_both(norm, x)
    return difference(output, expected)


def between_modes(norm: nn.Module, x: Tensor) -> float:
    """Return how far apart evaluation and training are after a few batches."""
    in_evaluation, in_training = run_both(norm, x)
    return difference(in_evaluation, in_training)


def moved_by_others(norm: nn.Module, x: Tensor, training: bool = True, kept: Any = FIRST_SAMPLE) -> float:
    """Return how far a kept part of the output moves when the rest of the input changes."""
    changed = 3 * x.flip(0) + 1  # with another mean and another spread, so that any shared statistic shows
    changed[kept] = x[kept]
    norm.train(training)
    output = run_copy(norm, changed)
    expected = run_copy(norm, x)
    return difference(output[kept], expected[kept])


# ---- other checks


def counts_padding(part: NormPart) -> str | Fact:
    """Tell whether in training outputs at real tokens depend on the padding, which its mask shows."""
    norm = accept_mask(part.trained("sequence"))
    x = part.input("sequence")
    positions = x.shape[1]
    lengths = torch.arange(positions, 0, -2)[: len(x)]  # each text shorter than the one before
    mask = torch.arange(positions) < lengths[:, None]
    norm.register_forward_pre_hook(lambda module, inputs: (*inputs, mask))
    moved = moved_by_others(norm, x, kept=mask)
    return agree_with_facts(part, "counts_padding", Fact(moved > TOLERANCE, f"deviation {moved:.1e}"))


def is_made(part: NormPart) -> str:
    """It can be made in every way in which models and placements do, where only torch's random numbers are seeded."""
    norm = part.module()
    factory = part.factory()
    factory(part.width)
    factory(part.width, site=SITE)
    factory(part.width, channel_dim=1, site=SITE)
    drawn = checks.drawn_by(part.module)
    expect(not drawn, f"draws from {drawn}: draw from torch, whose random numbers are seeded")
    sizes = [f"{name} {list(parameter.shape)}" for name, parameter in norm.named_parameters()]
    return f"(num_features, *, channel_dim=-1, site=None); parameters: {', '.join(sizes) or 'none'}"


def layouts_agree(part: NormPart) -> str:
    """An image of one pixel has the same output as a row of features."""
    x = part.input("flat", seed=3)
    of_rows = part.trained("flat")
    of_images = part.trained("image")
    of_images.load_state_dict(of_rows.state_dict())
    pixels = run_both(of_images, x[:, :, None, None]).flatten(2)
    rows = run_both(of_rows, x)
    return expect_small(difference(pixels, rows), TOLERANCE)


def gradients_are_right(part: NormPart) -> None:
    """torch's gradcheck on input and parameters, in training."""
    if not getattr(part.module(), "exact_gradient", True):
        raise NotApplicable("a part of its formula is a constant in the backward pass")
    for norm, x in part.cases():

        def call(x: Tensor, *_: Tensor, norm: nn.Module = norm) -> Tensor:
            torch.default_generator.manual_seed(0)
            buffers = {name: buffer.clone() for name, buffer in norm.named_buffers()}
            y: Tensor = functional_call(norm, buffers, (x,))
            return y

        torch.autograd.gradcheck(call, (x.requires_grad_(), *norm.parameters()), fast_mode=True)


def bears_what_follows(part: NormPart) -> None:
    """An activation that works in place on the output, in training, changes neither the gradient nor the input."""
    cure = "end forward with .clone()"
    for norm, features in part.cases():
        if getattr(norm, "is_identity", False):
            raise NotApplicable("its output is its input")
        norm = norm.float()
        x = features.float()
        gradients = []
        for in_place in (False, True):
            leaf = x.clone().requires_grad_()
            entering = leaf * 1  # as another layer gives it
            y = run_copy(norm, entering)
            try:
                acted = nn.functional.relu(y, inplace=in_place)
                (gradient,) = torch.autograd.grad(acted.sum(), leaf)
            except RuntimeError as error:
                raise ContractError(f"{explain(error)}: {cure}") from error
            gradients.append(gradient)
            expect(torch.equal(entering, x), f"it changes the norm's input, which is its output: {cure}")
        plain, after_in_place = gradients
        is_same = torch.allclose(after_in_place, plain, rtol=0, atol=0, equal_nan=True)
        expect(is_same, f"its gradient is another one: {cure}")


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
            y = run_copy(norm.float(), x)
            expected = run_copy(norm.double(), x.double())
            rms = expected.square().mean().sqrt().item()
            step = BFLOAT16_STEP * expected.abs().clamp_min(rms)
            off = (y.double() - expected).abs() / step
            steps.append(off.max())
    most = torch.stack(steps).max().item()
    figure = f"off by up to {most:.2g} steps of bfloat16"
    if y.dtype != x.dtype:
        figure += f"; the result is {y.dtype}, which trainer.precision=bf16 takes too"
    if most > MOST_STEPS:
        figure += ": take statistics in float32"
    return expect(most <= MOST_STEPS, figure)


def draws_random_numbers(part: NormPart) -> Fact:
    """Its draws come before those of the dropout after it, whose masks then differ from other norms'."""
    norm = part.module("image")
    x = part.input("image").float()
    drawn = checks.drawn_by(lambda: (norm.train()(x), norm.eval()(x)))
    if not drawn:
        return Fact(False)
    return Fact(True, f"{drawn}: dropout after it gets other masks than with other norms")


def invariant(part: NormPart, change: Change, fact: str = "", later: bool = False) -> str | Fact:
    """Tell whether a change of W or x leaves norm(Wx) as it is, in training, before γ and β, as this fact says.

    Args:
        part: the norm.
        change: of W or x.
        fact: that says so, if there is one.
        later: in a batch that the norm treats as the later ones of training (`Norm.later`), not in the first.
    """
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(part.width, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(6, 4, 5, generator=generator, dtype=torch.float64)
    takes_eps = "eps" in inspect.signature(part.made_class).parameters
    settings: dict[str, Any] = {"eps": 1e-30} if takes_eps else {}
    if later:
        settings |= part.made_class.later
    norm = part.module("sequence", **settings).double()
    if later:
        for _ in range(2):
            run(norm, x @ w.T)
    changed = nn.functional.linear(*change(x, w, w[0]))
    output = run_copy(norm, changed)
    expected = run(norm, x @ w.T)
    moved = difference(output, expected)
    return agree_with_facts(part, fact, Fact(moved < INVARIANT, f"deviation {moved:.1e}"))


def agree_with_facts(part: NormPart, fact: str, observed: Fact) -> str | Fact:
    """What is found is what the norm's facts say, if it has any."""
    declared = getattr(part.facts, fact, None)
    if declared is None:
        return observed
    word = "yes" if observed.holds else "no"
    return expect(observed.holds == declared, f"{word} ({observed.measured}), facts.{fact}={declared}")


def sees_future(part: NormPart) -> str | Fact:
    """An output depends on later time steps `never`, in `training` alone, or `always`."""
    norm = part.trained("sequence")
    x = part.input("sequence")
    in_training = moved_by_others(norm, x, True, FIRST_STEPS)
    in_evaluation = moved_by_others(norm, x, False, FIRST_STEPS)
    if in_evaluation > TOLERANCE:
        word = "always"
    elif in_training > TOLERANCE:
        word = "training"
    else:
        word = "never"
    figure = f"{word} (deviation {in_training:.1e} in training, {in_evaluation:.1e} in evaluation)"
    if part.facts is None:
        constructor = resolve("norm", part.tree["norm"]).maker
        if word != "never" and takes_place(constructor):  # train measures the others
            figure += ": declare it as facts.sees_future, or train cannot warn of it"
        return Fact(word != "never", figure)
    return expect(word == part.facts.sees_future, f"{figure}, facts.sees_future={part.facts.sees_future}")
