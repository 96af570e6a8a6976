"""What a sink is, one that keeps nothing, and one that passes on to several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

Scalar = bool | int | float | str | None


class Histogram(Protocol):
    """Counts of values between edges; one more edge than counts."""

    @property
    def counts(self) -> Sequence[float]: ...

    @property
    def edges(self) -> Sequence[float]: ...


class Sink:
    """Takes a run's numbers. Every method does nothing here: a sink overrides those that it has a place for.

    Steps do not decrease from call to call. A full disk raises OSError (ENOSPC) from the call that writes, or at the
    latest from `flush`.
    """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of this step, by tag."""

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Histograms of this step, by tag."""

    def text(self, tag: str, markdown: str) -> None:
        """A page for people, such as the configuration. Called anew whenever a run starts or goes on."""

    def hparams(self, config: Mapping[str, Scalar], metrics: Mapping[str, float]) -> None:
        """The choices that made the run, the most important first, and its results, tags that `scalars` has recorded.

        Called without results whenever a run starts or goes on, and once more with them when it has ended.
        """

    def message(self, line: str) -> None:
        """One line for the person at the console."""

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """`step` steps are done; the newest numbers by tag, for a live display. Cheap enough for every log step."""

    def summary(self, title: str, rows: Iterable[tuple[str, Scalar]]) -> None:
        """A closing table of names and values."""

    def flush(self) -> None:
        """Return when everything so far is on disk."""

    def close(self) -> None:
        """Flush and let go of all resources; a second call does nothing."""


class NullSink(Sink):
    """Keeps nothing and shows nothing."""


class Recorder(Sink):
    """Passes everything on to several sinks."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.scalars(step, values)

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        for sink in self.sinks:
            sink.histograms(step, values)

    def text(self, tag: str, markdown: str) -> None:
        for sink in self.sinks:
            sink.text(tag, markdown)

    def hparams(self, config: Mapping[str, Scalar], metrics: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.hparams(config, metrics)

    def message(self, line: str) -> None:
        for sink in self.sinks:
            sink.message(line)

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.progress(step, values)

    def summary(self, title: str, rows: Iterable[tuple[str, Scalar]]) -> None:
        rows = tuple(rows)
        for sink in self.sinks:
            sink.summary(title, rows)

    def flush(self) -> None:
        """Flush every sink, also when one of them fails; its error is raised then."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.flush)

    def close(self) -> None:
        """Close every sink, also when one of them fails; its error is raised then."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)
