"""Text from a language model, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    temperature: divides the logits; 0 takes the likeliest token. top_k: only so many of the likeliest tokens are drawn
    from; None: all. seed: of the draws.
    """

    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0


@torch.no_grad()
def generate(
    model: nn.Module, prompt: Int64[Tensor, " time"], context: int, sampling: Sampling
) -> Int64[Tensor, " longer"]:
    """The prompt and `sampling.tokens` more tokens, each drawn from what the model expects behind those before it.

    Args:
        model: in evaluation mode; token ids (batch, time) to logits (batch, time, vocabulary).
        prompt: at least one token.
        context: the longest sequence that the model takes; earlier tokens are forgotten.
    """
    generator = torch.Generator().manual_seed(sampling.seed)
    device = next(model.parameters()).device
    tokens = prompt
    for _ in range(sampling.tokens):
        logits = model(tokens[None, -context:].to(device))[0, -1].float().cpu()
        tokens = torch.cat([tokens, draw(logits, sampling, generator)])
    return tokens


def draw(logits: Float[Tensor, " vocabulary"], sampling: Sampling, generator: torch.Generator) -> Int64[Tensor, "1"]:
    """One token."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if sampling.top_k is not None and sampling.top_k < len(logits):
        least = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    # from 0 down and in double precision: no temperature is too low for that
    cooled = (logits - logits.max()).double() / sampling.temperature
    return torch.multinomial(cooled.softmax(dim=-1).float(), 1, generator=generator)
