"""`normbench compare`: two arms side by side, and the seeds that a difference needs."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study, plan

from normbench.cli import main
from normbench.results.statistics import seeds_needed

BASE = [2.01, 1.99, 2.00, 2.02, 1.98]
WORSE = [0.10, 0.11, 0.09, 0.105, 0.095]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of three norms with five seeds, and two folders of the same norm."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    worse = [value + more for value, more in zip(BASE, WORSE, strict=True)]
    make_study(tmp_path / "sw", {"layernorm": BASE, "dyt": worse, "rmsnorm": BASE[::-1]})
    make_study(tmp_path / "again", {"layernorm": BASE})
    make_run(tmp_path / "alone", norm="layernorm", seed=0, final=2.0)
    for rate in (0.1, 0.2):
        make_study(tmp_path / "rates", {"dyt": BASE[:1], "rmsnorm": BASE[:1]}, lr=rate)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", *words]) == 0
    return capsys.readouterr().out


def test_a_difference_that_is_there_and_one_that_is_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "dyt", "layernorm", "--in", "sw")
    assert "0.1000 nats higher" in " ".join(out.split()) and "+0.0901 to +0.1099" in out
    verdict, _, rest = out.partition("What differs")
    settings, _, _ = rest.partition("Results of each arm")
    assert "dyt is worse than layernorm" in verdict
    assert "dyt" in settings and "optim.lr" not in settings and "seed" not in settings
    out = printed(capsys, "norm=rmsnorm", "layernorm", "--in", "sw")
    assert "rmsnorm and layernorm do not differ by more than" in out


def test_the_same_settings_in_two_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(folder / "one", {"layernorm": BASE})
    out = " ".join(printed(capsys, "one", "again").split())
    assert "The configurations do not differ" in out
    assert "end with the same validation loss in each of 5 seeds" in out


def test_a_plan_gives_the_seeds_that_find_the_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--plan", "rmsnorm", "layernorm", "--in", "sw", "--difference", "0.03")
    row = next(line for line in out.splitlines() if line.strip().startswith("0.03 "))
    _, seeds, cautious, *_ = row.split()
    assert int(cautious) > int(seeds)
    sd = float(np.std(np.subtract(BASE[::-1], BASE), ddof=1))
    assert int(seeds) == seeds_needed(0.03, sd)
    plan(folder / "sw", "norm=dyt,layernorm,rmsnorm", "seed=range(0,5)")
    out = printed(capsys, "--plan", "rmsnorm", "layernorm", "--in", "sw", "--difference", "0.01")
    words = shlex.split(out.partition("normbench sweep ")[2])
    assert words == ["--resume", "sw", f"seed=range(5,{seeds_needed(0.01, sd)})", "sweep.extend=true"]
    assert "5 seeds that are there are enough" in printed(
        capsys, "--plan", "rmsnorm", "layernorm", "--in", "sw", "--difference", "1"
    )


def test_a_plan_counts_on_from_the_largest_seed_of_its_pilot(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, loss in enumerate(BASE, start=10):
        make_run(folder / "late", norm="layernorm", seed=seed, final=loss)
        make_run(folder / "late", norm="rmsnorm", seed=seed, final=BASE[14 - seed])
    out = printed(capsys, "--plan", "rmsnorm", "layernorm", "--in", "late", "--difference", "0.01")
    needed = seeds_needed(0.01, float(np.std(np.subtract(BASE[::-1], BASE), ddof=1)))
    assert f"'seed=range(15,{10 + needed})'" in out


def test_a_plan_is_not_made_from_runs_in_two_groups(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finals = {"layernorm": BASE, "dyt": [4.0, *BASE[1:]]}
    make_study(folder / "torn", finals, data={"constant": {"loss/val": 4.0}})
    assert main(["compare", "--plan", "dyt", "layernorm", "--in", "torn"]) == 2
    assert "some of dyt did not: make them train first" in capsys.readouterr().err


def test_a_plan_is_not_made_from_runs_that_do_not_train(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stuck = [4.01, 3.99, 4.0, 4.02, 3.98]
    for name, finals in {
        "one": {"layernorm": BASE, "dyt": stuck},
        "both": {"layernorm": BASE[::-1], "dyt": BASE},
    }.items():
        constant = 4.0 if name == "one" else 2.0
        make_study(folder / name, finals, data={"constant": {"loss/val": constant}})
        for more in ([], ["--difference", "0.05"]):
            assert main(["compare", "--plan", "dyt", "layernorm", "--in", name, *more]) == 2
            said = capsys.readouterr().err
            which = "dyt" if name == "one" else "dyt and layernorm"
            assert f"those of {which} did not: make them train first" in said


def test_brackets_are_no_markup(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, final in enumerate((2.0, 2.1)):
        make_run(folder / "odd", norm="my[bold]norm", seed=seed, final=final, name=f"low{seed}")
        make_run(folder / "odd", norm="x[/y]", seed=seed, final=final + 0.5, name=f"high{seed}")
    out = printed(capsys, "my[bold]norm", "x[/y]", "--in", "odd")
    assert "my[bold]norm" in out and "x[/y]" in out
    assert "differ by the same 0.50 nats in each of 2 seeds" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["rmsnrm", "dyt", "--in", "sw"], "rmsnrm is not an arm: did you mean rmsnorm?"),
        (["again", "sw"], "sw names 3 arms: name one of dyt, layernorm, rmsnorm, with --in sw\n"),
        (["0.1", "dyt", "--in", "rates"], "0.1 names 2 arms: name one of dyt · lr=0.1, rmsnorm · lr=0.1\n"),
        (["dyt", "layernorm", "--in", "sw", "--difference", "0.1"], "--difference is what a plan is for"),
        (["--plan", "alone", "again"], "a plan needs a pilot of two seeds or more"),
    ],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str) -> None:
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error and len(error.strip().splitlines()) == 1
