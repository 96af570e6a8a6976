"""The contract of a placement: how it is made, what it adds up, its norms, gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench import assembly
from normbench.checking.gradients import without_gradient
from normbench.checking.matrix import GROUNDS, STEPS, Ground, over_norms
from normbench.checking.norms import error
from normbench.checking.outcomes import Check, Outcome, failed, judged, not_applicable, passed
from normbench.checking.randomness import draws_of
from normbench.checking.samples import AXES, LAYOUTS, WIDTH, channel_dim, random_input
from normbench.config import Tree
from normbench.types import Branch, Placement, Site

LAYER, DEPTH, GROWN = 1, 3, WIDTH + 8
TOLERANCE = 1e-9


class Stub(Branch):
    """f(x) = a·shortcut(x), which notes what context reaches it.

    The shortcut widens the features by zeros, and takes every second pixel of an image, where the branch is to grow.
    """

    def __init__(self, layout: str, a: float = 1.0, grows: bool = False) -> None:
        super().__init__()
        self.channel_dim = channel_dim(layout)
        self.in_features, self.out_features = WIDTH, GROWN if grows else WIDTH
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))
        self.context: dict[str, Any] = {}

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        self.context = context
        return self.a * self.shortcut(x)

    def shortcut(self, x: Tensor) -> Tensor:
        if self.out_features == self.in_features:
            return x
        x = x[:, :, ::2, ::2] if self.channel_dim == 1 else x
        shape = list(x.shape)
        shape[self.channel_dim] = self.out_features - self.in_features
        return torch.cat((x, x.new_zeros(shape)), dim=self.channel_dim)


class Scale(nn.Module):
    """N(x) = γx: a norm whose every parameter is used."""

    def __init__(self, num_features: int, channel_dim: int) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        self.weight = nn.Parameter(torch.ones(num_features, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view([-1 if d == self.channel_dim % x.ndim else 1 for d in range(x.ndim)])


@dataclass
class NormsMade:
    """A norm factory that remembers what it made, and where."""

    norms: list[nn.Module] = field(default_factory=list)
    sites: list[Site | None] = field(default_factory=list)

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        self.norms.append(Scale(num_features, channel_dim))
        self.sites.append(site)
        return self.norms[-1]


@dataclass(frozen=True)
class PlacementPart:
    """A placement and its settings."""

    tree: Tree

    @property
    def min_branches(self) -> int:
        """How many branches a block must have."""
        return int(assembly.made_class(self.tree, "placement").min_branches)  # type: ignore[attr-defined]  # a Placement

    def make(self, *branches: Stub) -> tuple[Placement, NormsMade]:
        """A block in the middle of a small stack, and its norms."""
        norms, roles = NormsMade(), dict(zip(("attention", "mlp"), branches, strict=False))
        site = Site("block", LAYER, DEPTH, branches=DEPTH * len(branches))
        with assembly.seeded(0, "placement", site.name):
            made: Placement = assembly.factory(self.tree, "placement")(roles, norms, site)
        return made, norms

    def block(self, layout: str, a: float = 1.0) -> tuple[Placement, NormsMade]:
        """A block of as many branches as it takes at least."""
        return self.make(*(Stub(layout, a) for _ in range(self.min_branches)))


def contract(part: PlacementPart) -> Iterator[Check]:
    """The checks of what every placement must do."""
    yield Check("constructor", partial(construct, part), decisive=True)
    yield Check("norms have sites of their own", partial(sites_differ, part))
    yield Check("norms and branches are submodules", partial(modules_are_kept, part))
    yield Check("gains are positive numbers", partial(gains, part))
    for layout in LAYOUTS:
        yield Check(f"keeps {AXES[layout]}", partial(keeps_shape, part, layout))
    for layout in ("flat", "image"):
        yield Check(f"follows a branch that changes the shape, {layout}", partial(follows_branch, part, layout))
    yield Check("hands context to its branches", partial(context_arrives, part))
    yield Check("skip is residual_gain · x", partial(skip_is_declared, part))
    yield Check("gradient in every parameter", partial(parameters_learn, part))
    yield Check("made and run without random numbers", partial(draws_nothing, part))
    yield Check("deepcopy and state_dict", partial(copies_agree, part))
    for ground in GROUNDS:
        yield Check(f"trains: {ground.name}", partial(trains_on, part, ground))


def trains_on(part: PlacementPart, ground: Ground) -> Outcome:
    """Every norm that goes with it."""
    return over_norms({**ground.tree, "placement": part.tree["placement"]}, ground.data, STEPS)


def construct(part: PlacementPart) -> Outcome:
    """With one branch, as in a CNN, and with two, as in a Transformer."""
    counts = [count for count in (1, 2) if count >= part.min_branches]
    for count in counts:
        block, norms = part.make(*(Stub("sequence") for _ in range(count)))
    slots = ", ".join(block.slots) or "none"
    return passed(f"(branches, norm, site); {len(norms.norms)} norms around {counts[-1]} branches; slots: {slots}")


def sites_differ(part: PlacementPart) -> Outcome:
    """Probes, ledger and initialisation know a norm by its site."""
    _, norms = part.make(Stub("sequence"), Stub("sequence"))
    if None in norms.sites:
        return failed("a norm is made without site=: give it site.at(role, slot)")
    names = [site.name for site in norms.sites if site is not None]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        return failed(f"several at {', '.join(repeated)}: tell them apart by site.at(role, slot)")
    return passed(", ".join(names) or "it has none")


def modules_are_kept(part: PlacementPart) -> Outcome:
    """What is not a submodule is neither trained nor saved."""
    stubs = Stub("sequence"), Stub("sequence")
    block, norms = part.make(*stubs)
    inside = {id(module) for module in block.modules()}
    lost = [type(module).__name__ for module in (*stubs, *norms.norms) if id(module) not in inside]
    if lost:
        return failed(f"not among its modules: {', '.join(lost)}")
    inside = {id(module) for module in block.norms.modules()}
    outside = sum(id(norm) not in inside for norm in norms.norms)
    listed = list(block.branches.values()) == list(stubs) and not outside
    return judged(listed, "" if listed else "put all branches in self.branches, by role, and all norms in self.norms")


def gains(part: PlacementPart) -> Outcome:
    """What initialisation multiplies the branch's weights by, and what stands before x."""
    block, _ = part.block("sequence")
    found = {"residual_gain": float(block.residual_gain), "branch_gain": float(block.branch_gain)}
    good = all(0 < value < 1e6 for value in found.values())
    return judged(good, ", ".join(f"{name}={value:.4g}" for name, value in found.items()))


def run(block: Placement, layout: str, **context: Any) -> tuple[Tensor, Tensor]:
    """An input, and what the block makes of it."""
    x = random_input(layout)
    y: Tensor = block(x, **context)
    return x, y


def keeps_shape(part: PlacementPart, layout: str) -> Outcome:
    """Around branches that keep it."""
    x, y = run(part.block(layout)[0], layout)
    return judged(y.shape == x.shape and y.dtype == x.dtype, f"{list(x.shape)} to {list(y.shape)}")


def follows_branch(part: PlacementPart, layout: str) -> Outcome:
    """The last block of a stage has more features, and less space: x goes through the branch's `shortcut`."""
    if part.min_branches > 1:
        return not_applicable("blocks of several branches keep the shape")
    stub = Stub(layout, grows=True)
    block, _ = part.make(stub)
    x, y = run(block, layout)
    expected = stub.shortcut(x).shape
    right = y.shape == expected
    cure = "" if right else f", not {list(expected)}: add to branch.shortcut(x), and give norms the width they stand at"
    return judged(right, f"{list(x.shape)} to {list(y.shape)}{cure}")


def context_arrives(part: PlacementPart) -> Outcome:
    """Attention needs its mask and rotation."""
    stubs = Stub("sequence"), Stub("sequence")
    run(part.make(*stubs)[0], "sequence", mark=7)
    arrived = all(stub.context == {"mark": 7} for stub in stubs)
    return judged(arrived, "" if arrived else "hand **context on to each branch")


def skip_is_declared(part: PlacementPart) -> Outcome:
    """f(x) = 0 and N(x) = x leave residual_gain · x, or nothing without a residual.

    Where a block has several branches, its skip is around all of them, or around each: then the gain has their power.
    """
    block, _ = part.block("sequence", a=0.0)
    x, y = run(block, "sequence")
    gains = [float(block.residual_gain) ** power if block.residual else 0.0 for power in {1, part.min_branches}]
    found = float((y.detach() * x).sum() / x.square().sum())
    good = any(float((y.detach() - gain * x).abs().max()) < TOLERANCE for gain in gains)
    return judged(good, f"{found:.4g} · x, residual={block.residual}, residual_gain={float(block.residual_gain):.4g}")


def parameters_learn(part: PlacementPart) -> Outcome:
    """Its norms' parameters, its branches', and its own."""
    block, _ = part.block("sequence", a=0.5)
    run(block, "sequence")[1].pow(3).sum().backward()
    without = without_gradient(block)
    return failed(f"none in {', '.join(without)}") if without else passed(f"{len(list(block.parameters()))} parameters")


def draws_nothing(part: PlacementPart) -> Outcome:
    """Its draws would move those of dropout; where it is made torch's are seeded, and others cannot be repeated."""
    (block, _), in_making = draws_of(partial(part.block, "sequence"))
    _, in_running = draws_of(partial(run, block, "sequence"))
    draws = in_making or in_running
    return judged(not draws, f"draws from {draws}" if draws else "")


def copies_agree(part: PlacementPart) -> Outcome:
    """A deepcopy, and a new block with the state_dict, give the same."""
    block, _ = part.block("sequence", a=0.5)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.mul_(1.25)
    reloaded, _ = part.block("sequence", a=0.5)
    reloaded.load_state_dict(block.state_dict())
    _, y = run(block, "sequence")
    largest = max(error(run(one, "sequence")[1], y) for one in (copy.deepcopy(block), reloaded))
    return judged(largest == 0, "to the bit" if largest == 0 else f"largest difference {largest:.1e}")
