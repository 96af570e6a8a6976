"""An exponential moving average of the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """A copy of the model whose weights follow the trained ones: average ← d·average + (1−d)·weights, d = `decay`.

    At the start d = (1+n)/(10+n) where that is less, n being the number of updates, so that the first weights are soon
    forgotten (TensorFlow's ExponentialMovingAverage). Running statistics are averaged like weights: those of the newest
    batches belong to the newest weights, and would not fit the average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        ours, theirs = self.model.state_dict(), model.state_dict()
        once = {tensor.data_ptr(): name for name, tensor in ours.items()}.values()  # tied weights have several names
        self.floats = [name for name in once if ours[name].is_floating_point()]
        self.others = [name for name in once if not ours[name].is_floating_point()]
        self.averages: dict[str, Tensor] = ours
        self.sources: dict[str, Tensor] = theirs

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        averages, sources = ([of[name] for name in self.floats] for of in (self.averages, self.sources))
        torch._foreach_lerp_(averages, sources, 1 - decay)
        for name in self.others:
            self.averages[name].copy_(self.sources[name])
        self.updates += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"updates": self.updates, "model": self.averages}

    def restore(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
