"""Which features of which map the queries, keys and values of a given model's attention are: measured, not read.

Attention is `F.scaled_dot_product_attention`, or a product of which a softmax is taken, as in a second product. The
result of each map is cut off from what made it, so that the gradient of a head's queries is not zero at the features
alone of which they were made, whatever has been done to them in between: a split, a rotation, a norm of the head. So
maps of each, one for all of them, and the layout of its features are one case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from normbench.hosts.tape import one_pass, takes_hooks

# Functions of torch, by their names, and what those of their arguments are called that are read here.
WHOLE = "scaled_dot_product_attention"
SOFTMAX = "softmax"
FACTORS = {
    "matmul": ("input", "other"),
    "__matmul__": ("input", "other"),
    "bmm": ("input", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"),
}
ARGUMENTS = {WHOLE: ("query", "key", "value"), SOFTMAX: ("input",), **FACTORS}

LETTERS = "qkv"


@dataclass(frozen=True)
class Heads:
    """What the heads of one attention read as queries, as keys or as values.

    Attributes:
        letter: `q`, `k` or `v`.
        size: features that attention reads of each head.
        path: of the map that makes them, of several the last; empty where there is none.
        columns: of that map's features those of each head, of which keys and values may have fewer.
        reason: why no norm can stand between the map and the heads, to follow what they are; empty where one can.
        stand_in: the path of the module that does nothing where the library may put a norm of each head; empty where it
            has none.
    """

    letter: str
    size: int
    path: str = ""
    columns: tuple[tuple[int, ...], ...] = ()
    reason: str = ""
    stand_in: str = ""


class Attending(TorchFunctionMode):
    """Notes what attention reads in one pass.

    Attributes:
        path_of_result: the path of each map, or slot, by its result, which is cut off from what made it.
        seen: what each attention has read, in order: queries, keys and values by their letters, features last, as far
            as they are known.
        before_slot: what enters the slots of a library for norms of queries, keys and values, by their paths.
        products: the two factors of each product, by its node in autograd's graph.
        softmaxes: by the node of its softmax what each attention has read that is no single operator; also in `seen`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path_of_result: dict[Tensor, str] = {}
        self.seen: list[dict[str, Tensor]] = []
        self.before_slot: dict[str, Tensor] = {}
        self.products: dict[Node, tuple[Tensor, Tensor]] = {}
        self.softmaxes: dict[Node, dict[str, Tensor]] = {}

    def cut(self, path: str, module: nn.Module, given: Any, result: Any) -> Any:
        """Return the result of a map without what made it: a hook."""
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        leaf = result.detach().requires_grad_()
        self.path_of_result[leaf] = path
        return leaf.clone()  # which may be written to

    def cut_slot(self, path: str, module: nn.Module, given: Any, result: Any) -> Any:
        """Return what passes a slot without what made it, which is kept: a hook."""
        if isinstance(result, Tensor):
            self.before_slot[path] = result
        return self.cut(path, module, given, result)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        result = func(*args, **given)
        if name not in ARGUMENTS:
            return result
        tensors = tensors_by_name(ARGUMENTS[name], args, given)
        if name == WHOLE:
            self.seen.append(dict(zip(LETTERS, tensors, strict=True)))
        elif isinstance(result, Tensor) and result.grad_fn is not None:
            if name == SOFTMAX:
                self.note_softmax(result.grad_fn, tensors[0])
            else:
                self.note_product(result.grad_fn, *tensors[-2:])
        return result

    def note_softmax(self, softmax: Node, scores: Tensor) -> None:
        """Note the queries and keys of scores of which a softmax is taken."""
        product = first_behind(scores, self.products)
        if product is not None:
            q, k = self.products[product]
            read = {"q": q, "k": k.transpose(-2, -1)}
            self.softmaxes[softmax] = read
            self.seen.append(read)

    def note_product(self, product: Node, first: Tensor, second: Tensor) -> None:
        """Note a product of matrices, whose second factor is values if the first is of a softmax; not of vectors."""
        if first.ndim < 2 or second.ndim < 2:
            return
        self.products[product] = (first, second)
        softmax = first_behind(first, self.softmaxes)
        if softmax is not None:
            self.softmaxes[softmax]["v"] = second


def tensors_by_name(names: Sequence[str], args: Iterable[Any], given: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors of a call in the order of their names, whatever the order of its keywords.

    Args:
        names: of those that are wanted, which are the first of the function.
        args: given without a name, among which may be numbers, too.
        given: by name.
    """
    tensors = [x for x in args if isinstance(x, Tensor)]
    for name in names[len(tensors) :]:
        if isinstance(given.get(name), Tensor):
            tensors.append(given[name])
    return tensors[: len(names)]


def nodes_behind(x: Tensor) -> Iterator[Node]:
    """Yield the nodes of autograd's graph behind a tensor, the nearest first."""
    waiting = deque([x.grad_fn])
    seen = set[Node]()
    while waiting:
        node = waiting.popleft()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(before for before, _ in node.next_functions)


def first_behind(x: Tensor, nodes: Container[Node]) -> Node | None:
    """Return the nearest of some nodes behind a tensor; None where there is none."""
    return next((node for node in nodes_behind(x) if node in nodes), None)


@torch.enable_grad()
def find_heads(model: nn.Module, call: Callable[[nn.Module], object], with_slots: bool = True) -> list[Heads]:
    """Return what the heads of a model's attention read, by one pass in evaluation mode that leaves it as it is.

    Attention that is called several times is listed once. A softmax of products is not taken for attention where no
    linear map makes the queries or the keys, as in a router.

    Args:
        model: the model.
        call: runs the pass, which works; see `normbench.hosts.find`.
        with_slots: whether a library's slots for norms of each head are used.

    Raises:
        UsageError: the pass fails.
    """
    attending = Attending()
    with ExitStack() as stack:
        for path, module in model.named_modules():
            if not takes_hooks(module):
                continue
            if is_linear(module):
                hook = module.register_forward_hook(partial(attending.cut, path))
                stack.callback(hook.remove)
            elif with_slots and is_slot(path, module):
                hook = module.register_forward_hook(partial(attending.cut_slot, path))
                stack.callback(hook.remove)
        stack.enter_context(one_pass(model))
        stack.enter_context(attending)
        call(model)
    heads: dict[Heads, None] = {}
    for attention in attending.seen:
        leaves = {letter: leaves_behind(x, attending.path_of_result) for letter, x in attention.items()}
        if not (leaves["q"] and leaves["k"]):
            continue
        for letter, x in attention.items():
            read = read_heads(letter, x, leaves[letter], attending)
            if read is None:  # slots are of all heads together
                return find_heads(model, call, with_slots=False)
            heads[read] = None
    return list(heads)


def is_slot(path: str, module: nn.Module) -> bool:
    """Tell whether a module does nothing where a library may have a norm of queries, keys or values, as timm's do."""
    name = path.rpartition(".")[2]
    return type(module) is nn.Identity and name in [f"{letter}_norm" for letter in LETTERS]


def is_linear(module: nn.Module) -> bool:
    """Tell whether a module has a matrix of its own, as a linear map does."""
    return any(parameter.ndim == 2 for parameter in module.parameters(recurse=False))


def leaves_behind(x: Tensor, known: Container[Tensor]) -> list[Tensor]:
    """Return the leaves of autograd's graph behind a tensor, of those that are known."""
    leaves = []
    for node in nodes_behind(x):
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf in known:
            leaves.append(leaf)
    return leaves


def read_heads(letter: str, x: Tensor, leaves: Sequence[Tensor], attending: Attending) -> Heads | None:
    """Return what the heads of one attention read; None where it passes a slot that is not of a head.

    Args:
        letter: of queries, keys or values.
        x: these, of all heads, features last.
        leaves: the results that they are made of, of maps or slots.
        attending: knows whose these are.
    """
    size = x.shape[-1]
    paths = [attending.path_of_result[leaf] for leaf in leaves]
    before = attending.before_slot.get(paths[0]) if len(paths) == 1 else None
    if before is not None:
        read = read_heads(letter, before, leaves_behind(before, attending.path_of_result), attending)
        return replace(read, stand_in=paths[0]) if read is not None and read.size == size else None
    if len(leaves) != 1:
        made_by = f"are made by {' and '.join(paths)} together" if leaves else "are made by no linear map"
        return Heads(letter, size, paths[0] if paths else "", reason=made_by)
    columns = columns_of_heads(x, leaves[0])
    used = [column for head in columns for column in head]
    is_split = all(len(head) == size for head in columns) and len(set(used)) == len(used)
    if not is_split:
        return Heads(letter, size, paths[0], reason=f"are not {size} features of {paths[0]} for each head")
    return Heads(letter, size, paths[0], columns)


def columns_of_heads(x: Tensor, leaf: Tensor) -> tuple[tuple[int, ...], ...]:
    """Return on which features of a map's result what each head reads depends; heads that read the same are one."""
    generator = torch.Generator("cpu").manual_seed(0)
    heads: dict[tuple[int, ...], None] = {}
    by_head = x.flatten(0, -3) if x.ndim > 2 else x[None]  # of all texts
    for one in by_head:
        weights = torch.randn(one.shape, generator=generator).to(one)  # so that nothing cancels
        (gradient,) = torch.autograd.grad((one * weights).sum(), leaf, retain_graph=True)
        columns = gradient.flatten(0, -2).ne(0).any(dim=0).nonzero().flatten().tolist()
        heads[tuple(columns)] = None
    return tuple(sorted(heads))
