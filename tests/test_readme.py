"""Every command of the README runs; long ones with a few steps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPOSITORY

from normbench.catalog import options
from normbench.cli import main

README = (REPOSITORY / "README.md").read_text()
SHORT = ["trainer.steps=2", "trainer.eval_batches=1", "threads=1"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> Iterator[str]:
    for block in blocks("bash"):
        yield from (line for line in block.splitlines() if line and not line.startswith("#"))


def words(command: str) -> list[str]:
    """The words behind `normbench`, however it is called."""
    return shlex.split(command)[1:]


TRAIN = [command for command in commands() if words(command)[:1] == ["train"]]
OTHER = [command for command in commands() if command not in TRAIN and "scripts/test" not in command]


def test_the_readme_s_commands_are_found() -> None:
    assert len(TRAIN) > 10
    assert "./scripts/normbench train norm=rmsnorm placement=pre" in TRAIN
    assert "./scripts/test" in commands()


def here(word: str) -> str:
    """A placeholder of the README as what it stands for here."""
    if word.startswith("extend=") and word.endswith("RUN"):
        (run,) = Path(word.removeprefix("extend=").removesuffix("RUN")).iterdir()
        return f"extend={run}"
    return word


@pytest.mark.parametrize("command", TRAIN)
def test_train_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "data.root=PATH" in command:
        needs_data(monkeypatch)
        command = command.replace(" data.root=PATH", "")
    if "mynorms" in command or "myconf" in command:
        own_norm(tmp_path, monkeypatch)
    if "extend=" in command:
        assert main([*words(TRAIN[TRAIN.index(command) - 1]), "trainer.steps=2", "trainer.eval_batches=1"]) == 0
        command = re.sub(r"trainer.steps=\d+", "trainer.steps=4 trainer.eval_batches=1", command)
        assert main([here(word) for word in words(command)]) == 0
    elif any(flag in command for flag in ("--cfg", "--help", "--dry-run")):
        assert main(words(command)) == 0
        assert not (tmp_path / "outputs").exists()
    elif "data=wikitext2" in command or "data=cifar10" in command:  # whose last evaluation alone takes long
        assert main([*words(command), "--cfg", "job"]) == 0
    else:
        assert main([*words(command), *SHORT]) == 0
        assert list(tmp_path.glob("outputs/*/*/summary.json"))


def own_norm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's norm and its YAML, where the README says they are."""
    (folder / "mynorms.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(folder)
    (folder / "myconf/norm").mkdir(parents=True)
    (folder / "myconf/norm/l1.yaml").write_text(blocks("yaml")[0])


def needs_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    if "NORMBENCH_DATA" not in os.environ:
        pytest.skip("NORMBENCH_DATA names no folder with the public data sets")


def tour(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of the tour, with a few steps, in a folder."""
    monkeypatch.chdir(folder)
    assert main([*words(TRAIN[1]), *SHORT]) == 0


NEEDING_A_RUN = ("tensorboard", "sample", "report", "compare")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow) if words(command)[0] == "check" else command
        for command in OTHER
        if words(command)[0] not in (*NEEDING_A_RUN, "sweep")
    ],
)
def test_other_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "mynorms" in command:
        own_norm(tmp_path, monkeypatch)
    assert main(words(command)) == 0
    assert len(capsys.readouterr().out) > 200


def test_tensorboard_command_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`normbench tensorboard outputs/tour` is the real one; here on a free port."""
    (command,) = (command for command in OTHER if words(command)[0] == "tensorboard")
    tour(tmp_path, monkeypatch)
    line = [sys.executable, "-m", "normbench", *words(command), "--port=0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("http://localhost:" in text and "TensorBoard 2" in text for text in server.stdout)
        finally:
            server.terminate()


def test_sample_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = (command for command in OTHER if words(command)[0] == "sample")
    tour(tmp_path, monkeypatch)
    (run,) = (tmp_path / "outputs/tour").iterdir()
    capsys.readouterr()
    assert main([word.replace("RUN", run.name) for word in words(command)]) == 0
    assert capsys.readouterr().out.startswith("The ")


@pytest.mark.slow
def test_the_commands_for_many_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    many = [command for command in OTHER if words(command)[0] in ("sweep", "report", "compare")]
    assert len(many) == 5
    for command in many:
        short = ["trainer.steps=4", "trainer.eval_every=2", "launcher=local"] if command.endswith("=smoke") else []
        assert main([*words(command), *short]) == 0, capsys.readouterr()
        assert len(capsys.readouterr().out) > 100
    assert (tmp_path / "outputs/smoke/report/report.html").exists()


def test_the_notebook_s_lines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tour(tmp_path, monkeypatch)
    capsys.readouterr()
    names: dict[str, object] = {}
    exec(blocks("python")[1], names)
    assert "layernorm" in capsys.readouterr().out
    assert type(names["model"]).__name__ == "Transformer"


@pytest.mark.parametrize("group", ["norm", "placement", "model", "data"])
def test_the_tables_are_complete(group: str) -> None:
    """Each option stands in its table, and nothing else does."""
    table = README.split(f"| `{group}=` |")[1].split("\n\n")[0]
    first_cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    known = set(options(group)) - {"transformer"}  # the model that the presets build on
    assert listed == known


def test_the_pictures_exist() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (REPOSITORY / path).stat().st_size > 10_000
