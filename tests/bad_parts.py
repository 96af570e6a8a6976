"""Parts of a user's own that break their contracts, each in one way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from mypkg.parts import Halved, Stripes, TwoLayers
from torch import Tensor, nn

from normbench.placements import Pre
from normbench.types import (
    Batch,
    Data,
    ImageClassification,
    LanguageModeling,
    Model,
    Norm,
    NormFacts,
    Placement,
    Split,
    TextClassification,
)


class Same(nn.Module):
    """The least that a norm is."""

    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__()
        self.channel_dim = channel_dim

    def forward(self, x: Tensor) -> Tensor:
        return x


# ---- norms


class Silent(nn.Module):
    pass


class Half(Same):
    def forward(self, x: Tensor) -> Tensor:
        return x.half()


class Unfinished(Norm):
    eps = None


class NoEps(Norm):
    facts = NormFacts("none", centers=False)

    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class BadFacts(NoEps):
    facts: ClassVar[Any] = {"centers": False}


def no_module(num_features: int, *, channel_dim: int = -1, site: Any = None) -> nn.Module:
    return 3  # type: ignore[return-value]


# ---- placements


class NoSlots(Placement):
    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return x


class OneWord(Halved):
    slots = "in"  # type: ignore[assignment]


class NoNorms(Placement):
    slots = ()

    def __init__(self, branches: Any, norm: Any, site: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return x


class TwiceThere(Pre):
    def __init__(self, branches: Any, norm: Any, site: Any) -> None:
        super().__init__(branches, norm, site)
        self.again = self.make_norms(branches, norm)


# ---- models


class NoKinds(Model):
    roles = ("layer",)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class NoRoles(NoKinds):
    kinds = frozenset({"image_classification"})
    roles = ()


class UnknownKind(TwoLayers):
    kinds = frozenset({"images"})  # type: ignore[arg-type]


class NoBlocks(TwoLayers):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        blocks = list(self.blocks)
        del self.blocks
        self.blocks = blocks  # type: ignore[assignment]


class NoPlacement(TwoLayers):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.blocks = nn.ModuleList([nn.Linear(12, 12)])


class NoBranch(TwoLayers):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.blocks[1].branches["layer"] = nn.Linear(12, 12)  # type: ignore[index, operator]


# ---- data


class NoKind(Data):
    def train_batch(self, step: int) -> Batch:
        raise NotImplementedError

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {}


class NoDescribe(Data):
    kind = "image_classification"


class Changed(Stripes):
    """Sets some attributes otherwise: those that the class statement names."""

    change: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **change: Any) -> None:
        cls.change = change

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        for name, value in self.change.items():
            setattr(self, name, value)


class NoTask(Changed, task=None):
    pass


class OtherKind(Changed, task=LanguageModeling(2, context=8)):
    pass


class OneClass(Changed, task=ImageClassification(1, image_shape=(1, 8, 8))):
    pass


class NoShape(Changed, task=ImageClassification(2, image_shape=(0, 8, 8))):
    pass


class NoContext(Changed, task=LanguageModeling(vocabulary_size=2, context=0)):
    kind = "language_model"


class NoFingerprint(Changed, fingerprint=""):
    pass


class NoSteps(Changed, steps_per_epoch=7.5):
    pass


class NoRecord(Stripes):
    def describe(self) -> dict[str, Any]:
        return {"mean": torch.zeros(3)}


class Impure(Stripes):
    def train_batch(self, step: int) -> Batch:
        return self.batch(torch.randint(64, (8,)))


class Growing(Stripes):
    """Not random, and yet another batch each time."""

    def train_batch(self, step: int) -> Batch:
        self.images *= 1.01
        return super().train_batch(step)


class Tuples(Stripes):
    def train_batch(self, step: int) -> Batch:
        return tuple(super().train_batch(step))  # type: ignore[return-value]


class FromOne(Stripes):
    def batch(self, indices: Tensor) -> Batch:
        inputs, targets, _ = super().batch(indices)
        return Batch(inputs, targets + 1)


class JudgedFromOne(Stripes):
    """Only in evaluation."""

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        for inputs, targets, _ in super().eval_batches(split, limit):
            yield Batch(inputs, targets - 1)


class OneHot(Stripes):
    def batch(self, indices: Tensor) -> Batch:
        inputs, targets, _ = super().batch(indices)
        return Batch(inputs, nn.functional.one_hot(targets, 2))


class Doubles(Stripes):
    def batch(self, indices: Tensor) -> Batch:
        inputs, targets, _ = super().batch(indices)
        return Batch(inputs.double(), targets)


class Infinite(Stripes):
    def batch(self, indices: Tensor) -> Batch:
        inputs, targets, _ = super().batch(indices)
        return Batch(inputs / 0, targets)


class NothingToJudge(Stripes):
    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        return iter(())


class Words(Data):
    """Texts of four words in two classes, three of them padded."""

    kind = "text_classification"
    pads = True
    fingerprint = "words"
    steps_per_epoch = 1

    def __init__(self, *, seed: int) -> None:
        self.task = TextClassification(2, vocabulary_size=5, context=4)

    def train_batch(self, step: int) -> Batch:
        tokens = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 0], [1, 2, 0, 0], [3, 0, 0, 0]])
        return Batch(tokens, torch.tensor([0, 1, 0, 1]), torch.arange(4) < torch.tensor([4, 3, 2, 1])[:, None])

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        yield self.train_batch(0)

    def describe(self) -> dict[str, Any]:
        return {"name": "words"}


class NoMask(Words):
    def train_batch(self, step: int) -> Batch:
        return Batch(*super().train_batch(step)[:2])


class AllPadding(Words):
    def train_batch(self, step: int) -> Batch:
        tokens, labels, mask = super().train_batch(step)
        assert mask is not None
        return Batch(tokens, labels, mask & (labels == 0)[:, None])


class UnknownToken(Words):
    def train_batch(self, step: int) -> Batch:
        tokens, labels, mask = super().train_batch(step)
        return Batch(tokens + 1, labels, mask)


class TooLong(Words):
    def __init__(self, *, seed: int) -> None:
        self.task = TextClassification(2, vocabulary_size=5, context=3)


class PaddedText(Words):
    """A language model's, with a mask."""

    kind = "language_model"

    def __init__(self, *, seed: int) -> None:
        self.task = LanguageModeling(vocabulary_size=5, context=4)
