"""Probes: what is measured inside the network, on the training step's own forward and backward pass.

They only read: hooks look at what passes by, gradients are read before they are clipped, and nothing leaves the device
before the step is done, but for the number of real tokens where texts are padded: what is read of norms leaves out
padding. Nothing random is drawn and nothing is changed: a run has the same bits without them. Where a step takes
several batches, what passes by is the last one's, and gradients are those of all. Of a norm in a recurrent cell, which
is called at each time step, numbers are the mean over its calls, and histograms the first call's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.probes import tensor_statistics as stats
from normbench.types import Block, InnerAttention, Model, Norm

SYMBOLS = {"weight": "gamma", "bias": "beta"}


def quietly(
    read: Callable[..., None], name: str, module: nn.Module, inputs: tuple[Tensor, ...], *rest: Any, **more: Any
) -> None:
    """Call a hook without gradients, and in full precision where the forward pass is cast to 16 bits."""
    with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        read(name, module, inputs, *rest, **more)


def without_padding(x: Tensor, norm: Any, context: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the real positions of what a norm was given with a mask, or all of x, and where its features are."""
    mask = context.get("mask")
    if mask is None:
        return x, norm.channel_dim
    return x.movedim(norm.channel_dim, -1)[mask], -1


Place = tuple[str, str]  # what comes in a tag before the word of a number, and what after it
Describe = Callable[[Sequence[Any]], dict[str, Tensor]]  # makes numbers of what was read, one of each, by word


@dataclass
class Reading:
    """Numbers and histograms by tag, still on the device; second moments of features, whose ranks the host computes.

    The hooks are methods that begin with `see`; `name` is the place in the tags. They read what is gone afterwards and
    leave the rest to `finish`, which makes the numbers of all places at once.
    """

    wanted: Collection[str]
    with_histograms: bool = False
    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    second_moments: dict[str, Tensor] = field(default_factory=dict)
    calls: dict[Describe, dict[Place, list[Any]]] = field(default_factory=dict)

    def begin(self, *_: Any) -> None:
        """Let the calls of norms in another forward pass begin."""
        self.calls.clear()
        self.histograms.clear()

    def keep(self, describe: Describe, place: Place, read: Any) -> None:
        """Take in what was read in one call at a place."""
        places = self.calls.setdefault(describe, {})
        places.setdefault(place, []).append(read)

    def finish(self) -> None:
        """Make numbers of what was read: the mean over a place's calls, but for those without a number."""
        for describe, places in self.calls.items():
            every_call = [read for calls in places.values() for read in calls]
            found = describe(every_call)
            numbers = torch.stack([*found.values()])
            counts = [len(calls) for calls in places.values()]
            for (before, after), own in zip(places, numbers.split(counts, dim=1), strict=True):
                _, calls_here = own.shape
                means = own.nanmean(dim=1) if calls_here > 1 else own[:, 0]
                for word, mean in zip(found, means.unbind(), strict=True):
                    self.scalars[f"{before}{word}{after}"] = mean
        self.calls.clear()

    def see_norm(
        self, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any], output: Tensor
    ) -> None:
        """Read what enters and what leaves a norm; of one whose output is bounded, how much reaches the bound."""
        entering, channel_dim = without_padding(inputs[0], norm, context)
        self.see_side(f"act/{name}/", "in", entering, channel_dim)
        if "activations" in self.wanted and hasattr(norm, "saturation"):
            self.keep(saturation, (f"act/{name}/", "_out"), norm.saturation(entering))
        leaving, channel_dim = without_padding(output, norm, context)
        self.see_side(f"act/{name}/", "out", leaving, channel_dim)

    def see_side(self, place: str, side: str, x: Tensor, channel_dim: int) -> None:
        """Read what is on one side of a norm, `in` or `out`."""
        if "activations" in self.wanted:
            self.keep(stats.moments, (place, f"_{side}"), stats.activation(x, channel_dim))
        if "tails" in self.wanted:
            self.keep(stats.tails, (place, f"_{side}"), stats.tail(x, channel_dim))
        if self.with_histograms and place + side not in self.histograms:
            self.histograms[place + side] = stats.histogram(x)

    def see_running(self, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any]) -> None:
        """Read how far a batch is from the running statistics, before they are updated."""
        counted = context if getattr(norm, "masked", False) else {}
        x, channel_dim = without_padding(inputs[0].detach().float(), norm, counted)
        variance, mean = torch.var_mean(x, dim=stats.all_but(x, channel_dim), correction=0)
        read = torch.stack((mean, variance, norm.running_mean, norm.running_var + norm.eps))
        self.keep(stats.gaps, (f"norm/{name}/", ""), read)

    def see_stream(
        self, name: str, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, *, channel_dim: int
    ) -> None:
        """Read the residual stream that leaves a block."""
        if "activations" in self.wanted:
            self.keep(roots, (f"act/{name}/", ""), stats.mean_square(output))
        if "geometry" in self.wanted:
            self.second_moments[f"act/{name}/effective_rank"] = stats.second_moment(output, channel_dim)
            several_positions = output[0].numel() > output.shape[channel_dim]
            if several_positions:
                self.scalars[f"act/{name}/token_similarity"] = stats.token_similarity(output, channel_dim)

    def see_attention(self, name: str, inner: InnerAttention, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Read how attention is spread: mean entropy over heads and queries (nats), largest logit.

        inputs: what the inner attention was called with, which in 16 bits has been rounded.
        """
        q, k, _, mask = inputs
        precise = torch.promote_types(q.dtype, torch.float32)
        logits = inner.logits(q.to(precise), k.to(precise), mask)
        self.scalars[f"attention/{name}/entropy"] = stats.entropy(logits)
        self.scalars[f"attention/{name}/largest_logit"] = logits.max()

    def numbers(self) -> dict[str, float]:
        """Return all numbers, in one copy from the device, and the effective ranks, in one more for each width."""
        scalars = [whole(value).float() for value in self.scalars.values()]
        values = torch.stack(scalars).tolist() if scalars else []
        return dict(zip(self.scalars, values, strict=True)) | self.ranks()

    def ranks(self) -> dict[str, float]:
        """Return the effective ranks."""
        found = {}
        for tags, moments in by_shape(self.second_moments.items()):
            on_host = torch.stack(moments).cpu().double()
            for tag, moment in zip(tags, on_host, strict=True):
                found[tag] = stats.effective_rank(moment)
        return found

    def host_histograms(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return counts of values between edges, and the edges (one more), in two copies from the device."""
        counts, limits = zip(*self.histograms.values(), strict=True)
        counts_here = torch.stack(counts).tolist()
        limits_here = torch.stack(limits).tolist()
        found = {}
        for tag, own, (low, high) in zip(self.histograms, counts_here, limits_here, strict=True):
            edges = torch.linspace(low, high, len(own) + 1, dtype=torch.float64)
            found[tag] = (own, edges.tolist())
        return found


def roots(seen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the root mean squares of what has these mean squares."""
    return {"rms": torch.stack([*seen]).sqrt()}


def saturation(seen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the shares of values that are at the bound."""
    return {"saturated": torch.stack([*seen])}


def whole(value: Any) -> Tensor:
    """Return a number as it is; one of weights that several processes share, as the whole of its parts."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def by_shape(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[list[str], list[Tensor]]]:
    """Yield the names and tensors of each shape together."""
    found = defaultdict[torch.Size, list[tuple[str, Tensor]]](list)
    for name, tensor in tensors:
        found[tensor.shape].append((name, tensor))
    for pairs in found.values():
        yield [name for name, _ in pairs], [tensor for _, tensor in pairs]


class Probes:
    """Knows where to look in a model. wanted: words under `probes` in the configuration that are true."""

    def __init__(self, model: Model, wanted: Collection[str]) -> None:
        anatomy = model.anatomy()
        self.model = model
        self.blocks = anatomy.blocks
        self.norms = anatomy.norms
        self.wanted = wanted
        self.groups = by_place(model, self.blocks, self.norms.values())
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    @contextmanager
    def watch(self, histograms: bool = False) -> Iterator[Reading]:
        """Look at the forward and backward pass inside the `with`; the reading is complete after it."""
        reading = Reading(self.wanted, histograms)
        handles = list(self.attach(reading))
        try:
            yield reading
        finally:
            for handle in handles:
                handle.remove()
        with torch.no_grad():
            reading.finish()
            if "gradients" in self.wanted:
                self.read_gradients(reading)
            if "parameters" in self.wanted:
                self.read_parameters(reading)

    def attach(self, reading: Reading) -> Iterator[Any]:
        """Put hooks on norms, blocks and attention."""
        yield self.model.register_forward_pre_hook(reading.begin)
        for name, norm in self.norms.items():
            yield norm.register_forward_hook(partial(quietly, reading.see_norm, name), with_kwargs=True)
            if "parameters" in self.wanted and tracks_features(norm):
                see = partial(quietly, reading.see_running, name)
                yield norm.register_forward_pre_hook(see, with_kwargs=True)
        for block in self.blocks:
            see = partial(quietly, reading.see_stream, f"stream{block.layer:02d}", channel_dim=block.channel_dim)
            yield block.module.register_forward_hook(see)
            if "attention" in self.wanted:
                for role, inner in block.attention().items():
                    see = partial(quietly, reading.see_attention, f"{block.name}.{role}")
                    yield inner.register_forward_hook(see)

    @contextmanager
    def watch_update(self, reading: Reading | None, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Add to a reading, if there is one, how far the optimizer's step inside the `with` moves the weights.

        effective_lr: the rate at which the direction of weights moves that a norm makes free of their scale: lr / ‖w‖²
        with SGD, lr / ‖w‖ with the others, whose steps do not shrink with the gradient's scale (van Laarhoven 2017, §3;
        Hoffer et al. 2018, §3).
        """
        if reading is None or "updates" not in self.wanted:
            yield
            return
        weights = [parameter.detach() for parameters in self.groups.values() for parameter in parameters]
        sizes = [len(parameters) for parameters in self.groups.values()]
        before = torch._foreach_mul(weights, 1)  # a copy
        lr = optimizer.param_groups[0]["lr"]
        power = 2 if isinstance(optimizer, torch.optim.SGD) else 1
        yield
        with torch.no_grad():
            steps = torch._foreach_sub(weights, before)
            moved = torch.stack(stats.total_norms(split(steps, sizes)))
            size = torch.stack(stats.total_norms(split(before, sizes)))
            ratios = moved / size
            rates = lr / size**power
        for tag, ratio, rate in zip(self.groups, ratios.unbind(), rates.unbind(), strict=True):
            reading.scalars[f"update/{tag}/ratio"] = ratio
            if not tag.endswith(".norms"):
                reading.scalars[f"update/{tag}/effective_lr"] = rate

    def read_noise(self, reading: Reading, gradients: Iterable[Sequence[Tensor]], size: int) -> None:
        """Add to a reading how the gradients of micro-batches, of so many examples each, differ from one another.

        gradients: of each, those of all trained parameters, in the order of `trained`.
        """
        variances, squared = stats.gradient_noise(gradients, size)
        of_parameter = dict(zip(self.trained, variances.unbind(), strict=True))
        parts = {}
        for tag, parameters in self.groups.items():
            own = [of_parameter[parameter] for parameter in parameters if parameter in of_parameter]
            if own:
                parts[tag] = own
        joined = torch.stack([variance for own in parts.values() for variance in own])
        sizes = [len(own) for own in parts.values()]
        for tag, together in zip(parts, joined.split(sizes), strict=True):
            reading.scalars[f"noise/{tag}/variance"] = together.sum()
        total = variances.sum()
        reading.scalars["noise/variance"] = total
        reading.scalars["noise/squared_gradient"] = squared
        reading.scalars["noise/scale"] = total / squared

    def read_gradients(self, reading: Reading) -> None:
        """Read the norm of each group's gradients."""
        gradients = {}
        for tag, parameters in self.groups.items():
            own = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if own:
                gradients[tag] = own
        if not gradients:
            return
        norms = stats.total_norms(list(gradients.values()))
        for tag, norm in zip(gradients, norms, strict=True):
            reading.scalars[f"grad/{tag}/norm"] = norm

    def read_parameters(self, reading: Reading) -> None:
        """Read of each of the norms' parameters its one number, or mean and deviation."""
        for tags, tensors in by_shape(self.norm_parameters()):
            rows = torch.stack(tensors).flatten(1)  # a copy: the optimizer's step moves them
            if rows.shape[1] == 1:
                for tag, number in zip(tags, rows[:, 0].unbind(), strict=True):
                    reading.scalars[tag] = number
                continue
            means = rows.mean(dim=1)
            stds = rows.std(dim=1, correction=0)
            for tag, mean, std in zip(tags, means, stds, strict=True):
                reading.scalars[f"{tag}_mean"] = mean
                reading.scalars[f"{tag}_std"] = std

    def norm_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tag and value of each parameter of a norm."""
        for name, norm in self.norms.items():
            for parameter_name, tensor in norm.named_parameters():
                symbol = SYMBOLS.get(parameter_name, parameter_name)
                yield f"norm/{name}/{symbol}", tensor.detach()


def tracks_features(norm: nn.Module) -> bool:
    """Tell whether this is a norm of ours with running statistics of each feature, and not of each position."""
    return isinstance(norm, Norm) and getattr(getattr(norm, "running_mean", None), "ndim", 0) == 1


def split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Sequence[Tensor]]:
    """Return so many of the tensors after one another in each group."""
    groups = []
    start = 0
    for size in sizes:
        groups.append(tensors[start : start + size])
        start += size
    return groups


def by_place(model: Model, blocks: Iterable[Block], norms: Iterable[nn.Module]) -> dict[str, list[nn.Parameter]]:
    """Return the parameters by where they are, each in one group.

    Each branch of a block without its norms (`block03.mlp`), all norms of the block (`block03.norms`), what else the
    block has (`block03.placement`), and the rest (`outside`).
    """
    in_norms = {parameter for norm in norms for parameter in norm.parameters()}
    parts: list[tuple[str, Iterable[nn.Parameter]]] = []
    for block in blocks:
        whole_block = list(block.module.parameters())
        of_norms = [parameter for parameter in whole_block if parameter in in_norms]
        parts.append((f"{block.name}.norms", of_norms))
        for role, branch in block.branches.items():
            parts.append((f"{block.name}.{role}", branch.parameters()))
        parts.append((f"{block.name}.placement", whole_block))
    parts.append(("outside", model.parameters()))
    placed = set[nn.Parameter]()
    groups = {}
    for tag, parameters in parts:
        own = [each for each in parameters if each not in placed]
        if own:
            groups[tag] = own
            placed.update(own)
    return groups
