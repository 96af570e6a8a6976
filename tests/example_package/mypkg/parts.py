"""A placement, a model and data outside the repository."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normbench.placements import Residual
from normbench.types import Batch, Branch, Data, ImageClassification, Model, Site, Split


class Halved(Residual):
    """x ← x + f(N(x)) / 2, and one N after the last block."""

    slots = ("in",)
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return f.shortcut(x) + f(norms["in"](x), **context) / 2


class Layer(Branch):
    """A linear map and tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, **_: Tensor | None) -> Tensor:
        return self.linear(x).tanh()


class TwoLayers(Model):
    """Two residual layers on flattened images."""

    kinds = frozenset({"image_classification"})
    roles = ("layer",)
    has_positions = False

    def __init__(self, task: ImageClassification, norm: Any, placement: Any, *, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Linear(math.prod(task.image_shape), width)
        sites = [Site("block", layer, depth=2, branches=2) for layer in range(2)]
        self.blocks = nn.ModuleList([placement({"layer": Layer(width)}, norm, site) for site in sites])
        needs_final_norm = self.blocks[-1].needs_final_norm
        self.final = norm(width, site=Site("final", depth=2)) if needs_final_norm else nn.Identity()
        self.head = nn.Linear(width, task.num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


class Stripes(Data):
    """64 noisy images with stripes along one axis or the other."""

    kind = "image_classification"
    fingerprint = "stripes-1"

    def __init__(self, *, seed: int, batch_size: int = 8) -> None:
        self.seed, self.batch_size = seed, batch_size
        self.labels = torch.arange(64) % 2
        noise = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        stripes = (torch.arange(8) % 2).float().expand(8, 8)
        self.images = noise + torch.stack((stripes, stripes.T))[self.labels].unsqueeze(1)
        self.task = ImageClassification(num_classes=2, image_shape=(1, 8, 8))
        self.steps_per_epoch = 64 // batch_size

    def train_batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = torch.randperm(64, generator=torch.Generator().manual_seed(1_000_003 * self.seed + epoch))
        return self.batch(order[place * self.batch_size : (place + 1) * self.batch_size])

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        for indices in torch.arange(64).split(16)[:limit]:
            yield self.batch(indices)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.images[indices], self.labels[indices])

    def describe(self) -> dict[str, Any]:
        return {"name": "stripes", "examples": 64}
