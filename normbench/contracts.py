"""What a norm, placement, model or data set must have to be used; what is missing is told in one sentence.

Our own classes keep these contracts; the checks are for a user's.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import ContractError
from normbench.types import (
    Batch,
    Branch,
    Data,
    LanguageModeling,
    Model,
    Norm,
    NormFacts,
    Placement,
    Task,
    TextClassification,
)

# Class attributes that are read before anything is made, and what they are.
DECLARED: dict[str, dict[str, str]] = {
    "placement": {"slots": "a tuple of the norms around each branch, such as ('in',)"},
    "model": {
        "kinds": f"a frozenset of tasks, of {', '.join(Task.by_kind)}",
        "roles": "a tuple of the names of a block's branches, such as ('attention', 'mlp')",
    },
    "data": {"kind": f"one of {', '.join(Task.by_kind)}"},
}


def check_class(section: str, path: str, made: type, whole: bool = True) -> None:
    """Refuse a class that could not be used, before anything is made of it.

    whole: it is the class itself, not what a function is annotated to return, which may be a base class.

    Raises:
        ContractError: a method or an attribute of the class is missing, or not what it has to be.
    """
    where = f"{section}._target_={path}"
    if whole and (missing := left_open(made)):
        raise ContractError(f"{where} has no {' and no '.join(missing)}: write what the base class leaves open")
    for name, meaning in DECLARED.get(section, {}).items():
        if not hasattr(made, name):
            raise ContractError(f"{where} has no {name}: set it in the class, {meaning}")
        if not is_declared_well(name, getattr(made, name)):
            raise ContractError(f"{where} has {name}={getattr(made, name)!r}: make it {meaning}")
    if section == "norm" and not isinstance(getattr(made, "facts", NormFacts("", False)), NormFacts):
        raise ContractError(f"{where} has facts that are no NormFacts: make them a normbench.types.NormFacts")


def left_open(made: type) -> list[str]:
    """The methods that a class does not write and its base class does not have."""
    if issubclass(made, nn.Module) and made.forward is nn.Module.forward:
        return ["forward"]
    return sorted(getattr(made, "__abstractmethods__", ()))


def is_declared_well(name: str, value: Any) -> bool:
    """Whether a class attribute is what DECLARED says."""
    if name == "kind":
        return value in Task.by_kind
    is_words = isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(w, str) for w in value)
    return is_words and (name == "slots" or len(value) > 0) and (name != "kinds" or set(value) <= set(Task.by_kind))


def check_made(section: str, path: str, made: Any) -> None:
    """Refuse an instance that could not be used.

    Raises:
        ContractError: something that the rest relies on is missing, or not what it has to be.
    """
    where = f"{section}._target_={path}"
    if section == "norm":
        check_norm(where, made)
    elif section == "placement":
        check_placement(where, made)
    elif section == "model":
        check_model(where, made)
    elif section == "data":
        check_data(where, made)


def check_type(where: str, made: Any, kind: type) -> None:
    """ContractError unless what a function has returned is what it says."""
    if not isinstance(made, kind):
        raise ContractError(f"{where} gives something of type {type(made).__name__}: return a {kind.__qualname__}")


def check_norm(where: str, made: Any) -> None:
    """A module; one of our base class says its eps, which the ledger records."""
    check_type(where, made, nn.Module)
    if isinstance(made, Norm) and not hasattr(made, "eps"):
        raise ContractError(f"{where} has no eps: set self.eps, or eps = None in the class where the formula has none")


def check_placement(where: str, made: Any) -> None:
    """A placement that keeps its branches and norms where initialisation, probes and ledger look for them."""
    check_type(where, made, Placement)
    for name in ("branches", "norms"):
        if not isinstance(getattr(made, name, None), nn.ModuleDict):
            raise ContractError(f"{where} keeps no {name}: put them in self.{name}, a torch.nn.ModuleDict")


def check_model(where: str, made: Any) -> None:
    """A model whose blocks are placements around branches."""
    check_type(where, made, Model)
    blocks = getattr(made, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks):
        raise ContractError(f"{where} has no blocks: keep them in self.blocks, a torch.nn.ModuleList")
    for index, block in enumerate(blocks):
        if not isinstance(block, Placement):
            raise ContractError(
                f"{where} has a {type(block).__name__} as blocks[{index}]: make each block with the placement that the "
                "constructor is given"
            )
        if not any(isinstance(branch, Branch) for branch in block.branches.values()):
            raise ContractError(f"{where} has no Branch in blocks[{index}]: derive it from normbench.types.Branch")


# ---- data


def check_data(where: str, data: Any) -> None:
    """Data that say what they are, with batches that a step alone decides.

    Raises:
        ContractError: something is missing, or a first batch is not as the task says.
    """
    check_type(where, data, Data)
    check_attributes(where, data)
    check_task(where, data.task)
    first = clone(where, data.train_batch(0))
    check_batch(f"{where}: train_batch(0)", first, data)
    check_batch(f"{where}: train_batch(1)", data.train_batch(1), data)
    if not same(first, data.train_batch(0)):
        raise ContractError(
            f"{where} gives another train_batch(0) when it is asked again: draw from a torch.Generator that seed and "
            "step alone decide, and leave the data as they are"
        )
    judged = next(iter(data.eval_batches("val", 1)), None)
    if judged is None:
        raise ContractError(f"{where} gives no batch in eval_batches('val', 1): the validation loss needs one")
    check_batch(f"{where}: eval_batches('val', 1)", judged, data)


def check_attributes(where: str, data: Data) -> None:
    """What is recorded, and what the length of a run follows from."""
    fingerprint, steps = getattr(data, "fingerprint", None), getattr(data, "steps_per_epoch", None)
    if not isinstance(getattr(data, "task", None), Task):
        raise ContractError(f"{where} has no task: set self.task to a normbench.types.Task")
    if data.task.kind != type(data).kind:
        raise ContractError(f"{where} has kind={type(data).kind} and task.kind={data.task.kind}: make them the same")
    if data.pads and not data.task.may_pad:
        raise ContractError(
            f"{where} has kind={data.kind} and pads=True: padding would count in the loss, so cut the text into "
            "windows without it"
        )
    if not isinstance(fingerprint, str) or not fingerprint:
        raise ContractError(f"{where} has no fingerprint: set self.fingerprint to text that changes with the content")
    if not is_count(steps):
        raise ContractError(f"{where} has no steps_per_epoch: set it to the number of batches of an epoch, at least 1")
    try:
        described = isinstance(json.loads(json.dumps(data.describe())), dict)
    except (TypeError, ValueError):
        described = False
    if not described:
        raise ContractError(f"{where} describes itself by what JSON cannot hold: return a dict of words and numbers")


def check_task(where: str, task: Task) -> None:
    """Refuse sizes that are no whole numbers from 1, and a single class."""
    for name, size in asdict(task).items():  # type: ignore[call-overload]  # all tasks are dataclasses
        if not all(is_count(side) for side in (size if isinstance(size, tuple | list) else [size])):
            raise ContractError(f"{where} has task.{name}={size}: give whole numbers, at least 1")
    if task.num_classes < 2:
        raise ContractError(f"{where} has task.num_classes={task.num_classes}: give at least 2")


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def clone(where: str, batch: Any) -> Batch:
    """A batch that nobody else writes to."""
    if not isinstance(batch, Batch):
        raise ContractError(f"{where} gives a batch of type {type(batch).__name__}: return a normbench.types.Batch")
    return batch.map(Tensor.clone)


def same(one: Batch, other: Any) -> bool:
    """Whether two batches hold the same bits."""
    return isinstance(other, Batch) and all(
        (a is None and b is None)
        or (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def check_batch(where: str, batch: Any, data: Data) -> None:
    """Refuse a batch whose shapes, types or values are not what the task says.

    Raises:
        ContractError: `where` begins the sentence.
    """
    task, (inputs, targets, mask) = data.task, clone(where, batch)
    if inputs.ndim < 2:
        raise ContractError(
            f"{where} has inputs of {list(inputs.shape)}: put the examples of a batch along the first axis"
        )
    input_shape, target_shape = task.shapes(inputs)
    check_tensor(f"{where} has inputs", inputs, input_shape, task.input_dtype)
    check_tensor(f"{where} has targets", targets, target_shape, torch.int64)
    check_range(f"{where} has targets", targets, task.num_classes)
    if not inputs.isfinite().all():
        raise ContractError(f"{where} has inputs that are not finite: mend or leave out those examples")
    if isinstance(task, LanguageModeling | TextClassification):
        check_range(f"{where} has tokens", inputs, task.vocabulary_size)
        if inputs.shape[1] > task.context:
            raise ContractError(
                f"{where} has {inputs.shape[1]} tokens a row, and task.context={task.context}: cut them"
            )
    if data.pads != (mask is not None):
        raise ContractError(f"{where} has {'no' if mask is None else 'a'} mask, and pads={data.pads}: make them agree")
    if mask is not None:
        check_tensor(f"{where} has a mask", mask, input_shape, torch.bool)
        if not mask.any(dim=1).all():
            raise ContractError(f"{where} has a row that is all padding: leave out empty texts")


def check_tensor(where: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """ContractError unless this is a tensor of that shape and type, and not empty."""
    found = f"{list(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
    if found != f"{list(shape)} of {dtype}" or not tensor.numel():
        raise ContractError(f"{where} of {found}: the task needs {list(shape)} of {dtype}".replace("torch.", ""))


def check_range(where: str, tensor: Tensor, count: int) -> None:
    """ContractError unless all values are from 0 to below `count`."""
    low, high = int(tensor.min()), int(tensor.max())
    if low < 0 or high >= count:
        raise ContractError(f"{where} from {low} to {high}: the task has {count}, so they go from 0 to {count - 1}")
