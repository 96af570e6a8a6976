"""`sweep.lr=auto`: each arm's learning rate is chosen on held out training data, by seeds that are not reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from killing import Server
from tiny_sweeps import CNN, LENGTHS, finished, run_directories

from normbench.errors import UsageError
from normbench.sweeping.conduct import understand
from normbench.sweeping.tuning import Rate, changed, choose, chosen, lines, tuned_grid, tuning_grid

pytest_plugins = ["run_fixtures"]

ARM = {"norm": "rmsnorm"}
WORDS = ["norm=rmsnorm,none", "seed=0,1", *CNN, *LENGTHS, "trainer.grad_clip=0", "launcher=local"]


def curve(*means: float | None) -> list[Rate]:
    return [Rate(10.0**n, (mean,), mean) for n, mean in enumerate(means, start=-4)]


def test_the_lowest_mean_loss_is_chosen_and_divergence_is_infinitely_bad() -> None:
    choice = chosen(ARM, curve(2.0, 1.5, 1.7, None))
    assert (choice.lr, choice.edge) == (1e-3, None)
    assert chosen(ARM, curve(None, None)).lr is None
    assert chosen(ARM, curve(None, 3.0, None)).edge is None


def test_an_edge_of_the_grid_is_pointed_out() -> None:
    low, high = chosen(ARM, curve(1.0, 2.0)), chosen(ARM, curve(2.0, 1.0))
    assert (low.edge, high.edge) == ("lowest", "highest")
    assert "lr 0.0001, the lowest of sweep.lr_grid: a wider grid may have a better one" in lines([low])[0]
    assert chosen(ARM, curve(1.0)).edge is None


def test_settings_are_changed_in_words() -> None:
    assert changed(("norm=dyt", "+seed=1", "name=a"), {"seed": "5", "optim.lr": "1"}) == (
        "norm=dyt",
        "name=a",
        "seed=5",
        "optim.lr=1",
    )


def test_what_chooses_does_not_judge() -> None:
    sweep = understand([*WORDS, "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2", "sweep.lr_seeds=7,8"])
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
    assert len(tuning.runs) == 2 * 2 * 2
    assert tuning.folder == Path("outputs/sweep-lr")
    assert {run.tree["data"]["holdout"] for run in tuning.runs} == {0.1}
    assert {run.seed for run in tuning.runs} == {7, 8}
    choices = [chosen({"norm": "rmsnorm"}, curve(2, 1)), chosen({"norm": "none"}, curve(1))]
    reported = sweep.planner.plan(tuned_grid(sweep.plan, choices))
    assert {(run.arm["norm"], run.seed, run.tree["optim"]["lr"]) for run in reported.runs} == {
        (norm, seed, lr) for norm, lr in (("rmsnorm", 1e-3), ("none", 1e-4)) for seed in (0, 1)
    }
    assert {run.tree["data"]["holdout"] for run in reported.runs} == {0}


def test_arms_whose_classes_share_a_name_choose_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("own_one", "own_two"):
        (tmp_path / f"{module}.py").write_text("from normbench.norms import RMSNorm\n\nclass My(RMSNorm):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    words = ["norm._target_=own_one.My,own_two.My", "seed=0", "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2"]
    sweep = understand([*words, *CNN, *LENGTHS, "launcher=local"])
    assert list(sweep.plan.arms) == ["own_one.My", "own_two.My"]
    tuning = sweep.planner.plan(tuning_grid(sweep.plan, sweep.settings))
    assert [(run.arm["norm._target_"], run.tree["optim"]["lr"]) for run in tuning.runs] == [
        (f"{module}.My", lr) for module in ("own_one", "own_two") for lr in (1e-3, 1e-2)
    ]
    assert [dict(choice.arm) for choice in choose(tuning)] == [run.arm for run in sweep.plan.runs]
    choices = [chosen(run.arm, curve(*means)) for run, means in zip(sweep.plan.runs, [(2, 1), (1,)], strict=True)]
    reported = sweep.planner.plan(tuned_grid(sweep.plan, choices))
    assert [run.tree["optim"]["lr"] for run in reported.runs] == [1e-3, 1e-4]
    assert lines(choices)[1] == "own_two.My: lr 0.0001"


def test_an_experiment_that_holds_data_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "judged.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /data: digits\ndata:\n  holdout: 0.2\n"
    )
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "experiment=judged", f"hydra.searchpath=['file://{tmp_path}']"]
    with pytest.raises(UsageError, match=r"^data.holdout=0.2 is not for sweep.lr=auto, which holds out a tenth itself"):
        understand([*words, "sweep.lr=auto"])


def test_data_without_a_holdout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_fixed.py").write_text(
        "from normbench.data import Images, digits\n\n"
        "def fixed(*, seed: int, batch_size: int, eval_batch_size: int) -> Images:\n"
        "    return digits(seed=seed, batch_size=batch_size, eval_batch_size=eval_batch_size)\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["norm=rmsnorm", "seed=0,1", "sweep.lr=auto", "data._target_=own_fixed.fixed"]
    with pytest.raises(UsageError, match=r"needs training data to hold a tenth out of, and data=fixed has no"):
        understand([*words, *CNN, *LENGTHS])


def test_each_arm_is_reported_at_its_own_rate(server: Server, tmp_path: Path) -> None:
    words = ["sweep", *WORDS, "sweep.lr=auto", "sweep.lr_grid=1e-4,1e-2,1000", "sweep.report=false"]
    output = finished(server, words, tmp_path)
    assert "learning rates: 6 runs in outputs/sweep-lr choose on a tenth of the training data" in output
    noted = json.loads((tmp_path / "outputs" / "sweep" / "lr_choice.json").read_text())
    assert (noted["seeds"], noted["holdout"], noted["runs"]) == ([1000], 0.1, "sweep-lr")
    by_arm = {arm["name"]: arm for arm in noted["arms"]}
    assert by_arm.keys() == {"rmsnorm", "none"}
    for arm in by_arm.values():
        means = {point["lr"]: point["mean"] for point in arm["curve"]}
        assert arm["name"] == "rmsnorm" or means[1000] is None  # it diverges without a norm
        assert arm["lr"] == min((mean, lr) for lr, mean in means.items() if mean is not None)[1]
    for path in run_directories(tmp_path).values():
        config = yaml.safe_load((path / "config.yaml").read_text())
        assert config["optim"]["lr"] == by_arm[path.name.partition("-")[0]]["lr"]
        assert (config["data"]["holdout"], config["seed"] in (0, 1)) == (0, True)
    assert len(run_directories(tmp_path)) == 4
    again = finished(server, words, tmp_path)
    assert "runs to do" not in again
