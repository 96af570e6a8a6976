"""Data that do not fit in memory, or take too long to fetch: Parquet files that are read while a run trains."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normbench.data.batches import ContentData, generator
from normbench.data.cache import Content, read_or_decode
from normbench.data.hub import Hub, check_text, classes_of, labels_of, open_parquet, reason
from normbench.data.images import Images, decode, image_arrays
from normbench.data.text import Text, join_rows
from normbench.data.vocabulary import LEVELS, key_of_file, learn
from normbench.errors import RunFailure, UsageError
from normbench.types import Batch, Split

Row = dict[str, Any]
Rows = list[Row]

# What a block holds at most, however long its rows are: 1,000 photographs have about 105 MiB.
MOST_BYTES = 512 * 2**20

TOGETHER = 8  # rows that are read at a time, which may be long


class StreamPlace(NamedTuple):
    """Where in a stream a block begins.

    Each pass over the data takes files, and the row groups of a file, in another order: so `turn` and `group` are
    turns in that order, and not the numbers of a file and of one of its row groups. `row` is one of that row group.
    """

    epoch: int = 0
    turn: int = 0
    group: int = 0
    row: int = 0


class Origin(NamedTuple):
    """Where a row is stored: the numbers of its file, of a row group there, and of the row in that."""

    file: int
    group: int
    row: int


class Stream:
    """The rows of the split `train`, in blocks, over and over; the first ones of it, or of another split, judge.

    Each pass takes files and their row groups in another order. A row group is the part of a Parquet file that can be
    read by itself, so any block can be read without what comes before it.

    Args:
        hub: where the rows are.
        columns: which of theirs are read.
        val_splits: which validate; if there are none, the first `kept` rows of `train` do, and nothing trains on them.
        kept: number of rows that judge, and of those that train from which vocabulary and scaling are learned.
        holdout: share of a block (< 1), or number of further rows of `train` that judge in place of the others.
        size: rows of a block, or fewer where these are more than MOST_BYTES.
    """

    def __init__(
        self, hub: Hub, columns: list[str], val_splits: Sequence[str], kept: int, holdout: float, size: int
    ) -> None:
        self.hub = hub
        self.columns = columns
        self.kept = kept
        self.size = size
        self.features, files = hub.files(["train", *val_splits], columns)
        self.files = files.pop("train")
        self.val: list[str] = []
        for some in files.values():
            self.val += some
        self.judging = 0 if self.val else kept
        further = round(holdout * size) if holdout < 1 else int(holdout)
        self.held_out = self.judging + further
        self.open = lru_cache(1)(open_parquet)
        # Where the last block has ended, and what comes there: a block that follows goes on with it.
        self.begun: dict[Origin, Iterator[tuple[Row, int]]] = {}

    def content(self, name: str, key: list[Any], load: Callable[[dict[Split, Rows]], Any]) -> Content:
        """Return what `load` makes of the rows that stay in memory; and note how many of each file do not train.

        Args:
            name: what the records call the data set.
            key: what decides about the result beside the stream.
            load: gets these rows, by split.
        """
        files = self.files + self.val
        names = [file.partition(self.hub.hub_id)[2] for file in files]
        stamps = []
        if self.hub.root:
            for file in files:
                status = os.stat(file)
                stamps.append([status.st_size, status.st_mtime_ns])
        source = [self.hub.hub_id, self.hub.revision, names, stamps]
        chosen = [self.columns, self.kept, self.judging, self.held_out]
        key = source + chosen + key

        def load_first() -> Any:
            rows, held_out_of = self.first()
            arrays, facts = load(rows)
            return arrays, {**facts, "held": held_out_of}

        content = read_or_decode(name, "stream", key, load_first, self.hub.reach, hub_id=self.hub.hub_id)
        self.held_out_of = content.facts["held"]
        # Without the commit that `main` is today: a later one may have the same files.
        files_of_commit = [name.partition("/")[2] for name in names]
        identity = json.dumps([content.fingerprint, files_of_commit])
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        return replace(content, fingerprint=fingerprint)

    def first(self) -> tuple[dict[Split, Rows], list[int]]:
        """Return the rows that stay in memory, and how many at the beginning of each file nothing trains on."""
        with self.hub.reading():
            files, rows = list[int](), list[Row]()
            for file, row in islice(stored_rows(self.files, self.columns), self.held_out + self.kept):
                files.append(file)
                rows.append(row)
            if len(rows) <= self.held_out:
                raise ValueError(f"it has {len(rows):,} rows for data.holdout and data.kept, and none to train on")
            val = rows[self.judging : self.held_out] or rows[: self.held_out]
            if not val:
                val = [row for _, row in islice(stored_rows(self.val, self.columns), self.kept)]
        of_file = Counter(files[: self.held_out])
        held_out_of = [of_file[file] for file in range(len(self.files))]
        return {"train": rows[self.held_out :], "val": val}, held_out_of

    def block(self, place: StreamPlace, seed: int) -> tuple[Rows, StreamPlace]:
        """Return the rows from a place on, in the orders of a seed, and the place after them.

        A row that a block has more than once, as of data that are shorter, is in memory once.
        """
        rows: Rows = []
        known: dict[Origin, Row] = {}
        left = MOST_BYTES
        while len(rows) < self.size and left > 0:
            place, origin = self.locate(place, seed)
            coming = self.begun.pop(origin, None)
            if coming is None:
                coming = self.read_group(origin)
            for values, size in coming:
                rows.append(known.setdefault(origin, values))
                origin = origin._replace(row=origin.row + 1)
                left -= size
                if len(rows) == self.size or left <= 0:
                    break
            self.begun = {origin: coming}
            group = self.metadata(origin.file).row_group(origin.group)
            if origin.row < group.num_rows:
                place = place._replace(row=origin.row)
            else:
                place = StreamPlace(place.epoch, place.turn, place.group + 1)
        return rows, place

    def locate(self, place: StreamPlace, seed: int) -> tuple[StreamPlace, Origin]:
        """Return the place, or where a file or a pass is over that of the next one, and which row is stored there."""
        while True:
            if place.turn == len(self.files):
                place = StreamPlace(place.epoch + 1)
            file = nth_of_pass(len(self.files), seed, "files", place.epoch, place.turn)
            metadata = self.metadata(file)
            if place.group < metadata.num_row_groups:
                break
            place = StreamPlace(place.epoch, place.turn + 1)
        group = nth_of_pass(metadata.num_row_groups, seed, f"groups of {file}", place.epoch, place.group)
        rows_before = 0
        for earlier in range(group):
            rows_before += metadata.row_group(earlier).num_rows
        row = max(place.row, self.held_out_of[file] - rows_before)  # the first rows of a file may judge
        return place, Origin(file, group, row)

    def metadata(self, file: int) -> Any:
        """Return how many row groups a file has, and how many rows each of them."""
        return self.open(self.files[file]).metadata

    def read_group(self, first: Origin) -> Iterator[tuple[Row, int]]:
        """Yield the rows of a row group from one on, each with its bytes; a few are in memory at a time."""
        file = self.open(self.files[first.file])
        to_skip = first.row
        for batch in file.iter_batches(TOGETHER, row_groups=[first.group], columns=self.columns):
            for index in range(to_skip, batch.num_rows):
                row = batch.slice(index, 1)
                yield row.to_pylist()[0], row.nbytes
            to_skip = max(0, to_skip - batch.num_rows)


def nth_of_pass(total: int, seed: int, what: str, epoch: int, place: int) -> int:
    """Return which of some things comes at a place in the order of a pass."""
    order = torch.randperm(total, generator=generator(seed, what, epoch))
    return int(order[place])


def stored_rows(files: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield all rows in their own order, each with the index of its file."""
    for index, file in enumerate(files):
        for batch in open_parquet(file).iter_batches(TOGETHER, columns=columns):
            for row in batch.to_pylist():
                yield index, row


@dataclass
class StreamBlock:
    """Some rows of a stream: what batches are made of, how many examples that is, and the place after them."""

    content: Any
    examples: int
    end: StreamPlace


class BlockStart(NamedTuple):
    """The first training step of a block, and the place of its first row."""

    step: int
    place: StreamPlace


class Streamed(ContentData):
    """Data whose training batches come from a stream; what its content holds stays in memory and judges.

    Each block is permuted by (seed, its number), and its last, incomplete batch is left out. So a batch is a function
    of seed and step alone; the places where blocks begin, which a checkpoint keeps, only make it quick to find.
    """

    stream: Stream
    examples_of: Callable[[Rows], tuple[Any, int]]  # what batches are made of, and how many examples that is
    pick: Callable[[Any, Tensor, int], Batch]  # from a block, the places of examples in it, and the step

    def take_share(self, share: float) -> None:
        """Refuse to train on a share of what has no known length.

        Raises:
            UsageError: always.
        """
        cure = "set data.streaming=false, or fewer trainer.steps, which read no more than they need"
        raise UsageError(f"data.train_share={share:g} is of data with a length, and a stream has none: {cure}")

    def arrange(self, total: int, what: str) -> None:
        """Begin with the first block; how many steps a pass has is not known."""
        self.total = total
        self.steps_per_epoch = 0
        self.starts = [BlockStart(0, StreamPlace())]  # of all blocks so far, and of the next one
        self.number = -1  # of the block that batches are taken from
        self.number_ahead = -1  # of the block that is being read
        self.ahead: Future[StreamBlock] = Future()

    def train_batch(self, step: int) -> Batch:
        """Return the batch of a step; in the meantime the block after its own is read."""
        if self.number < 0 or step < self.starts[self.number].step:
            number = bisect_right(self.starts, step, key=itemgetter(0)) - 1
            self.enter(number)
        while step >= self.starts[self.number + 1].step:
            self.enter(self.number + 1)
        step_of_block = step - self.starts[self.number].step
        first = step_of_block * self.batch_size
        return self.pick(self.block, self.turns[first : first + self.batch_size], step)

    def enter(self, number: int) -> None:
        """Take batches from a block whose start is known, and begin to read the one after it.

        Raises:
            RunFailure: it cannot be read.
            UsageError: it has fewer examples than a batch, or is not the block that it was.
        """
        start = self.starts[number]
        if self.number_ahead != number:
            self.begin_reading(number, start.place)
        try:
            block = self.ahead.result()
        except UsageError:
            raise
        except Exception as fault:  # as in Hub.reading
            what = f"reading {self.content.name} failed ({reason(fault):.250})"
            raise RunFailure(f"{what}: the same command goes on from the checkpoint") from fault
        if block.examples < self.batch_size:
            cure = f"raise data.buffer={self.stream.size:,} or lower data.batch_size={self.batch_size:,}"
            few = f"a block of {self.content.name} has {block.examples:,} examples, less than a batch"
            raise UsageError(f"{few}: {cure}")
        self.block = block.content
        self.turns = torch.randperm(block.examples, generator=generator(self.seed, "block", number))
        following = BlockStart(start.step + block.examples // self.batch_size, block.end)
        if number + 1 == len(self.starts):
            self.starts.append(following)
        elif self.starts[number + 1].step != following.step:
            cure = "start over with rerun=true, or go on with the version of normbench and the data it began with"
            raise UsageError(f"a block of {self.content.name} is not the one that this run's checkpoint knows: {cure}")
        self.number = number
        self.begin_reading(number + 1, block.end)

    def begin_reading(self, number: int, place: StreamPlace) -> None:
        """Begin to read the block of this number, which begins at a place; `ahead` will have it.

        A daemon does it, for which nobody waits at the end of a run: a block of the hub may take minutes.
        """
        ahead: Future[StreamBlock] = Future()

        def read() -> None:
            try:
                rows, end = self.stream.block(place, self.seed)
                content, examples = self.examples_of(rows)
                ahead.set_result(StreamBlock(content, examples, end))
            except BaseException as fault:  # which `result` raises
                ahead.set_exception(fault)

        self.number_ahead = number
        self.ahead = ahead
        Thread(target=read, daemon=True).start()

    def state_dict(self) -> dict[str, Any]:
        """Return what makes the batch of a step quick to find again: plain tuples, which a checkpoint may hold."""
        starts = [(start.step, tuple(start.place)) for start in self.starts]
        return {"starts": starts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self.starts = []
        for step, place in state["starts"]:
            self.starts.append(BlockStart(step, StreamPlace(*place)))
        self.number = -1

    def describe(self) -> dict[str, Any]:
        """Return what the data are; `kept` training examples are in memory, and how many there are is not known."""
        description = super().describe()
        description["kept"] = description.pop(f"train_{self.unit}")
        description["files"] = len(self.stream.files)
        description["fingerprint_is"] = "of the kept examples and the files' names: the stream itself is not hashed"
        return description


class StreamedText(Streamed, Text):
    """A language model's data from a stream of texts: each block is cut into windows side by side.

    Args:
        content: what stays in memory.
        stream: where the rest is.
        text_of: joins rows to a text.
        options: of Text.
    """

    def __init__(self, content: Content, stream: Stream, text_of: Callable[[Rows], str], **options: Any) -> None:
        super().__init__(content, **options)
        self.stream = stream
        self.text_of = text_of

    def examples_of(self, rows: Rows) -> tuple[Any, int]:
        """Return the tokens of a block, and how many windows they are."""
        tokens = self.vocabulary.encode(self.text_of(rows))
        return tokens, (len(tokens) - 1) // self.context

    def pick(self, block: Any, order: Tensor, step: int) -> Batch:
        """Return windows of a block."""
        return self.windows(block, order.numpy() * self.context, self.context)


class StreamedImages(Streamed, Images):
    """A classifier's images from a stream, which are decoded in each step, by as many threads as torch has.

    Args:
        content: what stays in memory.
        stream: where the rest is.
        decode_rows: returns the pixels and labels of rows, by what applies a function to each, as `map` does.
        options: of Images.
    """

    def __init__(
        self, content: Content, stream: Stream, decode_rows: Callable[[Rows, Any], tuple[Any, Any]], **options: Any
    ) -> None:
        super().__init__(content, **options)
        self.stream = stream
        self.decode_rows = decode_rows

    def examples_of(self, rows: Rows) -> tuple[Any, int]:
        """Return the rows, as they are stored."""
        return rows, len(rows)

    def pick(self, block: Any, order: Tensor, step: int) -> Batch:
        """Return images of a block."""
        rows = [block[index] for index in order]
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            pixels, labels = self.decode_rows(rows, threads.map)
        channels = self.task.image_shape[0]  # where all images of a batch are grey, it may be more than theirs
        images = torch.from_numpy(pixels).expand(-1, channels, -1, -1)
        return self.scale(images, torch.from_numpy(labels), step)


def stream_text(
    name: str,
    stream: Stream,
    level: str,
    vocabulary_size: int | None,
    lines: bool,
    tokenizer: str | None,
    **options: Any,
) -> StreamedText:
    """Return a text of the hub that is read while a run trains.

    Raises:
        UsageError: its tokens are not known beforehand.
    """
    if not LEVELS[level].total:
        names = [name for name, kind in LEVELS.items() if kind.total]
        allowed = ", ".join(names)
        raise UsageError(f"data.level={level} needs all of a text, and a stream shows a part: use one of {allowed}")

    def text_of(rows: Rows) -> str:
        (column,) = stream.columns
        texts = [row[column] for row in rows]
        check_text(column, texts)
        return join_rows(texts, lines)

    def load(rows: dict[Split, Rows]) -> Any:
        vocabulary = learn(level, [text_of(rows["train"])], vocabulary_size, tokenizer)
        tokens = {}
        for split, some in rows.items():
            tokens[split] = vocabulary.encode(text_of(some))
        return tokens, vocabulary.facts

    content = stream.content(name, [level, vocabulary_size, lines, *key_of_file(level, tokenizer)], load)
    return StreamedText(content, stream, text_of, **options)


def stream_images(name: str, stream: Stream, size: int | None, **options: Any) -> StreamedImages:
    """Return labelled images of the hub that are read while a run trains."""
    image, label = stream.columns
    where = stream.hub.hub_id
    classes = classes_of(stream.features, label, where)

    def decode_rows(rows: Rows, every: Any = map) -> tuple[Any, Any]:
        images, written_labels = [], []
        for number, row in enumerate(rows):
            images.append((f"row {number}", row[image]))
            written_labels.append(row[label])
        labels, _ = labels_of(written_labels, classes, where)
        return decode(images, where, size, every), labels

    def load(rows: dict[Split, Rows]) -> Any:
        everything: Rows = []
        counts: dict[str, int] = {}
        for split, some in rows.items():
            everything += some
            counts[split] = len(some)
        pixels, labels = decode_rows(everything)
        return image_arrays(pixels, labels, counts, classes)

    content = stream.content(name, [size], load)
    return StreamedImages(content, stream, decode_rows, **options)
