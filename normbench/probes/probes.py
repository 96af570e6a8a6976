"""Probes: what is measured inside the network, on the training step's own forward and backward pass.

They only read: hooks look at what passes by, gradients are read before they are clipped, and all numbers of a step
leave the device in one copy. Nothing random is drawn and nothing is changed: a run has the same bits without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normbench.probes.statistics import DeviceHistogram, Histogram, between, histogram, moments, rms, total_norm
from normbench.types import Branch, Model, Norm, Placement


@dataclass
class Reading:
    """What one probed step has shown: numbers and histograms by tag, still on the device."""

    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, DeviceHistogram] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """All numbers, in one copy from the device."""
        if not self.scalars:
            return {}
        values = torch.stack([value.float() for value in self.scalars.values()]).tolist()
        return dict(zip(self.scalars, values, strict=True))

    def host_histograms(self) -> dict[str, Histogram]:
        """All histograms, in two copies from the device."""
        found = self.histograms.values()
        counts = torch.stack([histogram.counts for histogram in found]).tolist()
        limits = torch.stack([histogram.limits for histogram in found]).tolist()
        made = [between(c, *low_high) for c, low_high in zip(counts, limits, strict=True)]
        return dict(zip(self.histograms, made, strict=True))


class Probes:
    """Knows where to look in a model. `norms` are the model's norms by the name of their site."""

    def __init__(
        self, model: Model, norms: Mapping[str, nn.Module], *, activations: bool, gradients: bool, parameters: bool
    ) -> None:
        self.model = model
        self.norms = norms
        self.activations, self.gradients, self.parameters = activations, gradients, parameters
        self.gradient_groups = gradient_groups(model)

    @contextmanager
    def watch(self, histograms: bool = False) -> Iterator[Reading]:
        """Look at the forward and backward pass inside the `with`; the reading is complete behind it."""
        reading = Reading()
        handles = list(self.attach(reading, histograms))
        try:
            yield reading
        finally:
            for handle in handles:
                handle.remove()
        with torch.no_grad():
            if self.gradients:
                self.read_gradients(reading)
            if self.parameters:
                self.read_parameters(reading)

    def attach(self, reading: Reading, histograms: bool) -> Iterator[RemovableHandle]:
        """Hooks on every norm, and on every block for the residual stream."""
        if self.activations or histograms:
            for name, norm in self.norms.items():
                yield norm.register_forward_hook(norm_hook(reading, name, self.activations, histograms))
        if self.parameters:
            for name, norm in self.norms.items():
                if isinstance(norm, Norm) and isinstance(getattr(norm, "running_mean", None), Tensor):
                    yield norm.register_forward_pre_hook(running_hook(reading, name))
        if self.activations:
            for layer, block in enumerate(self.model.blocks):
                yield block.register_forward_hook(stream_hook(reading, layer))

    def read_gradients(self, reading: Reading) -> None:
        for tag, parameters in self.gradient_groups.items():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients:
                reading.scalars[f"grad/{tag}/norm"] = total_norm(gradients)

    def read_parameters(self, reading: Reading) -> None:
        for name, norm in self.norms.items():
            for parameter_name, tensor in norm.named_parameters():
                tag = f"norm/{name}/{SYMBOLS.get(parameter_name, parameter_name)}"
                if tensor.numel() == 1:
                    reading.scalars[tag] = tensor.detach().squeeze()
                else:
                    reading.scalars[f"{tag}_mean"] = tensor.mean()
                    reading.scalars[f"{tag}_std"] = tensor.std(correction=0)


SYMBOLS = {"weight": "gamma", "bias": "beta"}


@runtime_checkable
class Saturating(Protocol):
    """A norm whose output is bounded; `saturation` is the share of values of its input that reach the bound."""

    def saturation(self, x: Tensor) -> Tensor: ...


Hook = Callable[[nn.Module, Any, Any], None]


def norm_hook(reading: Reading, name: str, scalars: bool, histograms: bool) -> Hook:
    """Reads what enters and what leaves a norm."""

    @torch.no_grad()
    def hook(norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        channel_dim = norm.channel_dim if isinstance(norm, Norm) else -1
        for side, x in (("in", inputs[0]), ("out", output)):
            if scalars:
                for statistic, value in moments(x, channel_dim).items():
                    reading.scalars[f"act/{name}/{statistic}_{side}"] = value
            if histograms:
                reading.histograms[f"act/{name}/{side}"] = histogram(x)
        if scalars and isinstance(norm, Saturating):
            reading.scalars[f"act/{name}/saturated_out"] = norm.saturation(inputs[0])

    return hook


def running_hook(reading: Reading, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """Reads how far a batch is from the running statistics that evaluation would use, before they are updated.

    mean_gap: root mean square over channels of (batch mean − running mean) / running std; std_ratio: mean of
    batch std / running std.
    """

    @torch.no_grad()
    def hook(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().float()
        others = [d for d in range(x.ndim) if d != norm.channel_dim % x.ndim]
        variance, mean = torch.var_mean(x, dim=others, correction=0)
        running_std = (norm.running_var + norm.eps).sqrt()
        reading.scalars[f"norm/{name}/mean_gap"] = rms((mean - norm.running_mean) / running_std)
        reading.scalars[f"norm/{name}/std_ratio"] = (variance.sqrt() / running_std).mean()

    return hook


def stream_hook(reading: Reading, layer: int) -> Hook:
    """Reads the residual stream that leaves a block."""

    def hook(block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        reading.scalars[f"act/stream{layer:02d}/rms"] = rms(output)

    return hook


def gradient_groups(model: Model) -> dict[str, list[nn.Parameter]]:
    """Parameters by where their gradient is read: each branch of a block (`block03.mlp`), its norms, and the rest."""
    groups: dict[str, list[nn.Parameter]] = {}
    inside: set[int] = set()
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Placement)
        for role, branch in block.branches.items():
            assert isinstance(branch, Branch)
            groups[f"block{layer:02d}.{role}"] = list(branch.parameters())
        groups[f"block{layer:02d}.norms"] = list(block.norms.parameters())
        inside |= {id(parameter) for parameter in block.parameters()}
    groups["outside"] = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return {tag: parameters for tag, parameters in groups.items() if parameters}
