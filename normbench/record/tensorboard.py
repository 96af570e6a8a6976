"""TensorBoard's event files of a run, which its own classes write and read: nothing here knows their format."""

from __future__ import annotations

import os
import socket
import time
import tomllib
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
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

from normbench.record.files import keep_damaged, sync_directory, write_atomically
from normbench.record.loggers import Histogram, Lines, Scalar
from normbench.record.metrics import logged_lines

# TensorBoard takes the checksum of a record byte by byte in Python: 2 ms for a probed step, where this takes 10 µs.
with suppress(ImportError):
    import google_crc32c

    pywrap_tensorflow.crc32c = google_crc32c.value


EVENTS = "events.out.tfevents."  # how the names of event files begin
PAGE = "config"  # the tag of the page that tells of the run as a whole; other texts belong to steps
# Custom Scalars tab: category -> chart -> regular expression of the tags that it overlays
CHARTS = tomllib.loads(Path(__file__).with_name("charts.toml").read_text("utf-8"))
RESULTS = ("loss", "accuracy", "perplexity", "bleu")  # what tasks may be judged by, each with its own
# columns of the HParams tab
METRICS = ("loss/val", "accuracy/val", "bleu/val", "loss/train", "perplexity/val", "time/step_ms")


class TensorBoard(Lines):
    """Appends to an event file of TensorBoard; its HParams tab shows the last value that `scalars` takes of METRICS."""

    def __init__(self, directory: Path, step: int) -> None:
        super().__init__(directory, step, (event_files(directory) or [new_event_file(directory)])[-1].name)
        self.records = RecordWriter(self.file)
        self.described: set[str] = set()
        self.metrics: Collection[str] = RESULTS

    def expect(self, metrics: Collection[str]) -> None:
        self.metrics = metrics

    def comes(self, tag: str) -> bool:
        """Say whether numbers will come under a tag, or a pattern of tags: all but metrics that the task has not."""
        kind = tag.lstrip("^").partition("/")[0]
        return kind not in RESULTS or kind in self.metrics

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        infos = [api_pb2.HParamInfo(name=name, differs=name in varied) for name in choices]
        columns = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in METRICS if self.comes(tag)]
        experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=columns)
        self.add_hparams(metadata.EXPERIMENT_TAG, experiment=experiment)
        chosen = {name: "null" if choice is None else choice for name, choice in choices.items()}
        row = summary_v2.hparams_pb(chosen, trial_id=Path(self.file.name).parent.name)
        self.write(0, [*text_pb(PAGE, page).value, *row.value])
        self.draw({
            title: {name: {"multiline": {"tag": [tags]}} for name, tags in charts.items() if self.comes(tags)}
            for title, charts in CHARTS.items()
        })  # fmt: skip

    def draw(self, charts: Mapping[str, Mapping[str, Any]]) -> None:
        """Write what the Custom Scalars tab draws: category -> chart -> its lines."""
        categories = [{"title": title, "chart": [{"title": name, **lines[name]} for name in lines]}
                      for title, lines in charts.items()]  # fmt: skip
        layout = make_tensor_proto(ParseDict({"category": categories}, Layout()).SerializeToString())
        self.add(0, custom_scalar.create_summary_metadata(), {custom_scalar.CONFIG_SUMMARY_TAG: layout})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of this step, in the form of torch's SummaryWriter, which every reader of event files knows."""
        self.write(step, [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Take histograms of this step; those with edges that are not finite TensorBoard cannot draw: left out."""
        buckets = {
            tag: make_tensor_proto(np.column_stack([edges[:-1], edges[1:], counts]).astype(np.float64))
            for tag, (counts, edges) in values.items()
            if np.isfinite(edges).all()
        }
        self.add(step, histogram.create_summary_metadata(display_name="", description=""), buckets)

    def texts(self, step: int, pages: Mapping[str, str]) -> None:
        self.write(step, [value for tag in pages for value in text_pb(tag, pages[tag]).value])

    def images(self, images: Mapping[str, bytes]) -> None:
        """Take pictures, by tag, as PNG."""
        self.write(0, [Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=images[tag])) for tag in images])

    def add_hparams(self, tag: str, **content: Any) -> None:
        """Write what the HParams tab reads under a tag."""
        kind = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**content))
        self.add(0, kind, {tag: metadata.NULL_TENSOR})

    def add(self, step: int, kind: SummaryMetadata, tensors: Mapping[str, TensorProto]) -> None:
        """Write what each tag holds, with its kind at its first step, which is enough and half of the bytes."""
        kinds = {tag: None if tag in self.described else kind for tag in tensors}
        self.write(step, [Summary.Value(tag=tag, metadata=kinds[tag], tensor=tensors[tag]) for tag in tensors])
        self.described.update(tensors)

    def write(self, step: int, values: list[Summary.Value]) -> None:
        """Write values as one record."""
        if not self.file.tell():
            self.records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        self.records.write(Event(step=step, wall_time=time.time(), summary=Summary(value=values)).SerializeToString())
        self.records.flush()

    def close(self, ended: str) -> None:
        with ExitStack() as stack:
            stack.callback(super().close, ended)
            if ended:  # what goes on has no end yet: TensorBoard would stay with the first one
                status = api_pb2.STATUS_SUCCESS if ended == "finished" else api_pb2.STATUS_FAILURE
                end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
                self.add_hparams(metadata.SESSION_END_INFO_TAG, session_end_info=end)


def event_files(directory: Path) -> list[Path]:
    """Return the directory's event files, oldest first."""
    return sorted(directory.glob(f"{EVENTS}*"))


def new_event_file(directory: Path) -> Path:
    """Return a name that sorts behind those of the directory, as TensorBoard reads files in this order."""
    later = [int(path.name.removeprefix(EVENTS).split(".")[0]) + 1 for path in event_files(directory)]
    return directory / f"{EVENTS}{max([int(time.time()), *later]):010d}.{socket.gethostname()}.{os.getpid()}"


def truncate_events(directory: Path, last_step: int) -> str:
    """Replace the event file by one with the steps up to `last_step` (atomically), read as far as it is not damaged.

    Layout, the page on the run and hyperparameters are dropped: whoever goes on writes them anew. The new file has a
    new name, from which an open TensorBoard sees that it has to read anew. A kill in here may leave both: the newer one
    is whole.
    One that ends before the numbers of metrics.jsonl is damaged: it stays too, and what is returned says so.
    """
    read = [0]
    as_tensors: set[str] = set()
    if not (old := event_files(directory)):
        return ""

    def write(file: IO[bytes]) -> None:
        records = RecordWriter(file)
        for record in RawEventFileLoader(str(old[-1])).Load():
            event = Event.FromString(record)
            read.append(event.step)
            plugins = {value.metadata.plugin_data.plugin_name for value in event.summary.value}
            begins = plugins & {"hparams", "custom_scalars"} or any(value.tag == PAGE for value in event.summary.value)
            if event.step <= last_step and not begins:
                records.write(with_plain_scalars(event, as_tensors).SerializeToString())

    write_atomically(new_event_file(directory), write)
    metrics = directory / "metrics.jsonl"
    logged = [step for _, step, _ in logged_lines(metrics) if step <= last_step] if metrics.exists() else []
    # under a name that TensorBoard does not read
    said = keep_damaged(old[-1], "events") if max(read) < max(logged, default=0) else ""
    for path in old:
        path.unlink()
    sync_directory(directory)
    return said


def with_plain_scalars(event: Event, as_tensors: set[str]) -> Event:
    """Return an event whose scalars are simple values, where an earlier version has written them as tensors.

    as_tensors: the tags of such scalars so far, which the first value of each says of itself; it is added to.
    """
    for value in event.summary.value:
        if value.metadata.plugin_data.plugin_name == SCALARS:
            as_tensors.add(value.tag)
        if value.tag in as_tensors and value.tensor.float_val:
            (number,) = value.tensor.float_val
            value.ClearField("metadata")
            value.simple_value = number
    return event
