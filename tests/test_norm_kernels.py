"""What computes a norm faster is the formula: in float64, for extreme inputs, differentiated twice, under vmap."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import WHOLE
from test_norms import CASES, FEATURES, make, native_functions_of_few_values, random_input, random_norm, run_both
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.norms import BatchNorm, DyT, LayerNorm, RMSNorm, common, kernels

__all__ = ["native_functions_of_few_values"]  # used here, too

FASTER = [case for case in CASES if case[2] == "native" and case[1] != "flat"]
COMPILED = sorted({name for name, _, _ in CASES} - {"none", "powernorm"})  # which have nothing to compile
# whose graphs are a line of operators on one position each; RMSNorm's stands for them
PLAIN = {
    "adanorm",
    "bhyt",
    "crmsnorm",
    "derf",
    "dyisru",
    "dyt",
    "layernorm",
    "prmsnorm",
    "scale",
    "scalenorm",
    "unitnorm",
}
each = pytest.mark.parametrize("name", ["rmsnorm", "dyt"])


def gradients_of(norm: Any, x: Tensor, dy: Tensor, **how: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(norm(x), [x, *norm.parameters()], dy, **how)


def with_parameters(norm: Any) -> Callable[..., Tensor]:
    """The norm as a function of its input and parameters."""
    names = [name for name, _ in norm.named_parameters()]
    return lambda x, *values: functional_call(norm, dict(zip(names, values, strict=True)), (x,))


@pytest.mark.parametrize(
    ("name", "layout", "impl", "affine"),
    [(*case, affine) for case in FASTER for affine in (True, False) if affine or case[0] != "dyt"],  # which needs γ
)
def test_first_and_second_derivatives_are_those_of_differences(name: str, layout: str, impl: str, affine: bool) -> None:
    few = {"rank": 3} if name == "gatedrmsnorm" else {}  # by whose parameters differences are taken, one by one
    norm = random_norm(name, layout, impl=impl, affine=affine, **few).double()
    x = random_input(layout, torch.float64)[:2, :4].requires_grad_() if layout == "sequence" else None
    x = random_input(layout, torch.float64)[:1, :, :2, :2].clone().requires_grad_() if x is None else x
    function, inputs = with_parameters(norm), (x, *norm.parameters())
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e8])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("affine", [True, False])
def test_rmsnorm_keeps_its_accuracy(scale: float, mean: float, affine: bool) -> None:
    """Also where all features are nearly alike, so that the term that is added back is the largest."""
    generator = torch.Generator().manual_seed(0)
    x = ((torch.randn(64, 96, generator=generator) + mean) * scale).requires_grad_()
    dy = torch.randn(64, 96, generator=generator) + 1
    norms = [RMSNorm(96, impl=impl, eps=1e-30, affine=affine) for impl in ("native", "eager")]
    exact = gradients_of(copy.deepcopy(norms[1]).double(), x.detach().double().requires_grad_(), dy.double())
    found, eager = (gradients_of(norm, x, dy) for norm in norms)
    for own, other, right in zip(found, eager, exact, strict=True):
        error, usual = ((each.double() - right).norm() / right.norm() for each in (own, other))
        assert error < max(3 * usual, 1e-6)


@each
def test_gradients_are_computed_where_they_are_wanted_alone(name: str) -> None:
    norm, x, dy = random_norm(name, "sequence"), random_input("sequence"), random_input("sequence", seed=1)
    whole = gradients_of(norm, x.clone().requires_grad_(), dy)
    for kept, (key, parameter) in enumerate(norm.named_parameters(), start=1):
        for other, value in norm.named_parameters():
            value.requires_grad_(other == key)
        (alone,) = torch.autograd.grad(norm(x), [parameter], dy)
        torch.testing.assert_close(alone, whole[kept])
    norm.requires_grad_(False)
    (alone,) = torch.autograd.grad(norm(leaf := x.clone().requires_grad_()), [leaf], dy)
    torch.testing.assert_close(alone, whole[0])
    assert not norm(x).requires_grad and torch.equal(norm(x[:0]), x[:0])


@each
def test_few_values_run_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = random_norm(name, "flat"), random_input("flat").requires_grad_()
    assert "Function" in norm(x).grad_fn.next_functions[0][0].name() + norm(x).grad_fn.name()
    monkeypatch.setattr(kernels, "RMS_FEW", x.numel())
    monkeypatch.setattr(kernels, "DYT_FEW", x.numel())
    assert "Function" not in norm(x).grad_fn.next_functions[0][0].name() + norm(x).grad_fn.name()


@each
def test_autocast_leaves_the_backward_in_float32(name: str) -> None:
    norm, x, dy = random_norm(name, "sequence"), random_input("sequence").requires_grad_(), random_input("sequence")
    with torch.autocast("cpu", dtype=torch.float16):
        found = gradients_of(norm, x, dy)
    torch.testing.assert_close(found, gradients_of(norm, x, dy), rtol=0, atol=0)


@each
def test_stacked_norms_are_each_its_own(name: str) -> None:
    """Several seeds in one call: with γ, β and α of each, and the gradients of each, taken inside or outside."""
    norms = [random_norm(name, "sequence") for _ in range(3)]
    with torch.no_grad():
        for number, norm in enumerate(norms):
            for parameter in norm.parameters():
                parameter.mul_(1 + number)
    parameters, _ = stack_module_state(norms)
    x = torch.stack([random_input("sequence", seed=seed) for seed in range(3)])
    dy = x.flip(0)
    alone = [torch.autograd.grad(norm(one), [*norm.parameters()], d) for norm, one, d in zip(norms, x, dy, strict=True)]
    expected = [torch.stack(values) for values in zip(*alone, strict=True)]

    def loss(values: Any, one: Tensor, d: Tensor) -> Tensor:
        found: Tensor = (functional_call(norms[0], values, (one,)) * d).sum()
        return found

    inside = vmap(grad(loss))(parameters, x, dy)
    outside = torch.autograd.grad(vmap(loss)(parameters, x, dy).sum(), [*parameters.values()])
    for found, other, right in zip(inside.values(), outside, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other, right, rtol=1e-5, atol=1e-5)
    own = {key: value[0] for key, value in parameters.items()}
    torch.testing.assert_close(vmap(lambda one: functional_call(norms[0], own, (one,)), 1, 1)(x), norms[0](x))


# --- the choice


def test_auto_looks_where_the_norm_is() -> None:
    norm = RMSNorm(FEATURES)
    assert (norm.implementation, norm.to("meta").implementation) == ("native", "torch.nn.functional.rms_norm")
    assert norm.to_empty(device="cpu").implementation == "native"
    assert RMSNorm(FEATURES, impl="eager").to("meta").implementation == "eager"
    with torch.device("meta"):
        assert RMSNorm(FEATURES).implementation == "torch.nn.functional.rms_norm"


@pytest.mark.parametrize("impl", ["auto", "compile"])
@each
def test_a_norm_is_copied_and_stored_with_its_choice(name: str, impl: str) -> None:
    norm, x = random_norm(name, "sequence", impl=impl), random_input("sequence")
    copied = pickle.loads(pickle.dumps(copy.deepcopy(norm)))
    assert copied.implementation == norm.implementation
    if impl == "auto":
        assert torch.equal(copied(x), norm(x))


def compare_compiled() -> None:
    """Compare a norm that is compiled with its formula."""
    compiled, eager = (BatchNorm(32, channel_dim=1, impl=impl) for impl in ("compile", "eager"))
    x = torch.randn(8, 32, 5, 7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), eager(x))


def compare_without_vectors() -> None:
    """Compare in a process that has compiled nothing, on a CPU without vectors, as far as torch's compiler knows."""
    from torch._inductor.codecache import PyCodeCache

    os.environ["ATEN_CPU_CAPABILITY"] = "default"
    vars(torch.backends.cpu)["get_cpu_capability"] = lambda: "DEFAULT"
    torch.compiler.reset()
    PyCodeCache.cache_clear()
    common.compiled_formula.cache_clear()
    compare_compiled()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_cpus_with_other_vectors_share_a_cache_of_compiled_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process fills a cache, and a fork of it, which has all of its settings, reads it."""
    from torch._inductor import config  # slow to import
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    settings = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True}  # which take g++ ten seconds
    settings["compile_threads"] = 1  # a fork has no other thread
    torch.compiler.reset()
    with config.patch(settings):
        compare_compiled()
        other = multiprocessing.get_context("fork").Process(target=compare_without_vectors)
        other.start()
        other.join(120.0)  # seconds, of which it takes five
    valid_vec_isa_list.cache_clear()
    assert other.exitcode == 0


def check_compiled(name: str) -> None:
    """In the layout in which models use it most; the formula itself is held to its reference in each layout."""
    layout = "image" if name in ("batchnorm", "groupnorm", "instancenorm") else "sequence"
    ours, expected = run_both(name, layout, random_norm(name, layout, impl="compile"), torch.float32, "contiguous")
    for key, value in expected.items():
        torch.testing.assert_close(ours[key].double(), value, rtol=1e-5, atol=3e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("name", COMPILED if WHOLE else ["batchnorm", "seednorm"])
def test_a_compiled_norm_is_the_formula(name: str) -> None:
    """One with statistics of a batch, and one with many operators: g++ takes seconds for each, and the graphs of all
    are held to the formula below. All of them with the whole matrix.
    """
    check_compiled(name)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch's compiler make graphs of compiled norms, and run their operators instead of code for them."""
    monkeypatch.setattr(common, "compiled", partial(torch.compile, backend="eager"))
    common.compiled_formula.cache_clear()
    yield
    common.compiled_formula.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", COMPILED if WHOLE else sorted({*COMPILED} - PLAIN))
def test_the_graph_of_a_norm_is_the_formula(name: str) -> None:
    """Of every norm that is not plain: one graph, without a break, and what it keeps in buffers."""
    check_compiled(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_norms_alike_are_compiled_once_hooks_run_and_a_compiled_model_takes_them_in() -> None:
    torch.compiler.reset()
    from torch._dynamo.utils import counters  # slow to import

    counters.clear()
    x, seen = random_input("sequence").requires_grad_(), list[Tensor]()
    first, second = (random_norm("dyt", "sequence", impl="compile") for _ in range(2))
    second.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.testing.assert_close(first(x), second(x))
    assert counters["stats"]["unique_graphs"] == 1 and len(seen) == 1
    model = torch.nn.Sequential(make("rmsnorm"), make("dyt", impl="compile"))
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))


def test_without_a_compiler_it_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def lacking() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lacking)
    kernels.check_compiler.cache_clear()
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler.*set norm.impl=auto"):
        LayerNorm(FEATURES, impl="compile")


# --- Liger's kernels


@pytest.mark.parametrize(("found", "words"), [(None, r"normbench\[liger\]"), (object(), "needs CUDA")])
def test_liger_is_refused_where_it_cannot_run(found: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kernels.check_liger.cache_clear()
    with pytest.raises(UsageError, match=words):
        RMSNorm(FEATURES, impl="liger")
    kernels.check_liger.cache_clear()


@pytest.mark.parametrize("changes", [{"affine": False}, {"bias": False}])
def test_liger_has_no_kernel_for_a_layernorm_without_weight_or_bias(changes: dict[str, bool]) -> None:
    with pytest.raises(UsageError, match=r"Liger has no kernel.*auto or eager"):
        LayerNorm(FEATURES, impl="liger", **changes)


class FakeLiger:
    """Stands for Liger's package: formulas that note how they are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def apply(self, x: Tensor, *more: Any) -> Tensor:
        self.calls.append(more)
        return F.rms_norm(x, x.shape[-1:], *more[:2])


def test_liger_overwrites_no_gradient_and_refuses_a_second_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, x, weight = FakeLiger(), random_input("flat").requires_grad_(), torch.ones(FEATURES)
    with pytest.raises(UsageError, match="float32 on CUDA, not in float32 on cpu"):
        kernels.liger_rms_norm(x, weight, 1e-5)
    module: Any = SimpleNamespace(LigerRMSNormFunction=fake)
    monkeypatch.setitem(sys.modules, "liger_kernel.ops.rms_norm", module)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    y = kernels.liger_rms_norm(x, weight, 1e-5)
    monkeypatch.undo()
    assert fake.calls == [(weight, 1e-5, 0.0, "gemma", False)]
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(make("rmsnorm")(x), x, torch.ones_like(y))[0])
    with pytest.raises(UsageError, match="no second derivative"):
        torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("liger_kernel") is None, reason="the package liger-kernel is not installed")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("layout", ["sequence", "image"])
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "dyt"])
def test_ligers_kernels_are_the_formula(name: str, layout: str) -> None:
    liger, eager = (random_norm(name, layout, impl=impl).cuda() for impl in ("liger", "eager"))
    x, dy = random_input(layout).cuda().requires_grad_(), random_input(layout, seed=2).cuda()
    kept = dy.clone()
    torch.testing.assert_close(liger(x), eager(x), rtol=1e-5, atol=3e-6)
    found = gradients_of(liger, x, dy)
    for own, right in zip(found, gradients_of(eager, x, dy), strict=True):
        torch.testing.assert_close(own, right, rtol=1e-5, atol=3e-5)
    assert torch.equal(dy, kept)


def test_a_dyt_without_its_scale_needs_no_kernel() -> None:
    """Folding takes γ and β out of a norm; inputs as large as this one go to the kernel otherwise."""
    norm = DyT(64, impl="native")
    norm.weight = norm.bias = None
    x = torch.randn(kernels.DYT_FEW // 64 + 1, 64)
    torch.testing.assert_close(norm(x), torch.tanh(norm.alpha0 * x))
