"""`normbench completion`: the scripts in their shells, and the answers that they get."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY, refused

from normbench.catalog import GROUPS, options
from normbench.cli import COMMANDS, main
from normbench.commands.completion import SCRIPTS
from normbench.config import KEYS

# Calls the function as readline would, and prints a line for each reply.
BASH = """
source <(normbench completion bash)
COMP_WORDBREAKS=$breaks
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_normbench
printf '%s\\n' "${COMPREPLY[@]}"
"""

# zsh's own functions, which only a command line has, replaced by ones that print what they are given.
ZSH = """
compdef() { :; }
compset() { :; }
_files() { print -r -- "files $*"; }
_describe() { print -rl -- $open; print -rl -- $whole; }
source <(normbench completion zsh)
words=("$@"); CURRENT=$#; PREFIX=$words[-1]
_normbench
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, and a command `normbench` in the path."""
    program = tmp_path / "bin" / "normbench"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m normbench "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def answers(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What the hidden command answers: word -> line."""
    assert main(["complete", "--", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {word: line for word, _, line in (line.partition("\t") for line in lines)}


def bash(*words: str, breaks: str = " \t\n\"'><=;|&(:") -> list[str]:
    """What bash would offer for the last of these words, cut as readline cuts them."""
    command = ["bash", "--norc", "-c", f"breaks=$0\n{BASH}", breaks, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


# ---- the answers


def test_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    known = {name: command.line for name, command in COMMANDS.items() if command.run}
    assert answers(capsys, "") == known
    assert answers(capsys, "help", "") == known
    assert list(answers(capsys, "te")) == ["tensorboard"]
    assert {"--cfg", "--config-dir"} <= answers(capsys, "train", "--").keys()
    assert list(answers(capsys, "train", "--cfg", "")) == ["job"]
    assert answers(capsys, "completion", "z").keys() == {"zsh"}
    assert answers(capsys, "list", "") == {**GROUPS, "refusals": "what does not go together, and why"}
    assert answers(capsys, "nothing", "") == {}


def test_a_sweep_takes_several_values_and_keys_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    others = [name for name in options("norm") if name not in ("rmsnorm", "dyt")]
    assert list(answers(capsys, "sweep", "norm=rmsnorm,dyt,")) == [f"norm=rmsnorm,dyt,{name}" for name in others]
    assert list(answers(capsys, "sweep", "norm=dyt,rms")) == ["norm=dyt,rmsnorm"]
    assert {"norm=", "launcher=", "sweep.", "seed="} <= answers(capsys, "sweep", "").keys()
    assert "launcher=" not in answers(capsys, "train", "")
    assert answers(capsys, "sweep", "sweep.lr=").keys() == {"sweep.lr=auto", "sweep.lr=null"}
    assert answers(capsys, "sweep", "launcher=").keys() == {f"launcher={name}" for name in options("launcher")}
    assert "sweep.jobs=" in answers(capsys, "sweep", "sweep.")
    assert answers(capsys, "sweep", "--w").keys() == {"--watch"}


@pytest.mark.parametrize("group", GROUPS)
def test_the_options_of_every_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answers(capsys, "train", f"{group}=") == {f"{group}={name}": line for name, line in options(group).items()}


def test_names_come_up_to_the_equals_sign_or_the_dot(capsys: pytest.CaptureFixture[str]) -> None:
    found = answers(capsys, "train", "norm=rmsnorm", "")
    assert {f"{group}=" for group in GROUPS} < found.keys()
    assert {"seed=", "trainer.", "norm."} < found.keys()
    assert not any(word.startswith("trainer.s") for word in found)
    trainer = {f"{path}=": key.doc for path, key in KEYS.items() if path.startswith("trainer.")}
    assert answers(capsys, "show", "trainer.") == trainer
    assert list(answers(capsys, "train", "+norm.e")) == ["+norm.eps="]
    assert answers(capsys, "train", "zzz.") == {}


@pytest.mark.parametrize(
    ("words", "having", "lacking"),
    [
        (["norm."], "norm.bias=", "norm.groups="),
        (["norm=groupnorm", "norm."], "norm.groups=", "norm.bias="),
        (["model."], "model.heads=", "model.stages="),  # nano's are transformer's
        (["model=cnn", "model."], "model.stages=", "model.heads="),
        (["init."], "init.embedding_std=", "init.weight_std="),
        (["experiment=nanogpt_cpu", "init."], "init.weight_std=", "optim.lr="),
        (["model=cnn", "init=normal", "init."], "init.weight_std=", "optim.lr="),
    ],
)
def test_keys_are_those_of_the_chosen_option(
    words: list[str], having: str, lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answers(capsys, "train", *words)
    assert having in found
    assert lacking not in found


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("trainer.keep_checkpoint=", {"last", "best", "none"}),
        ("quiet=", {"true", "false"}),
        ("norm.groups=", {"auto"}),
        ("trainer.steps=", {"null"}),
        ("model.mlp=s", {"silu", "sigmoid", "swiglu"}),
        ("optim.lr=", set()),
    ],
)
def test_values_with_choices(word: str, values: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    key = word.partition("=")[0]
    assert answers(capsys, "train", word).keys() == {f"{key}={value}" for value in values}


def test_files_and_folders_are_left_to_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "data.root=/x"], ["tensorboard", ""], ["sample", "out"], ["show", "--config-dir", "m"]):
        assert list(answers(capsys, *words)) == ["<folders>"]
    for words in (["train", "data=text", "data.path="], ["sample", "run", "--out", ""]):
        assert list(answers(capsys, *words)) == ["<files>"]


def test_a_folder_of_the_users_own_counts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/own.yaml").write_text("# A norm of mine\n_target_: own.MyNorm\ngroups: 3\n")
    for flag in (["--config-dir", "mine"], ["--config-dir=mine"]):
        assert answers(capsys, "train", *flag, "norm=o") == {"norm=own": "A norm of mine"}
        assert list(answers(capsys, "train", *flag, "norm=own", "norm.")) == ["norm.groups="]


# ---- the shells


@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["tr"], ["train"]),
        (["train", "nor"], ["norm=", "norm."]),
        (["train", "norm", "="], list(options("norm"))),
        (["train", "norm", "=", "rm"], ["rmsnorm"]),
        (["train", "norm", "=", "rmsnorm", "trainer.ke"], ["trainer.keep_checkpoint="]),
        (["train", "norm", "=", "groupnorm", "norm.g"], ["norm.groups="]),
        (["train", "trainer.keep_checkpoint", "=", "b"], ["best"]),
        (["train", "norm", "=", "rmsnorm", "place"], ["placement="]),
        (["train", "data.root", "=", "/x", ":", "y", "see"], ["seed="]),
        (["help", "li"], ["list"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash(words: list[str], replies: list[str]) -> None:
    """Words are cut at `=` and `:`, and only what stands behind the cut is replaced."""
    assert bash("normbench", *words) == replies


def test_bash_where_words_are_not_cut() -> None:
    assert bash("normbench", "train", "norm=rm", breaks=" \t\n") == ["norm=rmsnorm"]
    assert bash("normbench", "train", "norm=rmsnorm", "norm.e", breaks=" \t\n") == ["norm.eps="]


def test_bash_offers_nothing_where_normbench_fails(tmp_path: Path) -> None:
    assert bash(str(tmp_path / "nowhere"), "train", "norm", "=") == []


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["train", "trainer.ke"], [f"trainer.keep_checkpoint=:{KEYS['trainer.keep_checkpoint'].doc}"]),
        (["train", "norm=rms"], [f"norm=rmsnorm:{options('norm')['rmsnorm']}"]),
        (["train", "norm=groupnorm", "norm.g"], [f"norm.groups=:{KEYS['norm.groups'].doc}"]),
        (["train", "data.root=x"], ["files -/"]),
    ],
)
def test_zsh(words: list[str], replies: list[str]) -> None:
    done = subprocess.run(["zsh", "-f", "-c", ZSH, "-", "normbench", *words], capture_output=True, text=True)
    assert (done.stderr, [line for line in done.stdout.splitlines() if line]) == ("", replies)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish() -> None:
    def offered(line: str) -> list[str]:
        script = f"normbench completion fish | source; complete -C '{line}'"
        return subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()

    assert offered("normbench train norm=rms") == [f"norm=rmsnorm\t{options('norm')['rmsnorm']}"]
    assert [line.split("\t")[0] for line in offered("normbench train trainer.ke")] == ["trainer.keep_checkpoint="]
    assert {line.split("\t")[0] for line in offered("normbench t")} == {"train", "tensorboard"}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_registers_its_function_and_asks_for_answers(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    registers = {"bash": "complete -F _normbench normbench\n", "zsh": "compdef _normbench normbench\n",
                 "fish": "complete -c normbench -f -a '(__normbench_complete)'\n"}  # fmt: skip
    assert registers[shell] in script
    assert " complete -- " in script
    assert "'<files>'" in script
    assert "'<folders>'" in script
    assert len(script.splitlines()) < 40


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "completion takes the name of a shell: bash, zsh or fish"),
        (["bsh"], "completion bsh is unknown: did you mean bash? allowed are bash, zsh or fish"),
        (["bash", "zsh"], "completion takes the name of a shell: bash, zsh or fish"),
    ],
)
def test_what_is_no_shell_is_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["completion", *words], capsys) == sentence
