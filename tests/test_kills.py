"""A translator that is stopped at places drawn by lot; `python tests/kills.py 15` draws more of them, of each kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from killing import Server, Trap
from kills import disturbed, left, make, words
from run_records import assert_same
from support import WHOLE

from normbench.cli import main
from normbench.training.loop import Loop

pytest_plugins = ["run_fixtures"]


@pytest.mark.slow
def test_what_is_stopped_by_lot_ends_like_an_undisturbed_one(server: Server, tmp_path: Path) -> None:
    """A killed run on a stream: test_streaming."""
    assert [*disturbed("rnnsearch", server, tmp_path, 1)]
    (record,) = left(tmp_path / "whole").values()
    assert [step for step, _ in record.events.get("sentences/val", [])] == [5, 10, 14]


@contextmanager
def interrupted_at(number: int) -> Iterator[None]:
    """Send this process SIGINT at its training step of this number."""
    train_step = Loop.train_step
    taken = 0

    def stop(loop: Loop, *given: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == number:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(loop, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "train_step", stop)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("case", ["given gpt2", "given vit"] if WHOLE else ["given gpt2"])
def test_a_given_model_that_is_killed_and_then_stopped_ends_like_an_undisturbed_one(
    case: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is killed; this one goes on, as another would, since transformers takes seconds to import."""
    pytest.importorskip("transformers" if "gpt2" in case else "timm")
    command = words(case, tmp_path)
    killed = server.start(command, make(tmp_path / "again"), Trap("training > gradients", 10))
    assert killed.wait() == -signal.SIGKILL, killed.output
    assert "saved 8" in killed.places
    monkeypatch.chdir(tmp_path / "again")
    with interrupted_at(6):
        assert main(command) == 130
    assert main(command) == 0
    monkeypatch.chdir(make(tmp_path / "whole"))
    assert main(command) == 0
    (found,) = left(tmp_path / "again").values()
    (expected,) = left(tmp_path / "whole").values()
    assert_same(found, expected)
