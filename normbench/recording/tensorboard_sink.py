"""TensorBoard: scalars, histograms, text, hyperparameters and a layout, in one event file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

from normbench.recording import events, layout
from normbench.recording.appended import AppendedFile
from normbench.recording.event_files import event_files, new_event_file
from normbench.recording.records import frame
from normbench.recording.sink import Histogram, Scalar, Sink


class TensorBoardSink(Sink):
    """Appends to the directory's event file, or begins one: one event a call, whatever its number of tags.

    After a kill, `truncate_events` comes first.
    """

    def __init__(self, directory: Path) -> None:
        existing = event_files(directory)
        self._file = AppendedFile(existing[-1] if existing else new_event_file(directory))
        self._described: set[str] = set()  # tags
        self._step = 0
        self._listed = False
        try:
            self._begin(new=not existing)
        except OSError:
            with suppress(OSError):
                self._file.close()
            raise

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._step = step
        self._append(self._event(*(self._scalar(tag, number) for tag, number in values.items())))

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Write histograms; those with edges that are not finite, which TensorBoard cannot draw, are left out."""
        self._step = step
        drawable = {tag: histogram for tag, histogram in values.items() if np.isfinite(histogram.edges).all()}
        self._append(self._event(*(self._histogram(tag, histogram) for tag, histogram in drawable.items())))

    def text(self, tag: str, markdown: str) -> None:
        self._append(self._event(events.text_value(tag, markdown)))

    def hparams(self, config: Mapping[str, Scalar], metrics: Mapping[str, float]) -> None:
        """List the run in the HParams tab, which shows the last value that `scalars` has written of each metric."""
        if not self._listed:
            columns = dict.fromkeys([*layout.METRICS, *metrics])
            self._append(self._event(events.experiment_value(config, columns), events.session_start_value(config)))
            self._listed = True
        if metrics:
            self._append(self._event(events.session_end_value()))

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _begin(self, new: bool) -> None:
        if new:
            self._append(events.version_event())
        self._append(self._event(events.layout_value(layout.CHARTS)))

    def _scalar(self, tag: str, number: float) -> Summary.Value:
        return self._describe(events.scalar_value(tag, number), events.SCALAR)

    def _histogram(self, tag: str, histogram: Histogram) -> Summary.Value:
        return self._describe(events.histogram_value(tag, histogram), events.HISTOGRAM)

    def _describe(self, value: Summary.Value, metadata: SummaryMetadata) -> Summary.Value:
        """TensorBoard wants to know a tag's kind once, which saves half of the bytes afterwards."""
        if value.tag not in self._described:
            value.metadata.CopyFrom(metadata)
            self._described.add(value.tag)
        return value

    def _event(self, *values: Summary.Value) -> Event:
        return Event(step=self._step, wall_time=time.time(), summary=Summary(value=values))

    def _append(self, event: Event) -> None:
        self._file.write(frame(event.SerializeToString()))
