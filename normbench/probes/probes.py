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
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from normbench.probes import statistics
from normbench.types import Model, Norm

SYMBOLS = {"weight": "gamma", "bias": "beta"}


def quietly(read: Callable[..., None], name: str, module: nn.Module, inputs: tuple[Tensor, ...], *rest: Any) -> None:
    """Call a hook without gradients, and in full precision where the forward pass is cast to 16 bits."""
    with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        read(name, module, inputs, *rest)


def without_padding(x: Tensor, norm: Any, context: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the real positions of what a norm was given with a mask, or all of x, and where its features are."""
    mask = context.get("mask")
    return (x, norm.channel_dim) if mask is None else (x.movedim(norm.channel_dim, -1)[mask], -1)


Place = tuple[str, str]  # what comes in a tag before the word of a number, and what behind it
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
        self.calls.setdefault(describe, {}).setdefault(place, []).append(read)

    def finish(self) -> None:
        """Make numbers of what was read: the mean over a place's calls, but for those without a number."""
        for describe, places in self.calls.items():
            found = describe([read for calls in places.values() for read in calls])
            numbers = torch.stack([*found.values()])
            parts = numbers.split([len(calls) for calls in places.values()], dim=1)
            for (before, behind), part in zip(places, parts, strict=True):
                means = part.nanmean(dim=1) if part.shape[1] > 1 else part[:, 0]
                tags = [f"{before}{word}{behind}" for word in found]
                self.scalars.update(zip(tags, means.unbind(), strict=True))
        self.calls.clear()

    def see_norm(
        self, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any], output: Tensor
    ) -> None:
        """Read what enters and what leaves a norm; of one whose output is bounded, how much reaches the bound."""
        for side, whole in (("in", inputs[0]), ("out", output)):
            x, channel_dim = without_padding(whole, norm, context)
            place = (f"act/{name}/", f"_{side}")
            if "activations" in self.wanted:
                self.keep(statistics.moments, place, statistics.activation(x, channel_dim))
            if "tails" in self.wanted:
                self.keep(statistics.tails, place, statistics.tail(x, channel_dim))
            if self.with_histograms and f"act/{name}/{side}" not in self.histograms:
                self.histograms[f"act/{name}/{side}"] = statistics.histogram(x)
            if side == "in" and "activations" in self.wanted and hasattr(norm, "saturation"):
                self.keep(saturation, (f"act/{name}/", "_out"), norm.saturation(x))

    def see_running(self, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any]) -> None:
        """Read how far a batch is from the running statistics, before they are updated."""
        told = context if getattr(norm, "masked", False) else {}
        x, channel_dim = without_padding(inputs[0].detach().float(), norm, told)
        variance, mean = torch.var_mean(x, dim=statistics.all_but(x, channel_dim), correction=0)
        read = torch.stack((mean, variance, norm.running_mean, norm.running_var + norm.eps))
        self.keep(statistics.gaps, (f"norm/{name}/", ""), read)

    def see_stream(self, name: str, block: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Read the residual stream that leaves a block."""
        channel_dim = next(iter(block.branches.values())).channel_dim
        if "activations" in self.wanted:
            self.keep(roots, (f"act/{name}/", ""), statistics.mean_square(output))
        if "geometry" in self.wanted:
            self.second_moments[f"act/{name}/effective_rank"] = statistics.second_moment(output, channel_dim)
            if output[0].numel() > output.shape[channel_dim]:  # more than one position
                self.scalars[f"act/{name}/token_similarity"] = statistics.token_similarity(output, channel_dim)

    def see_attention(
        self, name: str, branch: Any, inputs: tuple[Tensor, ...], context: dict[str, Any], output: Tensor
    ) -> None:
        """Read how attention is spread: mean entropy over heads and queries (nats), largest logit.

        The branch gives its logits (batch, heads, queries, keys) for an input, −∞ where nobody may look.
        """
        precise = torch.promote_types(inputs[0].dtype, torch.float32)
        logits = branch.attention_logits(inputs[0].to(precise), **context)
        self.scalars[f"attention/{name}/entropy"] = statistics.entropy(logits)
        self.scalars[f"attention/{name}/largest_logit"] = logits.max()

    def numbers(self) -> dict[str, float]:
        """Return all numbers, in one copy from the device, and the effective ranks, in one more for each width."""
        scalars = [complete(value).float() for value in self.scalars.values()]
        values = torch.stack(scalars).tolist() if scalars else []
        return dict(zip(self.scalars, values, strict=True)) | self.ranks()

    def ranks(self) -> dict[str, float]:
        """Return the effective ranks."""
        found = dict[str, float]()
        for tags, moments in alike(self.second_moments.items()):
            on_host = torch.stack(moments).cpu().double()
            found |= {tag: statistics.effective_rank(moment) for tag, moment in zip(tags, on_host, strict=True)}
        return found

    def host_histograms(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return counts of values between edges, and the edges (one more), in two copies from the device."""
        counts, limits = (torch.stack(parts).tolist() for parts in zip(*self.histograms.values(), strict=True))
        edges = [torch.linspace(low, high, len(counts[0]) + 1, dtype=torch.float64).tolist() for low, high in limits]
        return dict(zip(self.histograms, zip(counts, edges, strict=True), strict=True))


def roots(seen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the root mean squares of what has these mean squares."""
    return {"rms": torch.stack([*seen]).sqrt()}


def saturation(seen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the shares of values that are at the bound."""
    return {"saturated": torch.stack([*seen])}


def complete(value: Any) -> Tensor:
    """Return a number as it is; one of weights that several processes share, as the whole of its parts."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def alike(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[list[str], list[Tensor]]]:
    """Yield the names and tensors of each shape together."""
    found = defaultdict[torch.Size, list[tuple[str, Tensor]]](list)
    for name, tensor in tensors:
        found[tensor.shape].append((name, tensor))
    for pairs in found.values():
        yield [name for name, _ in pairs], [tensor for _, tensor in pairs]


class Probes:
    """Knows where to look in a model.

    norms: the model's norms by the name of their site. wanted: words under `probes` in the configuration that are true.
    """

    def __init__(self, model: Model, norms: Mapping[str, nn.Module], wanted: Collection[str]) -> None:
        self.blocks: dict[str, Any] = {f"{layer:02d}": block for layer, block in enumerate(model.blocks)}
        self.model, self.norms, self.wanted = model, norms, wanted
        self.groups = by_place(model, self.blocks, norms.values())
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

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
            reading.finish()
            self.read_parameters(reading)

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
        before = torch._foreach_mul(weights, 1)
        lr, power = optimizer.param_groups[0]["lr"], 2 if isinstance(optimizer, torch.optim.SGD) else 1
        yield
        with torch.no_grad():
            moved = torch.stack(statistics.total_norms(in_groups(torch._foreach_sub(weights, before), sizes)))
            size = torch.stack(statistics.total_norms(in_groups(before, sizes)))
            ratios, rates = moved / size, lr / size**power
        for tag, ratio, rate in zip(self.groups, ratios.unbind(), rates.unbind(), strict=True):
            reading.scalars[f"update/{tag}/ratio"] = ratio
            if not tag.endswith(".norms"):
                reading.scalars[f"update/{tag}/effective_lr"] = rate

    def read_noise(self, reading: Reading, gradients: Iterable[Sequence[Tensor]], size: int) -> None:
        """Add to a reading how the gradients of micro-batches, of so many examples each, differ from one another.

        gradients: of each, those of all trained parameters, in the order of `trained`.
        """
        variances, squared = statistics.gradient_noise(gradients, size)
        known = dict(zip(self.trained, variances.unbind(), strict=True))
        parts = {tag: [known[each] for each in own if each in known] for tag, own in self.groups.items()}
        parts = {tag: own for tag, own in parts.items() if own}
        joined = torch.stack([variance for own in parts.values() for variance in own])
        for tag, own in zip(parts, joined.split([len(own) for own in parts.values()]), strict=True):
            reading.scalars[f"noise/{tag}/variance"] = own.sum()
        total = variances.sum()
        reading.scalars |= {"noise/variance": total, "noise/squared_gradient": squared, "noise/scale": total / squared}

    def attach(self, reading: Reading) -> Iterator[Any]:
        """Put hooks on norms, blocks and attention."""
        yield self.model.register_forward_pre_hook(reading.begin)
        for name, norm in self.norms.items():
            yield norm.register_forward_hook(partial(quietly, reading.see_norm, name), with_kwargs=True)
            tracks = isinstance(norm, Norm) and getattr(getattr(norm, "running_mean", None), "ndim", 0) == 1
            if tracks and "parameters" in self.wanted:
                see = partial(quietly, reading.see_running, name)
                yield norm.register_forward_pre_hook(see, with_kwargs=True)
        for layer, block in self.blocks.items():
            yield block.register_forward_hook(partial(quietly, reading.see_stream, f"stream{layer}"))
            for role, branch in block.branches.items():
                if "attention" in self.wanted and hasattr(branch, "attention_logits"):
                    see = partial(quietly, reading.see_attention, f"block{layer}.{role}")
                    yield branch.register_forward_hook(see, with_kwargs=True)

    def read_parameters(self, reading: Reading) -> None:
        """Read the norm of each group's gradients; of the norms' parameters the one number, or mean and deviation."""
        if "gradients" in self.wanted:
            known = {tag: [each.grad for each in own if each.grad is not None] for tag, own in self.groups.items()}
            given = {tag: gradients for tag, gradients in known.items() if gradients}
            norms = statistics.total_norms([*given.values()]) if given else []
            reading.scalars.update(zip([f"grad/{tag}/norm" for tag in given], norms, strict=True))
        if "parameters" in self.wanted:
            for tags, tensors in alike(self.norm_parameters()):
                rows = torch.stack(tensors).flatten(1)  # a copy: the optimizer's step moves them
                if rows.shape[1] == 1:
                    reading.scalars.update(zip(tags, rows[:, 0].unbind(), strict=True))
                    continue
                for tag, mean, std in zip(tags, rows.mean(dim=1), rows.std(dim=1, correction=0), strict=True):
                    reading.scalars |= {f"{tag}_mean": mean, f"{tag}_std": std}

    def norm_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tag and value of each parameter of a norm."""
        for name, norm in self.norms.items():
            for parameter_name, tensor in norm.named_parameters():
                yield f"norm/{name}/{SYMBOLS.get(parameter_name, parameter_name)}", tensor.detach()


def in_groups(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Sequence[Tensor]]:
    """Return so many of the tensors after one another in each group."""
    ends = [*accumulate(sizes)]
    return [tensors[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def by_place(model: Model, blocks: Mapping[str, Any], norms: Iterable[nn.Module]) -> dict[str, list[nn.Parameter]]:
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
    placed: set[nn.Parameter] = set()
    found = {}
    for tag, parameters in [*parts, ("outside", model.parameters())]:
        if own := [each for each in parameters if each not in placed]:
            found[tag] = own
            placed |= {*own}
    return found
