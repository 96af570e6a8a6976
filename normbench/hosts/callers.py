"""How models of libraries are called with a batch, and where they begin and end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError

Size = tuple[int, int]  # of an image: height and width


class Caller(ABC):
    """How a model is called, and where it begins and ends."""

    @abstractmethod
    def __call__(self, host: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits."""

    @abstractmethod
    def head(self, host: nn.Module) -> nn.Module | None:
        """Return the output layer of a model."""

    def stem(self, host: nn.Module) -> nn.Module | None:
        """Return what makes the stream of a text."""
        return None


@dataclass(frozen=True)
class ImageCaller(Caller):
    """Calls a classifier with images, which are scaled and, where they are grey, have their channel several times.

    Nothing depends on the images that it is given, so that torch.fx can follow.

    Attributes:
        size: to which they are scaled; None: they stay as they are.
        shrinks: whether they are larger than that.
        channels: how many times a grey image has its channel; None: images stay as they are.
    """

    size: Size | None
    shrinks: bool = False
    channels: int | None = None

    def __call__(self, host: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        x = inputs
        if self.size is not None:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=self.shrinks)
        if self.channels is not None:
            x = x.expand(-1, self.channels, -1, -1)
        return logits_of(host, host(x))

    def head(self, host: nn.Module) -> nn.Module | None:
        last = None
        get_classifier = getattr(host, "get_classifier", None)  # as all of timm's have it
        classifier = get_classifier() if get_classifier else None
        if isinstance(classifier, tuple):  # of several, such as a student's and its teacher's, none is the output layer
            return None
        if isinstance(classifier, nn.Module):
            return classifier
        for module in host.modules():
            if isinstance(module, nn.Linear):
                last = module
        return last


@dataclass(frozen=True)
class TokenCaller(Caller):
    """Calls a model of texts with tokens and, where texts are padded, their mask.

    Attributes:
        more: what it is given besides.
        offset: added to tokens, so that the model's own token of padding stands for nothing else.
        padding: that token.
    """

    more: Mapping[str, Any]
    offset: int = 0
    padding: int = 0

    def __call__(self, host: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens = inputs + self.offset if self.offset else inputs
        if mask is None:
            return logits_of(host, host(input_ids=tokens, **self.more))
        padded = tokens.masked_fill(~mask, self.padding)
        return logits_of(host, host(input_ids=padded, attention_mask=mask.long(), **self.more))

    def head(self, host: Any) -> nn.Module | None:
        output: nn.Module | None = host.get_output_embeddings()
        if output is None:
            return getattr(host, "score", None) or getattr(host, "classifier", None)
        embedding = host.get_input_embeddings()
        is_tied = getattr(output, "weight", None) is getattr(embedding, "weight", None)
        return None if is_tied else output

    def stem(self, host: Any) -> nn.Module | None:
        embedding: nn.Module | None = host.get_input_embeddings()
        return embedding


def logits_of(host: nn.Module, output: Any) -> Tensor:
    """Return the logits of what a model gives.

    Raises:
        UsageError: it gives something else, such as the logits of several heads.
    """
    logits = output  # a tensor, or what torch.fx has in its place
    if isinstance(output, tuple | Mapping):
        logits = getattr(output, "logits", None)
    if logits is None or isinstance(logits, tuple | Mapping):
        what = f"{type(host).__name__} gives a {type(output).__name__}"
        raise UsageError(f"{what}, and not logits: choose another model.name, or an option without further outputs")
    tensor: Tensor = logits
    return tensor
