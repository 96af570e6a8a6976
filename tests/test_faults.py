"""The faults that `faults/plant.py` plants: each can be planted, and leaves Python that differs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from plant import CHECKOUT, Fault, read_faults

FAULTS = read_faults()


def test_there_are_sixty() -> None:
    assert len(FAULTS) >= 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault, tmp_path: Path) -> None:
    source = CHECKOUT / "normbench" / fault.file
    copy = tmp_path / "normbench" / fault.file
    copy.parent.mkdir(parents=True)
    copy.write_text(source.read_text())
    fault.plant(tmp_path)
    before = ast.dump(ast.parse(source.read_text()))
    after = ast.dump(ast.parse(copy.read_text()))
    assert after != before
    for file in fault.tests:
        assert (Path(__file__).parent / file).is_file()
