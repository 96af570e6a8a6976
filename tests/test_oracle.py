"""What the oracle takes for a difference between two versions, and for a wording."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from oracle import CLOSE, compare
from sweeps import SWEEPS

KEPT: dict[str, Any] = {
    "answers": {"one": {"mean": 0.25, "verdict": "different", "text": "rmsnorm is better, by far."}},
    "names": {"norm=rmsnorm": "rmsnorm-pre-s0-3f2a9c1b"},
    "help": {"train": "Train a model."},
    "tables": {"one/runs.csv": [{"arm": "rmsnorm", "loss": 2.0}, {"arm": "layernorm", "loss": float("nan")}]},
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """What is kept, with another value at a place."""
    found = copy.deepcopy(KEPT)
    part: Any = found
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to
    return found


def test_there_are_thirty_sweeps() -> None:
    assert len(SWEEPS) >= 30


def test_the_same_is_the_same() -> None:
    assert compare(KEPT, copy.deepcopy(KEPT)) == 0
    assert compare(KEPT, changed("answers", "one", "mean", to=0.25 * (1 + CLOSE / 2))) == 0


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("answers", "one", "mean"), 0.25 * (1 + 10 * CLOSE)),
        (("answers", "one", "verdict"), "unknown"),
        (("answers", "one", "more"), 1),
        (("names", "norm=rmsnorm"), "rmsnorm-pre-s0-00000000"),
        (("tables", "one/runs.csv"), []),
        (("tables", "one/runs.csv", 1, "loss"), 2.0),
    ],
)
def test_a_number_a_name_or_a_key_is_a_difference(path: tuple[Any, ...], to: Any) -> None:
    assert compare(KEPT, changed(*path, to=to)) == 1


def test_a_sentence_or_a_help_page_is_a_wording(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(KEPT, changed("answers", "one", "text", to="rmsnorm is the better one.")) == 0
    assert compare(KEPT, changed("help", "train", to="Train.")) == 0
    assert "Wordings: 1 differ." in capsys.readouterr().out
