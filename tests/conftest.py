"""What holds for all tests."""

from __future__ import annotations

import os
import signal

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from a second thread, and tests may run side by side."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the public data sets need the folder that NORMBENCH_DATA names."""
    if "NORMBENCH_DATA" not in os.environ:
        skip = pytest.mark.skip(reason="NORMBENCH_DATA names no folder with the public data sets")
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Decode data sets into a cache of the tests' own."""
    os.environ.setdefault("NORMBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
