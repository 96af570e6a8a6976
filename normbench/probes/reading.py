"""What one probed step has shown, and the hooks that read it: each looks at what passes by, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normbench.probes import statistics
from normbench.probes.statistics import moments, rms, second_moment, tails, token_similarity


@dataclass(frozen=True)
class Wanted:
    """What is to be read; the same words as under `probes` in the configuration."""

    activations: bool = False
    gradients: bool = False
    parameters: bool = False
    tails: bool = False
    geometry: bool = False
    attention: bool = False
    updates: bool = False


def reads_only(read: Callable[..., None]) -> Callable[..., None]:
    """Return a hook without gradients, and in full precision where the forward pass is cast to 16 bits."""

    @torch.no_grad()
    def hook(reading: Reading, name: str, module: nn.Module, inputs: tuple[Tensor, ...], *rest: Any) -> None:
        with torch.autocast(inputs[0].device.type, enabled=False):
            read(reading, name, module, inputs, *rest)

    return hook


@dataclass
class Reading:
    """Numbers and histograms by tag, still on the device; second moments of features, whose ranks the host computes.

    The hooks are methods that begin with `see`; `name` is the place in the tags.
    """

    wanted: Wanted
    with_histograms: bool = False
    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    second_moments: dict[str, Tensor] = field(default_factory=dict)

    @reads_only
    def see_norm(self, name: str, norm: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Read what enters and what leaves a norm; of one whose output is bounded, how much reaches the bound."""
        for side, x in (("in", inputs[0]), ("out", output)):
            found = moments(x, norm.channel_dim) if self.wanted.activations else {}
            if self.wanted.tails:
                found |= tails(x, norm.channel_dim)
            self.scalars |= {f"act/{name}/{statistic}_{side}": value for statistic, value in found.items()}
            if self.with_histograms:
                self.histograms[f"act/{name}/{side}"] = statistics.histogram(x)
        if self.wanted.activations and hasattr(norm, "saturation"):
            self.scalars[f"act/{name}/saturated_out"] = norm.saturation(inputs[0])

    @reads_only
    def see_running(self, name: str, norm: Any, inputs: tuple[Tensor, ...]) -> None:
        """Read how far a batch is from the running statistics, before they are updated.

        mean_gap: root mean square over channels of (batch mean − running mean) / running std; std_ratio: mean of
        batch std / running std.
        """
        x = inputs[0].detach().float()
        others = [d for d in range(x.ndim) if d != norm.channel_dim % x.ndim]
        variance, mean = torch.var_mean(x, dim=others, correction=0)
        running_std = (norm.running_var + norm.eps).sqrt()
        self.scalars[f"norm/{name}/mean_gap"] = rms((mean - norm.running_mean) / running_std)
        self.scalars[f"norm/{name}/std_ratio"] = (variance.sqrt() / running_std).mean()

    @reads_only
    def see_stream(self, name: str, block: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Read the residual stream that leaves a block."""
        channel_dim = next(iter(block.branches.values())).channel_dim
        if self.wanted.activations:
            self.scalars[f"act/{name}/rms"] = rms(output)
        if self.wanted.geometry:
            self.second_moments[f"act/{name}/effective_rank"] = second_moment(output, channel_dim)
            if output[0].numel() > output.shape[channel_dim]:  # more than one position
                self.scalars[f"act/{name}/token_similarity"] = token_similarity(output, channel_dim)

    @reads_only
    def see_attention(
        self, name: str, branch: Any, inputs: tuple[Tensor, ...], context: dict[str, Any], output: Tensor
    ) -> None:
        """Read how attention is spread: mean entropy over heads and queries (nats), largest logit.

        The branch gives its logits (batch, heads, queries, keys) for an input, −∞ where nobody may look.
        """
        logits = branch.attention_logits(inputs[0].float(), **context)
        self.scalars[f"attention/{name}/entropy"] = statistics.entropy(logits)
        self.scalars[f"attention/{name}/largest_logit"] = logits.max()

    def numbers(self) -> dict[str, float]:
        """Return all numbers, in one copy from the device, and the effective ranks."""
        values = torch.stack([value.float() for value in self.scalars.values()]).tolist() if self.scalars else []
        ranks = {tag: statistics.effective_rank(moment.cpu().double()) for tag, moment in self.second_moments.items()}
        return dict(zip(self.scalars, values, strict=True)) | ranks

    def host_histograms(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return counts of values between edges, and the edges (one more), in two copies from the device."""
        counts, limits = (torch.stack(parts).tolist() for parts in zip(*self.histograms.values(), strict=True))
        edges = [torch.linspace(low, high, len(counts[0]) + 1, dtype=torch.float64).tolist() for low, high in limits]
        return dict(zip(self.histograms, zip(counts, edges, strict=True), strict=True))
