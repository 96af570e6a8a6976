"""Runs that a sweep plans: the same as those of `train`, what is left out, data, threads, and what is shared."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_plans import DIGITS, own_study, planned

from normbench import assembly
from normbench.catalog import Choices
from normbench.cli import main
from normbench.compose import compose, compose_each
from normbench.config import OPEN_SECTIONS, Tree
from normbench.errors import UsageError
from normbench.plan import make_plan
from normbench.request import settled, wanted
from normbench.rundir import RunDirectory, write_json
from normbench.sweeping import conduct
from normbench.sweeping.conduct import understand
from normbench.sweeping.forecast import Terms, numbers
from normbench.sweeping.grid import Common, read_common, read_grid
from normbench.sweeping.launchers import Share, cores, fair
from normbench.sweeping.plan import PlannedRun
from normbench.sweeping.tuning import choose, tuned_grid, tuning_grid

pytest_plugins = ["refusals"]


def test_settings_on_a_shared_composition_are_hydras_own() -> None:
    points = [
        ["norm=groupnorm", "norm.groups=4", f"seed={seed}", f"optim.lr={lr}", "model.stages=[1,2]", "+extra=1"]
        for seed, lr in ((0, "1e-3"), (1, "3"))
    ]
    points = [[word for word in words if word != "+extra=1"] for words in points] + [["model=cnn", "data=digits"]]
    points[0][4] = points[1][4] = "model.width=32"
    for words, shared in zip(points, compose_each("train", points), strict=True):
        alone = compose("train", words)
        assert alone is not None
        assert (shared.tree, shared.groups, shared.overrides) == (alone.tree, alone.groups, alone.overrides)


def test_points_that_set_the_same_keys_leave_nothing_to_each_other() -> None:
    values = (64, "0.5", "null"), (32, "null", "[0.9,0.95]"), (16, "0.9", "null")
    points = [
        ["norm=rmsnorm", f"model.context={context}", f"trainer.ema={ema}", f"optim.betas={betas}"]
        for context, ema, betas in values
    ]
    for words, shared in zip(points, compose_each("train", points), strict=True):
        alone = compose("train", words)
        assert alone is not None
        assert shared == alone
        assert shared.tree["data"]["context"] == int(words[1].partition("=")[2])  # it refers to the model's


def test_what_runs_have_in_common_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    factory = assembly.factory

    def counted(tree: Tree, section: str) -> Callable[..., object]:
        checked.append(section)
        return factory(tree, section)

    monkeypatch.setattr(assembly, "factory", counted)
    assert len(planned("seed=range(0,5)", "optim.lr=1e-3,1e-2", "norm=rmsnorm,dyt").plan.runs) == 20
    expected = {**dict.fromkeys(OPEN_SECTIONS, 1), "norm": 2, "optim": 2, "data": 2}  # once more, to load the data
    assert Counter(checked) == expected


def test_a_setting_that_one_option_lacks_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"norm.groups is not a setting of norm=rmsnorm: leave it out, or choose norm="
    ):
        compose_each("train", [["norm=groupnorm", "norm.groups=2"], ["norm=rmsnorm", "norm.groups=2"]])


def test_a_planned_run_is_the_run_that_train_makes() -> None:
    sweep = planned("norm=rmsnorm,batchnorm", "seed=0,3")
    assert sweep.plan.folder == Path("outputs/sweep")
    for run in sweep.plan.runs:
        composition = compose("train", list(run.words))
        assert composition is not None
        tree, choices = wanted(settled(composition))
        assert make_plan(tree, choices, None).directory.path == run.path
        assert run.command.startswith("normbench train norm=")


def test_data_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    factory = assembly.factory

    def counted(tree: dict, section: str) -> Callable[..., object]:
        make = factory(tree, section)

        def load(**arguments: object) -> object:
            loaded.append(arguments)
            return make(**arguments)

        return load if section == "data" else make

    monkeypatch.setattr(assembly, "factory", counted)
    planned("norm=rmsnorm,batchnorm", "seed=0,1", "data.batch_size=8,16")
    assert len(loaded) == 2


OWN_DATA = """
from normbench.data import Images, digits

loaded = []

def alike(*, seed: int, batch_size: int, eval_batch_size: int) -> Images:
    loaded.append(seed)
    return digits(seed=seed, batch_size=batch_size, eval_batch_size=eval_batch_size)

def drawn(*, seed: int, batch_size: int, eval_batch_size: int) -> Images:
    data = alike(seed=seed, batch_size=batch_size, eval_batch_size=eval_batch_size)
    data.fingerprint += str(seed)
    return data
"""


@pytest.mark.parametrize(("name", "loaded"), [("alike", [0, 1]), ("drawn", [0, 1, 2])])
def test_own_data_may_follow_from_the_seed(name: str, loaded: list[int], here: Path) -> None:
    (here / f"own_data_{name}.py").write_text(OWN_DATA)
    plan = planned("seed=0,1,2", "optim.lr=1e-3,1e-2", f"data._target_=own_data_{name}.{name}").plan
    assert sys.modules[f"own_data_{name}"].loaded == loaded
    for run in plan.runs:
        assert make_plan(run.tree, run.choices, None).directory.path == run.path


def test_points_of_one_directory_are_one_run() -> None:
    assert len(planned("optim.lr=0.001,1e-3,1e-2").plan.runs) == 2


def test_illegal_pairs_are_left_out_with_their_reason() -> None:
    plan = planned("norm=rmsnorm,dyt", "placement=pre,parallel,post").plan
    assert [(run.choices.groups["norm"], run.choices.groups["placement"]) for run in plan.runs] == [
        (norm, placement) for norm in ("rmsnorm", "dyt") for placement in ("pre", "post")
    ]
    (left_out,) = plan.left_out
    assert (left_out.points, left_out.count) == ("parallel", 2)
    assert "parallel joins the branches of a block" in left_out.reason


@pytest.mark.parametrize("exclude", ["norm=dyt,placement=post", "placement=post,norm=dyt,model=cnn,probes.every=50"])
def test_exclusions_leave_runs_out(exclude: str) -> None:
    plan = planned("norm=rmsnorm,dyt", "placement=pre,post", f"sweep.exclude={exclude}").plan
    assert [tuple(run.arm.values()) for run in plan.runs] == [("rmsnorm", "pre"), ("rmsnorm", "post"), ("dyt", "pre")]
    assert [(row.points, row.reason, row.count) for row in plan.left_out] == [
        ("dyt · post", f"sweep.exclude={exclude}", 1)
    ]


def test_an_excluded_point_need_not_compose() -> None:
    words = "norm=groupnorm,rmsnorm", "norm.groups=1,2", "sweep.exclude=norm=rmsnorm"
    assert [run.arm for run in planned(*words).plan.runs] == [
        {"norm": "groupnorm", "norm.groups": "1"},
        {"norm": "groupnorm", "norm.groups": "2"},
    ]


def test_threads_are_shared_out() -> None:
    assert fair(None, None, 0) == fair(cores(), None, 0) == fair(None, 1, 0) == Share(cores(), 1)
    assert fair(None, cores(), 0).jobs == 1
    assert fair(None, None, 4).jobs == 4
    run = planned("seed=0,1").plan.runs[0]
    assert "threads=1" in run.words
    assert run.choices == Choices({**run.choices.groups}, ("layernorm", "pre", "cnn", "digits"))


def test_jobs_change_no_name() -> None:
    plans = [understand(["seed=0,1", f"sweep.jobs={jobs}", *DIGITS[:-1], *more]).plan for jobs, more in (
        (1, ["threads=null"]), (2, []), (64, []))]  # fmt: skip
    assert plans[0].runs == plans[1].runs == plans[2].runs
    assert plans[0].runs[0].words[-2:] == ("threads=1", "name=sweep")


def test_runs_that_differ_in_threads_alone_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["seed=0,1", *DIGITS[:-1]]
    for run in understand([*words, "threads=3"]).plan.runs:
        run.path.mkdir(parents=True)
        (run.path / "config.yaml").write_text("seed: 0\nthreads: 3\n")
    assert not capsys.readouterr().out
    understand([*words, "seed=0,1,2"])
    assert capsys.readouterr().out == (
        "2 of the 3 new runs are in outputs/sweep with threads=3, and made anew with threads=1: add threads=3 to go on "
        "with those\n"
    )
    understand([*words, "optim.lr=0.1"])
    understand([*words, "threads=3"])
    understand([*words, "quiet=True"])
    assert not capsys.readouterr().out


def test_what_an_experiment_sets_holds_for_the_sweep(tmp_path: Path) -> None:
    study = own_study(tmp_path, "own", "threads: 2\nquiet: true\ndevice: cpu\n")
    sweep = understand([*study, "seed=0,1", *DIGITS[:-2], "sweep.jobs=1"])
    assert (sweep.quiet, sweep.share, sweep.devices) == (True, Share(1, 2), ())
    assert not any(word.startswith(("threads=", "device=")) for word in sweep.plan.runs[0].words)
    assert read_common(read_grid([*study, "device=mps", "threads=null"])) == Common("mps", None, True)
    assert read_common(read_grid([*study, "norm=rmsnorm,groupnorm", "norm.groups=2"])) == Common("cpu", 2, True)


# ---- --dry-run


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a dry run says, line by line."""
    assert main(["sweep", *words, *SHORT, *DIGITS, "--dry-run"]) == 0
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def row(lines: list[str], name: str) -> list[str]:
    """The cells of a row of the table."""
    (found,) = [line for line in lines if line.startswith(name)]
    return re.split(r"  +", found)


@pytest.fixture
def wide(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, and a terminal that wraps nothing."""
    monkeypatch.setenv("COLUMNS", "300")
    return here


SHORT = ["trainer.eval_batches=1", "data.eval_batch_size=512", "probes.every=0", "probes.histograms_every=0"]


def end(run: PlannedRun, status: str, loss: float = 1.0) -> None:
    """Let a run look as if it had ended."""
    run.path.mkdir(parents=True)
    directory = RunDirectory(run.path)
    directory.write_status(status, run.steps, run.steps)  # type: ignore[arg-type]  # words of a parameter
    if status == "finished":
        write_json(directory.summary, {"status": status, "steps": run.steps, "metrics": {"loss/val": loss}})


def test_time_is_that_of_the_runs_to_do_side_by_side() -> None:
    terms = Terms(side_by_side=2, again=False)
    assert terms.together([3, 3, 3]) == 6
    assert terms.together([5, 1, 1, 1]) == 5
    assert terms.together([7]) == 7
    assert terms.together([]) == 0


def test_seeds_in_a_row_are_told_by_the_first_and_the_last() -> None:
    assert numbers(range(125)) == "0–124"
    assert numbers([7, 0, 1, 3, 4, 5, 1000]) == "0, 1, 3–5, 7, 1000"


@pytest.mark.usefixtures("wide")
def test_a_dry_run_counts_what_is_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "cores", lambda: 2)
    words = ["norm=rmsnorm", "seed=range(0,4)", "sweep.jobs=8"]
    runs = planned(*words, *SHORT).plan.runs
    assert row(told(capsys, *words), "1 arm, 4 runs")[1] == "4"
    for run, status in zip(runs, ("finished", "failed"), strict=False):
        end(run, status)
    lines = told(capsys, *words)
    assert row(lines, "rmsnorm · pre · cnn · digits")[1:5] == ["0–3", "2", "1", "1"]
    assert "2 at a time" in " ".join(row(lines, "1 arm, 4 runs"))  # there are two cores, whatever sweep.jobs says
    assert row(told(capsys, *words, "sweep.retry_failed=true"), "1 arm, 4 runs")[1] == "3"


def test_a_class_that_raises_is_a_note_of_its_arm(wide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (wide / "own_raising.py").write_text(
        "from normbench.norms import RMSNorm\n\nclass Raising(RMSNorm):\n"
        "    def forward(self, x):\n        if self.training:\n            raise KeyError('boom')\n"
        "        return super().forward(x)\n"
    )
    lines = told(capsys, "norm._target_=own_raising.Raising,normbench.norms.RMSNorm", "seed=0")
    assert row(lines, "raising")[1:6] == ["0", "1", "0", "0", "KeyError: 'boom' (own_raising.py, line 6)"]
    assert row(lines, "2 arms, 2 runs")[1] == "2"


@pytest.mark.usefixtures("wide")
def test_a_dry_run_shows_the_rates_that_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["norm=rmsnorm", "seed=0,1", "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2,1e-1"]
    sweep = planned(*words, *SHORT)
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
    for run in tuning.runs:
        end(run, "finished", loss=abs(run.tree["optim"]["lr"] - 1e-2))
    for run in sweep.planner.plan(tuned_grid(sweep.plan, choose(tuning))).runs:
        end(run, "finished")
    lines = told(capsys, *words)
    assert "all runs: lr 0.01" in lines
    assert "outputs/sweep: runs that are reported" in lines
    assert row(lines, "1 arm, 2 runs")[1:4] == ["0", "2", "0"]
