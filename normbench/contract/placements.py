"""The contract of a placement: how it is made, what it adds up, its norms, gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench import build
from normbench.contract import checks, trials
from normbench.contract.checks import Check, NotApplicable, expect
from normbench.types import Branch, Placement, Site

LAYER, DEPTH, GROWN = 1, 3, trials.WIDTH + 8
TOLERANCE = 1e-9


class Stub(Branch):
    """f(x) = a·shortcut(x), which notes what context reaches it.

    Where the branch is to grow, the shortcut repeats some features, and takes every second pixel of an image.
    """

    def __init__(self, layout: str = "sequence", a: float = 1.0, grows: bool = False) -> None:
        super().__init__()
        self.channel_dim = trials.channel_dim(layout)
        self.in_features, self.out_features = trials.WIDTH, GROWN if grows else trials.WIDTH
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))
        self.context: dict[str, Any] = {}

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        self.context = context
        return self.a * self.shortcut(x)

    def shortcut(self, x: Tensor) -> Tensor:
        if self.out_features == self.in_features:
            return x
        x = x[:, :, ::2, ::2] if x.ndim == 4 else x
        return torch.cat((x, x.narrow(self.channel_dim, 0, self.out_features - self.in_features)), self.channel_dim)


class PlacementPart(trials.ModulePart):
    """A placement, and the blocks that it makes."""

    section, partners = "placement", "norm"

    def make(self, *branches: Stub, norm: str = "none") -> tuple[Placement, dict[str, nn.Module]]:
        """Return a block in the middle of a small stack, and its norms by site."""
        site = Site("block", LAYER, DEPTH, branches=DEPTH * len(branches))
        norms = build.NormsBySite(build.factory({"norm": trials.sections("norm")[norm]}, "norm"), seed=0)
        with build.seeded(0, "placement", site.name):
            made: Placement = self.factory()(dict(zip(("attention", "mlp"), branches, strict=False)), norms, site)
        return made, norms.made

    def module(self, layout: str = "sequence", a: float = 0.5, norm: str = "rmsnorm") -> Placement:
        """Return a block of as many branches as it takes at least."""
        return self.make(*(Stub(layout, a) for _ in range(self.made_class.min_branches)), norm=norm)[0]

    def contract(self) -> dict[str, Check]:
        """Return the checks of a placement by name."""
        changes = "follows a branch that changes the shape"
        return {
            "constructor": is_made,
            **{f"keeps {axes}": partial(trials.keeps_shape, layout=layout) for layout, axes in trials.AXES.items()},
            **{f"{changes}, {layout}": partial(follows_branch, layout=layout) for layout in ("flat", "image")},
            "hands context to its branches": context_arrives,
            "skip is residual_gain · x": skip_is_declared,
            "gradient in every parameter": trials.parameters_learn,
            "made and run without random numbers": draws_nothing,
            "deepcopy and state_dict": trials.copies_agree,
            **{f"trains: {ground}": partial(trials.trains, ground=ground) for ground in trials.GROUNDS},
        }


def is_made(part: PlacementPart) -> str:
    """It can be made with one branch, as in a CNN, and with two; what is no submodule is neither trained nor saved."""
    for count in range(part.made_class.min_branches, 3):
        stubs = [Stub() for _ in range(count)]
        block, norms = part.make(*stubs)
        kept = list(block.branches.values()) == stubs and set(block.norms.modules()).issuperset(norms.values())
        expect(kept, "put all branches in self.branches, by role, and all norms in self.norms, each a ModuleDict")
    # NormsBySite counts those that have no site, and begins the names of others with the block's
    expect("norm" not in {name[:4] for name in norms}, "a norm is made without site=: give it site.at(role, slot)")
    gains = f"residual_gain={block.residual_gain:.4g}, branch_gain={block.branch_gain:.4g}"
    positive = 0 < block.residual_gain < torch.inf and 0 < block.branch_gain < torch.inf
    expect(positive, f"{gains}: make them positive numbers")
    return f"(branches, norm, site); norms at {', '.join(norms) or 'no site'}; {gains}"


def run(block: Placement, layout: str = "sequence", **context: Any) -> tuple[Tensor, Tensor]:
    """Return an input, and what the block makes of it."""
    x = trials.random_input(layout)
    y: Tensor = block(x, **context)
    return x, y


def follows_branch(part: PlacementPart, layout: str) -> str:
    """The last block of a stage has more features, and less space: x goes through the branch's `shortcut`."""
    if part.made_class.min_branches > 1:
        raise NotApplicable("blocks of several branches keep the shape")
    stub = Stub(layout, grows=True)
    x, y = run(part.make(stub)[0], layout)
    changed, right = f"{list(x.shape)} to {list(y.shape)}", stub.shortcut(x).shape
    cure = f"not {list(right)}: add to branch.shortcut(x), and give norms their own width"
    return expect(y.shape == right, changed if y.shape == right else f"{changed}, {cure}")


def context_arrives(part: PlacementPart) -> None:
    """Attention needs its mask and rotation."""
    stubs = [Stub(), Stub()]
    run(part.make(*stubs)[0], mark=7)
    expect(all(stub.context == {"mark": 7} for stub in stubs), "hand **context on to each branch")


def skip_is_declared(part: PlacementPart) -> str:
    """f(x) = 0 and N(x) = x leave residual_gain · x, or nothing without a residual.

    Where a block has several branches, its skip is around all of them, or around each: then the gain has their power.
    """
    block = part.module(a=0.0, norm="none")
    x, y = run(block)
    gains = [float(block.residual_gain) ** power if block.residual else 0.0 for power in (1, block.min_branches)]
    found = float((y.detach() * x).sum() / x.square().sum())
    good = any(float((y.detach() - gain * x).abs().max()) < TOLERANCE for gain in gains)
    return expect(good, f"{found:.4g} · x, residual={block.residual}, residual_gain={block.residual_gain:.4g}")


def draws_nothing(part: PlacementPart) -> None:
    """Its draws would move those of dropout; where it is made torch's are seeded, and others cannot be repeated."""
    drawn = checks.drawn_by(lambda: run(part.module()))
    expect(not drawn, f"draws from {drawn}")
