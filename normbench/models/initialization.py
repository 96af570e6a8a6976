"""All initialisation, in one place.

| parameter | value |
|---|---|
| weight of a linear map or convolution | what `init=` makes of one standard-normal draw (std × draw) × `init.factor` |
| embedding (tokens, positions, class token) | `init.embedding_std`, or 1/√width, × one standard-normal draw |
| factor on a text's embedding | 1 / root mean square of what it multiplies, with `model.embedding_scale=unit` |
| bias | 0 |
| a branch's scaled weights | × the placement's gain (DeepNorm's β); B2T's is on all weights of the branch |
| all weights of a branch | × what `init=` gives its block's place (`init=scaled`: 1/√place, from 1) |
| a branch's output weights | × 1/√(residual branches), with `init.residual_scale` (GPT-2) |
| any weight | × what `init=` makes of the whole model, such as `fixup`, `tfixup`, `magneto` and `mup` |
| norms | untouched: a norm knows its own start |
| all of a model of another library | untouched, with `init=own`, which alone it takes |
| anything else (Conv1d, a parameter of a user's own) | untouched: as its class makes it, from seeded random numbers |

Each draw is seeded by (seed, parameter name) alone, so the same weight starts alike whatever the norm or placement;
what classes draw where they are made is seeded too (`normbench.build.build_model`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Anatomy, Block, Branch, Model, Placement, stable_seed, with_parts

EmbeddingStd = Annotated[
    float | Literal["auto"], Setting("standard deviation of embeddings; auto: 1/√width", low=0, high=1e3)
]
Factor = Annotated[float, Setting("factor on all weights but embeddings", above=0, high=1e4)]


@dataclass(frozen=True)
class Initialization(ABC):
    """How wide the weights start.

    Args:
        embedding_std: standard deviation of embeddings; "auto": 1/√width.
        residual_scale: GPT-2's 1/√(residual branches) on the weights that write to the stream (Radford et al. 2019,
            §2.3).
        factor: on all weights but embeddings, whose size `embedding_std` and `model.embedding_scale` say.

    Attributes:
        of_host: whether weights stay as a model of another library has drawn them.
    """

    of_host = False

    embedding_std: EmbeddingStd
    residual_scale: Annotated[bool, Setting("GPT-2's 1/√branches on weights that write to the stream")]
    factor: Factor = field(default=1.0, kw_only=True)

    @abstractmethod
    def std(self, fan_in: int, fan_out: int) -> float:
        """Return the standard deviation of a weight matrix."""

    def weight(self, draw: Tensor) -> Tensor:
        """Return the start of a weight (out, in, ...) that has this standard-normal draw."""
        return draw * self.std(draw[0].numel(), draw[:, 0].numel())

    def embedding(self, draw: Tensor) -> Tensor:
        """Return the start of an embedding (number, width) that has this standard-normal draw."""
        std = draw.shape[1] ** -0.5 if self.embedding_std == "auto" else self.embedding_std
        return draw * std

    def at_place(self, place: int) -> float:
        """Return the factor on the weights of the block at this place, from 1, of its stack."""
        return 1.0

    def draw(self, model: Model, seed: int, inside_norms: set[nn.Module]) -> None:
        """Give every weight outside the norms its start."""
        for name, module in model.named_modules():
            if module not in inside_norms:
                draw_weight(name, module, self, seed)
        scale_by_place(model.anatomy().blocks, self, inside_norms)

    def lr_factors(self, anatomy: Anatomy) -> dict[nn.Parameter, float]:
        """Return factors on the learning rate of weights, which go with how they start; without one it is 1.

        AdamW's decay, which is a share of the learning rate, stays as it is without them.
        """
        return {}

    def finish(self, anatomy: Anatomy) -> None:
        """Scale the weights, which are drawn, by where in the model they stand.

        Here the weights that branches name, by their placement's gain, and with `residual_scale` by 1/√branches.
        """
        in_norms = with_parts(anatomy.norms.values())
        placed = []
        for block in anatomy.blocks:
            if isinstance(block.module, Placement):
                for branch in residual_branches(block):
                    placed.append((block.module, branch))
        for placement, branch in placed:
            weights = maps_in(branch, in_norms) if placement.gains_all else branch.scaled_weights()
            for weight in weights:
                weight.mul_(placement.branch_gain)
            if self.residual_scale:
                for weight in branch.output_weights():
                    weight.mul_(1.0 / math.sqrt(len(placed)))


class Own(Initialization):
    """Leaves all weights as the classes of a model of another library draw them, from the run's seed.

    What stands in place of its norms has random numbers of its own, so that all other weights start alike whatever
    these are.
    """

    of_host = True

    def __init__(self) -> None:
        super().__init__(embedding_std="auto", residual_scale=False)

    def std(self, fan_in: int, fan_out: int) -> float:
        raise NotImplementedError("the classes of another library draw the weights of its models")

    def draw(self, model: Model, seed: int, inside_norms: set[nn.Module]) -> None:
        """Leave the weights as they are."""


@dataclass(frozen=True)
class Normal(Initialization):
    """The same standard deviation everywhere (GPT-2: 0.02)."""

    weight_std: Annotated[float, Setting("standard deviation of weight matrices", low=0, high=1e3)]

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.weight_std


@dataclass(frozen=True)
class MaximalUpdate(Normal):
    """µP: starts and Adam's rates of all widths that go with those of one (Yang et al. 2022, table 3).

    m = width / `base_width`, the width being that of the stream. The weights of branches start at `weight_std`/√m and
    the output layer at `weight_std`/m; both have 1/m of the learning rate. Embeddings, stem, biases and norms are as at
    every width. So at the base width all is as with `init=normal`. The decay of weights is as without a factor, as
    in the authors' package.

    All widths inside a branch are to grow with the stream's, and attention divides its logits by the size of a head
    instead of its root: see `model.base_head`.
    """

    base_width: Annotated[
        int, Setting("width at which weights and learning rates are as without µP", low=1, high=10**5)
    ]

    def finish(self, anatomy: Anatomy) -> None:
        super().finish(anatomy)
        growth = self.growth(anatomy)
        for weight in inner_weights(anatomy):
            weight.mul_(growth**-0.5)
        for weight in output_weights(anatomy):
            weight.mul_(1 / growth)

    def lr_factors(self, anatomy: Anatomy) -> dict[nn.Parameter, float]:
        weights = [*inner_weights(anatomy), *output_weights(anatomy)]
        return dict.fromkeys(weights, 1 / self.growth(anatomy))

    def growth(self, anatomy: Anatomy) -> float:
        """Return how many times as wide as the base a model is.

        Raises:
            UsageError: it has no stem, or no output layer of its own.
        """
        if anatomy.stem is None or isinstance(anatomy.stem, nn.Identity):
            raise UsageError("init=mup is for a model whose stream has a stem: use a residual one")
        if not output_weights(anatomy):
            raise UsageError("init=mup is for a model with an output layer of its own: set model.tied=false")
        branch: Any = next(iter(anatomy.blocks[0].branches.values()))
        width: int = branch.in_features
        return width / self.base_width


@dataclass(frozen=True)
class Xavier(Initialization):
    """√(2 / (fan_in + fan_out)): Glorot & Bengio 2010, equation 12 and 16, with a normal draw."""

    def std(self, fan_in: int, fan_out: int) -> float:
        return math.sqrt(2.0 / (fan_in + fan_out))


@dataclass(frozen=True)
class Kaiming(Initialization):
    """√(2 / fan_in), for ReLU networks: He et al. 2015, equation 10."""

    def std(self, fan_in: int, fan_out: int) -> float:
        return math.sqrt(2.0 / fan_in)


@dataclass(frozen=True)
class Scaled(Xavier):
    """Xavier, in the l-th block of its stack times 1/√l: DS-Init, α = 1 (Zhang, Titov & Sennrich 2019), normal draw."""

    def at_place(self, place: int) -> float:
        return place**-0.5


@dataclass(frozen=True)
class Orthogonal(Initialization):
    """Rows, or columns where there are fewer, that are orthonormal (Saxe et al. 2014); kernels of convolutions as rows.

    The draw's Q of Q·R, with the signs that make it uniform over such matrices: R has a positive diagonal.
    """

    def std(self, fan_in: int, fan_out: int) -> float:
        return max(fan_in, fan_out) ** -0.5

    def weight(self, draw: Tensor) -> Tensor:
        matrix = draw.flatten(1)
        wide = matrix.shape[0] < matrix.shape[1]
        tall = matrix.T if wide else matrix
        q, r = torch.linalg.qr(tall)
        q = q * r.diagonal().sign()
        orthonormal = q.T if wide else q
        return orthonormal.reshape(draw.shape)


@dataclass(frozen=True)
class Fixup(Initialization):
    """√(2 / fan_out), in branches × B^(−1/(2m−2)), and 0 where branches and the model end: Zhang et al. 2019b.

    Of the m weights that a branch scales, those that write to the stream start at 0 and the others are multiplied;
    there are B residual branches. The output layer starts at 0, where it has a weight of its own. √(2 / fan_out) is
    that of the authors' ResNets, but for their stems, which keep torch's start.
    """

    def std(self, fan_in: int, fan_out: int) -> float:
        return math.sqrt(2.0 / fan_out)

    def finish(self, anatomy: Anatomy) -> None:
        super().finish(anatomy)
        branches = list[Branch]()
        for block in anatomy.blocks:
            branches += residual_branches(block)
        for branch in branches:
            scaled = branch.scaled_weights()
            if len(scaled) > 1:
                for weight in scaled:
                    weight.mul_(len(branches) ** (-1 / (2 * len(scaled) - 2)))
            for weight in branch.output_weights():
                weight.zero_()
        for weight in output_weights(anatomy):
            weight.zero_()


@dataclass(frozen=True)
class TFixup(Xavier):
    """Xavier, in branches × 0.67·N^(−¼), in a decoder × (9M)^(−¼): T-Fixup (Huang et al. 2020, §3.3), normal draw.

    N and M are the blocks of encoder and decoder; a single stack is scaled as an encoder. Scaled are values, output
    maps and MLPs. The embedding of tokens starts at `embedding_std` × (9N)^(−¼). Queries and keys start as the paper
    says; the authors' code has them smaller by 1/√2.
    """

    def finish(self, anatomy: Anatomy) -> None:
        super().finish(anatomy)
        blocks_of = Counter(block.side for block in anatomy.blocks)
        for block in anatomy.blocks:
            count = blocks_of[block.side]
            gain = (9 * count) ** -0.25 if block.side == "decoder" else 0.67 * count**-0.25
            scale_weights(residual_branches(block), gain)
        first_stack = blocks_of[anatomy.blocks[0].side]
        for module in modules_in(anatomy.stem):
            if isinstance(module, nn.Embedding):
                module.weight.mul_((9 * first_stack) ** -0.25)


@dataclass(frozen=True)
class Magneto(Xavier):
    """Xavier, in branches × √ln 2L of L blocks: Magneto, with Sub-LN (Wang et al. 2022b, figure 2), normal draw.

    In an encoder–decoder of N and M blocks × √(ln 3M · ln 2N / 3) in the encoder, and × √ln 3M in the decoder, whose
    attention to the encoder keeps Xavier's start. Scaled are values, output maps and MLPs.
    """

    def finish(self, anatomy: Anatomy) -> None:
        super().finish(anatomy)
        blocks_of = Counter(block.side for block in anatomy.blocks)
        for block in anatomy.blocks:
            square = math.log(2 * blocks_of[block.side])
            if block.side == "decoder":
                square = math.log(3 * blocks_of["decoder"])
            elif block.side == "encoder":
                square *= math.log(3 * blocks_of["decoder"]) / 3
            scale_weights(residual_branches(block, without="cross"), math.sqrt(square))


def modules_in(part: nn.Module | None) -> list[nn.Module]:
    """Return a part of a model and all inside; nothing where there is none."""
    return [] if part is None else list(part.modules())


def inner_weights(anatomy: Anatomy) -> list[nn.Parameter]:
    """Return the weights of all linear maps and convolutions in branches, less those of norms."""
    in_norms = with_parts(anatomy.norms.values())
    weights = list[nn.Parameter]()
    for block in anatomy.blocks:
        for branch in block.branches.values():
            weights += maps_in(branch, in_norms)
    return weights


def maps_in(branch: nn.Module, in_norms: Collection[nn.Module]) -> list[nn.Parameter]:
    """Return the weights of all linear maps and convolutions in a branch, less those in norms."""
    weights = list[nn.Parameter]()
    for module in branch.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module not in in_norms:
            weights.append(module.get_parameter("weight"))
    return weights


def output_weights(anatomy: Anatomy) -> list[nn.Parameter]:
    """Return the weights of the output layer; none where it is a tied embedding."""
    return [module.get_parameter("weight") for module in modules_in(anatomy.head) if isinstance(module, nn.Linear)]


def residual_branches(block: Block, without: str = "") -> list[Branch]:
    """Return the branches of a block that say which of their weights scale, but for one role."""
    branches = []
    for role, branch in block.branches.items():
        if isinstance(branch, Branch) and role != without:
            branches.append(branch)
    return branches


def scale_weights(branches: Iterable[Branch], gain: float) -> None:
    """Multiply the weights that branches scale."""
    for branch in branches:
        for weight in branch.scaled_weights():
            weight.mul_(gain)


@torch.no_grad()
def initialize(model: Model, init: Initialization, seed: int, norms: Iterable[nn.Module] = ()) -> None:
    """Give every weight outside the norms its start, then apply the gains (see the module's table)."""
    inside_norms = with_parts(norms)
    init.draw(model, seed, inside_norms)
    init.finish(model.anatomy())
    model.weights_drawn()


def draw_weight(name: str, module: nn.Module, init: Initialization, seed: int) -> None:
    """Give the weight of an embedding, a linear map or a convolution its start, from a draw of its own; the bias 0."""
    if not isinstance(module, nn.Embedding | nn.Linear | nn.Conv2d):
        return
    generator = torch.Generator().manual_seed(stable_seed(seed, f"{name}.weight"))
    draw = torch.randn(module.weight.shape, generator=generator)
    if isinstance(module, nn.Embedding):
        module.weight.copy_(init.embedding(draw))
    else:  # of a FusedLinear each part by itself
        parts = [init.weight(part) for part in draw.chunk(getattr(module, "parts", 1))]
        module.weight.copy_(torch.cat(parts) * init.factor)
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        bias.zero_()


def scale_by_place(blocks: Iterable[Block], init: Initialization, inside_norms: set[nn.Module]) -> None:
    """Multiply the weights of each block's branches by what `init` gives its place in the stack of its side."""
    places = Counter[str]()
    for block in blocks:
        places[block.side] += 1
        factor = init.at_place(places[block.side])
        for branch in block.branches.values():
            for weight in maps_in(branch, inside_norms):
                weight.mul_(factor)
