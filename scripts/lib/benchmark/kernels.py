"""What a training step asks of the machine: its operators by class, their time alone, their operations and bytes."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

# An operator belongs to the first class whose pattern is in its name.
CLASSES = {
    "views": r"^(_?unsafe_view|view.*|_?reshape.*|transpose.*|t|permute|slice|select|expand.*|as_strided.*|(un)?squeeze"
    r"|detach_?|empty.*|new_empty.*|alias|unbind|split.*|chunk|narrow.*|item|_local_scalar_dense|contiguous|to|resize_"
    r"|lift_fresh|result_type|is_.*|set_|(un)?flatten|matmul|linear|unsafe_.*)$",
    "optimizer": r"^(_foreach|_fused_(adam|sgd|adagrad)|linalg_vector_norm|lerp|addcdiv|addcmul)",
    "attention": r"attention|^_softmax",
    "matrix products": r"mm_?$|matmul|linear|conv|mkldnn",
    "norm": r"norm",
    "activation": r"gelu|relu|silu|tanh|sigmoid",
    "loss and embedding": r"embedding|nll_loss|softmax|cross_entropy|logsumexp",
    "element-wise": r"",
}
FLOOR = ("matrix products", "attention", "activation", "norm", "optimizer", "loss and embedding")

CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda dy, q, k, v, *_, **__: (
        sdpa_backward_flop_count(dy, q, k, v)
    ),
}  # which torch does not count by itself


def class_of(operator: str) -> str:
    """Return the class of an operator of torch, by its name without namespace and overload."""
    return next(kind for kind, pattern in CLASSES.items() if re.search(pattern, operator))


class Recorded(TorchDispatchMode):
    """While this lasts, notes each operator that computes, with what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Callable[[], Any]]] = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        kind = class_of(func.overloadpacket.__name__)
        if kind != "views" and not func.is_view:
            self.calls.append((kind, lambda: func(*args, **kwargs)))
            tensors = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, torch.Tensor)]
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return found

    def replay(self, rounds: int) -> dict[str, float]:
        """Return the seconds that the operators of each class take when nothing else runs: medians over rounds."""
        took = defaultdict[str, list[float]](list)
        with torch.no_grad():
            for number in range(rounds + 1):  # the first warms up
                spent = defaultdict[str, float](float)
                before = time.perf_counter()
                for kind, call in self.calls:
                    call()
                    now = time.perf_counter()
                    spent[kind] += now - before
                    before = now
                if number:
                    for kind, seconds in spent.items():
                        took[kind].append(seconds)
        return {kind: statistics.median(seconds) for kind, seconds in took.items()}


def record(step: Callable[[], object]) -> Recorded:
    """Return the operators of a step."""
    with Recorded() as found:
        step()
    return found


def floor(seconds: Mapping[str, float]) -> float:
    """Return the seconds of those classes without which there is no step."""
    return sum(seconds.get(kind, 0.0) for kind in FLOOR)


def operations(step: Callable[[], object]) -> int:
    """Return the floating-point operations of a step's matrix products, convolutions and attention."""
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        step()
    return counter.get_total_flops()


def profile_shares(step: Callable[[], object], steps: int) -> dict[str, float]:
    """Return the shares of the time of steps that the profiler sees in operators of each class themselves."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        whole = time.perf_counter() - begun
    spent = Counter[str]()
    for event in found.key_averages():
        namespace, _, name = event.key.partition("::")
        if namespace not in ("aten", "mkldnn"):
            continue
        kind = class_of(name)
        if kind != "views":
            spent[kind] += event.self_cpu_time_total / 1e6 / whole
    return dict(spent)
