"""Where a norm stands in a residual block: how the norm N, the branch f and the skip make up a block x ← …"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Placement, Site

BranchGain = Annotated[Literal["paper", "inverse"], Setting("factor on a branch's weights at the start: β, or 1/β")]


def mask_of(context: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the keyword that a norm is given beside x: the mask, False at padding, where there is one."""
    mask = context.get("mask")
    if mask is None:
        return {}
    return {"mask": mask}


def along_features(vector: Tensor, f: Branch) -> Tensor:
    """Return a vector over the features of a branch's output in the shape in which it multiplies that output."""
    return vector.view(-1, 1, 1) if f.channel_dim == 1 else vector


class Residual(Placement):
    """A block that applies its branches one after another.

    A norm's site is named after its branch (`block03.mlp`); where a placement has two norms a branch,
    `block03.mlp.in` and `block03.mlp.out`. The context's `mask` is False at padding; norms get it too.

    Attributes:
        join: the arithmetic of one branch f, which returns x after it; `f.shortcut(x)` is x, unless f changes its
            shape.
    """

    join: Callable[[Tensor, Branch, nn.ModuleDict, dict[str, Any]], Tensor]

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__()
        self.site = site
        self.branches = nn.ModuleDict(branches)
        self.norms = self.make_norms(branches, norm)

    def make_norms(self, branches: Mapping[str, Branch], norm: NormFactory) -> nn.ModuleDict:
        """Return one norm for each branch and slot."""
        norms = nn.ModuleDict()
        for role, branch in branches.items():
            norms[role] = self.branch_norms(role, branch, norm)
        return norms

    def branch_norms(self, role: str, branch: Branch, norm: NormFactory) -> nn.ModuleDict:
        """Return one norm for each slot: `in` reads the stream, `out` what the branch has made of it."""
        norms = nn.ModuleDict()
        for slot in self.slots_of(role):
            site = self.site.at(role, slot, sole=len(self.slots) == 1)
            norms[slot] = norm(self.width_at(slot, branch), channel_dim=branch.channel_dim, site=site)
        return norms

    def width_at(self, slot: str, branch: Branch) -> int:
        """Return how many features the norm of a slot has."""
        return branch.out_features if slot in ("out", "sum") else branch.in_features

    def slots_of(self, role: str) -> tuple[str, ...]:
        """Return the slots of a branch's norms."""
        return self.slots

    @property
    def place(self) -> int:
        """Return the block's place in its stack, from 1; each side of an encoder–decoder is a stack."""
        layer = self.site.layer or 0
        before = self.site.sides[0] if self.site.side == "decoder" else 0
        return layer - before + 1

    @property
    def stack_depth(self) -> int:
        """Return the number of blocks in the block's stack."""
        return self.site.stack_depth

    @property
    def stack_branches(self) -> int:
        """Return the number of residual branches in the block's stack."""
        if not self.site.side:
            return self.site.branches
        return self.stack_depth * len(self.branches)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role, branch in self.branches.items():
            x = self.join(x, branch, self.norms[role], context)  # type: ignore[arg-type]  # ModuleDict holds Modules
        return x


class Pre(Residual):
    """The branch reads a normalized stream: x ← x + f(N(x)), and one N after the last block.

    GPT-2 (Radford et al. 2019), Xiong et al. 2020; in a CNN, ResNet v2 (He et al. 2016b).
    """

    slots = ("in",)
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        skip = f.shortcut(x)
        y = norms["in"](x, **mask_of(context))
        return skip + f(y, **context)


class Post(Residual):
    """The sum is normalized: x ← N(x + f(x)).

    The original Transformer (Vaswani et al. 2017, §3.1), BERT.
    """

    slots = ("out",)

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        y = f.shortcut(x) + f(x, **context)
        return norms["out"](y, **mask_of(context))


class Deep(Residual):
    """DeepNorm, post-norm with a stronger skip and smaller branch weights: x ← N(αx + f(x)).

    α = B^¼ multiplies the skip and β = (4B)^−¼ the branch's scaled weights at initialisation, with B residual
    branches in the whole stack; for M Transformer layers B = 2M, so α = (2M)^¼ and β = (8M)^−¼. In an
    encoder–decoder of N and M layers α = 0.81·(N⁴M)^(1/16) and β = 0.87·(N⁴M)^(−1/16) in the encoder, and (3M)^¼ and
    (12M)^−¼ in the decoder.
    Wang et al. 2022 (DeepNet), figure 2 and table 1; there the weights are Xavier normal (`init=xavier`).
    With `placement.gain=inverse` the weights are scaled by 1/β, as the released code of Sun et al. 2025 does, which
    compares DeepNorm with LayerNorm Scaling; the skip's gain stays α, where that code has 8^½ at any depth.
    """

    slots = ("out",)

    def __init__(
        self,
        branches: Mapping[str, Branch],
        norm: NormFactory,
        site: Site,
        *,
        gain: BranchGain = "paper",
    ) -> None:
        super().__init__(branches, norm, site)
        encoder, decoder = site.sides
        if site.side == "encoder":
            root = (encoder**4 * decoder) ** (1 / 16)
            self.residual_gain = 0.81 * root
            self.branch_gain = 0.87 / root
        else:
            count = float(self.stack_branches)
            self.residual_gain = count**0.25
            self.branch_gain = (4.0 * count) ** -0.25
        if gain == "inverse":
            self.branch_gain = 1 / self.branch_gain

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        y = self.residual_gain * f.shortcut(x) + f(x, **context)
        return norms["out"](y, **mask_of(context))


class PostInside(Residual):
    """The branch's output is normalized before it joins: x ← x + N(f(x)), and one N after the last block.

    Swin v2 (Liu et al. 2022, res-post-norm), OLMo 2 (2024); the last norm of a ResNet v1 block (He et al. 2016a).
    Some texts call this formula post-norm.
    """

    slots = ("out",)
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        skip = f.shortcut(x)
        y = f(x, **context)
        return skip + norms["out"](y, **mask_of(context))


class Sandwich(Residual):
    """The branch's input and output are normalized: x ← x + N(f(N(x))), and one N after the last block.

    CogView (Ding et al. 2021), Gemma 2 (2024), Peri-LN (Kim et al. 2025). What a branch adds has a root
    mean square of 1 at the start, and drowns a stream that begins near 0, as with `scheme=llama`: keep the default
    `model.embedding_scale=unit`, or take `root_width` as in Gemma.
    """

    slots = ("in", "out")
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        skip = f.shortcut(x)
        y = norms["in"](x, **mask_of(context))
        y = f(y, **context)
        return skip + norms["out"](y, **mask_of(context))


class Parallel(Residual):
    """Attention and MLP side by side: x ← x + attention(N(x)) + mlp(N(x)), and one N after the last block.

    Both branches read the same N, whose site is the block (DyT's table counts it among "all others").
    GPT-J (Wang & Komatsuzaki 2021), PaLM (Chowdhery et al. 2022, §2).
    Some texts call this formula pre-norm.
    """

    slots = ("in",)
    needs_final_norm = True
    min_branches = 2

    def make_norms(self, branches: Mapping[str, Branch], norm: NormFactory) -> nn.ModuleDict:
        first = next(iter(branches.values()))
        return nn.ModuleDict({"shared": self.branch_norms(self.site.role, first, norm)})

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        y = self.norms["shared"]["in"](x, **mask_of(context))  # type: ignore[index]  # a ModuleDict of ModuleDicts
        for f in self.branches.values():
            x = x + f(y, **context)
        return x


class Plain(Residual):
    """No skip and no norm around the branch, only the branch's own norms: x ← f(x).

    For models without residuals (`cnn_plain`, `mlp_plain`, `vgg`, `rnnsearch`, `rnn_lm`), which take no other.
    """

    slots = ()
    residual = False

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return f(x, **context)
