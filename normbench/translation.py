"""Translation: the task, and how a model's translations are found and judged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from normbench.types import PADDING, Batch, LanguageModeling


@dataclass(frozen=True)
class Translation(LanguageModeling):
    """Each next token of a translation, from its source and the tokens before it.

    vocabulary_size: of both languages; the last two tokens, `begin` and `end`, stand before and behind a text.
    context: the longest source or target, in tokens. label_smoothing: share of a target's probability that training
    spreads over all tokens (Szegedy et al. 2016, §7); evaluation has none. lowercase: whether all text is.
    beam, length_penalty: of the search, see `translate`.
    """

    kind = "translation"
    examples = "sentences"
    may_pad = True
    judges = True

    label_smoothing: float = 0.0
    lowercase: bool = False
    beam: int = 5
    length_penalty: float = 1.0

    @property
    def begin(self) -> int:
        """Return the token in front of each translation."""
        return self.vocabulary_size - 2

    @property
    def end(self) -> int:
        """Return the token behind each text."""
        return self.vocabulary_size - 1

    def loss(self, logits: Float[Tensor, "..."], targets: Tensor, reduction: str = "mean") -> Tensor:
        flat, smoothing = logits.flatten(0, -2).float(), self.label_smoothing if reduction == "mean" else 0.0
        return F.cross_entropy(flat, targets.flatten(), reduction=reduction, label_smoothing=smoothing)

    def shapes(self, batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert batch.mask is not None and batch.previous is not None
        return tuple(batch.mask.shape), tuple(batch.previous.shape)

    def batch(self, sources: list[Tensor], translations: list[Tensor]) -> Batch:
        """Return a padded batch of token ids (time,); what stands in the padding of inputs is 0."""
        end, begin = torch.tensor([self.end]), torch.tensor([self.begin])
        pad = torch.nn.utils.rnn.pad_sequence
        inputs = [torch.cat((source, end)) for source in sources]
        mask = pad([torch.ones(len(each), dtype=torch.bool) for each in inputs], batch_first=True)
        targets = pad([torch.cat((each, end)) for each in translations], batch_first=True, padding_value=PADDING)
        previous = pad([torch.cat((begin, each)) for each in translations], batch_first=True)
        return Batch(pad(inputs, batch_first=True), targets, mask, previous)

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        lengths = [max(1, (self.context - 1) * (size - row) // size) for row in range(size)]
        sources, targets = ([torch.randint(self.begin, (each,), generator=generator) for each in lengths] for _ in "st")
        return self.batch(sources, targets[::-1])
