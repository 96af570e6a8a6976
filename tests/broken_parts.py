"""Placements, models and data that can be used, and break one part of their contract each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from bad_parts import Words
from mypkg.parts import Halved, Stripes, TwoLayers
from torch import Tensor, nn

from normbench.models import Transformer
from normbench.placements import Parallel, Pre
from normbench.placements.base import Residual
from normbench.types import Batch, Branch, Data, LanguageModeling, Split

Context = dict[str, Any]


# ---- placements


class Forgetful(Pre):
    """Scales the skip, and does not say so."""

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: Context) -> Tensor:
        return 0.5 * f.shortcut(x) + f(norms["in"](x), **context)


class Deaf(Pre):
    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: Context) -> Tensor:
        return f.shortcut(x) + f(norms["in"](x))


class Shortcutless(Pre):
    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: Context) -> Tensor:
        return x + f(norms["in"](x), **context)


class Idle(Pre):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.scale = nn.Parameter(torch.ones(()))


class Hidden(Residual):
    """Keeps its norms in a list."""

    slots = ("in",)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.hidden = [self.norms[role]["in"] for role in self.branches]  # type: ignore[index]
        self.norms = nn.ModuleDict()

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for norm, branch in zip(self.hidden, self.branches.values(), strict=True):
            x = branch.shortcut(x) + branch(norm(x), **context)  # type: ignore[operator]
        return x


class Doubled(Residual):
    """Two norms a branch, at one site."""

    slots = ("in", "out")

    def branch_norms(self, role: str, branch: Branch, norm: Any) -> nn.ModuleDict:
        widths = {"in": branch.in_features, "out": branch.out_features}
        made = {
            slot: norm(width, channel_dim=branch.channel_dim, site=self.site.at(role)) for slot, width in widths.items()
        }
        return nn.ModuleDict(made)

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: Context) -> Tensor:
        return f.shortcut(x) + norms["out"](f(norms["in"](x), **context))


class Cut(Pre):
    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return super().forward(x, **context)[..., :1]


class Drawing(Pre):
    """Skips a branch at random (stochastic depth), from the global random numbers."""

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: Context) -> Tensor:
        y = super().join(x, f, norms, context)
        return y + 0 * torch.rand(())


class Growing(Halved):
    """Its skip depends on how often it was called."""

    calls = 0

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: Context) -> Tensor:
        self.calls += 1
        return super().join(x, f, norms, context) + 1e-3 * (self.calls - 1) * f(x, **context)


class Negative(Pre):
    @property
    def branch_gain(self) -> float:
        return -1.0


class Strong(Parallel):
    """Nothing is wrong with it: both branches beside one skip that has a gain."""

    residual_gain = 2.0

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return super().forward(x, **context) + x


class Each(Strong):
    """Nor with it: a gain for each branch."""

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return super().forward(x, **context) + 2 * x


# ---- models


class OwnDraws(TwoLayers):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.shift = nn.Parameter(torch.tensor([random.gauss() for _ in range(12)]))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.shift.sum()


class Mixed(TwoLayers):
    """Nothing is wrong with it: layers and a parameter that initialisation does not know, drawn behind its norms."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.convolution = nn.Conv1d(3, 4, 3)
        self.attention = nn.MultiheadAttention(12, 2)
        self.shift = nn.Parameter(torch.randn(12))


class Restless(TwoLayers):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + torch.rand(())


class OtherRoles(TwoLayers):
    roles = ("layer", "mlp")


class Short(TwoLayers):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[:, :-1]


class Unmade(TwoLayers):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        raise RuntimeError("it cannot be made")


class Peeking(Transformer):
    kinds = frozenset({"language_model"})

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = super().forward(inputs)
        return logits + 0.1 * logits.mean(dim=1, keepdim=True)


class MeanOfAll(Transformer):
    """Reads padding as text."""

    kinds = frozenset({"text_classification"})

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(inputs)


# ---- data


class Seeding(Stripes):
    def train_batch(self, step: int) -> Batch:
        torch.manual_seed(step)
        return super().train_batch(step)


class SeededAtStart(Stripes):
    """One permutation, drawn when it is made, from what nobody has seeded."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.order = torch.randperm(64)

    def train_batch(self, step: int) -> Batch:
        return self.batch(self.order.roll(8 * step)[:8])


class Later(Stripes):
    """Wrong from the third batch on."""

    def train_batch(self, step: int) -> Batch:
        inputs, targets, _ = super().train_batch(step)
        return Batch(inputs, targets + (2 if step == 2 else 0))


class Wrapped(Stripes):
    """Fills the last batch from the start."""

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        for first in list(range(0, 64, 20))[:limit]:
            yield self.batch(torch.arange(first, first + 20) % 64)


class Sampled(Stripes):
    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        order = torch.randperm(64, generator=torch.Generator().manual_seed(self.seed))
        for indices in order.split(16)[:limit]:
            yield self.batch(indices)


class Unlimited(Stripes):
    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        yield from super().eval_batches(split)


class NamedBySeed(Stripes):
    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.fingerprint = f"stripes-{seed}"


class NoTest(Stripes):
    has_test = True

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        if split != "test":
            yield from super().eval_batches(split, limit)


class PaddedInFront(Words):
    def train_batch(self, step: int) -> Batch:
        return super().train_batch(step)._replace(mask=super().train_batch(step).mask.flip(1))  # type: ignore[union-attr]


class Overlapping(Data):
    """Two sentences over and over, in windows that do not follow each other."""

    kind = "language_model"
    fingerprint = "overlapping"
    steps_per_epoch = 1

    def __init__(self, *, seed: int) -> None:
        self.task = LanguageModeling(vocabulary_size=8, context=4)
        self.text = torch.arange(200) % 8

    def train_batch(self, step: int) -> Batch:
        windows = self.text[torch.arange(0, 90, 3)[:, None] + torch.arange(5)]
        return Batch(windows[:, :-1], windows[:, 1:])

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        yield self.train_batch(0)

    def describe(self) -> dict[str, Any]:
        return {}
