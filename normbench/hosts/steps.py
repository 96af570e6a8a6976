"""A training step of a given model on trial: most let activations work in place on what their norms give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from normbench.errors import ContractError
from normbench.hosts.acting import Acting
from normbench.hosts.tape import evaluating, in_mode, storages_of, tensors_in
from normbench.settings import either
from normbench.types import keep_buffers

CallHost = Callable[[nn.Module], object]  # one forward pass


class Trial(NamedTuple):
    """What came of a step.

    Attributes:
        error: that it raised; None: it went through.
        passing: the norms whose output lies where their input does.
    """

    error: Exception | None
    passing: tuple[nn.Module, ...] = ()


def check_step(name: str, model: nn.Module, call: CallHost, norms: Collection[nn.Module]) -> Exception | None:
    """Refuse norms on whose output a model works in place, and which cannot bear it; return what else a step fails for.

    They cannot where autograd keeps the output itself for the backward pass, or where it is the input, or a view of
    it, that the model reads again. With copies of their outputs the model computes what it is to compute.

    Args:
        name: of the model, for the error.
        model: in which the norms stand; it stays as it is.
        call: runs one pass of it.
        norms: those that are new to it.

    Raises:
        ContractError: with the classes of the norms.
    """
    trial = try_step(model, call, norms)
    if trial.error is not None:
        unfit = those_that_fail(model, call, norms)
        if not unfit:
            return trial.error
    else:
        unfit = those_that_alter(model, call, trial.passing)
    if unfit:
        kinds = either(sorted({type(norm).__name__ for norm in unfit}))
        what = f"{name} works in place on what {kinds} returns"
        why = "and then lacks what its backward pass needs, or a norm's input that it reads again"
        raise ContractError(f"{what}, {why}: end its forward with .clone(), or choose another norm")
    return None


def try_step(model: nn.Module, call: CallHost, norms: Iterable[nn.Module]) -> Trial:
    """Run a forward and a backward pass in training; return what came of it. The model stays as it is.

    The gradients are those of what enters the norms and of the norms' parameters: they need no memory for others.
    """
    wanted: list[Any] = []
    passing: dict[nn.Module, None] = {}

    def note_input(norm: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        for x in tensors_in((given, named)):
            if x.requires_grad:
                wanted.append(get_gradient_edge(x))

    def note_output(norm: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if not storages_of(tensors_in(given)).isdisjoint(storages_of(tensors_in(output))):
            passing[norm] = None

    try:
        with ExitStack() as stack:
            for context in (in_mode(model, True), keep_buffers(model), keep_all_generators(model), torch.enable_grad()):
                stack.enter_context(context)
            for norm in norms:
                stack.enter_context(norm.register_forward_pre_hook(note_input, with_kwargs=True))
                stack.enter_context(norm.register_forward_hook(note_output))
                wanted.extend(parameter for parameter in norm.parameters() if parameter.requires_grad)
            outputs = [tensor for tensor in tensors_in(call(model)) if tensor.requires_grad]
            if outputs and wanted:
                ones = [torch.ones_like(tensor) for tensor in outputs]
                torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
    except Exception as error:  # another library's code, which may raise anything
        return Trial(error)
    return Trial(None, tuple(passing))


def those_that_fail(model: nn.Module, call: CallHost, norms: Collection[nn.Module]) -> list[nn.Module]:
    """Return the norms for which a step fails unless their outputs are copied; none if it fails with copies of all."""
    with copying(norms):
        if try_step(model, call, norms).error is not None:
            return []
    by_kind: dict[type, list[nn.Module]] = defaultdict(list)
    for norm in norms:
        by_kind[type(norm)].append(norm)
    unfit = []
    for kind, alike in by_kind.items():
        with copying([norm for norm in norms if type(norm) is not kind]):
            if try_step(model, call, norms).error is not None:
                unfit += alike
    return unfit


@torch.no_grad()
def those_that_alter(model: nn.Module, call: CallHost, norms: Collection[nn.Module]) -> list[nn.Module]:
    """Return the norms if the model computes something else where their outputs are copied."""
    if not norms:
        return []
    results = []
    for copied in ((), norms):
        with evaluating(model), keep_buffers(model), keep_all_generators(model), copying(copied):
            results.append([*tensors_in(call(model))])
    for as_it_is, with_copies in zip(*results, strict=True):
        if not torch.allclose(as_it_is, with_copies, equal_nan=True):
            return [*norms]
    return []


@contextmanager
def copying(norms: Iterable[nn.Module]) -> Iterator[None]:
    """Let a model have copies of what norms return; of those that end in an activation, this of what it acts on."""

    def copy_output(norm: nn.Module, given: object, output: Any) -> Any:
        return output.clone() if isinstance(output, Tensor) else output

    def copy_input(drop: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return given[0].clone(), *given[1:]

    with ExitStack() as stack:
        for norm in norms:
            stack.enter_context(norm.register_forward_hook(copy_output))
            if isinstance(norm, Acting):
                stack.enter_context(norm.drop.register_forward_pre_hook(copy_input))
        yield


def keep_all_generators(model: nn.Module) -> Any:
    """Keep the states of the random generators of the CPU and of the GPUs that a model is on."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    return torch.random.fork_rng(devices=[*devices])
