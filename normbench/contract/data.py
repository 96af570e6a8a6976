"""The contract of data: batches that seed and step alone decide, values in range, an evaluation of every example."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from normbench.contract import trials
from normbench.contract.checks import Check, Fact, NotApplicable, Part, drawn_by, expect
from normbench.types import Batch, Data, Split

SEED = 0
MOST_BATCHES = 100  # of training that are looked at
REPEATED = 0.01  # share of equal examples that a real set may have


class DataPart(Part):
    """Data, as a run makes them."""

    section = "data"

    def make(self, seed: int = SEED) -> Data:
        """Return the data under a seed."""
        made: Data = self.factory()(seed=seed)
        return made

    @cached_property
    def data(self) -> Data:
        """The data under the first seed."""
        return self.make()

    @property
    def steps(self) -> list[int]:
        """Steps at the ends of the first epochs, and far away."""
        epoch = self.data.steps_per_epoch
        return sorted({0, 1, epoch // 2, epoch - 1, epoch, 2 * epoch - 1, 7 * epoch + 3})

    def contract(self) -> dict[str, Check]:
        """Return the checks of data by name."""
        return {
            "constructor and first batches": is_made,
            "seed and step decide a batch": batches_are_pure,
            "another seed, other batches": seed_matters,
            "no global random numbers": draws_nothing,
            "training batches fit the task": training_fits,
            "evaluation batches fit the task": partial(evaluation_fits, split="val"),
            "evaluation covers each example once": covers_once,
            "evaluation is the same each time": evaluation_repeats,
            "evaluation keeps to a limit": keeps_to_limit,
            "training data can be evaluated": partial(evaluation_fits, split="train", limit=2),
            "test split": test_fits,
            "masks": padding_is_behind,
            "fingerprint is the same each time": fingerprint_repeats,
            "a small model trains": trains,
        }


def is_made(part: DataPart) -> str:
    """They say what they are, in words and numbers that JSON can hold."""
    data = part.data
    expect(data.task.kind == data.kind, f"kind={data.kind} and task.kind={data.task.kind}: make them the same")
    json.dumps(data.describe())
    check_batch("train_batch(0)", data.train_batch(0), data)
    return f"{data.task.kind}, {data.task.num_classes} classes or tokens, {data.steps_per_epoch:,} steps an epoch"


def same(one: Batch, other: Batch) -> bool:
    """Tell whether two batches hold the same values."""
    pairs: Any = zip(one, other, strict=True)
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def batches_are_pure(part: DataPart) -> str:
    """Asked for backwards, of other data made with the same seed, batches are the same: a run can go on anywhere."""
    expected = {step: part.data.train_batch(step).map(torch.clone) for step in part.steps}
    torch.manual_seed(12345)  # other global random numbers than those that `part.data` met
    for other in (part.data, part.make()):
        for step in reversed(part.steps):
            cure = "draw from a torch.Generator that seed and step decide, and leave the data as they are"
            expect(same(expected[step], other.train_batch(step)), f"step {step} gives another batch: {cure}")
    return f"steps {', '.join(f'{step:,}' for step in part.steps)}"


def seed_matters(part: DataPart) -> Fact:
    """Runs of several seeds differ in their batches too."""
    return Fact(not same(part.data.train_batch(0).map(torch.clone), part.make(SEED + 1).train_batch(0)))


def draws_nothing(part: DataPart) -> None:
    """The dropout of a step is seeded before its batch is asked for."""
    drawn = drawn_by(lambda: [part.data.train_batch(step) for step in part.steps])
    expect(not drawn, f"draws from {drawn}, or seeds it: dropout masks change with that, use a torch.Generator")


def check_batch(where: str, batch: Batch, data: Data) -> None:
    """Shapes, types and values of a batch are what the task says."""
    task, (inputs, targets, mask) = data.task, batch
    input_shape, target_shape = task.shapes(inputs)
    tensors = {"inputs": (inputs, input_shape, task.input_dtype), "targets": (targets, target_shape, torch.int64)}
    expect((mask is not None) == data.pads, f"{where} has {'no' if mask is None else 'a'} mask, and pads={data.pads}")
    if mask is not None:
        tensors["mask"] = mask, input_shape, torch.bool
        expect(bool(mask.any(dim=1).all()), f"{where} has a row that is all padding: leave out empty texts")
    for name, (tensor, shape, dtype) in tensors.items():
        found, needed = f"{list(tensor.shape)} of {tensor.dtype}", f"{list(shape)} of {dtype}"
        expect(found == needed, f"{where} has {name} of {found}: the task needs {needed}".replace("torch.", ""))
    limits = {"targets": (targets, task.num_classes)}
    if task.input_dtype == torch.int64:
        limits["tokens"] = inputs, task.vocabulary_size  # type: ignore[attr-defined]  # as all of tokens
    expect(bool(inputs.isfinite().all()), f"{where} has inputs that are not finite: mend or leave out those examples")
    for name, (tensor, count) in limits.items():
        low, high = int(tensor.min()), int(tensor.max())
        said = f"{where} has {name} from {low} to {high}: the task has {count}"
        expect(low >= 0 and high < count, f"{said}, so they go from 0 to {count - 1}")


def training_fits(part: DataPart) -> str:
    """Shapes, types and ranges of the first batches are the task's."""
    targets: set[int] = set()
    count = min(part.data.steps_per_epoch, MOST_BATCHES)
    for step in range(count):
        batch = part.data.train_batch(step)
        check_batch(f"train_batch({step})", batch, part.data)
        targets.update(batch.targets.flatten().tolist())
    return f"{count:,} batches, {len(targets):,} of {part.data.task.num_classes:,} targets occur"


def evaluation_fits(part: DataPart, split: Split, limit: int | None = None) -> str:
    """Shapes, types and ranges of a whole split are the task's."""
    count = predictions = 0
    for batch in part.data.eval_batches(split, limit):
        check_batch(f"eval_batches({split!r})", batch, part.data)
        count, predictions = count + 1, predictions + batch.targets.numel()
    return expect(0 < count <= (limit or count), f"{count:,} batches, {predictions:,} predictions")


def test_fits(part: DataPart) -> str:
    """What judges once, at the end."""
    if not part.data.has_test:
        raise NotApplicable("it has none (has_test=False)")
    return evaluation_fits(part, "test")


def hashes(batches: Iterable[Batch]) -> list[int]:
    """Return a number for each example of the batches; padding does not count."""
    rows = ((batch, row) for batch in batches for row in range(len(batch.inputs)))
    shown = ((b.inputs[row] if b.mask is None else b.inputs[row][b.mask[row]], b.targets[row]) for b, row in rows)
    return [hash(np.asarray(inputs).tobytes() + np.asarray(targets).tobytes()) for inputs, targets in shown]


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
    return expect(repeated <= REPEATED * total, figure)


def evaluation_repeats(part: DataPart) -> None:
    """The same examples in the same order, whole and in part, whatever the seed."""
    for limit in (None, 2):
        torch.manual_seed(12345)
        first, again = (hashes(data.eval_batches("val", limit)) for data in (part.data, part.make(SEED + 1)))
        cure = "gives others with another seed: take the split in order"
        expect(first == again, f"eval_batches('val', {limit}) {cure}")


def keeps_to_limit(part: DataPart) -> str:
    """So many batches at most, of examples of the split, evenly spread."""
    counts = {limit: sum(1 for _ in part.data.eval_batches("val", limit)) for limit in (1, 3)}
    within = all(0 < count <= limit for limit, count in counts.items())
    return expect(within, ", ".join(f"limit {limit}: {count}" for limit, count in counts.items()))


def padding_is_behind(part: DataPart) -> str:
    """Padding stands behind the text, and in no text whose every token is predicted."""
    if not part.data.pads:
        raise NotApplicable("nothing is padded (pads=False)")
    expect(not part.data.task.causal, "padding would count in the loss: cut the text into windows without it")
    batches = [part.data.train_batch(step) for step in part.steps] + list(part.data.eval_batches("val", 3))
    masks = [batch.mask for batch in batches if batch.mask is not None]
    in_front = any((mask[:, 1:] & ~mask[:, :-1]).any() for mask in masks)
    expect(not in_front, "a row has padding in front of tokens: pad behind the text")
    real, total = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    return f"{1 - real / total:.1%} of the places are padding"


def fingerprint_repeats(part: DataPart) -> str:
    """It is part of a run's name; the seed is too, apart."""
    first, second = part.data.fingerprint, part.make(SEED + 1).fingerprint
    return expect(first == second, first[:12] if first == second else f"{first[:12]} becomes {second[:12]}")


def trains(part: DataPart) -> str:
    """A small model takes a few steps on the first batch."""
    context = getattr(part.data.task, "context", None)  # of text
    words = trials.MLP if context is None else f"{trials.TRANSFORMER} model.context={context}"
    losses = trials.train(trials.composed(words), part.data, steps=4)
    return f"{words.split()[0]}, loss {losses[0]:.4g} to {losses[-1]:.4g} in 4 steps of {trials.LEARNING_RATE}"
