"""Mistakes on the command line: one sentence, exit status 2, before any training, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import refused

from normbench.cli import main

pytest_plugins = ["refusals"]
pytestmark = pytest.mark.usefixtures("here")

ROOT = Path(__file__).resolve().parent.parent
CNN = "model=cnn data=digits"
MLP = "model=mlp data=digits"


# ---- names

UNKNOWN = {
    "norm=rmsnrm": "norm=rmsnrm is unknown: did you mean rmsnorm or prmsnorm? allowed are batchnorm, dyt, groupnorm",
    "placement=pots": "placement=pots is unknown: did you mean post? allowed are deep, parallel",
    "model=nanno": "did you mean nano?",
    "data=mnits": "did you mean mnist?",
    "optim=adamww": "did you mean adamw or adam?",
    "schedule=cos": "did you mean cosine?",
    "init=he": "init=he is unknown: allowed are kaiming, normal, xavier",
    "probes=heavy": "probes=heavy is unknown: allowed are full, light, off",
    "experiment=nanogpt": "did you mean nanogpt_cpu?",
    "nrom=rmsnorm": "nrom is unknown: did you mean norm?",
    "modle.width=3": "modle.width is unknown: did you mean model.width",
    "trainer.step=10": "trainer.step is unknown: did you mean trainer.steps",
    "norm.epz=1": "norm.epz is unknown: did you mean norm.eps? normbench train --help lists",
    "outputz=a": "outputz is unknown: did you mean outputs?",
    "lr=0.1": "lr is unknown: did you mean optim.lr?",
    "steps=10": "steps is unknown: did you mean trainer.steps?",
    "zzz=1": "zzz is unknown: normbench train --help lists the keys",
    "zz.zz=1": "zz.zz is unknown: normbench train --help lists the keys",
    "trainer.steps.foo=3": "trainer.steps.foo is unknown",
    "+foo=1": "foo is unknown: allowed are trainer",
    "+foo.bar=1": "foo is unknown: allowed are trainer",
    "+trainer.foo=1": "trainer.foo is unknown: allowed are steps",
    "+norm.foo=1": "norm.foo is not a setting of normbench.norms.LayerNorm",
    "+model.foo=1": "model.foo is not a setting of normbench.models.Transformer",
    "+optim.foo=1": "optim.foo is not a setting of torch.optim.AdamW",
    "+data.foo=1": "data.foo is not a setting of normbench.data.pydocs",
    "norm=rmsnorm norm.groups=4": "norm.groups is not a setting of norm=rmsnorm: leave it out, or choose "
    "norm=groupnorm",
    "norm.groups=4": "norm.groups is not a setting of norm=layernorm: leave it out, or choose norm=groupnorm",
    "norm=none norm.eps=1": "norm.eps is not a setting of norm=none",
    f"{CNN} model.heads=3": "model.heads is not a setting of model=cnn",
}

# ---- the grammar of the command line

GRAMMAR = {
    "hello": "'hello' is not KEY=VALUE",
    "=3": "=3 cannot be read",
    "norm=": "norm= is unknown: allowed are batchnorm",
    "norm=null": "norm=null is unknown: allowed are",
    "norm=3": "norm=3 is unknown: allowed are",
    "norm=[rmsnorm,layernorm]": "norm takes one option, not a list: normbench list norm",
    "norm={a:1}": "norm={a:1} is unknown: allowed are",
    "norm=../norm/rmsnorm": "norm=../norm/rmsnorm is unknown",  # it would name the run's directory
    "experiment=null": "experiment=null is unknown",
    "norm=rmsnorm,layernorm": "norm=rmsnorm,layernorm gives several values, which only a sweep takes",
    "seed=1,2": "seed=1,2 gives several values",
    "seed=range(3)": "seed=range(3) gives several values",
    "seed=[1": "seed=[1 cannot be read: quote a value",
    "seed=(1": "seed=(1 cannot be read",
    "seed='1": "seed='1 cannot be read",
    "outputs=~/x": "as in \"outputs='~/x'\"",
    "norm.eps=1e-5=3": "norm.eps=1e-5=3 cannot be read",
    "name=ü": "letters beyond ASCII, as in \"name='ü'\"",
    "nörm=rmsnorm": "nörm=rmsnorm cannot be read: write KEY=VALUE without blanks, and keys as",
    "norm.eps=${foo}": "Interpolation key 'foo' not found",
    "norm.eps=${oc.env:NO_SUCH}": "Environment variable 'NO_SUCH' not found",
    "norm.eps=???": ": check the keys and their values with normbench show",
    "+norm=rmsnorm": "norm is chosen twice: leave out the +",
    "~norm": "norm has no _target_",
    "~trainer": "trainer is missing",
    "~seed": "seed is missing",
    "~foo": "~foo finds nothing to delete",
    "~trainer.steps": "trainer.steps is missing",
    "~model.width": "model.width missing for normbench.models.Transformer: set it with model.width=VALUE",
    "~data.batch_size": "data.batch_size missing for normbench.data.pydocs",
    "trainer=3": "trainer=3 is not allowed: it is a section, set its keys, such as trainer.steps",
    "probes=null": "probes=null is unknown",
    "-x": "No such option '-x'. (see: normbench train --help)",
    "--cfg": "Option '--cfg' requires an argument",
    "--cfg foo": "Invalid value for '--cfg': 'foo' is not 'job'",
    "--config-dir nowhere": "nowhere is not a folder: give the one that holds",
    "-m norm=rmsnorm,layernorm": "--multirun (many runs) is sweep's",
    "--multirun": "--multirun (many runs) is sweep's",
    "hydra.run.dir=foo": "hydra.run.dir=foo is not allowed: outputs= and name= say where",
    "--cfg job hydra.mode=MULTIRUN": "hydra.mode=MULTIRUN is not allowed",
    "hydra/launcher=basic": "hydra/launcher=basic is not allowed",
}

# ---- values that do not fit each other, the data or the machine

VALUES = {
    "trainer.steps=null trainer.epochs=null": "trainer.steps and trainer.epochs are both null: set one of them",
    "experiment=nanogpt_cpu trainer.epochs=1": "add trainer.steps=null",
    "model.heads=3": "model.width=128 is not divisible by model.heads=3: set model.heads to 2 or 4",
    "norm=groupnorm norm.groups=3": "norm.groups=3 does not divide model.width=128: set norm.groups to 2 or 4",
    "norm=groupnorm norm.groups=128": "groupnorm here would take its statistics over 1 value",
    f"{CNN} norm=groupnorm norm.groups=3": "norm.groups=3 makes 3 groups of 16 features",
    f"{MLP} norm=batchnorm data.batch_size=1": "batchnorm here would take its statistics over 1 value",
    "model.position=foo": "model.position=foo is not allowed: use learned or rotary",
    f"{CNN} model.norm_order=foo": "model.norm_order=foo is not allowed: use before or after",
    f"{CNN} model.stages=[]": "model.stages=[] is not allowed: use a list of integers from 1",
    f"{CNN} model.depth=4": "model.depth=4 is not a multiple of the 3 stages",
    "model.position=rotary model.heads=128": "rotary needs an even width",
    "model.context=1000000": "is too long for the",
    "data.context=32": "set model.context alone",
    "model=nano data=digits model.patch=3": "model.patch=3 does not tile images of 8 × 8 pixels",
    f"{CNN} data.batch_size=5000": "data.batch_size=5,000 is more than the 1,500 training images of digits",
    f"{CNN} data.cutout=-1": "data.cutout=-1 is not allowed: use an integer from 0",
    f"{CNN} data.flip=1": "data.flip=1 is not allowed: use true or false",
    "data.flip=true": "data.flip is not a setting of data=pydocs: leave it out, or choose data=",
    f"{CNN} data.holdout=1.5": "use a share from 0 to below 1, or a whole number",
    f"{CNN} data.holdout=5000": "cannot be taken from the 1,500 training images",
    "norm=dyt norm.impl=torch": "torch has no operator for this norm",
    "optim=sgd optim.momentum=0": "SGD refuses its settings",
    "device=cuda:99": "device=cuda:99 is not there: this machine has",
    "device=cuda:300": "device=cuda:300 is unknown",  # torch takes it for number 44
    "device=foo": "device=foo is unknown: use auto, cpu, cuda, cuda:N or mps",
    "name=a/b": "name=a/b cannot name a folder",
    "name=..": "name=.. cannot name a folder",
    "outputs=": "outputs is empty: give a folder",
    "outputs=/dev/null": "outputs=/dev/null cannot be written (/dev/null is no folder where you may write)",
    "extend=": "is not the directory of a finished run",
    "extend=nowhere": "extend=nowhere is not the directory of a finished run",
    "data=mnist data.root=nowhere": "no copy of ylecun/mnist in data.root=nowhere",
    # combinations
    "model=cnn": "model=cnn with data=pydocs is refused: the model is not made for this kind of data",
    "model=mlp data=tinyshakespeare": "model=mlp with data=tinyshakespeare is refused",
    "norm=instancenorm": "norm=instancenorm with data=pydocs is refused: its statistics run over time",
    "norm=groupnorm norm.across_time=true": "norm=groupnorm with data=pydocs is refused",
    "norm=batchnorm norm.track_running_stats=false": "norm=batchnorm with data=pydocs is refused",
    f"{MLP} norm=instancenorm": "norm=instancenorm with model=mlp is refused",
    f"{CNN} placement=parallel": "placement=parallel with model=cnn is refused",
    "placement=plain": "placement=plain with model=nano is refused",
    "data=digits model=cnn_plain placement=pre": "placement=pre with model=cnn_plain is refused",
    # what a _target_ names
    "norm._target_=no_such.Norm": "norm._target_=no_such.Norm cannot be imported (No module named 'no_such')",
    "norm._target_=torch.nn.Nope": "norm._target_=torch.nn.Nope cannot be imported",
    "norm._target_=": "norm._target_= cannot be imported",
    "norm._target_=math.pi": "norm._target_=math.pi is not a class: give package.module.Class",
    "norm._target_=math.sqrt": "norm._target_=math.sqrt makes no Module",
    "norm._target_=torch.nn.LayerNorm": "must take (num_features, *, channel_dim=-1, site=None)",
    "placement._target_=torch.nn.Linear": "makes no Placement: give package.module.Class of a class derived from",
    "model._target_=torch.nn.Linear": "makes no Model",
    "data._target_=builtins.dict": "makes no Data",
    "optim._target_=os.system": "makes no Optimizer",
    "schedule._target_=torch.optim.lr_scheduler.StepLR": "makes no Schedule",
    "init._target_=builtins.dict": "makes no Initialization",
    "optim._target_=own.Optimizer optim.lr=-1": "optim.lr=-1 is not allowed: use a number above 0",
}  # fmt: skip

MISTAKES = UNKNOWN | GRAMMAR | VALUES


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_ends_in_one_sentence(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(["train", *line.split(" ")], capsys)
    assert MISTAKES[line] in sentence


def test_a_number_of_thousands_of_digits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"seed={'9' * 5000}"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [[""], [" "], ["name=a b"], ["norm = rmsnorm"], ["seed: 1"], ["seed=1 norm.eps=2"]])
def test_words_with_blanks_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused(["train", *words], capsys)


@pytest.mark.parametrize(
    "line",
    ["trian", "norm=rmsnorm", "sweep", "bench --help", "help trian", "list norms", "tensorboard", "tensorboard ."],
)
def test_wrong_commands(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(line.split(), capsys)


def test_device_mps_is_refused_where_there_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert "device=mps is not there" in refused(["train", "device=mps"], capsys)


# ---- as its user runs it


@pytest.mark.parametrize("words", ["norm=rmsnrm", "device=cuda:99"])
def test_a_mistake_in_a_process_of_its_own(here: Path, cache: Path, words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NORMBENCH_CACHE": str(cache)}
    command = [sys.executable, "-m", "normbench", "train", words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("normbench: ")
    assert done.stderr.count("\n") == 1
    assert list(here.iterdir()) == []
