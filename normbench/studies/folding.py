"""Norms folded into their linear neighbours: how, what that changes and saves, and a run's folded weights as a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from normbench.config.groups import find_own_classes
from normbench.errors import UsageError, explain
from normbench.evidence.labels import label_of
from normbench.hosts.adapters import our_norm, qualified_name, read_adapter
from normbench.norms import RMSNorm
from normbench.norms.foreign import accept_mask
from normbench.record.console import Stages, show_table
from normbench.record.files import write_bytes
from normbench.results.rows import ResultTable, Value, arms_of, compare, mean_by_seed
from normbench.runs.load import TrainedRun
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.show.study_tables import show_value
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.fx_graph import ModelGraph, NotFoldable, is_blind_to_mean, weight_of
from normbench.studies.timing import median_interval, time_in_turn
from normbench.training.devices import resolve_device
from normbench.training.evaluation import to_device
from normbench.training.precision import make_precision
from normbench.types import PADDING, Batch, Model, Norm
from normbench.wording import count

EXACT = 1e-9  # of the largest logit: what folding may change in float64
PRECISIONS = {53: "float64", 24: "float32", 8: "bfloat16"}  # by the bits of the significand


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
        batches = [to_device(batch, subject.device) for batch in subject.data.eval_batches("val", 4)]
        yield from measure_changes(model, folded.model, batches)
        share_left = count_parameters(folded.model) / count_parameters(model)
        single = copy.deepcopy(folded.model).float()
        yield {
            "folded": len(folded.done),
            "kept": len(folded.refused),
            "saved": 100 * (1 - share_left),
            **time_ratio(model, single, batches[0], self.pairs),
        }

    def finding(self, rows: pd.DataFrame) -> list[Value]:
        saved = rows.dropna(subset="time")
        stated = []
        for arm in arms_of(saved):
            what = f"{label_of(arm)}: the time of a batch, folded over not, is"
            times = mean_by_seed(saved, "time", arm)
            stated.append(Value(what, times.values, references={"1 (no time saved)": 1.0}))
        return stated

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
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
        title_and_caption = self.captions["folding"]
        return draw_curves(
            "folding", changed, x="bits", y="change", panel="of", columns=self.columns, **title_and_caption
        )


# ---- folding


@dataclass
class Folded:
    """A model for inference with its norms folded, in float64.

    Attributes:
        done: what became of each norm that is folded, by its site.
        refused: why a norm, or its mean, is kept.
    """

    model: Model
    done: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@torch.no_grad()
def fold(model: Model, norms: Mapping[str, nn.Module], batch: Batch) -> Folded:
    """Return a copy of a model whose norms are folded into their linear neighbours, as far as they can be.

    A norm with running statistics goes as a whole into the layer before it, W' = diag(s)·W, if nothing else reads that
    layer, and into the layers after it otherwise. Of other norms γ and β go into the layers after it: W' = W·diag(γ),
    b' = b + W·β (FlashNorm, Graef et al. 2024). Then the mean goes out of the weights that write to a stream which only
    LayerNorms read, so that RMSNorms take their place (SliceGPT, Ashkboos et al. 2024, §3.1).

    Args:
        model: the model, which stays as it is.
        norms: its norms by site.
        batch: on which the two must agree.

    Raises:
        UsageError: the model computes in a way that is not seen through.
    """
    model, norms = copy.deepcopy((model, dict(norms)))
    model.call_every_norm()
    folded = Folded(model.double().eval())
    compute_weights(model)
    batch = in_precision_of(model, batch)
    use_our_formulas(model, norms, batch)
    inputs, before = run_seeing_inputs(model, norms.values(), batch)
    try:
        graph = ModelGraph(model, inputs, batch)
    except Exception as error:  # a model may do what neither can follow
        who = "torch.fx and torch.export cannot follow"
        raise UsageError(f"{who} {type(model).__name__} ({explain(error)}): fold another") from error
    for site, norm in norms.items():
        fold_norm(site, norm, graph, folded)
    change = (logits_of(model, batch) - before).abs().max()
    if not change <= EXACT * before.abs().max():  # "not <=" is true of NaN as well
        raise UsageError(f"{type(model).__name__} computes in a way that folding does not see through: fold another")
    return folded


def use_our_formulas(model: Model, norms: dict[str, nn.Module], batch: Batch) -> None:
    """Put LayerNorm and RMSNorm of ours in the place of norms of transformers' own classes, with their γ and β.

    These compute in float32, and cannot be without a γ.
    """
    inputs, _ = run_seeing_inputs(model, norms.values(), batch)
    paths = {module: path for path, module in model.named_modules()}
    for site, norm in norms.items():
        if isinstance(norm, Norm) or not qualified_name(norm).startswith("transformers."):
            continue
        x = inputs[norm]
        adapter = read_adapter(norm, 1, x)
        gain = adapter.read_gain(norm)
        shift = adapter.read_shift(norm)
        ours: Any = our_norm(adapter, x.shape[adapter.axis], adapter.read_eps(norm)).to(x)
        ours.weight = None if gain is None else nn.Parameter(gain.to(x))
        ours.bias = None if shift is None else nn.Parameter(shift.to(x))
        model.set_submodule(paths[norm], ours)
        norms[site] = ours


def compute_weights(model: Model) -> None:
    """Let each weight that is computed from others (`weights=`) be what it is computed to be, for good.

    torch's own `remove_parametrizations` changes the module's class, which copies of the module share.
    """
    for module in list(model.modules()):
        if is_parametrized(module, "weight"):
            weight: Any = module.weight
            module.__class__ = type_before_parametrizations(module)
            del module.parametrizations
            module.weight = nn.Parameter(weight)


def run_seeing_inputs(
    model: Model, norms: Collection[nn.Module], batch: Batch
) -> tuple[dict[nn.Module, Tensor], Tensor]:
    """Return what enters each norm for a batch, and the logits."""
    inputs = dict[nn.Module, Tensor]()

    def keep_input(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs[norm] = given[0]

    hooks = [norm.register_forward_pre_hook(keep_input) for norm in norms]
    logits = logits_of(model, batch)
    for hook in hooks:
        hook.remove()
    return inputs, logits


def fold_norm(site: str, norm: Any, graph: ModelGraph, folded: Folded) -> None:
    """Fold one norm of the model that is being folded, as far as it can be, and note what became of it."""
    bare = norm
    done = list[str]()
    try:
        parts = take_apart(norm, graph.inputs[norm])
        done.append(move_scale_and_shift(norm, parts, graph))
        bare = parts.bare
    except NotFoldable as reason:
        folded.refused[site] = f"kept, as {reason}"
    try:
        rms = as_rms(bare, graph.inputs[norm], norm.channel_dim)
        if rms is not None:
            remove_mean(norm, graph)
            done.append("RMSNorm in place of LayerNorm, as its input has no mean")
            bare = rms
    except NotFoldable as reason:
        folded.refused[f"{site}, its mean"] = f"kept, as {reason}"
    if done:
        folded.model.set_submodule(graph.paths[norm], bare)
        folded.done[site] = "; ".join(done)


def move_scale_and_shift(norm: Any, parts: NormParts, graph: ModelGraph) -> str:
    """Move a norm's scale and shift into the layers beside it, and say what went where.

    Raises:
        NotFoldable: they cannot be moved.
    """
    node = graph.node_of.get(norm)
    if node is None:
        raise NotFoldable("it is not seen as a whole")
    before = graph.layer_before(node) if has_running_statistics(norm) else None
    if before is not None:
        move_into_layer_before(norm, before)
        return f"all of it into {graph.paths[before]}"
    layers = list(graph.layers_after(node))
    if parts.shift.any():
        padded = [layer for layer in layers if any(getattr(layer, "padding", ()))]
        if padded:
            raise NotFoldable(f"{graph.paths[padded[0]]} after it pads with zeros, which a shift would change")
    for layer in layers:
        move_into_layer_after(parts, layer)
    if parts.is_whole:
        what = "all of it"
    elif getattr(norm, "bias", None) is None:
        what = "γ"
    else:
        what = "γ and β"
    paths = [graph.paths[layer] for layer in layers]
    return f"{what} into {' and '.join(paths)}"


def move_into_layer_before(norm: Any, layer: Any) -> None:
    """Move all of a norm with running statistics into the layer before it: W' = diag(s)·W."""
    fuse: Any = fuse_conv_bn_weights if isinstance(layer, nn.Conv2d) else fuse_linear_bn_weights
    before = weight_of(layer)
    weight, layer.bias = fuse(
        before, layer.bias, norm.running_mean, norm.running_var, norm.eps, gain_of(norm), norm.bias
    )
    before.copy_(weight)


def move_into_layer_after(parts: NormParts, layer: Any) -> None:
    """Move scale γ and shift β into a layer that reads them: b' = b + W·β, and W' = W·diag(γ).

    Where the mean μ is subtracted as well, and nothing else is done, W'x − W'μ is (W' − w)x, w the mean of W' over
    the features that it reads.
    """
    channels = len(parts.scale)
    weight = weight_of(layer)
    if parts.shift.any():
        by_channel = weight.flatten(1).unflatten(1, (channels, -1)).sum(2)  # over a kernel's pixels
        bias = by_channel @ parts.shift
        if layer.bias is not None:
            bias = bias + layer.bias
        layer.bias = nn.Parameter(bias)
    kernel = [1] * (weight.ndim - 2)
    weight.mul_(parts.scale.view(-1, *kernel))
    if parts.centers:
        weight.sub_(weight.mean(1, keepdim=True))


def remove_mean(norm: nn.Module, graph: ModelGraph) -> None:
    """Take the mean over features out of all weights that write to the stream which a norm reads.

    Raises:
        NotFoldable: something needs that mean, or writes to the stream otherwise.
    """
    stream: Any = graph.node_of[norm].args[0]
    for writer in graph.writers(stream):  # those without a mean stay the same
        writer.tensor.sub_(writer.tensor.mean(writer.axis, keepdim=True))


@torch.inference_mode()
def logits_of(model: Model, batch: Batch) -> Tensor:
    """Return the logits of a batch, but for those at padding, computed in the model's precision, as double."""
    logits = model(*in_precision_of(model, batch).arguments)
    return logits[batch.targets != PADDING].double()


def in_precision_of(model: Model, batch: Batch) -> Batch:
    """Return a batch whose numbers are in the precision of a model's parameters."""
    dtype = next(model.parameters()).dtype
    return batch.map(lambda one: one.to(dtype) if one.is_floating_point() else one)


# ---- norms by themselves


@dataclass(frozen=True)
class NormParts:
    """A norm in two: one without γ and β, whose output is then scaled and shifted, channel by channel.

    Where that one does nothing, as running statistics are a part of scale and shift, or subtracts the mean alone
    (`centers`), nothing is left of the norm: `bare` is an identity.
    """

    bare: nn.Module
    scale: Tensor
    shift: Tensor
    centers: bool = False

    @property
    def is_whole(self) -> bool:
        """Tell whether scale and shift are all of the norm."""
        return isinstance(self.bare, nn.Identity)


def take_apart(norm: Any, x: Tensor) -> NormParts:
    """Return the parts of a norm, which are compared with the whole on an input x.

    Raises:
        NotFoldable: it is not made of these.
    """
    weight = gain_of(norm)
    bias = getattr(norm, "bias", None)
    zeros = x.new_zeros(x.shape[norm.channel_dim])
    scale = zeros + (1 if weight is None else weight)
    shift = zeros + (0 if bias is None else bias)
    if has_running_statistics(norm):
        bare = accept_mask(nn.Identity())
        scale = scale * torch.rsqrt(norm.running_var + norm.eps)
        shift = shift - scale * norm.running_mean
    elif getattr(norm, "fixed_scale", None) is not None:
        bare = accept_mask(nn.Identity())
        scale = zeros + norm.fixed_scale
    elif weight is None and bias is None:
        raise NotFoldable("it has neither γ nor β")
    else:
        bare = copy.deepcopy(norm)
        bare.weight = bare.bias = None
    whole = norm(x).movedim(norm.channel_dim, -1)
    rebuilt = bare(x).movedim(norm.channel_dim, -1) * scale + shift
    if not torch.allclose(whole, rebuilt):
        raise NotFoldable("its weight and bias are not a scale and a shift of each channel")
    mean = x.mean(norm.channel_dim, keepdim=True)
    if is_linear_as(bare, x, x):
        return NormParts(accept_mask(nn.Identity()), scale, shift)
    if is_linear_as(bare, x, x - mean):
        return NormParts(accept_mask(nn.Identity()), scale, shift, centers=True)
    return NormParts(bare, scale, shift)


def gain_of(norm: Any) -> Any:
    """Return a norm's γ, to which ours may add an offset; None where it has none that is learned."""
    weight = getattr(norm, "weight", None)
    offset = getattr(norm, "offset", 0.0)
    return weight if weight is None or not offset else weight + offset


def has_running_statistics(norm: Any) -> bool:
    """Tell whether a norm has running statistics of each channel; statistics for each position do not fold."""
    return getattr(getattr(norm, "running_mean", None), "ndim", 0) == 1


def is_linear_as(norm: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Tell whether a norm makes y of x, and 3y of 3x."""
    return torch.allclose(norm(x), y) and torch.allclose(norm(3 * x), 3 * y)


def as_rms(norm: Any, x: Tensor, axis: Any) -> nn.Module | None:
    """Return the RMSNorm that a LayerNorm without γ and β is where its input has no mean; None for other norms."""
    if getattr(norm, "weight", None) is not None or getattr(norm, "eps", None) is None:
        return None
    if not is_blind_to_mean(norm, x):
        return None
    rms = RMSNorm(x.shape[axis], eps=norm.eps, affine=False, channel_dim=axis)
    without_mean = x - x.mean(axis, keepdim=True)
    return rms if torch.allclose(norm(x), rms(without_mean)) else None


# ---- what it changes and saves


def measure_changes(model: Model, folded: Model, batches: Sequence[Batch]) -> Iterator[Row]:
    """Yield how far apart logits and loss are, by the bits of the significand, in two ways.

    folding: the folded model and the plain one, both in that precision. rounding: the plain one there and in float64.
    """
    dtypes = {53: torch.float64, 24: torch.float32}
    with suppress(UsageError):
        dtypes[8] = make_precision("bf16", batches[0].inputs.device).dtype
    exact = copy.deepcopy(model).double()
    for bits, dtype in dtypes.items():
        plain = copy.deepcopy(model).to(dtype)
        folded_too = copy.deepcopy(folded).to(dtype)
        changes = {
            "folding": change_between(plain, folded_too, batches),
            "rounding": change_between(exact, plain, batches),
        }
        for kind, differences in changes.items():
            if differences["change"]:  # in float64 there is no rounding
                yield {"of": kind, "bits": bits, **differences}


def change_between(model: Model, other: Model, batches: Sequence[Batch]) -> Row:
    """Return the largest change of a logit between two models, and the change of the mean loss."""
    changes = []
    losses = []
    for batch in batches:
        targets = batch.targets[batch.targets != PADDING]
        first = logits_of(model, batch)
        second = logits_of(other, batch)
        changes.append(float((second - first).abs().max()))
        first_loss = float(F.cross_entropy(first, targets))
        second_loss = float(F.cross_entropy(second, targets))
        losses.append(second_loss - first_loss)
    return {"change": float(np.max(changes)), "loss": float(abs(np.mean(losses)))}


@torch.inference_mode()
def time_ratio(plain: Model, folded: Model, batch: Batch, pairs: int) -> Row:
    """Return the folded model's time over the plain one's, in turn: the median of pairs, and its 95 % interval."""
    calls = [lambda: plain(*batch.arguments), lambda: folded(*batch.arguments)]
    ratios = [after / before for before, after in time_in_turn(calls, pairs)]
    low, high = median_interval(ratios)
    return {"time": float(np.median(ratios)), "low": low, "high": high}


def count_parameters(model: Model) -> int:
    """Return how many numbers a model's parameters hold."""
    return sum(parameter.numel() for parameter in model.parameters())


# ---- the command


def to_safetensors(model: Model, notes: dict[str, str]) -> bytes:
    """Return a model's weights by their names, with notes; each by itself, as a file has no shared ones."""
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    return safetensors.torch.save(tensors, notes)


def fold_run(path: str, out: Path | None, device: str = "auto", trust: bool = False) -> int:
    """Write a run's folded weights as safetensors; print what was folded, what it changes and saves; return the status.

    Raises:
        UsageError: nothing can be folded.
    """
    if trust:
        find_own_classes()
    trained = TrainedRun(path, trust)
    study = Folding()
    torch.set_num_threads(trained.session.get("threads") or 1)  # as the run itself
    subject = Subject({}, trained.tree, resolve_device(device), trained.data, trained.path, trust)
    with Stages() as stages:
        stages.begin("reading and folding the model")
        _, folded = study.folded(subject)
        notes = {
            "format": "pt",
            "run": trained.path.name,
            "folded": json.dumps(folded.done),
            "kept": json.dumps(folded.refused),
        }
        classes = getattr(subject.load(), "classes", None)
        if classes:
            notes["classes"] = json.dumps(classes)
        out = out or trained.path / "folded.safetensors"
        write_bytes(out, to_safetensors(folded.model.float(), notes))
        show_table("site", {**folded.done, **folded.refused})
        stages.begin("measuring what that changes, and what it saves")
        rows: list[Row] = []
        for row in study.measure(subject):
            stages.note(count(len(rows) + 1, "row"))
            rows.append(row)
    *changed, saved = rows
    for metric, what in {"change": "largest change of a logit, nats", "loss": "change of the loss, nats"}.items():
        table = {}
        for row in changed:
            table[f"by {row['of']} in {PRECISIONS[row['bits']]}"] = show_value(row[metric])
        show_table(what, table)
    table = {}
    for name, value in saved.items():
        table[study.columns[name].label] = show_value(value)
    show_table("saved", table)
    print(out)
    return 0
