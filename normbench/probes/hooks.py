"""Hooks that read what passes by: each writes numbers of one place into a reading, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from normbench.probes.reading import Reading, Wanted
from normbench.probes.statistics import entropy, histogram, moments, rms, second_moment, tails, token_similarity

Hook = Callable[..., None]


@runtime_checkable
class Saturating(Protocol):
    """A norm whose output is bounded; `saturation` is the share of values of its input that reach the bound."""

    def saturation(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class Attending(Protocol):
    """A branch with attention: its logits (batch, heads, queries, keys) for an input, −∞ where nobody may look."""

    def attention_logits(self, x: Tensor, **context: Any) -> Tensor: ...


def reads_only(hook: Hook) -> Hook:
    """Return the hook without gradients, and in full precision where the forward pass is cast to 16 bits."""

    @torch.no_grad()
    def run(module: nn.Module, inputs: tuple[Tensor, ...], *rest: Any) -> None:
        with torch.autocast(inputs[0].device.type, enabled=False):
            hook(module, inputs, *rest)

    return run


def norm_hook(reading: Reading, name: str, wanted: Wanted, histograms: bool) -> Hook:
    """Return a hook that reads what enters and what leaves a norm."""

    @reads_only
    def hook(norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        channel_dim: int = getattr(norm, "channel_dim", -1)
        for side, x in (("in", inputs[0]), ("out", output)):
            found = moments(x, channel_dim) if wanted.activations else {}
            if wanted.tails:
                found |= tails(x, channel_dim)
            reading.scalars |= {f"act/{name}/{statistic}_{side}": value for statistic, value in found.items()}
            if histograms:
                reading.histograms[f"act/{name}/{side}"] = histogram(x)
        if wanted.activations and isinstance(norm, Saturating):
            reading.scalars[f"act/{name}/saturated_out"] = norm.saturation(inputs[0])

    return hook


def running_hook(reading: Reading, name: str) -> Hook:
    """Return a hook that reads how far a batch is from the running statistics, before they are updated.

    mean_gap: root mean square over channels of (batch mean − running mean) / running std; std_ratio: mean of
    batch std / running std.
    """

    @reads_only
    def hook(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().float()
        others = [d for d in range(x.ndim) if d != norm.channel_dim % x.ndim]
        variance, mean = torch.var_mean(x, dim=others, correction=0)
        running_std = (norm.running_var + norm.eps).sqrt()
        reading.scalars[f"norm/{name}/mean_gap"] = rms((mean - norm.running_mean) / running_std)
        reading.scalars[f"norm/{name}/std_ratio"] = (variance.sqrt() / running_std).mean()

    return hook


def stream_hook(reading: Reading, layer: int, channel_dim: int, wanted: Wanted) -> Hook:
    """Return a hook that reads the residual stream that leaves a block."""

    @reads_only
    def hook(block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        tag = f"act/stream{layer:02d}"
        if wanted.activations:
            reading.scalars[f"{tag}/rms"] = rms(output)
        if wanted.geometry:
            reading.second_moments[f"{tag}/effective_rank"] = second_moment(output, channel_dim)
            if output[0].numel() > output.shape[channel_dim]:  # more than one position
                reading.scalars[f"{tag}/token_similarity"] = token_similarity(output, channel_dim)

    return hook


def attention_hook(reading: Reading, name: str) -> Hook:
    """Return a hook that reads how attention is spread: mean entropy over heads and queries (nats), largest logit."""

    @reads_only
    def hook(branch: Attending, inputs: tuple[Tensor, ...], context: dict[str, Any], output: Tensor) -> None:
        logits = branch.attention_logits(inputs[0].float(), **context)
        reading.scalars[f"attention/{name}/entropy"] = entropy(logits)
        reading.scalars[f"attention/{name}/largest_logit"] = logits.max()

    return hook
