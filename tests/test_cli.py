"""The commands as their users run them: pages, flags, a user's own norm, and what is imported when."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from normbench import __version__, compatibility
from normbench.catalog import GROUPS, options
from normbench.cli import COMMANDS, main
from normbench.config import COMMON_KEYS, KEYS
from normbench.keys import show

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "datasets", "tensorboard", "rich", "sklearn", "numpy")

OWN_NORM = """\
import torch
from torch import nn

class MyNorm(nn.Module):
    def __init__(self, num_features, *, channel_dim=-1, site=None, eps=1e-5):
        super().__init__()
        self.dim, self.eps = channel_dim, eps

    def forward(self, x):
        return x / (x.abs().mean(self.dim, keepdim=True) + self.eps)
"""

SMALL = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2", "trainer.steps=2",
         "trainer.eval_batches=1", "data.eval_batch_size=512", "quiet=true", "device=cpu"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return folder


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m normbench` in a process of its own, in the current directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-m", "normbench", *words], capture_output=True, text=True, env=environment, encoding="utf-8"
    )


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints."""
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def flowing(text: str) -> str:
    """A page without its line breaks and columns."""
    return " ".join(text.split())


# ---- help


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_the_overview_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = page(capsys, *words)
    for name, known in COMMANDS.items():
        assert name in out
        assert known.line in flowing(out)
    assert "normbench train norm=rmsnorm placement=pre" in out
    assert out.index("commands:") < out.index("  sweep") < out.index("not in this version:") < out.index("bench (")


@pytest.mark.parametrize("words", [["--version"], ["train", "--version"]])
def test_the_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert page(capsys, *words) == f"normbench {__version__}\n"


@pytest.mark.parametrize("name", [name for name, known in COMMANDS.items() if known.run])
def test_each_command_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {page(capsys, "help", name), page(capsys, name, "--help"), page(capsys, name, "-h")}
    assert len(pages) == 1
    assert pages.pop().startswith(f"usage: normbench {name}")


def test_the_help_of_train_shows_groups_options_keys_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    out = page(capsys, "train", "--help")
    text = flowing(out)
    for group, meaning in GROUPS.items():
        assert f"\n  {group}=  {meaning}" in out
        for option, line in options(group).items():
            assert f"{option} {flowing(line)}" in text
    for path in COMMON_KEYS:
        assert f"\n  {path}=" in out
        assert flowing(KEYS[path].doc) in text
    assert "trainer.steps=null length of the run; null: from trainer.epochs [optimizer steps]" in text
    assert "optim.lr=0.001 learning rate at its peak" in text
    assert "seed=0 " in text
    assert "data.root=$NORMBENCH_DATA " in text
    assert out.count("\n  normbench train ") == 3
    assert "--cfg job" in out
    assert "--config-dir DIR" in out


def test_the_help_of_train_shows_the_options_of_a_users_directory(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/own.yaml").write_text("# A norm of mine\n_target_: own.MyNorm\n")
    assert "own A norm of mine" in flowing(page(capsys, "train", "--config-dir", "mine", "--help"))


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list"], ["list", "refusals"]])
@pytest.mark.parametrize("columns", [72, 80, 120, 200])
def test_pages_fit_the_terminal(
    words: list[str], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = page(capsys, *words).splitlines()
    prose = [line for line in lines if not line.startswith(("  normbench ", "usage: ", "  GROUP"))]
    assert max(map(len, prose)) <= min(columns, 120)
    assert all(line == line.rstrip() for line in lines)


def test_examples_of_the_help_compose(capsys: pytest.CaptureFixture[str]) -> None:
    out = page(capsys, "train", "--help")
    examples = [line.split()[2:] for line in out.splitlines() if line.startswith("  normbench train ")]
    for words in examples:
        assert "norm:" in page(capsys, "train", *words, "--cfg", "job")


# ---- list


def test_list_shows_what_there_is_and_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    out = flowing(page(capsys, "list"))
    for group in ("norm", "placement", "model", "data", "experiment"):
        for option, line in options(group).items():
            assert f"{option} {flowing(line)}" in out
    for rule in compatibility.REFUSALS:
        assert f"{flowing(rule.what)}: {flowing(rule.reason)}; {flowing(rule.instead)}" in out
    assert "x + N(f(x)), sometimes called post-norm, is post_inside here" in out
    assert "x + attention(N(x)) + mlp(N(x)), sometimes called pre-norm, is parallel" in out


@pytest.mark.parametrize("group", [*GROUPS, "refusals"])
def test_list_of_one_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = page(capsys, "list", group)
    assert out.startswith(group)
    others = {other for other in GROUPS if other != group}
    assert not any(out.startswith(f"{other}=") or f"\n{other}=" in out for other in others)


def test_list_ends_quietly_when_its_reader_goes() -> None:
    done = subprocess.run(
        f"{sys.executable} -m normbench list | head -n 1",
        shell=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"norm=  {GROUPS['norm']}\n", "")


def test_pages_print_where_greek_letters_cannot() -> None:
    done = command("list", "norm", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rmsnorm" in done.stdout


# ---- Hydra's flags


def test_cfg_job_prints_the_configuration_and_does_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = yaml.safe_load(page(capsys, "train", "norm=rmsnorm", "seed=7", "--cfg", "job"))
    assert (tree["norm"]["_target_"], tree["seed"]) == ("normbench.norms.RMSNorm", 7)
    assert "${" in page(capsys, "train", "--cfg", "job")
    resolved = page(capsys, "train", "--cfg", "job", "--resolve")
    assert "${" not in resolved
    assert yaml.safe_load(resolved)["data"]["context"] == 64
    assert list(here.iterdir()) == []


def test_a_package_of_the_configuration_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        yaml.safe_load(page(capsys, "train", "--cfg", "job", "--package", "optim"))["_target_"] == "torch.optim.AdamW"
    )


def test_info_shows_where_the_configuration_comes_from() -> None:
    """In a process of its own, as Hydra leaves its log handler behind."""
    done = command("train", "norm=dyt", "--info", "defaults-tree")
    assert (done.returncode, done.stderr) == (0, "")
    assert "norm: dyt" in done.stdout
    assert "model: nano" in done.stdout


# ---- a user's own norm


def results(folder: Path) -> tuple[Path, dict]:
    """The one run under a folder, and its summary."""
    (summary,) = folder.glob("outputs/train/*/summary.json")
    return summary.parent, json.loads(summary.read_text())


def test_a_class_of_the_users_own_trains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "own_norm.py").write_text(OWN_NORM)
    assert main(["train", "norm._target_=own_norm.MyNorm", *SMALL]) == 0
    run, summary = results(here)
    assert run.name.startswith("mynorm-pre-s0-")
    assert summary["status"] == "finished"
    # layernorm's settings are gone: the class's own defaults hold
    assert yaml.safe_load((run / "config.yaml").read_text())["norm"] == {
        "_target_": "own_norm.MyNorm", "_partial_": True,
    }  # fmt: skip
    assert str(run.relative_to(here)) in capsys.readouterr().out


def test_what_the_command_line_sets_for_a_users_class_is_not_dropped(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own_norm2.py").write_text(OWN_NORM)
    assert main(["train", "norm._target_=own_norm2.MyNorm", "norm.affine=false", *SMALL]) == 2
    assert "norm.affine is not a setting of own_norm2.MyNorm" in capsys.readouterr().err
    assert main(["train", "norm._target_=own_norm2.MyNorm", "norm.eps=0.1", *SMALL]) == 0
    run, _ = results(here)
    assert yaml.safe_load((run / "config.yaml").read_text())["norm"]["eps"] == 0.1


def test_a_yaml_of_the_users_own_trains(here: Path) -> None:
    (here / "own_norm3.py").write_text(OWN_NORM)
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/mine.yaml").write_text("# By the mean of |x|\n_target_: own_norm3.MyNorm\neps: 1e-3\n")
    assert main(["train", "--config-dir", "mine", "norm=mine", *SMALL]) == 0
    run, summary = results(here)
    assert run.name.startswith("mine-pre-s0-")
    assert summary["choices"]["norm"] == "mine"


def test_however_a_number_is_written_it_is_the_same_run(here: Path) -> None:
    for words in (["trainer.steps=2", "optim.lr=1"], ["trainer.steps=2.0", "optim.lr=1.0"], ["trainer.steps=2e0"]):
        assert main(["train", *SMALL, "optim.lr=1", *words]) == 0
    results(here)


def test_a_tilde_is_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell leaves it alone behind `outputs=`."""
    monkeypatch.setenv("HOME", str(here / "home"))
    assert main(["train", "outputs='~/outputs'", *SMALL]) == 0
    results(here / "home")


# ---- tensorboard


def test_tensorboard_is_started_on_a_folder_with_runs(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "outputs/train/a").mkdir(parents=True)
    (here / "outputs/train/a/events.out.tfevents.1.x").touch()
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, words: started.append(words))
    for words in ([], ["outputs/train"], ["--port", "7007"], ["outputs/train", "--port=7007"]):
        with pytest.raises(TypeError):  # the real one never comes back; the stand-in returns None
            main(["tensorboard", *words]) + 0
    assert [words[1:5] for words in started] == [
        ["-P", "-m", "tensorboard.main", f"--logdir={folder}"]
        for folder in ("outputs", "outputs/train", "outputs", "outputs/train")
    ]
    assert [words[5:] for words in started] == [[], [], ["--port", "7007"], ["--port=7007"]]
    assert capsys.readouterr().out.count(":7007/") == 2


# ---- what is imported, and how long it takes

IMPORTED = """\
import sys
from normbench.cli import main
status = main(sys.argv[1:])
print(status, *sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "status", "unwanted"),
    [
        (["--help"], 0, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["--version"], 0, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["trian"], 2, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["list"], 0, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["show"], 0, HEAVY),
        (["show", "norm=rmsnrm"], 2, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["completion", "bash"], 0, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["complete", "--", "train", "norm="], 0, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["complete", "--", "train", "norm."], 0, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["sample", "run", "--tokens=0"], 2, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["train", "--help"], 0, HEAVY),
        (["train", "norm=rmsnrm"], 2, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["train", "norm.epz=1"], 2, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["train", "seed=-1"], 2, (*HEAVY, "hydra", "omegaconf", "yaml")),
        (["train", "model.heads=3"], 2, HEAVY),
        (["train", "--config-dir", "nowhere"], 2, HEAVY),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(words: list[str], status: int, unwanted: tuple[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, env=environment)
    found, *imported = done.stderr.splitlines()[-1].split()
    assert int(found) == status
    assert "normbench" in imported
    assert set(unwanted) & set(imported) == set()


def cpu_seconds(action: Callable[[], object]) -> float:
    """What the processes that `action` starts and waits for take of the CPU, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("--help", 0.3),
        ("train norm=rmsnrm", 0.5),
        ("train norm.epz=1", 0.5),
        ("train seed=-1", 0.5),
        ("complete -- train norm=", 0.15),
        ("complete -- train norm.", 0.15),
        ("show norm=rmsnorm", 1.0),
    ],
)
def test_help_and_mistakes_come_at_once(line: str, limit: float) -> None:
    """CPU time, the best of a few: what else the machine does is not ours."""
    best = min(cpu_seconds(lambda: command(*line.split())) for _ in range(3))
    assert best <= limit


def test_defaults_in_the_help_are_those_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    tree = yaml.safe_load(page(capsys, "train", "--cfg", "job", "--resolve"))
    out = page(capsys, "train", "--help")
    for path in COMMON_KEYS:
        section, _, name = path.rpartition(".")
        values = tree[section] if section else tree
        if name in values:
            assert f"\n  {path}={show(values[name])} " in out
