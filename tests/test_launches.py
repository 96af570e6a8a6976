"""Operators of a step, counted beside the timing: which, that nothing else changes, and what a report says of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_report, make_run, read_study
from support import IMAGES, TEXT, TEXTS
from test_report import table

from normbench.results.caveat import Caveat, CaveatKind
from normbench.results.caveats import Case, find_caveats
from normbench.training.launches import COUNTED, EarlySteps, Launches
from normbench.types import Norm, Task

sys.path.append(str(Path(__file__).parent / "pretended_gpu"))

from training import make_loop, small

CPU = torch.device("cpu")


def test_what_starts_work_on_the_device_is_counted() -> None:
    x = torch.ones(4, 3)
    with Launches(CPU) as seen:
        torch.empty(3).resize_(2)
        y = x.view(3, 4).T.detach()
        y = y + 1
        y.sum()
    with Launches(torch.device("meta")) as elsewhere:
        x + x
        torch.ones(3, device="meta").sum()
    assert (seen.count, elsewhere.count) == (2, 2)


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ([*small("nano"), "norm=batchnorm", "model.dropout=0.1"], TEXTS),
        ([*small("nano"), "norm=rmsnorm", "trainer.ema=0.9", "trainer.accumulate=2"], TEXT),
        ([*small("cnn"), "norm=batchnorm", "data=digits"], IMAGES),
    ],
    ids=["texts", "accumulated", "cnn"],
)
def test_a_step_is_counted_once_and_keeps_its_bits(
    words: list[str], task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    looked, alone = (make_loop(words, task, "cpu") for _ in range(2))
    counted = []
    for _ in range(7):
        with looked.look_at_early_step():
            looked.train_step()
        counted.append(looked.early.operators)
        alone.train_step()
    assert counted[:4] == [None] * 4 and len({*counted[4:]}) == 1
    assert all(map(torch.equal, looked.model.state_dict().values(), alone.model.state_dict().values()))
    assert torch.equal(looked.loss_sum, alone.loss_sum)
    with Launches(CPU) as seen:
        alone.train_step()
    assert looked.early.found() == {"operators_a_step": seen.count}


@pytest.mark.parametrize("case", ["probed", "compiled", "several processes", "as it is"])
def test_a_step_that_does_more_or_hides_its_operators_is_not_counted(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = make_loop([*small("nano"), *(["probes.every=1"] if case == "probed" else [])], TEXT, "cpu")
    if case == "compiled":
        norm: Any = next(module for module in loop.model.modules() if isinstance(module, Norm))
        norm.compiled = True
    if case == "several processes":
        loop.group.size = 2
    loop.step = COUNTED
    with loop.look_at_early_step():
        pass
    assert (loop.early.operators is None) is (case != "as it is")


def test_steps_that_are_timed_ask_nothing_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop([*small("nano"), "norm=layernorm"], TEXT, "cpu")
    monkeypatch.setattr(loop.model, "modules", lambda: pytest.fail("each step looks at all modules"))
    loop.clock.to_skip = 0
    with loop.look_at_early_step():
        pass
    assert loop.early.found() == {}


def test_where_the_first_step_is_probed_the_next_one_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop, counted = make_loop([*small("nano"), "probes.every=5"], TEXT, "cpu"), []
    for _ in range(7):
        with loop.look_at_early_step():
            loop.train_step()
        counted.append(loop.early.operators)
    assert counted[:5] == [None] * 5
    with Launches(CPU) as seen:
        loop.train_step()
    assert counted[5:] == [seen.count] * 2


def test_the_host_is_timed_against_what_the_gpu_still_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It issues for 1 second; the GPU takes 3 more."""
    times = iter([10.0, 11.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    early = EarlySteps(torch.device("cuda", 0))
    for step, untimed in enumerate(range(10, 0, -1)):
        with early.look(step, untimed):
            pass
    assert early.found() == {"operators_a_step": 0, "host_share_of_step": 0.25}


def test_without_a_count_no_host_is_timed() -> None:
    """As where probes look at the steps before."""
    early = EarlySteps(torch.device("cuda", 0))
    for step, untimed in ((0, 10), (6, 4), (10, 0)):
        with early.look(step, untimed):
            pass
    assert early.found() == {"operators_a_step": 0}


def waiting(folder: Path) -> list[Caveat]:
    """Return what a report finds of hosts that keep their GPUs waiting."""
    found = []
    for one in find_caveats(Case(read_study([folder]))):
        if one.kind == CaveatKind.STEP_TIMES and any("operators" in evidence.numbers for evidence in one.found):
            found.append(one)
    return found


def two_arms(folder: Path, *ledgers: dict[str, Any]) -> Path:
    for norm, ledger in zip(("batchnorm", "layernorm"), ledgers, strict=True):
        for seed in range(2):
            make_run(folder, norm=norm, seed=seed, ledger=ledger, session={"accelerator": "NVIDIA H100"})
    return folder


def test_a_report_says_where_step_times_compare_launches(tmp_path: Path) -> None:
    """On a GPU that probably waits for its host in most runs of each arm, and nowhere else."""
    bound = [{"operators_a_step": count, "host_share_of_step": 0.98} for count in (363, 170)]
    (found,) = waiting(two_arms(tmp_path / "bound", *bound))
    gpu, *arms = found.found
    assert gpu.value == "NVIDIA H100" and gpu.arms == ("batchnorm", "layernorm")
    assert [(one.arms[0], one.numbers["operators"]) for one in arms] == [("batchnorm", 363), ("layernorm", 170)]
    assert "at work for at least 98 % of a step, so the NVIDIA H100 probably waited for it" in found.text
    make_run(tmp_path / "bound", seed=2, ledger=bound[1], session={"accelerator": "NVIDIA A100"})
    (found,) = waiting(tmp_path / "bound")
    assert [one.value for one in found.found if one.value] == ["NVIDIA H100", "NVIDIA A100"]
    half = make_run(tmp_path / "bound", seed=3, ledger={**bound[1], "host_share_of_step": 0.4}).parent
    assert len(waiting(half)) == 1  # three of four
    make_run(half, seed=4, ledger={}), make_run(half, seed=5, ledger={"operators_a_step": 170})
    assert waiting(half) == []  # three of six
    busy = ({"operators_a_step": 363, "host_share_of_step": share} for share in (0.98, 0.4))
    assert waiting(two_arms(tmp_path / "busy", *busy)) == []
    assert waiting(two_arms(tmp_path / "cpu", {"operators_a_step": 363}, {"operators_a_step": 170})) == []


def test_operators_stand_in_the_table_of_costs_where_they_were_counted(tmp_path: Path) -> None:
    counted = make_report([two_arms(tmp_path / "counted", {"operators_a_step": 1363}, {})])
    assert [row["operators a step"] for row in table(counted, "costs")] == ["1,363", "–"]
    old = make_report([two_arms(tmp_path / "old", {}, {})])
    assert "operators a step" not in table(old, "costs")[0]
