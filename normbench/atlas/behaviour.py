"""What one norm of another library computes, measured: it is fed with chosen numbers, and nothing is read from names.

Only what a number cannot tell is read off the module: which of its parameters there are, and with which values it
starts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.hosts.adapters import SHIFT_NAMES, name_arguments
from normbench.hosts.tape import tensors_in

LOW = torch.bfloat16  # the dtype in which casts are told apart: 8 bits of a significand show each of them
ALIKE = 0.995  # of the outputs must be the same to the bit; sums in another order round a few of them otherwise
CLOSE = 1e-4  # relative, of what is computed in float32
LARGE = 1000.0  # its square is beyond float16
SIZES = tuple(10.0 ** (exponent / 2) for exponent in range(-26, 5))  # of an input that is to show ε
OPEN = 1.2784645427610738  # of which SiLU is 1: a gate that lets all through
ROWS = 64  # of random numbers for the test of casts

KINDS = ("layernorm", "rmsnorm", "l2norm", "groupnorm", "instancenorm", "batchnorm")  # whose ε is looked for

Formula = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Behaviour:
    """What a norm does with numbers, in words and numbers that JSON has.

    Attributes:
        kind: layernorm, rmsnorm, l2norm, groupnorm, instancenorm, batchnorm, or what it is not.
        eps: ε; None where none shows.
        eps_place: where it stands.
        gain: `γ`, `1 + γ`, `none`, or `other` where the output is not linear in it.
        shift: whether there is a β.
        statistics: the dtype that they have for an input in bfloat16.
        order: which cast comes when, for an input in bfloat16.
        mixed: the dtype of the output for an input in bfloat16 and parameters in float32.
        double: the precision for an input and parameters in float64.
        large: what becomes of a row as large as 1,000 in float16.
        zero: what becomes of a row of zeros, in float32.
        zero_half: the same in float16.
        slope: the largest derivative at a row of zeros, in float32.
        momentum: the share of a batch in running statistics; None where there are none.
        gate: where the gate is multiplied that it takes, `before` or `after` the norm.
    """

    kind: str
    eps: float | None = None
    eps_place: str = ""
    gain: str = "none"
    shift: bool = False
    statistics: str = ""
    order: str = ""
    mixed: str = ""
    double: str = ""
    large: str = ""
    zero: str = ""
    zero_half: str = ""
    slope: float | None = None
    momentum: float | None = None
    gate: str = ""


class Probe:
    """A copy of a norm that can be fed, and what is known of it so far.

    Attributes:
        shape: of an input that it takes: two samples, small sizes, and its own number of features.
        axis: of the features.
    """

    def __init__(self, norm: nn.Module, shape: tuple[int, ...], axis: int, groups: int = 0, acts: bool = False) -> None:
        self.norm = without_activation(copy.deepcopy(norm).float().eval().requires_grad_(False), acts)
        self.axis = axis
        self.groups = groups
        self.is_gated = name_arguments(norm)[1:] == ["gate"]
        self.gate = OPEN
        self.features = shape[axis]
        sizes = [2, *[4 + 2 * number for number in range(len(shape) - 2)]]
        sizes.insert(len(sizes) if axis == -1 else 1, self.features)
        self.shape = tuple(sizes)
        self.gain_name, self.shift_name = self.find_vectors()
        self.fill(self.shift_name, 0.0)

    def find_vectors(self) -> tuple[str, str]:
        """Return the names of the tensors that multiply and shift the output, found by name for β, else by order.

        A buffer of one number is none: no optimizer moves it, as it is in place of a γ that a class can do without.
        """
        gain = shift = ""
        vectors = [(name, buffer) for name, buffer in self.norm.named_buffers() if buffer.numel() > 1]
        for name, tensor in [*self.norm.named_parameters(), *vectors]:
            is_statistic = name.startswith(("running_", "num_batches"))
            if is_statistic or not tensor.is_floating_point() or tensor.numel() not in (1, self.features):
                continue
            if name.rpartition(".")[2] in SHIFT_NAMES and not shift:
                shift = name
            elif not gain:
                gain = name
        return gain, shift

    def tensor(self, name: str) -> Tensor:
        """Return a parameter or buffer by its name."""
        tensors = dict([*self.norm.named_parameters(), *self.norm.named_buffers()])
        return tensors[name]

    def fill(self, name: str, value: float | Tensor) -> None:
        """Give a vector a value, where there is one of this name."""
        if name:
            tensor = self.tensor(name)
            tensor.copy_(torch.as_tensor(value, dtype=tensor.dtype).expand(tensor.shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Return what the norm makes of an input; the first tensor, where it gives several."""
        if not self.is_gated:
            return next(tensors_in(self.norm(x.clone())))
        return next(tensors_in(self.norm(x.clone(), torch.full_like(x, self.gate))))

    def alternate(self, size: float) -> Tensor:
        """Return an input of ±size that alternates along each axis but the first, so that its mean is zero."""
        count = torch.zeros(self.shape[1:])
        for dim, length in enumerate(self.shape[1:]):
            view = [1] * count.ndim
            view[dim] = length
            count = count + torch.arange(length).view(view)
        signs = 1.0 - 2.0 * count.remainder(2)
        return size * signs.expand(self.shape).clone()

    def random(self, seed: int = 0, scale: float = 1.0) -> Tensor:
        """Return random numbers of the norm's shape."""
        generator = torch.Generator().manual_seed(seed)
        return scale * torch.randn(self.shape, generator=generator)

    def running(self) -> bool:
        """Tell whether it evaluates with running statistics."""
        return any(name.endswith("running_var") for name, _ in self.norm.named_buffers())


def without_activation(norm: nn.Module, acts: bool) -> nn.Module:
    """Return a norm whose dropout and activation pass all on, where it ends in these."""
    if acts:
        norm.drop = nn.Identity()
        norm.act = nn.Identity()
    return norm


@torch.no_grad()
def measure(norm: nn.Module, shape: tuple[int, ...], axis: int, groups: int, acts: bool, has_low: bool) -> Behaviour:
    """Return what a norm does, as far as it can be fed with one tensor of the shape that it was called with.

    Args:
        norm: it stays as it is.
        shape: of what it was called with.
        axis: of the features, -1 or 1.
        groups: of a GroupNorm; 0 elsewhere.
        acts: whether it ends in an activation, as many of timm's do, which is left out.
        has_low: whether this CPU computes in 16 bits.

    Raises:
        Exception: whatever the norm raises where it takes something else.
    """
    probe = Probe(norm, shape, axis, groups, acts)
    gain = measure_gain(probe)
    set_gain(probe, gain, 1.0)
    kind = measure_kind(probe)
    is_known = kind in KINDS
    eps, place = measure_eps(probe) if is_known else (None, "")
    facts: dict[str, Any] = {
        "kind": kind,
        "eps": eps,
        "eps_place": place,
        "gain": gain,
        "shift": bool(probe.shift_name),
        "momentum": measure_momentum(norm, probe),
    }
    facts |= measure_zero(probe)
    formula = formula_of(probe, kind, eps, place)
    if probe.is_gated:
        facts["gate"] = measure_gate(probe)
        formula = None  # a gate that is open in float32 is not in bfloat16
    if formula is not None:
        facts["double"] = measure_double(probe, formula, gain)
        if has_low:
            facts |= measure_casts(probe, formula, gain)
    return Behaviour(**facts)


# ---- γ and what it multiplies


def measure_gain(probe: Probe) -> str:
    """Return how the stored gain enters the output: as γ, as 1 + γ, or otherwise."""
    if not probe.gain_name:
        return "none"
    x = probe.random()
    outputs = []
    for value in (0.0, 1.0, 2.0):
        probe.fill(probe.gain_name, value)
        outputs.append(probe(x))
    step = outputs[1] - outputs[0]
    if torch.equal(outputs[0], outputs[2]):
        return "none"  # it is there, and not read
    if not torch.allclose(outputs[2] - outputs[1], step, rtol=1e-3, atol=1e-4):
        return "other"
    if outputs[0].abs().max() <= CLOSE * step.abs().max():
        return "γ"
    return "1 + γ" if torch.allclose(outputs[0], step, rtol=1e-3, atol=1e-4) else "other"


def measure_gate(probe: Probe) -> str:
    """Return whether a gate is multiplied before the norm, which then takes its size out again, or after it."""
    x = probe.random()
    y = probe(x)
    probe.gate = 3.0
    wider = probe(x)
    probe.gate = OPEN
    return "before" if torch.allclose(wider, y, rtol=1e-2, atol=1e-3) else "after"


def set_gain(probe: Probe, gain: str, value: float | Tensor) -> None:
    """Make the gain that the output is multiplied by a value."""
    if gain == "γ":
        probe.fill(probe.gain_name, value)
    elif gain == "1 + γ":
        probe.fill(probe.gain_name, value - 1.0)


# ---- the formula


def measure_kind(probe: Probe) -> str:
    """Return which formula a norm has, by which parts of its input share a statistic, and by its output's size."""
    x = probe.random()
    y = probe(x)
    if y.shape != x.shape:
        return "changes the shape"
    if torch.allclose(y, probe(probe.random(seed=9)), rtol=1e-4, atol=1e-4):
        return "constant: its output does not depend on its input"
    if torch.allclose(y, x, rtol=1e-3, atol=1e-3) and not probe.running():
        return "passes its input on"
    if probe.running():
        return "batchnorm" if is_affine_of_statistics(probe) else "other with running statistics"
    larger = probe(3.0 * x)
    if not torch.allclose(larger, y, rtol=1e-2, atol=1e-3):
        return "other: it depends on the size of its input"
    shifted = probe(x + 2.0)
    centers = torch.allclose(shifted, y, rtol=1e-2, atol=1e-3)
    return name_kind(centers, probe, x, y)


def name_kind(centers: bool, probe: Probe, x: Tensor, y: Tensor) -> str:
    """Return the formula whose output is that of a norm, among those that the axes of its statistics allow."""
    for name, formula in formulas(probe):
        if torch.allclose(formula(x), y, rtol=1e-2, atol=1e-3):
            return name
    return "other, centred" if centers else "other, not centred"


def formulas(probe: Probe) -> Iterator[tuple[str, Formula]]:
    """Give the formulas that there are, by name, without ε."""
    axis = probe.axis
    others = tuple(dim for dim in range(1, len(probe.shape)) if dim != axis % len(probe.shape))

    def scale(x: Tensor, dims: tuple[int, ...]) -> Tensor:
        return x / x.square().mean(dims, keepdim=True).sqrt()

    def standardize(x: Tensor, dims: tuple[int, ...]) -> Tensor:
        return scale(x - x.mean(dims, keepdim=True), dims)

    def grouped(x: Tensor, count: int) -> Tensor:
        parts = x.movedim(axis, 1).unflatten(1, (count, -1))
        dims = tuple(range(2, parts.ndim))
        return standardize(parts, dims).flatten(1, 2).movedim(1, axis)

    def scale_in_groups(x: Tensor, groups: int) -> Tensor:
        parts = x.movedim(axis, -1).unflatten(-1, (groups, -1))
        return scale(parts, (-1,)).flatten(-2).movedim(-1, axis)

    yield "layernorm", lambda x: standardize(x, (axis,))
    yield "rmsnorm", lambda x: scale(x, (axis,))
    yield "l2norm", lambda x: x / x.norm(dim=axis, keepdim=True)
    yield "scale by the unbiased deviation", lambda x: x / x.std(axis, keepdim=True)
    yield (
        "layernorm with the unbiased deviation",
        lambda x: (x - x.mean(axis, keepdim=True)) / x.std(axis, keepdim=True),
    )
    if probe.groups:
        yield "groupnorm", lambda x: grouped(x, probe.groups)
    for groups in (2, 4, 8):
        if probe.features % groups == 0:
            yield f"rmsnorm in {groups} groups", partial(scale_in_groups, groups=groups)
    if others:
        yield "instancenorm", lambda x: standardize(x, others)
        yield "groupnorm", lambda x: grouped(x, 1)
        yield "rmsnorm over the sample", lambda x: scale(x, (axis % x.ndim, *others))


def is_affine_of_statistics(probe: Probe) -> bool:
    """Tell whether a norm with running statistics subtracts the mean and divides by the root of the variance."""
    set_statistics(probe, mean=2.0, variance=9.0)
    x = probe.random()
    is_so = torch.allclose(probe(x), (x - 2.0) / 3.0, rtol=2e-3, atol=2e-3)
    set_statistics(probe, mean=0.0, variance=1.0)
    return is_so


def set_statistics(probe: Probe, mean: float, variance: float) -> None:
    """Give running statistics their values."""
    for name, buffer in probe.norm.named_buffers():
        if name.endswith("running_mean"):
            buffer.fill_(mean)
        elif name.endswith("running_var"):
            buffer.fill_(variance)


# ---- ε


def measure_eps(probe: Probe) -> tuple[float | None, str]:
    """Return ε and its place, from how far an input of ±c comes out below 1 as c falls.

    Inside the root it is c/√(c²+ε), added to the root c/(c+ε), as the least divisor min(1, c/ε), and as the least
    square min(1, c/√ε): of these the one is right whose ε is the same at each c.
    """
    full = size_of(probe, 100.0)
    if full is None or full < 1e-6:
        return None, ""
    points: list[tuple[float, float]] = []
    for size in SIZES:
        answer = size_of(probe, size)
        if answer is not None:
            share = answer / full
            if 0.02 < share < 0.98:
                points.append((size, share))
    if not points:
        return None, "none shows"
    guesses = {
        "inside the root": [size**2 * (share**-2 - 1) for size, share in points],
        "added to the root": [size * (1 / share - 1) for size, share in points],
        "least divisor": [size / share for size, share in points],
    }

    def spread(values: list[float]) -> float:
        return (max(values) - min(values)) / max(values) if min(values) > 0 else math.inf

    place = min(guesses, key=lambda name: spread(guesses[name]))
    if spread(guesses[place]) > 0.1 or len(points) < 2:
        return None, "of another form"
    values = sorted(guesses[place])
    eps = values[len(values) // 2]
    if place == "added to the root" or place == "least divisor":
        eps = eps * divisor_scale(probe, full)
    return float(f"{eps:.2g}"), place


def divisor_scale(probe: Probe, full: float) -> float:
    """Return by what a least divisor of ±c is to be multiplied: that of an L2 norm is √d as large as that of an RMS."""
    return 1.0 / full if full < 0.9 else 1.0


def size_of(probe: Probe, size: float) -> float | None:
    """Return the output's size for an input of ±size; running statistics have size as the root of their variance."""
    if probe.running():
        set_statistics(probe, mean=0.0, variance=size**2)
    y = probe(probe.alternate(size)).abs()
    if probe.running():
        set_statistics(probe, mean=0.0, variance=1.0)
    answer = float(y.max())
    return answer if math.isfinite(answer) else None


# ---- dtypes and casts


def formula_of(probe: Probe, kind: str, eps: float | None, place: str) -> Formula | None:
    """Return what takes a tensor's statistics and normalizes it in the tensor's own dtype; None where none is known.

    With running statistics of mean 0 and variance 1 there is nothing to take.
    """
    value = eps or 0.0
    axis = probe.axis

    def root(square: Tensor) -> Tensor:
        if place == "added to the root":
            return 1.0 / (square.sqrt() + value)
        if place == "least divisor":
            return 1.0 / square.sqrt().clamp_min(value)
        return torch.rsqrt(square + value)

    if kind == "rmsnorm":
        return lambda x: root(x.pow(2).mean(axis, keepdim=True))
    if kind == "layernorm":
        return lambda x: root((x - x.mean(axis, keepdim=True)).pow(2).mean(axis, keepdim=True))
    return None


def center(x: Tensor, axis: int, formula_kind: bool) -> Tensor:
    """Return x, less its mean where the formula is centred."""
    return x - x.mean(axis, keepdim=True) if formula_kind else x


def measure_double(probe: Probe, formula: Formula, gain: str) -> str:
    """Return the precision that an input and parameters in float64 are computed with."""
    double = copy.deepcopy(probe)
    double.norm = double.norm.double()
    set_gain(double, gain, 1.0)
    x = probe.random(scale=3.0).double()
    try:
        y = double(x)
    except Exception:  # of a norm that takes float32 alone
        return "refused"
    centred = is_centred(probe)
    expected = center(x, probe.axis, centred) * formula(x)
    error = float((y.double() - expected).abs().max())
    words = "float64" if error < 1e-10 else "float32"
    return words if y.dtype == torch.float64 else f"{words}, given as {name_of(y.dtype)}"


def is_centred(probe: Probe) -> bool:
    """Tell whether a shift of the input leaves the output as it is."""
    x = probe.random()
    return torch.allclose(probe(x + 2.0), probe(x), rtol=1e-2, atol=1e-3)


def measure_casts(probe: Probe, formula: Formula, gain: str) -> dict[str, str]:
    """Return in which dtype statistics and γ are taken, by comparing outputs in bfloat16 to the bit with each order."""
    facts: dict[str, str] = {}
    centred = is_centred(probe)
    generator = torch.Generator().manual_seed(1)
    x = torch.cat([probe.random(seed) for seed in range(2, 2 + ROWS // 2)]) + (0.5 if centred else 0.0)
    x = x.to(LOW)
    vector = 1.0 + 0.3 * torch.randn(probe.features, generator=generator)
    low = copy.deepcopy(probe)
    low.norm = low.norm.to(LOW)
    shape = [1] * len(probe.shape)
    shape[probe.axis] = probe.features
    applied = torch.ones(probe.features)
    if gain in ("γ", "1 + γ") and low.tensor(low.gain_name).numel() == probe.features:
        stored = (vector - (1.0 if gain == "1 + γ" else 0.0)).to(LOW)
        low.fill(low.gain_name, stored.view(low.tensor(low.gain_name).shape))
        applied = stored.float() + (1.0 if gain == "1 + γ" else 0.0)
    y = low(x)
    facts["statistics"], facts["order"] = compare_orders(x, y, applied.view(shape), formula, centred, probe.axis)
    mixed = copy.deepcopy(low)
    mixed.norm = mixed.norm.float()
    try:
        facts["mixed"] = name_of(mixed(x).dtype)
    except Exception:  # of an operator that takes one dtype
        facts["mixed"] = "refused"
    facts["large"] = measure_large(probe)
    return facts


def compare_orders(x: Tensor, y: Tensor, gain: Tensor, formula: Formula, centred: bool, axis: int) -> tuple[str, str]:
    """Return the dtype of the statistics and the order of the casts with which a formula gives an output to the bit."""
    wide = x.float()
    root = formula(wide)
    normalized = center(wide, axis, centred) * root
    low_root = formula(x)
    low_gain = gain.to(LOW)
    # of a gain that is 1 + γ in float32, the sum may have more bits than bfloat16
    orders: dict[tuple[str, str], Tensor] = {
        ("float32", "γ in float32, cast last"): (normalized * gain).to(LOW),
        ("float32", "1 + γ is rounded, then as γ in float32, cast last"): (normalized * low_gain.float()).to(LOW),
        ("float32", "cast, then γ in bfloat16"): normalized.to(LOW) * low_gain,
        ("float32", "cast, then γ in float32, cast again"): (normalized.to(LOW).float() * gain).to(LOW),
        ("float32", "1/σ is cast, then all in bfloat16"): center(x, axis, centred) * root.to(LOW) * low_gain,
        ("bfloat16", "all in bfloat16"): center(x, axis, centred) * low_root * low_gain,
        ("bfloat16", "all in bfloat16, γ/σ first"): center(x, axis, centred) * (low_root * low_gain),
    }
    orders = {order: result for order, result in orders.items() if result.shape == y.shape}
    shares = {order: float((result == y.to(LOW)).float().mean()) for order, result in orders.items()}
    best = max(shares, key=lambda order: shares[order])
    if shares[best] < ALIKE:
        return "unknown", "as none of those known"
    statistics, words = best
    if bool((gain == 1).all()):
        words = "no γ" if statistics == "float32" and words == "γ in float32, cast last" else words
    if y.dtype != LOW:
        words += f", given as {name_of(y.dtype)}"
    return statistics, words


def measure_large(probe: Probe) -> str:
    """Return what becomes of an input in float16 whose square is beyond it."""
    half = copy.deepcopy(probe)
    half.norm = half.norm.half()
    x = probe.random(scale=LARGE)
    try:
        y = half(x.half()).float()
    except Exception:  # of an operator that a CPU does not have in float16
        return "refused"
    if not y.isfinite().all():
        return "not finite"
    expected = probe(x)
    if torch.allclose(y, expected, rtol=1e-2, atol=1e-2):
        return "right"
    return "zeros" if float(y.abs().max()) < 1e-2 else "wrong"


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


# ---- rows of zeros, and running statistics


def measure_zero(probe: Probe) -> dict[str, Any]:
    """Return what a norm makes of zeros, and its largest derivative there."""
    if probe.running():
        return {}
    facts: dict[str, Any] = {"zero": describe(probe(torch.zeros(probe.shape)))}
    half = copy.deepcopy(probe)
    half.norm = half.norm.half()
    try:
        facts["zero_half"] = describe(half(torch.zeros(probe.shape, dtype=torch.float16)))
    except Exception:  # of an operator that a CPU does not have in float16
        facts["zero_half"] = "refused"
    with torch.enable_grad():
        x = torch.zeros(probe.shape, requires_grad=True)
        y = probe(x)
        if y.requires_grad:
            one = y.movedim(probe.axis, -1).flatten(0, -2)[0, 0]
            (slope,) = torch.autograd.grad(one, x)
            largest = float(slope.abs().max())
            facts["slope"] = float(f"{largest:.1g}") if math.isfinite(largest) else None
    return facts


def describe(y: Tensor) -> str:
    """Return in a word what an output for zeros is."""
    if y.isnan().any():
        return "NaN"
    if not y.isfinite().all():
        return "infinite"
    return "zeros" if not y.any() else "not zeros"


def measure_momentum(norm: nn.Module, probe: Probe) -> float | None:
    """Return the share of a batch that a running mean takes over; None where no batch changes it."""
    if not probe.running():
        return None
    moving = copy.deepcopy(probe)
    set_statistics(moving, mean=0.0, variance=1.0)
    moving.norm.train()
    moving(torch.ones(probe.shape) + probe.random(scale=0.1))
    for name, buffer in moving.norm.named_buffers():
        if name.endswith("running_mean"):
            batch = (torch.ones(probe.shape) + probe.random(scale=0.1)).movedim(probe.axis, -1).flatten(0, -2).mean(0)
            return round(float((buffer / batch).median()), 4) or None
    return None
