"""What holds for all tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from a second thread, and tests may run side by side."""
    torch.set_num_threads(1)
