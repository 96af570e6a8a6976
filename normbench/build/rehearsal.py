"""One pass before anything is written, so that what does not fit leaves no run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import ContractError, UsageError, explain, refuse_single
from normbench.models.stacks import segment_length
from normbench.norms.foreign import Fitted
from normbench.settings import either
from normbench.training.devices import keep_generators
from normbench.training.evaluation import reads_batch, to_device
from normbench.training.memory import Kept, count_kept
from normbench.training.parallel import Group
from normbench.training.precision import Precision, check_step
from normbench.types import Batch, Data, Model, Task, keep_buffers

REHEARSED_EXAMPLES = 2  # enough for every statistic that a larger batch can give


def rehearse(
    model: Model,
    norms: Mapping[str, nn.Module],
    data: Data,
    device: torch.device,
    recompute: bool = False,
    group: Group | None = None,
    batches: int = 1,
) -> float:
    """Run the start of the first batch through the model, as in training; buffers and generators stay as they are.

    Return the bytes that a batch will keep for the backward pass, 0 of a model that is cut between processes (FSDP).

    Args:
        norms: of the model, by site.
        recompute: as `trainer.recompute`.
        group: of processes that share the batch.
        batches: how many a run takes: the last of an epoch may have fewer examples, and is then tried, too.

    Raises:
        UsageError: the batch or the logits are not as the task says, a norm changes its input's shape or dtype, or
            takes a statistic over one value, or a model of another library does not train with it.
    """
    group = group or Group()
    rows_of_process, batch = first_examples(data, device, group)
    with explain_failure(model, data.task, batch, group):
        kept = pass_forward(model, norms, data.task, batch, device, group)
    if not group.shards:
        model.try_step(batch, data.task)
        check_smallest_batch(model, data, device, group, batches)
        check_evaluation(model, data, batch, device)
    segment = segment_length(len(model.anatomy().blocks)) if recompute else None
    return kept.of_step(segment) * len(rows_of_process.targets) / len(batch.targets)


@contextmanager
def explain_failure(model: Model, task: Task, batch: Batch, group: Group) -> Iterator[None]:
    """Say why a batch fails in a model, where that is known: of a model of another library, or with norms of others."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # which others' code may raise of any kind; it goes on its way where no more is known
        if not group.shards:
            model.try_step(batch, task)
            if len(batch.targets) == 1 and goes_through(model, batch.twice()):
                raise refuse_single("the model", task.examples, error) from error
        others = sorted({norm.implementation for norm in model.modules() if isinstance(norm, Fitted)})
        if others and isinstance(error, ValueError):
            what = f"{either(others)} refuses what the model gives it ({explain(error)})"
            raise UsageError(f"{what}: choose another norm") from error
        raise


def goes_through(model: Model, batch: Batch) -> bool:
    """Tell whether a model in training takes a batch; it stays as it is."""
    try:
        with keep_buffers(model), keep_generators(batch.inputs.device), torch.no_grad():
            model.train()(*batch.arguments)
    except Exception:  # of others' code, which may raise anything
        return False
    return True


def check_smallest_batch(model: Model, data: Data, device: torch.device, group: Group, batches: int) -> None:
    """Refuse a batch that is so short that the model cannot be trained on it, such as the last of an epoch.

    Args:
        model, data, device, group, batches: as for `rehearse`.

    Raises:
        UsageError: it is.
    """
    whole = data.smallest_batch(batches) if batches > 1 else None
    if whole is None:
        return
    short = to_device(group.rows(whole), device)
    # all processes must agree, as norms may wait for each other
    if len(whole.targets) >= REHEARSED_EXAMPLES * group.size or not len(short.targets):
        return
    explaining = explain_failure(model, data.task, short, group)
    with explaining, keep_buffers(model), keep_generators(device), torch.no_grad():
        model.train()(*short.arguments)
    model.try_step(short, data.task)


def check_evaluation(model: Model, data: Data, batch: Batch, device: torch.device) -> None:
    """Refuse evaluation batches of one example where norms that take their statistics of each batch cannot use it.

    Args:
        model, data, device: as for `rehearse`.
        batch: on the device.

    Raises:
        UsageError: there is such a batch.
    """
    readers = [module for module in model.modules() if reads_batch(module)]
    if not readers:
        return
    single = batch.map(itemgetter(slice(1)))
    try:
        with keep_buffers(model), keep_generators(device), torch.no_grad():
            model.eval()(*single.arguments)
    except ValueError as error:
        for split in ("val", "test") if data.has_test else ("val",):
            if any(len(eval_batch.targets) == 1 for eval_batch in data.eval_batches(split)):
                what = f"{split} has a batch of 1 of the {data.task.examples}"
                name = type(readers[0]).__name__
                why = f"of which {name} cannot take statistics, as it does in evaluation too ({explain(error)})"
                cure = "use another data.eval_batch_size, or norms with track_running_stats=true"
                raise UsageError(f"{what}, {why}: {cure}") from error
    finally:
        model.train()


def pass_forward(
    model: Model, norms: Mapping[str, nn.Module], task: Task, batch: Batch, device: torch.device, group: Group
) -> Kept:
    """Run a batch through the model, as in training; return what it would keep for the backward pass.

    Args:
        model, norms, device, group: as for `rehearse`.
        task: of the batch.
        batch: on the device.

    Raises:
        UsageError: the logits are not as the task says, or a norm is not as it must be.
    """
    shape = (*batch.targets.shape, task.num_classes)
    with ExitStack() as stack, keep_buffers(model), keep_generators(device):
        for site, norm in norms.items():
            stack.enter_context(norm.register_forward_hook(partial(check_output, site)))
        stack.enter_context(torch.no_grad())
        tensors = [tensor for tensor in batch if tensor is not None]
        counting = nullcontext(Kept()) if group.shards else count_kept(model, tensors)
        kept = stack.enter_context(counting)
        logits = model.train()(*batch.arguments)
        if logits.shape == shape:
            task.loss(logits, batch.targets)
    if logits.shape != shape:
        given = tuple(logits.shape)
        raise ContractError(f"the model's logits have the shape {given}, and the data need {shape}: change its forward")
    return kept


def first_examples(data: Data, device: torch.device, group: Group) -> tuple[Batch, Batch]:
    """Return this process's rows of the first batch, and the start of them on a device.

    Raises:
        UsageError: the batch is not as the task says.
    """
    batch = data.train_batch(0)
    if not isinstance(batch, Batch):
        raise ContractError(f"train_batch(0) gives a {type(batch).__name__}: return a normbench.types.Batch")
    expected = data.task.shapes(batch)
    if (batch.inputs.shape, batch.targets.shape) != expected:
        given = f"inputs of {tuple(batch.inputs.shape)} and targets of {tuple(batch.targets.shape)}"
        raise ContractError(f"train_batch(0) has {given}: the task needs {expected[0]} and {expected[1]}")
    rows_of_process = group.rows(batch)
    start = rows_of_process.map(itemgetter(slice(REHEARSED_EXAMPLES)))
    return rows_of_process, to_device(start, device)


def check_precision(model: Model, data: Data, precision: Precision, group: Group | None = None) -> None:
    """Refuse a precision in which this CPU lacks an operator of the model.

    Args:
        model: whole, on the device.
        group: of processes that share the batch.

    Raises:
        UsageError: with what the operator says.
    """
    if not precision.varies:
        return
    _, batch = first_examples(data, precision.device, group or Group())
    check_step(model, data.task, batch, precision)


def check_output(site: str, norm: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
    """Refuse an output of a norm that has not the input's shape and, where autocast does not choose it, its dtype."""
    x = inputs[0]
    name = type(norm).__name__
    if getattr(output, "shape", None) != x.shape:
        what = f"the shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ContractError(f"{name} returns {what} for an input of {tuple(x.shape)} at {site}: a norm keeps the shape")
    if output.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        cure = "a norm keeps the dtype, end its forward with .to(x.dtype)"
        raise ContractError(f"{name} returns {output.dtype} for an input of {x.dtype} at {site}: {cure}")
