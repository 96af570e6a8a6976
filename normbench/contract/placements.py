"""The contract of a placement: how it is made, what it adds up, its norms, gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench import build
from normbench.config.recipe import resolve
from normbench.contract import checks, trials
from normbench.contract.checks import Check, NotApplicable, expect
from normbench.training.devices import seed_draws
from normbench.types import Branch, Placement, Site

LAYER = 1  # of a stack of this depth
DEPTH = 3
GROWN = trials.WIDTH + 8  # features behind a branch that grows
TOLERANCE = 1e-9  # in float64


class Stub(Branch):
    """f(x) = a·shortcut(x), which notes what context reaches it.

    Where the branch is to grow, the shortcut repeats some features, and takes every second pixel of an image.
    """

    def __init__(self, layout: str = "sequence", a: float = 1.0, grows: bool = False) -> None:
        super().__init__()
        self.channel_dim = trials.channel_dim(layout)
        self.in_features = trials.WIDTH
        self.out_features = GROWN if grows else trials.WIDTH
        self.stride = 2 if grows and layout == "image" else 1
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))
        self.context: dict[str, Any] = {}

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        self.context = context
        return self.a * self.shortcut(x)

    def shortcut(self, x: Tensor) -> Tensor:
        if self.out_features == self.in_features:
            return x
        if x.ndim == 4:
            x = x[:, :, ::2, ::2]
        repeated = x.narrow(self.channel_dim, 0, self.out_features - self.in_features)
        return torch.cat((x, repeated), self.channel_dim)


class PlacementPart(trials.ModulePart):
    """A placement, and the blocks that it makes."""

    section = "placement"
    partners = "norm"

    def make(self, *branches: Stub, norm: str = "none", layer: int = LAYER) -> tuple[Placement, dict[str, nn.Module]]:
        """Return a block of a small stack, by default the one in the middle, and its norms by site."""
        site = Site("block", layer, DEPTH, branches=DEPTH * len(branches))
        section = trials.sections("norm")[norm]
        norms = build.NormsBySite(build.factory(resolve("norm", section)), seed=0)
        by_role = dict(zip(("attention", "mlp"), branches, strict=False))
        with seed_draws(0, "placement", site.name):
            made: Placement = self.factory()(by_role, norms, site)
        return made, norms.made

    def module(self, layout: str = "sequence", a: float = 0.5, norm: str = "rmsnorm") -> Placement:
        """Return a block of as many branches as it takes at least."""
        branches = [Stub(layout, a) for _ in range(self.made_class.min_branches)]
        block, _ = self.make(*branches, norm=norm)
        return block

    def input(self, layout: str, seed: int = 0) -> Tensor:
        """Return a random input of a block, in float64: of several streams all that start with it."""
        return self.module(layout).double().enter(super().input(layout, seed))

    def contract(self) -> dict[str, Check]:
        """Return the checks of a placement by name."""
        changes = "follows a branch that changes the shape"
        return {
            "constructor": is_made,
            **trials.shape_checks(),
            f"{changes}, flat": partial(follows_branch, layout="flat"),
            f"{changes}, image": partial(follows_branch, layout="image"),
            "hands context to its branches": context_arrives,
            "skip is residual_gain · x": skip_is_declared,
            "streams enter and leave": streams_leave,
            "gradient in every parameter": trials.parameters_learn,
            "made and run without random numbers": draws_nothing,
            "deepcopy and state_dict": trials.copies_agree,
            **trials.training_checks(),
        }


def is_made(part: PlacementPart) -> str:
    """It can be made with one branch, as in a CNN, and with two; only submodules are trained and saved."""
    for count in range(part.made_class.min_branches, 3):
        stubs = [Stub() for _ in range(count)]
        block, norms = part.make(*stubs)
        has_branches = list(block.branches.values()) == stubs
        has_norms = set(norms.values()) <= set(block.norms.modules())
        cure = "put all branches in self.branches, by role, and all norms in self.norms, each a ModuleDict"
        expect(has_branches and has_norms, cure)
    # NormsBySite counts those that have no site, and begins the names of others with the block's
    without_site = [name for name in norms if name.startswith("norm")]
    expect(not without_site, "a norm is made without site=: give it site.at(role, slot)")
    gains = f"residual_gain={block.residual_gain:.4g}, branch_gain={block.branch_gain:.4g}"
    are_positive = 0 < block.residual_gain < torch.inf and 0 < block.branch_gain < torch.inf
    expect(are_positive, f"{gains}: make them positive numbers")
    return f"(branches, norm, site); norms at {', '.join(norms) or 'no site'}; {gains}"


def run(block: Placement, layout: str = "sequence", **context: Any) -> tuple[Tensor, Tensor]:
    """Return an input, in which all streams are alike, and what the block makes of it."""
    x = block.enter(trials.random_input(layout))
    y: Tensor = block(x, **context)
    return x, y


def follows_branch(part: PlacementPart, layout: str) -> str:
    """The last block of a stage has more features, and less space: x goes through the branch's `shortcut`."""
    if part.made_class.min_branches > 1:
        raise NotApplicable("blocks of several branches keep the shape")
    stub = Stub(layout, grows=True)
    block, _ = part.make(stub)
    x, y = run(block, layout)
    figure = f"{list(x.shape)} to {list(y.shape)}"
    right = block.enter(stub.shortcut(trials.random_input(layout))).shape
    if y.shape != right:
        figure += f", not {list(right)}: add to branch.shortcut(x), and give norms their own width"
    return expect(y.shape == right, figure)


def context_arrives(part: PlacementPart) -> None:
    """Attention needs its mask and rotation."""
    stubs = [Stub(), Stub()]
    block, _ = part.make(*stubs)
    run(block, mark=7)
    expect(all(stub.context == {"mark": 7} for stub in stubs), "hand **context on to each branch")


@contextmanager
def made_in_float64() -> Iterator[None]:
    """Let parameters that are made without a dtype be in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def skip_is_declared(part: PlacementPart) -> str:
    """f(x) = 0 and N(x) = x leave residual_gain · x, or nothing without a residual.

    Where a block has several branches, its skip is around all of them, or around each: then the gain has their power.
    Of several streams it is that of the first, where all others are 0, or that of all, where they are alike and mix.
    """
    with made_in_float64():  # a learned gain would be rounded
        block = part.module(a=0.0, norm="none")
    alike = block.enter(trials.random_input("sequence"))
    inputs = [alike]
    if block.streams > 1:
        first_alone = alike.clone()
        first_alone[1:] = 0
        inputs = [first_alone, alike]
    gain = float(block.residual_gain) if block.residual else 0.0
    deviations = []
    factors = []
    for x in inputs:
        y = block(x).detach()
        around_all = float((y - gain * x).abs().max())
        around_each = float((y - gain**block.min_branches * x).abs().max())
        deviations.append(min(around_all, around_each))
        factors.append(float((y * x).sum() / x.square().sum()))
    least = min(deviations)
    factor = factors[deviations.index(least)]
    figure = f"{factor:.4g} · x, residual={block.residual}, residual_gain={block.residual_gain:.4g}"
    return expect(least < TOLERANCE, figure)


def streams_leave(part: PlacementPart) -> str:
    """The last block of a stack gives what is read of its streams the shape of the x with which they entered."""
    stubs = [Stub() for _ in range(part.made_class.min_branches)]
    block, _ = part.make(*stubs, norm="rmsnorm", layer=DEPTH - 1)
    x = trials.random_input("sequence")
    entered = block.enter(x)
    stacked = (block.streams, *x.shape)
    right = x.shape if block.streams == 1 else torch.Size(stacked)
    expect(entered.shape == right, f"enter gives {list(entered.shape)} of {list(x.shape)}, not {list(right)}")
    left = block.double().leave(block(entered))
    return expect(left.shape == x.shape, f"{list(entered.shape)} to {list(left.shape)}")


def draws_nothing(part: PlacementPart) -> None:
    """Its draws would move those of dropout; where it is made torch's are seeded, and others cannot be repeated."""
    drawn = checks.drawn_by(lambda: run(part.module()))
    expect(not drawn, f"draws from {drawn}")
