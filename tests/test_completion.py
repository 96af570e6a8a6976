"""What the Tab key is answered: the words of a command line, and what becomes of the answers in bash, zsh and fish."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY

from normbench.cli import COMPLETE, cli, main
from normbench.commands.completion import SHELLS
from normbench.config.groups import options
from normbench.config.rules import words_for
from normbench.config.schema import KEYS
from normbench.config.sections import GROUPS, SWEEP_GROUPS

# Calls the function as readline would for each line, and prints its replies.
BASH = """
source <(normbench completion bash)
for line in "$@"; do
    COMP_WORDS=(normbench $line) COMP_CWORD=$(wc -w <<< "$line") COMPREPLY=()
    _normbench_completion normbench
    (IFS="|"; echo "${COMPREPLY[*]}")
done
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, and a command `normbench` in the path."""
    program = tmp_path / "bin" / "normbench"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m normbench "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answers(*words: str) -> dict[str, str | None]:
    """Return what may stand in place of the last word, with what it means."""
    shell = SHELLS["fish"](cli, {}, "normbench", COMPLETE)
    return {item.value: item.help for item in shell.get_completions(list(words[:-1]), words[-1])}


# ---- the answers


def test_commands_and_flags() -> None:
    assert list(answers("")) == list(cli.commands)
    assert list(answers("te")) == ["tensorboard"]
    assert {"--dry-run", "--cfg", "--config-dir"} <= answers("train", "--").keys()
    assert list(answers("train", "--cfg", "")) == ["job"]
    assert list(answers("completion", "z")) == ["zsh"]
    assert list(answers("help", "tr")) == ["train"]
    shell = SHELLS["bash"](cli, {}, "normbench", COMPLETE)
    assert [item.type for item in shell.get_completions(["train"], "data.path=/tm")] == ["file"]
    assert list(answers("list", "")) == [*GROUPS, *SWEEP_GROUPS, "places", "refusals"]
    assert answers("nothing", "zzz") == {}


def test_names_come_up_to_the_equals_sign_or_the_dot() -> None:
    found = answers("train", "norm=rmsnorm", "")
    assert {f"{group}=" for group in GROUPS} < found.keys()
    assert {"seed=", "trainer.", "norm."} < found.keys()
    assert not any(word.startswith("trainer.s") for word in found)
    assert answers("show", "trainer.") == {f"{k}=": v.doc for k, v in KEYS.items() if k.startswith("trainer.")}
    assert list(answers("train", "norm.e")) == ["norm.eps="]
    assert answers("train", "norm=") == {f"norm={name}": line for name, line in options("norm").items()}
    assert answers("train", "zzz.") == {}


def test_a_sweep_takes_several_values_and_keys_of_its_own() -> None:
    others = [name for name in options("norm") if name not in ("rmsnorm", "dyt")]
    assert list(answers("sweep", "norm=rmsnorm,dyt,")) == [f"norm=rmsnorm,dyt,{name}" for name in others]
    assert list(answers("sweep", "norm=dyt,rms")) == ["norm=dyt,rmsnorm"]
    assert {"norm=", "launcher=", "sweep.", "seed="} <= answers("sweep", "").keys()
    assert list(answers("sweep", "sweep.lr=")) == ["sweep.lr=auto", "sweep.lr=each", "sweep.lr=null"]
    assert "sweep.jobs=" in answers("sweep", "sweep.")


def test_settings_of_the_chosen_launcher() -> None:
    assert {"launcher.partition=", "launcher.timeout_min="} <= answers("sweep", "launcher=submitit", "launcher.").keys()
    assert "launcher.address=" in answers("sweep", "launcher=ray", "launcher.")
    executors = [f"launcher.executor={name}" for name in ("auto", "slurm", "local")]
    assert list(answers("sweep", "launcher=submitit", "launcher.executor=")) == executors
    assert answers("sweep", "launcher.") == answers("train", "launcher.") == {}


@pytest.mark.parametrize(
    ("line", "having", "lacking"),
    [
        ("norm=groupnorm norm.", "norm.groups=", "norm.alpha0="),
        ("model=cnn model.", "model.stages=", "model.heads="),
        ("experiment=nanogpt_cpu init.", "init.weight_std=", "optim.lr="),
        ("trainer.keep_checkpoint=", "trainer.keep_checkpoint=best", "trainer.keep_checkpoint=null"),
        ("norm.affine=", "norm.affine=false", "norm.affine=null"),
        ("norm=groupnorm norm.groups=", "norm.groups=auto", "norm.groups=null"),
        ("model.mlp=s", "model.mlp=swiglu", "model.mlp=gelu"),
    ],
)
def test_keys_and_values_are_those_of_the_chosen_option(line: str, having: str, lacking: str) -> None:
    found = answers("train", *line.split())
    assert having in found
    assert lacking not in found


def test_a_rule_for_places() -> None:
    words = {f"norm@{word}=" for word in words_for("norm")}
    assert {*answers("train", "norm@")} == words
    assert list(answers("train", "norm@first3.q")) == ["norm@first3.qk=", "norm@first3.qk_all="]
    assert list(answers("train", "norm@qk=rms")) == ["norm@qk=rmsnorm"]
    assert list(answers("train", "norm@qk=rmsnorm", "norm@qk.e")) == ["norm@qk.eps=", "norm@qk.encoder="]
    assert list(answers("sweep", "norm@qk=none,rms")) == ["norm@qk=none,rmsnorm"]
    assert answers("train", "model@") == {}
    of_blocks = ["first3", "last3", "blocks2-5", "encoder", "decoder"]
    assert list(answers("train", "placement@")) == [f"placement@{word}=" for word in of_blocks]
    found = answers("train", "weights@")
    assert "weights@mlp=" in found and "weights@embedding=" in found and "weights@qk=" not in found


def test_an_option_of_the_users_own(here: Path) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/mine.yaml").write_text("# A norm of mine\n_target_: own.MyNorm\ngroups: 3\n")
    for flag in (["--config-dir", "mine"], ["--config-dir=mine"]):
        assert answers("train", *flag, "norm=m") == {"norm=mine": "A norm of mine"}
        assert list(answers("train", *flag, "norm=mine", "norm.")) == ["norm.groups="]


# ---- the shells


REPLIES = {
    "tr": "train ",
    "train nor": "norm=|norm@|norm.",
    "train norm @ qk = rm": "rmsnorm ",
    "train norm@qk=rm": "norm@qk=rmsnorm ",  # where it has no `@` either
    "train norm =": "|".join(f"{name} " for name in options("norm")),
    "train norm=rm": "norm=rmsnorm ",  # where COMP_WORDBREAKS has no `=`
    "train norm = groupnorm norm.gr": "norm.groups=",
    "train data.root = /x : y see": "seed=",
    "sweep norm = rmsnorm,lay": "rmsnorm,layernorm ",
    "sample run --which = b": "best ",
}


@pytest.mark.slow
def test_bash() -> None:
    """Words are cut at `=` and `:`, and only what stands behind the cut is replaced."""
    shell = ["bash", "--norc", "-c", BASH, "-", *REPLIES]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert (dict(zip(REPLIES, done.stdout.splitlines(), strict=True)), done.stderr) == (REPLIES, "")


def test_what_is_changed_of_clicks_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """A newer click may word them otherwise."""
    for shell, change in {"zsh": "descriptions -U -Q -S ''", "fish": "split -m 1"}.items():
        assert main(["completion", shell]) == 0
        assert change in capsys.readouterr().out
