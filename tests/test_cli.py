"""The commands as their users run them: help pages, flags, a user's own norm, and what is imported when."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from support import REPOSITORY, refused

from normbench import __version__
from normbench.cli import cli, main
from normbench.config.groups import GROUPS, options
from normbench.config.refusals import REFUSALS
from normbench.errors import RunFailure, UsageError
from normbench.settings import flat, lookup, show

OWN_NORM = """\
from typing import Annotated
from torch import nn
from normbench.settings import Setting

class MyNorm(nn.Module):
    def __init__(
        self, num_features, *, channel_dim=-1, site=None,
        eps: Annotated[float, Setting("keeps the mean of |x| from 0", "of x", low=0, high=1)] = 1e-5,
    ):
        super().__init__()
        self.dim, self.eps = channel_dim, eps

    def forward(self, x):
        return x / (x.abs().mean(self.dim, keepdim=True) + self.eps)
"""

TINY_WORDS = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2", "quiet=true",
              "trainer.steps=2", "trainer.eval_batches=1", "data.eval_batch_size=512", "device=cpu"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return folder


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m normbench` in a process of its own, in the current directory."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    line = [sys.executable, "-m", "normbench", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, encoding="utf-8")


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command prints."""
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def flowing(text: str) -> str:
    """Return a page without its line breaks and columns."""
    return " ".join(re.sub(r"-\n +", "-", text).split())


# ---- help and lists


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_the_overview_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = page(capsys, *words)
    assert all(f"\n  {name} " in out for name in cli.commands)
    assert "normbench train norm=rmsnorm placement=pre" in out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert page(capsys, "--version") == f"normbench {__version__}\n"


@pytest.mark.parametrize("name", cli.commands)
def test_each_command_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {page(capsys, "help", name), page(capsys, name, "--help"), page(capsys, name, "-h")}
    assert len(pages) == 1
    assert pages.pop().startswith(f"Usage: normbench {name}")


def test_the_help_of_train_shows_groups_options_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = flowing(page(capsys, "train", "--help"))
    for group, meaning in GROUPS.items():
        assert f"{group}= {meaning}" in text
        assert all(f"{option} {flowing(line)}" in text for option, line in options(group).items())
    for line in (
        "trainer.steps=null length of the run; null: from trainer.epochs [an integer from 1 to 1,000,000,000",
        "optim.lr=0.001 learning rate at its peak [a number above 0 up to 1,000]",
        "Settings of norm=layernorm: norm.eps=1e-05 added to the variance",
        "model.mlp=gelu activation of the MLP [gelu, relu, silu,",
    ):
        assert line in text


def test_the_help_of_train_shows_the_settings_of_what_is_chosen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = flowing(page(capsys, "train", "model=cnn", "norm=groupnorm", "--help"))
    assert "Settings of norm=groupnorm:" in text
    assert "norm.groups=auto groupnorm's groups of channels" in text
    assert "model.stages=[1,2,2]" in text
    own_option(here)
    text = flowing(page(capsys, "help", "train", "--config-dir", "mine", "norm=mine"))
    assert "mine By the mean of |x|" in text
    assert "norm.eps=0.001 keeps the mean of |x| from 0 [a number from 0 to 1 (of x)]" in text
    assert main(["train", "norm=rmsnrm", "--help"]) == 2


def own_option(here: Path) -> None:
    """Write a norm of the user's own, and its YAML."""
    (here / "own_norm.py").write_text(OWN_NORM)
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/mine.yaml").write_text("# By the mean of |x|\n_target_: own_norm.MyNorm\neps: 1e-3\n")


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list"], ["list", "refusals"]])
@pytest.mark.parametrize("columns", [72, 80, 120, 200])
def test_pages_fit_the_terminal(
    words: list[str], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = page(capsys, *words).splitlines()
    assert max(len(line) for line in lines if "  normbench " not in line) <= min(columns, 120)


def test_list_shows_what_there_is_and_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    out = flowing(page(capsys, "list"))
    for group in ("norm", "placement", "model", "data", "experiment"):
        assert all(f"{option} {flowing(line)}" in out for option, line in options(group).items())
    for rule in REFUSALS:
        assert f"{flowing(rule.what)}: {flowing(rule.reason)}; {flowing(rule.instead)}" in out
    assert "x + N(f(x)), sometimes called post-norm, is post_inside here" in out


@pytest.mark.parametrize("group", [*GROUPS, "refusals"])
def test_list_of_one_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = page(capsys, "list", group)
    assert out.startswith(group)
    assert not any(f"\n{other}=" in out for other in GROUPS)


def test_list_ends_quietly_when_its_reader_goes() -> None:
    line = f"set -o pipefail; {sys.executable} -m normbench list | head -n 1"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"norm=  {GROUPS['norm']}\n", "", 0)


def test_pages_print_where_greek_letters_cannot() -> None:
    done = command("list", "norm", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rmsnorm" in done.stdout


# ---- mistakes


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("trian", "Did you mean 'train'?"),
        ("norm=rmsnorm", "did you mean normbench train norm=rmsnorm?"),
        ("train --dry-rum", "Did you mean '--dry-run'?"),
        ("train --multirun norm=dyt,rmsnorm", "normbench sweep takes the same words"),
        ("list normm", "did you mean norm?"),
        ("sample", "Missing argument 'RUN'"),
        ("sample run --tokens=0", "--tokens=0 is not allowed: use an integer from 1 to 1,000,000"),
        ("compare a b --margin nan", "--margin=nan is not allowed: use a number from 0"),
        ("completion bsh", "'bsh' is not one of 'bash', 'zsh', 'fish'"),
        ("tensorboard", "train something first"),
    ],
)
def test_mistakes_are_one_sentence(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(line.split(), capsys)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UsageError("what\nis wrong"), 2, "normbench: what is wrong\n"),
        (RunFailure("the disk is full"), 1, "normbench: the disk is full\n"),
        (KeyboardInterrupt(), 130, "normbench: stopped\n"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_exit_statuses(
    error: BaseException, status: int, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: object) -> None:
        raise error

    monkeypatch.setattr("normbench.commands.pages.show_table", fail)
    assert main(["show"]) == status
    assert capfd.readouterr().err == said


# ---- Hydra's flags


def test_cfg_job_prints_the_configuration_and_does_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = yaml.safe_load(page(capsys, "train", "norm=rmsnorm", "--cfg", "job", "seed=7"))
    assert (tree["norm"]["_target_"], tree["seed"]) == ("normbench.norms.RMSNorm", 7)
    assert "${" in page(capsys, "train", "--cfg", "job")
    resolved = page(capsys, "train", "--cfg", "job", "--resolve")
    assert "${" not in resolved
    assert yaml.safe_load(resolved)["data"]["context"] == 64
    assert list(here.iterdir()) == []


def test_info_shows_where_the_configuration_comes_from() -> None:
    """In a process of its own, as Hydra leaves its log handler behind."""
    done = command("train", "norm=dyt", "--info", "defaults-tree")
    assert (done.returncode, done.stderr) == (0, "")
    assert "norm: dyt" in done.stdout
    assert "model: nano" in done.stdout


# ---- a user's own norm


def result(folder: Path) -> tuple[str, dict, dict]:
    """Return the name of the one run under a folder, its summary and its norm's settings."""
    (run,) = folder.glob("outputs/train/*")
    return run.name, json.loads((run / "summary.json").read_text()), yaml.safe_load((run / "config.yaml").read_text())


@pytest.mark.parametrize(
    ("words", "name", "eps"),
    [
        ("norm._target_=own_norm.MyNorm", "mynorm", None),  # layernorm's settings are gone: its own defaults hold
        ("norm._target_=own_norm.MyNorm norm.eps=0.1", "mynorm", 0.1),
        ("--config-dir mine norm=mine", "mine", 1e-3),
    ],
)
def test_a_norm_of_the_users_own_trains(words: str, name: str, eps: float | None, here: Path) -> None:
    own_option(here)
    assert main(["train", *words.split(), *TINY_WORDS]) == 0
    run, summary, tree = result(here)
    assert run.startswith(f"{name}-pre-s0-")
    assert (summary["status"], summary["choices"]["norm"]) == ("finished", name)
    assert (tree["norm"]["_target_"], tree["norm"].get("eps")) == ("own_norm.MyNorm", eps)


def test_what_a_users_class_does_not_take_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_option(here)
    assert main(["train", "norm._target_=own_norm.MyNorm", "norm.affine=false", *TINY_WORDS]) == 2
    assert "norm.affine is not a setting of own_norm.MyNorm" in capsys.readouterr().err


def test_however_a_number_is_written_it_is_the_same_run(here: Path) -> None:
    for words in (["trainer.steps=2", "optim.lr=1"], ["trainer.steps=2e0", "optim.lr=1.0"]):
        assert main(["train", *TINY_WORDS, *words]) == 0
    result(here)


def test_a_tilde_is_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell leaves it alone behind `outputs=`."""
    monkeypatch.setenv("HOME", str(here / "home"))
    assert main(["train", "outputs='~/outputs'", *TINY_WORDS]) == 0
    result(here / "home")


# ---- show


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[str, ...]]:
    """Return what `normbench show` prints for a program: key -> value, allowed."""
    heading, *lines = page(capsys, "show", *words).splitlines()
    starts = [heading.index(name) for name in heading.split()]
    cuts = [slice(start, end) for start, end in pairwise([*starts, None])]
    assert all(line == line.rstrip() for line in lines)
    return {cells[0]: cells[1:] for cells in (tuple(line[cut].strip() for cut in cuts) for line in lines)}


def test_show_gives_each_key_its_value_its_unit_and_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those that `--cfg job` prints."""
    words = ["norm=groupnorm", "model.width=64", "trainer.steps=1e3"]
    rows = shown(capsys, *words)
    tree = yaml.safe_load(page(capsys, "train", *words, "--cfg", "job", "--resolve"))
    written = {path: show(lookup(tree, path)) for path in flat(tree) if not path.endswith("_partial_")}
    assert rows.keys() == written.keys() | GROUPS.keys()
    assert {path: rows[path][0] for path in written} == written | {"trainer.steps": "1000"}
    assert rows["trainer.steps"] == ("1000", "an integer from 1 to 1,000,000,000 (optimizer steps), or null")
    assert rows["norm.groups"] == ("auto", "auto or an integer from 1 to 1,000,000")
    assert rows["norm"] == ("groupnorm", "normbench list norm")
    assert shown(capsys, "experiment=nanogpt_cpu")["experiment"][0] == "nanogpt_cpu"


def test_show_drops_what_the_replaced_class_is_set(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_option(here)
    rows = shown(capsys, "norm._target_=own_norm.MyNorm")
    assert [path for path in rows if path.startswith("norm.")] == ["norm._target_"]
    assert shown(capsys, "--config-dir", "mine", "norm=mine", "norm.eps=0.1")["norm.eps"][0] == "0.1"


def test_show_of_an_extended_run_is_its_own_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    run = page(capsys, "train", *TINY_WORDS, "norm=dyt").strip()
    rows = shown(capsys, f"extend={run}", "trainer.steps=4")
    assert (rows["norm._target_"][0], rows["trainer.steps"][0]) == ("normbench.norms.DyT", "4")


@pytest.mark.parametrize("words", [["norm=rmsnrm"], ["model.heads=3"], ["--config-dir", "nowhere"]])
def test_show_refuses_what_train_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["show", *words], capsys) == refused(["train", *words], capsys)


@pytest.mark.parametrize("columns", [80, 120])
def test_show_is_a_table_on_a_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = page(capsys, "show", "norm=rmsnorm")
    assert max(map(len, out.splitlines())) <= columns
    assert out.index("norm.eps") < out.index("placement._target_")


# ---- tensorboard


@pytest.mark.parametrize(
    ("words", "folder", "flags"),
    [
        ([], "outputs", []),
        (["outputs/train"], "outputs/train", []),
        (["--port", "7007"], "outputs", ["--port", "7007"]),
        (["outputs/train", "--port=7007", "--bind_all"], "outputs/train", ["--port=7007", "--bind_all"]),
    ],
)
def test_tensorboard_is_started_on_a_folder_with_runs(
    words: list[str], folder: str, flags: list[str], here: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (here / "outputs/train/a").mkdir(parents=True)
    (here / "outputs/train/a/events.out.tfevents.1.x").touch()
    started: list[str] = []
    monkeypatch.setattr("os.execv", lambda program, words: started.extend(words))
    main(["tensorboard", *words])
    assert started[1:] == ["-P", "-m", "tensorboard.main", f"--logdir={folder}", *flags]
    assert f"localhost:{7007 if flags else 6006}/" in capsys.readouterr().out


# ---- what is imported, and how long it takes

IMPORTED = """\
import sys
from normbench.cli import main
status = main(sys.argv[1:])
print(status, *sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""
HEAVY = {"torch", "datasets", "tensorboard", "rich", "sklearn", "numpy"}
HYDRA = {"hydra", "omegaconf"}


@pytest.mark.parametrize(
    ("line", "status", "unwanted"),
    [
        ("--help", 0, HEAVY | HYDRA | {"yaml"}),
        ("--version", 0, HEAVY | HYDRA | {"yaml"}),
        ("trian", 2, HEAVY | HYDRA | {"yaml"}),
        ("list", 0, HEAVY | HYDRA),
        ("completion bash", 0, HEAVY | HYDRA),
        ("sample run --tokens=0", 2, HEAVY | HYDRA),
        ("show", 0, HEAVY),
        ("train --help", 0, HEAVY),
        ("train norm=rmsnrm", 2, HEAVY),
        ("train model.heads=3", 2, HEAVY),
        ("train --config-dir nowhere", 2, HEAVY),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(line: str, status: int, unwanted: set[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    program = [sys.executable, "-c", IMPORTED, *line.split()]
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    found, *imported = done.stderr.splitlines()[-1].split()
    assert int(found) == status
    assert unwanted & set(imported) == set()


@pytest.mark.parametrize(("line", "limit"), [("--help", 0.2), ("--version", 0.2), ("train seed=-1", 0.9)])
def test_help_and_mistakes_come_at_once(line: str, limit: float) -> None:
    """CPU time, the best of a few: what else the machine does is not ours."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command(*line.split())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) <= limit
