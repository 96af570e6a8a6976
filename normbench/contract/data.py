"""The contract of data: batches that seed and step alone decide, values in range, an evaluation of every example."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normbench.contract import trials
from normbench.contract.checks import Check, Fact, Part, drawn_by, expect
from normbench.types import PADDING, Batch, Data, Split

STEPS = 20  # that stand for an epoch of a stream
MOST_STEPS = 100  # whose batches are looked at


class DataPart(Part):
    """Data, as a run makes them."""

    section = "data"

    def make(self, seed: int = 0) -> Any:
        """Return the data under a seed."""
        return self.factory()(seed=seed)

    @cached_property
    def data(self) -> Any:
        """The data under the first seed."""
        return self.make()

    @property
    def steps(self) -> list[int]:
        """Steps at the ends of the first epochs, and far away."""
        epoch = self.data.steps_per_epoch or STEPS
        return sorted({0, 1, epoch // 2, epoch - 1, epoch, 2 * epoch - 1, 7 * epoch + 3})

    def contract(self) -> dict[str, Check]:
        """Return the checks of data by name."""
        return {
            "constructor and first batches": is_made,
            "seed and step decide a batch": batches_are_pure,
            "another seed, other batches": seed_matters,
            "batches fit the task": batches_fit,
            "evaluation covers each example once": covers_once,
            "evaluation and fingerprint are the same each time": evaluation_repeats,
            "a small model trains": trains,
        }


def is_made(part: DataPart) -> str:
    """They say what they are, in words and numbers that JSON can hold."""
    data = part.data
    task = data.task
    expect(task.kind == data.kind, f"kind={data.kind} and task.kind={task.kind}: make them the same")
    json.dumps(data.describe())
    check_batch("train_batch(0)", data.train_batch(0), data)
    return f"{task.kind}, {task.num_classes} classes or tokens, {data.steps_per_epoch:,} steps an epoch"


def batches_are_pure(part: DataPart) -> str:
    """Asked for backwards, of other data made with the same seed, batches are the same: a run can go on anywhere.

    The dropout of a step is seeded before its batch is asked for.
    """
    expected: dict[int, list[int]] = {}

    def ask_forwards() -> None:
        for step in part.steps:
            expected[step] = hashes([part.data.train_batch(step)])

    drawn = drawn_by(ask_forwards)
    cure = "draw from a torch.Generator that seed and step decide, and leave the data as they are"
    expect(not drawn, f"draws from {drawn}, or seeds it: {cure}")
    for other in (part.data, part.make()):
        for step in reversed(part.steps):
            again = hashes([other.train_batch(step)])
            expect(again == expected[step], f"step {step} gives another batch: {cure}")
    return f"steps {', '.join(f'{step:,}' for step in part.steps)}"


def seed_matters(part: DataPart) -> Fact:
    """Runs of several seeds differ in their batches too."""
    first = hashes([part.data.train_batch(0)])
    other = hashes([part.make(seed=1).train_batch(0)])
    return Fact(first != other)


def check_batch(where: str, batch: Batch, data: Data) -> int:
    """Shapes, types and values of a batch are what the task says; return the number of its predictions."""
    task = data.task
    inputs, targets, mask, previous = batch
    has = "no" if mask is None else "a"
    expect((mask is not None) == data.pads, f"{where} has {has} mask, and pads={data.pads}")
    input_shape, target_shape = task.shapes(batch)
    if mask is not None:
        expect(task.may_pad, f"{where} has a mask: padding would count in the loss, cut the text into windows")
    check_tensor(where, "inputs", inputs, input_shape, task.input_dtype)
    check_tensor(where, "targets", targets, target_shape, torch.int64)
    if mask is not None:
        check_tensor(where, "mask", mask, input_shape, torch.bool)
        check_padding(where, mask)
    are_finite = bool(inputs.isfinite().all())
    expect(are_finite, f"{where} has inputs that are not finite: fix those examples or leave them out")
    answers = targets if previous is None else real(targets)
    check_range(where, "targets", answers, task.num_classes)
    if task.input_dtype == torch.int64:
        check_range(where, "tokens", inputs, task.vocabulary_size)  # type: ignore[attr-defined]  # as all of tokens
    return answers.numel()


def check_tensor(where: str, name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """A tensor has the shape and dtype that the task needs."""
    found = f"{list(tensor.shape)} of {tensor.dtype}"
    needed = f"{list(shape)} of {dtype}"
    said = f"{where} has {name} of {found}: the task needs {needed}"
    expect(found == needed, said.replace("torch.", ""))


def check_padding(where: str, mask: Tensor) -> None:
    """Padding stands after the text, and no text is empty."""
    is_empty = not mask[:, 0].all()
    has_gap = bool((mask[:, 1:] & ~mask[:, :-1]).any())
    cure = "pad after the text, leave out empty ones"
    expect(not is_empty and not has_gap, f"{where} has a row that begins with padding: {cure}")


def check_range(where: str, name: str, values: Tensor, count: int) -> None:
    """Values are numbers from 0 to below a count."""
    low, high = int(values.min()), int(values.max())
    found = f"{where} has {name} from {low} to {high}"
    expect(low >= 0 and high < count, f"{found}: the task has {count}, so they go from 0 to {count - 1}")


def batches_fit(part: DataPart) -> str:
    """Shapes, types and ranges are the task's in training and in whole splits; a limit gives no more batches."""
    data = part.data
    for step in range(min(data.steps_per_epoch or STEPS, MOST_STEPS)):
        check_batch(f"train_batch({step})", data.train_batch(step), data)
    asked: list[tuple[Split, int | None]] = [("val", 1), ("val", 3), ("train", 2), ("val", None)]
    if data.has_test:
        asked.insert(0, ("test", None))
    for split, limit in asked:
        where = f"eval_batches({split!r}, {limit})"
        sizes = [check_batch(where, batch, data) for batch in data.eval_batches(split, limit)]
        said = f"{where}: {len(sizes):,} batches, {sum(sizes):,} predictions"
        expect(0 < len(sizes) <= (limit or len(sizes)), said)
    return said


def hashes(batches: Iterable[Batch]) -> list[int]:
    """Return a number for each example of the batches; padding does not count."""
    found = []
    for batch in batches:
        for row, targets in enumerate(batch.targets):
            inputs = batch.inputs[row]
            if batch.mask is not None:
                inputs = inputs[batch.mask[row]]
            content = np.asarray(inputs).tobytes() + np.asarray(real(targets)).tobytes()
            found.append(hash(content))
    return found


def real(targets: Tensor) -> Tensor:
    """Return the targets of an example without padding."""
    return targets[targets != PADDING]


def covers_once(part: DataPart) -> str:
    """Windows of a text stand side by side; else no example comes twice, but for the few that a real set repeats."""
    seen = Counter(hashes(part.data.eval_batches("val")))
    total = seen.total()
    repeated = total - len(seen)
    figure = f"{total:,} examples, {repeated:,} of them equal to others"
    if part.data.task.causal and are_side_by_side(part.data):
        return f"{figure}; each begins where the one before ends"
    return expect(repeated <= 0.01 * total, figure)


def are_side_by_side(data: Data) -> bool:
    """Tell whether each window of a text begins where the one before ends."""
    starts, ends = [], []
    for batch in data.eval_batches("val"):
        starts.append(batch.inputs[:, 0].clone())
        ends.append(batch.targets[:, -1].clone())
    return torch.equal(torch.cat(starts)[1:], torch.cat(ends)[:-1])


def evaluation_repeats(part: DataPart) -> str:
    """The same examples in the same order, whole and in part, whatever the seed; the fingerprint is of a run's name."""
    other = part.make(seed=1)
    for limit in (None, 2):
        torch.manual_seed(12345)
        first = hashes(part.data.eval_batches("val", limit))
        again = hashes(other.eval_batches("val", limit))
        expect(first == again, f"eval_batches('val', {limit}) gives others with another seed: take the split in order")
    expect(part.data.fingerprint == other.fingerprint, f"{part.data.fingerprint} becomes {other.fingerprint}")
    return f"fingerprint {other.fingerprint[:12]}"


def trains(part: DataPart) -> str:
    """A small model takes a few steps on the first batches."""
    context = getattr(part.data.task, "context", None)  # of text
    is_translation = part.data.train_batch(0).previous is not None
    if context is None:
        words = trials.MLP
    elif is_translation:
        words = f"{trials.SEQ2SEQ} model.context={context}"
    else:
        words = f"{trials.TRANSFORMER} model.context={context}"
    losses = trials.train(trials.read_words(words), part.data, steps=4)
    network = words.split()[0]
    return f"{network}, loss {losses[0]:.4g} to {losses[-1]:.4g} in 4 steps of {trials.LEARNING_RATE}"
