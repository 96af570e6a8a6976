"""How norms are folded into their linear neighbours, as far as the way in which a model computes allows.

torch.fx shows what stands before and behind a norm: nothing goes by names of norms, placements or models.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from normbench.errors import UsageError, explain
from normbench.norms import RMSNorm
from normbench.norms.foreign import taking_mask
from normbench.types import PADDING, Batch, Model

LAYERS = nn.Linear | nn.Conv2d
PASS_SCALES = {"mean", "getitem"}  # what a scale and shift of each channel may be moved past
PASS_MEANS = {"add", "mul", "cat", "flatten", "transpose", "expand", "getitem"}  # likewise the removal of a mean
EXACT = 1e-9  # of the largest logit: what folding may change in float64


class Refused(Exception):
    """A norm cannot be folded, for this reason."""


class Steps(fx.Tracer):
    """How a model computes, with each norm and each layer as one step; what does nothing is left out."""

    proxy_buffer_attributes = True

    def __init__(self, model: Model, inputs: Mapping[nn.Module, Tensor], masked: bool) -> None:
        super().__init__()
        self.inputs, self.names = inputs, {module: name for name, module in model.named_modules()}
        graph = self.trace(model, {} if masked else {"mask": None})
        self.module = {node: model.get_submodule(node.target) for node in graph.nodes if node.op == "call_module"}
        self.own = {node: [attrgetter(node.target)(model)] for node in graph.nodes if node.op == "get_attr"}
        self.own |= {node: [*module.parameters()] for node, module in self.module.items()}
        for node in [node for node, module in self.module.items() if isinstance(module, nn.Identity | nn.Dropout)]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        self.of_norm = {module: node for node, module in self.module.items() if module in self.inputs}
        self.uses = Counter(id(tensor) for tensors in self.own.values() for tensor in tensors)

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return module in self.inputs or isinstance(module, LAYERS) or super().is_leaf_module(module, name)

    def name(self, node: fx.Node) -> str:
        """Return the name of a class or function."""
        found = type(self.module[node]) if node in self.module else node.target
        return getattr(found, "__name__", str(found))

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Return the steps that read more than the shape of what a step has made."""
        return [user for user in node.users if user.target is not getattr]

    def layer(self, node: fx.Node) -> Any:
        """Return the layer that a step is, None for another step; its weights must have no other use."""
        if node.target is F.linear or any(self.uses[id(tensor)] > 1 for tensor in self.own.get(node, [])):
            raise Refused("the weight beside it is also used elsewhere, as with model.tied=true")
        return self.module[node] if isinstance(self.module.get(node), LAYERS) else None

    def layers_behind(self, node: fx.Node) -> Iterator[Any]:
        """Yield the layers that read what a step has made, if nothing else does."""
        for user in self.readers(node):
            if layer := self.layer(user):
                yield layer
            elif self.name(user) not in PASS_SCALES:
                raise Refused(f"{self.name(user)} reads it, which is no linear layer")
            else:
                yield from self.layers_behind(user)

    def is_number(self, node: fx.Node) -> bool:
        """Tell whether a step gives a number or a size, not features."""
        numbers = [tensor.numel() for tensor in self.own.get(node, [])] == [1]
        return numbers or any(one.target is getattr for one in node.all_input_nodes)

    def writers(self, node: fx.Node) -> list[tuple[Tensor, int]]:
        """Return what writes to a stream, each with its axis of features, if only norms read it, which take no mean."""
        stream, found, waiting = set[fx.Node](), list[tuple[Tensor, int]](), [node]
        while waiting:
            node = waiting.pop()
            if node in stream:
                continue
            stream.add(node)
            name, own = self.name(node), self.own.get(node, [])
            parents = [one for one in node.all_input_nodes if not self.is_number(one)]
            if self.layer(node) or node.op == "get_attr" or name == "Embedding":
                found += [(tensor, 0 if self.layer(node) else -1) for tensor in own]
            elif name not in PASS_MEANS or (name == "mul" and len(parents) > 1):
                raise Refused(f"{name} writes to the stream, which is no linear layer")
            else:
                waiting += parents
            for user in self.readers(node):
                if self.name(user) in PASS_MEANS:
                    waiting.append(user)
                elif self.module.get(user) not in self.inputs or not blind_to_mean(
                    self.module[user], self.inputs[self.module[user]]
                ):
                    raise Refused(f"{self.name(user)} reads the stream with its mean")
        return found


# ---- norms by themselves


def blind_to_mean(norm: nn.Module, x: Tensor) -> bool:
    """Tell whether a norm's output does not depend on the mean over its input's features."""
    return torch.allclose(norm(x + 1), norm(x))


def take_apart(norm: Any, x: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """Return what a norm is without γ and β, and these as scale and shift of each channel: all of a norm that is fixed.

    Raises:
        Refused: it is not made of these.
    """
    weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    zeros, bare = x.new_zeros(x.shape[norm.channel_dim]), taking_mask(nn.Identity())
    scale, shift = zeros + (1 if weight is None else weight), zeros + (0 if bias is None else bias)
    if getattr(getattr(norm, "running_mean", None), "ndim", 0) == 1:  # statistics for each position do not fold
        scale = scale * torch.rsqrt(norm.running_var + norm.eps)
        shift = shift - scale * norm.running_mean
    elif weight is None and bias is None:
        raise Refused("it has neither γ nor β")
    else:
        bare = copy.deepcopy(norm)
        bare.weight = bare.bias = None
    if not torch.allclose(norm(x).movedim(norm.channel_dim, -1), bare(x).movedim(norm.channel_dim, -1) * scale + shift):
        raise Refused("its weight and bias are not a scale and a shift of each channel")
    return bare, scale, shift


def as_rms(norm: Any, x: Tensor, axis: Any) -> nn.Module | None:
    """Return the RMSNorm that a LayerNorm without γ and β is where its input has no mean; None for other norms."""
    if getattr(norm, "weight", None) is not None or getattr(norm, "eps", None) is None or not blind_to_mean(norm, x):
        return None
    rms = RMSNorm(x.shape[axis], eps=norm.eps, affine=False, channel_dim=axis)
    return rms if torch.allclose(norm(x), rms(x - x.mean(axis, keepdim=True))) else None


# ---- folding


@dataclass
class Folded:
    """A model for inference with its norms folded, in float64. done, refused: what became of each norm, by site."""

    model: Model
    done: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@torch.no_grad()
def fold(model: Model, norms: Mapping[str, nn.Module], batch: Batch) -> Folded:
    """Return a copy of a model whose norms are folded into their linear neighbours, as far as they can be.

    Of a norm with running statistics all goes into the layer before it, W' = diag(s)·W, if nothing else reads that;
    else, and of other norms γ and β, it goes into the layers behind: W' = W·diag(γ), b' = b + W·β (FlashNorm, Graef et
    al. 2024). Then the mean goes out of the weights that write to a stream which only LayerNorms read: RMSNorms from
    then on (SliceGPT, Ashkboos et al. 2024, §3.1). norms: by site. batch: on which the two must agree.

    Raises:
        UsageError: the model computes in a way that is not seen through.
    """
    model, norms = copy.deepcopy((model, dict(norms)))
    folded = Folded(model.double().eval())
    inputs = dict[nn.Module, Tensor]()
    hooks = [
        each.register_forward_pre_hook(lambda norm, given: inputs.update({norm: given[0]})) for each in norms.values()
    ]
    before = run(model, batch)
    for hook in hooks:
        hook.remove()
    try:
        steps = Steps(model, inputs, batch.mask is not None)
    except Exception as error:  # a model may do what torch.fx cannot follow
        raise UsageError(f"torch.fx cannot follow {type(model).__name__} ({explain(error)}): fold another") from error
    for site, norm in norms.items():
        bare, done = norm, list[str]()
        try:
            bare, *done = take_in(norm, steps)
        except Refused as reason:
            folded.refused[site] = f"kept, as {reason}"
        try:
            if rms := as_rms(bare, inputs[norm], norm.channel_dim):
                for weight, axis in steps.writers(steps.of_norm[norm].args[0]):  # those without a mean stay the same
                    weight -= weight.mean(axis, keepdim=True)
                bare = rms
                done.append("RMSNorm in place of LayerNorm, as its input has no mean")
        except Refused as reason:
            folded.refused[f"{site}, its mean"] = f"kept, as {reason}"
        if done:
            model.set_submodule(steps.names[norm], bare)
            folded.done[site] = "; ".join(done)
    if not (run(model, batch) - before).abs().max() <= EXACT * before.abs().max():
        raise UsageError(f"{type(model).__name__} computes in a way that folding does not see through: fold another")
    return folded


def take_in(norm: Any, steps: Steps) -> tuple[nn.Module, str]:
    """Take a norm's scale and shift into layers beside it; return what is left of it, and what was done.

    Raises:
        Refused: it cannot be.
    """
    (bare, scale, shift), node = take_apart(norm, steps.inputs[norm]), steps.of_norm[norm]
    before, whole = node.args[0], isinstance(bare, nn.Identity)
    if whole and len(steps.readers(before)) == 1 and (layer := steps.layer(before)):
        fuse: Any = fuse_conv_bn_weights if isinstance(layer, nn.Conv2d) else fuse_linear_bn_weights
        own = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        weight, layer.bias = fuse(layer.weight, layer.bias, *own)
        layer.weight.copy_(weight)
        return bare, f"all of it into {steps.names[layer]}"
    layers = list(steps.layers_behind(node))
    if shift.any() and (padded := [steps.names[one] for one in layers if any(getattr(one, "padding", ()))]):
        raise Refused(f"{padded[0]} behind it pads with zeros, which a shift would change")
    for layer in layers:
        if shift.any():
            bias = layer.weight.flatten(1).unflatten(1, (len(scale), -1)).sum(2) @ shift
            layer.bias = nn.Parameter(bias if layer.bias is None else bias + layer.bias)
        layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.ndim - 2)))
    what = "all of it" if whole else "γ" if getattr(norm, "bias", None) is None else "γ and β"
    return bare, f"{what} into {' and '.join(steps.names[layer] for layer in layers)}"


@torch.inference_mode()
def run(model: Model, batch: Batch) -> Tensor:
    """Return the logits of a batch, but for those at padding, computed in the model's precision, as double."""
    dtype = next(model.parameters()).dtype
    logits = model(*batch.map(lambda one: one.to(dtype) if one.is_floating_point() else one).arguments)
    return logits[batch.targets != PADDING].double()
