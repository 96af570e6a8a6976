"""Which γ can go into other weights, tried: a copy of the model runs with γ in the weights that read the norm.

A norm whose γ is 1 gives what still lacks γ. Of each function of torch that reads such a tensor it is tried with
numbers whether γ can be in a weight that it reads too, whether it hands the lack on, as a view or a product does, or
whether it takes nothing of the tensor but its shape. Whatever else reads it needs γ to be there.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from normbench.atlas.passes import CallModel, first_output, hooked
from normbench.hosts.finding import Findings, Found
from normbench.hosts.tape import SHAPED_LIKE, floats_in, look_at, storages_of, tensors_in

FOLDS = 1e-4  # relative, of an output whose γ is in another weight: some models compute in float32 alone
NEAR_ZERO = 1e-3  # the largest entry of a matrix that is as good as none

Swap = Callable[[Tensor], Tensor]


class Kept(Exception):
    """What a norm gives is read by what its γ cannot be taken into."""


def count_folds(model: nn.Module, call: CallModel, findings: Findings) -> dict[str, Any]:
    """Return how many norms at each place have γ that can go into other weights without a change, and how many not.

    Each norm is tried on a copy whose γ are drawn, of either sign: as γ they are multiplied into the weights that read
    the norm's output, and those of BatchNorm with its statistics into the layer before it.
    """
    done = Counter[str]()
    kept = Counter[str]()
    trial = draw_gains(model, findings)
    with hooked(trial):
        before = first_output(call(trial))
    for found in findings.found:
        if found.adapter.read_gain(found.module) is None:
            continue
        fold = fold_statistics if found.adapter.running else fold_gain
        counts = done if fold(trial, call, found, before) else kept
        counts[place_of(found)] += 1
    return {"folds": dict(done), "kept": dict(kept)}


def place_of(found: Found) -> str:
    """Return the role and slot of a norm's site, in words."""
    return f"{found.site.side} {found.site.role} {found.site.slot}".strip().replace("  ", " ")


@torch.no_grad()
def draw_gains(model: nn.Module, findings: Findings) -> nn.Module:
    """Return a copy of a model whose norms have other γ, of either sign, and no β, which would go into biases.

    BatchNorms keep theirs. Matrices that start near 0, as of heads, are drawn, since they would hide what they read.
    """
    trial = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    for parameter in trial.parameters():
        if parameter.ndim > 1 and parameter.is_floating_point() and not bool((parameter.abs() > NEAR_ZERO).any()):
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    for found in findings.found:
        norm = trial.get_submodule(found.path)
        if found.adapter.running or found.adapter.read_gain(norm) is None:
            continue
        size = 1.0 + 0.5 * torch.rand(found.features, generator=generator)
        sign = 1.0 - 2.0 * torch.randint(2, (found.features,), generator=generator)
        write_gain(norm, found, size * sign)
        if found.adapter.read_shift(norm) is not None:
            norm.get_parameter(found.adapter.shift).zero_()
    return trial


def write_gain(norm: nn.Module, found: Found, vector: Tensor) -> None:
    """Give a norm the γ of which this is the value that multiplies."""
    weight = norm.get_parameter(found.adapter.gain)
    weight.copy_((vector - found.adapter.offset).view(weight.shape))


@torch.no_grad()
def fold_gain(trial: nn.Module, call: CallModel, found: Found, before: Tensor) -> bool:
    """Tell whether a model computes the same once a norm's γ is in the weights that read its output.

    Args:
        trial: a model with γ as `draw_gains` makes them; it stays as it is.
        call: runs one pass.
        found: the norm.
        before: what the pass gives with γ in the norm.
    """
    norm = trial.get_submodule(found.path)
    weight = norm.get_parameter(found.adapter.gain)
    stored = weight.clone()
    vector = stored.reshape(-1).float() + found.adapter.offset
    folding = Folding(trial)

    def note_output(module: nn.Module, args: Any, output: Any) -> None:
        given = next(tensors_in(output))
        if given.shape[found.adapter.axis] != len(vector):
            raise Kept
        folding.note(given, along(vector, given, found.adapter.axis).expand_as(given))

    try:
        write_gain(norm, found, torch.ones_like(vector))
        with hooked(trial) as stack:
            stack.callback(norm.register_forward_hook(note_output).remove)
            stack.enter_context(folding)
            after = first_output(call(trial))
    except Kept:
        return False
    finally:
        weight.copy_(stored)
    return folding.done and alike(before, after)


@torch.no_grad()
def fold_statistics(trial: nn.Module, call: CallModel, found: Found, before: Tensor) -> bool:
    """Tell whether a model computes the same once a BatchNorm is in the convolution or linear map before it.

    Args:
        trial: a model; it stays as it is.
        call: runs one pass.
        found: the norm.
        before: what the pass gives.
    """
    norm: Any = trial.get_submodule(found.path)
    layer = layer_before(trial, call, norm)
    if layer is None or norm.running_var is None or layer.weight.shape[0] != found.features:
        return False
    weight, bias = layer.weight, layer.bias
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    gain = 1.0 if norm.weight is None else norm.weight
    shift = 0.0 if norm.bias is None else norm.bias
    scale = gain * torch.rsqrt(norm.running_var + norm.eps)
    layer.bias = nn.Parameter(((0.0 if bias is None else bias) - norm.running_mean) * scale + shift)
    layer.weight = nn.Parameter(weight * along(scale, weight, 0))
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0 - norm.eps)
    for vector, value in ((norm.weight, 1.0), (norm.bias, 0.0)):
        if vector is not None:
            vector.fill_(value)
    with hooked(trial):
        after = first_output(call(trial))
    layer.weight, layer.bias = weight, bias
    norm.load_state_dict(state)
    return alike(before, after)


def layer_before(model: nn.Module, call: CallModel, norm: nn.Module) -> Any:
    """Return the convolution or linear map whose output a norm reads as it is; None where there is none."""
    makers: dict[Any, Any] = {}
    before_norm: list[Any] = []

    def note_maker(module: nn.Module, args: Any, output: Any) -> None:
        makers[look_at(output).key] = module

    def note_input(module: nn.Module, args: Any) -> None:
        before_norm.append(makers.get(look_at(args[0]).key))

    with hooked(model) as stack:
        stack.callback(norm.register_forward_pre_hook(note_input).remove)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                stack.callback(module.register_forward_hook(note_maker).remove)
        call(model)
    return before_norm[0] if before_norm else None


class Folding(TorchFunctionMode):
    """Runs functions with the γ of one norm in the weights that read what it gives.

    Attributes:
        done: whether a weight has taken over γ.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.done = False
        self.lacking: dict[int, tuple[Tensor, Tensor]] = {}  # by its id, a tensor, and by what it is to be multiplied
        self.storages = set[StorageWeakRef]()  # of these
        self.weights: dict[int, Tensor] = {id(parameter): parameter for parameter in model.parameters()}

    def note(self, x: Tensor, gain: Tensor) -> None:
        """Note that a tensor is still to be multiplied by a gain."""
        self.lacking[id(x)] = (x, gain)
        self.storages |= storages_of([x])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = Run(func, args, kwargs or {})
        read = list(floats_in((run.args, run.kwargs)))
        if not read or SHAPED_LIKE.fullmatch(run.name):
            return run.really()
        if not any(id(x) in self.lacking for x in read):
            self.refuse_others(read)
            result = run.really()
            self.note_weights(run, read, result)
            return result
        return self.read(run, read)

    def refuse_others(self, read: list[Tensor]) -> None:
        """Stop where a tensor shares its content with one that lacks γ, and is not known as one.

        Raises:
            Kept: it does.
        """
        if not self.storages.isdisjoint(storages_of(x for x in read if id(x) not in self.lacking)):
            raise Kept

    def note_weights(self, run: Run, read: list[Tensor], result: Any) -> None:
        """Note what is cast, viewed or chosen of weights as weights, too."""
        given = list(floats_in(result))
        if not given or not all(id(x) in self.weights for x in read) or run.name == "embedding":
            return
        generator = torch.Generator().manual_seed(2)
        masks = {id(x): (0.5 + torch.rand(x.shape, generator=generator)).to(x.dtype) for x in read}
        of_both = run.leaves(lambda x: x * masks[id(x)])
        if same(of_both, multiply(run.leaves(), run.leaves(lambda x: masks[id(x)]))):
            self.weights |= {id(x): x for x in given}

    def read(self, run: Run, read: list[Tensor]) -> Any:
        """Run a function that reads what lacks γ.

        Raises:
            Kept: it needs γ.
        """
        self.refuse_others(read)
        plain = run.leaves()
        wanted = run.leaves(lambda x: x * self.gain_of(x))
        if equal(plain, wanted):
            return run.really()
        for put_in in self.swaps(read):
            if same(run.leaves(put_in), wanted):
                self.done = True
                return run.really(put_in)
        gains = divide(run.leaves(self.gain_of), run.leaves(torch.ones_like))
        if not same(multiply(plain, gains), wanted):
            raise Kept
        result = run.really()
        for x, gain in zip(run.leaves_of(result, run.args), gains, strict=True):
            if is_float(x):
                self.note(x, gain)
        return result

    def gain_of(self, x: Tensor) -> Tensor:
        """Return by what a tensor is still to be multiplied: 1, where nothing is lacking."""
        return self.lacking[id(x)][1].to(x.dtype) if id(x) in self.lacking else torch.ones_like(x)

    def swaps(self, read: list[Tensor]) -> Iterator[Swap]:
        """Give what puts γ into one of the weights that a function reads, along each axis that may have features."""
        gains = [self.lacking[id(x)][1] for x in read if id(x) in self.lacking]
        vectors = list(vectors_of(gains[0]))
        for weight in {id(x): x for x in read if id(x) in self.weights}.values():
            for vector in vectors:
                for axis in range(weight.ndim):
                    if weight.shape[axis] == len(vector):
                        yield partial(swap, weight, weight * along(vector, weight, axis).to(weight.dtype))


class Run:
    """A call of a function of torch that can be made again, with other tensors of floating point."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.name = str(getattr(func, "__name__", ""))
        in_place = self.name.endswith("_") and not self.name.endswith("__")
        self.writes = in_place or self.name.startswith(("__i", "__set")) or "out" in kwargs

    def really(self, change: Swap | None = None) -> Any:
        """Make the call."""
        args, kwargs = self.args, self.kwargs
        if change is not None:
            args, kwargs = tree_map(lambda x: change(x) if is_float(x) else x, (args, kwargs))
        return self.func(*args, **kwargs)

    def leaves(self, change: Swap | None = None) -> list[Any]:
        """Make the call with copies, and return what it gives one by one."""

        def replace(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            if change is not None and is_float(item):
                item = change(item)
            return item.clone()

        args, kwargs = tree_map(replace, (self.args, self.kwargs))
        return self.leaves_of(self.func(*args, **kwargs), args)

    def leaves_of(self, result: Any, args: tuple[Any, ...]) -> list[Any]:
        """Return what the call has given, one by one, and what it has written to."""
        tensors = list(tensors_in(result))
        leaves: list[Any] = tensors or [result]
        return [*leaves, args[0]] if self.writes and args and isinstance(args[0], Tensor) else leaves


# ---- numbers


def swap(tensor: Tensor, other: Tensor, x: Tensor) -> Tensor:
    """Return another tensor in place of this one, and every other as it is."""
    return other if x is tensor else x


def is_float(x: Any) -> bool:
    """Tell whether this is a tensor of real numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()


def along(vector: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return a vector as one along an axis of a tensor."""
    view = [1] * x.ndim
    view[axis] = len(vector)
    return vector.view(view)


def alike(x: Any, y: Any) -> bool:
    """Tell whether two results are the same, but for rounding."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return bool(x is y or x == y)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.is_floating_point() or not x.numel():
        return torch.equal(x, y)
    finite = x[x.isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(x, y, rtol=FOLDS, atol=FOLDS * size, equal_nan=True)


def same(results: list[Any], others: list[Any]) -> bool:
    """Tell whether several results are the same, but for rounding."""
    return len(results) == len(others) and all(alike(x, y) for x, y in zip(results, others, strict=True))


def equal(results: list[Any], others: list[Any]) -> bool:
    """Tell whether several results are the same to the bit, as those of a function that takes no numbers are."""
    pairs = list(zip(results, others, strict=True))
    return all(torch.equal(x, y) if isinstance(x, Tensor) else alike(x, y) for x, y in pairs)


def multiply(results: list[Any], gains: list[Any]) -> list[Any]:
    """Return results multiplied by gains, as far as they are real numbers."""
    return [x * gain if is_float(x) and is_float(gain) else x for x, gain in zip(results, gains, strict=True)]


def divide(results: list[Any], others: list[Any]) -> list[Any]:
    """Return results divided by others, as far as they are real numbers; 0 for 0/0, where no result is left."""
    shares = []
    for x, other in zip(results, others, strict=True):
        shares.append(torch.where(other == 0, 0.0, x / other).nan_to_num(1.0) if is_float(x) else x)
    return shares


def vectors_of(gain: Tensor) -> Iterator[Tensor]:
    """Give the numbers by which a gain differs along an axis, if it is the same along all others where it is not 0."""
    for axis in range(gain.ndim):
        rows = gain.movedim(axis, 0).flatten(1)
        if len(rows) < 2 or not rows.numel():
            continue
        vector = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        if torch.allclose(torch.where(rows == 0, vector, rows), vector.expand_as(rows), rtol=FOLDS):
            yield vector[:, 0]
