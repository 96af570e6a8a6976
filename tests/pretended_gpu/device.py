"""A pretended CUDA device on a CPU build of torch, for this whole process.

Tensors say that they are on `cuda:0` or another, and hold their numbers on the CPU. An operator that mixes devices
raises as on a GPU. Operators that a GPU would launch are counted, and so are waits for the device and copies to it that
block the host, each with the line of normbench that asked for it. It tells shapes, devices, waits and counts; of speed,
of the kernels' own errors, of compilation and of NCCL it tells nothing.

    install(devices=2)
    with pretending():
        ...build and train...
        with counting() as seen:
            ...
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import graphs
import torch
from building import built_guard
from torch.nn import functional as F
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

import normbench
from normbench.training.launches import NO_LAUNCH

OURS = str(Path(normbench.__file__).parent)
CPU = torch.device("cpu")

# Operators whose result's value or shape the host waits for.
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "_unique2", "unique_dim"}

# Operators whose last argument the host waits for, if it is a tensor on the device.
READS_VALUE = {"masked_fill", "masked_fill_"}

# Operators that take an index, which may be on the CPU and is copied then; one of booleans is waited for.
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}


@dataclass
class Seen:
    """What a stretch of code has asked of the device.

    operators: by name. waits, blocking: how often the host waited, or a copy to the device kept it, by line.
    """

    operators: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    blocking: Counter[str] = field(default_factory=Counter)


watching: list[Seen] = []


@contextmanager
def counting() -> Iterator[Seen]:
    """Count what is asked of the device inside."""
    seen = Seen()
    watching.append(seen)
    try:
        yield seen
    finally:
        watching.remove(seen)


sync_debug_mode = "default"


def set_sync_debug_mode(mode: str) -> None:
    """Let what waits, or blocks the host, raise (`error`), or not."""
    global sync_debug_mode
    sync_debug_mode = mode


def note(what: str, name: str) -> None:
    """Count an operator, a wait or a copy that blocks.

    Raises:
        RuntimeError: it waits or blocks while a graph is recorded.
    """
    if what != "operators":
        graphs.refuse(name)
    if what != "operators" and sync_debug_mode == "error":
        raise RuntimeError(f"called a synchronizing CUDA operation: {name}")
    for seen in watching:
        getattr(seen, what)[name if what == "operators" else f"{name} at {line_of_ours()}"] += 1


def line_of_ours() -> str:
    """Return the innermost line of normbench that is at work."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return "no line of ours" if frame is None else f"{frame.f_code.co_filename[len(OURS) + 1 :]}:{frame.f_lineno}"


class PretendedTensor(torch.Tensor):
    """A tensor on a pretended device; `held` has its numbers."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, layout=held.layout, device=device, requires_grad=False,
        )  # fmt: skip
        made.held = held.detach() if held.requires_grad else held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendedTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def tolist(self) -> Any:
        note("waits", "tolist")
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy: use Tensor.cpu() first")

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copied: Any = PretendedTensor(self.held.clone(), self.device)
            if isinstance(self, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
            memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.__reduce_ex__(protocol)


def on_device(device: Any) -> torch.device | None:
    """Return the pretended device that an argument names, with its index; None for another."""
    named = None if device is None else torch.device(device)
    if named is None or named.type != "cuda":
        return None
    return named if named.index is not None else torch.device("cuda", torch.cuda.current_device())


def plain(value: Any) -> Any:
    """Return what the CPU computes with in place of an argument."""
    if isinstance(value, PretendedTensor):
        return value.held
    if isinstance(value, torch.Tensor) and graphs.recordings:
        return value.clone()  # a number of the host is recorded as it is now
    return CPU if isinstance(value, torch.device) and value.type == "cuda" else value


def dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operator on the CPU, and return what it gives on the device of its inputs."""
    name = func._schema.name.partition("::")[2]
    tensors = graphs.tensors((args, kwargs))
    inputs = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
    target = on_device(kwargs.get("device"))
    if not inputs and target is None:
        return func(*args, **kwargs)
    plain_args, plain_kwargs = graphs.mapped(plain, args), graphs.mapped(plain, kwargs)
    plain_kwargs.pop("pin_memory", None)
    if name == "_to_copy":
        return copied(func, inputs, target, kwargs, plain_args, plain_kwargs)
    if name == "copy_":
        return copied_into(args[0], args[1], bool(args[2:] and args[2]) or kwargs.get("non_blocking", False))
    if not name.endswith("_like"):  # which looks at a tensor's shape alone
        check_devices(name, args, tensors, inputs)
    reads_index = name in INDEXED and any(of_booleans(leaf) for leaf in graphs.tensors(args[1]))
    reads_value = name in READS_VALUE and isinstance(args[-1], PretendedTensor)
    if name in WAITS or reads_index or reads_value:
        note("waits", name)
    elif not func.is_view and name not in NO_LAUNCH:
        note("operators", name)
    found = graphs.computed(func, plain_args, plain_kwargs)
    device = target or inputs[0].device
    same = {id(tensor.held): tensor for tensor in inputs}  # of operators in place
    return graphs.mapped(lambda value: same[id(value)] if id(value) in same else wrapped(value, device), found)


def wrapped(value: Any, device: torch.device) -> Any:
    """Return a tensor on the device; numbers that the host has asked for stay as they are."""
    return PretendedTensor(value, device) if isinstance(value, torch.Tensor) else value


def copied(func: Any, inputs: Any, target: Any, kwargs: Any, plain_args: Any, plain_kwargs: Any) -> Any:
    """Copy a tensor to another device or number format."""
    waits_not = plain_kwargs.pop("non_blocking", False)
    if not inputs:
        graphs.refuse("copy to the device")
    found = graphs.computed(partial(anew, func), plain_args, plain_kwargs)
    if inputs and target is None and kwargs.get("device") is not None:
        note("waits", "copy to the host")
        return found
    if not inputs and not waits_not:
        note("blocking", "copy to the device")
    note("operators", "_to_copy")
    return PretendedTensor(found, target or inputs[0].device)


def anew(func: Any, source: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return what an operator makes of a tensor, never the tensor itself."""
    found: torch.Tensor = func(source, *args, **kwargs)
    return found.clone() if found is source else found


def copied_into(to: torch.Tensor, source: torch.Tensor, waits_not: bool) -> torch.Tensor:
    """Copy the numbers of a tensor into another one, which may be elsewhere."""
    if not isinstance(source, PretendedTensor):
        graphs.refuse("copy to the device")
    graphs.computed(torch.Tensor.copy_, (plain(to), plain(source)), {})
    if not isinstance(to, PretendedTensor):
        note("waits", "copy to the host")
    elif not isinstance(source, PretendedTensor) and not waits_not:
        note("blocking", "copy to the device")
    note("operators", "copy_")
    return to


def of_booleans(index: torch.Tensor) -> bool:
    """Tell whether an index is a mask, whose number of places the host must know."""
    return index.dtype in (torch.bool, torch.uint8)


def check_devices(name: str, args: Any, tensors: list[torch.Tensor], inputs: list[Any]) -> None:
    """Refuse what a GPU refuses: tensors of several devices; single numbers on the CPU are taken, and indices.

    Raises:
        RuntimeError: the devices are mixed.
    """
    devices = {tensor.device for tensor in inputs}
    others = [tensor for tensor in tensors if not isinstance(tensor, PretendedTensor)]
    if name in INDEXED:
        indices = graphs.tensors(args[1])
        if any(not isinstance(leaf, PretendedTensor) for leaf in indices):
            note("blocking", "an index on the CPU")
        others = [tensor for tensor in others if not any(tensor is leaf for leaf in indices)]
    bad = [tensor for tensor in others if tensor.ndim or name.startswith("_fused_")]
    if len(devices) > 1 or bad:
        found = ", ".join(sorted({str(tensor.device) for tensor in (*inputs, *bad)}))
        raise RuntimeError(f"{name} expects all tensors on one device, and found {found}, at {line_of_ours()}")


class Pretending(TorchDispatchMode):
    """Catches what makes tensors on the device of none that is there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import it, for two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def pretending() -> AbstractContextManager[Any]:
    """While this lasts, tensors can be made on the pretended devices."""
    return Pretending()


class Event:
    """A point in time on the device that is current when it is recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.time, self.device = 0.0, -1

    def record(self, *_: Any) -> None:
        self.time, self.device = time.perf_counter(), torch.cuda.current_device()

    def query(self) -> bool:
        graphs.refuse("an event is asked")
        return True

    def synchronize(self) -> None:
        note("waits", "an event")

    def elapsed_time(self, later: Event) -> float:
        if self.device != later.device:
            raise RuntimeError(f"events of cuda:{self.device} and cuda:{later.device} have no time between them")
        return 1e3 * (later.time - self.time)


class CUDAGraph(graphs.CUDAGraph):
    """A recording whose replay is one launch."""

    def replay(self) -> None:
        note("operators", "graph")
        super().replay()


synchronized: list[int] = []  # devices that have been waited for, in order


def synchronize(device: Any = None) -> None:
    """Wait for a device, by default the current one."""
    named = on_device(device) if isinstance(device, str | torch.device) else None
    synchronized.append(torch.cuda.current_device() if named is None else named.index)
    note("waits", "synchronize")


def attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **_: Any
) -> Any:
    """Compute attention by one operator each way, as a GPU does, or by the plain one where no other is allowed.

    Raises:
        RuntimeError: under vmap, where the fused kernels of a GPU have no backward pass.
    """
    cuda = torch.backends.cuda
    if not (cuda.mem_efficient_sdp_enabled() or cuda.flash_sdp_enabled()):
        return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal)[0]
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError("fused attention under vmap keeps nothing for its backward pass")
    if torch.is_autocast_enabled("cuda"):
        lower = torch.get_autocast_dtype("cuda")
        q, k, v = q.to(lower), k.to(lower), v.to(lower)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        nothing = torch.zeros(attn_mask.shape, dtype=q.dtype, device=q.device)
        attn_mask = nothing.masked_fill(~attn_mask, -torch.inf)
    fused: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(q, k, v, 0.0, is_causal, attn_mask=attn_mask)[0]


def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the tensor, as if it were in memory that a GPU can read."""
    graphs.refuse("memory is pinned")
    return tensor


def install(devices: int = 1) -> None:
    """Let this process have so many pretended devices."""
    guard = ctypes.CDLL(str(built_guard()))
    guard.set_device_count(devices)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    _foreach_utils._foreach_supported_types.append(PretendedTensor)

    def set_device(device: Any) -> None:
        guard.set_current_device(device if isinstance(device, int) else torch.device(device).index or 0)

    properties = SimpleNamespace(L2_cache_size=2**20, multi_processor_count=132, major=9, minor=0, name="pretended")
    told: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: devices,
        "current_device": lambda: int(guard.get_current_device()),
        "set_device": set_device,
        "synchronize": synchronize,
        "set_sync_debug_mode": set_sync_debug_mode,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda device=None: (70 * 10**9, 80 * 10**9),
        "reset_peak_memory_stats": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 10**9,
        "max_memory_reserved": lambda device=None: 2 * 10**9,
        "memory_allocated": lambda device=None: 0,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "manual_seed_all": lambda seed: None,
        "Stream": graphs.Stream,
        "stream": graphs.stream,
        "current_stream": lambda device=None: graphs.current[0],
        "CUDAGraph": CUDAGraph,
        "graph": graphs.graph,
    }
    for name, function in told.items():
        setattr(torch.cuda, name, function)
    torch.cuda.Event = Event  # type: ignore[misc,assignment]
    torch.cuda.default_generators = tuple(graphs.Generator() for _ in range(devices))
    torch.accelerator.synchronize = synchronize
    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]  # to pretend is its purpose
    F.scaled_dot_product_attention = attention
