"""Probes: statistics that ride on the training step's own forward and backward pass.

A probed step goes like this:

    with probes.watch() as reading:                   # puts hooks on norms, blocks and attention
        task.loss(model(inputs), targets).backward()  # each hook reads its tensor while that is there
                                                      # at the end: the gradients, and the parameters of norms
    with probes.watch_update(reading, optimizer):     # copies the weights
        optimizer.step()                              # at the end: how far they have moved
    numbers = reading.numbers()                       # by tag; only this waits for the device

What is watched, by its word under `probes` in the configuration:

    activations  what enters and leaves each norm, how much of a bounded one is at its bound, the stream after a block
    tails        quantiles and outlying channels of what enters and leaves each norm
    geometry     effective rank of the stream after each block, and how similar its positions are
    attention    entropy and largest logit of each attention
    parameters   those of norms, how many of their steps are lost in 16 bits, and how far a batch is from the running
                 statistics
    gradients    their norm, before they are clipped, in each part of each block
    updates      how far weights move, and how gradients differ between examples (`read_noise`)

A new statistic of an activation is an `Observation` in `tensor_statistics`, which has what is read in the hook and the
numbers that are made of it later; one of the methods `see_…` keeps it. A new statistic of weights or gradients is a
method such as `read_gradients`, which sets scalars of the `Reading`. Whatever has a tag is logged.

Probes only read. Nothing random is drawn and nothing is changed: a run has the same bits without them. Nothing leaves
the device before the step is done, but for one number: where texts are padded, what is read of norms leaves out the
padding, and for that the host must know how many tokens are real. Where a step takes several batches, what passes by is
the last one's, and gradients are those of all. A norm in a recurrent cell is called at each time step: its numbers are
the mean over these calls, and its histograms those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.probes import tensor_statistics as stats
from normbench.probes.reading import Reading, TagPlace
from normbench.types import KEEPS_NORM, Block, InnerAttention, Model, Norm

SYMBOLS = {"weight": "gamma", "bias": "beta"}

LOST_STEPS = "update/norms/lost"  # the share of the steps of norms in 16 bits that rounds to nothing


class Probes:
    """Knows where to look in a model.

    Args:
        model: whose `anatomy` says where its norms, blocks and attention are.
        wanted: words under `probes` in the configuration that are true.
    """

    def __init__(self, model: Model, wanted: Collection[str]) -> None:
        anatomy = model.anatomy()
        self.model = model
        self.blocks = anatomy.blocks
        self.norms = anatomy.norms
        self.wanted = wanted
        self.groups = parameters_by_place(model, self.blocks, self.norms.values())
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.rounded = parameters_in_16_bits(self.norms)

    @contextmanager
    def watch(self, histograms: bool = False) -> Iterator[Reading]:
        """Look at the forward and backward pass inside the `with`; the reading is complete after it."""
        reading = Reading(histograms)
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
        """Put hooks on norms, blocks and attention; yield the handle of each, which removes it."""
        yield self.model.register_forward_pre_hook(lambda *_: reading.begin_pass())
        for name, norm in self.norms.items():
            see = make_hook(partial(self.see_norm, reading, name))
            yield norm.register_forward_hook(see, with_kwargs=True)
            if "parameters" in self.wanted and tracks_features(norm):
                see = make_hook(partial(self.see_running, reading, name))
                yield norm.register_forward_pre_hook(see, with_kwargs=True)
        for block in self.blocks:
            see = make_hook(partial(self.see_stream, reading, block))
            yield block.module.register_forward_hook(see)
            if "attention" in self.wanted:
                for role, inner in block.attention().items():
                    see = make_hook(partial(self.see_attention, reading, f"{block.name}.{role}"))
                    yield inner.register_forward_hook(see)

    # ---- what passes by: the hooks, whose last arguments torch gives

    def see_norm(
        self,
        reading: Reading,
        name: str,
        norm: Any,
        inputs: tuple[Tensor, ...],
        context: Mapping[str, Any],
        output: Tensor,
    ) -> None:
        """Read what enters and what leaves a norm; if its output is bounded, also how much of it reaches the bound."""
        folder = f"act/{name}"
        entering, channel_dim = without_padding(inputs[0], norm, context)
        self.see_side(reading, folder, "in", entering, channel_dim)
        if "activations" in self.wanted and hasattr(norm, "saturation"):
            share = norm.saturation(entering)
            reading.keep(TagPlace(folder, "_out"), stats.Saturated(share))
        leaving, channel_dim = without_padding(output, norm, context)
        self.see_side(reading, folder, "out", leaving, channel_dim)

    def see_side(self, reading: Reading, folder: str, side: str, x: Tensor, channel_dim: int) -> None:
        """Read what is on one side of a norm, `in` or `out`."""
        place = TagPlace(folder, f"_{side}")
        if "activations" in self.wanted:
            reading.keep(place, stats.Moments.read(x, channel_dim))
        if "tails" in self.wanted:
            reading.keep(place, stats.Tails.read(x, channel_dim))
        tag = f"{folder}/{side}"
        if reading.with_histograms and tag not in reading.histograms:
            reading.histograms[tag] = stats.histogram(x)

    def see_running(
        self, reading: Reading, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any]
    ) -> None:
        """Read how far a batch is from the running statistics, before they are updated."""
        counted = context if getattr(norm, "masked", False) else {}
        x, channel_dim = without_padding(inputs[0], norm, counted)
        gap = stats.RunningGap.read(x, channel_dim, norm.running_mean, norm.running_var + norm.eps)
        reading.keep(TagPlace(f"norm/{name}"), gap)

    def see_stream(
        self, reading: Reading, block: Block, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        """Read the residual stream that leaves a block; several streams as one, see `Block.join_streams`."""
        output = block.join_streams(output)
        folder = f"act/stream{block.layer:02d}"
        if "activations" in self.wanted:
            reading.keep(TagPlace(folder), stats.RootMeanSquare.read(output))
        if "geometry" in self.wanted:
            channel_dim = block.channel_dim
            reading.second_moments[f"{folder}/effective_rank"] = stats.second_moment(output, channel_dim)
            several_positions = output[0].numel() > output.shape[channel_dim]
            if several_positions:
                reading.scalars[f"{folder}/token_similarity"] = stats.token_similarity(output, channel_dim)

    def see_attention(
        self, reading: Reading, name: str, inner: InnerAttention, inputs: tuple[Any, ...], output: Tensor
    ) -> None:
        """Read how attention is spread: mean entropy over heads and queries (nats), largest logit, before any cap.

        Queries and keys are those that it was called with, which have been rounded where they have 16 bits.
        """
        q, k, _, mask = inputs
        precise = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(precise), k.to(precise)
        reading.scalars[f"attention/{name}/largest_logit"] = inner.raw_logits(q, k, mask).max()
        reading.scalars[f"attention/{name}/entropy"] = stats.entropy(inner.logits(q, k, mask))

    # ---- what is there after the backward pass

    def read_gradients(self, reading: Reading) -> None:
        """Read the norm of each group's gradients."""
        known = {}
        for parameter in self.trained:
            if parameter.grad is not None:
                known[parameter] = parameter.grad
        gradients = self.by_group(known)
        if not gradients:
            return
        norms = stats.total_norms(list(gradients.values()))
        for group, norm in zip(gradients, norms, strict=True):
            reading.scalars[f"grad/{group}/norm"] = norm

    def read_parameters(self, reading: Reading) -> None:
        """Read each parameter of the norms: its one number, or the mean and standard deviation of its numbers."""
        parameters = {}
        for name, norm in self.norms.items():
            for parameter_name, parameter in norm.named_parameters():
                symbol = SYMBOLS.get(parameter_name, parameter_name)
                precise = torch.promote_types(parameter.dtype, torch.float32)
                values = parameter.detach().to(precise)
                if parameter_name == "weight":
                    values = values + getattr(norm, "offset", 0.0)  # which a norm adds to what is stored of γ
                parameters[f"norm/{name}/{symbol}"] = values
        for alike in stats.by_shape(parameters):
            rows = torch.stack([*alike.values()]).flatten(1)  # a copy: the optimizer's step moves them
            if rows.shape[1] == 1:
                reading.scalars.update(zip(alike, rows[:, 0].unbind(), strict=True))
                continue
            means = rows.mean(dim=1)
            stds = rows.std(dim=1, correction=0)
            for tag, mean, std in zip(alike, means, stds, strict=True):
                reading.scalars[f"{tag}_mean"] = mean
                reading.scalars[f"{tag}_std"] = std

    # ---- what the optimizer's step does

    @contextmanager
    def watch_update(self, reading: Reading | None, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Add to a reading, if there is one, what the optimizer's step inside the `with` does to the weights."""
        if reading is None:
            yield
            return
        with self.watch_rounding(reading, optimizer), self.watch_motion(reading, optimizer):
            yield

    @contextmanager
    def watch_rounding(self, reading: Reading, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Add to a reading which share of the steps of norms in 16 bits rounds to nothing.

        Of the numbers with a gradient, those that the step inside the `with` leaves as they are: between 1 and 2 two
        neighbours of bfloat16 are 2⁻⁷ apart, and a step of less than half of that is lost.
        """
        rates = {group["lr"] for group in optimizer.param_groups}
        if not self.rounded or "parameters" not in self.wanted or max(rates) == 0:
            yield
            return
        before: dict[str, tuple[Tensor, Tensor]] = {}
        for name, parameters in self.rounded.items():
            wanted = [has_gradient(parameter) for parameter in parameters]
            before[name] = (flattened(parameters), torch.cat(wanted))
        yield
        lost_in_all = asked_in_all = torch.zeros((), device=self.trained[0].device)
        for name, parameters in self.rounded.items():
            old, wanted_of_norm = before[name]
            lost = (wanted_of_norm & (flattened(parameters) == old)).sum()
            asked = wanted_of_norm.sum()
            reading.scalars[f"norm/{name}/lost"] = lost / asked.clamp_min(1)
            lost_in_all = lost_in_all + lost
            asked_in_all = asked_in_all + asked
        reading.scalars[LOST_STEPS] = lost_in_all / asked_in_all.clamp_min(1)

    @contextmanager
    def watch_motion(self, reading: Reading, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Add to a reading how far the optimizer's step inside the `with` moves the weights, if that is wanted.

        ratio: ‖Δw‖ / ‖w‖. effective_lr: where a norm makes the scale of the weights irrelevant, the rate at which their
        direction moves: lr / ‖w‖² with SGD, and lr / ‖w‖ with the other optimizers, whose steps do not shrink with the
        gradient's scale (van Laarhoven 2017, §3; Hoffer et al. 2018, §3); lr itself where the optimizer keeps the norm
        of weights, and steps by a share of it. lr is the rate of the largest weight there.
        """
        if "updates" not in self.wanted:
            yield
            return
        weights = []
        for parameters in self.groups.values():
            for parameter in parameters:
                weights.append(parameter.detach())
        before = torch._foreach_mul(weights, 1)  # a copy
        lrs = dict[Tensor, float]()
        relative = set[Tensor]()
        for group in optimizer.param_groups:
            lrs.update(dict.fromkeys(group["params"], group["lr"]))
            if group.get(KEEPS_NORM):
                relative.update(group["params"])
        power = 2 if isinstance(optimizer, torch.optim.SGD) else 1
        yield
        with torch.no_grad():
            steps = torch._foreach_sub(weights, before)
            moved = torch.stack(stats.total_norms(self.split_by_group(steps)))
            size = torch.stack(stats.total_norms(self.split_by_group(before)))
            ratios = moved / size
            divisors = size**power
        for place, ratio, divisor in zip(self.groups, ratios.unbind(), divisors.unbind(), strict=True):
            reading.scalars[f"update/{place}/ratio"] = ratio
            if not place.endswith(".norms"):
                largest = max(self.groups[place], key=Tensor.numel)
                divisor = torch.ones_like(divisor) if largest in relative else divisor
                reading.scalars[f"update/{place}/effective_lr"] = lrs[largest] / divisor

    # ---- what differs between examples

    def read_noise(self, reading: Reading, gradients: Iterable[Sequence[Tensor]], size: int) -> None:
        """Add to a reading how the gradients of micro-batches differ from one another.

        Args:
            reading: that of the step.
            gradients: of each micro-batch, those of all trained parameters, in the order of `trained`.
            size: examples in each micro-batch.
        """
        variances, squared_gradient = stats.gradient_noise(gradients, size)
        variance_of = dict(zip(self.trained, variances.unbind(), strict=True))
        by_group = self.by_group(variance_of)
        in_order, sizes = [], []
        for of_group in by_group.values():
            in_order += of_group
            sizes.append(len(of_group))
        variances_of_groups = torch.stack(in_order).split(sizes)
        for group, together in zip(by_group, variances_of_groups, strict=True):
            reading.scalars[f"noise/{group}/variance"] = together.sum()
        total = variances.sum()
        reading.scalars["noise/variance"] = total
        reading.scalars["noise/squared_gradient"] = squared_gradient
        reading.scalars["noise/scale"] = total / squared_gradient

    # ---- groups of parameters

    def by_group(self, known: Mapping[nn.Parameter, Tensor]) -> dict[str, list[Tensor]]:
        """Return what is known of the parameters of each group; groups of which nothing is known are left out."""
        known_by_group = {}
        for group, parameters in self.groups.items():
            known_of_group = [known[parameter] for parameter in parameters if parameter in known]
            if known_of_group:
                known_by_group[group] = known_of_group
        return known_by_group

    def split_by_group(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Split tensors, one for each parameter, group after group, into those of each group."""
        parts = []
        start = 0
        for parameters in self.groups.values():
            end = start + len(parameters)
            parts.append(tensors[start:end])
            start = end
        return parts


def parameters_in_16_bits(norms: Mapping[str, nn.Module]) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of each norm that are trained and kept in 16 bits; nothing of norms without such."""
    found: dict[str, list[nn.Parameter]] = {}
    for name, norm in norms.items():
        parameters = [one for one in norm.parameters() if one.requires_grad and one.dtype.itemsize == 2]
        if parameters:
            found[name] = parameters
    return found


def has_gradient(parameter: nn.Parameter) -> Tensor:
    """Tell of each number, in one row, whether it has a gradient other than 0; a graph of a step keeps it to itself."""
    if parameter.grad is None:
        return torch.ones(parameter.numel(), dtype=torch.bool, device=parameter.device)
    return parameter.grad.flatten() != 0


def flattened(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return a copy of all numbers of some parameters in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def make_hook(see: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that calls `see` without gradients, and in full precision even within an autocast to 16 bits."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], *rest: Any) -> None:
        with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
            see(module, inputs, *rest)

    return hook


def without_padding(x: Tensor, norm: Any, context: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return what a norm was given or gives, at the real positions if there is a mask, and its axis of features."""
    mask = context.get("mask")
    if mask is None:
        return x, norm.channel_dim
    return x.movedim(norm.channel_dim, -1)[mask], -1


def tracks_features(norm: nn.Module) -> bool:
    """Tell whether this is a norm of ours with running statistics of each feature, and not of each position."""
    running_mean = getattr(norm, "running_mean", None)
    return isinstance(norm, Norm) and getattr(running_mean, "ndim", 0) == 1


def parameters_by_place(
    model: Model, blocks: Iterable[Block], norms: Iterable[nn.Module]
) -> dict[str, list[nn.Parameter]]:
    """Return the parameters that are trained by where they are, each in one group.

    The groups are: each branch of a block without its norms (`block03.mlp`), all norms of the block (`block03.norms`),
    what else the block has (`block03.placement`), and the rest of the model (`outside`).
    """
    in_norms = set[nn.Parameter]()
    for norm in norms:
        in_norms.update(norm.parameters())
    groups: dict[str, list[nn.Parameter]] = {}
    in_a_group = set[nn.Parameter]()

    def add_group(name: str, parameters: Iterable[nn.Parameter]) -> None:
        """Make a group of those parameters that are trained, and in none so far."""
        added = [parameter for parameter in parameters if parameter.requires_grad and parameter not in in_a_group]
        if added:
            groups[name] = added
            in_a_group.update(added)

    for block in blocks:
        everything = list(block.module.parameters())
        of_norms = [parameter for parameter in everything if parameter in in_norms]
        add_group(f"{block.name}.norms", of_norms)
        for role, branch in block.branches.items():
            add_group(f"{block.name}.{role}", branch.parameters())
        add_group(f"{block.name}.placement", everything)
    add_group("outside", model.parameters())
    return groups
