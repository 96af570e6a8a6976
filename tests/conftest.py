"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch

# Small tensors gain nothing from a second thread, and tests run side by side: also in processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in the processes that tests start, whatever torch has read of the environment."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no core waits for the last one.

    Tests on the public data sets need the folder that NORMBENCH_DATA names.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if "NORMBENCH_DATA" not in os.environ:
        skip = pytest.mark.skip(reason="NORMBENCH_DATA names no folder with the public data sets")
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Decode data sets into a cache of the tests' own."""
    os.environ.setdefault("NORMBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says a measured figure behind all tests, whichever process had the test."""
    return lambda line: record_property(TOLD, line)


TOLD = "told"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have told."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties = [
        pair for report in reports if getattr(report, "when", "") == "call" for pair in report.user_properties
    ]
    if lines := [str(line) for name, line in properties if name == TOLD]:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(lines))
