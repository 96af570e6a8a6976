"""One forward pass of a model, recorded: which module was called when, inside of which, and what flowed where.

Tensors are told apart by their storage and how often it was written to, so that a view of what a module has given is
still known as that, and a sum in place is not. Nothing is kept of their content. Of each operator that ran inside of a
module it is noted which others have made what it read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from normbench.errors import UsageError, explain
from normbench.types import with_parts

# Functions of torch that normalize, by their names, and those that add.
NORMALIZING = (
    "layer_norm",
    "rms_norm",
    "group_norm",
    "batch_norm",
    "instance_norm",
    "local_response_norm",
    "normalize",
)
ADDING = ("add", "add_", "__add__", "__iadd__", "__radd__")
SOFTMAX = ("_softmax", "_safe_softmax")

# Operators that take of a tensor no more than its shape, dtype and device, by what their names begin or end with.
SHAPED_LIKE = re.compile(r"(new|zeros|ones|empty|full|rand|randn|randint)_\w+")

Key = tuple[StorageWeakRef, int]


@dataclass(frozen=True)
class Seen:
    """A tensor that went into a module or came out of one.

    Attributes:
        key: the same of two tensors that share their content; None where that cannot be told.
        shape: its shape.
    """

    key: Key | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor of floating point that an operator read.

    Attributes:
        shape: its shape.
        source: the operator that last wrote to its storage; None of what none has made, such as a parameter.
        is_data: whether it follows from what modules were called with, and not from the model's weights alone.
    """

    shape: tuple[int, ...]
    source: Operator | None
    is_data: bool


@dataclass(eq=False)
class Operator:
    """An operator of torch that ran, and gave a tensor of floating point that is no view.

    Attributes:
        number: which of all, in the order in which they ran.
        name: of it, such as `bmm`.
        operands: the tensors of floating point that it read, in order.
        axis: the one that a softmax was taken over.
    """

    number: int
    name: str
    operands: tuple[Operand, ...]
    axis: int | None = None

    @property
    def is_data(self) -> bool:
        """Tell whether what it gives follows from what modules were called with."""
        return any(operand.is_data for operand in self.operands)


@dataclass(eq=False)
class Call:
    """One call of a module.

    Attributes:
        path: of the module in the model.
        module: what was called.
        parent: the call inside of which it was; None of the model itself.
        inputs, outputs: the tensors, in order.
        children: the calls inside of it, in order.
        operators: those that ran in its own forward, in order, without those of its children.
        added: the numbers of those inputs that were added to something inside of it.
        made_by: the operators that last wrote to what it gave; empty where that cannot be told.
    """

    path: str
    module: nn.Module
    parent: Call | None
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...] = ()
    children: list[Call] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    added: set[int] = field(default_factory=set)
    made_by: tuple[Operator, ...] = ()

    @property
    def has_skip(self) -> bool:
        """Tell whether it gives the sum of something and an input of its own."""
        shapes = {seen.shape for seen in self.outputs}
        return any(self.inputs[number].shape in shapes for number in self.added)

    def inside(self) -> Iterator[Call]:
        """Give the call and all inside of it, in the order in which they began."""
        yield self
        for child in self.children:
            yield from child.inside()


class Tape(TorchFunctionMode):
    """What a forward pass did.

    Attributes:
        roots: the calls that were inside of no other.
        functional: how often each module, by path, called a function that normalizes, by name, outside of norms.
    """

    def __init__(self, paths: Mapping[nn.Module, str], norms: Iterable[nn.Module]) -> None:
        super().__init__()
        self.paths = paths
        self.norms = set(norms)
        self.roots: list[Call] = []
        self.stack: list[Call] = []
        self.functional: Counter[tuple[str, str]] = Counter()
        self.weights: set[StorageWeakRef] = set()
        for module in paths:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                self.weights |= storages_of([tensor])
        self.count = 0  # of operators
        self.sources: dict[StorageWeakRef, Operator] = {}  # the operator that last wrote to it
        self.data: set[StorageWeakRef] = set()  # what follows from what modules were called with

    def calls(self) -> Iterator[Call]:
        """Give all calls in the order in which they began."""
        for root in self.roots:
            yield from root.inside()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module is called."""
        parent = self.stack[-1] if self.stack else None
        inputs = tuple(look_at(tensor) for tensor in tensors_in((args, kwargs)))
        call = Call(self.paths[module], module, parent, inputs)
        siblings = parent.children if parent else self.roots
        siblings.append(call)
        self.stack.append(call)
        self.data |= storages_of(floats_in((args, kwargs))) - self.weights

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note what it has given."""
        call = self.stack.pop()
        call.outputs = tuple(look_at(tensor) for tensor in tensors_in(output))
        storages = storages_of(floats_in(output))
        call.made_by = tuple(self.sources[storage] for storage in storages if storage in self.sources)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ADDING:
            self.note_sum(args)
        elif name in NORMALIZING and self.stack and self.stack[-1].module not in self.norms:
            self.functional[self.stack[-1].path, name] += 1
        return func(*args, **(kwargs or {}))

    def note_sum(self, operands: tuple[Any, ...]) -> None:
        """Note which of the modules that are being called add their own input to something."""
        keys = set[Key]()
        for operand in operands:
            key = look_at(operand).key if isinstance(operand, Tensor) else None
            if key is not None:
                keys.add(key)
        for call in self.stack:
            for number, seen in enumerate(call.inputs):
                if seen.key in keys:
                    call.added.add(number)

    def note_operator(self, name: str, writes: bool, given: tuple[Any, ...], result: Any) -> None:
        """Note an operator that has run, unless what it gives is a view.

        Args:
            name: of it.
            writes: whether it writes to what it is given.
            given: its arguments.
            result: what it gave.
        """
        if not self.stack:
            return
        read = [] if SHAPED_LIKE.fullmatch(name) else list(floats_in(given))
        storages_of_result = storages_of(floats_in(result))
        if not writes:
            storages_of_result -= storages_of(read)
        if not storages_of_result:
            return
        operands: list[Operand] = []
        for tensor in read:
            storages = storages_of([tensor])
            source = next((self.sources[storage] for storage in storages if storage in self.sources), None)
            operands.append(Operand(tuple(tensor.shape), source, not storages.isdisjoint(self.data)))
        axis = given[0][1] if name in SOFTMAX else None
        operator = Operator(self.count, name, tuple(operands), axis)
        self.count += 1
        self.stack[-1].operators.append(operator)
        for storage in storages_of_result:
            self.sources[storage] = operator
        if operator.is_data:
            self.data |= storages_of_result


class Operators(TorchDispatchMode):
    """Tells a tape of each operator that runs, those inside of torch's functions too."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        name = schema.name.rpartition("::")[2].rstrip("_")
        self.tape.note_operator(name, schema.is_mutable, (args, kwargs or {}), result)
        return result


def floats_in(value: Any) -> Iterator[Tensor]:
    """Give the tensors of real or complex numbers in arguments or in what is returned."""
    for tensor in tensors_in(value):
        if tensor.is_floating_point() or tensor.is_complex():
            yield tensor


def storages_of(tensors: Iterable[Tensor]) -> set[StorageWeakRef]:
    """Return the storages of tensors, less those of such as have none."""
    storages = set[StorageWeakRef]()
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            if tensor.layout == torch.strided and not tensor.is_nested:
                storages.add(StorageWeakRef(tensor.untyped_storage()))
    return storages


def look_at(x: Tensor) -> Seen:
    """Return what is noted of a tensor."""
    with torch._C.DisableTorchFunction():
        shape = tuple(x.shape)
        if x.layout != torch.strided or x.is_nested:
            return Seen(None, shape)
        version = 0 if x.is_inference() else x._version
        return Seen((StorageWeakRef(x.untyped_storage()), version), shape)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Give the tensors in arguments or in what a module returns: in tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def record(model: nn.Module, call: Callable[[nn.Module], object], norms: Iterable[nn.Module]) -> Tape:
    """Run one forward pass of a model in evaluation mode and return what it did; the model stays as it is.

    Args:
        model: the model.
        call: runs the pass.
        norms: modules that may be norms, inside of which nothing is recorded.

    Raises:
        UsageError: the pass fails.
    """
    paths = {module: path for path, module in model.named_modules()}
    tape = Tape(paths, norms)
    inside_norms = with_parts(tape.norms) - tape.norms
    with ExitStack() as stack:
        for module in paths.keys() - inside_norms:
            if not takes_hooks(module):
                continue
            before = module.register_forward_pre_hook(tape.enter, with_kwargs=True)
            after = module.register_forward_hook(tape.leave, with_kwargs=True, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        stack.enter_context(one_pass(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(tape)
        stack.enter_context(Operators(tape))
        call(model)
    return tape


def takes_hooks(module: nn.Module) -> bool:
    """Tell whether a module can be given hooks that see each of its calls, which a program of TorchScript refuses."""
    return not isinstance(module, torch.jit.ScriptModule)


@contextmanager
def one_pass(model: nn.Module) -> Iterator[None]:
    """Let a model of another library run one pass in evaluation mode, module by module, which leaves it as it is.

    Raises:
        UsageError: the pass fails.
    """
    with evaluating(model), without_fast_path(), torch.random.fork_rng(devices=[]):
        try:
            yield
        except UsageError:
            raise
        except Exception as error:  # another library's code, which may raise anything
            what = f"the forward pass of {type(model).__name__} fails on the example ({explain(error)})"
            raise UsageError(f"{what}: give an example that the model takes") from error


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Put a model into evaluation mode, and each of its modules back into its own."""
    return in_mode(model, is_training=False)


@contextmanager
def in_mode(model: nn.Module, is_training: bool) -> Iterator[None]:
    """Put a model into training or evaluation mode, and each of its modules back into its own."""
    modes = {module: module.training for module in model.modules()}
    model.train(is_training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let torch's encoder layers call their modules, and not one fused operator for all of them."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
