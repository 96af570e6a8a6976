"""Runs that a sweep plans: those of `train`, what is left out, data, threads, learning rates, and `--dry-run`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from killing import Server
from made_runs import end_run
from tiny_sweeps import CNN, LENGTHS, finished, own_study, planned, run_directories

from normbench.cli import main
from normbench.config.compose import read, read_each
from normbench.errors import RunFailure, UsageError
from normbench.record.forms import CHOICE_FILE
from normbench.runs.plan import prepare
from normbench.sweep import plan
from normbench.sweep.folder import Standing, SweepFolder
from normbench.sweep.launchers import Here, Processes, Ray, Submitit
from normbench.sweep.plan import PlannedRun, SweepPlan
from normbench.sweep.sweep import Sweep, plan_sweep
from normbench.sweep.tuning import (
    choose,
    choose_rate,
    describe_choice,
    describe_choices,
    propose,
    tuned_grid,
    tuning_grid,
)
from normbench.sweep.work import Execution

pytest_plugins = ["refusals", "run_fixtures"]


def test_configurations_that_are_made_together_are_those_made_alone() -> None:
    points = [
        ["norm=rmsnorm", f"model.context={context}", f"trainer.ema={ema}", f"optim.betas={betas}"]
        for context, ema, betas in ((64, "0.5", "null"), (32, "null", "[0.9,0.95]"), (16, "0.9", "[0.9,0.99]"))
    ]
    points = [*points[1:], ["model=cnn", "data=digits"]]
    together = read_each(points)
    assert together == [read(words) for words in points]
    assert [config.tree["data"].get("context") for config in together] == [32, 16, None]  # it refers to the model's
    with pytest.raises(UsageError, match=r"norm.groups is not a setting of norm=rmsnorm"):
        read_each([["norm=groupnorm", "norm.groups=2"], ["norm=rmsnorm", "norm.groups=2"]])


def test_a_planned_run_is_the_run_that_train_makes() -> None:
    made = planned("norm=rmsnorm,batchnorm", "seed=0,3", "optim.lr=0.001,1e-3").plan  # one directory is one run
    assert (made.folder, len(made.runs)) == (Path("outputs/sweep"), 4)
    for run in made.runs:
        assert prepare(read(run.words)).directory.path == run.prepared.directory.path


OWN_DATA = """
from normbench.data import digits
from normbench.data.images import Images

loaded = []

def drawn(*, seed, batch_size, eval_batch_size) -> Images:
    loaded.append(seed)
    data = digits(seed=seed, batch_size=batch_size, eval_batch_size=eval_batch_size)
    data.fingerprint += str(seed)
    return data
"""


def test_own_data_may_follow_from_the_seed(here: Path) -> None:
    (here / "own_data.py").write_text(OWN_DATA)
    plan = planned("seed=0,1,2", "optim.lr=1e-3,1e-2", "data._target_=own_data.drawn").plan
    assert sys.modules["own_data"].loaded == [0, 1, 2]
    for run in plan.runs:
        assert prepare(run.prepared.config).directory.path == run.prepared.directory.path


def test_data_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    make = plan.make_data
    monkeypatch.setattr(plan, "make_data", lambda *given: loaded.append(given) or make(*given))
    planned("norm=rmsnorm,batchnorm", "seed=0,1", "data.holdout=0,0.1")
    assert len(loaded) == 2


def test_what_is_left_out_is_told_with_its_reason() -> None:
    plan = planned("norm=groupnorm,dyt", "norm.groups=1", "placement=pre,parallel", "sweep.exclude=norm=dyt").plan
    (run,) = plan.runs  # dyt has no groups: what is excluded need not compose
    assert run.arm == {"norm": "groupnorm", "placement": "pre"}
    excluded, refused = plan.left_out
    assert excluded == "sweep.exclude=norm=dyt"
    assert "it joins the branches of a block" in refused
    assert [*plan.left_out.values()] == [2, 1]


def test_a_value_that_is_given_again_makes_no_run_and_is_told() -> None:
    plan = planned("seed=0,0,0").plan
    assert [run.seed for run in plan.runs] == [0]
    assert plan.left_out == {"the words give the run of seed=0 more than once": 2}
    plan = planned("norm=rmsnorm,batchnorm", "seed=0,1", "optim.lr=0.001,1e-3").plan
    assert [*plan.left_out.values()] == [4] and len(plan.runs) == 4


# ---- what runs get of a machine


def test_runs_side_by_side_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.sweep.launchers.count_cores", lambda: 8)
    given = (0, None, 0), (2, None, 0), (0, 4, 0), (0, 16, 0), (3, 2, 0), (0, None, 2), (16, None, 0)
    assert [Processes().allot(*one) for one in given] == [(8, 1), (2, 1), (2, 4), (1, 16), (3, 2), (2, 1), (16, 1)]
    assert Here().allot(2, None, 0) == (1, 8)
    assert Ray(None, 2, 0).allot(0, None, 0) == (4, 2)
    assert Submitit("slurm", 60, 4).allot(0, None, 0) == (64, 4)


@pytest.mark.parametrize(
    ("gpus", "more", "devices", "jobs"),
    [(1, [], ["cuda:0"], 1), (3, [], ["cuda:0", "cuda:1", "cuda:2"], 3), (3, ["device=cuda:1"], ["cuda:1"], 1),
     (2, ["sweep.jobs=5"], ["cuda:0", "cuda:1"], 5), (2, ["device=cuda", "launcher=ray", "launcher.gpus_per_run=1"],
     ["cuda"], 8), (4, ["device=cpu"], ["cpu"], 8)],
)  # fmt: skip
def test_runs_take_turns_on_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: int, more: list[str], devices: list[str], jobs: int
) -> None:
    monkeypatch.setattr("normbench.sweep.words.find_spec", lambda name: object())  # Ray may not be installed
    monkeypatch.setattr("normbench.sweep.launchers.count_cores", lambda: 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    sweep = plan_sweep(["seed=range(0,4)", *CNN, "device=auto", *more])
    assert (sweep.planner.devices, sweep.planner.jobs) == (devices, jobs)
    monkeypatch.setattr(sweep.planner.launcher, "start", lambda tasks, *_: map(str, tasks))
    execution = Execution(sweep.planner, SweepFolder(sweep.plan.folder), [[run] for run in sweep.plan.runs])
    assert execution.start()
    assert [task.device for task in execution.at_work.values()] == (devices * 4)[: min(4, jobs)]


def test_one_graph_of_a_step_is_refused_to_several_runs_in_one_process() -> None:
    with pytest.raises(UsageError, match="compile=graph with launcher=local is refused: "):
        plan_sweep(["seed=0,1", *CNN, "trainer.compile=graph", "launcher=local", "threads=1"])


def test_jobs_change_no_name() -> None:
    plans = [plan_sweep(["seed=0,1", f"sweep.jobs={jobs}", *CNN, "device=cpu", *more]).plan for jobs, more in (
        (1, ["threads=null"]), (2, []), (64, []))]  # fmt: skip
    assert plans[0].runs == plans[1].runs == plans[2].runs
    assert plans[0].runs[0].words[-1] == "threads=1"


def test_what_an_experiment_sets_holds_for_the_sweep(tmp_path: Path) -> None:
    study = own_study(tmp_path, "threads: 2\nquiet: true\ndevice: cpu")
    sweep = plan_sweep([*study, "seed=0,1", *CNN, "sweep.jobs=1"])
    assert (sweep.planner.quiet, sweep.planner.jobs, sweep.planner.threads) == (True, 1, 2)
    assert not any(word.startswith(("threads=", "device=")) for word in sweep.plan.runs[0].words)


# ---- sweep.lr=auto

ARM = {"norm": "rmsnorm"}


def test_the_lowest_mean_loss_is_chosen_and_divergence_is_infinitely_bad() -> None:
    choice = choose_rate(ARM, {0.1: [1.7, None], 1e-2: [1.4, 1.6], 1e-3: [2.0, 2.0], 1e-4: [2.0, 3.0]})
    assert (choice["lr"], choice["edge"]) == (1e-2, None)
    assert [point["mean"] for point in choice["curve"]] == [2.5, 2.0, 1.5, None]
    assert choose_rate(ARM, {0.1: [None], 1.0: [None]})["lr"] is None
    assert choose_rate(ARM, {0.1: [1.0]})["edge"] is None
    low, high = choose_rate(ARM, {0.1: [1.0], 1.0: [2.0]}), choose_rate(ARM, {0.1: [2.0], 1.0: [1.0]})
    assert (low["edge"], high["edge"]) == ("lowest", "highest")
    grid = [0.05, 0.1, 1.0]  # of which not all was drawn
    assert [choose_rate(ARM, {0.1: [loss], 1.0: [1.5]}, grid)["edge"] for loss in (1.0, 2.0)] == [None, "highest"]
    assert describe_choice(low).startswith("rmsnorm: lr 0.1, the lowest of those tried: ")


GRID = [3.0e-4, 9.487e-4, 3.0e-3, 9.487e-3, 3.0e-2, 9.487e-2, 3.0e-1]


def searched(
    loss: Callable[[float], float | None], propose: Callable[..., list[float]] = propose, grid: list[float] = GRID
) -> dict[float, float | None]:
    """The rates that are tried of a grid, and what they gave."""
    found: dict[float, float | None] = {}
    while new := propose(grid, found):
        found |= {rate: loss(rate) for rate in new}
    return found


def valley(rng: np.random.Generator, kind: str) -> Callable[[float], float | None]:
    """A noisy curve of losses over the rate, unlike on both sides of the best one; it may diverge or level out."""
    best, (left, right), spread = rng.uniform(-3.2, -1), rng.uniform((0.1, 0.2), (0.5, 2)), rng.choice([0.002, 0.03])
    noise, diverges = dict(zip(GRID, rng.normal(0, spread, len(GRID)), strict=True)), best + rng.uniform(0.4, 1.5)

    def loss(rate: float) -> float | None:
        away = math.log10(rate) - best
        curve = (right if away > 0 else left) * away**2 + noise.get(rate, 0)
        return None if kind != "smooth" and best + away > diverges else min(curve, 0.6 if "flat" in kind else 9)

    return loss


@pytest.mark.parametrize("kind", ["smooth", "diverges", "flat and diverges"])
def test_five_of_seven_rates_find_what_all_seven_do(kind: str) -> None:
    rng, runs, same = np.random.default_rng(0), [], []
    for loss in (valley(rng, kind) for _ in range(500)):
        tried, every = searched(loss), {rate: loss(rate) for rate in GRID}
        few, all_ = (choose_rate(ARM, {rate: [one] for rate, one in curve.items()})["lr"] for curve in (tried, every))
        runs.append(len(tried))
        same.append(few == all_ or all_ in (GRID[0], GRID[-1]))  # where it may lie beyond the grid
    assert np.mean(same) > 0.99
    assert np.mean(runs) < 5.1


def test_the_search_ends_beyond_an_end_of_the_grid_or_where_nothing_trains() -> None:
    assert [*searched(lambda rate: rate)] == [9.487e-4, 9.487e-3, 9.487e-2, 3e-4, 3e-3, 9.487e-5, 3e-5]
    assert [*searched(lambda rate: -rate)][-3:] == [3e-1, 9.487e-1, 3.0]
    assert [*searched(lambda rate: None)] == [9.487e-4, 9.487e-3, 9.487e-2, 3e-4, 9.487e-5, 3e-5]
    assert min(searched(lambda rate: None if rate > 2e-4 else rate)) == 3e-5
    assert (propose([0.1], {}), propose([0.1], {0.1: 1.0}), propose([10, 100], {100: 1.0})) == ([0.1], [], [10, 1000])


def test_what_chooses_does_not_judge(here: Path) -> None:
    for module in ("own_one", "own_two"):  # arms whose classes share a name choose apart
        (here / f"{module}.py").write_text("from normbench.norms import RMSNorm\n\nclass My(RMSNorm):\n    pass\n")
    words = ["norm._target_=own_one.My,own_two.My", "seed=0,1", "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2,1e-1"]
    sweep = planned(*words, "sweep.lr_seeds=7,8")
    assert list(sweep.plan.arms) == ["own_one.My", "own_two.My"]
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
    trees = [run.prepared.config.tree for run in tuning.runs]
    assert tuning.folder == Path("outputs/sweep-lr")
    assert {(tree["data"]["holdout"], tree["name"]) for tree in trees} == {(0.1, "sweep-lr")}
    assert [(tree["norm"]["_target_"], tree["optim"]["lr"], tree["seed"]) for tree in trees] == [
        (f"{module}.My", 1e-2, seed) for module in ("own_one", "own_two") for seed in (7, 8)
    ]
    assert [choice["arm"] for choice in choose(sweep.plan, tuning, sweep.settings)] == [
        runs[0].arm for runs in sweep.plan.arms.values()
    ]
    choices = [{"name": name, "lr": lr} for name, lr in zip(sweep.plan.arms, (1, 2), strict=True)]
    tuned = sweep.planner.plan(tuned_grid(sweep.plan, choices, sweep.settings)).runs
    reported = [run.prepared.config.tree for run in tuned]
    assert all("optim.lr" in run.prepared.config.varied and "optim.lr" not in run.arm for run in tuned)
    assert [(tree["optim"]["lr"], tree["seed"], tree["data"]["holdout"]) for tree in reported] == [
        (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0),
    ]  # fmt: skip


def test_each_reported_seed_has_a_rate_that_was_chosen_on_a_seed_of_its_own(here: Path) -> None:
    words = ["norm=layernorm,rmsnorm", "seed=0,1", "sweep.lr=each", "sweep.lr_grid=1e-3,1e-2,1e-1"]
    sweep = planned(*words)
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
    tried = [(run.arm["norm"], run.seed, run.prepared.config.tree["optim"]["lr"]) for run in tuning.runs]
    assert sorted(tried) == [(norm, seed, 1e-2) for norm in ("layernorm", "rmsnorm") for seed in (1000, 1001)]
    for run in tuning.runs:  # seed 1000 alone goes on to the larger rate
        end_run(run.prepared.directory, "finished", 10, 2.0)
    first = choose(sweep.plan, tuning, sweep.settings)
    assert [(choice["name"], choice["seed"], choice["lr"]) for choice in first] == [
        ("layernorm", 0, 1e-2), ("layernorm", 1, 1e-2), ("rmsnorm", 0, 1e-2), ("rmsnorm", 1, 1e-2),
    ]  # fmt: skip
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings, first))
    for run in tuning.runs:
        rate = run.prepared.config.tree["optim"]["lr"]
        best = 1e-1 if run.seed == 1000 and run.arm["norm"] == "rmsnorm" else 1e-3
        if rate != 1e-2:
            end_run(run.prepared.directory, "finished", 10, 1.0 if rate == best else 3.0)
    second = choose(sweep.plan, tuning, sweep.settings)
    assert [choice["lr"] for choice in second] == [1e-3, 1e-3, 1e-1, 1e-3]
    reported = sweep.planner.plan(tuned_grid(sweep.plan, second, sweep.settings)).runs
    rates = {(run.arm["norm"], run.seed): run.prepared.config.tree["optim"]["lr"] for run in reported}
    assert rates == {("layernorm", 0): 1e-3, ("layernorm", 1): 1e-3, ("rmsnorm", 0): 1e-1, ("rmsnorm", 1): 1e-3}
    assert describe_choices(second)[1].startswith("rmsnorm: lr 0.001 for 1 seed, lr 0.1 for 1 seed")


def test_runs_that_choose_may_be_shorter_than_those_that_are_reported(here: Path) -> None:
    words = ["norm=rmsnorm", "sweep.lr=each", "sweep.lr_grid=1e-3,1e-2,1e-1", "sweep.lr_length=0.25"]
    for length, steps in (("trainer.steps=10", 2), ("trainer.epochs=3", 70)):  # of 10 and 279
        sweep = plan_sweep([*words, *CNN, length, "device=cpu", "threads=1"])
        (choosing,) = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings)).runs
        assert choosing.prepared.config.tree["trainer"]["steps"] == steps
        end_run(choosing.prepared.directory, "finished", 2, 2.0)
        tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
        choices = choose(sweep.plan, tuning, sweep.settings)
        assert [choice["length"] for choice in choices] == [0.25]
        (reported,) = sweep.planner.plan(tuned_grid(sweep.plan, choices, sweep.settings)).runs
        assert length in reported.prepared.config.words
    assert planned(*words).asked_runs != planned(*words[:-1]).asked_runs


def test_a_seed_that_is_reported_chooses_no_rate(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^seed=1 with sweep.lr_seeds=\[7,1\] is refused: .*; give other seeds"):
        planned("norm=rmsnorm", "seed=0,1", "sweep.lr=auto", "sweep.lr_seeds=7,1")
    with pytest.raises(UsageError, match=r"^seed=2 with sweep.lr_seeds=\[2,4\] is refused"):
        planned("norm=rmsnorm", "seed=0,2", "sweep.lr=each", "sweep.lr_seeds=2")


def test_no_seed_chooses_rates_for_two_reported_ones(here: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^sweep.lr=each with sweep.lr_seeds=\[1000,1001,1001,1002\] is refused: seeds"
    ):
        planned("norm=rmsnorm,dyt", "seed=0,1", "sweep.lr=each", "sweep.lr_seeds=1000,1001")
    for words in (["sweep.lr=each", "sweep.lr_seeds=1000,2000"], ["sweep.lr=auto", "sweep.lr_seeds=1000,1001"]):
        assert len(planned("norm=rmsnorm,dyt", "seed=0,1", *words).plan.runs) == 4


def test_choices_are_noted_once_they_are_final(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a search for further seeds that is stopped would take from runs that are there the choice they follow."""
    words = ["norm=layernorm,rmsnorm", "sweep.lr=each", "sweep.lr_grid=1e-3,1e-2,1e-1"]
    rounds: list[int] = []

    def finish(sweep: Sweep, plan: SweepPlan) -> list[Standing]:
        rounds.append(len(plan.runs))
        if len(rounds) == stopped_in_round:
            raise KeyboardInterrupt
        for run in plan.runs:
            rate = run.prepared.config.tree["optim"]["lr"]
            end_run(run.prepared.directory, "finished", 10, abs(rate - 1e-3))
        return []

    monkeypatch.setattr(Sweep, "finish", finish)
    stopped_in_round = 2
    with pytest.raises(KeyboardInterrupt):
        planned("seed=0", *words).make_runs()
    first = planned("seed=0", *words)
    note = first.plan.folder / CHOICE_FILE
    assert rounds == [2, 6] and not note.exists()
    stopped_in_round = 0
    first.make_runs()
    chosen = json.loads(note.read_text())["arms"]
    assert [(choice["seed"], choice["lr"]) for choice in chosen] == [(0, 1e-3), (0, 1e-3)]
    stopped_in_round = len(rounds) + 2
    with pytest.raises(KeyboardInterrupt):
        planned("seed=0,1", *words).make_runs()
    assert json.loads(note.read_text())["arms"] == chosen


def test_an_arm_is_left_out_whole_or_by_its_seeds_where_no_rate_is_left() -> None:
    found = [choose_rate({"norm": "dyt"}, {1e-3: [loss]}, seed=seed) for seed, loss in enumerate((None, 2.0, None))]
    assert describe_choices(found) == [
        "dyt: lr 0.001 for 1 seed, none for 2 seeds, left out as every rate diverged or failed"
    ]
    assert describe_choices([found[0], found[2]]) == [
        "dyt: every learning rate diverged or failed; the arm is left out"
    ]


def test_a_run_whose_record_was_changed_chooses_no_rate(here: Path) -> None:
    sweep = planned("norm=rmsnorm", "seed=0", "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2,1e-1")
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
    directory = tuning.runs[0].prepared.directory
    end_run(directory, "finished", 10, 2.0)
    for file in (directory.config, directory.environment, directory.metrics):
        file.write_text("{}")
    directory.write_summary(json.loads(directory.summary.read_text()))
    assert choose(sweep.plan, tuning, sweep.settings)[0]["curve"][0]["mean"] == 2.0
    directory.summary.write_text(directory.summary.read_text().replace('"loss/val": 2.0', '"loss/val": 1.0'))
    with pytest.raises(
        UsageError, match=r"is damaged, summary.json changed after the run had ended: .* remove its folder"
    ):
        choose(sweep.plan, tuning, sweep.settings)


@pytest.mark.slow
def test_each_arm_is_reported_at_its_own_rate(server: Server, tmp_path: Path) -> None:
    words = ["sweep", "norm=rmsnorm,none", "seed=0", *CNN, *LENGTHS, "trainer.grad_clip=0", "launcher=local"]
    words += ["sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2,1000", "sweep.report=false"]
    output = finished(server, words, tmp_path)
    for line in ("learning rates are chosen on held-out data", "2 of 2 runs to do", "4 of 6 runs to do"):
        assert line in output
    noted = json.loads((tmp_path / "outputs" / "sweep" / "lr_choice.json").read_text())
    assert (noted["seeds"], noted["holdout"], noted["runs"]) == ([1000], 0.1, "sweep-lr")
    by_arm = {arm["name"]: arm for arm in noted["arms"]}
    assert (by_arm["rmsnorm"]["lr"], by_arm["none"]["lr"]) == (1e-2, 1e-2)
    assert by_arm["none"]["curve"][2]["mean"] is None  # it diverges without a norm, which is a result
    assert "6 runs  1 diverged  none · optim.lr=1000 · seed 1000 diverged" in output
    for path in run_directories(tmp_path).values():
        assert "  lr: 0.01\n" in (path / "config.yaml").read_text()
    assert len(run_directories(tmp_path)) == 2
    again = finished(server, ["sweep", "--resume", "outputs/sweep"], tmp_path)
    assert again.splitlines()[-3] == "2/2 runs in outputs/sweep"
    looked = finished(server, ["sweep", "--watch", "outputs/sweep"], tmp_path)
    shown = [line.split("  ")[0] for line in looked.splitlines()]
    assert shown == ["6/6 runs", "2/2 runs", *again.splitlines()[-3:]]


# ---- --dry-run


@pytest.mark.usefixtures("here")
def test_a_dry_run_times_a_run_of_each_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = []

    def take_ten_seconds_a_width(run: PlannedRun) -> float:
        timed.append(run.run)
        return 10.0 * run.prepared.config.tree["model"]["width"]

    monkeypatch.setattr("normbench.sweep.sweep.time_run", take_ten_seconds_a_width)
    words = ["norm=rmsnorm,batchnorm", "model.width=2,4,6", "seed=0,1", "sweep.jobs=3"]
    assert (
        main(["sweep", "model=cnn", "data=digits", "trainer.steps=4", *words, "device=cpu", "threads=1", "--dry-run"])
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert len(timed) == 3
    assert "about 0:02:40 for 12 runs, 3 at a time, each 0:00:20 to 0:01:00 as its start" in said


@pytest.mark.usefixtures("here")
def test_a_dry_run_that_takes_minutes_times_no_further_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.sweep.sweep.time_run", lambda run: 10.0)
    monkeypatch.setattr("normbench.sweep.sweep.LONGEST_TIMING", 0.0)
    sweep = planned("norm=rmsnorm,batchnorm", "trainer.accumulate=1,2,4", "sweep.jobs=2")
    said = sweep.estimate_time(sweep.plan, 6, 0)
    assert said.startswith("about 0:00:30 for 6 runs, 2 at a time, each 0:00:10 as its start")
    assert said.endswith("; runs of 2 more sizes were not measured, since these took minutes, and may take longer")
    with pytest.raises(RunFailure, match="2 more sizes"):
        sweep.estimate_seconds()
    assert len(sweep.seconds) == 1


@pytest.mark.usefixtures("here")
def test_a_dry_run_counts_what_is_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["norm=rmsnorm", "placement=pre,plain", "seed=range(0,4)", "sweep.jobs=8"]
    finished, failed = (run.prepared.directory for run in planned(*words).plan.runs[:2])
    end_run(finished, "finished", 4, 1.0)
    SweepFolder(failed.path.parent).note_failure(failed.path.name, "as it must")
    assert main(["sweep", *words, *CNN, "trainer.steps=4", "device=cpu", "threads=1", "--dry-run"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    rows = {cells[0][:6]: cells[1:] for cells in (re.split(r"  +", line) for line in lines)}
    assert rows["pre"] == ["0, 1, 2, 3", "2", "1", "1"]
    assert rows["in all"][1:] == ["2", "1", "1"]
    assert "for 2 runs, 2 at a time" in " ".join(lines) and "its start and a few steps" in " ".join(lines)
    assert lines[-1].startswith("4 runs left out: placement=plain with model=cnn is refused")
