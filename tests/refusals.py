"""A pytest plugin for the tests of mistakes: a folder to be refused in, where no run may train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from normbench.runs import session


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, in which no run may come so far that it trains."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def trained(self: session.Session) -> int:
        raise AssertionError("it came to training")

    monkeypatch.setattr(session.Session, "train", trained)
    return folder
