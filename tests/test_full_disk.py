"""Recording on a full disk: it is told at once, nothing hangs, and what is there stays whole."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from test_recording import child, record_steps, series

from normbench.recording import JsonLinesSink, Sink, TensorBoardSink


def full_lines(directory: Path) -> Sink:
    return JsonLinesSink(Path("/dev/full"))


def full_events(directory: Path) -> Sink:
    (directory / "events.out.tfevents.1.host.1").symlink_to("/dev/full")
    return TensorBoardSink(directory)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("make", [full_lines, full_events])
def test_a_full_disk_is_told_by_the_call_that_meets_it(tmp_path: Path, make: Callable[[Path], Sink]) -> None:
    with pytest.raises(OSError) as caught, closing(make(tmp_path)) as sink:
        sink.scalars(1, {"loss/train": 1.0})
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_again_by_flush_and_close_and_nothing_hangs() -> None:
    sink = JsonLinesSink(Path("/dev/full"))
    for call in (lambda: sink.scalars(1, {"loss/train": 1.0}), sink.flush, sink.close):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    sink.close()


def test_a_file_that_met_a_full_disk_is_whole_when_there_is_room_again(tmp_path: Path) -> None:
    output = child(
        """
        tensorboard, lines = TensorBoardSink(path), JsonLinesSink(path / "metrics.jsonl")
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        failed = []
        for step in range(1, 301):
            for sink in (tensorboard, lines):
                try:
                    sink.scalars(step, {"loss/train": step / 8})
                except OSError:
                    failed.append(step)
            if len(failed) == 10:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        tensorboard.close()
        lines.close()
        print(len(failed))
        """,
        tmp_path,
    )
    assert int(output) == 10
    assert series(tmp_path, "loss/train") == [(step, step / 8) for step in range(1, 301)]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 301))


def test_truncation_on_a_full_disk_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    record_steps(tmp_path, range(1, 101)).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    child(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        for truncate in (lambda: truncate_events(path, 90), lambda: truncate_metrics(path / "metrics.jsonl", 90)):
            with pytest.raises(OSError):
                truncate()
        """,
        tmp_path,
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_flush_and_close_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_steps(tmp_path, range(1, 2))
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    recorder.scalars(2, {"loss/train": 1.0})
    assert waits == []
    recorder.flush()
    assert len(set(waits)) == 2
    recorder.close()
    assert len(waits) == 4
