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
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """Where a block begins: in which pass over the data, at which turn of the files, of the row groups, and row."""

    epoch: int = 0
    file: int = 0
    group: int = 0
    row: int = 0


class Stream:
    """The rows of Parquet files in blocks, over and over: each pass takes files and their row groups in another order.

    A row group is what can be read of a file by itself, so that any block is read in about its own time.

    Args:
        files: paths or addresses that fsspec opens. columns: of them that are read. seed: of the orders.
        size: rows of a block.
        held: of how many rows at its beginning each file, by its index, is deprived; others have them to judge.
    """

    def __init__(self, files: Sequence[str], columns: Sequence[str], seed: int, size: int, held: Sequence[int]) -> None:
        self.files, self.columns, self.seed, self.size, self.held = files, [*columns], seed, size, held
        self.open = lru_cache(1)(opened)
        self.table = lru_cache(1)(lambda file, group: self.open(self.files[file]).read_row_group(group, self.columns))

    def order(self, epoch: int, what: str, count: int) -> list[int]:
        """Return the order of files or row groups in a pass."""
        order: list[int] = torch.randperm(count, generator=generator(self.seed, f"order of {what}", epoch)).tolist()
        return order

    def block(self, place: Place) -> tuple[Rows, Place]:
        """Return the rows from a place on, and the place behind them.

        Raises:
            UsageError: all rows are held out.
        """
        rows, begun = list[dict[str, Any]](), place.epoch
        while len(rows) < self.size:
            epoch, turn, group, row = place
            if not rows and epoch > begun + 1:
                raise UsageError(f"all rows of {self.files[0]} are held out: lower data.kept and data.holdout")
            if turn == len(self.files):
                place = Place(epoch + 1)
                continue
            file = self.order(epoch, "files", len(self.files))[turn]
            about = self.open(self.files[file]).metadata
            if group == about.num_row_groups:
                place = Place(epoch, turn + 1)
                continue
            index = self.order(epoch, f"groups {file}", about.num_row_groups)[group]
            first = sum(about.row_group(before).num_rows for before in range(index))
            row = max(row, self.held[file] - first)
            found = self.table(file, index).slice(row, self.size - len(rows)).to_pylist()
            rows += found
            row += len(found)
            more = row < about.row_group(index).num_rows
            place = Place(epoch, turn, group, row) if more else Place(epoch, turn, group + 1)
        return rows, place


def stored(files: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield all rows in their own order, each with the index of its file."""
    for index, file in enumerate(files):
        for batch in opened(file).iter_batches(64, columns=[*columns]):
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
        self.starts: list[tuple[int, Place]] = [(0, Place())]  # the first step of each block, and its place
        self.number, self.reader = -1, ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[tuple[Rows, Place]]] | None = None

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
        try:
            known = self.ahead and self.ahead[0] == number
            future = self.ahead[1] if self.ahead and known else self.reader.submit(self.stream.block, place)
            rows, behind = future.result()
        except UsageError:
            raise
        except Exception as fault:  # as in Hub.reading
            cure = "the same command goes on from the checkpoint"
            raise RunFailure(f"{self.content.name} cannot be read on ({reason(fault):.250}): {cure}") from fault
        self.block, count = self.examples_of(rows)
        if count < self.batch_size:
            cure = f"raise data.buffer={self.stream.size:,} or lower data.batch_size={self.batch_size:,}"
            raise UsageError(f"a block of {self.content.name} has {count:,} examples, less than a batch: {cure}")
        self.turns = torch.randperm(count, generator=generator(self.seed, "block", number))
        self.starts[number + 1 :] = self.starts[number + 1 :] or [(first + count // self.batch_size, behind)]
        self.number, self.ahead = number, (number + 1, self.reader.submit(self.stream.block, behind))

    def state_dict(self) -> dict[str, Any]:
        """Return what finds a batch quickly again."""
        return {"starts": [(step, *place) for step, place in self.starts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self.starts, self.number = [(step, Place(*place)) for step, *place in state["starts"]], -1

    def describe(self) -> dict[str, Any]:
        """Return what the data are; `kept` training examples are in memory, and how many there are is not known."""
        found = {key: value for key, value in super().describe().items() if key != "steps_per_epoch"}
        found["kept"] = found.pop(f"train_{self.unit}")
        told = "of the kept examples and the files' names: the stream itself is not hashed"
        return {**found, "files": len(self.stream.files), "buffer": self.stream.size, "fingerprint_is": told}


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


# ---- what is kept in memory


class Kept:
    """Which rows stay in memory: the first of the split `train`, or of the one that validates, judge.

    Args:
        hub: where they are. columns: of them that are read.
        val_splits: that validate; none: the first `kept` rows of `train` do, and nothing trains on them.
        kept: rows that judge, and as many of those that train, of which vocabulary and scaling are learned.
        holdout: share of a block (< 1), or number of further rows of `train` that judge in place of the others.
        buffer: rows of a block.
    """

    def __init__(
        self, hub: Hub, columns: list[str], val_splits: Sequence[str], kept: int, holdout: float, buffer: int
    ) -> None:
        self.hub, self.columns, self.kept, self.buffer = hub, columns, kept, buffer
        self.features, files = hub.files(["train", *val_splits], columns)
        self.train, self.val = files.pop("train"), [*chain(*files.values())]
        self.judging = 0 if self.val else kept
        self.held = self.judging + (round(holdout * buffer) if holdout < 1 else int(holdout))
        self.names = [file.partition(hub.hub_id)[2] for file in (*self.train, *self.val)]
        sizes = [os.path.getsize(file) if hub.root else 0 for file in (*self.train, *self.val)]
        own = [hub.hub_id, hub.revision, hub.config, hub.folder, self.names, sizes]
        self.key = ["stream", *own, columns, kept, self.judging, self.held]

    def rows(self) -> tuple[dict[Split, Rows], list[int]]:
        """Return the rows by split, and of how many at its beginning each file of `train` is deprived."""
        with self.hub.reading():
            found = [*islice(stored(self.train, self.columns), self.held + self.kept)]
            if len(found) <= self.held:
                raise ValueError(f"it has {len(found):,} rows for data.holdout and data.kept, and none to train on")
            rows = [row for _, row in found]
            val = rows[self.judging : self.held] or rows[: self.held]
            val = val or [row for _, row in islice(stored(self.val, self.columns), self.kept)]
        counts = Counter(file for file, _ in found[: self.held])
        return {"train": rows[self.held :], "val": val}, [counts[file] for file in range(len(self.train))]

    def content(self, name: str, key: list[Any], load: Callable[[], Any]) -> Content:
        """Return what these rows decode to."""
        content = decoded(name, "stream", [*self.key, *key], load, hub_id=self.hub.hub_id)
        # Without the commit that `main` is today: a later one may have the same files.
        told = [content.fingerprint, [name.partition("/")[2] for name in self.names]]
        return replace(content, fingerprint=hashlib.sha256(json.dumps(told).encode()).hexdigest())

    def stream(self, content: Content, seed: int) -> Stream:
        """Return the stream of the other rows."""
        return Stream(self.train, self.columns, seed, self.buffer, content.facts["held"])


def streamed_text(
    name: str, kept: Kept, level: str, vocabulary_size: int | None, lines: bool, **options: Any
) -> StreamedText:
    """Return a text of the hub that is read while a run trains.

    Raises:
        UsageError: its tokens are not known beforehand.
    """
    if not LEVELS[level].total:
        allowed = ", ".join(name for name, kind in LEVELS.items() if kind.total)
        raise UsageError(f"data.level={level} needs all of a text, and a stream shows a part: use one of {allowed}")
    (column,) = kept.columns

    def text_of(rows: Rows) -> str:
        texts = [row[column] for row in rows]
        check_text(column, texts)
        return joined(texts, lines)

    def load() -> Any:
        rows, held = kept.rows()
        texts = {split: text_of(some) for split, some in rows.items()}
        vocabulary = LEVELS[level].learn([texts["train"]], vocabulary_size)
        arrays = {split: vocabulary.encode(text) for split, text in texts.items()}
        return arrays, {**vocabulary.facts, "held": held}

    data = StreamedText(content := kept.content(name, [level, vocabulary_size, lines], load), **options)
    data.stream, data.text_of = kept.stream(content, data.seed), text_of
    return data


def streamed_images(name: str, kept: Kept, size: int | None, **options: Any) -> StreamedImages:
    """Return labelled images of the hub that are read while a run trains."""
    image, label = kept.columns
    classes = classes_of(kept.features, label, kept.hub.hub_id)

    def pixels_of(rows: Rows, every: Any = map) -> tuple[Any, Any]:
        labels, _ = labels_of([row[label] for row in rows], classes, kept.hub.hub_id)
        encoded = [(f"image {number} of a batch", row[image]) for number, row in enumerate(rows)]
        return decode(encoded, kept.hub.hub_id, size, every), labels

    def load() -> Any:
        rows, held = kept.rows()
        pixels, labels = pixels_of([*rows["train"], *rows["val"]])
        arrays, facts = image_arrays(pixels, labels, {split: len(some) for split, some in rows.items()}, classes)
        return arrays, {**facts, "held": held}

    data = StreamedImages(content := kept.content(name, [size], load), **options)
    data.stream, data.decoded = kept.stream(content, data.seed), pixels_of
    return data
