"""The commands as their users run them: help pages, lists, flags, mistakes, and what is imported when."""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support import REPOSITORY, refused

from normbench import __version__
from normbench.cli import COMPLETE, cli, main
from normbench.config.groups import options, section_of
from normbench.config.refusals import REFUSALS
from normbench.config.sections import GROUPS
from normbench.errors import RunFailure, UsageError
from normbench.settings import flat, lookup, show

OWN_NORM = """\
from typing import Annotated, Any
from torch import nn
from normbench.settings import Setting

class MyNorm(nn.Module):
    def __init__(self, num_features, *, channel_dim=-1, site=None,
                 eps: Annotated[float, Setting("keeps the mean of |x| from 0", "of x", low=0, high=1)] = 1e-5):
        super().__init__()
"""

TINY = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2", "quiet=true",
        "trainer.steps=2", "trainer.eval_batches=1", "data.eval_batch_size=512", "device=cpu"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a norm of the user's own, and its YAML."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_norm.py").write_text(OWN_NORM)
    (tmp_path / "mine/norm").mkdir(parents=True)
    (tmp_path / "mine/norm/mine.yaml").write_text("# By the mean of |x|\n_target_: own_norm.MyNorm\neps: 1e-3\n")
    return tmp_path


def process(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, encoding="utf-8")


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


def test_the_overview_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    (out,) = {page(capsys, *words) for words in ([], ["-h"], ["--help"], ["help"])}
    assert all(f"\n  {name} " in out for name in cli.commands)
    assert "normbench train norm=rmsnorm placement=pre" in out
    assert page(capsys, "--version") == f"normbench {__version__}\n"


@pytest.mark.parametrize("name", cli.commands)
def test_each_command_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (out,) = {page(capsys, "help", name), page(capsys, name, "--help"), page(capsys, name, "-h")}
    assert out.startswith(f"Usage: normbench {name}")


def test_the_help_of_train_shows_options_and_the_settings_of_what_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    text = flowing(page(capsys, "train", "--help"))
    assert all(f"{option} {flowing(line)}" in text for group in GROUPS for option, line in options(group).items())
    assert "optim.lr=0.001 peak learning rate: one for all norms, chosen for none; sweep.lr=each" in text
    assert "Settings of norm=layernorm: norm.eps=1e-05 added to the variance" in text
    text = flowing(page(capsys, "train", "model=cnn", "norm=groupnorm", "--help"))
    assert "norm.groups=auto groupnorm's groups of channels" in text
    assert "model.stages=[1,2,2]" in text
    text = flowing(page(capsys, "help", "train", "--config-dir", "mine", "norm=mine"))
    assert "mine By the mean of |x|" in text
    assert "norm.eps=0.001 keeps the mean of |x| from 0 [a number from 0 to 1 (of x)]" in text
    assert main(["train", "norm=rmsnrm", "--help"]) == 2


def test_list_shows_what_there_is_and_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    out = flowing(page(capsys, "list"))
    for group in ("norm", "placement", "model", "data", "experiment"):
        assert all(f"{option} {flowing(line)}" in out for option, line in options(group).items())
    assert all(rule.what in out and f": {rule.reason}; {rule.instead}" in out for rule in REFUSALS)
    assert "x + N(f(x)), sometimes called post-norm, is post_inside here" in out
    assert page(capsys, "list", "optim").startswith("optim=  the optimizer\n")
    assert page(capsys, "list", "launcher").startswith("launcher=  where the runs of a sweep are started\n")


def test_pages_of_launchers_have_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    everything = flowing(page(capsys, "list", "launcher"))
    for option in options("launcher"):
        settings = section_of("launcher", option)
        del settings["_target_"]
        chosen = flowing(page(capsys, "sweep", f"launcher={option}", "--help"))
        for name, value in settings.items():
            assert re.search(rf"launcher\.{name}=\S* \w", chosen)
            assert f"launcher.{name}={show(value)}" in everything
        assert ("Settings of launcher=" in chosen) == bool(settings)
    assert main(["sweep", "launcher=rya", "--help"]) == 2


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list"]])
@pytest.mark.parametrize("columns", [72, 200])
def test_pages_fit_the_terminal(
    words: list[str], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = page(capsys, *words).splitlines()
    assert max(len(line) for line in lines if "  normbench " not in line) <= min(columns, 120)


def test_pages_print_where_greek_letters_cannot() -> None:
    done = process("-m", "normbench", "list", "norm", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rmsnorm" in done.stdout


# ---- mistakes and exit statuses


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("trian", "did you mean train?"),
        ("help trian", "did you mean train?"),
        ("norm=rmsnorm", "did you mean normbench train norm=rmsnorm?"),
        ("train --dry-rum", "Did you mean '--dry-run'?"),
        ("train --cfg", "Option '--cfg' requires an argument"),
        ("show --config-dir nowhere", "nowhere is not a folder: give the one that holds"),
        ("sweep", "sweep has nothing to vary"),
        ("list normm", "normm is unknown: did you mean norm? allowed are norm, placement"),
        ("sample", "Missing argument 'RUN': give normbench sample [OPTIONS] RUN (see"),
        ("compare a", "Missing argument 'B': give normbench compare [OPTIONS] A B (see"),
        ("sample run --temperature=nan", "nan is not a number"),
        ("report . --target=nan", "nan is not a number"),
        ("sample run --tokens=0", "0 is not in the range 1<=x<=1000000"),
        ("tensorboard", "train something first"),
        ("tensorboard .", "train something first"),
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
    ],
)
def test_exit_statuses(
    error: BaseException, status: int, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object) -> None:
        raise error

    monkeypatch.setattr("normbench.commands.pages.show_page", fail)
    assert main(["show"]) == status
    assert capfd.readouterr().err == said


# ---- the configuration


def test_cfg_job_prints_the_configuration_and_does_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = yaml.safe_load(page(capsys, "train", "norm=rmsnorm", "--cfg", "job", "seed=7"))
    assert (tree["norm"]["_target_"], tree["seed"]) == ("normbench.norms.RMSNorm", 7)
    assert "${" in page(capsys, "train", "--cfg", "job")
    assert "${" not in page(capsys, "train", "--cfg", "job", "--resolve")
    told = process("-m", "normbench", "train", "norm=dyt", "seed=7", "--info", "defaults")  # Hydra sets its logging
    assert "norm/dyt " in told.stdout and not told.stderr
    assert not (here / "outputs").exists()


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """Return the values that `normbench show` prints."""
    lines = re.findall(r"^([\w.]+)=(\S+)", page(capsys, "show", *words), re.MULTILINE)
    return dict(lines)


def test_show_gives_each_key_its_value_its_unit_and_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those that `--cfg job` prints, each in its own type."""
    words = ["norm=groupnorm", "model.width=64", "trainer.steps=1e3"]
    rows = shown(capsys, *words)
    tree = yaml.safe_load(page(capsys, "train", *words, "--cfg", "job", "--resolve"))
    written = {path: show(lookup(tree, path)) for path in flat(tree) if not path.endswith("_partial_")}
    assert rows.keys() == written.keys() | GROUPS.keys()
    assert {path: rows[path] for path in written} == written | {"trainer.steps": "1000"}
    assert "[an integer from 1 to 1,000,000,000 (steps), or null]" in flowing(page(capsys, "show"))
    rows = shown(capsys, "norm._target_=own_norm.MyNorm")  # layernorm's settings are gone
    assert [path for path in rows if path.startswith("norm.")] == ["norm._target_"]
    assert shown(capsys, "norm=mine", "--config-dir", "mine")["norm.eps"] == "0.001"


def test_show_keeps_a_dollar_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "data=text", "data.path=a$b.txt")["data.path"].startswith("a$b.txt")


def test_show_of_an_extended_run_is_its_own_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    run = page(capsys, "train", *TINY, "norm=dyt").strip()
    rows = shown(capsys, f"extend={run}", "trainer.steps=4")
    assert (rows["norm._target_"], rows["trainer.steps"]) == ("normbench.norms.DyT", "4")


# ---- tensorboard


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own imports
@pytest.mark.parametrize(
    ("folder", "flags"), [("outputs", []), ("outputs/train", ["--port", "7007"]), ("outputs", ["--port=7007"])]
)
def test_tensorboard_is_started_on_a_folder_with_runs(
    folder: str, flags: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = here / "outputs/train/a"
    run.mkdir(parents=True)
    for name in ("events.out.tfevents.1.x", "config.yaml", "status.json"):
        (run / name).touch()
    started: list[argparse.Namespace] = []
    monkeypatch.setattr("tensorboard.program.TensorBoard.main", lambda self: started.append(self.flags) or 0)
    assert main(["tensorboard", *([] if folder == "outputs" else [folder]), *flags]) == 0
    assert (started[0].logdir, started[0].port) == (folder, 7007 if flags else None)


@pytest.mark.filterwarnings("ignore")
def test_an_end_of_tensorboard_s_own_is_told_by_it_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answer to SIGTERM is SystemExit(0)."""
    (here / "outputs").mkdir()
    (here / "outputs/events.out.tfevents.1.x").touch()

    def stopped(self: object) -> int:
        raise SystemExit(0)

    monkeypatch.setattr("tensorboard.program.TensorBoard.main", stopped)
    assert main(["tensorboard"]) == 0
    assert main(["tensorboard", "--no_such_flag=3"]) == 2
    assert "normbench: " not in capsys.readouterr().err


# ---- what is imported, and how long it takes

IMPORTED = """\
import os, sys
from normbench.cli import COMPLETE, main
print(*[main(line.split()) for line in sys.argv[1:]], file=sys.stderr)
os.environ |= {COMPLETE: "bash_complete", "COMP_WORDS": "normbench train norm.affine=", "COMP_CWORD": "2"}
main()
print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""
HEAVY = {"torch", "datasets", "tensorboard", "rich", "sklearn", "numpy", "pandas"}
FREE = {"--help": 0, "trian": 2, "list": 0, "completion bash": 0, "sample run --tokens=0": 2, "train --help": 0,
        "train norm=rmsnrm": 2}  # fmt: skip
COMPOSED = {"show": 0, "train seed=-1": 2, "train model.heads=3": 2}


@pytest.mark.parametrize(("lines", "heavy"), [(FREE, HEAVY | {"hydra", "omegaconf"}), (COMPOSED, HEAVY)])
def test_nothing_heavy_is_imported_before_it_is_needed(lines: dict[str, int], heavy: set[str]) -> None:
    """Nor for the Tab key."""
    done = process("-c", IMPORTED, *lines)
    *_, statuses, imported = (line for line in done.stderr.splitlines() if not line.startswith("normbench: "))
    assert [int(status) for status in statuses.split()] == list(lines.values())
    assert not heavy & set(imported.split())
    assert done.stdout.endswith("plain,norm.affine=false \n")


@pytest.fixture(scope="module")
def import_of_hydra() -> float:
    """CPU time of a Python that imports Hydra."""
    return min(cpu_time(lambda: process("-c", "import hydra")) for _ in range(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "most", "variables"),
    [
        (["--help"], 1, {}),
        (["train", "seed=-1"], 3, {}),
        ([], 1, {COMPLETE: "fish_complete", "COMP_WORDS": "normbench train norm.affine=", "COMP_CWORD": ""}),
    ],
)
def test_help_completion_and_mistakes_come_at_once(
    words: list[str], most: float, variables: dict[str, str], import_of_hydra: float
) -> None:
    """CPU time as a multiple of what a Python takes that imports Hydra, the best of a few of each."""
    ours = [cpu_time(lambda: process("-m", "normbench", *words, **variables)) for _ in range(3)]
    assert min(ours) <= most * import_of_hydra


def cpu_time(work: Callable[[], object]) -> float:
    """Return the CPU time of the processes that some work starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
