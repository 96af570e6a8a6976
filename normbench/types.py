"""The few words that every part of normbench shares: where a norm stands, what a branch, a placement and a task are."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

PADDING = -100  # of targets: F.cross_entropy leaves it out

Split = Literal["train", "val", "test"]
When = Literal["never", "training", "always"]


def stable_seed(*words: object) -> int:
    """Return a 63-bit seed made of words and numbers: the same in every process, on every machine."""
    digest = hashlib.blake2b("/".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Site:
    """Where a norm or a placement stands, so that nothing needs to match names.

    role: what the place serves: `attention`, `mlp`, `conv`, `linear`, `final`, or `block` for a whole block.
    layer: index of the block, from 0; None outside the blocks.
    depth: number of blocks in the stack.
    branches: number of residual branches in the whole stack (DeepNorm's constants follow from it).
    slot: which norm of the branch this is, where it has several (`in`, `out`, `inner`).
    causal: whether the model predicts each position from those before it, as a language model does.
    side, sides: of an encoder–decoder, `encoder` or `decoder`, and how many blocks each of the two has; `layer`,
    `depth` and `branches` count the blocks of both, the encoder's first.
    length: the most positions that x can have; None where that has no bound.
    """

    role: str
    layer: int | None = None
    depth: int = 1
    branches: int = 1
    slot: str = ""
    causal: bool = False
    side: Literal["", "encoder", "decoder"] = ""
    sides: tuple[int, int] = (0, 0)
    length: int | None = None

    def at(self, role: str | None = None, slot: str = "") -> Site:
        """Return the same block with another role or slot."""
        return replace(self, role=self.role if role is None else role, slot=slot)

    @property
    def name(self) -> str:
        """Return the name used in tags: `block03.mlp`, `block03.mlp.out`, `final`."""
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
    counts_padding: whether a real token's output depends on the padding of a batch, its own text's or another's.
    """

    statistics_over: str
    centers: bool
    crosses_samples: bool = False
    sees_future: When = "never"
    needs_positions: bool = False
    counts_padding: bool = False


class Norm(nn.Module):
    """A normalization: `forward(x, mask=None)` keeps the shape and dtype of x, whose features are along `channel_dim`.

    mask: bool, the shape of x without its features; False where x is padding, which no statistic counts.

    Subclasses take `(num_features, *, channel_dim=-1, site=None, ...)`, where `channel_dim` is -1 for
    `(batch, [time,] features)` and 1 for `(batch, channels, height, width)`.
    recorded: attributes that `settings` tells of. used_in: networks that are known for it.
    """

    facts: ClassVar[NormFacts]
    used_in: ClassVar[str] = ""
    recorded: ClassVar[tuple[str, ...]] = ()
    cast_order: ClassVar[str] = "statistics and affine in float32 or wider, cast last"

    channel_dim: int
    eps: float | None  # None: the formula has no epsilon
    eps_place: ClassVar[str] = "inside the root"
    implementation: str = "eager"  # which code runs: chosen once, at construction

    @classmethod
    def facts_for(cls, **options: Any) -> NormFacts:
        """Return the facts under these options (of most norms the same whatever the options)."""
        return cls.facts

    def settings(self) -> dict[str, Any]:
        """Return what was decided at construction and silently differs between publications (for the ledger)."""
        return {name: getattr(self, name) for name in self.recorded}


NormFactory = Callable[..., nn.Module]  # (num_features, *, channel_dim=-1, site=None) to the norm for one place


class Branch(nn.Module):
    """What a residual block computes beside its skip: attention, an MLP, convolutions.

    A branch knows which of its weights scale with the placement; the placement knows by how much.
    scaled, output: names of the modules with the weights that `scaled_weights` and `output_weights` yield.
    """

    in_features: int
    out_features: int
    channel_dim: int = -1
    scaled: ClassVar[tuple[str, ...]] = ()
    output: ClassVar[tuple[str, ...]] = ()

    def shortcut(self, x: Tensor) -> Tensor:
        """Return x in the shape of the branch's output: x itself, unless the branch changes the shape."""
        return x

    def scaled_weights(self) -> list[Tensor]:
        """Return the weights (or views of them) that DeepNorm's β scales."""
        return [getattr(self, name).weight for name in self.scaled]

    def output_weights(self) -> list[Tensor]:
        """Return the weights that write to the residual stream (GPT-2 scales them by 1/√branches)."""
        return [getattr(self, name).weight for name in self.output]


class Placement(nn.Module):
    """The residual arithmetic of one block: where its norms stand around its branches.

    `forward(x, **context)` returns the residual stream after the block, and hands `context` to the branches.
    slots: the norms around each branch; `in` reads the stream, `out` the branch's output or the sum.
    branch_gain: factor on the branch's scaled weights at initialisation (DeepNorm's β).
    residual_gain: factor on the skip (DeepNorm's α).
    """

    slots: ClassVar[tuple[str, ...]]
    needs_final_norm: ClassVar[bool] = False
    residual: ClassVar[bool] = True
    min_branches: ClassVar[int] = 1
    branch_gain: float = 1.0
    residual_gain: float = 1.0

    branches: nn.ModuleDict
    norms: nn.ModuleDict


PlacementFactory = Callable[[Mapping[str, Branch], NormFactory, Site], Placement]


class Model(nn.Module):
    """A stack of blocks between a stem and a head; it takes the two factories and imports no norm or placement.

    `forward(inputs)` returns logits: (batch, time, vocabulary) for a language model, (batch, classes) for a classifier.
    A classifier of texts takes `mask=None` too: (batch, time), False where a text is padded. A translator takes
    `forward(source, mask, previous, previous_mask)`: see `Batch`.
    kinds: the tasks it can do. roles: the branches that its blocks have. residual: whether its blocks have a skip.
    has_positions: whether what its norms see has time or space beside batch and features.
    recompute: whether its blocks compute again in the backward pass what they would keep for it; None: it cannot.
    """

    kinds: ClassVar[frozenset[str]]
    roles: ClassVar[tuple[str, ...]]
    residual: ClassVar[bool] = True
    has_positions: ClassVar[bool] = True
    recompute: bool | None = None

    blocks: nn.ModuleList

    def weights_drawn(self) -> None:
        """Set what follows from the weights as they start; called once they are drawn."""


class Task(ABC):
    """What a data set asks of a model: a class for each kind, which the data and the models name by its word `kind`.

    unit: what throughput counts. examples: what one sees when a person is shown some.
    causal: whether each position is predicted from those before it. may_pad: whether inputs may come with a mask.
    judges: whether it judges a model by more than its logits.
    """

    kind: ClassVar[str]
    unit: ClassVar[str]
    examples: ClassVar[str]
    causal: ClassVar[bool] = False
    may_pad: ClassVar[bool] = False
    judges: ClassVar[bool] = False
    input_dtype: ClassVar[torch.dtype] = torch.int64
    by_kind: ClassVar[dict[str, type[Task]]] = {}

    num_classes: int

    def __init_subclass__(cls) -> None:
        cls.by_kind[cls.kind] = cls

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Task:
        """Make the task that a run has noted."""
        made: Any = Task.by_kind[record["kind"]]  # a dataclass
        values = {field.name: record[field.name] for field in fields(made)}
        return made(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def record(self) -> dict[str, Any]:
        """Return what a run notes of its task."""
        return {"kind": self.kind, "num_classes": self.num_classes} | asdict(self)  # type: ignore[call-overload]  # likewise

    @classmethod
    def leaks(cls, norm: NormFacts) -> When:
        """Return when this norm's statistics leak the targets to the model."""
        return norm.sees_future if cls.causal else "never"

    def loss(self, logits: Float[Tensor, "..."], targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy in nats of logits (..., classes) against targets (...), padding left out."""
        return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction=reduction)

    def totals(self, logits: Float[Tensor, "..."], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the number of right predictions."""
        return self.loss(logits, targets, "sum"), (logits.argmax(dim=-1) == targets).sum()

    def judge(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> tuple[dict[str, float], str]:
        """Return metrics that take more than logits, and a page of examples in Markdown."""
        return {}, ""

    def metrics(self, loss: float, accuracy: float) -> dict[str, float]:
        """Return what is reported of the mean loss and the share of right predictions."""
        return {"loss": loss, "accuracy": accuracy}

    def shapes(self, batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes that inputs and targets of a batch of this size and length must have."""
        shape = (len(batch.inputs), batch.inputs.shape[-1])
        return shape, shape if self.causal else shape[:1]

    @abstractmethod
    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        """Return random inputs and targets."""


@dataclass(frozen=True)
class LanguageModeling(Task):
    """The next token at each position. context: the longest sequence, in tokens."""

    kind = "language_model"
    unit = "tokens"
    examples = "text"
    causal = True

    vocabulary_size: int
    context: int

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # read-only, as all of a frozen class
        return self.vocabulary_size

    def metrics(self, loss: float, accuracy: float) -> dict[str, float]:
        perplexity = math.exp(min(loss, 700.0)) if math.isfinite(loss) else math.inf
        return super().metrics(loss, accuracy) | {"perplexity": perplexity}

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(self.vocabulary_size, (size, self.context + 1), generator=generator)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


@dataclass(frozen=True)
class TextClassification(Task):
    """The class of a text, which may be padded. context: the longest text, in tokens."""

    kind = "text_classification"
    unit = "texts"
    examples = "texts"
    may_pad = True

    num_classes: int
    vocabulary_size: int
    context: int

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        labels = torch.randint(self.num_classes, (size,), generator=generator)
        tokens = torch.randint(self.vocabulary_size, (size, self.context + 1), generator=generator)[:, :-1]
        mask = torch.arange(self.context) < torch.arange(self.context, 0, -self.context // size)[:, None]
        return Batch(tokens * mask, labels, mask)


@dataclass(frozen=True)
class ImageClassification(Task):
    """The class of an image. image_shape: channels, height, width."""

    kind = "image_classification"
    unit = "images"
    examples = "images"
    input_dtype = torch.float32

    num_classes: int
    image_shape: tuple[int, int, int]

    def shapes(self, batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (len(batch.inputs), *self.image_shape), (len(batch.inputs),)

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        labels = torch.randint(self.num_classes, (size,), generator=generator)
        return Batch(torch.randn(size, *self.image_shape, generator=generator), labels)


TextTask = LanguageModeling | TextClassification


class Batch(NamedTuple):
    """One batch: token ids or images, and what is to be predicted.

    inputs: int64 (batch, time) or float32 (batch, channels, height, width).
    targets: int64 (batch, time) or (batch,); `PADDING` where a translation has ended.
    mask: bool (batch, time), False where a text is padded; None where nothing is.
    previous: int64 (batch, time), of translations the token before each target, 0 where they have ended.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    previous: Tensor | None = None

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """Return what a model is called with."""
        if self.mask is None:
            return (self.inputs,)
        return (self.inputs, self.mask, *(() if self.previous is None else (self.previous, self.targets != PADDING)))

    @property
    def predictions(self) -> int:
        """Return how many targets are no padding; waits for the device."""
        return self.targets.numel() if self.previous is None else int((self.targets != PADDING).sum())

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a function applied to each tensor."""
        return Batch(*(None if tensor is None else function(tensor) for tensor in self))  # type: ignore[arg-type]  # the first two are there


class Data(ABC):
    """A data set in memory, and its batches: a pure function of (seed, step), so that a run can go on anywhere."""

    kind: ClassVar[str]
    pads: ClassVar[bool] = False  # whether batches come with a mask
    task: Task
    fingerprint: str  # sha256 of the decoded content
    steps_per_epoch: int  # 0 of a stream, whose length is not known
    has_test: bool = False  # whether there is a split `test`, judged once at the end

    @abstractmethod
    def train_batch(self, step: int) -> Batch:
        """Return the batch of training step `step` (from 0)."""

    @abstractmethod
    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the whole split in order, or `limit` batches spread evenly over it: the same ones each time."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record: name, sizes, classes or vocabulary, scaling, fingerprint.

        constant: the `loss/val` (nats) and `accuracy/val` of the best predictor that always says the same, where known.
        """
