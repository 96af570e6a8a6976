"""Recording: what the sinks write is read back by TensorBoard's own readers, after kills and full disks as well."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as tensorboard_crc32c
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.util.tensor_util import make_ndarray

from normbench.recording import (
    JsonLinesSink,
    Recorder,
    Scalar,
    TensorBoardSink,
    truncate_events,
    truncate_metrics,
)
from normbench.recording.records import crc32c, frame, read_records

CONFIG: dict[str, Scalar] = {"norm": "rmsnorm", "seed": 0, "optim.lr": 1e-3, "norm.affine": True, "norm.groups": None}


class Histogram(NamedTuple):
    counts: list[float]
    edges: list[float]


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()


def series(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, make_ndarray(event.tensor_proto).item()) for event in read(directory).Tensors(tag)]


def event_file(directory: Path) -> Path:
    (path,) = directory.glob("*tfevents*")
    return path


def plugin(accumulator: EventAccumulator, tag: str) -> str:
    return accumulator.SummaryMetadata(tag).plugin_data.plugin_name


def record_steps(directory: Path, steps: range) -> Recorder:
    """As a run does: the header at every start, then numbers."""
    tensorboard, lines = TensorBoardSink(directory), JsonLinesSink(directory / "metrics.jsonl")
    recorder = Recorder([tensorboard, lines])
    recorder.text("config", f"from {steps.start}")
    recorder.hparams(CONFIG, {})
    for step in steps:
        recorder.scalars(step, {"loss/train": step / 8, "optim/lr": 1e-3})
        if step % 10 == 0:
            recorder.histograms(step, {"act/final/in": Histogram([1, 2], [0, 1, 2])})
    return recorder


# ---- TensorBoard


def test_scalars_come_back_and_are_of_the_scalar_plugin(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    before = time.time()
    sink.scalars(1, {"loss/train": 2.5, "act/block00.mlp/rms_out": 0.1})
    sink.scalars(2, {"loss/train": math.inf})
    sink.scalars(3, {"loss/train": math.nan, "loss/val": 3.25})
    sink.close()
    accumulator = read(tmp_path)
    assert series(tmp_path, "loss/train")[:2] == [(1, 2.5), (2, math.inf)]
    assert math.isnan(series(tmp_path, "loss/train")[2][1])
    assert series(tmp_path, "loss/val") == [(3, 3.25)]
    assert series(tmp_path, "act/block00.mlp/rms_out") == [(1, pytest.approx(0.1, rel=1e-7))]
    assert {plugin(accumulator, tag) for tag in ("loss/train", "loss/val", "act/block00.mlp/rms_out")} == {"scalars"}
    assert before <= accumulator.Tensors("loss/train")[0].wall_time <= time.time()


def test_one_call_is_one_event_in_one_file_that_is_there_at_once(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    count = len(list(read_records(event_file(tmp_path))))
    threads = threading.active_count()
    sink.scalars(1, {f"act/block{block:02d}/rms": float(block) for block in range(150)})
    assert len(list(read_records(event_file(tmp_path)))) == count + 1
    assert threading.active_count() == threads
    sink.close()


def test_histograms_come_back_as_buckets(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.histograms(
        50,
        {
            "act/final/in": Histogram([3.0, 0.0, 7.0], [-1.0, 0.0, 0.5, 2.0]),
            "act/final/out": Histogram([1.0], [math.nan, math.nan]),
        },
    )
    sink.close()
    accumulator = read(tmp_path)
    (event,) = accumulator.Tensors("act/final/in")
    assert event.step == 50
    np.testing.assert_array_equal(make_ndarray(event.tensor_proto), [[-1, 0, 3], [0, 0.5, 0], [0.5, 2, 7]])
    assert plugin(accumulator, "act/final/in") == "histograms"
    assert "act/final/out" not in accumulator.Tags()["tensors"]


def test_text_comes_back(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.text("config", "```yaml\nα: 0.5\n```")
    sink.close()
    accumulator = read(tmp_path)
    (event,) = accumulator.Tensors("config")
    assert make_ndarray(event.tensor_proto).item().decode() == "```yaml\nα: 0.5\n```"
    assert plugin(accumulator, "config") == "text"


def test_hyperparameters_come_back(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.hparams(CONFIG, {})
    assert hparams_metadata.SESSION_END_INFO_TAG not in read(tmp_path).Tags()["tensors"]
    sink.scalars(10, {"loss/val": 1.5, "weight/norm": 30.0})
    sink.hparams(CONFIG, {"loss/val": 1.5})
    sink.close()
    accumulator = read(tmp_path)

    def content(tag: str) -> bytes:
        return accumulator.SummaryMetadata(tag).plugin_data.content

    start = hparams_metadata.parse_session_start_info_plugin_data(content(hparams_metadata.SESSION_START_INFO_TAG))
    end = hparams_metadata.parse_session_end_info_plugin_data(content(hparams_metadata.SESSION_END_INFO_TAG))
    experiment = hparams_metadata.parse_experiment_plugin_data(content(hparams_metadata.EXPERIMENT_TAG))
    assert start.hparams["norm"].string_value == "rmsnorm"
    assert start.hparams["norm.groups"].string_value == "null"
    assert start.hparams["optim.lr"].number_value == 1e-3
    assert start.hparams["norm.affine"].bool_value is True
    assert end.end_time_secs >= start.start_time_secs > 0
    assert {info.name for info in experiment.hparam_infos} == set(CONFIG)
    metrics = [info.name.tag for info in experiment.metric_infos]
    assert "loss/val" in metrics and "weight/norm" not in metrics
    assert series(tmp_path, "loss/val") == [(10, 1.5)]


def test_layout_names_charts_for_what_a_run_records(tmp_path: Path) -> None:
    TensorBoardSink(tmp_path).close()
    accumulator = read(tmp_path)
    (event,) = accumulator.Tensors("custom_scalars__config__")
    layout = Layout.FromString(make_ndarray(event.tensor_proto).item())
    charts = {chart.title: list(chart.multiline.tag) for category in layout.category for chart in category.chart}
    assert plugin(accumulator, "custom_scalars__config__") == "custom_scalars"
    for title, tag in {
        "loss": "loss/val",
        "accuracy": "accuracy/val",
        "residual stream RMS by depth": "act/stream03/rms",
        "RMS of norm outputs": "act/block03.mlp/rms_out",
        "gradient norm by block": "grad/block03.mlp/norm",
        "α and mean γ of the norms": "norm/block03.mlp/alpha",
        "step time": "time/step_ms",
        "throughput": "time/tokens_per_second",
    }.items():
        assert any(re.match(pattern, tag) for pattern in charts[title]), title


# ---- the file format


@pytest.mark.parametrize("length", [4, 5, 8, 255, 256, 257, 259, 260, 511, 512, 513, 4999])
def test_checksum_is_tensorboards(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert crc32c(data) == tensorboard_crc32c(data)


def test_checksum_of_the_standard() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4: 32 bytes of zeros
    assert crc32c(b"\xff" * 32) == 0x62A8AB43  # and of ones
    assert crc32c(b"123456789") == 0xE3069283


def test_checksum_is_several_times_as_fast_as_tensorboards() -> None:
    data = random.Random(0).randbytes(8000)

    def seconds(checksum: Callable[[bytes], int]) -> float:
        times = []
        for _ in range(20):
            start = time.perf_counter()
            checksum(data)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(crc32c) * 5 < seconds(tensorboard_crc32c)


def test_reading_stops_at_damage(tmp_path: Path) -> None:
    path = tmp_path / "records"
    records = [bytes([number]) * 300 for number in range(5)]
    whole = b"".join(map(frame, records))
    size = len(whole) // 5
    for cut in range(2 * size, 3 * size):
        path.write_bytes(whole[:cut])
        assert list(read_records(path)) == records[:2]
    for position in range(2 * size, 3 * size):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert list(read_records(path)) == records[:2]


# ---- continuation


@pytest.mark.parametrize("torn", [0, 1, 11, 13, 40])
@pytest.mark.parametrize("last_step", [0, 17, 20])
def test_a_continued_run_has_every_step_once(tmp_path: Path, torn: int, last_step: int) -> None:
    record_steps(tmp_path, range(1, 31)).close()
    for path in (event_file(tmp_path), tmp_path / "metrics.jsonl"):
        os.truncate(path, path.stat().st_size - torn)
    killed = event_file(tmp_path)
    truncate_events(tmp_path, last_step)
    truncate_metrics(tmp_path / "metrics.jsonl", last_step)
    assert event_file(tmp_path).name > killed.name  # TensorBoard goes through files in this order
    record_steps(tmp_path, range(last_step + 1, 41)).close()

    event_file(tmp_path)  # still one
    expected = [(step, step / 8) for step in range(1, 41)]
    assert series(tmp_path, "loss/train") == expected
    assert [event.step for event in read(tmp_path).Tensors("act/final/in")] == [10, 20, 30, 40]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss/train"]) for line in lines] == expected
    assert header_tags(tmp_path) == sorted(
        ["custom_scalars__config__", "config", hparams_metadata.EXPERIMENT_TAG, hparams_metadata.SESSION_START_INFO_TAG]
    )
    (text,) = read(tmp_path).Tensors("config")
    assert make_ndarray(text.tensor_proto).item().decode() == f"from {last_step + 1}"


def header_tags(directory: Path) -> list[str]:
    """Every tag that is neither scalar nor histogram, as often as it is in the file."""
    events = EventFileLoader(str(event_file(directory))).Load()
    tags = [value.tag for event in events for value in event.summary.value]
    return sorted(tag for tag in tags if not tag.startswith(("loss/", "optim/", "act/")))


def test_a_kill_between_the_new_file_and_the_removal_of_the_old_leaves_no_doubles(tmp_path: Path) -> None:
    record_steps(tmp_path, range(1, 31)).close()
    old = event_file(tmp_path)
    content = old.read_bytes()
    truncate_events(tmp_path, 20)
    old.write_bytes(content)
    (tmp_path / f".{old.name}.left-over").write_bytes(content)
    truncate_events(tmp_path, 15)
    assert [step for step, _ in series(tmp_path, "loss/train")] == list(range(1, 16))
    assert len(list(tmp_path.iterdir())) == 2  # metrics.jsonl is the other


def test_files_with_later_steps_are_joined(tmp_path: Path) -> None:
    record_steps(tmp_path, range(1, 11)).close()
    first = event_file(tmp_path)
    aside = tmp_path / "aside"
    aside.mkdir()
    first.rename(aside / first.name)
    record_steps(tmp_path, range(8, 21)).close()
    event_file(tmp_path).rename(tmp_path / "events.out.tfevents.9999999998.host.1")
    (aside / first.name).rename(first)
    truncate_events(tmp_path, 18)
    assert [step for step, _ in series(tmp_path, "loss/train")] == list(range(1, 19))


def test_truncating_nothing_makes_nothing(tmp_path: Path) -> None:
    truncate_events(tmp_path, 5)
    truncate_metrics(tmp_path / "metrics.jsonl", 5)
    assert list(tmp_path.iterdir()) == []


def test_numbers_survive_sigkill_without_a_flush(tmp_path: Path) -> None:
    child(
        """
        recorder = record_steps(path, range(1, 21))
        os.kill(os.getpid(), 9)
        """,
        tmp_path,
        returncode=-9,
    )
    assert [step for step, _ in series(tmp_path, "loss/train")] == list(range(1, 21))
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 20


def child(code: str, path: Path, returncode: int = 0) -> str:
    """Run code in another Python, which has `path`; returns what it printed."""
    program = (
        "import os, resource, pathlib\nfrom tests.test_recording import *\n"
        f"path = pathlib.Path({str(path)!r})\n{textwrap.dedent(code)}"
    )
    root = Path(__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == returncode, result.stderr
    return result.stdout


# ---- metrics.jsonl


def test_json_lines_are_valid_json_and_complete_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    sink.scalars(10, {"loss/train": 0.1, "loss/val": 1 / 3})
    assert json.loads(path.read_text()) == {"step": 10, "loss/train": 0.1, "loss/val": 1 / 3}
    sink.scalars(20, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    sink.close()
    second = json.loads(path.read_text().splitlines()[1], parse_constant=pytest.fail)
    assert second == {"step": 20, "a": None, "b": None, "c": None, "d": 1.0}


def test_json_lines_go_on_in_the_same_file(tmp_path: Path) -> None:
    for step in (1, 2):
        sink = JsonLinesSink(tmp_path / "metrics.jsonl")
        sink.scalars(step, {})
        sink.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
