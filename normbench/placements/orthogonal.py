"""Orthogonal residual updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.placements import Pre, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Projection = Annotated[
    Literal["feature", "global"], Setting("over what x and y are multiplied: each pixel's features, or all of an image")
]
Eps = Annotated[float, Setting("added to the square of x, by which is divided", low=0, high=1)]


class Orthogonal(Pre):
    """Pre-norm that adds what a branch gives at right angles to the stream: x ← x + y − (⟨y, x⟩/(⟨x, x⟩ + ε))x.

    y = f(N(x)), and one N after the last block. ⟨·, ·⟩ is a sum over the features of each position: of a token, of a
    patch of an image and, in a CNN, of a pixel; there `placement.projection=global` sums over all features and pixels
    of an image. ε is `placement.eps`, the sums are in float32 or wider, and where a block changes the shape,
    f.shortcut(x) has the place of x. Nothing is learned, so nothing starts or decays. But for ε no step shortens the
    stream: ‖x‖² grows by the square of what is added.

    Oh et al. 2025 (orthogonal residual update, Orthogonal-F and -G); the same function as the authors' `connect`
    (`ortho_residual/residual.py`@4f663d3), whose ResNets take each pixel by itself (`connect.py:648`).
    x-transformers' `OrthogonalResidualUpdate` (`x_transformers.py:1182`@9252ed7) has no ε, sums in float64, and takes
    all positions of a text as one vector, by which tokens depend on later ones: here they do not.
    """

    def __init__(
        self,
        branches: Mapping[str, Branch],
        norm: NormFactory,
        site: Site,
        *,
        projection: Projection = "feature",
        eps: Eps = 1e-6,
    ) -> None:
        super().__init__(branches, norm, site)
        self.is_global = projection == "global"
        self.eps = eps

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        skip = f.shortcut(x)
        y = f(norms["in"](x, **mask_of(context)), **context)
        is_image = f.channel_dim == 1
        axes = (1, 2, 3) if is_image and self.is_global else (f.channel_dim,)
        return skip + reject(y, skip, axes, self.eps)

    def sketch(self, x: Any) -> Any:
        """Return what `forward` makes of x, as steps of a drawing."""
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            y = f(norms["in"](x))
            x = x + y.through("⊥x")
        return x


def reject(y: Tensor, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Return the part of y at right angles to x, both taken as vectors along some axes, in the dtype of x."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    given = y.to(dtype)
    direction = x.to(dtype)
    along = (given * direction).sum(axes, keepdim=True) / (direction.square().sum(axes, keepdim=True) + eps)
    return (given - along * direction).to(x.dtype)
