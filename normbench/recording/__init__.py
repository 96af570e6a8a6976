"""Where a run's numbers go: TensorBoard, `metrics.jsonl` and the console, composed by a `Recorder`."""

from __future__ import annotations

from normbench.recording.console import ConsoleSink
from normbench.recording.event_files import truncate_events
from normbench.recording.json_lines import JsonLinesSink, truncate_metrics
from normbench.recording.layout import start_page
from normbench.recording.sink import Histogram, NullSink, Recorder, Scalar, Sink
from normbench.recording.tensorboard_sink import TensorBoardSink
from normbench.recording.weighing import WeighingSink

__all__ = [
    "ConsoleSink",
    "Histogram",
    "JsonLinesSink",
    "NullSink",
    "Recorder",
    "Scalar",
    "Sink",
    "TensorBoardSink",
    "WeighingSink",
    "start_page",
    "truncate_events",
    "truncate_metrics",
]
