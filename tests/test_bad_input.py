"""Mistakes on the command line: one sentence, exit status 2, before any training, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY, refused

from normbench.cli import main

pytest_plugins = ["refusals"]
pytestmark = pytest.mark.usefixtures("here")

CNN = "model=cnn data=digits"
MLP = "model=mlp data=digits"


# ---- names

UNKNOWN = {
    "norm=rmsnrm": "norm=rmsnrm is unknown: did you mean rmsnorm? allowed are adanorm, ",
    "schedule=cos": "did you mean cosine?",
    "init=he": "init=he is unknown: did you mean kaiming? allowed are fixup, kaiming, magneto, mup, ",
    "experiment=nanogpt": "did you mean nanogpt_cpu?",
    "nrom=rmsnorm": "nrom is unknown: did you mean norm?",
    "modle.width=3": "modle.width is unknown: did you mean model.width",
    "trainer.step=10": "trainer.step is unknown: did you mean trainer.steps",
    "norm.epz=1": "norm.epz is unknown: did you mean norm.eps? normbench train --help lists",
    "lr=0.1": "lr is unknown: did you mean optim.lr?",
    "model.layers=4": "model.layers is unknown: model has bias, context, depth, ",
    "norm=L1Norm": "; norm._target_=FILE.L1Norm takes a class of your own, in FILE.py",
    "zzz=1": "zzz is unknown: normbench train --help lists the keys",
    "trainer.steps.foo=3": "trainer.steps.foo is unknown",
    "+optim.foo=1": "optim.foo is unknown",
    "norm=rmsnorm norm.groups=4": "norm.groups is not a setting of norm=rmsnorm: leave it out, or choose "
    "norm=evonorm_s0",
}

# ---- words of other tools, and what is not an option

OTHERS = {
    "resume=true": "resume is not a key of a run: the command of a run that was stopped goes on with it",
    "ckpt_path=last.ckpt": "ckpt_path is not a key of a run: the command of a run that was stopped",
    "trainer.devices=2": "use device=cpu, cuda or cuda:N",
    "--resume": "--resume is not a flag of normbench train: the command of a run that was stopped",
    "--ckpt-path=last.ckpt": "--ckpt-path is not a flag of normbench train: the command of a run",
    "hydra/sweeper=ax": "hydra/sweeper is not a key of a run: start it with normbench sweep",
    "hydra/launcher=joblib": "hydra/launcher is not a key of a run: start it with normbench sweep",
    "sweep.lr=auto": "sweep.lr is not a key of a run: start it with normbench sweep",
    "logger.wandb.mode=offline": "logger.wandb.mode is a setting of logger=wandb, which is not chosen: add it",
    "logger=[csv,tensorboard] logger.wandb.mode=x": "logger.wandb.mode is a setting of logger=wandb, which is not",
    "logger=range(0,9)": "logger=range(0 is unknown: allowed are csv",
    "-m norm=rmsnorm,dyt": "takes no -m: for many runs give normbench sweep the same words",
    "--steps=10": "--steps is not a flag of normbench train: settings have no dashes, write trainer.steps=VALUE",
    "--lr=1": "write optim.lr=VALUE",
    "norm=torch.nn.LayerNorm": "norm=torch.nn.LayerNorm is not an option: norm._target_=torch.nn.LayerNorm takes a",
    "norm=./norms.py": "norm=./norms.py is not an option: norm._target_=package.module.Class takes a class",
    "data=notes.txt": "data=text data.path=notes.txt takes your own text, data=texts data.path=notes.txt takes lab",
    "data=./folder": "data=images data.path=./folder takes images",
}

# ---- the grammar of the command line

GRAMMAR = {
    "hello": "'hello' is not KEY=VALUE: write a setting as one word, such as norm=rmsnorm",
    "=3": "=3 cannot be read",
    "norm=": "norm= is unknown: allowed are adanorm",
    "norm=[rmsnorm,layernorm]": "norm=[rmsnorm is unknown",
    "norm=../norm/rmsnorm": "norm=../norm/rmsnorm is not an option",  # it would name the run's directory
    "norm=rmsnorm,layernorm": "norm=rmsnorm,layernorm gives several values, which only a sweep takes",
    "seed=[1": "seed=[1 cannot be read: write KEY=VALUE without blanks, and quote a value",
    "outputs=~/x": "as in \"outputs='~/x'\"",
    "name=ü": "letters beyond ASCII, as in \"name='ü'\"",
    "norm.eps=${foo}": "Interpolation key 'foo' not found",
    "norm.eps=???": ": check the keys and their values with normbench show",
    "~norm": "norm is missing",
    "~model": "model is missing",
    "~norm model=hf": "norm is missing",
    "hydra.searchpath=/": "hydra.searchpath must be a list of strings",
    "~trainer.steps": "trainer.steps is missing: trainer needs it, set trainer.steps=VALUE",
    "~model.width": "model.width is missing: normbench.models.Transformer needs it, set model.width=VALUE",
    "~norm.gain0": "~norm.gain0 takes nothing back, since norm.gain0 is not set: leave it out",
    "~norm.eps=7": "~norm.eps=7 takes nothing back, since norm.eps is 1e-05: write ~norm.eps",
    "model=hf ~model.config.heads=7": "takes nothing back, since model.config.heads is not set",  # nor sets it
    "model=hf ~model.config.rope.kind": "takes nothing back, since model.config.rope.kind is not set",
    "trainer=3": "trainer=3 is not allowed: it is a section, set its keys",
    "hydra.run.dir=foo": "hydra.run.dir is unknown",
}

# ---- values that do not fit each other, the data or the machine

VALUES = {
    "trainer.steps=null trainer.epochs=null": "trainer.steps and trainer.epochs are both null: set one of them",
    "experiment=nanogpt_cpu trainer.epochs=1": "add trainer.steps=null",
    "model.heads=3": "model.heads=3 does not divide model.width=128: set model.heads to one of 1, 2, 4",
    "norm=groupnorm norm.groups=128": "groupnorm at block00.attention has 1 value",
    f"{CNN} norm=groupnorm norm.groups=3": "norm.groups=3 makes 3 groups of 16 features",
    "model.position=foo": "model.position=foo is not allowed: use learned or rotary",
    f"{CNN} model.depth=4": "model.depth=4 is not a multiple of the 3 stages of this model: set model.depth to 3 or 6",
    f"{CNN} model.depth=2": "set model.depth to 3",
    "model=nano data=digits model.patch=3": "model.patch=3 does not tile images of 8 × 8 pixels",
    f"{CNN} data.batch_size=5000": "data.batch_size=5,000 is more than the 1,500 training images of digits",
    f"{MLP} data.crop=100": "data.crop=100 leaves nothing of images of 8 × 8 pixels: use 0 to 7",
    f"{MLP} data.cutout=8": "data.cutout=8 leaves nothing of images",
    f"{CNN} data.holdout=5000": "cannot be taken from the 1,500 training images",
    "norm=dyt norm.impl=torch": "torch has no operator for this norm",
    "optim=sgd optim.momentum=0": "SGD refuses its settings",
    "device=cuda:99": "device=cuda:99 is not there: this machine has",
    "name=a/b": "name=a/b cannot name a folder",
    "outputs=/dev/null": "outputs=/dev/null cannot be written (/dev/null is not a folder where you may write)",
    "outputs=/proc/x": "/proc/x cannot be used (No such file or directory): give another path",
    "extend=nowhere": "extend=nowhere is not the directory of a finished run",
    "data=mnist data.root=nowhere": "no copy of ylecun/mnist in data.root=nowhere",
    # combinations
    "model=cnn data=pydocs": "model=cnn with data=pydocs is refused: the model is not made for this kind of data",
    "norm=instancenorm": "norm=instancenorm with data=pydocs is refused: its statistics run over time",
    f"{MLP} norm=instancenorm": "norm=instancenorm with model=mlp is refused",
    f"{CNN} placement=parallel": "placement=parallel with model=cnn is refused",
    "placement=plain": "placement=plain with model=nano is refused",
    "data=digits model=cnn_plain placement=pre": "placement=pre with model=cnn_plain is refused",
    # what a _target_ names
    "norm._target_=no_such.Norm": "norm._target_=no_such.Norm cannot be imported (No module named 'no_such')",
    "norm._target_=Norm": "norm._target_=Norm cannot be imported (no module): give package.module.Class, such as",
    "norm._target_=torch.nn.RMSnorm": "did you mean RMSNorm? give package.module.Class",
    "norm._target_=math.sqrt": "norm._target_=math.sqrt makes no Module",
    "placement._target_=torch.nn.Linear": "makes no Placement: give package.module.Class of a class derived from",
    "optim._target_=os.system": "makes no Optimizer",
}  # fmt: skip

MISTAKES = UNKNOWN | OTHERS | GRAMMAR | VALUES


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_ends_in_one_sentence(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(["train", *line.split(" ")], capsys)
    assert MISTAKES[line] in sentence


def test_a_number_of_thousands_of_digits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"seed={'9' * 5000}"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_option_that_is_there_in_a_folder_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/l1.yaml").touch()
    assert refused(["train", "norm=l1"], capsys).endswith("mine/norm/l1.yaml is found with --config-dir mine")


@pytest.mark.parametrize("words", [[""], ["name=a b"], ["norm = rmsnorm"], ["seed: 1"], ["seed=1 norm.eps=2"]])
def test_words_with_blanks_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused(["train", *words], capsys)


# ---- as its user runs it


def test_a_mistake_in_a_process_of_its_own(here: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "normbench", "train", "norm=rmsnrm"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("normbench: ")
    assert done.stderr.count("\n") == 1
    assert list(here.iterdir()) == []
