"""Recording: what a run writes is read back by TensorBoard's own readers, after kills and full disks as well."""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard.writer import SummaryWriter

from normbench.record import tensorboard
from normbench.record.console import Display, show_table
from normbench.record.metrics import truncate_metrics
from normbench.record.recorder import Recorder
from normbench.record.tensorboard import BLOCKS, truncate_events

CONFIG: dict[str, Any] = {"norm": "rmsnorm", "seed": 0, "optim.lr": 1e-3, "norm.affine": True, "norm.groups": None}


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def series(directory: Path, tag: str) -> list[tuple[int, Any]]:
    return [(event.step, event.value) for event in read(directory).Scalars(tag)]


def texts(directory: Path, tag: str) -> list[tuple[int, bytes]]:
    return [(event.step, make_ndarray(event.tensor_proto).item()) for event in read(directory).Tensors(tag)]


def event_file(directory: Path) -> Path:
    (path,) = directory.glob("*tfevents*")
    return path


def events(directory: Path) -> list[Any]:
    return list(EventFileLoader(str(event_file(directory))).Load())


def raw_events(directory: Path) -> list[Any]:
    return [Event.FromString(record) for record in RawEventFileLoader(str(event_file(directory))).Load()]


def plugin(directory: Path, tag: str) -> Any:
    return read(directory).SummaryMetadata(tag).plugin_data


def record_steps(directory: Path, steps: range) -> Recorder:
    """Record as a run does: the header at every start, then numbers."""
    recorder = Recorder(directory)
    recorder.begin(CONFIG, (), f"from {steps.start}")
    recorder.texts(0, {BLOCKS: f"drawn at {steps.start}"})
    for step in steps:
        recorder.scalars(step, {"loss/train": step / 8, "optim/lr": 1e-3})
        if step % 10 == 0:
            recorder.histograms(step, {"act/final/in": ([1, 2], [0, 1, 2])})
    return recorder


def logged_steps(directory: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


# ---- TensorBoard and metrics.jsonl


def test_numbers_histograms_and_texts_come_back(tmp_path: Path) -> None:
    sink, before = Recorder(tmp_path), time.time()
    sink.begin(CONFIG, (), "```yaml\nα: 0.5\n```")
    sink.scalars(1, {"loss/train": 2.5, "act/block00.mlp/rms_out": 0.1})
    sink.scalars(2, {"loss/train": math.inf})
    sink.scalars(3, {"loss/train": math.nan, "loss/val": 3.25})
    wanted, endless = ([3.0, 0.0, 7.0], [-1.0, 0.0, 0.5, 2.0]), ([1.0], [math.nan, math.nan])
    sink.histograms(50, {"act/final/in": wanted, "act/final/out": endless})
    sink.close()
    assert series(tmp_path, "loss/train")[:2] == [(1, 2.5), (2, math.inf)]
    assert math.isnan(series(tmp_path, "loss/train")[2][1])
    assert series(tmp_path, "loss/val") == [(3, 3.25)]
    assert series(tmp_path, "act/block00.mlp/rms_out") == [(1, pytest.approx(0.1, rel=1e-7))]
    assert texts(tmp_path, "config")[0][1].decode() == "```yaml\nα: 0.5\n```"
    (event,) = read(tmp_path).Tensors("act/final/in")
    assert event.step == 50 and before <= event.wall_time <= time.time()
    np.testing.assert_array_equal(make_ndarray(event.tensor_proto), [[-1, 0, 3], [0, 0.5, 0], [0.5, 2, 7]])
    assert "act/final/out" not in read(tmp_path).Tags()["tensors"]
    tabs = {tag: plugin(tmp_path, tag).plugin_name for tag in ("act/final/in", "config")}
    assert tabs == {"act/final/in": "histograms", "config": "text"}


def test_hyperparameters_and_layout_come_back(tmp_path: Path) -> None:
    sink = Recorder(tmp_path)
    sink.begin(CONFIG, ("norm", "optim.lr"), "")
    sink.close()
    parsed = hparams_metadata
    start = parsed.parse_session_start_info_plugin_data(plugin(tmp_path, parsed.SESSION_START_INFO_TAG).content)
    assert (start.hparams["norm"].string_value, start.hparams["norm.groups"].string_value) == ("rmsnorm", "null")
    assert (start.hparams["optim.lr"].number_value, start.hparams["norm.affine"].bool_value) == (1e-3, True)
    assert start.hparams.keys() == CONFIG.keys()
    layout = Layout.FromString(texts(tmp_path, "custom_scalars__config__")[0][1])
    charts = {chart.title: chart.multiline.tag for category in layout.category for chart in category.chart}
    examples = {"loss": "loss/val", "throughput": "time/tokens_per_second"}
    for title, tag in examples.items():
        assert any(re.match(pattern, tag) for pattern in charts[title]), title


def test_scalars_are_as_torch_s_writer_leaves_them(tmp_path: Path) -> None:
    numbers = {"loss/train": 2.5, "act/block00.mlp/rms_out": 0.1}
    (tmp_path / "ours").mkdir()
    with closing(Recorder(tmp_path / "ours")) as ours, SummaryWriter(tmp_path / "torch") as theirs:
        ours.scalars(7, numbers)
        for tag, number in numbers.items():
            theirs.add_scalar(tag, number, 7)
    written = [
        {value.tag: value.SerializeToString() for event in raw_events(folder) for value in event.summary.value}
        for folder in (tmp_path / "ours", tmp_path / "torch")
    ]
    assert written[0] == written[1] and len(written[0]) == 2


@pytest.mark.parametrize(("metrics", "charts"), [(("loss", "bleu"), {"loss", "BLEU"}), (("loss",), {"loss"})])
def test_there_is_a_chart_of_each_metric_that_the_task_has(
    tmp_path: Path, metrics: tuple[str, ...], charts: set[str]
) -> None:
    with closing(Recorder(tmp_path)) as sink:
        sink.expect(metrics)
        sink.begin(CONFIG, (), "")
    layout = Layout.FromString(texts(tmp_path, "custom_scalars__config__")[0][1])
    drawn = {chart.title for category in layout.category for chart in category.chart}
    assert drawn & {"loss", "accuracy", "BLEU"} == charts and "gradient norm" in drawn


def test_one_call_is_one_record_that_is_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Recorder(tmp_path)) as recorder, monkeypatch.context() as patch:
        waits: list[int] = []
        patch.setattr(os, "fsync", waits.append)
        recorder.scalars(1, {"loss/train": 1 / 3, "a": math.nan, "b": -math.inf})
        assert [len(event.summary.value) for event in events(tmp_path)] == [0, 3]
        line = (tmp_path / "metrics.jsonl").read_text()
        assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "loss/train": 1 / 3, "a": None, "b": None}
        assert waits == []
        recorder.flush()
        assert len(waits) == 2  # only a flush waits for the disk


def test_the_checksum_is_the_standard_s_whoever_computes_it() -> None:
    assert tensorboard.pywrap_tensorflow.crc32c(b"123456789") == 0xE3069283
    code = "import sys; sys.modules['google_crc32c'] = None; import normbench.record.tensorboard as r; "
    code += "assert r.pywrap_tensorflow.crc32c(b'123456789') == 0xE3069283"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- continuation


@pytest.mark.parametrize(("torn", "last_step"), [(0, 0), (1, 17), (40, 20)])
def test_a_continued_run_has_every_step_once(tmp_path: Path, torn: int, last_step: int) -> None:
    truncate_events(tmp_path, 5)  # of nothing makes nothing
    truncate_metrics(tmp_path / "metrics.jsonl", 5)
    assert list(tmp_path.iterdir()) == []
    record_steps(tmp_path, range(1, 31)).close()
    killed = event_file(tmp_path)
    for path in (killed, tmp_path / "metrics.jsonl"):
        os.truncate(path, path.stat().st_size - torn)
    with open(tmp_path / "metrics.jsonl", "a") as metrics:
        metrics.write("\n[]\nno JSON\n")  # of a damaged disk
    truncate_events(tmp_path, last_step)
    truncate_metrics(tmp_path / "metrics.jsonl", last_step)
    assert event_file(tmp_path).name > killed.name  # TensorBoard goes through files in this order
    record_steps(tmp_path, range(last_step + 1, 41)).close()
    assert series(tmp_path, "loss/train") == [(step, step / 8) for step in range(1, 41)]
    assert [event.step for event in read(tmp_path).Tensors("act/final/in")] == [10, 20, 30, 40]
    assert logged_steps(tmp_path) == list(range(1, 41))
    assert texts(tmp_path, "config") == [(0, f"from {last_step + 1}".encode())]
    assert texts(tmp_path, BLOCKS) == [(0, f"drawn at {last_step + 1}".encode())]
    tags = [value.tag for event in events(tmp_path) for value in event.summary.value]
    about_the_run = ("config", BLOCKS, "custom_scalars__config__", hparams_metadata.SESSION_START_INFO_TAG)
    assert [tags.count(tag) for tag in about_the_run] == [1] * len(about_the_run)


def test_texts_of_steps_stay_where_a_run_goes_on(tmp_path: Path) -> None:
    """As a translator's sentences do, of each evaluation up to the checkpoint."""
    for first in (1, 21):
        truncate_events(tmp_path, first - 1)
        with closing(record_steps(tmp_path, range(first, first + 25))) as recorder:
            recorder.texts(first + 24, {"sentences/val": f"of {first + 24}"})
            recorder.texts(first + 19, {"sentences/test": f"of {first + 19}"})
    assert texts(tmp_path, "sentences/val") == [(45, b"of 45")]
    assert texts(tmp_path, "sentences/test") == [(20, b"of 20"), (40, b"of 40")]
    assert texts(tmp_path, "config") == [(0, b"from 21")]


def test_a_run_whose_scalars_an_earlier_version_wrote_as_tensors_goes_on_as_one_series(tmp_path: Path) -> None:
    kind = scalar_metadata.create_summary_metadata(display_name="", description="")
    with open(tmp_path / "events.out.tfevents.0000000001.here.1", "wb") as file:
        records = RecordWriter(file)
        for step in range(1, 21):
            values = [
                Summary.Value(
                    tag=tag,
                    metadata=kind if step == 1 else None,
                    tensor=TensorProto(dtype="DT_FLOAT", float_val=[value]),
                )
                for tag, value in (("loss/train", step / 8), ("optim/lr", 0.0))
            ]
            records.write(Event(step=step, summary=Summary(value=values)).SerializeToString())
    truncate_events(tmp_path, 10)
    record_steps(tmp_path, range(11, 21)).close()
    assert series(tmp_path, "loss/train") == [(step, step / 8) for step in range(1, 21)]
    assert series(tmp_path, "optim/lr")[:11] == [*((step, 0.0) for step in range(1, 11)), (11, pytest.approx(1e-3))]
    assert "loss/train" not in read(tmp_path).Tags()["tensors"]


@pytest.mark.parametrize(("ended", "status"), [("finished", "STATUS_SUCCESS"), ("diverged", "STATUS_FAILURE")])
def test_an_end_is_written_once_with_its_status(tmp_path: Path, ended: str, status: str) -> None:
    """Also where a stop, or a kill behind the end but before the summary, comes before it."""
    tag = hparams_metadata.SESSION_END_INFO_TAG
    before = time.time()
    for first, stopped in ((1, ""), (11, "diverged"), (21, "finished"), (31, ended)):
        truncate_events(tmp_path, first - 1)
        record_steps(tmp_path, range(first, first + 10)).close(stopped)
        tags = [value.tag for event in events(tmp_path) for value in event.summary.value]
        assert tags.count(tag) == bool(stopped)
    end = hparams_metadata.parse_session_end_info_plugin_data(plugin(tmp_path, tag).content)
    assert end.status == api_pb2.Status.Value(status)
    assert before <= end.end_time_secs <= time.time()


# ---- a full disk


def test_a_file_that_met_a_full_disk_is_whole_when_there_is_room_again(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    failed = []
    with closing(Recorder(tmp_path)) as recorder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        for step in range(1, 301):
            try:
                recorder.scalars(step, {"loss/train": step / 8})
            except OSError:
                failed.append(step)
            if len(failed) == 10:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(failed) == 10
    assert series(tmp_path, "loss/train") == [(step, step / 8) for step in range(1, 301)]
    assert logged_steps(tmp_path) == list(range(1, 301))


# ---- the console


class Screen:
    """A console whose time a test moves."""

    def __init__(self, terminal: bool) -> None:
        self.now, self.output = 0.0, io.StringIO()
        self.console = Console(
            file=self.output, force_terminal=terminal, width=80, get_time=lambda: self.now, color_system=None
        )

    def train(self, display: Display, steps: range, seconds_per_step: float) -> None:
        for step in steps:
            self.now += seconds_per_step * steps.step
            display.scalars(step, {"loss/train": 2.0, "optim/lr": 1e-3, "time/tokens_per_second": 51234.0})

    @property
    def lines(self) -> list[str]:
        return self.output.getvalue().splitlines()


@pytest.mark.parametrize("terminal", [True, False])
def test_time_left_counts_only_this_process(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(terminal)
    display = Display(2000, "tokens", start_step=1000, console=screen.console)
    screen.train(display, range(1100, 1501, 100), seconds_per_step=0.1)
    display.stop()
    assert "0:00:50 left" in screen.output.getvalue()  # 500 steps of 0.1 s
    assert "loss 2.0000  lr 1.0e-03  51,234 tokens/s" in screen.output.getvalue()


def test_lines_without_a_terminal_come_at_each_ten_seconds_and_evaluation() -> None:
    screen = Screen(terminal=False)
    display = Display(100_000, "images", console=screen.console)
    screen.train(display, range(1, 101), seconds_per_step=1.0)
    display.scalars(101, {"loss/train": 2.0, "loss/val": 2.5})
    assert len(screen.lines) == 11 and "val 2.5000" in screen.lines[10]


def test_numbers_are_shown_under_their_own_step() -> None:
    screen = Screen(terminal=False)
    display = Display(100, "tokens", console=screen.console)
    display.scalars(10, {"loss/train": 2.0})
    display.scalars(15, {"loss/val": 2.5})
    screen.train(display, range(20, 21), seconds_per_step=1.0)
    display.scalars(20, {"loss/val": 2.4})
    assert ["2.5000" in line for line in screen.lines] == [True, False]
    assert "loss" not in screen.lines[0] and "loss 2.0000  val 2.4000" in screen.lines[1]


def test_the_live_display_keeps_an_evaluation_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(terminal=True)
    display = Display(100, "tokens", console=screen.console)
    display.scalars(10, {"loss/train": 2.0, "loss/val": 2.5})
    assert display.numbers() == "loss 2.0000  val 2.5000"
    display.scalars(20, {"loss/train": 1.9})
    assert display.numbers() == "loss 1.9000  val 2.5000 at step 10"
    display.stop()


def test_the_live_display_is_drawn_rarely_and_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen, before = Screen(terminal=True), (threading.active_count(), sys.stdout, sys.stderr)
    display = Display(1000, "tokens", console=screen.console)
    screen.train(display, range(1, 501), seconds_per_step=0.01)
    assert threading.active_count() == before[0]
    assert screen.output.getvalue().count("loss 2.0000") == pytest.approx(5 / 0.25, abs=2)
    display.stop()
    assert screen.output.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is shown again
    assert (sys.stdout, sys.stderr) == before[1:]


def test_the_closing_table_fits_into_a_log() -> None:
    screen, path = Screen(terminal=False), "/home/somebody" * 10
    show_table("results", {"validation loss": 1.88123456, "parameters": 812_345, "directory": path}, screen.console)
    assert max(len(line.rstrip()) for line in screen.lines) <= 80
    assert {"validation loss 1.8812", "parameters 812,345"} <= {" ".join(line.split()) for line in screen.lines}
    assert "".join(line.split()[-1] for line in screen.lines if "some" in line or "body" in line) == path
