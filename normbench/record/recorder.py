"""Hands a run's numbers to `metrics.jsonl` and to its loggers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from normbench.errors import explain
from normbench.record.files import sync_directory
from normbench.record.loggers import Histogram, Lines, Logger, Scalar
from normbench.record.tensorboard import TensorBoard


class Recorder:
    """Hands a run's numbers to `metrics.jsonl` and to its loggers, by default TensorBoard.

    Each record of ours is whole and with the operating system when the call returns, so no kill loses one. Steps do not
    decrease from call to call. A full disk raises OSError (ENOSPC) from the call that writes, or at the latest from
    `flush`; what it did not take stays buffered and goes out first when there is room again: no file is ever damaged in
    its middle. No background thread of ours takes time from the training or swallows an error. What another logger
    raises ends that logger, not the run. Call `truncate_metrics` and `truncate_events` first.
    """

    def __init__(self, directory: Path, loggers: Sequence[Logger] | None = None) -> None:
        if loggers is None:
            loggers = [TensorBoard(directory, 0)]
        self.loggers = [*loggers, Lines(directory, 0)]
        sync_directory(directory)

    def each(self, call: str, *given: Any) -> None:
        """Call each logger, `metrics.jsonl` first, also when the disk is full for one of them."""
        with ExitStack() as stack:
            for logger in self.loggers:
                stack.callback(self.hand, logger, call, given)

    def hand(self, logger: Logger, call: str, given: Sequence[Any]) -> None:
        """Call a logger; one that fails is left out from then on, unless it is one of ours in the run's directory."""
        try:
            getattr(logger, call)(*given)
        except Exception as error:  # another library's client may raise anything
            if isinstance(logger, Lines):
                raise
            self.loggers.remove(logger)
            name = type(logger).__name__
            what = f"{name} has failed and takes no more numbers of this run; metrics.jsonl has them all"
            logging.getLogger("normbench").warning("warning: %s: %s", what, explain(error))

    def expect(self, metrics: Collection[str]) -> None:
        """Tell each logger what `Logger.expect` says."""
        self.each("expect", metrics)

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        """Tell each logger what `Logger.begin` says."""
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
        """Flush and let go of all resources, as `Logger.close` has it; a second call does nothing."""
        with ExitStack() as stack:
            stack.callback(self.loggers.clear)
            self.each("close", ended)


class Silent(Recorder):
    """Takes numbers and drops them: for a process that only helps the one that holds the run."""

    def __init__(self) -> None:
        self.loggers = []
