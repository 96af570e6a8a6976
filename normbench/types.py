"""The few words that every part of normbench shares: where a norm stands, what a branch, a placement and a task are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from jaxtyping import Float, Num
from torch import Tensor, nn

TaskKind = Literal["language_model", "text_classification", "image_classification"]
Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Site:
    """Where a norm or a placement stands, so that nothing needs to match names.

    role: what the place serves: `attention`, `mlp`, `conv`, `linear`, `final`, or `block` for a whole block.
    layer: index of the block, from 0; None outside the blocks.
    depth: number of blocks in the stack.
    branches: number of residual branches in the whole stack (DeepNorm's constants follow from it).
    slot: which norm of the branch this is, where it has several (`in`, `out`, `inner`).
    """

    role: str
    layer: int | None = None
    depth: int = 1
    branches: int = 1
    slot: str = ""

    def at(self, role: str | None = None, slot: str = "") -> Site:
        """The same block, another role or slot."""
        return replace(self, role=self.role if role is None else role, slot=slot)

    @property
    def name(self) -> str:
        """The name used in tags: `block03.mlp`, `block03.mlp.out`, `final`."""
        block = "" if self.layer is None else f"block{self.layer:02d}"
        role = "" if self.role == "block" else self.role
        return ".".join(part for part in (block, role, self.slot) if part)


@dataclass(frozen=True)
class NormFacts:
    """What a norm declares about itself, for checks and reports.

    statistics_over: the axes that share one statistic, in words.
    centers: whether the mean is subtracted.
    crosses_samples: whether, in training, a sample's output depends on other samples of the batch.
    sees_future: when the output at a time step can depend on later steps: `never`, `training` or `always`.
    needs_positions: whether statistics are taken over time or space alone, so that input without such axes has none.
    """

    statistics_over: str
    centers: bool
    crosses_samples: bool = False
    sees_future: Literal["never", "training", "always"] = "never"
    needs_positions: bool = False


class Norm(nn.Module, ABC):
    """A normalization: input shape = output shape, features along `channel_dim`.

    Subclasses take `(num_features, *, channel_dim=-1, site=None, ...)`, where `channel_dim` is -1 for
    `(batch, [time,] features)` and 1 for `(batch, channels, height, width)`.
    """

    facts: ClassVar[NormFacts]
    cast_order: ClassVar[str] = "statistics and affine in float32 or wider, cast last"

    num_features: int
    channel_dim: int
    site: Site | None
    eps: float | None  # None: the formula has no epsilon
    eps_place: ClassVar[str] = "inside the root"
    implementation: str = "eager"  # which code runs: chosen once, at construction

    @classmethod
    def facts_for(cls, **options: Any) -> NormFacts:
        """The facts under these options (most norms: the same whatever the options)."""
        return cls.facts

    def settings(self) -> dict[str, Any]:
        """What was decided at construction and silently differs between publications (for the ledger)."""
        return {}

    @abstractmethod
    def forward(self, x: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        """Normalize x, keeping its shape and dtype."""


class NormFactory(Protocol):
    """Makes the norm for one place."""

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module: ...


class Branch(nn.Module):
    """What a residual block computes beside its skip: attention, an MLP, convolutions.

    A branch knows which of its weights scale with the placement; the placement knows by how much.
    """

    in_features: int
    out_features: int
    channel_dim: int = -1

    def shortcut(self, x: Tensor) -> Tensor:
        """x in the shape of the branch's output: x itself, unless the branch changes the shape."""
        return x

    def scaled_weights(self) -> Iterator[Tensor]:
        """The weights (views of parameters) that DeepNorm's β scales."""
        return iter(())

    def output_weights(self) -> Iterator[Tensor]:
        """The weights that write to the residual stream (GPT-2 scales them by 1/√branches)."""
        return iter(())


class Placement(nn.Module, ABC):
    """The residual arithmetic of one block: where its norms stand around its branches.

    slots: the norms around each branch; `in` reads the stream, `out` the branch's output or the sum.
    """

    slots: ClassVar[tuple[str, ...]]
    needs_final_norm: ClassVar[bool] = False
    residual: ClassVar[bool] = True
    min_branches: ClassVar[int] = 1

    branches: nn.ModuleDict
    norms: nn.ModuleDict

    @property
    def branch_gain(self) -> float:
        """Factor on the branch's scaled weights at initialisation (DeepNorm's β)."""
        return 1.0

    @property
    def residual_gain(self) -> float:
        """Factor on the skip (DeepNorm's α)."""
        return 1.0

    @abstractmethod
    def forward(self, x: Tensor, **context: Any) -> Tensor:
        """The residual stream after the block; `context` goes to the branches."""


PlacementFactory = Callable[[Mapping[str, Branch], NormFactory, Site], Placement]


class Model(nn.Module, ABC):
    """A stack of blocks between a stem and a head; it takes the two factories and imports no norm or placement.

    kinds: the tasks it can do. roles: the branches of each of its blocks. residual: whether its blocks have a skip.
    has_positions: whether what its norms see has time or space beside batch and features.
    """

    kinds: ClassVar[frozenset[TaskKind]]
    roles: ClassVar[tuple[str, ...]]
    residual: ClassVar[bool] = True
    has_positions: ClassVar[bool] = True

    blocks: nn.ModuleList

    @abstractmethod
    def forward(self, inputs: Tensor) -> Float[Tensor, "..."]:
        """Logits: (batch, time, vocabulary) for a language model, (batch, classes) for a classifier.

        A classifier of texts takes `mask=None` too: (batch, time), False where a text is padded.
        """


@dataclass(frozen=True)
class Task:
    """What a data set asks of a model.

    num_classes: number of labels, or the vocabulary's size for a language model.
    vocabulary_size: number of different tokens (text).
    context: longest sequence in tokens (text).
    image_shape: channels, height, width (images).
    """

    kind: TaskKind
    num_classes: int
    vocabulary_size: int | None = None
    context: int | None = None
    image_shape: tuple[int, int, int] | None = None

    @property
    def causal(self) -> bool:
        return self.kind == "language_model"

    @property
    def unit(self) -> str:
        """What throughput counts."""
        return {"language_model": "tokens", "text_classification": "texts"}.get(self.kind, "images")


class Batch(NamedTuple):
    """One batch: token ids or images, and what is to be predicted.

    inputs: int64 (batch, time) or float32 (batch, channels, height, width).
    targets: int64 (batch, time) or (batch,).
    mask: bool (batch, time), False where a text is padded; None where nothing is.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What a model is called with."""
        return (self.inputs,) if self.mask is None else (self.inputs, self.mask)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a function applied to each tensor."""
        return Batch(*(None if tensor is None else function(tensor) for tensor in self))  # type: ignore[arg-type]  # the mask alone is None


class Data(ABC):
    """A data set in memory, and its batches: a pure function of (seed, step), so that a run can go on anywhere."""

    kind: ClassVar[TaskKind]
    pads: ClassVar[bool] = False  # whether batches come with a mask
    task: Task
    fingerprint: str  # sha256 of the decoded content
    steps_per_epoch: int
    has_test: bool = False  # whether there is a split `test`, judged once at the end

    @abstractmethod
    def train_batch(self, step: int) -> Batch:
        """The batch of training step `step` (from 0)."""

    @abstractmethod
    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """The whole split in order, or `limit` batches spread evenly over it: the same ones each time."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the data are, for the record: name, sizes, classes or vocabulary, scaling, fingerprint."""
