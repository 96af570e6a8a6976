"""From words in Hydra's sweep grammar to planned runs: order, studies, exclusions, refusals, what is left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from normbench import assembly
from normbench.catalog import Choices, config_directory, options
from normbench.cli import main
from normbench.compose import compose, compose_each
from normbench.errors import UsageError
from normbench.plan import make_plan
from normbench.request import settled, wanted
from normbench.sweeping.conduct import Sweep, understand
from normbench.sweeping.grid import Common, read_common, read_grid
from normbench.sweeping.launchers import Share, cores, fair
from normbench.sweeping.settings import readable

pytest_plugins = ["refusals"]

TINY = ["model.depth=1", "model.width=16", "model.heads=2", "trainer.steps=4", "device=cpu", "threads=1"]
DIGITS = ["model=cnn", "model.width=4", "data=digits", "trainer.steps=4", "device=cpu", "threads=1"]


def varied(*words: str) -> list[dict[str, str]]:
    return [dict(point.varied) for point in read_grid(words).points]


def planned(*words: str) -> Sweep:
    return understand([*words, *DIGITS])


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
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# a study\nname: mine\nseed: 7\noptim: {lr: 0.01}\nhydra:\n  sweeper:\n    params:\n"
        "      norm: rmsnorm,dyt\n      seed: 0,1\n      sweep.exclude: norm=dyt,seed=1\n      sweep.jobs: 1\n"
    )
    return ["experiment=mine", f"hydra.searchpath=['file://{tmp_path}']"]


def test_an_experiment_holds_a_whole_study_and_the_command_line_wins(study: list[str]) -> None:
    grid = read_grid(study)
    assert len(grid.points) == 4
    assert grid.named
    assert grid.own == ("sweep.exclude=norm=dyt,seed=1", "sweep.jobs=1")
    assert [dict(point.varied) for point in read_grid([*study, "seed=5"]).points] == [
        {"norm": "rmsnorm"},
        {"norm": "dyt"},
    ]
    assert read_grid([*study, "norm=layernorm,batchnorm,none"]).varied == ("norm", "seed")


def own_study(folder: Path, name: str, content: str) -> list[str]:
    """The words that choose a study that is written for one test."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{content}")
    return [f"experiment={name}", f"hydra.searchpath=['file://{folder}']"]


def params(*lines: str) -> str:
    return "hydra:\n  sweeper:\n    params:\n" + "".join(f"      {line}\n" for line in lines)


def test_a_study_may_hold_lists_as_yaml_has_them(tmp_path: Path) -> None:
    lines = "norm: [rmsnorm, dyt]", "optim.lr: [0.001, 1e-2]", "model.stages: [1, 2]", "model.blocks: [[1], [2, 2]]"
    words = own_study(tmp_path, "lists", params(*lines, "trainer.ema: 0.5", "sweep.lr_seeds: [7, 8]"))
    grid = read_grid(words)
    assert [tuple(point.varied.values()) for point in grid.points] == [
        (norm, lr, blocks) for norm in ("rmsnorm", "dyt") for lr in ("0.001", "0.01") for blocks in ("[1]", "[2,2]")
    ]
    assert {"model.stages=[1,2]", "trainer.ema=0.5"} <= set(grid.points[0].words)
    assert grid.own == ("sweep.lr_seeds=[7,8]",)


def test_a_plus_before_the_experiment_is_understood(study: list[str]) -> None:
    assert read_grid([f"+{study[0]}", study[1]]) == read_grid(study)
    with_plus, without = compose("train", ["+experiment=smoke"]), compose("train", ["experiment=smoke"])
    assert with_plus == without


def test_a_study_is_read_without_what_belongs_to_an_option_that_varies(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    groupnorm = config_directory() / "norm" / "groupnorm.yaml"
    (tmp_path / "norm" / "gn2.yaml").write_text(groupnorm.read_text())
    words = ["norm=groupnorm,gn2", "norm.groups=2", f"hydra.searchpath=['file://{tmp_path}']"]
    assert [run.tree["norm"]["groups"] for run in planned(*words).plan.runs] == [2, 2]


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
    study = own_study(tmp_path, "excluding", params(*lines))
    plan = understand([*study, *DIGITS, *words]).plan
    assert list(dict.fromkeys(run.arm["norm"] for run in plan.runs)) == left
    assert ("layernorm", 1) not in [(run.arm["norm"], run.seed) for run in plan.runs] or "seed=1" not in str(words)


@pytest.mark.parametrize("betas", ["[0.9,0.95]", "[0.9, 9.5e-1]"])
def test_an_exclusion_may_name_a_list(betas: str) -> None:
    words = ["norm=rmsnorm,dyt", "optim.betas=[0.9,0.95],[0.9,0.99]", f"sweep.exclude=norm=dyt,optim.betas={betas}"]
    assert [(run.arm["norm"], run.tree["optim"]["betas"]) for run in planned(*words).plan.runs] == [
        ("rmsnorm", [0.9, 0.95]),
        ("rmsnorm", [0.9, 0.99]),
        ("dyt", [0.9, 0.99]),
    ]


def test_a_study_is_planned(study: list[str]) -> None:
    sweep = understand([*study, *DIGITS, "sweep.jobs=3"])
    assert sweep.plan.folder == Path("outputs/mine")
    assert [(run.arm["norm"], run.seed) for run in sweep.plan.runs] == [("rmsnorm", 0), ("rmsnorm", 1), ("dyt", 0)]
    assert {run.tree["optim"]["lr"] for run in sweep.plan.runs} == {0.01}
    assert sweep.settings.jobs == 3


def test_what_the_shell_has_taken_the_quotes_from_is_understood() -> None:
    words = ["sweep.exclude=norm=batchnorm,placement=parallel", "sweep.lr_grid=1e-3,1e-2", "sweep.exclude='seed=1'"]
    composed = compose("sweep", readable([*words, "launcher=local"]))
    assert composed is not None
    assert composed.tree["sweep"]["exclude"] == ["norm=batchnorm,placement=parallel", "seed=1"]
    assert composed.tree["sweep"]["lr_grid"] == [1e-3, 1e-2]


# ---- the plan


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


# ---- mistakes

MISTAKES = {
    "norm=rmsnrom,layernorm": "norm=rmsnrom is unknown: did you mean rmsnorm",
    "nrom=rmsnorm,layernorm": "nrom is unknown: did you mean norm?",
    "norm=rmsnorm,layernorm trainer.stesp=3": "trainer.stesp is unknown: did you mean trainer.steps?",
    "optim.lr=1,-1": "optim.lr=-1 is not allowed",
    "optim.lr=interval(0,1)": "optim.lr=interval(0,1) has no points to run at",
    "norm=glob(x*)": "norm=glob(x*) stands for no value: normbench list norm",
    "optim.lr=glob(*)": "optim.lr=glob(*) stands for no value: glob() is for groups",
    "name=a,b": "name=a,b cannot vary within a sweep",
    "seed=0,1 rerun=true": "rerun=true is train's alone",
    "seed=0,1 extend=outputs/x": "extend=outputs/x is train's alone",
    "seed=0,1 --cfg job": "--cfg is not a flag of sweep",
    "seed=0,1 --config-dir nowhere": "--config-dir nowhere is not a folder",
    "hydra.sweep.dir=x": "hydra.sweep.dir=x is not allowed",
    "norm=rmsnorm,,dyt": "norm=rmsnorm,,dyt cannot be read",
    "launcher=jbolib": "launcher=jbolib is unknown: did you mean joblib?",
    "launcher.colour=red": "launcher.colour",
    "launcher=local sweep.jobs=2": "sweep.jobs=2 is not for launcher=local",
    "launcher=submitit launcher.executor=pbs": "launcher.executor=pbs is unknown: use slurm or local",
    "launcher=submitit": "device=auto is not known before a cluster has chosen the machine",
    "sweep.exlude=norm=dyt": "sweep.exlude is unknown: did you mean sweep.exclude?",
    "sweep.exclude=dyt": "sweep.exclude=dyt is not KEY=VALUE",
    "seed=0,1 sweep.exclude=norm=batchnrom": "sweep.exclude=norm=batchnrom leaves out none of the runs: did you mean",
    "experiment=smoke,norms_cnn": "experiment=smoke,norms_cnn cannot vary within a sweep: give experiment one",
    "sweep.exclude=norm=dyt,rmsnorm": "sweep.exclude=norm=dyt,rmsnorm gives norm several values: give one",
    "sweep.exclude=[norm=dyt": "sweep.exclude=[norm=dyt cannot be read: give one exclusion without brackets",
    "seed=0,1 sweep.exclude=sede=1": "sweep.exclude=sede=1 leaves out none of the runs: did you mean seed or",
    "sweep.lr=best": "sweep.lr=best is not allowed: use auto or null",
    "sweep.jobs=0": "sweep.jobs=0 is not allowed: use an integer from 1",
    "sweep.lr_grid=1,1": "has a value twice",
    "model=cnn data=digits placement=parallel": "the grid is empty: none of its 1 runs is left (placement=parallel",
    "seed=0,1 sweep.exclude=norm=layernorm": "the grid is empty: none of its 2 runs is left (sweep.exclude=norm=layer",
    "seed=0,1000 sweep.lr=auto": "has seed 1000, which is reported",
    "seed=0,1 name=s${seed}": "the runs would be in outputs/s0 and outputs/s1, and a sweep has one folder: give name=",
    "optim.lr=1,2 sweep.lr=auto": "optim.lr=1 is not for sweep.lr=auto",
    "data.holdout=0.1 sweep.lr=auto": "data.holdout=0.1 is not for sweep.lr=auto",
    "model.width=30,32": "model.width=30 is not divisible by model.heads",
    "--watch": "--watch takes the folder of a sweep",
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


def test_a_dry_run_prints_the_plan_and_leaves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["norm=rmsnorm,dyt", "placement=pre,plain", "seed=0,1", "--dry-run"]
    assert main(["sweep", *words, *TINY, "model.context=16", "data.eval_batch_size=512", "trainer.eval_batches=1"]) == 0
    out = capsys.readouterr().out
    assert "rmsnorm · pre" in out
    assert "2 arms, 4 runs" in out
    assert "left out, 4 runs (plain): placement=plain with model=nano is refused" in out
    assert not (here / "outputs").exists()
