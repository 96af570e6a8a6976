"""Differences that are planted in real runs are found, and none is called where none is."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_report

from normbench.cli import main

TINY = ["model=mlp", "model.width=32", "data=digits", "trainer.steps=60", "trainer.eval_every=60", "device=cpu"]
TINY += ["threads=1", "probes=off", "launcher=local", "sweep.report=false", "quiet=true", "seed=range(0,5)"]


def comparisons(folder: Path, *words: str) -> dict[str, bool]:
    """Whether each arm of a sweep's runs is called different from the first one."""
    assert main(["sweep", *TINY, f"outputs={folder}", *words]) == 0
    found = make_report([folder / "sweep"]).family.differences
    return {one.arm: one.real for one in found}


@pytest.mark.slow
def test_three_times_the_learning_rate_is_found(tmp_path: Path) -> None:
    assert comparisons(tmp_path, "optim.lr=1e-3,3e-3") == {"lr=0.003": True}


@pytest.mark.slow
def test_two_implementations_of_one_norm_are_not_called_different(tmp_path: Path) -> None:
    assert comparisons(tmp_path, "norm=layernorm", "norm.impl=torch,eager") == {"impl=torch": False}
