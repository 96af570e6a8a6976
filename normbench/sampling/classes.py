"""How a classifier judges validation data: its mistakes, the surest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from normbench.types import Batch


@dataclass(frozen=True)
class Classified:
    """An example with its class, the predicted one and that one's probability.

    index: in the order of the data.
    """

    index: int
    label: int
    predicted: int
    probability: float
    inputs: Tensor

    @property
    def wrong(self) -> bool:
        return self.label != self.predicted

    @property
    def order(self) -> tuple[bool, float]:
        """Mistakes first, the surest of them in front; then the right ones, the least sure in front."""
        return (not self.wrong, -self.probability if self.wrong else self.probability)


@torch.no_grad()
def classify(model: nn.Module, batches: Iterable[Batch], count: int) -> tuple[list[Classified], int, int]:
    """The `count` examples that come first by `Classified.order`, the number of mistakes, and that of all examples.

    model: in evaluation mode; what a batch holds to logits (batch, classes).
    """
    device = next(model.parameters()).device
    kept: list[Classified] = []
    total = wrong = 0
    for batch in batches:
        logits = model(*batch.map(lambda tensor: tensor.to(device)).arguments).float().cpu()
        judged = judge(batch, logits, total)
        total += len(judged)
        wrong += sum(example.wrong for example in judged)
        kept = sorted([*kept, *judged], key=lambda example: example.order)[:count]
    return kept, wrong, total


def judge(batch: Batch, logits: Float[Tensor, "batch classes"], first: int) -> list[Classified]:
    """The examples of a batch, whose first one has this index."""
    probabilities, predicted = logits.softmax(dim=-1).max(dim=-1)
    return [
        Classified(first + row, label, guess, probability, unpadded(batch, row))
        for row, (label, guess, probability) in enumerate(
            zip(batch.targets.tolist(), predicted.tolist(), probabilities.tolist(), strict=True)
        )
    ]


def unpadded(batch: Batch, row: int) -> Tensor | Int64[Tensor, " time"]:
    """The inputs of one example, without what pads them."""
    return batch.inputs[row].clone() if batch.mask is None else batch.inputs[row][batch.mask[row]]
