"""The contract of data: batches that seed and step alone decide, values in range, an evaluation of every example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

import numpy as np
import torch

from normbench import assembly
from normbench.checking.matrix import LEARNING_RATE, MLP, TRANSFORMER, composed, train
from normbench.checking.outcomes import Check, Outcome, failed, judged, measured, not_applicable, passed
from normbench.checking.randomness import draws_of
from normbench.config import Tree
from normbench.contracts import check_batch, same
from normbench.types import Batch, Data, Split

SEED = 0
MOST_BATCHES = 100  # of training that are looked at
REPEATED = 0.01  # share of equal examples that a real set may have


@dataclass(frozen=True)
class DataPart:
    """Data and their settings."""

    tree: Tree

    def make(self, seed: int = SEED) -> Data:
        """The data as a run makes them."""
        made: Data = assembly.factory(self.tree, "data")(seed=seed)
        return made

    @cached_property
    def data(self) -> Data:
        return self.make()

    @property
    def name(self) -> str:
        return f"data._target_={self.tree['data']['_target_']}"

    @property
    def steps(self) -> list[int]:
        """Steps at the ends of the first epochs, and far away."""
        epoch = self.data.steps_per_epoch
        return sorted({0, 1, epoch // 2, epoch - 1, epoch, 2 * epoch - 1, 7 * epoch + 3})


def contract(part: DataPart) -> Iterator[Check]:
    """The checks of what all data must do."""
    yield Check("constructor and first batches", partial(construct, part), decisive=True)
    yield Check("seed and step decide a batch", partial(batches_are_pure, part))
    yield Check("another seed, other batches", partial(seed_matters, part))
    yield Check("no global random numbers", partial(draws_nothing, part))
    yield Check("training batches fit the task", partial(training_fits, part))
    yield Check("evaluation batches fit the task", partial(evaluation_fits, part, "val"))
    yield Check("evaluation covers each example once", partial(covers_once, part))
    yield Check("evaluation is the same each time", partial(evaluation_repeats, part))
    yield Check("evaluation keeps to a limit", partial(limit_holds, part))
    yield Check("training data can be evaluated", partial(train_split_fits, part))
    yield Check("test split", partial(test_fits, part))
    yield Check("masks", partial(masks_fit, part))
    yield Check("fingerprint is the same each time", partial(fingerprint_repeats, part))
    yield Check("a small model trains", partial(trains, part))


def construct(part: DataPart) -> Outcome:
    """Made once; what a run looks at before it begins."""
    data = part.data
    return passed(
        f"{data.task.kind}, {data.task.num_classes} classes or tokens, {data.steps_per_epoch:,} steps an epoch"
    )


def batches_are_pure(part: DataPart) -> Outcome:
    """Asked for backwards, of other data made with the same seed: a run can go on anywhere."""
    steps = part.steps
    expected = {step: part.data.train_batch(step).map(torch.clone) for step in steps}
    torch.manual_seed(12345)  # other global random numbers than those that `part.data` met
    other = part.make()
    different = [step for step in reversed(steps) if not same(expected[step], other.train_batch(step))]
    if different:
        return failed(f"step {different[-1]} gives another batch: draw from a generator that seed and step decide")
    return passed(f"steps {', '.join(f'{step:,}' for step in steps)}")


def seed_matters(part: DataPart) -> Outcome:
    """Runs of several seeds differ in their batches too."""
    return measured(not same(part.data.train_batch(0).map(torch.clone), part.make(SEED + 1).train_batch(0)))


def draws_nothing(part: DataPart) -> Outcome:
    """The dropout of a step is seeded before its batch is asked for."""
    _, draws = draws_of(lambda: [part.data.train_batch(step) for step in part.steps])
    cure = f"draws from {draws}, or seeds it: dropout masks change with that, use a torch.Generator"
    return judged(not draws, cure if draws else "")


def training_fits(part: DataPart) -> Outcome:
    """Shapes, types and ranges of the first batches."""
    count = min(part.data.steps_per_epoch, MOST_BATCHES)
    targets: Counter[int] = Counter()
    for step in range(count):
        batch = part.data.train_batch(step)
        check_batch(f"{part.name}: train_batch({step})", batch, part.data)
        targets.update(batch.targets.flatten().tolist())
    return passed(f"{count:,} batches, {len(targets):,} of {part.data.task.num_classes:,} targets occur")


def evaluation_fits(part: DataPart, split: Split) -> Outcome:
    """Shapes, types and ranges of a whole split."""
    predictions = count = 0
    for batch in part.data.eval_batches(split):
        check_batch(f"{part.name}: eval_batches({split!r})", batch, part.data)
        predictions += batch.targets.numel()
        count += 1
    return judged(count > 0, f"{count:,} batches, {predictions:,} predictions")


def examples(batches: Iterator[Batch]) -> Iterator[bytes]:
    """Each example of the batches, as bytes; padding does not count."""
    for inputs, targets, mask in batches:
        for row in range(len(inputs)):
            shown = inputs[row] if mask is None else inputs[row][mask[row]]
            yield np.asarray(shown).tobytes() + np.asarray(targets[row]).tobytes()


def covers_once(part: DataPart) -> Outcome:
    """Windows of a text stand side by side; else no example comes twice, but for the few that a real set repeats."""
    seen = Counter(hash(example) for example in examples(part.data.eval_batches("val")))
    total, repeated = seen.total(), seen.total() - len(seen)
    figure = f"{total:,} examples, {repeated:,} of them equal to others"
    if part.data.task.causal and side_by_side(part.data.eval_batches("val")):
        return passed(f"{figure}; each begins where the one before ends")
    return judged(repeated <= REPEATED * total, figure)


def side_by_side(batches: Iterator[Batch]) -> bool:
    """Whether each window's first input is the last target of the one before it."""
    last = None
    for inputs, targets, _ in batches:
        ends = targets[:, -1] if last is None else torch.cat((last, targets[:, -1]))
        begins = inputs[1:, 0] if last is None else inputs[:, 0]
        if not torch.equal(begins, ends[:-1]):
            return False
        last = ends[-1:]
    return True


def evaluation_repeats(part: DataPart) -> Outcome:
    """The same examples in the same order, whole and in part."""
    for limit in (None, 2):
        torch.manual_seed(12345)
        first = [hash(example) for example in examples(part.data.eval_batches("val", limit))]
        if first != [hash(example) for example in examples(part.make(SEED + 1).eval_batches("val", limit))]:
            return failed(f"eval_batches('val', {limit}) gives others with another seed: take the split in order")
    return passed()


def limit_holds(part: DataPart) -> Outcome:
    """So many batches at most, of examples of the split, evenly spread."""
    counts = {limit: sum(1 for _ in part.data.eval_batches("val", limit)) for limit in (1, 3)}
    figure = ", ".join(f"limit {limit}: {count}" for limit, count in counts.items())
    return judged(all(0 < count <= limit for limit, count in counts.items()), figure)


def train_split_fits(part: DataPart) -> Outcome:
    """For `trainer.eval_train=true`."""
    batches = list(islice(part.data.eval_batches("train", 2), 3))
    for batch in batches:
        check_batch(f"{part.name}: eval_batches('train', 2)", batch, part.data)
    return judged(0 < len(batches) <= 2, f"{len(batches)} batches for a limit of 2")


def test_fits(part: DataPart) -> Outcome:
    """What judges once, at the end."""
    return evaluation_fits(part, "test") if part.data.has_test else not_applicable("it has none (has_test=False)")


def masks_fit(part: DataPart) -> Outcome:
    """Padding stands behind the text."""
    if not part.data.pads:
        return not_applicable("nothing is padded (pads=False)")
    batches = [part.data.train_batch(step) for step in part.steps] + list(part.data.eval_batches("val", 3))
    real = total = 0
    for batch in batches:
        assert batch.mask is not None  # or its batches would have been refused
        if (batch.mask[:, 1:] & ~batch.mask[:, :-1]).any():
            return failed("a row has padding in front of tokens: pad behind the text")
        real, total = real + int(batch.mask.sum()), total + batch.mask.numel()
    return passed(f"{1 - real / total:.1%} of the places are padding")


def fingerprint_repeats(part: DataPart) -> Outcome:
    """It is part of a run's name; the seed is too, apart."""
    first, second = part.data.fingerprint, part.make(SEED + 1).fingerprint
    return judged(first == second, first[:12] if first == second else f"{first[:12]} becomes {second[:12]}")


def trains(part: DataPart) -> Outcome:
    """A few steps on the first batch, and a batch of evaluation."""
    data = part.data
    context = getattr(data.task, "context", None)  # of text
    words = MLP if context is None else f"{TRANSFORMER} model.context={context}"
    losses = train(composed(words), data, steps=4)
    return passed(f"{words.split()[0]}, loss {losses[0]:.4g} to {losses[-1]:.4g} in 4 steps of {LEARNING_RATE}")
