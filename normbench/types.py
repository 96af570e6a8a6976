"""The few words that every part of normbench shares: where a norm stands, what a branch, a placement and a task are."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

PADDING = -100  # of targets: F.cross_entropy leaves it out
KEEPS_NORM = "keeps_norm"  # in a group of parameters: the optimizer keeps the norm of each of their matrices

Split = Literal["train", "val", "test"]
Side = Literal["", "encoder", "decoder"]
When = Literal["never", "training", "always"]


def stable_seed(*words: object) -> int:
    """Return a 63-bit seed made of words and numbers: the same in every process, on every machine."""
    digest = hashlib.blake2b("/".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Site:
    """Where a norm or a placement stands, so that nothing needs to match names.

    Attributes:
        role: what the place serves: `attention`, `mlp`, `conv`, `linear`, `final`, or `block` for a whole block.
        layer: index of the block, from 0; None outside the blocks.
        depth: number of blocks in the stack.
        branches: number of residual branches in the whole stack (DeepNorm's constants follow from it).
        slot: which norm of the branch this is, where it has several (`in`, `out`, `inner`; see `optional_norm`).
        causal: whether the model predicts each position from those before it, as a language model does.
        side, sides: of an encoder–decoder, `encoder` or `decoder`, and how many blocks each of the two has; `layer`,
            `depth` and `branches` count the blocks of both, the encoder's first.
        length: the most positions that x can have; None where that has no bound.
        width: features of the stream; None where that is not said.
        sole: whether it is the only norm of its branch that the placement makes, whose name does without the slot.
        since_change: how many blocks stand before it, counted from the last that changes the stream's shape, with that
            one; None where the model does not count them.
        number: of norms with the same words, which one, from 0, in the order in which they run.
        also: what else it serves, as a norm that two branches side by side read does; its name does without.
    """

    role: str
    layer: int | None = None
    depth: int = 1
    branches: int = 1
    slot: str = ""
    causal: bool = False
    side: Side = ""
    sides: tuple[int, int] = (0, 0)
    length: int | None = None
    width: int | None = None
    sole: bool = False
    since_change: int | None = None
    number: int = 0
    also: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Return all that it serves."""
        return (self.role, *self.also)

    @property
    def stack_depth(self) -> int:
        """Return the number of blocks in its stack; each side of an encoder–decoder is one."""
        encoder, decoder = self.sides
        if self.side == "encoder":
            return encoder
        if self.side == "decoder":
            return decoder
        return self.depth

    def at(self, role: str | None = None, slot: str = "", sole: bool = False) -> Site:
        """Return a place in the same block, with this slot, and by default with its own role."""
        if role is None:
            role = self.role
        return replace(self, role=role, slot=slot, sole=sole, number=0, also=())

    @property
    def name(self) -> str:
        """Return the name used in tags: `block03.mlp`, `block03.mlp.out`, `final`; the second `block03.mlp.2`."""
        block = "" if self.layer is None else f"block{self.layer:02d}"
        role = "" if self.role == "block" else self.role
        slot = "" if self.sole else self.slot
        number = str(self.number + 1) if self.number else ""
        return ".".join(part for part in (block, role, slot, number) if part)


@dataclass(frozen=True)
class NormFacts:
    """What a norm declares about itself, for checks and reports.

    Attributes:
        statistics_over: the axes that share one statistic, in words.
        centers: whether the mean is subtracted.
        crosses_samples: whether, in training, a sample's output depends on other samples of the batch.
        sees_future: when the output at a time step can depend on later steps: `never`, `training` or `always`.
        needs_positions: whether statistics are taken over time or space alone: input without such axes has none.
        counts_padding: whether a real token's output depends on the padding of a batch, its own text's or another's.
        once_a_pass: whether its state has to move once a batch, as where the backward pass moves it, so that it can
            stand in no recurrent cell, which calls it at each time step.
        of_host: whether it stands for the norm that a model of another library has by itself.
    """

    statistics_over: str
    centers: bool
    crosses_samples: bool = False
    sees_future: When = "never"
    needs_positions: bool = False
    counts_padding: bool = False
    once_a_pass: bool = False
    of_host: bool = False


def worst_of(facts: Sequence[NormFacts]) -> NormFacts:
    """Return what holds of several norms of one model together: of each fact what one of them does at worst."""
    severity: tuple[When, ...] = ("never", "training", "always")
    return NormFacts(
        statistics_over="; ".join(dict.fromkeys(each.statistics_over for each in facts)),
        centers=any(each.centers for each in facts),
        crosses_samples=any(each.crosses_samples for each in facts),
        sees_future=max((each.sees_future for each in facts), key=severity.index),
        needs_positions=any(each.needs_positions for each in facts),
        counts_padding=any(each.counts_padding for each in facts),
        once_a_pass=any(each.once_a_pass for each in facts),
        of_host=any(each.of_host for each in facts),
    )


class Treatment(NamedTuple):
    """How the optimizer treats a parameter, where the part that it is of says so.

    Attributes:
        decay: whether it decays as matrices do; None: as any other of its shape.
        lr: factor on the learning rate.
    """

    decay: bool | None = None
    lr: float = 1.0


Treated = Mapping[str, Treatment]  # by the name of an attribute: a parameter, or a module with all that it has
NOT_TREATED: Treated = MappingProxyType({})


class Norm(nn.Module):
    """A normalization: `forward(x, mask=None)` keeps the shape and dtype of x, whose features are along `channel_dim`.

    The mask is bool and has the shape of x without its features; False where x is padding, which no statistic counts.
    Subclasses take `(num_features, *, channel_dim=-1, site=None, ...)`, where `channel_dim` is -1 for
    `(batch, [time,] features)` and 1 for `(batch, channels, height, width)`.

    Attributes:
        recorded: attributes that `settings` returns.
        used_in: networks that are known for it.
        acts: whether it contains an activation, so that CNNs and MLPs leave out their own beside it.
        exact_gradient: whether the backward pass is the formula's gradient; not where its authors, or a setting, take a
            part of the formula for a constant there.
        later: settings with which it treats all batches as it treats the later ones of training; empty where it treats
            all alike.
        treated: the parameters that the optimizer treats otherwise than a norm's.
        is_identity: whether it leaves its input as it is, so that a model may do without calling it.
        shared: whether it has its parameters together with the other norms of the same section or rule in its block.
        stands_at: its site, which `normbench.build` notes on every norm of a model, those of other libraries too.
    """

    facts: ClassVar[NormFacts]
    used_in: ClassVar[str] = ""
    recorded: ClassVar[tuple[str, ...]] = ()
    cast_order: ClassVar[str] = "statistics and affine in float32 or wider, cast last"
    acts: ClassVar[bool] = False
    exact_gradient: bool = True
    later: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    treated: ClassVar[Treated] = NOT_TREATED
    is_identity: ClassVar[bool] = False

    shared: bool = False
    channel_dim: int
    stands_at: Site | None = None
    eps: float | None  # None: the formula has no epsilon
    eps_place: ClassVar[str] = "inside the root"
    implementation: str = "eager"  # which code runs: chosen once, at construction

    @classmethod
    def facts_for(cls, **options: Any) -> NormFacts:
        """Return the facts under these options (of most norms the same whatever the options)."""
        return cls.facts

    def is_another(self, batches: int, samples: int) -> str:
        """Say why it is another norm throughout a run; empty where it is not.

        Args:
            batches: of the run.
            samples: in each of them.
        """
        return ""

    def settings(self) -> dict[str, Any]:
        """Return what was decided at construction and silently differs between publications (for the ledger)."""
        return {name: getattr(self, name) for name in self.recorded}


# (num_features, *, channel_dim=-1, site=None) to the norm for one place. It may have a method `optional` of the same
# arguments, for the places of `optional_norm`, which gives a norm or None.
NormFactory = Callable[..., nn.Module]


def optional_norm(norm: NormFactory, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
    """Return the norm for a place that has none unless it is asked for; None where the factory does not ask.

    Such places are in attention (slots `q`, `k`, `v` of each head; `q_all`, `k_all` of all heads together; `context`,
    what is read, before the output projection, and before that `heads`, the same with one feature for each head), in an
    MLP (`activation`, before that; `hidden`, before its last linear map), after a learned shortcut (`shortcut`), after
    the stem (role `stem`) and after the head (role `logits`).
    """
    optional = getattr(norm, "optional", None)
    if optional is None:
        return None
    found: nn.Module | None = optional(num_features, channel_dim=channel_dim, site=site)
    return found


def asks_for(norm: NormFactory, slots: Collection[str]) -> bool:
    """Tell whether a factory may give a norm for places of `optional_norm` that have one of some slots."""
    names_any_of = getattr(norm, "names_any_of", None)
    return names_any_of is not None and names_any_of(slots)


class Branch(nn.Module):
    """What a residual block computes beside its skip: attention, an MLP, convolutions.

    A branch knows which of its weights scale with the placement; the placement knows by how much.

    Attributes:
        stride: by how much it shrinks height and width.
        scaled, output: names of the modules with the weights that `scaled_weights` and `output_weights` return.
    """

    in_features: int
    out_features: int
    channel_dim: int = -1
    stride: int = 1
    scaled: ClassVar[tuple[str, ...]] = ()
    output: ClassVar[tuple[str, ...]] = ()

    @property
    def changes_shape(self) -> bool:
        """Tell whether the stream has another shape after it."""
        return self.in_features != self.out_features or self.stride > 1

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

    `forward(x, **context)` returns the residual stream after the block, and hands `context` to the branches. Where a
    placement has several streams, they are stacked on a new first axis of x, so that x is one tensor all the same; a
    model calls `enter` of the first block of a stack in front of it, and `leave` of the last after it.

    Attributes:
        slots: the norms around each branch; `in` reads the stream, `out` the branch's output or the sum.
        streams: how many there are. All blocks of a stack have placements with the same ones.
        branch_gain: factor at initialisation on the weights that the branch names as scaled (DeepNorm's β).
        gains_all: whether that factor is on all linear maps and convolutions of the branch instead (B2T's).
        residual_gain: factor on the skip (DeepNorm's α), at the start where it is learned.
        treated: parameters of its own that the optimizer treats otherwise than others.
        stack_settings: attributes that say what the streams are, so that all blocks of a stack have the same.
        of_host: whether it stands for the blocks that a model of another library has by itself.
    """

    slots: ClassVar[tuple[str, ...]]
    needs_final_norm: ClassVar[bool] = False
    residual: ClassVar[bool] = True
    min_branches: ClassVar[int] = 1
    treated: ClassVar[Treated] = NOT_TREATED
    stack_settings: ClassVar[tuple[str, ...]] = ()
    of_host: ClassVar[bool] = False
    streams: int = 1
    branch_gain: float = 1.0
    gains_all: bool = False
    residual_gain: float = 1.0

    branches: nn.ModuleDict
    norms: nn.ModuleDict

    def enter(self, x: Tensor) -> Tensor:
        """Return the streams that start with x, as the first block of a stack takes them; of one stream x itself."""
        return x

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        """Return what is read of the streams x after the last block of a stack, in front of the final norm."""
        return x

    def sketch(self, x: Any) -> Any:
        """Return how a drawing x passes through the block: as `forward` does, if that is something one can draw."""
        return self(x)


PlacementFactory = Callable[[Mapping[str, Branch], NormFactory, Site], Placement]


class InnerAttention(nn.Module):
    """What attention makes of queries, keys and values, split by heads: `forward(q, k, v, mask)`.

    It is a module so that probes and studies can look at what it is called with. The mask is None, or bool
    (batch, keys), False at keys that no query may look at.
    """

    def logits(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Float[Tensor, "batch heads queries keys"]:
        """Return the logits whose softmax weighs the values, −∞ where a query may not look."""
        raise NotImplementedError  # each kind of attention has its own, and `forward` to go with it

    def raw_logits(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Float[Tensor, "batch heads queries keys"]:
        """Return the same before a cap bounds them, where one does."""
        return self.logits(q, k, mask)


@dataclass(frozen=True)
class Block:
    """One block of a model: what probes, studies and checks know of it.

    Attributes:
        module: what is called with the residual stream, and returns it.
        layer: its place in the running order, from 0.
        side: of an encoder–decoder, `encoder` or `decoder`.
        branches: by role.
        norms: by the name of their site, those inside branches too.
        channel_dim: the axis of features of the stream.
    """

    module: nn.Module
    layer: int
    side: str
    branches: Mapping[str, nn.Module]
    norms: Mapping[str, nn.Module]
    channel_dim: int

    @property
    def name(self) -> str:
        """Return the name used in tags, as a site's: `block03`."""
        return Site("block", self.layer).name

    @property
    def streams(self) -> int:
        """Return how many streams pass through it."""
        return getattr(self.module, "streams", 1)

    def join_streams(self, passing: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Return the stream at this block, which of several streams has the features of all, one after the other.

        So the vector of a position is theirs together: its mean square is the mean of theirs.

        Args:
            passing: what enters or leaves the block; of another library's it may be a tuple, in which the stream is
                first.
        """
        x = passing[0] if isinstance(passing, tuple) else passing
        if self.streams == 1:
            return x
        return torch.cat(x.unbind(0), dim=self.channel_dim)

    def split_streams(self, x: Tensor) -> Tensor:
        """Return what `join_streams` has joined as the block takes it."""
        if self.streams == 1:
            return x
        return torch.stack(x.chunk(self.streams, dim=self.channel_dim))

    def attention(self) -> dict[str, InnerAttention]:
        """Return the inner attention of each branch that has one, by role."""
        found = {}
        for role, branch in self.branches.items():
            for module in branch.modules():
                if isinstance(module, InnerAttention):
                    found[role] = module
        return found


@dataclass(frozen=True)
class Anatomy:
    """What a model is made of, in the order in which it runs: all that probes, studies and checks know of its inside.

    Attributes:
        stem: what makes the stream from the inputs; None where nothing does.
        norms: all of the model, by the name of their site.
        head: what makes logits of the stream; None where nothing is known to.
    """

    stem: nn.Module | None
    blocks: tuple[Block, ...]
    norms: Mapping[str, nn.Module]
    head: nn.Module | None = None

    @property
    def outer_norms(self) -> dict[str, nn.Module]:
        """Return the norms outside the blocks: the final ones, or one after the stem."""
        inside = set[str]()
        for block in self.blocks:
            inside.update(block.norms)
        return {name: norm for name, norm in self.norms.items() if name not in inside}


def with_parts(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """Return modules and all that are inside of them."""
    found = set[nn.Module]()
    for module in modules:
        found.update(module.modules())
    return found


def norms_in(module: nn.Module) -> dict[str, nn.Module]:
    """Return the norms inside a module by the name of their site."""
    found = {}
    for part in module.modules():
        site = getattr(part, "stands_at", None)
        if isinstance(site, Site):
            found[site.name] = part
    return found


@contextmanager
def keep_buffers(model: nn.Module) -> Iterator[None]:
    """Put running statistics back at the end, also where a module has put another tensor in their place."""
    kept = list[tuple[nn.Module, str, Tensor, Tensor]]()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            kept.append((module, name, buffer, buffer.clone()))
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, before in kept:
                setattr(module, name, buffer.copy_(before))


class Model(nn.Module):
    """A stack of blocks between a stem and a head; it takes the two factories and imports no norm or placement.

    `forward(inputs)` returns logits: (batch, time, vocabulary) for a language model, (batch, classes) for a classifier.
    A classifier of texts takes `mask=None` too: (batch, time), False where a text is padded. A translator takes
    `forward(source, mask, previous, previous_mask)`: see `Batch`.

    Attributes:
        kinds: the tasks it can do.
        roles: the branches that its blocks have.
        residual: whether its blocks have a skip.
        has_positions: whether what its norms see has time or space beside batch and features.
        has_streams: whether it calls `enter` and `leave` of placements around its blocks.
        recurrent: whether its norms are called at each time step.
        recompute: whether its blocks compute again in the backward pass what they would keep for it; None: it cannot.
        hosted: whether it is a model of another library, whose own code makes its blocks and draws its weights, and
            whose norms are replaced where they stand.
        sizes: the settings that make it smaller, in words.
        packages: libraries whose code it runs, with their versions.
        blocks: a ModuleList of placements, unless `anatomy` says otherwise.
    """

    kinds: ClassVar[frozenset[str]]
    roles: ClassVar[tuple[str, ...]]
    residual: ClassVar[bool] = True
    has_positions: ClassVar[bool] = True
    has_streams: ClassVar[bool] = False
    recurrent: ClassVar[bool] = False
    recompute: bool | None = None
    hosted: ClassVar[bool] = False
    sizes: ClassVar[str] = "model.depth or model.width"
    packages: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], kind: str) -> None:
        """Refuse settings of which the class alone can tell that they do not fit, before anything is built.

        Args:
            settings: by name.
            kind: of the task.

        Raises:
            UsageError: with what is allowed.
        """

    @classmethod
    def files_read(cls, settings: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the files whose content decides what a model with these settings starts with; none of ours reads one.

        Raises:
            UsageError: they are not there.
        """
        return ()

    @classmethod
    def classes_noted(cls, settings: Mapping[str, Any]) -> list[str] | None:
        """Return the classes that stand with the trained weights of a model with these settings; None: none do."""
        return None

    def ledger(self) -> dict[str, Any]:
        """Return what the ledger says of the model beside what it says of all."""
        return {}

    def norms_of_host(self) -> list[dict[str, str]]:
        """Return a row of a table for each norm of a model of another library, by column; nothing of ours."""
        return []

    def notes(self) -> list[str]:
        """Return what a reader of the model's numbers must know, a sentence each."""
        return []

    def try_step(self, batch: Batch, task: Task) -> None:
        """Refuse a batch, or norms, with which the model does not train; none of ours has code that is not known.

        Args:
            batch: a small one, on the model's device.
            task: whose it is.

        Raises:
            UsageError: with what fails.
        """

    def weights_drawn(self) -> None:
        """Set what follows from the weights as they start; called once they are drawn."""

    def untie(self) -> list[str]:
        """Give an output layer that has the embedding's weight one of its own; return its name, if there was such."""
        return []

    def call_every_norm(self) -> None:
        """Call every norm from now on, also one that changes nothing, for those who look at what passes through it."""

    def anatomy(self) -> Anatomy:
        """Return what the model is made of: the placements in `blocks`, and every norm that the norm factory made."""
        placements: Any = self.blocks
        blocks = []
        for layer, placement in enumerate(placements):
            branches = dict(placement.branches.items())
            channel_dim = next(iter(branches.values())).channel_dim
            site = getattr(placement, "site", None)  # which a placement of a user's own need not keep
            side = site.side if isinstance(site, Site) else ""
            blocks.append(Block(placement, layer, side, branches, norms_in(placement), channel_dim))
        stem: Any = getattr(self, "stem", None)
        head: Any = getattr(self, "head", None)
        return Anatomy(stem, tuple(blocks), norms_in(self), head)


class Task(ABC):
    """What a data set asks of a model: a class for each kind, which the data and the models name by its word `kind`.

    Attributes:
        unit: what throughput counts.
        examples: what one sees when a person is shown some.
        causal: whether each position is predicted from those before it.
        may_pad: whether inputs may come with a mask.
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
        task_class: Any = Task.by_kind[record["kind"]]  # a dataclass
        values: dict[str, Any] = {}
        for field in fields(task_class):
            value = record[field.name]
            if isinstance(value, list):
                value = tuple(value)
            values[field.name] = value
        return task_class(**values)

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
        is_right = logits.argmax(dim=-1) == targets
        return self.loss(logits, targets, "sum"), is_right.sum()

    def judge(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> tuple[dict[str, float], str]:
        """Return metrics that take more than logits, and a page of examples in Markdown."""
        return {}, ""

    def metrics(self, loss: float, accuracy: float) -> dict[str, float]:
        """Return what is reported of the mean loss and the fraction of right predictions."""
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
    """The next token at each position of a sequence, of at most `context` tokens."""

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
        perplexity = math.inf  # also of a loss of which the exponential is larger than any number that can be written
        with suppress(OverflowError):
            perplexity = math.exp(loss) if math.isfinite(loss) else math.inf
        return super().metrics(loss, accuracy) | {"perplexity": perplexity}

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(self.vocabulary_size, (size, self.context + 1), generator=generator)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


@dataclass(frozen=True)
class TextClassification(Task):
    """The class of a text, of at most `context` tokens, which may be padded."""

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
        lengths = torch.arange(self.context, 0, -self.context // size)
        mask = torch.arange(self.context) < lengths[:, None]
        return Batch(tokens * mask, labels, mask)


@dataclass(frozen=True)
class ImageClassification(Task):
    """The class of an image, whose shape is that of its channels, height and width."""

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

    Attributes:
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
        if self.previous is None:
            return (self.inputs, self.mask)
        return (self.inputs, self.mask, self.previous, self.targets != PADDING)

    @property
    def predictions(self) -> int:
        """Return how many targets are not padding; waits for the device."""
        if self.previous is None:
            return self.targets.numel()
        return int((self.targets != PADDING).sum())

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a function applied to each tensor."""
        mapped: list[Any] = [None if tensor is None else function(tensor) for tensor in self]
        return Batch(*mapped)

    def twice(self) -> Batch:
        """Return the batch with all examples once more."""
        return self.map(lambda rows: torch.cat((rows, rows)))


class Data(ABC):
    """A data set in memory, and its batches: a pure function of (seed, step), so that a run can go on anywhere."""

    kind: ClassVar[str]
    pads: ClassVar[bool] = False  # whether batches come with a mask
    task: Task
    fingerprint: str  # sha256 of the decoded content
    steps_per_epoch: int  # 0 of a stream, whose length is not known
    has_test: bool = False  # whether there is a split `test`, judged once at the end
    earlier: str = ""  # the fingerprint of what earlier versions made of the same source, where that differs

    def as_of(self, fingerprint: str) -> Data:
        """Return what an earlier version made of the same source, if that has this fingerprint; else these data."""
        return self

    def notes(self) -> list[str]:
        """Return what a person is to know of the data before anything trains, as whole lines."""
        return []

    @abstractmethod
    def train_batch(self, step: int) -> Batch:
        """Return the batch of training step `step` (from 0)."""

    def smallest_batch(self, batches: int) -> Batch | None:
        """Return the batch of which norms may have the fewest values, of so many of a run; None: all are as the first.

        It is the last of an epoch, which may have fewer examples; a stream has no epochs.
        """
        last = min(batches, self.steps_per_epoch) - 1
        return self.train_batch(last) if last > 0 else None

    @abstractmethod
    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the whole split in order, or `limit` batches spread evenly over it: the same ones each time."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record: name, sizes, classes or vocabulary, scaling, fingerprint.

        Under `constant` are the `loss/val` (nats) and `accuracy/val` of the best predictor that always says the same,
        where they are known.
        """
