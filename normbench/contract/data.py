"""The contract of data: batches that seed and step alone decide, values in range, an evaluation of every example."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normbench.contract import trials
from normbench.contract.checks import Check, Fact, Part, drawn_by, expect
from normbench.types import PADDING, Batch, Data, Split

STEPS = 20  # that stand for an epoch of a stream


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
    expect(data.task.kind == data.kind, f"kind={data.kind} and task.kind={data.task.kind}: make them the same")
    json.dumps(data.describe())
    check_batch("train_batch(0)", data.train_batch(0), data)
    return f"{data.task.kind}, {data.task.num_classes} classes or tokens, {data.steps_per_epoch:,} steps an epoch"


def batches_are_pure(part: DataPart) -> str:
    """Asked for backwards, of other data made with the same seed, batches are the same: a run can go on anywhere.

    The dropout of a step is seeded before its batch is asked for.
    """
    expected: dict[int, list[int]] = {}
    drawn = drawn_by(lambda: expected.update({step: hashes([part.data.train_batch(step)]) for step in part.steps}))
    cure = "draw from a torch.Generator that seed and step decide, and leave the data as they are"
    expect(not drawn, f"draws from {drawn}, or seeds it: {cure}")
    for other in (part.data, part.make()):
        for step in reversed(part.steps):
            expect(expected[step] == hashes([other.train_batch(step)]), f"step {step} gives another batch: {cure}")
    return f"steps {', '.join(f'{step:,}' for step in part.steps)}"


def seed_matters(part: DataPart) -> Fact:
    """Runs of several seeds differ in their batches too."""
    return Fact(hashes([part.data.train_batch(0)]) != hashes([part.make(seed=1).train_batch(0)]))


def check_batch(where: str, batch: Batch, data: Data) -> int:
    """Shapes, types and values of a batch are what the task says; return the number of its predictions."""
    task, (inputs, targets, mask, previous) = data.task, batch
    input_shape, target_shape = task.shapes(batch)
    expect((mask is not None) == data.pads, f"{where} has {'no' if mask is None else 'a'} mask, and pads={data.pads}")
    tensors = {"inputs": (inputs, input_shape, task.input_dtype), "targets": (targets, target_shape, torch.int64)}
    if mask is not None:
        expect(task.may_pad, f"{where} has a mask: padding would count in the loss, cut the text into windows")
        tensors["mask"] = mask, input_shape, torch.bool
        in_front = not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any()
        expect(not in_front, f"{where} has a row that begins with padding: pad behind the text, leave out empty ones")
    for name, (tensor, shape, dtype) in tensors.items():
        found, needed = f"{list(tensor.shape)} of {tensor.dtype}", f"{list(shape)} of {dtype}"
        expect(found == needed, f"{where} has {name} of {found}: the task needs {needed}".replace("torch.", ""))
    expect(
        bool(inputs.isfinite().all()), f"{where} has inputs that are not finite: fix those examples or leave them out"
    )
    answers = targets if previous is None else real(targets)
    limits = {"targets": (answers, task.num_classes)}
    if task.input_dtype == torch.int64:
        limits["tokens"] = inputs, task.vocabulary_size  # type: ignore[attr-defined]  # as all of tokens
    for name, (tensor, count) in limits.items():
        low, high = int(tensor.min()), int(tensor.max())
        found = f"{where} has {name} from {low} to {high}"
        expect(low >= 0 and high < count, f"{found}: the task has {count}, so they go from 0 to {count - 1}")
    return answers.numel()


def batches_fit(part: DataPart) -> str:
    """Shapes, types and ranges are the task's in training and in whole splits; a limit gives no more batches."""
    for step in range(min(part.data.steps_per_epoch or STEPS, 100)):
        check_batch(f"train_batch({step})", part.data.train_batch(step), part.data)
    asked: list[tuple[Split, int | None]] = [("val", 1), ("val", 3), ("train", 2), ("val", None)]
    for split, limit in (("test", None), *asked) if part.data.has_test else asked:
        where = f"eval_batches({split!r}, {limit})"
        sizes = [check_batch(where, batch, part.data) for batch in part.data.eval_batches(split, limit)]
        said = f"{where}: {len(sizes):,} batches, {sum(sizes):,} predictions"
        expect(0 < len(sizes) <= (limit or len(sizes)), said)
    return said


def hashes(batches: Iterable[Batch]) -> list[int]:
    """Return a number for each example of the batches; padding does not count."""
    rows = ((batch, row) for batch in batches for row in range(len(batch.inputs)))
    shown = ((b.inputs[row] if b.mask is None else b.inputs[row][b.mask[row]], b.targets[row]) for b, row in rows)
    return [hash(np.asarray(inputs).tobytes() + np.asarray(real(targets)).tobytes()) for inputs, targets in shown]


def real(targets: Tensor) -> Tensor:
    """Return the targets of an example without padding."""
    return targets[targets != PADDING]


def covers_once(part: DataPart) -> str:
    """Windows of a text stand side by side; else no example comes twice, but for the few that a real set repeats."""
    seen = Counter(hashes(part.data.eval_batches("val")))
    total, repeated = seen.total(), seen.total() - len(seen)
    figure = f"{total:,} examples, {repeated:,} of them equal to others"
    if part.data.task.causal:
        edges = [(batch.inputs[:, 0].clone(), batch.targets[:, -1].clone()) for batch in part.data.eval_batches("val")]
        starts, ends = map(torch.cat, zip(*edges, strict=True))
        if torch.equal(starts[1:], ends[:-1]):
            return f"{figure}; each begins where the one before ends"
    return expect(repeated <= 0.01 * total, figure)


def evaluation_repeats(part: DataPart) -> str:
    """The same examples in the same order, whole and in part, whatever the seed; the fingerprint is of a run's name."""
    other = part.make(seed=1)
    for limit in (None, 2):
        torch.manual_seed(12345)
        first, again = (hashes(data.eval_batches("val", limit)) for data in (part.data, other))
        expect(first == again, f"eval_batches('val', {limit}) gives others with another seed: take the split in order")
    expect(part.data.fingerprint == other.fingerprint, f"{part.data.fingerprint} becomes {other.fingerprint}")
    return f"fingerprint {other.fingerprint[:12]}"


def trains(part: DataPart) -> str:
    """A small model takes a few steps on the first batch."""
    context = getattr(part.data.task, "context", None)  # of text
    network = trials.TRANSFORMER if part.data.train_batch(0).previous is None else trials.SEQ2SEQ
    words = trials.MLP if context is None else f"{network} model.context={context}"
    losses = trials.train(trials.composed(words), part.data, steps=4)
    return f"{words.split()[0]}, loss {losses[0]:.4g} to {losses[-1]:.4g} in 4 steps of {trials.LEARNING_RATE}"
