"""Every command of README.md and docs/ runs; long ones with a few steps."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY

from normbench.cli import main
from normbench.config.groups import options

PAGES = {
    path.name: path.read_text("utf-8") for path in (REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md")))
}
TEXT = "\n".join(PAGES.values())
SHORT = ["trainer.steps=4", "trainer.eval_every=2", "trainer.eval_batches=1", "model.width=8", "threads=1"]
TOUR = ["train", "norm=layernorm", "placement=pre", "model.depth=1", "name=tour"]
MANY = ("sweep", "report", "compare")


def blocks(language: str) -> list[str]:
    """Return the pages' code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


COMMANDS = {  # the words behind `normbench`, however it is called
    line: shlex.split(line)[1:]
    for block in blocks("bash")
    for line in block.splitlines()
    if line and not line.startswith(("#", "./scripts/test"))
}
TRAIN = [line for line, words in COMMANDS.items() if words[0] == "train" and "extend=" not in line]
OTHER = [line for line, words in COMMANDS.items() if words[0] not in ("train", "tensorboard", "sample", *MANY)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with the pages' own norm and its YAML, where they say that these are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "mynorms.py").write_text(blocks("python")[0])
    (tmp_path / "myconf/norm").mkdir(parents=True)
    (tmp_path / "myconf/norm/l1.yaml").write_text(blocks("yaml")[0])
    return tmp_path


def run_of_the_tour(here: Path) -> Path:
    """Return a small run in the folder that the pages call outputs/tour."""
    assert main([*TOUR, *SHORT]) == 0
    (run,) = (here / "outputs/tour").iterdir()
    return run


def test_the_commands_are_found() -> None:
    assert len(TRAIN) > 10
    assert "./scripts/normbench train norm=rmsnorm placement=pre" in TRAIN
    assert "./scripts/test" in TEXT


@pytest.mark.parametrize("line", TRAIN)
def test_train_command(line: str, here: Path) -> None:
    if "data.root=PATH" in line and "NORMBENCH_DATA" not in os.environ:
        pytest.skip("NORMBENCH_DATA names no folder with the public data sets")
    words = [word for word in COMMANDS[line] if word != "data.root=PATH"]
    if any(flag in words for flag in ("--cfg", "--help", "--dry-run")):
        assert main([*words, "model.width=8"]) == 0
    elif "data=wikitext2" in line or "data=cifar10" in line:  # whose last evaluation alone takes long
        assert main([*words, "--cfg", "job"]) == 0
    else:
        assert main([*words, *SHORT, *([] if "model=" in line else ["model.depth=1"])]) == 0
        assert list(here.glob("outputs/*/*/summary.json"))
        return
    assert not (here / "outputs").exists()


def test_the_run_that_is_extended(here: Path) -> None:
    lines = list(COMMANDS)
    (line,) = (line for line in lines if "extend=" in line)
    folder = here / re.search(r"extend=(\S+)/RUN", line)[1]
    assert main([*COMMANDS[lines[lines.index(line) - 1]], *SHORT]) == 0
    (run,) = folder.iterdir()
    assert main([*(word.replace("RUN", run.name) for word in COMMANDS[line]), "trainer.steps=6"]) == 0


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow) if COMMANDS[line][0] == "check" else line for line in OTHER]
)
def test_other_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMANDS[line]) == 0
    assert len(capsys.readouterr().out) > 200


def test_sample_command_and_the_notebook_s_lines(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of_the_tour(here)
    (words,) = (words for words in COMMANDS.values() if words[0] == "sample")
    capsys.readouterr()
    assert main([word.replace("RUN", run.name) for word in words]) == 0
    assert capsys.readouterr().out.startswith("The ")
    names: dict[str, object] = {}
    exec(next(block for block in blocks("python") if "load_runs" in block), names)
    assert "layernorm" in capsys.readouterr().out
    assert type(names["model"]).__name__ == "Transformer"


def test_tensorboard_command_serves(here: Path) -> None:
    """It is the real one; here on a free port."""
    run_of_the_tour(here)
    words = next(words for words in COMMANDS.values() if words[0] == "tensorboard" and len(words) > 1)
    line = [sys.executable, "-m", "normbench", *words, "--port=0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("http://localhost:" in text and "TensorBoard 2" in text for text in server.stdout)
        finally:
            server.terminate()


@pytest.mark.slow
def test_the_commands_for_many_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in [words for words in COMMANDS.values() if words[0] in MANY]:
        short = [*SHORT, "launcher=local"] if words[-1].endswith("=smoke") else []
        assert main([*words, *short]) == 0, capsys.readouterr()
        assert len(capsys.readouterr().out) > 100
    assert (here / "outputs/smoke/report/report.html").exists()


@pytest.mark.parametrize("group", ["norm", "placement", "model", "data"])
def test_the_tables_are_complete(group: str) -> None:
    """Each option stands in its table, and nothing else does."""
    tables = [after.split("\n\n")[0] for after in TEXT.split(f"| `{group}=` |")[1:]]
    cells = [cell for table in tables for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed == set(options(group)) - {"transformer"}  # the model that the presets build on


def test_the_pictures_exist() -> None:
    for name, text in PAGES.items():
        folder = REPOSITORY if name == "README.md" else REPOSITORY / "docs"
        for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
            assert (folder / path).stat().st_size > 10_000
