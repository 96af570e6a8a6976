"""Data that do not fit in memory, or take too long to fetch: Parquet files that are read while a run trains."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter
from threading import Thread
from typing import Any

import torch

from normbench.data.batches import ContentData, generator
from normbench.data.cache import Content, decoded
from normbench.data.hub import Hub, check_text, classes_of, labels_of, opened, reason
from normbench.data.images import Images, decode, image_arrays
from normbench.data.text import Text, joined
from normbench.data.vocabulary import LEVELS
from normbench.errors import RunFailure, UsageError
from normbench.types import Batch, Split

Rows = list[dict[str, Any]]

# What a block holds at the most, however long its rows are: 1,000 photographs have about 105 MiB.
MOST_BYTES = 512 * 2**20

TOGETHER = 8  # rows that are read at a time, which may be long

Place = tuple[int, int, int, int]  # a pass over the data, the turns of a file and of a row group in it, and a row


class Stream:
    """The rows of the split `train`, in blocks, over and over; the first ones of it, or of another split, judge.

    Each pass takes files and their row groups in another order. A row group is what can be read of a Parquet file by
    itself, so that any block is read in about its own time.

    Args:
        hub: where the rows are. columns: of them that are read.
        val_splits: that validate; none: the first `kept` rows of `train` do, and nothing trains on them.
        kept: rows that judge, and as many of those that train, of which vocabulary and scaling are learned.
        holdout: share of a block (< 1), or number of further rows of `train` that judge in place of the others.
        size: rows of a block, or fewer where these are more than MOST_BYTES.
    """

    def __init__(
        self, hub: Hub, columns: list[str], val_splits: Sequence[str], kept: int, holdout: float, size: int
    ) -> None:
        self.hub, self.columns, self.kept, self.size = hub, columns, kept, size
        self.features, files = hub.files(["train", *val_splits], columns)
        self.files, self.val = files.pop("train"), [*chain(*files.values())]
        self.judging = 0 if self.val else kept
        self.held = self.judging + (round(holdout * size) if holdout < 1 else int(holdout))
        self.open = lru_cache(1)(opened)
        # Where the last block has ended, and what comes there: a block that follows goes on with it.
        self.begun: dict[tuple[int, int, int], Iterator[tuple[dict[str, Any], int]]] = {}

    def content(self, name: str, key: list[Any], load: Callable[[dict[Split, Rows]], Any]) -> Content:
        """Return what `load` makes of the rows that stay in memory, and note of how many each file is deprived."""
        names = [file.partition(self.hub.hub_id)[2] for file in (*self.files, *self.val)]
        stats = [os.stat(file) for file in (*self.files, *self.val) if self.hub.root]
        known = [self.hub.hub_id, self.hub.revision, names, [[stat.st_size, stat.st_mtime_ns] for stat in stats]]
        key = [*known, self.columns, self.kept, self.judging, self.held, *key]

        def loaded() -> Any:
            rows, held = self.first()
            arrays, facts = load(rows)
            return arrays, {**facts, "held": held}

        content = decoded(name, "stream", key, loaded, hub_id=self.hub.hub_id)
        self.held_of = content.facts["held"]
        # Without the commit that `main` is today: a later one may have the same files.
        told = [content.fingerprint, [name.partition("/")[2] for name in names]]
        return replace(content, fingerprint=hashlib.sha256(json.dumps(told).encode()).hexdigest())

    def first(self) -> tuple[dict[Split, Rows], list[int]]:
        """Return the rows that stay in memory, and how many at the beginning of each file nothing trains on."""
        with self.hub.reading():
            found = [*islice(stored(self.files, self.columns), self.held + self.kept)]
            if len(found) <= self.held:
                raise ValueError(f"it has {len(found):,} rows for data.holdout and data.kept, and none to train on")
            rows = [row for _, row in found]
            val = rows[self.judging : self.held] or rows[: self.held]
            val = val or [row for _, row in islice(stored(self.val, self.columns), self.kept)]
        counts = Counter(file for file, _ in found[: self.held])
        return {"train": rows[self.held :], "val": val}, [counts[file] for file in range(len(self.files))]

    def block(self, place: Place, seed: int) -> tuple[Rows, Place]:
        """Return the rows from a place on, in the orders of a seed, and the place behind them.

        A row that a block has more than once, as of data that are shorter, is in memory once.
        """
        rows, known, left = list[dict[str, Any]](), dict[tuple[int, int, int], dict[str, Any]](), MOST_BYTES
        while len(rows) < self.size and left > 0:
            epoch, turn, group, row = place
            if turn == len(self.files):
                place = epoch + 1, 0, 0, 0
                continue
            file = int(torch.randperm(len(self.files), generator=generator(seed, "files", epoch))[turn])
            about = self.open(self.files[file]).metadata
            if group == about.num_row_groups:
                place = epoch, turn + 1, 0, 0
                continue
            order = torch.randperm(about.num_row_groups, generator=generator(seed, f"groups of {file}", epoch))
            index = int(order[group])
            row = max(row, self.held_of[file] - sum(about.row_group(each).num_rows for each in range(index)))
            coming = self.begun.pop((file, index, row), None) or self.coming(self.files[file], index, row)
            for values, size in coming:
                rows.append(known.setdefault((file, index, row), values))
                row, left = row + 1, left - size
                if len(rows) == self.size or left <= 0:
                    break
            self.begun = {(file, index, row): coming}
            place = (epoch, turn, group, row) if row < about.row_group(index).num_rows else (epoch, turn, group + 1, 0)
        return rows, place

    def coming(self, file: str, group: int, row: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the rows of a row group from one on, each with its bytes; a few are in memory at a time."""
        for batch in self.open(file).iter_batches(TOGETHER, row_groups=[group], columns=self.columns):
            for index in range(row, batch.num_rows):
                one = batch.slice(index, 1)
                yield one.to_pylist()[0], one.nbytes
            row = max(0, row - batch.num_rows)


def stored(files: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield all rows in their own order, each with the index of its file."""
    for index, file in enumerate(files):
        for batch in opened(file).iter_batches(TOGETHER, columns=columns):
            yield from ((index, row) for row in batch.to_pylist())


class Streamed(ContentData):
    """Data whose training batches come from a stream; what its content holds stays in memory and judges.

    Each block is permuted by (seed, its number), and its last, incomplete batch is left out. So a batch is a function
    of seed and step alone; the places where blocks begin, which a checkpoint keeps, only make it quick to find.
    """

    stream: Stream
    examples_of: Callable[[Rows], tuple[Any, int]]  # what batches are made of, and how many examples that is
    picked: Callable[[Any, Any, int], Batch]

    def arrange(self, total: int, what: str) -> None:
        """Begin with the first block; how many steps a pass has is not known."""
        self.total, self.steps_per_epoch = total, 0
        self.starts: list[tuple[int, Place]] = [(0, (0, 0, 0, 0))]  # the first step of each block, and its place
        self.number = -1
        self.ahead: tuple[int, Future[tuple[Any, int, Place]]] = -1, Future()

    def train_batch(self, step: int) -> Batch:
        """Return the batch of a step; the block behind the step's own is read in the meantime."""
        if self.number < 0 or step < self.starts[self.number][0]:
            self.enter(bisect_right(self.starts, step, key=itemgetter(0)) - 1)
        while step >= self.starts[self.number + 1][0]:
            self.enter(self.number + 1)
        place = (step - self.starts[self.number][0]) * self.batch_size
        return self.picked(self.block, self.turns[place : place + self.batch_size], step)

    def enter(self, number: int) -> None:
        """Make a block, whose start is known, the one that batches are taken of.

        Raises:
            RunFailure: it cannot be read.
            UsageError: it has not one batch.
        """
        first, place = self.starts[number]
        if self.ahead[0] != number:
            self.ahead = number, self.reading(place)
        try:
            self.block, count, behind = self.ahead[1].result()
        except UsageError:
            raise
        except Exception as fault:  # as in Hub.reading
            cure = "the same command goes on from the checkpoint"
            raise RunFailure(f"{self.content.name} cannot be read on ({reason(fault):.250}): {cure}") from fault
        if count < self.batch_size:
            cure = f"raise data.buffer={self.stream.size:,} or lower data.batch_size={self.batch_size:,}"
            raise UsageError(f"a block of {self.content.name} has {count:,} examples, less than a batch: {cure}")
        self.turns = torch.randperm(count, generator=generator(self.seed, "block", number))
        following = (first + count // self.batch_size, behind)
        if self.starts[number + 1 :] and self.starts[number + 1][0] != following[0]:
            cure = "start over with rerun=true, or go on with the version of normbench and the data it began with"
            raise UsageError(f"a block of {self.content.name} is not the one that this run's checkpoint knows: {cure}")
        self.starts[number + 1 :] = self.starts[number + 1 :] or [following]
        self.number, self.ahead = number, (number + 1, self.reading(behind))

    def reading(self, place: Place) -> Future[tuple[Any, int, Place]]:
        """Begin to read a block: what is in it, how many examples these are, and the place behind it.

        By a daemon, which nobody waits for at the end of a run: a block of the hub may take minutes.
        """
        found: Future[tuple[Any, int, Place]] = Future()

        def read() -> None:
            try:
                rows, behind = self.stream.block(place, self.seed)
                found.set_result((*self.examples_of(rows), behind))
            except BaseException as fault:  # which `result` raises
                found.set_exception(fault)

        Thread(target=read, daemon=True).start()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what finds a batch quickly again."""
        return {"starts": self.starts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self.starts, self.number = [*state["starts"]], -1

    def describe(self) -> dict[str, Any]:
        """Return what the data are; `kept` training examples are in memory, and how many there are is not known."""
        found = super().describe()
        found["kept"] = found.pop(f"train_{self.unit}")
        told = "of the kept examples and the files' names: the stream itself is not hashed"
        return {**found, "files": len(self.stream.files), "fingerprint_is": told}


class StreamedText(Streamed, Text):
    """A language model's data from a stream of texts: each block is cut into windows side by side."""

    text_of: Callable[[Rows], str]

    def examples_of(self, rows: Rows) -> tuple[Any, int]:
        """Return the tokens of a block, and how many windows they are."""
        tokens = self.vocabulary.encode(self.text_of(rows))
        return tokens, (len(tokens) - 1) // self.context

    def picked(self, block: Any, order: Any, step: int) -> Batch:
        """Return windows of a block."""
        return self.windows(block, order.numpy() * self.context, self.context)


class StreamedImages(Streamed, Images):
    """A classifier's images from a stream, which are decoded in each step, by as many threads as torch has."""

    decoded: Callable[[Rows, Any], tuple[Any, Any]]

    def examples_of(self, rows: Rows) -> tuple[Any, int]:
        """Return the rows, as they are stored."""
        return rows, len(rows)

    def picked(self, block: Any, order: Any, step: int) -> Batch:
        """Return images of a block."""
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            pixels, labels = self.decoded([block[index] for index in order], threads.map)
        channels = self.task.image_shape[0]  # more than one, where images are grey that are all of a batch
        images = torch.from_numpy(pixels).expand(-1, channels, -1, -1)
        return self.scaled(images, torch.from_numpy(labels), step)


def streamed_text(
    name: str, stream: Stream, level: str, vocabulary_size: int | None, lines: bool, **options: Any
) -> StreamedText:
    """Return a text of the hub that is read while a run trains.

    Raises:
        UsageError: its tokens are not known beforehand.
    """
    if not LEVELS[level].total:
        allowed = ", ".join(name for name, kind in LEVELS.items() if kind.total)
        raise UsageError(f"data.level={level} needs all of a text, and a stream shows a part: use one of {allowed}")

    def text_of(rows: Rows) -> str:
        (column,) = stream.columns
        check_text(column, texts := [row[column] for row in rows])
        return joined(texts, lines)

    def load(rows: dict[Split, Rows]) -> Any:
        vocabulary = LEVELS[level].learn([text_of(rows["train"])], vocabulary_size)
        return {split: vocabulary.encode(text_of(some)) for split, some in rows.items()}, vocabulary.facts

    data = StreamedText(stream.content(name, [level, vocabulary_size, lines], load), **options)
    data.stream, data.text_of = stream, text_of
    return data


def streamed_images(name: str, stream: Stream, size: int | None, **options: Any) -> StreamedImages:
    """Return labelled images of the hub that are read while a run trains."""
    (image, label), where = stream.columns, stream.hub.hub_id
    classes = classes_of(stream.features, label, where)

    def pixels_of(rows: Rows, every: Any = map) -> tuple[Any, Any]:
        labels, _ = labels_of([row[label] for row in rows], classes, where)
        return decode([(f"row {number}", row[image]) for number, row in enumerate(rows)], where, size, every), labels

    def load(rows: dict[Split, Rows]) -> Any:
        pixels, labels = pixels_of([*chain(*rows.values())])
        return image_arrays(pixels, labels, {split: len(some) for split, some in rows.items()}, classes)

    data = StreamedImages(stream.content(name, [size], load), **options)
    data.stream, data.decoded = stream, pixels_of
    return data
