"""Each norm against its formula in float64, torch's own modules, hand computation, its invariances and its facts."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import get_class, instantiate
from killing import Server
from omegaconf import DictConfig, OmegaConf
from support import NORMS
from torch import Tensor, nn

from normbench.norms import BatchNorm, InstanceNorm, kernels
from normbench.training.devices import seed_draws
from normbench.types import Norm, Site

pytest_plugins = ["run_fixtures"]

CONF = Path(__file__).resolve().parents[1] / "conf" / "norm"
NAMES = sorted(NORMS)
# torch has an operator
OPERATORS = {"batchnorm", "gatedrmsnorm", "ghostbatchnorm", "groupnorm", "instancenorm", "layernorm", "rmsnorm"}
NATIVE = {"gatedrmsnorm", "rmsnorm", "dyt"}  # we have a backward of our own

FEATURES = 12
EPS = 0.1  # large, so that its place shows
ALPHA0 = 0.7
LAYOUTS = {"flat": (30, FEATURES), "sequence": (4, 5, FEATURES), "image": (4, FEATURES, 3, 5)}
OPTIONS: dict[str, dict[str, Any]] = {
    "dyt": {"alpha0": ALPHA0},
    "ghostbatchnorm": {"ghost": 2},
    "frn": {"affine": False},  # γ and β stand inside a maximum
    "groupnorm": {"groups": 3},
    "evonorm_s0": {"groups": 3},
    "instancenorm": {"affine": True},
    "prmsnorm": {"fraction": 0.7},  # 8.4 features: 9
}


@cache
def options_of(name: str) -> DictConfig:
    """Return what conf/norm/<name>.yaml says, which takes milliseconds to read."""
    found = OmegaConf.load(CONF / f"{name}.yaml")
    assert isinstance(found, DictConfig)
    return found


def options(name: str) -> dict[str, Any]:
    return {str(key): value for key, value in options_of(name).items()}


@pytest.fixture(autouse=True)
def native_functions_of_few_values() -> Iterator[None]:
    """Let them run in the small cases here, and in several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RMS_FEW", "DYT_FEW"):
            patch.setattr(kernels, name, 0)
        patch.setattr(kernels, "BLOCK", 7 * FEATURES)
        yield


def make(name: str, width: int = FEATURES, channel_dim: int = -1, site: Site | None = None, **changes: Any) -> Any:
    """The norm of conf/norm/<name>.yaml, as a run makes it."""
    with seed_draws(0):
        return instantiate(options(name) | changes)(width, channel_dim=channel_dim, site=site)


def layouts(name: str) -> list[str]:
    needs_positions = get_class(options(name)["_target_"]).facts.needs_positions
    return [layout for layout in LAYOUTS if not (needs_positions and layout == "flat")]


def implementations(name: str) -> list[str]:
    return ["torch"] * (name in OPERATORS) + ["native"] * (name in NATIVE) + ["eager"]


def cases(names: list[str]) -> list[tuple[str, str, str]]:
    return [(name, layout, impl) for name in names for layout in layouts(name) for impl in implementations(name)]


def channel_dim(layout: str) -> int:
    return 1 if layout == "image" else -1


def random_norm(name: str, layout: str, **changes: Any) -> Norm:
    """A norm whose options and parameters are unlike the default, so that each of them shows in the result."""
    eps: dict[str, Any] = {"eps": EPS} if "eps" in options(name) else {}
    norm: Norm = make(name, channel_dim=channel_dim(layout), **(eps | OPTIONS.get(name, {}) | changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return norm


def random_input(layout: str, dtype: torch.dtype = torch.float32, memory: str = "contiguous", seed: int = 0) -> Tensor:
    x = (torch.randn(LAYOUTS[layout], generator=torch.Generator().manual_seed(seed)) * 2 + 1).to(dtype)
    if memory == "transposed":
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    elif memory == "channels_last":
        x = x.movedim(channel_dim(layout), -1).contiguous().movedim(-1, channel_dim(layout))
    return x


def standardized(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    count = math.prod(x.shape[dim] for dim in dims)
    mean = x.sum(dims, keepdim=True) / count
    variance = ((x - mean) ** 2).sum(dims, keepdim=True) / count
    return (x - mean) / (variance + EPS).sqrt()


def switchable(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """The moments of instances, whose variance is unbiased, pooled over features and over the batch, and mixed."""
    inside = tuple(range(1, x.ndim - 1))
    mean_in, var_in = x.mean(inside, keepdim=True), x.var(inside, keepdim=True)
    square = var_in + mean_in**2
    means = torch.stack(torch.broadcast_tensors(mean_in, mean_in.mean(-1, keepdim=True), mean_in.mean(0, keepdim=True)))
    squares = torch.stack(torch.broadcast_tensors(square, square.mean(-1, keepdim=True), square.mean(0, keepdim=True)))
    mean = torch.einsum("k,k...->...", p["mean_weight"].softmax(0), means)
    var = torch.einsum("k,k...->...", p["var_weight"].softmax(0), squares - means**2)
    return (x - mean) / (var + EPS).sqrt()


def evonorm_b0(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    batch = x.var(tuple(range(x.ndim - 1)), correction=0)
    sample = x.var(tuple(range(1, x.ndim - 1)), correction=0, keepdim=True)
    return x / torch.maximum((batch + EPS).sqrt(), p["v"] * x + (sample + EPS).sqrt())


def evonorm_s0(x: Tensor, p: dict[str, Tensor], image: bool) -> Tensor:
    y = x.reshape(*x.shape[:-1], 3, FEATURES // 3)
    variance = y.var((1, 2, 4) if image else (-1,), correction=0, keepdim=True)
    scale = (1 / (variance + EPS).sqrt()).expand_as(y).reshape(x.shape)
    return x / (1 + torch.exp(-p["v"] * x)) * scale


def powernorm(x: Tensor) -> Tensor:
    """In the first batch: of x/rms the root mean square of each feature over the batch, which has no gradient."""
    y = x / rms(x)
    square = (y.detach() ** 2).flatten(0, -2).sum(0) / (x.numel() // FEATURES)
    return y / (square + EPS).sqrt()


def by_blocks(x: Tensor) -> Tensor:
    """Standardized over blocks of two samples."""
    return torch.cat([standardized(block, tuple(range(x.ndim - 1))) for block in x.split(2)])


def length(x: Tensor) -> Tensor:
    return (x**2).sum(-1, keepdim=True).sqrt()


def rms(x: Tensor) -> Tensor:
    return ((x**2).sum(-1, keepdim=True) / FEATURES + EPS).sqrt()


def adanorm(x: Tensor) -> Tensor:
    """C = 2 and k = 0.1, of which 1 − k·y is a constant; the deviation is by d − 1, and ε beside the root."""
    centered = x - x.sum(-1, keepdim=True) / FEATURES
    y = centered / (length(centered) / math.sqrt(FEATURES - 1) + EPS)
    return 2 * (1 - 0.1 * y.detach()) * y


def seednorm(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """(γ + tanh(x·β)·α)·x/rms over γ, by which it is multiplied again."""
    gain = p["weight"] + torch.tanh(x @ p["beta"]).unsqueeze(-1) * p["alpha"]
    return gain * x / rms(x) / p["weight"]


def gatedrmsnorm(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """The gate reads γ·x/rms, and what it gives is divided by γ, by which it is multiplied again."""
    y = p["weight"] * x / rms(x)
    read = torch.einsum("...c,rc->...r", y, p["down"])
    read = read / (1 + torch.exp(-read))
    gate = 1 / (1 + torch.exp(-torch.einsum("...r,cr->...c", read, p["up"])))
    return gate * x / rms(x)


def grouped(x: Tensor, image: bool) -> Tensor:
    y = x.reshape(*x.shape[:-1], 3, FEATURES // 3)
    return standardized(y, (1, 2, 4) if image else (-1,)).reshape(x.shape)


# the formulas before γ and β; x has the features last, whatever the layout
Reference = Callable[[Tensor, dict[str, Tensor], bool], Tensor]
REFERENCES: dict[str, Reference] = {
    "batchnorm": lambda x, p, image: standardized(x, tuple(range(x.ndim - 1))),
    "layernorm": lambda x, p, image: standardized(x, (-1,)),
    "rmsnorm": lambda x, p, image: x / rms(x),
    "prmsnorm": lambda x, p, image: x / ((x[..., :9] ** 2).sum(-1, keepdim=True) / 9 + EPS).sqrt(),
    "dyt": lambda x, p, image: 1 - 2 / (torch.exp(2 * p["alpha"] * x) + 1),
    "groupnorm": lambda x, p, image: grouped(x, image),
    "instancenorm": lambda x, p, image: standardized(x, tuple(range(1, x.ndim - 1))),
    "none": lambda x, p, image: x,
    "scale": lambda x, p, image: x,
    "derf": lambda x, p, image: 2 * torch.special.ndtr(math.sqrt(2) * (p["alpha"] * x + p["shift"])) - 1,
    "dyisru": lambda x, p, image: torch.sin(torch.atan(p["alpha"] * x + p["shift"])),  # u/√(u²+1)
    "scalenorm": lambda x, p, image: x / length(x),
    "crmsnorm": lambda x, p, image: standardized(torch.cat((x, -x.sum(-1, keepdim=True)), -1), (-1,))[..., :-1],
    "unitnorm": lambda x, p, image: x / length(x) * FEATURES ** (p["k"] / 2),
    "adanorm": lambda x, p, image: adanorm(x),
    "bhyt": lambda x, p, image: torch.tanh(p["lam"] * 0.1 * x / rms(x)),
    "seednorm": lambda x, p, image: seednorm(x, p),
    "tapernorm": lambda x, p, image: x / rms(x) + 0 * p["learned_since"],  # for the first batches
    "gatedrmsnorm": lambda x, p, image: gatedrmsnorm(x, p),
    "batchrenorm": lambda x, p, image: standardized(x, tuple(range(x.ndim - 1))),  # for the first batches
    "ghostbatchnorm": lambda x, p, image: by_blocks(x),
    "switchable": lambda x, p, image: switchable(x, p),
    "frn": lambda x, p, image: torch.maximum(
        x / (x**2).mean(tuple(range(1, x.ndim - 1)), True).add(EPS).sqrt(), p["tau"]
    ),
    "evonorm_b0": lambda x, p, image: evonorm_b0(x, p),
    "evonorm_s0": evonorm_s0,
    "powernorm": lambda x, p, image: powernorm(x),
}


def reference_run(name: str, layout: str, norm: Norm, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Output and gradients of the formula in float64."""
    params = {key: value.detach().double().requires_grad_() for key, value in norm.named_parameters()}
    x = x.detach().double().requires_grad_()
    last = REFERENCES[name](x.movedim(channel_dim(layout), -1), params, layout == "image")
    y = (last * params.get("weight", 1) + params.get("bias", 0)).movedim(-1, channel_dim(layout))
    y.backward(g.double())
    return results(y, x, params)


def results(y: Tensor, x: Tensor, params: dict[str, Any]) -> dict[str, Tensor]:
    return {"y": y.detach(), "x": x.grad, **{key: value.grad for key, value in params.items()}}


def run_both(
    name: str, layout: str, norm: Norm, dtype: torch.dtype, memory: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Output and gradients of the norm, and of the formula."""
    x, g = random_input(layout, dtype, memory).requires_grad_(), random_input(layout, dtype, memory, seed=2)
    y = norm(x)
    assert y.dtype == dtype and y.shape == x.shape
    if layout == "image" and memory == "channels_last":
        assert y.is_contiguous(memory_format=torch.channels_last)
    y.backward(g)
    return results(y, x, dict(norm.named_parameters())), reference_run(name, layout, norm, x, g)


def check_full_precision(name: str, layout: str, impl: str, dtype: torch.dtype) -> None:
    rtol, atol = {torch.float32: (1e-5, 3e-6), torch.float64: (1e-12, 1e-12)}[dtype]
    for memory in ("contiguous", "transposed", "channels_last"):
        norm = random_norm(name, layout, impl=impl)
        ours, expected = run_both(name, layout, norm, dtype, memory)
        for key, value in expected.items():
            # γ and β are float32, so their gradients are rounded to it; those of shares are sums that nearly cancel
            tolerance = (rtol, atol) if key in ("y", "x") else (1e-5, 3e-5 if key.endswith("_weight") else 3e-6)
            torch.testing.assert_close(ours[key].double(), value, rtol=tolerance[0], atol=tolerance[1])


def check_half_precision(name: str, layout: str, impl: str, dtype: torch.dtype) -> None:
    """The float64 result, rounded once: nearly all values exact, none off by more than one step."""
    norm = random_norm(name, layout, impl=impl)
    ours, expected = run_both(name, layout, norm, dtype, "transposed")
    for key in ("y", "x"):
        rounded = expected[key].to(dtype)
        torch.testing.assert_close(ours[key], rounded, rtol=torch.finfo(dtype).eps, atol=1e-5)
        assert (ours[key] == rounded).float().mean() > 0.97, f"{name} {layout}: {key} is rounded more than once"
    for key, parameter in norm.named_parameters():
        torch.testing.assert_close(ours[key].double(), expected[key], rtol=1e-5, atol=1e-5)
        assert parameter.dtype == ours[key].dtype == torch.float32


CASES = cases(list(REFERENCES))
BFLOAT16 = [case for case in CASES if case[1] == "sequence"]  # slow where the CPU only emulates it


@pytest.mark.parametrize(("name", "layout", "impl"), CASES)
def test_output_and_gradients_are_those_of_the_formula(name: str, layout: str, impl: str) -> None:
    for dtype in (torch.float32, torch.float64):
        check_full_precision(name, layout, impl, dtype)
    check_half_precision(name, layout, impl, torch.float16)


def check_bfloat16() -> None:
    kernels.RMS_FEW = kernels.DYT_FEW = 0
    for case in BFLOAT16:
        check_half_precision(*case, torch.bfloat16)


@pytest.mark.slow
def test_bfloat16_result_is_the_formula_rounded_once(server: Server) -> None:
    """In a process of its own: some machines kill one that uses bfloat16 on the CPU."""
    child = server.context.Process(target=check_bfloat16)
    child.start()
    child.join()
    if child.exitcode == -signal.SIGILL:
        pytest.skip("this CPU stops bfloat16 with an illegal instruction")
    assert child.exitcode == 0  # what failed is on stderr


@pytest.mark.parametrize("name", NAMES)
def test_float16_statistics_do_not_overflow(name: str) -> None:
    for layout in layouts(name):
        x = random_input(layout) * 1000  # whose squares float16 cannot hold
        expected = random_norm(name, layout)(x.half().float())
        torch.testing.assert_close(random_norm(name, layout)(x.half()), expected.half(), rtol=2**-10, atol=1e-3)


# --- running statistics, against torch's modules


TORCH = {
    "batchnorm": (BatchNorm, {"sequence": nn.BatchNorm1d, "image": nn.BatchNorm2d, "flat": nn.BatchNorm1d}),
    "instancenorm": (InstanceNorm, {"sequence": nn.InstanceNorm1d, "image": nn.InstanceNorm2d}),
}


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.6, None])
@pytest.mark.parametrize("impl", ["torch", "eager"])
@pytest.mark.parametrize("name", TORCH)
def test_running_statistics_are_torchs(name: str, impl: str, momentum: float | None, affine: bool) -> None:
    norm_class, modules = TORCH[name]
    momentum = 0.3 if name == "instancenorm" and momentum is None else momentum  # which torch has not there
    for tracks in (True, False):
        kwargs: dict[str, Any] = {"momentum": momentum, "track_running_stats": tracks, "affine": affine}
        for layout, module in modules.items():
            check_like_torch(norm_class, module(FEATURES, eps=EPS, **kwargs), layout, impl=impl, **kwargs)


def check_like_torch(norm_class: type[Norm], theirs: nn.Module, layout: str, **kwargs: Any) -> None:
    """Three training batches of different sizes, then evaluation: outputs and state as torch's module has them."""
    ours = norm_class(FEATURES, channel_dim=channel_dim(layout), eps=EPS, **kwargs)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    for seed in range(4):
        training = seed < 3
        x = random_input(layout, seed=seed)[seed:] * (seed + 1) + seed
        torch_x = x.transpose(1, 2) if layout == "sequence" else x
        expected = theirs.train(training)(torch_x)
        expected = expected.transpose(1, 2) if layout == "sequence" else expected
        torch.testing.assert_close(ours.train(training)(x), expected)
        for key, value in theirs.state_dict().items():
            if not (isinstance(ours, InstanceNorm) and key == "num_batches_tracked"):  # torch leaves it at 0 there
                torch.testing.assert_close(ours.state_dict()[key], value)
