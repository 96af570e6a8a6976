"""From words in Hydra's sweep grammar to planned runs: order, studies, exclusions, refusals, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_sweeps import CNN, own_study, planned, varied

from normbench.cli import main
from normbench.config.groups import config_directory, options
from normbench.sweep.conduct import understand
from normbench.sweep.grid import read_grid
from normbench.sweep.words import read_settings

pytest_plugins = ["refusals"]

# ---- the grid


def test_a_grid_is_the_product_in_the_order_of_the_words() -> None:
    assert varied("norm=rmsnorm,dyt", "optim.lr=1e-3", "seed=0,1") == [
        {"norm": "rmsnorm", "seed": "0"},
        {"norm": "rmsnorm", "seed": "1"},
        {"norm": "dyt", "seed": "0"},
        {"norm": "dyt", "seed": "1"},
    ]
    (point,) = read_grid(["norm=rmsnorm", "optim.lr=1e-3"]).points
    assert (point.words, dict(point.varied)) == (("norm=rmsnorm", "optim.lr=1e-3"), {})


def test_hydras_grammar_is_understood() -> None:
    assert [point["seed"] for point in varied("seed=range(1,4)")] == ["1", "2", "3"]
    assert [point["optim.lr"] for point in varied("optim.lr=choice(0.1,1e-2)")] == ["0.1", "0.01"]
    assert [point["norm"] for point in varied("norm=glob(*)")] == list(options("norm"))
    without = [name for name in options("norm") if name not in ("none", "prmsnorm")]
    assert [point["norm"] for point in varied("norm=glob(*,exclude=[none,prmsnorm])")] == without


@pytest.fixture
def study(tmp_path: Path) -> list[str]:
    """The words that choose a study of the user's own."""
    params = "norm: rmsnorm,dyt", "seed: 0,1", "sweep.exclude: norm=dyt,seed=1", "sweep.jobs: 1"
    return own_study(tmp_path, "name: mine\nseed: 7\noptim: {lr: 0.01}", *params)


def test_an_experiment_holds_a_whole_study_and_the_command_line_wins(study: list[str]) -> None:
    grid = read_grid(study)
    assert len(grid.points) == 4
    assert grid.named
    assert grid.own == ("sweep.exclude=norm=dyt,seed=1", "sweep.jobs=1")
    assert [dict(point.varied) for point in read_grid([*study, "seed=5"]).points] == [
        {"norm": "rmsnorm"},
        {"norm": "dyt"},
    ]
    assert list(read_grid([*study, "norm=layernorm,batchnorm,none"]).points[0].varied) == ["norm", "seed"]


def test_a_study_may_hold_lists_as_yaml_has_them(tmp_path: Path) -> None:
    lines = "norm: [rmsnorm, dyt]", "optim.lr: [0.001, 1e-2]", "model.stages: [1, 2]", "model.blocks: [[1], [2, 2]]"
    words = own_study(tmp_path, "", *lines, "trainer.ema: 0.5", "sweep.lr_seeds: [7, 8]")
    grid = read_grid(words)
    assert [tuple(point.varied.values()) for point in grid.points] == [
        (norm, lr, blocks) for norm in ("rmsnorm", "dyt") for lr in ("0.001", "0.01") for blocks in ("[1]", "[2,2]")
    ]
    assert {"model.stages=[1,2]", "trainer.ema=0.5"} <= set(grid.points[0].words)
    assert grid.own == ("sweep.lr_seeds=[7,8]",)


def test_a_plus_before_the_experiment_is_understood(study: list[str]) -> None:
    assert read_grid([f"+{study[0]}", study[1]]) == read_grid(study)


def test_a_study_is_read_without_what_belongs_to_an_option_that_varies(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    groupnorm = config_directory() / "norm" / "groupnorm.yaml"
    (tmp_path / "norm" / "gn2.yaml").write_text(groupnorm.read_text())
    words = ["norm=groupnorm,gn2", "norm.groups=2", f"hydra.searchpath=['file://{tmp_path}']"]
    assert [run.prepared.config.tree["norm"]["groups"] for run in planned(*words).plan.runs] == [2, 2]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ([], ["layernorm", "batchnorm"]),
        (["sweep.exclude=norm=layernorm,seed=1"], ["layernorm", "batchnorm"]),
        (["sweep.exclude=norm=layernorm"], ["batchnorm"]),
        (["sweep.exclude=['norm=layernorm']"], ["batchnorm"]),
        (["sweep.exclude=null"], ["dyt", "rmsnorm", "layernorm", "batchnorm"]),
        (["sweep.exclude=null", "sweep.exclude=norm=batchnorm"], ["dyt", "rmsnorm", "layernorm"]),
    ],
)
def test_exclusions_of_a_study_and_of_the_words_add_up(tmp_path: Path, words: list[str], left: list[str]) -> None:
    lines = "norm: dyt,rmsnorm,layernorm,batchnorm", "sweep.exclude: [norm=dyt, norm=rmsnorm]", "seed: 0,1"
    study = own_study(tmp_path, "", *lines)
    plan = understand([*study, *CNN, "device=cpu", *words]).plan
    assert list(dict.fromkeys(run.entry.arm["norm"] for run in plan.runs)) == left
    assert ("layernorm", 1) not in [
        (run.entry.arm["norm"], run.entry.seed) for run in plan.runs
    ] or "seed=1" not in str(words)


@pytest.mark.parametrize("betas", ["[0.9,0.95]", "[0.9, 9.5e-1]"])
def test_an_exclusion_may_name_a_list(betas: str) -> None:
    words = ["norm=rmsnorm,dyt", "optim.betas=[0.9,0.95],[0.9,0.99]", f"sweep.exclude=norm=dyt,optim.betas={betas}"]
    assert [
        (run.entry.arm["norm"], run.prepared.config.tree["optim"]["betas"]) for run in planned(*words).plan.runs
    ] == [
        ("rmsnorm", [0.9, 0.95]),
        ("rmsnorm", [0.9, 0.99]),
        ("dyt", [0.9, 0.99]),
    ]


def test_a_study_is_planned(study: list[str]) -> None:
    sweep = understand([*study, *CNN, "device=cpu", "sweep.jobs=3"])
    assert sweep.plan.folder == Path("outputs/mine")
    assert [(run.entry.arm["norm"], run.entry.seed) for run in sweep.plan.runs] == [
        ("rmsnorm", 0),
        ("rmsnorm", 1),
        ("dyt", 0),
    ]
    assert {run.prepared.config.tree["optim"]["lr"] for run in sweep.plan.runs} == {0.01}
    assert sweep.settings.jobs == 3


def test_what_the_shell_has_taken_the_quotes_from_is_understood() -> None:
    words = ["sweep.exclude=norm=batchnorm,placement=parallel", "sweep.lr_grid=1e-3,1e-2", "sweep.exclude='seed=1'"]
    settings, launcher = read_settings([*words, "launcher=submitit", "launcher.additional_parameters.gres=gpu:1"])
    assert settings.exclude == ["norm=batchnorm,placement=parallel", "seed=1"]
    assert settings.lr_grid == [1e-3, 1e-2]
    assert (launcher["cpus_per_task"], launcher["additional_parameters"]) == (4, {"gres": "gpu:1"})


# ---- mistakes

MISTAKES = {
    "optim.lr=interval(0,1)": "optim.lr=interval(0,1) has no points to run at",
    "norm=glob(x*)": "norm=glob(x*) stands for no value",
    "name=a,b": "name=a,b cannot vary within a sweep",
    "seed=0,1 rerun=true": "rerun=true is train's alone",
    "launcher=jbolib": "launcher=jbolib is unknown: did you mean joblib?",
    "launcher=local sweep.jobs=2": "sweep.jobs=2 is not for launcher=local",
    "launcher=submitit launcher.executor=pbs": "launcher.executor=pbs is not allowed: use slurm or local",
    "launcher=ray launcher.adress=x": "launcher.adress is unknown with launcher=ray: did you mean launcher.address?",
    "launcher=submitit": "device=auto is not known before a cluster has chosen the machine",
    "sweep.exlude=norm=dyt": "sweep.exlude is unknown with launcher=joblib: did you mean sweep.exclude?",
    "sweep.exclude=dyt": "sweep.exclude=dyt is not KEY=VALUE",
    "seed=0,1 sweep.exclude=norm=batchnrom": "sweep.exclude=norm=batchnrom leaves out none of the runs",
    "sweep.exclude=norm=dyt,rmsnorm": "sweep.exclude=norm=dyt,rmsnorm is not KEY=VALUE, each with one value",
    "sweep.jobs=1,2": "sweep.jobs=1,2 is not allowed: use an integer from 1",
    "seed=0,1 sweep.exclude=norm=layernorm": "the grid is empty: none of its 2 runs is left (sweep.exclude=norm=layer",
    "seed=0,1000 sweep.lr=auto": "has seed 1000, which is reported",
    "seed=0,1 name=s${seed}": "the runs would be in outputs/s0 and outputs/s1: give name=",
    "optim.lr=1,2 sweep.lr=auto": "optim.lr=1 is not for sweep.lr=auto",
    "--watch nowhere": "nowhere holds no sweep",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_starts(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words.split()]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("normbench: ")
    assert complaint.count("\n") == 1
    assert MISTAKES[words] in complaint
    assert ":" in complaint.removeprefix("normbench: ")
    assert not list(here.iterdir())
