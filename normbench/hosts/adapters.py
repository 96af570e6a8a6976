"""How the norms of a given model are read: where their features lie, and what their parameters are called.

Classes of torch, timm and torchvision are in a table by their qualified names, so that nothing is imported for them. A
subclass is not its base: timm's BatchNormAct2d is a BatchNorm2d that ends in an activation. Norms of ours say how they
are read. All other classes that are named as norms, such as the hundreds of transformers, are read by their form, and
taken only if they agree with one of our formulas on random numbers.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from normbench.hosts.acting import Acting
from normbench.norms import LayerNorm, RMSNorm
from normbench.norms.common import RunningNorm, scale_and_shift
from normbench.types import Norm

# What classes call their ε, and what it is in those that do not say it.
EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12)
LEAST_EPS = sys.float_info.min  # nothing beside any variance; of 0 torch's batch_norm says that it must be positive


@dataclass(frozen=True)
class Adapter:
    """How a norm of another library is read.

    Attributes:
        axis: where its features are, -1 or 1.
        formula: ours that computes the same, such as `layernorm`; empty where we have none.
        gain, shift: its attributes with γ and β, which may be None.
        offset: what is added to the gain; Gemma's RMSNorm stores γ−1.
        eps: its attributes with ε, the first that it has.
        usual_eps: its ε, where it has no such attribute.
        acts: whether it ends in `drop` and `act`, modules of its own.
        settings: further settings of ours by name, and its attributes with the same.
        running: whether it keeps running statistics, in the buffers of torch's BatchNorm.
    """

    axis: int
    formula: str = ""
    gain: str = "weight"
    shift: str = "bias"
    offset: float = 0.0
    eps: tuple[str, ...] = EPS_NAMES
    usual_eps: float | None = None
    acts: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    running: bool = False

    def read_eps(self, norm: nn.Module) -> float | None:
        """Return ε; of a class that leaves it to the dtype, that of float32; None where it has none."""
        for name in self.eps:
            if hasattr(norm, name):
                value = getattr(norm, name)
                return torch.finfo(torch.float32).eps if value is None else float(value)
        return self.usual_eps

    def leave_out_eps(self, norm: nn.Module) -> None:
        """Give a norm the least ε that each class takes, where it has an attribute with it."""
        for name in self.eps:
            if hasattr(norm, name):
                setattr(norm, name, LEAST_EPS)
                return

    def read_gain(self, norm: nn.Module) -> Tensor | None:
        """Return γ, of shape (features,); None where it has none."""
        gain = self.read(norm, self.gain)
        if gain is None or self.offset == 0:
            return gain
        return gain + self.offset

    def read_shift(self, norm: nn.Module) -> Tensor | None:
        """Return β, of shape (features,); None where it has none."""
        return self.read(norm, self.shift)

    def read(self, norm: nn.Module, name: str) -> Tensor | None:
        """Return a tensor of a norm without gradients, as a vector; None where it has none of this name."""
        tensor = getattr(norm, name, None)
        return tensor.detach().flatten() if isinstance(tensor, Tensor) else None


LAYER = Adapter(-1, "layernorm")
LAYER_2D = Adapter(1, "layernorm")
RMS = Adapter(-1, "rmsnorm")
RMS_2D = Adapter(1, "rmsnorm")
SIMPLE = Adapter(-1)  # x/std(x), unbiased and without the mean
GROUP = Adapter(1, "groupnorm", settings={"groups": "num_groups"})
BATCH = Adapter(1, "batchnorm", settings={"momentum": "momentum"}, running=True)
FROZEN = Adapter(1, running=True)  # whose statistics and parameters are buffers
INSTANCE = Adapter(1, "instancenorm", settings={"momentum": "momentum"}, running=True)

TABLE: Mapping[str, Adapter] = {
    "torch.nn.modules.normalization.LayerNorm": LAYER,
    "torch.nn.modules.normalization.RMSNorm": RMS,
    "torch.nn.modules.normalization.GroupNorm": GROUP,
    "torch.nn.modules.batchnorm.BatchNorm1d": BATCH,
    "torch.nn.modules.batchnorm.BatchNorm2d": BATCH,
    "torch.nn.modules.batchnorm.BatchNorm3d": BATCH,
    "torch.nn.modules.batchnorm.SyncBatchNorm": BATCH,
    "torch.nn.modules.instancenorm.InstanceNorm1d": INSTANCE,
    "torch.nn.modules.instancenorm.InstanceNorm2d": INSTANCE,
    "torch.nn.modules.instancenorm.InstanceNorm3d": INSTANCE,
    "torchvision.ops.misc.FrozenBatchNorm2d": FROZEN,
    "torchvision.models.convnext.LayerNorm2d": LAYER_2D,
    "timm.layers.norm.LayerNorm": LAYER,
    "timm.layers.norm.LayerNormFp32": LAYER,
    "timm.layers.norm.LayerNorm2d": LAYER_2D,
    "timm.layers.norm.LayerNorm2dFp32": LAYER_2D,
    "timm.layers.norm.LayerNormExp2d": LAYER_2D,
    "timm.layers.norm.RmsNorm": RMS,
    "timm.layers.norm.RmsNormFp32": RMS,
    "timm.layers.norm.RmsNorm2d": RMS_2D,
    "timm.layers.norm.RmsNorm2dFp32": RMS_2D,
    "timm.layers.norm.SimpleNorm": SIMPLE,
    "timm.layers.norm.SimpleNormFp32": SIMPLE,
    "timm.layers.norm.SimpleNorm2d": replace(SIMPLE, axis=1),
    "timm.layers.norm.SimpleNorm2dFp32": replace(SIMPLE, axis=1),
    "timm.layers.norm.GroupNorm": GROUP,
    "timm.layers.norm.GroupNorm1": GROUP,
    "timm.layers.norm_act.BatchNormAct2d": replace(BATCH, acts=True),
    "timm.layers.norm_act.SyncBatchNormAct": replace(BATCH, acts=True),
    "timm.layers.norm_act.FrozenBatchNormAct2d": replace(FROZEN, acts=True),
    "timm.layers.norm_act.GroupNormAct": replace(GROUP, acts=True),
    "timm.layers.norm_act.GroupNorm1Act": replace(GROUP, acts=True),
    "timm.layers.norm_act.LayerNormAct": replace(LAYER, acts=True),
    "timm.layers.norm_act.LayerNormActFp32": replace(LAYER, acts=True),
    "timm.layers.norm_act.LayerNormAct2d": replace(LAYER_2D, acts=True),
    "timm.layers.norm_act.LayerNormAct2dFp32": replace(LAYER_2D, acts=True),
    "timm.layers.norm_act.RmsNormAct": replace(RMS, acts=True),
    "timm.layers.norm_act.RmsNormActFp32": replace(RMS, acts=True),
    "timm.layers.norm_act.RmsNormAct2d": replace(RMS_2D, acts=True),
    "timm.layers.norm_act.RmsNormAct2dFp32": replace(RMS_2D, acts=True),
    "timm.layers.filter_response_norm.FilterResponseNormAct2d": Adapter(1, acts=True),
}

# Classes that no norm can stand in for: the activation is a part of their formula.
ACTING_INSIDE = re.compile(r"timm\.layers\.(evo_norm\.EvoNorm\w+|filter_response_norm\.\w*Tlu2d|inplace_abn\.\w+)")

# What a class with the word in its name is taken for; not what torch keeps of reparametrized weights.
NAMED_AS_NORM = re.compile(r"norm", re.IGNORECASE)
REPARAMETRIZED = "torch.nn.utils."

SHIFT_NAMES = ("bias", "beta", "b", "shift")

# Random inputs are of these sizes: at the second one ε is as large as the variance.
SCALES = (1.0, 3e-3)
TOLERANCE = 1e-5


def qualified_name(norm: nn.Module) -> str:
    """Return the name of a module's class, with the module in which it is defined."""
    kind = type(norm)
    return f"{kind.__module__}.{kind.__qualname__}"


def may_be_norm(module: nn.Module) -> bool:
    """Tell whether a module is a norm by a table, or is named as one and made of parameters alone."""
    name = qualified_name(module)
    if isinstance(module, Norm) or name in TABLE or ACTING_INSIDE.fullmatch(name):
        return True
    if not NAMED_AS_NORM.search(type(module).__name__) or name.startswith(REPARAMETRIZED):
        return False
    return not list(module.children())


class Unreadable(Exception):
    """A norm that is left as it is; the message says why, to follow its name."""


def read_adapter(norm: nn.Module, arguments: int, x: Tensor) -> Adapter:
    """Return how a norm is read.

    Args:
        norm: a module for which `may_be_norm` holds.
        arguments: the number of tensors that it was called with.
        x: the first of them, or one of the same shape on any device.

    Raises:
        Unreadable: it cannot be replaced.
    """
    name = qualified_name(norm)
    if ACTING_INSIDE.fullmatch(name):
        raise Unreadable("has its activation inside its formula")
    adapter = read_ours(norm) if isinstance(norm, Norm) else TABLE.get(name)
    if adapter is None:
        refuse_other_forms(norm, arguments, x)
        adapter = find_agreement(norm, x)
    shape = getattr(norm, "normalized_shape", ())
    if len(shape) > 1:
        raise Unreadable(f"normalizes over the last {len(shape)} axes together")
    return adapter


def read_ours(norm: Norm) -> Adapter:
    """Return how a norm of ours is read, such as one that an earlier swap has put there.

    Raises:
        Unreadable: its activation is a part of its formula.
    """
    if norm.acts:
        raise Unreadable("has its activation inside its formula")
    shared = {name: name for name in ("groups", "momentum") if hasattr(norm, name)}
    is_running = isinstance(norm, RunningNorm)
    formula = type(norm).__name__.lower()
    return Adapter(norm.channel_dim, formula, acts=isinstance(norm, Acting), settings=shared, running=is_running)


def refuse_other_forms(norm: nn.Module, arguments: int, x: Tensor) -> None:
    """Refuse a norm of a class that is in no table and takes more than x, or has more than γ and β.

    Raises:
        Unreadable: with what it takes or has.
    """
    others = name_arguments(norm)[1:]
    if others:
        raise Unreadable(f"takes {' and '.join(others)} beside its input")
    if arguments != 1:
        raise Unreadable(f"is called with {arguments} tensors")
    vectors = dict(norm.named_parameters())
    sizes = {x.shape[axis] for axis in axes_of(x)}
    odd = []
    for name, vector in vectors.items():
        if vector.numel() not in sizes:
            odd.append(name)
    for name, buffer in norm.named_buffers():
        if buffer.numel() != 1 or buffer.is_meta:  # one number may be a gain fixed at 1: both are tried
            odd.append(name)
    if odd or len(vectors) > 2:
        raise Unreadable(f"has {' and '.join(odd or vectors)} beside what a norm has")


def name_arguments(norm: nn.Module) -> list[str]:
    """Return the names of what a norm's forward takes, but for *args and **kwargs."""
    names = []
    for name, parameter in inspect.signature(norm.forward).parameters.items():
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            names.append(name)
    return names


def axes_of(x: Tensor) -> tuple[int, ...]:
    """Return the axes that may have the features of an input: of images the second too."""
    return (-1, 1) if x.ndim == 4 else (-1,)


def find_agreement(norm: nn.Module, x: Tensor) -> Adapter:
    """Return how a norm is read, if its class computes LayerNorm or RMSNorm.

    A copy of it gets random parameters, and must then give in evaluation what our formula gives with the same. One in
    training must leave its buffers as they are: a pass there shows that, but not what changes later than in the first.

    Raises:
        Unreadable: it computes something else, has a buffer that training updates, or cannot be tried.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    trial = make_trial(norm, generator)
    for adapter in candidates(trial, x):
        if all(agrees(trial, adapter, x, generator, scale) for scale in SCALES):
            refuse_running(trial, adapter, x, generator)
            return adapter
    raise Unreadable("computes neither LayerNorm nor RMSNorm")


def make_trial(norm: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy of a norm on the CPU in float32, with random parameters."""
    trial = copy.deepcopy(norm).to_empty(device="cpu").float()
    buffers = dict(norm.named_buffers())
    for name, buffer in trial.named_buffers():
        buffer.copy_(buffers[name])
    for parameter in trial.parameters():
        parameter.requires_grad_(False)
        parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cpu"))
    return trial.eval()


def candidates(norm: nn.Module, x: Tensor) -> Iterator[Adapter]:
    """Give the ways in which a norm with at most two vectors may be read."""
    gain, shift = name_vectors(norm)
    says_eps = any(hasattr(norm, name) for name in EPS_NAMES)
    usual = (None,) if says_eps else USUAL_EPS
    offsets = (0.0, 1.0) if gain else (0.0,)
    for axis in axes_of(x):
        is_fitting = all(parameter.numel() == x.shape[axis] for parameter in norm.parameters())
        if not is_fitting:
            continue
        for formula in ("rmsnorm", "layernorm"):
            for offset in offsets:
                for eps in usual:
                    yield Adapter(axis, formula, gain, shift, offset, usual_eps=eps)


def name_vectors(norm: nn.Module) -> tuple[str, str]:
    """Return the names of γ and β in a norm with at most two vectors; empty where it has none."""
    gain = shift = ""
    for name, _ in norm.named_parameters():
        if name in SHIFT_NAMES and not shift:
            shift = name
        elif not gain:
            gain = name
    return gain, shift


def agrees(trial: nn.Module, adapter: Adapter, like: Tensor, generator: torch.Generator, scale: float) -> bool:
    """Tell whether a norm computes what our formula with its parameters does, on a random input.

    Args:
        trial: the norm.
        adapter: how it is read.
        like: an input, of which the shape counts.
        generator: of the random numbers.
        scale: by which they are multiplied.
    """
    features = like.shape[adapter.axis]
    x = scale * random_input(adapter, like, generator)
    try:
        theirs = trial(x.clone())
    except Exception:  # of a class that takes another layout, and may raise anything
        return False
    ours = our_norm(adapter, features, adapter.read_eps(trial))
    expected = scale_and_shift(ours(x), adapter.read_gain(trial), adapter.read_shift(trial), adapter.axis)
    if not isinstance(theirs, Tensor) or theirs.shape != x.shape:
        return False
    return torch.allclose(theirs, expected, rtol=TOLERANCE, atol=TOLERANCE * float(expected.abs().max()))


def random_input(adapter: Adapter, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return a small random input of a norm, of as many axes and features as another."""
    shape = [2, *range(3, like.ndim + 1), like.shape[adapter.axis]]
    return torch.randn(shape, generator=generator, device="cpu").movedim(-1, adapter.axis)


def refuse_running(trial: nn.Module, adapter: Adapter, like: Tensor, generator: torch.Generator) -> None:
    """Refuse a norm with a buffer that a pass in training changes: the state would go, and the formula with it.

    Args:
        trial: the norm, which stays as it is.
        adapter: how it is read.
        like: an input, of which the shape counts.
        generator: of the random numbers.

    Raises:
        Unreadable: with the buffers.
    """
    before = dict(trial.named_buffers())
    if not before:
        return
    training = copy.deepcopy(trial).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            training(random_input(adapter, like, generator))
        except Exception as error:  # of a class that may raise anything
            raise Unreadable(f"has {' and '.join(before)} beside what a norm has, and fails in training") from error
    after = dict(training.named_buffers())
    changed = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
    if changed:
        raise Unreadable(f"has {' and '.join(changed)} beside what a norm has, which training updates")


def our_norm(adapter: Adapter, features: int, eps: float | None) -> nn.Module:
    """Return our norm of an adapter's formula, without γ and β."""
    kind = RMSNorm if adapter.formula == "rmsnorm" else LayerNorm
    return kind(features, eps=eps or 0.0, affine=False, channel_dim=adapter.axis, impl="eager")
