"""A pytest plugin: `normbench swap` in this process, on a terminal of 120 letters."""

from __future__ import annotations

import pytest
from support import Swap

from normbench.cli import main


@pytest.fixture
def swap(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Swap:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str, status: int = 0) -> str:
        assert main(["swap", *words]) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return run
