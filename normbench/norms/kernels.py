"""What computes some norms faster than their formula: autograd functions on torch's own kernels, and Liger's kernels.

PowerNorm's autograd function is here too, for the gradient that its authors chose. All take x with its features along
the last axis, and all arguments in one dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from normbench.errors import UsageError
from normbench.masks import Counts

BLOCK = 2**17  # values that a thread works on at once: half a MiB in float32, of which some fit into a core's own cache

# Of so few values the formula takes less time than the call of an autograd function written in Python.
RMS_FEW = 2**15
DYT_FEW = 2**17

layer_norm_backward = torch.ops.aten.native_layer_norm_backward
batch_norm = torch.ops.aten.native_batch_norm
batch_norm_backward = torch.ops.aten.native_batch_norm_backward


def in_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield contiguous tensors with the same positions in blocks, `(rows, features)`, small enough for a CPU's cache.

    A GPU has them whole: each of its kernels takes some time to start.
    """
    first = tensors[0]
    block = BLOCK * torch.get_num_threads()
    if first.device.type != "cpu" or first.numel() <= block:
        return iter([tensors])
    rows = max(block // first.shape[-1], 1)
    blocks = [tensor.view(-1, tensor.shape[-1]).split(rows) for tensor in tensors]
    return zip(*blocks, strict=True)


def gradients(formula: Callable[..., Tensor], dy: Tensor, *inputs: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients of a formula's inputs, which can be differentiated in turn; None for an input of None."""

    present = [place for place, tensor in enumerate(inputs) if tensor is not None]

    def in_place(tensors: Sequence[Any]) -> list[Any]:
        """Return as many as there are inputs: these tensors where an input is present, and None elsewhere."""
        with_gaps: list[Any] = [None] * len(inputs)
        for place, tensor in zip(present, tensors, strict=True):
            with_gaps[place] = tensor
        return with_gaps

    def of_present(*tensors: Tensor) -> Tensor:
        return formula(*in_place(tensors))

    pull_back = torch.func.vjp(of_present, *[inputs[place] for place in present])[1]
    return tuple(in_place(pull_back(dy)))


def copy_if_last(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return y, or a copy of it where autograd keeps y itself, and neither γ nor β makes another tensor of it.

    What comes next may work in place, as many activations do, and would change what the backward pass reads.
    """
    is_last = weight is None and bias is None
    return y.clone() if is_last and y.requires_grad else y


# ---- RMSNorm


def rms_formula(x: Tensor, weight: Tensor | None, eps: float, detach: bool = False) -> Tensor:
    """Return γ·x/√(ms(x)+ε). detach: whether ms(x) is a constant for the backward pass."""
    mean_square = x.square().mean(-1, keepdim=True)
    if detach:
        mean_square = mean_square.detach()
    y = x * torch.rsqrt(mean_square + eps)
    return y if weight is None else y * weight


class RMSNormFunction(torch.autograd.Function):
    """Computes y = γ·x·r, with r = 1/√(ms(x)+ε), and its gradients by LayerNorm's kernel.

    With g = γ·∂y, and means over the n features of a position, RMSNorm has ∂x = r·(g − x·r²·mean(g·x)), and LayerNorm,
    whose kernel is handed μ and r = 1/σ, ∂x = r·(g − mean(g) − (x−μ)·r²·mean(g·(x−μ))). So with μ = 0 the kernel gives
    RMSNorm's but for r·mean(g) = r·(∂y·γ)/n, which is added back; and ∂γ = Σ ∂y·x·r as it should be.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        rms = norm.mul_(x.shape[-1] ** -0.5)
        scale = rms.square_().add_(eps).rsqrt_()  # r
        y = torch.empty_like(x)
        for rows, scales, out in in_blocks(x, scale, y):
            torch.mul(rows, scales, out=out)
            if weight is not None:
                out.mul_(weight)
        ctx.eps = eps
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # a derivative of this is wanted, too
            return *gradients(partial(rms_formula, eps=ctx.eps), dy, x, weight), None
        dy = dy.contiguous()
        mean = torch.zeros_like(scale)
        wants_dx, wants_dweight, _ = ctx.needs_input_grad
        wanted = [wants_dx, wants_dweight, False]
        dx, dweight, _ = layer_norm_backward(dy, x, x.shape[-1:], mean, scale, weight, None, wanted)
        if dx is not None:
            features = x.shape[-1]
            rows = dy.view(-1, features)
            sums = rows.sum(-1) if weight is None else rows.mv(weight)  # autocast leaves mv alone
            missing = sums.mul_(scale.view(-1)).div_(features)
            dx.view_as(rows).add_(missing.unsqueeze(-1))
        return dx, dweight, None


def native_rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return `rms_formula`, faster on a CPU."""
    if x.numel() <= RMS_FEW or torch._C._are_functorch_transforms_active():  # torch.func takes the formula
        return rms_formula(x, weight, eps)
    y: Tensor = RMSNormFunction.apply(x.contiguous(), weight, eps)
    return y


# ---- DyT


def dyt_formula(x: Tensor, alpha: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return γ·tanh(αx)+β."""
    y = copy_if_last(torch.tanh(alpha * x), weight, bias)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y


class DyTFunction(torch.autograd.Function):
    """Computes y = γ·t+β, with t = tanh(αx), which is kept: ∂x = α·d with d = γ·∂y·(1−t²), ∂α = Σ d·x.

    ∂γ = Σ ∂y·t and ∂β = Σ ∂y over positions are LayerNorm's, with μ = 0 and σ = 1.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty_like(x)
        tanh = torch.empty_like(x)
        for rows, squashed, out in in_blocks(x, tanh, y):
            torch.mul(rows, alpha, out=squashed).tanh_()
            if bias is None:
                torch.mul(squashed, weight, out=out)
            else:
                torch.addcmul(bias, squashed, weight, out=out)
        ctx.save_for_backward(x, alpha, weight, bias, tanh)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, alpha, weight, bias, tanh = ctx.saved_tensors
        if torch.is_grad_enabled():  # a derivative of this is wanted, too
            return gradients(dyt_formula, dy, x, alpha, weight, bias)
        dy = dy.contiguous()
        dx = torch.empty_like(x)
        sums = []
        for rows, squashed, above, out in in_blocks(x, tanh, dy, dx):
            torch.mul(above, weight, out=out)
            torch.ops.aten.tanh_backward.grad_input(out, squashed, grad_input=out)
            sums.append(torch.dot(out.view(-1), rows.view(-1)))  # autocast leaves dot alone
            out.mul_(alpha)
        mean = dy.new_zeros(*dy.shape[:-1], 1)
        std = mean + 1
        _, _, wants_dweight, wants_dbias = ctx.needs_input_grad
        wanted = [False, wants_dweight, bias is not None and wants_dbias]
        _, dweight, dbias = layer_norm_backward(dy, tanh, dy.shape[-1:], mean, std, weight, bias, wanted)
        dalpha = torch.stack(sums).sum().view_as(alpha)
        return dx, dalpha, dweight, dbias


def native_dyt(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `dyt_formula`, faster on a CPU."""
    small = x.numel() <= DYT_FEW or not x.is_contiguous()  # to copy it would take what is saved
    if small or torch._C._are_functorch_transforms_active():
        return dyt_formula(x, alpha, weight, bias)
    y: Tensor = DyTFunction.apply(x, alpha, weight, bias)
    return y


# ---- BatchNorm under a mask


def at_least_float32(x: Tensor) -> Tensor:
    """Return the tensor in float32, or in its own format if that is finer."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def masked_batch_formula(x: Tensor, weight: Tensor | None, bias: Tensor | None, counts: Counts, eps: float) -> Tensor:
    """Return γ(x−μ)/√(σ²+ε)+β of the real rows of x (rows, features), and 0 in the others; in float32 at least."""
    x = at_least_float32(x)
    cleaned = x.masked_fill(counts.absent, 0)
    mean = cleaned.sum(0) / counts.count
    centered = (cleaned - mean).masked_fill(counts.absent, 0)
    variance = centered.square().sum(0) / counts.count
    y = centered * torch.rsqrt(variance + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.masked_fill(counts.absent, 0)


class MaskedBatchNormFunction(torch.autograd.Function):
    """Computes `masked_batch_formula` and its gradients by BatchNorm's own kernels, which know no mask.

    n of the N rows are real, with mean μ and biased variance σ². With s = √(N/n), rows s(x−μ), and 0 for the others,
    have the variance σ²: given γ/s the kernel returns y. Its ∂x = γ/σ·(∂y − mean(∂y) − x̂·mean(∂y·x̂)) has means over N,
    and s·x̂ for x̂. Where the other rows of ∂y are its mean over the real ones, mean(∂y) is that too, and since s² = N/n
    the last term is that of the real ones; ∂γ is s times too large. Also returned: μ, and the variance by N−1.

    All is computed in float32 at least, which weight and bias have. x is kept as it is: only a second derivative needs
    it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, counts: Counts, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        cleaned = at_least_float32(x).masked_fill(counts.absent, 0)
        mean = cleaned.sum(0) / counts.count
        stretched = (cleaned - mean).mul_(counts.factor(cleaned.dtype))
        gamma = torch.ones_like(mean) if weight is None else weight
        scale = gamma / counts.stretch
        # with a momentum of 1 the moving averages are the batch's own statistics
        statistics = cleaned.new_zeros(2, x.shape[1])
        own_mean, var = statistics[0], statistics[1]
        y, center, scaling = batch_norm(stretched, scale, bias, own_mean, var, True, 1.0, eps)
        ctx.counts = counts
        ctx.eps = eps
        ctx.save_for_backward(x, weight, bias, stretched, center, scaling)
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)  # zeros for these two
        return y.masked_fill_(counts.absent, 0), mean, var

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        if dy is None:
            return None, None, None, None, None
        x, weight, bias, stretched, center, scaling = ctx.saved_tensors
        counts = ctx.counts
        if torch.is_grad_enabled():  # a derivative of this is wanted, too
            formula = partial(masked_batch_formula, counts=counts, eps=ctx.eps)
            return *gradients(formula, dy, x, weight, bias), None, None
        dy = dy.masked_fill(counts.absent, 0)
        dbias = dy.sum(0)
        filled = torch.where(counts.absent, dbias / counts.count, dy)
        statistics = (None, None, center, scaling)
        wanted = [True, weight is not None, False]
        dx, dweight, _ = batch_norm_backward(filled, stretched, weight, *statistics, True, ctx.eps, wanted)
        dx = dx.masked_fill_(counts.absent, 0).to(x.dtype)
        dweight = None if weight is None else dweight / counts.stretch
        return dx, dweight, None if bias is None else dbias, None, None


# ---- Liger's kernels


class DifferentiableOnce(torch.autograd.Function):
    """Leaves its input alone, and refuses a second derivative, which kernels that autograd cannot look into lack.

    What it returns lies in the same memory and is no view, on which autograd would let nothing work in place.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.new_empty(0).set_(y.untyped_storage(), y.storage_offset(), y.shape, y.stride())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise UsageError("norm.impl=liger has no second derivative, which is asked for: set norm.impl=eager")
        return dy


def by_liger(module: str, x: Tensor, *more: Any) -> Tensor:
    """Return what a kernel of Liger's computes: the autograd function in one of its modules."""
    if not x.is_cuda or x.dtype != torch.float32:
        dtype_and_device = f"{str(x.dtype).removeprefix('torch.')} on {x.device.type}"
        raise UsageError(f"norm.impl=liger computes in float32 on CUDA, not in {dtype_and_device}: set norm.impl=auto")
    words = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "dyt": "DyT"}
    function = getattr(import_module(f"liger_kernel.ops.{module}"), f"Liger{words[module]}Function")
    y: Tensor = DifferentiableOnce.apply(function.apply(x, *more))
    return y


def liger_rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return `rms_formula`, by Liger: all in float32, as Gemma has it; no gradient is overwritten by another."""
    return by_liger("rms_norm", x, weight, eps, 0.0, "gemma", False)


def liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return γ(x−μ)/√(σ²+ε)+β, by Liger."""
    return by_liger("layer_norm", x, weight, bias, eps)


def liger_dyt(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `dyt_formula`, by Liger."""
    return by_liger("dyt", x, alpha, weight, bias)


# ---- PowerNorm


class PowerFunction(torch.autograd.Function):
    """z = x·scale, with the gradient (g−share·ν·z)·gradient_scale at x; the backward pass moves ν.

    x (..., rows, features), scales and ν (..., features), count (...): in front may be an axis of seeds, of
    torch.func.vmap.
    """

    @staticmethod
    def forward(x: Tensor, scale: Tensor, gradient_scale: Tensor, nu: Tensor, count: Tensor, share: float) -> Tensor:
        return x * scale.unsqueeze(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, gradient_scale, ctx.nu, count, ctx.share = inputs
        ctx.save_for_backward(output, gradient_scale, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, gradient_scale, count = ctx.saved_tensors
        nu = ctx.nu.to(z.dtype)
        corrected = gradient - ctx.share * nu.unsqueeze(-2) * z
        ctx.nu.add_((corrected * z).sum(-2) / count.unsqueeze(-1))
        return corrected * gradient_scale.unsqueeze(-2), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Compute all seeds at once."""
        tensors = []
        for tensor, dim in zip(inputs[:-1], in_dims, strict=False):
            tensors.append(tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0))
        z: Tensor = PowerFunction.apply(*tensors, inputs[-1])
        return z, 0


def apply_power(*inputs: Any) -> Tensor:
    """Return what `PowerFunction` makes of its inputs."""
    z: Tensor = PowerFunction.apply(*inputs)
    return z


# ---- what has to be there


@cache
def check_liger() -> None:
    """Refuse Liger's kernels where they cannot run."""
    if find_spec("liger_kernel") is None:
        raise UsageError("norm.impl=liger needs the package liger-kernel: pip install 'normbench[liger]'")
    if not torch.cuda.is_available():
        raise UsageError("norm.impl=liger needs CUDA, and torch finds none here: set norm.impl=auto")


@cache
def check_compiler() -> None:
    """Refuse to compile where torch finds nothing that does."""
    from torch._inductor.cpp_builder import get_cpp_compiler  # slow to import
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        cure = "install one, such as g++, or set norm.impl=auto"
        raise UsageError(f"norm.impl=compile needs a C++ compiler, and torch finds none: {cure}") from error
