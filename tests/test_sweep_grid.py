"""From words in Hydra's sweep grammar to planned runs: order, studies, exclusions, refusals, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import refused
from tiny_sweeps import CNN, own_study, planned, varied

from normbench.cli import main
from normbench.config.groups import config_directory, options
from normbench.errors import UsageError
from normbench.sweep.plan import exclude, read_grid
from normbench.sweep.sweep import plan_sweep
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
    (point,) = read_grid(["norm=rmsnorm", "optim.lr=1e-3"])[0]
    assert (point.words, dict(point.varied)) == (("name=sweep", "norm=rmsnorm", "optim.lr=1e-3"), {})


def test_mappings_vary_as_the_settings_in_them() -> None:
    assert varied("norm={eps: 1e-3},{eps: 1e-5}", "optim={lr: 0.1}") == [{"norm.eps": "0.001"}, {"norm.eps": "1e-05"}]
    assert varied("model.config={a: 1, b: {c: [2, 3]}},{a: 4}", "model=hf") == [
        {"model.config.a": "1", "model.config.b.c": "[2,3]"},
        {"model.config.a": "4"},
    ]
    points, own = read_grid(["seed=0,1", "sweep={jobs: 2, lr: auto}"])
    assert len(points) == 2 and read_settings(own)[0].jobs == 2 and read_settings(own)[0].lr == "auto"


def test_hydras_grammar_is_understood() -> None:
    assert [point["seed"] for point in varied("seed=range(1,4)")] == ["1", "2", "3"]
    assert [point["optim.lr"] for point in varied("optim.lr=choice(0.1,1e-2)")] == ["0.1", "0.01"]
    without = [name for name in options("norm") if name not in ("none", "prmsnorm")]
    assert [point["norm"] for point in varied("norm=glob(*,exclude=[none,prmsnorm])")] == without


def test_an_experiment_holds_a_whole_study_and_the_command_line_wins(tmp_path: Path) -> None:
    params = "norm: rmsnorm,dyt", "seed: 0,1", "sweep.exclude: norm=dyt,seed=1", "sweep.jobs: 1"
    study = own_study(tmp_path, "name: mine\nseed: 7\noptim: {lr: 0.01}", *params)
    points, own = read_grid(study)
    assert len(points) == 4
    assert own == ["sweep.exclude=norm=dyt,seed=1", "sweep.jobs=1"]
    assert varied(*study, "seed=5") == [{"norm": "rmsnorm"}, {"norm": "dyt"}]
    assert list(varied(*study, "norm=layernorm,batchnorm,none")[0]) == ["norm", "seed"]
    assert read_grid([f"+{study[0]}", study[1]]) == (points, own)
    sweep = plan_sweep([*study, *CNN, "device=cpu", "sweep.jobs=3"])
    assert (sweep.plan.folder, sweep.settings.jobs) == (Path("outputs/mine"), 3)
    assert [(run.arm["norm"], run.seed) for run in sweep.plan.runs] == [("rmsnorm", 0), ("rmsnorm", 1), ("dyt", 0)]
    assert {run.prepared.config.tree["optim"]["lr"] for run in sweep.plan.runs} == {0.01}


def test_words_of_hydra_for_a_sweep_mean_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr("normbench.sweep.sweep.sweep", lambda words, *rest: asked.append(words) or 0)
    for words in (["-m", "norm=rmsnorm,dyt"], ["norm=rmsnorm,dyt", "hydra/launcher=joblib", "--multirun"]):
        assert main(["sweep", *words]) == 0
    assert asked == [("norm=rmsnorm,dyt",), ("norm=rmsnorm,dyt", "launcher=joblib")]


def test_a_list_of_a_study_is_several_values(tmp_path: Path) -> None:
    lines = "norm: [rmsnorm, dyt]", "optim.lr: [0.001, 1e-2]", "model.blocks: [[1], [2, 2]]", "trainer.ema: 0.5"
    points, own = read_grid(own_study(tmp_path, "", *lines, "sweep.lr_seeds: [7, 8]", "sweep.exclude: [norm=a, x=b]"))
    assert [tuple(point.varied.values()) for point in points] == [
        (norm, lr, blocks) for norm in ("rmsnorm", "dyt") for lr in ("0.001", "0.01") for blocks in ("[1]", "[2,2]")
    ]
    assert "trainer.ema=0.5" in points[0].words
    assert own == ["sweep.lr_seeds=7,8", "sweep.exclude=norm=a", "sweep.exclude=x=b"]


def test_a_study_is_read_without_what_belongs_to_an_option_that_varies(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    groupnorm = config_directory() / "norm" / "groupnorm.yaml"
    (tmp_path / "norm" / "gn2.yaml").write_text(groupnorm.read_text())
    words = ["norm=groupnorm,gn2", "norm.groups=2", f"hydra.searchpath=['file://{tmp_path}']"]
    assert [run.prepared.config.tree["norm"]["groups"] for run in planned(*words).plan.runs] == [2, 2]


def test_exclusions_add_up() -> None:
    words = ["norm=layernorm,rmsnorm,dyt", "seed=0,1", "optim.lr=1e-3", "optim.betas=[0.9,0.95]"]
    points, _ = read_grid(words)
    kept, left_out = exclude(points, ["norm=dyt,optim.betas=[0.9, 9.5e-1]", "norm=rmsnorm,seed=1,optim.lr=0.001"])
    assert [" ".join(point.varied.values()) for point in kept] == ["layernorm 0", "layernorm 1", "rmsnorm 0"]
    assert sum(left_out.values()) == 3
    with pytest.raises(ValueError, match=r"leaves out none of the runs that the words give: check its keys"):
        exclude(points, ["optim.betas=[0.9,0.99]", "norm=layernorm"])


TIE = "data.batch_size=2,8;optim.lr=0.01,0.04"


def test_tied_settings_vary_as_one(tmp_path: Path) -> None:
    words = ["norm=rmsnorm,dyt", f"sweep.tie={TIE}", "sweep.tie='model.depth=2,4;model.width=range(8,10)'"]
    found = varied(*words)
    assert len(found) == 8
    assert {(one["data.batch_size"], one["optim.lr"]) for one in found} == {("2", "0.01"), ("8", "0.04")}
    assert {(one["model.depth"], one["model.width"]) for one in found} == {("2", "8"), ("4", "9")}
    study = own_study(tmp_path, "name: mine", "norm: rmsnorm,dyt", f"sweep.tie: {TIE}")
    assert len(varied(*study)) == 4
    assert varied(*study, "sweep.tie=null") == [{"norm": "rmsnorm"}, {"norm": "dyt"}]
    points, _ = read_grid(words[:2])
    assert [point.words for point in exclude(points, ["norm=dyt,data.batch_size=2"])[0]] == [
        (*(f"{key}={value}" for key, value in one.items()), "name=sweep")
        for one in varied(*words[:2])
        if (one["norm"], one["optim.lr"]) != ("dyt", "0.01")
    ]


def test_a_tie_may_leave_a_setting_as_it_is() -> None:
    """An option that does not know the setting can stand beside those that do."""
    tie = "sweep.tie=norm=layernorm,batchnorm,batchnorm;norm.masked=default,default,false"
    points = varied(tie)
    assert points == [{"norm": "layernorm"}, {"norm": "batchnorm"}, {"norm": "batchnorm", "norm.masked": "False"}]
    assert len(plan_sweep([tie, "device=cpu", "threads=1"]).plan.runs) == 3


def test_tied_batch_sizes_see_each_sample_as_often() -> None:
    runs = plan_sweep([f"sweep.tie={TIE}", "model=cnn", "data=digits", "device=cpu", "threads=1"]).plan.runs
    sizes = [run.prepared.config.tree["data"]["batch_size"] for run in runs]
    assert runs[0].steps * sizes[0] == pytest.approx(runs[1].steps * sizes[1], rel=0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep.tie=seed=0,1;optim.lr=1,2,3"], "sweep.tie=seed=0,1;optim.lr=1,2,3 has 2 of seed, 3 of optim.lr: give"),
        (["sweep.tie=optim.lr=1,2"], "sweep.tie=optim.lr=1,2 is not two settings or more with several values: write"),
        (["sweep.tie=seed=0;optim.lr=1,2"], "sweep.tie=seed=0;optim.lr=1,2 is not two settings or more with several"),
        (["seed=1", "sweep.tie=seed=0,1;optim.lr=1,2"], "seed is given beside sweep.tie=seed=0,1;optim.lr=1,2, which"),
        ([f"sweep.tie={TIE}", "sweep.tie=seed=0,1;optim.lr=1,2"], "optim.lr is given beside sweep.tie=seed=0,1;optim."),
        (["sweep.tie=seed=0,1;threads=1,2"], "threads=1,2 cannot vary within a sweep: give threads one value"),
    ],
)
def test_a_tie_that_ties_nothing_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_grid(words)
    assert said in str(caught.value)


def test_what_the_shell_has_taken_the_quotes_from_is_understood() -> None:
    words = ["sweep.exclude=a=1", "sweep.exclude=null", "sweep.exclude=norm=batchnorm,placement=parallel"]
    words += ["sweep.lr_grid=1e-3,1e-2", "sweep.exclude='seed=1'", "sweep.exclude=['x=1']"]
    settings, launcher = read_settings([*words, "launcher=submitit", "launcher.additional_parameters.gres=gpu:1"])
    assert settings.exclude == ["norm=batchnorm,placement=parallel", "seed=1", "x=1"]
    assert settings.lr_grid == [1e-3, 1e-2]
    assert (launcher["cpus_per_task"], launcher["additional_parameters"]) == (4, {"gres": "gpu:1"})


# ---- mistakes

MISTAKES = {
    "name=a,b": "name=a,b cannot vary within a sweep",
    "seed=0,1 rerun=true": "rerun=true is train's alone",
    "seed=0,1 sweep.tie=${": "check the keys and their values with normbench show",
    "launcher=proceses": "launcher=proceses is unknown: did you mean processes?",
    "launcher=submitit launcher.executor=slurm": "device=auto is not known before a cluster has chosen the machine",
    "sweep.exlude=norm=dyt": "sweep.exlude is not a setting of normbench sweep: did you mean exclude?",
    "launcher.n_jobs=2": "sweep.jobs= and threads= say what runs get of this machine): it has none",
    "sweep.exclude=norm=dyt,rmsnorm": "sweep.exclude=norm=dyt,rmsnorm is not KEY=VALUE, each with one value",
    "seed=0,1 sweep.exclude=seed=1 sweep.exclude=seed=0": "the grid is empty: none of its 2 runs is left (sweep.exclu",
    "optim.lr=1,2 sweep.lr=auto": "optim.lr=1 with sweep.lr=auto is refused: ",
    "schedule=ramp sweep.lr=auto": "schedule=ramp with sweep.lr=auto is refused: the final loss",
    "optim.lr=interval(1e-4,1e-1)": "optim.lr=interval(1e-4,1e-1) is not a list of values: give optim.lr some",
    "seed=0,1 sweep.lr=optuna": "sweep.lr=optuna",
    "seed=0,1 hydra/sweeper=ax": "hydra/sweeper",
    "data.holdout=0.2 sweep.lr=auto": "data.holdout=0.2 with sweep.lr=auto is refused: sweep.lr holds out a tenth",
    "--watch nowhere": "nowhere holds no sweep",
    "--resume nowhere": "nowhere holds no sweep that can go on: give the folder of one",
    "norm=rmsnorm,dyt seed=range(0,60000)": "a sweep over norm × seed has more than 100,000 runs, which is the most",
    "seed=range(0,1000000000000)": "a sweep over seed has more than 100,000 runs",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_starts(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MISTAKES[words] in refused(["sweep", *words.split()], capsys)
