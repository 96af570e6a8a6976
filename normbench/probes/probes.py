"""Probes: what is measured inside the network, on the training step's own forward and backward pass.

They only read: hooks look at what passes by, gradients are read before they are clipped, and nothing leaves the device
before the step is done. Nothing random is drawn and nothing is changed: a run has the same bits without them. Where
a step takes several batches, what passes by is the last one's, and gradients are those of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from normbench.probes.reading import Reading, Wanted
from normbench.probes.statistics import total_norm
from normbench.types import Model, Norm

SYMBOLS = {"weight": "gamma", "bias": "beta"}


class Probes:
    """Knows where to look in a model. `norms` are the model's norms by the name of their site."""

    def __init__(self, model: Model, norms: Mapping[str, nn.Module], wanted: Wanted) -> None:
        self.blocks: dict[str, Any] = {f"{layer:02d}": block for layer, block in enumerate(model.blocks)}
        self.norms, self.wanted = norms, wanted
        self.groups = parameter_groups(model, self.blocks, norms.values())

    @contextmanager
    def watch(self, histograms: bool = False) -> Iterator[Reading]:
        """Look at the forward and backward pass inside the `with`; the reading is complete behind it."""
        reading = Reading(self.wanted, histograms)
        handles = list(self.attach(reading))
        try:
            yield reading
        finally:
            for handle in handles:
                handle.remove()
        with torch.no_grad():
            if self.wanted.gradients:
                self.read_gradients(reading)
            if self.wanted.parameters:
                self.read_parameters(reading)

    @contextmanager
    def watch_update(self, reading: Reading | None) -> Iterator[None]:
        """Add to a reading, if there is one, how far the optimizer's step inside the `with` moves the weights."""
        if reading is None or not self.wanted.updates:
            yield
            return
        before = {tag: [p.detach().clone() for p in parameters] for tag, parameters in self.groups.items()}
        yield
        with torch.no_grad():
            for tag, parameters in self.groups.items():
                moved = total_norm([new - old for new, old in zip(parameters, before[tag], strict=True)])
                reading.scalars[f"update/{tag}/ratio"] = moved / total_norm(before[tag])

    def attach(self, reading: Reading) -> Iterator[RemovableHandle]:
        """Put hooks on norms, blocks and attention."""
        wanted = self.wanted
        for name, norm in self.norms.items():
            if wanted.activations or wanted.tails or reading.with_histograms:
                yield norm.register_forward_hook(partial(reading.see_norm, name))
            if wanted.parameters and isinstance(norm, Norm) and getattr(norm, "running_mean", None) is not None:
                yield norm.register_forward_pre_hook(partial(reading.see_running, name))
        for layer, block in self.blocks.items():
            if wanted.activations or wanted.geometry:
                yield block.register_forward_hook(partial(reading.see_stream, f"stream{layer}"))
            for role, branch in block.branches.items():
                if wanted.attention and hasattr(branch, "attention_logits"):
                    hook = partial(reading.see_attention, f"block{layer}.{role}")
                    yield branch.register_forward_hook(hook, with_kwargs=True)

    def read_gradients(self, reading: Reading) -> None:
        """Read the norm of each group's gradients."""
        for tag, parameters in self.groups.items():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients:
                reading.scalars[f"grad/{tag}/norm"] = total_norm(gradients)

    def read_parameters(self, reading: Reading) -> None:
        """Read the norms' parameters: those of one number, or mean and standard deviation."""
        for name, norm in self.norms.items():
            for parameter_name, tensor in norm.named_parameters():
                tag = f"norm/{name}/{SYMBOLS.get(parameter_name, parameter_name)}"
                if tensor.numel() == 1:
                    reading.scalars[tag] = tensor.detach().squeeze()
                else:
                    reading.scalars[f"{tag}_mean"] = tensor.mean()
                    reading.scalars[f"{tag}_std"] = tensor.std(correction=0)


def parameter_groups(
    model: Model, blocks: Mapping[str, Any], norms: Iterable[nn.Module]
) -> dict[str, list[nn.Parameter]]:
    """Return the parameters by where they are, each in one group.

    Each branch of a block without its norms (`block03.mlp`), all norms of the block (`block03.norms`), what else the
    block has (`block03.placement`), and the rest (`outside`).
    """
    in_norms = {parameter for norm in norms for parameter in norm.parameters()}
    parts: list[tuple[str, Iterable[nn.Parameter]]] = []
    for layer, block in blocks.items():
        of_norms = in_norms.union(block.norms.parameters())
        parts.append((f"block{layer}.norms", [each for each in block.parameters() if each in of_norms]))
        parts += [(f"block{layer}.{role}", branch.parameters()) for role, branch in block.branches.items()]
        parts.append((f"block{layer}.placement", block.parameters()))
    tags: dict[nn.Parameter, str] = {}
    for tag, parameters in [*parts, ("outside", model.parameters())]:
        tags |= {parameter: tag for parameter in parameters if parameter not in tags}
    return {tag: [each for each in tags if tags[each] == tag] for tag in dict.fromkeys(tags.values())}
