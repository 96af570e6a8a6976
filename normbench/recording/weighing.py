"""How much a run's record will weigh, found by writing a little of it where it does not stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from normbench.recording.json_lines import JsonLinesSink
from normbench.recording.sink import Histogram, Recorder, Sink
from normbench.recording.tensorboard_sink import TensorBoardSink


class WeighingSink(Sink):
    """Notes the bytes that the last call of each method would have added to a run's files; nothing stays.

    Everything is written twice, since an event file describes a tag only at its first value.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="normbench-")
        folder = Path(self._folder.name)
        self._files = Recorder([JsonLinesSink(folder / "metrics.jsonl"), TensorBoardSink(folder)])
        self.scalar_bytes = 0
        self.histogram_bytes = 0

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.scalar_bytes = self._weigh(lambda: self._files.scalars(step, values))

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        self.histogram_bytes = self._weigh(lambda: self._files.histograms(step, values))

    def close(self) -> None:
        self._files.close()
        self._folder.cleanup()

    def _weigh(self, write: Callable[[], None]) -> int:
        write()
        before = self._size()
        write()
        return self._size() - before

    def _size(self) -> int:
        return sum(path.stat().st_size for path in Path(self._folder.name).iterdir())
