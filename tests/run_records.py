"""What a run has left behind, in a form that compares bit by bit; times, which never repeat, left out."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

EVENTS = "events.out.tfevents."
Series = dict[str, list[tuple[int, Any]]]  # tag -> (step, value)


@dataclass(frozen=True)
class Record:
    """A run directory's content.

    checkpoint: the last one, tensors as dtype, shape and bytes. metrics: the lines of metrics.jsonl. events: everything
    in the event files. summary: without what was measured in time and memory, and digests of it. files: the names of
    all files.
    """

    checkpoint: Any
    metrics: list[dict[str, Any]]
    events: Series
    summary: dict[str, Any]
    status: str
    files: list[str]


def read_record(directory: Path) -> Record:
    """Read a finished run."""
    summary = read_json(directory / "summary.json")
    del summary["step_time"], summary["peak_memory_bytes"], summary["digests"]
    summary["ledger"].pop("host_share_of_step", None)  # of the last process, as times are
    summary["metrics"] = timeless(summary["metrics"])
    return Record(
        checkpoint=read_checkpoint(directory / "checkpoint.pt"),
        metrics=read_metrics(directory),
        events=read_events(directory),
        summary=summary,
        status=read_json(directory / "status.json")["status"],
        files=sorted("events" if path.name.startswith(EVENTS) else path.name for path in directory.iterdir()),
    )


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {tag: value for tag, value in values.items() if not tag.startswith("time/")}


def read_checkpoint(path: Path) -> Any:
    state = torch.load(path, weights_only=True)
    del state["durations"]
    state["latest"] = timeless(state["latest"])
    return comparable(state)


def comparable(content: Any) -> Any:
    """The same with tensors that `==` compares bit by bit."""
    if isinstance(content, torch.Tensor):
        return str(content.dtype), tuple(content.shape), content.contiguous().numpy().tobytes()
    if isinstance(content, dict):
        return {key: comparable(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [comparable(value) for value in content]
    return content


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines without times; those that held nothing else stay as their step."""
    return [timeless(json.loads(line)) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def read_events(directory: Path) -> Series:
    """Every value in the event files, after a look whether TensorBoard shows all of them."""
    series: Series = defaultdict(list)
    for path in sorted(directory.glob(f"{EVENTS}*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if not value.tag.startswith("time/"):
                    step = 0 if value.tag.startswith("_hparams_/") else event.step  # those belong to no step
                    content = make_ndarray(value.tensor)
                    bits = content.item() if content.dtype == object else content.tobytes()
                    series[value.tag].append((step, bits))
    shown = EventAccumulator(str(directory), size_guidance={"tensors": 0, "scalars": 0}).Reload()
    scalars = set(shown.Tags()["scalars"])
    for tag, values in series.items():
        if not tag.startswith("_hparams_/"):
            found = shown.Scalars(tag) if tag in scalars else shown.Tensors(tag)
            assert [event.step for event in found] == [step for step, _ in values], tag
    return dict(series)


def assert_same(record: Record, reference: Record) -> None:
    """Equal bits, and every tag has its steps in order, none of them twice."""
    assert record == reference
    assert_steps_increase(record)


def assert_steps_increase(record: Record) -> None:
    """No step twice and none out of order, for any tag."""
    logged = defaultdict(list)
    for line in record.metrics:
        for tag in line.keys() - {"step"}:
            logged[tag].append((line["step"], line[tag]))
    for tag, values in (*record.events.items(), *logged.items()):
        steps = [step for step, _ in values]
        assert steps == sorted(set(steps)), tag
