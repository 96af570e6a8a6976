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
MOST_REPEATED = 0.01  # of all examples: equal to others


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
        in_first = {0, 1, epoch // 2, epoch - 1}
        later = {epoch, 2 * epoch - 1, 7 * epoch + 3}
        return sorted(in_first | later)

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
    expected = dict[int, list[int]]()

    def ask_forwards() -> None:
        for step in part.steps:
            expected[step] = hash_examples([part.data.train_batch(step)])

    drawn = drawn_by(ask_forwards)
    cure = "draw from a torch.Generator that seed and step decide, and leave the data as they are"
    expect(not drawn, f"draws from {drawn}, or seeds it: {cure}")
    for other in (part.data, part.make()):
        for step in reversed(part.steps):
            again = hash_examples([other.train_batch(step)])
            expect(again == expected[step], f"step {step} gives another batch: {cure}")
    steps = ", ".join(f"{step:,}" for step in part.steps)
    return f"steps {steps}"


def seed_matters(part: DataPart) -> Fact:
    """Runs of several seeds differ in their batches too."""
    first = hash_examples([part.data.train_batch(0)])
    other = hash_examples([part.make(seed=1).train_batch(0)])
    return Fact(first != other)


# ---- what a batch holds


def check_batch(where: str, batch: Batch, data: Data) -> int:
    """Shapes, types and values of a batch are what the task says; return the number of its predictions."""
    task = data.task
    has_mask = batch.mask is not None
    word = "a" if has_mask else "no"
    expect(has_mask == data.pads, f"{where} has {word} mask, and pads={data.pads}")
    input_shape, target_shape = task.shapes(batch)
    if has_mask:
        expect(task.may_pad, f"{where} has a mask: padding would count in the loss, cut the text into windows")
    check_tensor(where, "inputs", batch.inputs, input_shape, task.input_dtype)
    check_tensor(where, "targets", batch.targets, target_shape, torch.int64)
    if batch.mask is not None:
        check_tensor(where, "mask", batch.mask, input_shape, torch.bool)
        check_padding(where, batch.mask)
    are_finite = bool(batch.inputs.isfinite().all())
    expect(are_finite, f"{where} has inputs that are not finite: fix those examples or leave them out")
    answers = batch.targets if batch.previous is None else real(batch.targets)
    check_range(where, "targets", answers, task.num_classes)
    if task.input_dtype == torch.int64:
        check_range(where, "tokens", batch.inputs, task.vocabulary_size)  # type: ignore[attr-defined]  # as all of tokens
    return answers.numel()


def check_tensor(where: str, name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """A tensor has the shape and dtype that the task needs."""
    given = f"{list(tensor.shape)} of {tensor.dtype}"
    needed = f"{list(shape)} of {dtype}"
    complaint = f"{where} has {name} of {given}: the task needs {needed}"
    expect(given == needed, complaint.replace("torch.", ""))


def check_padding(where: str, mask: Tensor) -> None:
    """Padding stands after the text, and no text is empty."""
    has_empty = not mask[:, 0].all()
    before = mask[:, :-1]
    after = mask[:, 1:]
    has_gap = bool((after & ~before).any())
    cure = "pad after the text, leave out empty ones"
    expect(not has_empty and not has_gap, f"{where} has a row that begins with padding: {cure}")


def check_range(where: str, name: str, values: Tensor, count: int) -> None:
    """Values are numbers from 0 to below a count."""
    low, high = int(values.min()), int(values.max())
    what = f"{where} has {name} from {low} to {high}"
    expect(low >= 0 and high < count, f"{what}: the task has {count}, so they go from 0 to {count - 1}")


def real(targets: Tensor) -> Tensor:
    """Return the targets of an example without padding."""
    return targets[targets != PADDING]


def hash_examples(batches: Iterable[Batch]) -> list[int]:
    """Return a number for each example of the batches; padding does not count."""
    hashes = []
    for batch in batches:
        for row, targets in enumerate(batch.targets):
            inputs = batch.inputs[row]
            if batch.mask is not None:
                inputs = inputs[batch.mask[row]]
            question = np.asarray(inputs).tobytes()
            answer = np.asarray(real(targets)).tobytes()
            hashes.append(hash(question + answer))
    return hashes


# ---- whole splits


def batches_fit(part: DataPart) -> str:
    """Shapes, types and ranges are the task's in training and in whole splits; a limit gives no more batches."""
    data = part.data
    steps = min(data.steps_per_epoch or STEPS, MOST_STEPS)
    for step in range(steps):
        check_batch(f"train_batch({step})", data.train_batch(step), data)
    if data.has_test:
        check_split(data, "test", None)
    check_split(data, "val", 1)
    check_split(data, "val", 3)
    check_split(data, "train", 2)
    return check_split(data, "val", None)


def check_split(data: Data, split: Split, limit: int | None) -> str:
    """The batches of a split, or its first ones, fit the task; return how many they are."""
    where = f"eval_batches({split!r}, {limit})"
    predictions = [check_batch(where, batch, data) for batch in data.eval_batches(split, limit)]
    count = len(predictions)
    figure = f"{where}: {count:,} batches, {sum(predictions):,} predictions"
    is_within_limit = limit is None or count <= limit
    return expect(count > 0 and is_within_limit, figure)


def covers_once(part: DataPart) -> str:
    """Windows of a text stand side by side; else no example comes twice, but for the few that a real set repeats."""
    examples = Counter(hash_examples(part.data.eval_batches("val")))
    total = examples.total()
    repeated = total - len(examples)
    figure = f"{total:,} examples, {repeated:,} of them equal to others"
    if part.data.task.causal and are_side_by_side(part.data):
        return f"{figure}; each begins where the one before ends"
    return expect(repeated <= MOST_REPEATED * total, figure)


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
        torch.default_generator.manual_seed(12345)
        first = hash_examples(part.data.eval_batches("val", limit))
        again = hash_examples(other.eval_batches("val", limit))
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
