"""Where a run's numbers go: `metrics.jsonl`, TensorBoard and other loggers, and the console.

TensorBoard's own classes write and read its files; nothing here knows their format.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import numpy as np
from google.protobuf.json_format import ParseDict
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
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

from normbench.errors import explain
from normbench.rundir import UNREADABLE, inside, keep_damaged, logged_lines, sync_directory, write_atomically

# TensorBoard takes the checksum of a record byte by byte in Python: 2 ms for a probed step, where this takes 10 µs.
with suppress(ImportError):
    import google_crc32c

    pywrap_tensorflow.crc32c = google_crc32c.value

Scalar = bool | int | float | str | None
Histogram = tuple[Sequence[float], Sequence[float]]  # counts of values, and the edges between them: one more

EVENTS = "events.out.tfevents."  # how the names of event files begin
PAGE = "config"  # the tag of the page that tells of the run as a whole; other texts belong to steps

# Custom Scalars tab: category -> chart -> regular expression of the tags that it overlays
CHARTS = tomllib.loads(Path(__file__).with_name("charts.toml").read_text("utf-8"))
RESULTS = ("loss", "accuracy", "perplexity", "bleu")  # what tasks may be judged by, each with its own
# columns of the HParams tab
METRICS = ("loss/val", "accuracy/val", "bleu/val", "loss/train", "perplexity/val", "time/step_ms")

REFRESH_PERIOD = 0.25  # seconds between two drawings of a live display, which take some ms of the training's time
LINE_PERIOD = 10.0  # seconds, at most, between two lines where there is no terminal


class Logger:
    """A place for a run's numbers, beside which a run may have others; what it does not take it leaves out.

    package: what it imports that normbench alone does not bring, if anything.
    """

    package = ""

    def __init__(self, directory: Path, step: int) -> None:
        """Open the record of the run in `directory`, which goes on behind `step`: what was logged later comes again."""

    def expect(self, metrics: Collection[str]) -> None:
        """Take what evaluations of the run will log, such as `loss` and `accuracy`; it is called before `begin`."""

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        """Take the choices that made the run, which of them vary between runs, and a page on them for people.

        It is called whenever the run starts or goes on.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of this step, by tag."""

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Take histograms of this step, by tag."""

    def texts(self, step: int, pages: Mapping[str, str]) -> None:
        """Take pages in Markdown of this step, by tag."""

    def flush(self) -> None:
        """Return when everything so far is where it is kept."""

    def close(self, ended: str) -> None:
        """Let go of all resources. ended: `finished` or `diverged` where the run will not go on, else empty."""


def quiet_loggers() -> None:
    """Let the packages behind loggers say only what has gone wrong; a person's own settings of theirs stay."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Lines(Logger):
    """Appends to `metrics.jsonl`, which analysis reads: `{"step": 10, "loss/train": 2.31, ...}`."""

    def __init__(self, directory: Path, step: int, name: str = "metrics.jsonl") -> None:
        self.file = open(inside(directory, name), "ab")  # noqa: SIM115 (closed by close)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.file.write(json.dumps({"step": step, **finite(values)}, allow_nan=False).encode() + b"\n")
        self.file.flush()

    def flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self, ended: str) -> None:
        with self.file:  # which closes it also when the disk is full
            self.flush()


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


class Recorder:
    """Hands a run's numbers to `metrics.jsonl` and to its loggers, by default TensorBoard.

    Each record of ours is whole and with the operating system when the call returns, so no kill loses one. Steps do not
    decrease from call to call. A full disk raises OSError (ENOSPC) from the call that writes, or at the latest from
    `flush`; what it did not take stays buffered and goes out first when there is room again: no file is ever damaged in
    its middle. No background thread of ours takes time from the training or swallows an error. What another logger
    raises ends that logger, not the run. `truncate_metrics` and `truncate_events` come first.
    """

    def __init__(self, directory: Path, loggers: Sequence[Logger] | None = None) -> None:
        self.loggers = [*([TensorBoard(directory, 0)] if loggers is None else loggers), Lines(directory, 0)]
        sync_directory(directory)

    def each(self, call: str, *given: Any) -> None:
        """Call each logger, `metrics.jsonl` first, also when the disk is full for one of them."""
        with ExitStack() as stack:
            for logger in self.loggers:
                stack.callback(self.hand, logger, call, given)

    def hand(self, logger: Logger, call: str, given: Sequence[Any]) -> None:
        """Call a logger; one that keeps a copy alone, and fails, is left out from then on."""
        try:
            getattr(logger, call)(*given)
        except Exception as error:  # another library's client may raise anything
            if isinstance(logger, Lines):
                raise
            self.loggers.remove(logger)
            said = f"{type(logger).__name__} has failed and takes no more numbers of this run, which metrics.jsonl has"
            logging.getLogger("normbench").warning("warning: %s all: %s", said, explain(error))

    def expect(self, metrics: Collection[str]) -> None:
        """Take what `Logger.expect` does."""
        self.each("expect", metrics)

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        """Take what `Logger.begin` does."""
        self.each("begin", choices, varied, page)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of this step, by tag."""
        self.each("scalars", step, values)

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Take histograms of this step, by tag."""
        self.each("histograms", step, values)

    def texts(self, step: int, pages: Mapping[str, str]) -> None:
        """Take pages in Markdown of this step, by tag."""
        if pages:
            self.each("texts", step, pages)

    def flush(self) -> None:
        """Return when everything so far is on disk."""
        self.each("flush")

    def close(self, ended: str = "") -> None:
        """Flush and let go of all resources; a second call does nothing. ended: see `Logger.close`."""
        with ExitStack() as stack:
            stack.callback(self.loggers.clear)
            self.each("close", ended)


class Silent(Recorder):
    """Takes numbers and leaves them: of a process that only helps the one that holds the run."""

    def __init__(self) -> None:
        self.loggers = []


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON has them: it has no NaN and no infinity, so one that is not finite is None."""
    return {tag: value if math.isfinite(value) else None for tag, value in values.items()}


# ---- continuation


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


def truncate_metrics(path: Path, last_step: int) -> str:
    """Drop what was logged after `last_step` (atomically), and a last line torn by a kill.

    Other lines that cannot be read are dropped too: then the file stays beside it, and what is returned says so.
    """
    lines = logged_lines(path) if path.exists() else []
    said = keep_damaged(path) if any(step == UNREADABLE for _, step, _ in lines[:-1]) else ""
    if lines:
        kept = [line + b"\n" for line, step, _ in lines if step <= last_step]
        write_atomically(path, lambda file: file.writelines(kept))
    return said


# ---- the console


class Display(Progress, Logger):
    """Shows how far a run is: a bar with numbers below it on a terminal, lines elsewhere.

    Lines come at each evaluation, and each 10 seconds. unit: what throughput counts, `tokens` or
    `images`. start_step: the steps that are done already when a run goes on. console: by default standard output.
    """

    def __init__(self, total_steps: int, unit: str, start_step: int = 0, console: Console | None = None) -> None:
        self.unit, self.values = unit, dict[str, float]()
        self.step = self.evaluated = start_step
        counts = "step", MofNCompleteColumn(), BarColumn(bar_width=None), TaskProgressColumn(), TimeElapsedColumn()
        left = TextColumn("{task.fields[left]}")
        # It is drawn from here alone, and starts no thread that would take time from the training.
        super().__init__(*counts, left, console=console or Console(), expand=True, auto_refresh=False)
        self.shown = self.get_time()
        self.add_task("", total=total_steps, completed=start_step, left="")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Show that `step` steps are done, and the newest numbers by tag; cheap enough for every log step."""
        (task,) = self.tasks
        live = self.console.is_interactive
        if step != self.step and not live:  # a line has what belongs to its own step
            self.values.clear()
        self.step = step
        if "loss/val" in values:
            self.evaluated = step
        self.values.update(values)
        self.update(task.id, completed=step)
        seconds, waited = task.time_remaining, self.get_time() - self.shown
        left = "" if seconds is None else f"{timedelta(seconds=int(seconds))} left"  # by the pace of this process alone
        if waited < (REFRESH_PERIOD if live else LINE_PERIOD) and "loss/val" not in values:
            return
        self.shown = self.get_time()
        if live:
            self.start()
            self.update(task.id, left=left, refresh=True)
        else:
            parts = f"step {step:>{len(str(task.total))}}/{task.total}", self.numbers(), left
            self.console.print("  ".join(filter(None, parts)), highlight=False, soft_wrap=True)

    def close(self, ended: str) -> None:
        if self.live.is_started:
            self.stop()  # and leave the last state on the screen

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return two lines for the bottom of the terminal; what is printed meanwhile appears above them."""
        return [*super().get_renderables(), Text(self.numbers(), overflow="ellipsis", no_wrap=True)]

    def numbers(self) -> str:
        """Return `loss 1.9321  val 2.0112  lr 9.8e-04  12,345 tokens/s`, of what is known."""
        shown = {
            "loss/train": "loss {:.4f}",
            "loss/val": "val {:.4f}",
            "accuracy/val": "accuracy {:.2%}",
            "bleu/val": "BLEU {:.1f}",
            "optim/lr": "lr {:.1e}",
            f"time/{self.unit}_per_second": f"{{:,.0f}} {self.unit}/s",
        }
        if self.evaluated != self.step:  # on a terminal the last evaluation stays, with its step
            shown["loss/val"] += f" at step {self.evaluated:,}"
        return "  ".join(form.format(self.values[tag]) for tag, form in shown.items() if tag in self.values)


def show_table(title: str, rows: Mapping[str, Scalar], console: Console | None = None) -> None:
    """Print a table of names and values."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(title), min_width=20)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name), Text(readable(value)))
    (console or Console()).print(table)


def readable(value: Scalar) -> str:
    """Return a value as a person reads it: `1,234,567`, `0.00098`, `yes`, `none`."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"
