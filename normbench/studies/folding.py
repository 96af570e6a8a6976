"""Norms folded into their linear neighbours: how, what that changes and saves, and a run's folded weights as a file.

torch.fx shows what stands before and after a norm: nothing goes by names of norms, placements or models.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from normbench.analysis.figures.style import Figure
from normbench.build import resolve_device
from normbench.config.groups import find_own_classes
from normbench.errors import UsageError, explain
from normbench.norms import RMSNorm
from normbench.norms.foreign import accept_mask
from normbench.record.console import show_table
from normbench.record.files import write_bytes
from normbench.runs.load import TrainedRun
from normbench.settings import Setting
from normbench.studies.figures import draw_curves
from normbench.studies.findings import Findings, Value, arms_of, compare, find, label_of
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.timing import in_turn, median_interval
from normbench.studies.writing import show_value
from normbench.training.evaluation import to_device
from normbench.training.precision import make_precision
from normbench.types import PADDING, Batch, Model

LAYERS = nn.Linear | nn.Conv2d
PASS_SCALES = {"mean", "getitem"}  # what a scale and shift of each channel may be moved past
PASS_MEANS = {"add", "mul", "cat", "flatten", "transpose", "expand", "getitem"}  # likewise the removal of a mean
EXACT = 1e-9  # of the largest logit: what folding may change in float64
PRECISIONS = {53: "float64", 24: "float32", 8: "bfloat16"}  # by the bits of the significand


class Refused(Exception):
    """A norm cannot be folded, for this reason."""


class Steps(fx.Tracer):
    """How a model computes, with each norm and each layer as one step; what does nothing is left out."""

    proxy_buffer_attributes = True

    def __init__(self, model: Model, inputs: Mapping[nn.Module, Tensor], masked: bool) -> None:
        super().__init__()
        self.inputs = inputs
        self.names = {module: name for name, module in model.named_modules()}
        graph = self.trace(model, {} if masked else {"mask": None})
        self.module: dict[fx.Node, nn.Module] = {}
        self.own: dict[fx.Node, list[Any]] = {}  # the parameters and buffers of a step
        for node in graph.nodes:
            if node.op == "call_module":
                self.module[node] = model.get_submodule(node.target)
                self.own[node] = list(self.module[node].parameters())
            elif node.op == "get_attr":
                self.own[node] = [attrgetter(node.target)(model)]
        idle = [node for node, module in self.module.items() if isinstance(module, nn.Identity | nn.Dropout)]
        for node in idle:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]  # a module's input is a node
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
        is_shared = any(self.uses[id(tensor)] > 1 for tensor in self.own.get(node, []))
        if node.target is F.linear or is_shared:
            raise Refused("the weight beside it is also used elsewhere, as with model.tied=true")
        module = self.module.get(node)
        return module if isinstance(module, LAYERS) else None

    def layers_after(self, node: fx.Node) -> Iterator[Any]:
        """Yield the layers that read what a step has made, if nothing else does."""
        for user in self.readers(node):
            layer = self.layer(user)
            if layer is not None:
                yield layer
            elif self.name(user) in PASS_SCALES:
                yield from self.layers_after(user)
            else:
                raise Refused(f"{self.name(user)} reads it, which is not a linear layer")

    def is_number(self, node: fx.Node) -> bool:
        """Tell whether a step gives a number or a size, not features."""
        sizes = [tensor.numel() for tensor in self.own.get(node, [])]
        return sizes == [1] or any(one.target is getattr for one in node.all_input_nodes)

    def writers(self, node: fx.Node) -> list[tuple[Tensor, int]]:
        """Return what writes to a stream, each with its axis of features, if only norms read it, which take no mean."""
        stream = set[fx.Node]()
        found = list[tuple[Tensor, int]]()
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in stream:
                continue
            stream.add(node)
            name = self.name(node)
            parents = [one for one in node.all_input_nodes if not self.is_number(one)]
            is_layer = self.layer(node) is not None
            if is_layer or node.op == "get_attr" or name == "Embedding":
                axis = 0 if is_layer else -1
                found += [(tensor, axis) for tensor in self.own.get(node, [])]
            elif name not in PASS_MEANS or (name == "mul" and len(parents) > 1):
                raise Refused(f"{name} writes to the stream, which is not a linear layer")
            else:
                waiting += parents
            for user in self.readers(node):
                if self.name(user) in PASS_MEANS:
                    waiting.append(user)
                elif not self.is_blind_norm(user):
                    raise Refused(f"{self.name(user)} reads the stream with its mean")
        return found

    def is_blind_norm(self, node: fx.Node) -> bool:
        """Tell whether a step is a norm that does not depend on the mean of what it reads."""
        if node not in self.module:
            return False
        module = self.module[node]
        return module in self.inputs and is_blind_to_mean(module, self.inputs[module])


# ---- norms by themselves


def is_blind_to_mean(norm: nn.Module, x: Tensor) -> bool:
    """Tell whether a norm's output does not depend on the mean over its input's features."""
    return torch.allclose(norm(x + 1), norm(x))


def take_apart(norm: Any, x: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """Return what a norm is without γ and β, and these as scale and shift of each channel: all of a norm that is fixed.

    Raises:
        Refused: it is not made of these.
    """
    weight = getattr(norm, "weight", None)
    bias = getattr(norm, "bias", None)
    zeros = x.new_zeros(x.shape[norm.channel_dim])
    scale = zeros + (1 if weight is None else weight)
    shift = zeros + (0 if bias is None else bias)
    running_mean = getattr(norm, "running_mean", None)
    if getattr(running_mean, "ndim", 0) == 1:  # statistics for each position do not fold
        bare = accept_mask(nn.Identity())
        scale = scale * torch.rsqrt(norm.running_var + norm.eps)
        shift = shift - scale * norm.running_mean
    elif weight is None and bias is None:
        raise Refused("it has neither γ nor β")
    else:
        bare = copy.deepcopy(norm)
        bare.weight = bare.bias = None
    whole = norm(x).movedim(norm.channel_dim, -1)
    parts = bare(x).movedim(norm.channel_dim, -1) * scale + shift
    if not torch.allclose(whole, parts):
        raise Refused("its weight and bias are not a scale and a shift of each channel")
    return bare, scale, shift


def as_rms(norm: Any, x: Tensor, axis: Any) -> nn.Module | None:
    """Return the RMSNorm that a LayerNorm without γ and β is where its input has no mean; None for other norms."""
    if getattr(norm, "weight", None) is not None or getattr(norm, "eps", None) is None:
        return None
    if not is_blind_to_mean(norm, x):
        return None
    rms = RMSNorm(x.shape[axis], eps=norm.eps, affine=False, channel_dim=axis)
    without_mean = x - x.mean(axis, keepdim=True)
    return rms if torch.allclose(norm(x), rms(without_mean)) else None


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
    else, and of other norms γ and β, it goes into the layers after it: W' = W·diag(γ), b' = b + W·β (FlashNorm, Graef
    et al. 2024). Then the mean goes out of the weights that write to a stream which only LayerNorms read: RMSNorms from
    then on (SliceGPT, Ashkboos et al. 2024, §3.1). norms: by site. batch: on which the two must agree.

    Raises:
        UsageError: the model computes in a way that is not seen through.
    """
    model, norms = copy.deepcopy((model, dict(norms)))
    folded = Folded(model.double().eval())
    inputs = dict[nn.Module, Tensor]()

    def keep_input(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs[norm] = given[0]

    hooks = [norm.register_forward_pre_hook(keep_input) for norm in norms.values()]
    before = logits_of(model, batch)
    for hook in hooks:
        hook.remove()
    try:
        steps = Steps(model, inputs, batch.mask is not None)
    except Exception as error:  # a model may do what torch.fx cannot follow
        raise UsageError(f"torch.fx cannot follow {type(model).__name__} ({explain(error)}): fold another") from error
    for site, norm in norms.items():
        fold_norm(site, norm, steps, folded)
    change = (logits_of(model, batch) - before).abs().max()
    if not change <= EXACT * before.abs().max():  # nor NaN
        raise UsageError(f"{type(model).__name__} computes in a way that folding does not see through: fold another")
    return folded


def fold_norm(site: str, norm: Any, steps: Steps, folded: Folded) -> None:
    """Fold one norm of the model that is being folded, as far as it can be, and note what became of it."""
    bare = norm
    done = list[str]()
    try:
        bare, how = take_in(norm, steps)
        done.append(how)
    except Refused as reason:
        folded.refused[site] = f"kept, as {reason}"
    try:
        rms = as_rms(bare, steps.inputs[norm], norm.channel_dim)
        if rms is not None:
            stream = steps.of_norm[norm].args[0]
            for weight, axis in steps.writers(stream):  # type: ignore[arg-type]  # those without a mean stay the same
                weight -= weight.mean(axis, keepdim=True)
            bare = rms
            done.append("RMSNorm in place of LayerNorm, as its input has no mean")
    except Refused as reason:
        folded.refused[f"{site}, its mean"] = f"kept, as {reason}"
    if done:
        folded.model.set_submodule(steps.names[norm], bare)
        folded.done[site] = "; ".join(done)


def take_in(norm: Any, steps: Steps) -> tuple[nn.Module, str]:
    """Take a norm's scale and shift into layers beside it; return what is left of it, and what was done.

    Raises:
        Refused: it cannot be.
    """
    bare, scale, shift = take_apart(norm, steps.inputs[norm])
    node = steps.of_norm[norm]
    is_whole = isinstance(bare, nn.Identity)
    layer = layer_before(node, steps) if is_whole else None
    if layer is not None:
        take_into_layer_before(norm, layer)
        return bare, f"all of it into {steps.names[layer]}"
    layers = list(steps.layers_after(node))
    if shift.any():
        padded = [steps.names[one] for one in layers if any(getattr(one, "padding", ()))]
        if padded:
            raise Refused(f"{padded[0]} after it pads with zeros, which a shift would change")
    for layer in layers:
        if shift.any():
            summed = layer.weight.flatten(1).unflatten(1, (len(scale), -1)).sum(2)
            bias = summed @ shift
            layer.bias = nn.Parameter(bias if layer.bias is None else bias + layer.bias)
        layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.ndim - 2)))
    if is_whole:
        what = "all of it"
    elif getattr(norm, "bias", None) is None:
        what = "γ"
    else:
        what = "γ and β"
    return bare, f"{what} into {' and '.join(steps.names[layer] for layer in layers)}"


def layer_before(node: fx.Node, steps: Steps) -> Any:
    """Return the layer whose output a norm alone reads; None where there is none."""
    before: Any = node.args[0]
    if len(steps.readers(before)) > 1:
        return None
    return steps.layer(before)


def take_into_layer_before(norm: Any, layer: Any) -> None:
    """Take all of a norm with running statistics into the layer before it."""
    fuse: Any = fuse_conv_bn_weights if isinstance(layer, nn.Conv2d) else fuse_linear_bn_weights
    weight, layer.bias = fuse(
        layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    layer.weight.copy_(weight)


@torch.inference_mode()
def logits_of(model: Model, batch: Batch) -> Tensor:
    """Return the logits of a batch, but for those at padding, computed in the model's precision, as double."""
    dtype = next(model.parameters()).dtype
    given = batch.map(lambda one: one.to(dtype) if one.is_floating_point() else one)
    logits = model(*given.arguments)
    return logits[batch.targets != PADDING].double()


# ---- what it changes and saves


def changes(model: Model, folded: Model, batches: Sequence[Batch]) -> Iterator[Row]:
    """Yield how far logits and loss are apart, by the significand's bits: folded from not, and not from in float64."""
    dtypes = {53: torch.float64, 24: torch.float32}
    exact = copy.deepcopy(model).double()
    with suppress(UsageError):
        dtypes[8] = make_precision("bf16", batches[0].inputs.device).dtype
    for bits, dtype in dtypes.items():
        plain = copy.deepcopy(model).to(dtype)
        other = copy.deepcopy(folded).to(dtype)
        for name, first, second in (("folding", plain, other), ("rounding", exact, plain)):
            change, loss = largest_change(first, second, batches)
            if change:  # in float64 there is no rounding
                yield {"of": name, "bits": bits, "change": change, "loss": loss}


def largest_change(model: Model, other: Model, batches: Sequence[Batch]) -> tuple[float, float]:
    """Return the largest change of a logit between two models, and the change of the mean loss."""
    changes, losses = [], []
    for batch in batches:
        first = logits_of(model, batch)
        second = logits_of(other, batch)
        targets = batch.targets[batch.targets != PADDING]
        changes.append(float((second - first).abs().max()))
        losses.append(float(F.cross_entropy(second, targets)) - float(F.cross_entropy(first, targets)))
    return float(np.max(changes)), float(abs(np.mean(losses)))


@torch.inference_mode()
def time_ratio(plain: Model, other: Model, batch: Batch, pairs: int) -> Row:
    """Return the other model's time over the plain one's, in turns: the median of pairs, and its 95 % interval."""
    calls = [lambda: plain(*batch.arguments), lambda: other(*batch.arguments)]
    ratios = [theirs / ours for ours, theirs in in_turn(calls, pairs)]
    low, high = median_interval(ratios)
    return {"time": float(np.median(ratios)), "low": low, "high": high}


class Folding(Study):
    """Measure what folding norms into their neighbours for inference changes, and what it saves.

    γ, β and running statistics go into the linear layers and convolutions beside a norm, and the mean goes out of a
    stream that only LayerNorms read, so that they are RMSNorms. In exact arithmetic this changes nothing; what it
    changes in float64, float32 and bfloat16 stands beside what each of these changes by itself. Time is that of a
    validation batch in float32, folded and not in turns.
    """

    trains = True

    def __init__(self, *, pairs: Annotated[int, Setting("pairs of timed batches", low=9)] = 41) -> None:
        self.pairs = pairs

    def check(self, subject: Subject) -> None:
        self.folded(subject)

    def folded(self, subject: Subject) -> tuple[Model, Folded]:
        """Return a subject's model, and the same folded.

        Raises:
            UsageError: nothing of it can be folded.
        """
        model, norms = subject.build()
        batch = subject.task.random_batch(2, torch.Generator().manual_seed(0))
        folded = fold(model, norms, to_device(batch, subject.device))
        if not folded.done:
            why = "; ".join(dict.fromkeys(folded.refused.values())) or "it has no norm"
            raise UsageError(f"nothing of {subject.path or 'this model'} can be folded ({why}): try placement=pre")
        return model, folded

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, folded = self.folded(subject)
        batches = [to_device(one, subject.device) for one in subject.data.eval_batches("val", 4)]
        yield from changes(model, folded.model, batches)
        size = sum(parameter.numel() for parameter in model.parameters())
        new_size = sum(parameter.numel() for parameter in folded.model.parameters())
        counts = {"folded": len(folded.done), "kept": len(folded.refused), "saved": 100 * (1 - new_size / size)}
        other = copy.deepcopy(folded.model).float()
        yield counts | time_ratio(model, other, batches[0], self.pairs)

    def finding(self, rows: pd.DataFrame) -> list[Value]:
        saved = rows.dropna(subset="time")
        found = []
        for arm in arms_of(saved):
            what = f"{label_of(arm)}: time of a batch, folded over not:"
            times = find(saved, "time", arm)
            found.append(Value(what, times.values, references={"1 (no time saved)": 1.0}))
        return found

    def tables(self, rows: pd.DataFrame) -> list[Findings]:
        saved = compare(
            rows.dropna(subset="time"),
            values=["folded", "kept", "saved", "time", "low", "high"],
            columns=self.columns,
            key="saved",
            title="What was folded, and what it saves",
        )
        changed = compare(
            rows.dropna(subset="change"),
            values=["change", "loss"],
            by=["of", "bits"],
            columns=self.columns,
            title="Changes",
        )
        return [saved, changed]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        changed = rows.dropna(subset="change")
        said = self.captions["folding"]
        return draw_curves("folding", changed, x="bits", y="change", panel="of", columns=self.columns, **said)


# ---- the command


def fold_run(path: str, out: Path | None, device: str = "auto", trust: bool = False) -> int:
    """Write a run's folded weights as safetensors; print what was folded, what it changes and saves; return the status.

    Raises:
        UsageError: nothing can be folded.
    """
    if trust:
        find_own_classes()
    trained = TrainedRun(path, trust)
    study = Folding()
    torch.set_num_threads(trained.sessions()[-1].get("threads") or 1)  # as the run itself
    subject = Subject({}, trained.tree, resolve_device(device), trained.data, trained.path, trust)
    _, folded = study.folded(subject)
    state = folded.model.float().state_dict()
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    notes = {
        "format": "pt",
        "run": trained.path.name,
        "folded": json.dumps(folded.done),
        "kept": json.dumps(folded.refused),
    }
    out = out or trained.path / "folded.safetensors"
    write_bytes(out, safetensors.torch.save(tensors, notes))
    *changed, saved = study.measure(subject)
    show_table("site", folded.done | folded.refused)
    for key, what in (("change", "largest change of a logit, nats"), ("loss", "change of the loss, nats")):
        show_table(what, {f"by {one['of']} in {PRECISIONS[one['bits']]}": show_value(one[key]) for one in changed})
    show_table("saved", {study.columns[name].label: show_value(value) for name, value in saved.items()})
    print(out)
    return 0
