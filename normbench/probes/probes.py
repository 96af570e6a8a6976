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


@dataclass
class Reading:
    """Numbers and histograms by tag, still on the device; second moments of features, whose ranks the host computes.

    The hooks are methods that begin with `see`; `name` is the place in the tags.
    """

    wanted: Collection[str]
    with_histograms: bool = False
    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    second_moments: dict[str, Tensor] = field(default_factory=dict)
    calls: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))  # numbers of norms, by tag

    def begin(self, *_: Any) -> None:
        """Let the calls of norms in another forward pass begin."""
        self.calls.clear()
        self.histograms.clear()

    def keep(self, found: Mapping[str, Tensor]) -> None:
        """Take in what one call of a norm shows: the mean over its calls is kept, but for those without a number."""
        for tag, value in found.items():
            self.calls[tag].append(value)
            self.scalars[tag] = torch.stack(self.calls[tag]).nanmean() if self.calls[tag][1:] else value

    def see_norm(
        self, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any], output: Tensor
    ) -> None:
        """Read what enters and what leaves a norm; of one whose output is bounded, how much reaches the bound."""
        for side, whole in (("in", inputs[0]), ("out", output)):
            x, channel_dim = without_padding(whole, norm, context)
            found = statistics.moments(x, channel_dim) if "activations" in self.wanted else {}
            if "tails" in self.wanted:
                found |= statistics.tails(x, channel_dim)
            self.keep({f"act/{name}/{word}_{side}": value for word, value in found.items()})
            if self.with_histograms and f"act/{name}/{side}" not in self.histograms:
                self.histograms[f"act/{name}/{side}"] = statistics.histogram(x)
        if "activations" in self.wanted and hasattr(norm, "saturation"):
            self.keep({f"act/{name}/saturated_out": norm.saturation(without_padding(inputs[0], norm, context)[0])})

    def see_running(self, name: str, norm: Any, inputs: tuple[Tensor, ...], context: Mapping[str, Any]) -> None:
        """Read how far a batch is from the running statistics, before they are updated.

        mean_gap: root mean square over channels of (batch mean − running mean) / running std; std_ratio: mean of
        batch std / running std.
        """
        told = context if getattr(norm, "masked", False) else {}
        x, channel_dim = without_padding(inputs[0].detach().float(), norm, told)
        others = [d for d in range(x.ndim) if d != channel_dim % x.ndim]
        variance, mean = torch.var_mean(x, dim=others, correction=0)
        running_std = (norm.running_var + norm.eps).sqrt()
        self.keep({f"norm/{name}/mean_gap": statistics.rms((mean - norm.running_mean) / running_std)})
        self.keep({f"norm/{name}/std_ratio": (variance.sqrt() / running_std).mean()})

    def see_stream(self, name: str, block: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Read the residual stream that leaves a block."""
        channel_dim = next(iter(block.branches.values())).channel_dim
        if "activations" in self.wanted:
            self.scalars[f"act/{name}/rms"] = statistics.rms(output)
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
        """Return all numbers, in one copy from the device, and the effective ranks."""
        # of weights that several processes share, one whole number
        scalars = [getattr(value, "full_tensor", value.clone)().float() for value in self.scalars.values()]
        values = torch.stack(scalars).tolist() if scalars else []
        ranks = {tag: statistics.effective_rank(moment.cpu().double()) for tag, moment in self.second_moments.items()}
        return dict(zip(self.scalars, values, strict=True)) | ranks

    def host_histograms(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return counts of values between edges, and the edges (one more), in two copies from the device."""
        counts, limits = (torch.stack(parts).tolist() for parts in zip(*self.histograms.values(), strict=True))
        edges = [torch.linspace(low, high, len(counts[0]) + 1, dtype=torch.float64).tolist() for low, high in limits]
        return dict(zip(self.histograms, zip(counts, edges, strict=True), strict=True))


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
        before = {tag: [p.detach().clone() for p in parameters] for tag, parameters in self.groups.items()}
        lr, power = optimizer.param_groups[0]["lr"], 2 if isinstance(optimizer, torch.optim.SGD) else 1
        yield
        with torch.no_grad():
            for tag, parameters in self.groups.items():
                moved = statistics.total_norm([new - old for new, old in zip(parameters, before[tag], strict=True)])
                size = statistics.total_norm(before[tag])
                reading.scalars[f"update/{tag}/ratio"] = moved / size
                if not tag.endswith(".norms"):
                    reading.scalars[f"update/{tag}/effective_lr"] = lr / size**power

    def read_noise(self, reading: Reading, gradients: Iterable[Sequence[Tensor]], size: int) -> None:
        """Add to a reading how the gradients of micro-batches, of so many examples each, differ from one another.

        gradients: of each, those of all trained parameters, in the order of `trained`.
        """
        variances, squared = statistics.gradient_noise(gradients, size)
        known = dict(zip(self.trained, variances.unbind(), strict=True))
        for tag, parameters in self.groups.items():
            if own := [known[parameter] for parameter in parameters if parameter in known]:
                reading.scalars[f"noise/{tag}/variance"] = torch.stack(own).sum()
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

    @torch.no_grad()
    def read_parameters(self, reading: Reading) -> None:
        """Read the norm of each group's gradients; of the norms' parameters the one number, or mean and deviation."""
        for tag, parameters in self.groups.items() if "gradients" in self.wanted else ():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients:
                reading.scalars[f"grad/{tag}/norm"] = statistics.total_norm(gradients)
        for name, norm in self.norms.items() if "parameters" in self.wanted else ():
            for parameter_name, tensor in norm.named_parameters():
                tag = f"norm/{name}/{SYMBOLS.get(parameter_name, parameter_name)}"
                if tensor.numel() == 1:
                    reading.scalars[tag] = tensor.detach().sum()  # a copy: the optimizer's step moves it
                else:
                    reading.scalars[f"{tag}_mean"] = tensor.mean()
                    reading.scalars[f"{tag}_std"] = tensor.std(correction=0)


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
