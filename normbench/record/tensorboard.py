"""TensorBoard's event files of a run, which its own classes write and read: nothing here knows their format."""

from __future__ import annotations

import math
import os
import socket
import time
import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from google.protobuf.json_format import ParseDict
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.histogram import metadata as histogram
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.scalar.metadata import PLUGIN_NAME as SCALARS
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from normbench.record.directory import BLOCKS
from normbench.record.files import keep_damaged, sync_directory, write_atomically
from normbench.record.loggers import Histogram, Lines, Scalar
from normbench.record.metrics import is_of_evaluation, logged_lines

# TensorBoard takes the checksum of a record byte by byte in Python: 2 ms for a probed step, where this takes 10 µs.
with suppress(ImportError):
    import google_crc32c

    pywrap_tensorflow.crc32c = google_crc32c.value


EVENTS = "events.out.tfevents."  # how the names of event files begin
PAGE = "config"  # the tag of the page that tells of the run as a whole
# Custom Scalars tab: category -> chart -> regular expression of the tags that it overlays
CHARTS = tomllib.loads(Path(__file__).with_name("charts.toml").read_text("utf-8"))
RESULTS = ("loss", "accuracy", "perplexity", "bleu")  # what tasks may be judged by, each with its own
# columns of the HParams tab of `normbench tensorboard`, of which a browser shows the first five
METRICS = ("loss/val", "accuracy/val", "bleu/val", "loss/train", "perplexity/val", "time/step_ms")


class TensorBoard(Lines):
    """Appends to an event file of TensorBoard; its HParams tab shows the last value that `scalars` takes of a tag."""

    def __init__(self, directory: Path, step: int) -> None:
        files = event_files(directory)
        file = files[-1] if files else new_event_file(directory)
        super().__init__(directory, step, file.name)
        self.records = RecordWriter(self.file)
        self.described: set[str] = set()
        self.metrics: Collection[str] = RESULTS

    def expect(self, metrics: Collection[str]) -> None:
        self.metrics = metrics

    def will_come(self, tag: str) -> bool:
        """Tell whether numbers will come under a tag, or a pattern of tags: all but metrics that the task lacks."""
        kind = tag.lstrip("^").partition("/")[0]
        return kind not in RESULTS or kind in self.metrics

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        # No `Experiment` says which columns the HParams tab has: TensorBoard would take the one of whichever run it
        # reads first, which lacks the settings of the others. Without one, it takes the settings of all.
        chosen = {name: as_hparam(choice) for name, choice in choices.items()}
        row = summary_v2.hparams_pb(chosen, trial_id=Path(self.file.name).parent.name)
        self.write(0, [*text_pb(PAGE, page).value, *row.value])
        overlaid: dict[str, dict[str, Any]] = {}
        for title, charts in CHARTS.items():
            drawn: dict[str, Any] = {}
            for name, tags in charts.items():
                if self.will_come(tags):
                    drawn[name] = {"multiline": {"tag": [tags]}}
            overlaid[title] = drawn
        self.draw(overlaid)

    def draw(self, charts: Mapping[str, Mapping[str, Any]]) -> None:
        """Write what the Custom Scalars tab draws: category -> chart -> its lines."""
        categories: list[dict[str, Any]] = []
        for title, lines in charts.items():
            drawn = [{"title": name, **line} for name, line in lines.items()]
            categories.append({"title": title, "chart": drawn})
        layout = ParseDict({"category": categories}, Layout())
        tensor = make_tensor_proto(layout.SerializeToString())
        self.add(0, custom_scalar.create_summary_metadata(), {custom_scalar.CONFIG_SUMMARY_TAG: tensor})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of this step, in the form of torch's SummaryWriter, which every reader of event files knows."""
        numbers = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self.write(step, numbers)

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Take histograms of this step, but for those with edges that are not finite, which TensorBoard cannot draw."""
        buckets: dict[str, TensorProto] = {}
        for tag, (counts, edges) in values.items():
            if np.isfinite(edges).all():
                rows = np.column_stack([edges[:-1], edges[1:], counts])
                buckets[tag] = make_tensor_proto(rows.astype(np.float64))
        self.add(step, histogram.create_summary_metadata(display_name="", description=""), buckets)

    def texts(self, step: int, pages: Mapping[str, str]) -> None:
        values: list[Summary.Value] = []
        for tag, page in pages.items():
            values += text_pb(tag, page).value
        self.write(step, values)

    def images(self, images: Mapping[str, bytes]) -> None:
        """Take pictures, by tag, as PNG."""
        values: list[Summary.Value] = []
        for tag, png in images.items():
            image = Summary.Image(encoded_image_string=png)
            values.append(Summary.Value(tag=tag, image=image))
        self.write(0, values)

    def add_hparams(self, tag: str, **content: Any) -> None:
        """Write what the HParams tab reads under a tag."""
        kind = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**content))
        self.add(0, kind, {tag: metadata.NULL_TENSOR})

    def add(self, step: int, kind: SummaryMetadata, tensors: Mapping[str, TensorProto]) -> None:
        """Write what each tag holds, with its kind at its first step, which is enough and half of the bytes."""
        values: list[Summary.Value] = []
        for tag, tensor in tensors.items():
            first = None if tag in self.described else kind
            values.append(Summary.Value(tag=tag, metadata=first, tensor=tensor))
        self.write(step, values)
        self.described.update(tensors)

    def write(self, step: int, values: list[Summary.Value]) -> None:
        """Write values as one record."""
        if not self.file.tell():
            head = Event(wall_time=time.time(), file_version="brain.Event:2")
            self.records.write(head.SerializeToString())
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=values))
        self.records.write(event.SerializeToString())
        self.records.flush()

    def close(self, ended: str) -> None:
        try:
            if ended:  # what goes on has no end yet: TensorBoard would stay with the first one
                status = api_pb2.STATUS_SUCCESS if ended == "finished" else api_pb2.STATUS_FAILURE
                end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
                self.add_hparams(metadata.SESSION_END_INFO_TAG, session_end_info=end)
        finally:
            super().close(ended)


def as_hparam(choice: Scalar) -> Scalar:
    """Return a setting as the HParams tab shows it, which leaves out nothing and numbers that are not finite."""
    if choice is None:
        return "null"
    is_finite = not isinstance(choice, float) or math.isfinite(choice)
    return choice if is_finite else str(choice)


def in_fixed_width(text: str) -> str:
    """Return Markdown that shows a text as it is, in letters of one width."""
    return f"```text\n{text}\n```"


def event_files(directory: Path) -> list[Path]:
    """Return the directory's event files, oldest first."""
    return sorted(directory.glob(f"{EVENTS}*"))


def new_event_file(directory: Path) -> Path:
    """Return a name that sorts after those of the directory, as TensorBoard reads files in this order."""
    number = int(time.time())
    for path in event_files(directory):
        before = int(path.name.removeprefix(EVENTS).split(".")[0])
        number = max(number, before + 1)
    return directory / f"{EVENTS}{number:010d}.{socket.gethostname()}.{os.getpid()}"


def truncate_events(directory: Path, last_step: int, evaluated: bool = True) -> str:
    """Replace the event file by one with the steps up to `last_step` (atomically), read as far as it is not damaged.

    Layout, the pages on the run and hyperparameters are dropped: whoever goes on writes them again. The new file has a
    new name, from which an open TensorBoard sees that it has to read again. A kill in here may leave both: the newer
    one is whole. One that ends before the numbers of metrics.jsonl is damaged: it is kept too, and the sentence
    returned says so.

    Args:
        directory: of the run.
        last_step: that is kept.
        evaluated: whether its evaluation is kept as well.
    """
    old = event_files(directory)
    if not old:
        return ""
    last_read = 0

    def write(file: IO[bytes]) -> None:
        nonlocal last_read
        records = RecordWriter(file)
        as_tensors: set[str] = set()
        for record in RawEventFileLoader(str(old[-1])).Load():
            event = Event.FromString(record)
            last_read = max(last_read, event.step)
            is_again = event.step == last_step and not evaluated and any(map(is_of_evaluation, tags_of(event)))
            if event.step <= last_step and not is_again and not is_about_run(event):
                simplify_scalars(event, as_tensors)
                records.write(event.SerializeToString())

    write_atomically(new_event_file(directory), write)
    damaged = ""
    if last_read < last_logged_step(directory / "metrics.jsonl", last_step):
        damaged = keep_damaged(old[-1], "events")  # a name that TensorBoard does not read
    for path in old:
        path.unlink()
    sync_directory(directory)
    return damaged


def tags_of(event: Event) -> list[str]:
    """Return the tags under which an event holds something."""
    return [value.tag for value in event.summary.value]


def is_about_run(event: Event) -> bool:
    """Tell whether an event is of those that a run writes when it begins: layout, hyperparameters, pages on the run."""
    for value in event.summary.value:
        if value.tag in (PAGE, BLOCKS) or value.metadata.plugin_data.plugin_name in ("hparams", "custom_scalars"):
            return True
    return False


def last_logged_step(path: Path, last_step: int) -> float:
    """Return the last step up to `last_step` in a metrics.jsonl; 0 where there is none."""
    if not path.exists():
        return 0
    steps = [line.step for line in logged_lines(path) if line.step <= last_step]
    return max(steps, default=0)


def simplify_scalars(event: Event, as_tensors: set[str]) -> None:
    """Make the scalars of an event simple values, where an earlier version has written them as tensors.

    Args:
        as_tensors: the tags of such scalars so far, which the first value of each says of itself; it is added to.
    """
    for value in event.summary.value:
        if value.metadata.plugin_data.plugin_name == SCALARS:
            as_tensors.add(value.tag)
        if value.tag in as_tensors and value.tensor.float_val:
            (number,) = value.tensor.float_val
            value.ClearField("metadata")
            value.simple_value = number
