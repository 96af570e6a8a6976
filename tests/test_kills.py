"""A translator and a stream that are stopped at places drawn by lot; `python tests/kills.py 15` draws more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import Server
from kills import disturbed, left

pytest_plugins = ["run_fixtures"]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "evaluations"), [("rnnsearch", [5, 10, 15, 20, 24]), ("images of a stream", [])])
def test_what_is_stopped_by_lot_ends_like_an_undisturbed_one(
    case: str, evaluations: list[int], server: Server, tmp_path: Path
) -> None:
    assert [*disturbed(case, server, tmp_path, 1)]
    (record,) = left(tmp_path / "whole").values()
    assert [step for step, _ in record.events.get("sentences/val", [])] == evaluations
