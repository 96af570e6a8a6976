"""A run directory from somebody else runs no code, whatever its files hold, and what cannot be read is said."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc import locate
from typing import Any

import numpy as np
import pytest
import yaml
from made_runs import make_run, seal

import normbench
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.trust import caution, check_words
from normbench.data.hub import Hub
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory
from normbench.record.files import inside
from normbench.record.loggers import Lines
from normbench.results.answer import NextStep, StepKind
from normbench.results.caveats import say_chosen_for_none
from normbench.runs.plan import prepare
from normbench.settings import key_of
from normbench.show.tensorboard import folder_name
from normbench.studies.sample import sample
from normbench.sweep.folder import Entry, Standing, SweepFolder, show_failures
from normbench.tell.sentences import say_step

pytest_plugins = ["trained_runs"]

# Words of a sweep that may bring somebody else's code, and some that bring none.
FOREIGN = (
    "norm._target_=normbench.norms.DyT,hostile.Norm", "hydra.searchpath=[here]", "+hydra.searchpath=[here]",
    "logger.mine={_target_:hostile.Norm}", "norm=../../here/hostile", "norm@norm=../hostile",
    "sweep.tie=norm._target_=hostile.Norm,torch.nn.Identity;norm.eps=0.1,0.2",
    "norm.eps='${oc.decode:x}'", "sweep.tie=norm=../a,../b;norm.eps=0.1,0.2",
    "launcher.additional_parameters={setup:[id]}", "launcher.address=auto", "launcher.setup=[id]",
    "launcher.partition=gpu\ntouch x",
    "logger=wandb", "logger=[csv,mlflow]", "logger.mlflow.tracking_uri=http://10.0.0.1", "norm.eps={a:1}",
    "launcher=submitit", "launcher=local,ray", "launcher.executor=slurm", "launcher.partition=gpu",
    "launcher.account=mine", "launcher.qos=high", "launcher.constraint=a100", "launcher.gpus_per_node=8",
    "launcher.address=null", "launcher._target_=hostile.Norm", "+unknown.key=1",
    "sweep.tie='logger=csv,wandb;norm.eps=0.1,0.2'",
)  # fmt: skip
OURS = (
    "norm._target_=torch.nn.LayerNorm,normbench.norms.DyT", "outputs=/some/where", "data.path=a/b", "seed=0,1",
    "launcher=local", "launcher=processes",
    "logger=[csv,tensorboard]", "data.hub_id=owner/name", "sweep.exclude=norm=dyt,seed=1", "experiment=smoke",
    "sweep.tie='data.batch_size=2,8;optim.lr=0.025,0.1'", "trainer.steps=10", "~norm.eps", "probes=none",
)  # fmt: skip


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is there once code has run; the current directory has what loads such code."""
    here, mark = tmp_path / "here", tmp_path / "mark"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    code = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    (here / "hostile.py").write_text(f"{code}from torch import nn\nclass Norm(nn.Identity): pass\n")
    (here / "hubconf.py").write_text(f"{code}def model(): pass\n")
    (here / "bomb.pkl").write_bytes(pickle.dumps(Bomb(mark)))
    np.save(here / "bomb.npy", np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    return mark


def calls(mark: Path) -> dict[str, dict[str, Any]]:
    """Return what would leave the mark: a callable, and what it is called with."""
    return {
        "os.system": {"command": f"touch {mark}"},
        "os.mknod": {"path": str(mark)},
        "subprocess.check_call": {"args": ["touch", str(mark)]},
        "subprocess.getoutput": {"cmd": f"touch {mark}"},
        "pathlib.Path.write_text": {"_args_": [mark, "x"]},
        "pathlib.Path.touch": {"_args_": [mark]},
        "builtins.eval": {"_args_": [f"open({str(mark)!r}, 'w').close()"]},
        "shutil.copy": {"src": "bomb.pkl", "dst": str(mark)},
        "runpy.run_path": {"path_name": "hostile.py"},
        "importlib.import_module": {"name": "hostile"},
        "hostile.Norm": {},
        "pandas.read_pickle": {"filepath_or_buffer": "bomb.pkl"},
        "numpy.load": {"file": "bomb.npy", "allow_pickle": True},
        "torch.serialization._legacy_load": {},
        "torch.hub.load": {"repo_or_dir": ".", "model": "model", "source": "local"},
        "normbench.training.checkpoint.np.load": {"file": "bomb.npy", "allow_pickle": True},
    }


CALLS = list(calls(Path("mark")))
SECTIONS = ("norm", "placement", "model", "data", "optim", "schedule", "init")


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith(("torch.ser", "normbench."))])
def test_what_is_called_here_would_run(mark: Path, name: str) -> None:
    given = calls(mark)[name]
    sys.path.append(str(Path.cwd()))
    made: Any = locate(name)
    made(*given.pop("_args_", []), **given)
    assert mark.exists()


def said(command: Callable[[], object]) -> str:
    """Return with which sentence a command is refused."""
    with pytest.raises(UsageError) as error:
        command()
    return str(error.value)


def hostile(known: dict[str, Any], section: str, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return configurations in which a section is a call, or has one among its settings, however deep."""
    for values in (call, {"_target_": call["_target_"]}, {"_args_": [call]}, {"eps": call}, {"own": [{"deep": call}]}):
        yield {**known, section: {**known[section], **values}}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_run_of_somebody_else_runs_no_code(runs: dict[str, Path], mark: Path, name: str) -> None:
    run = Path(shutil.copytree(runs["text"], "run"))
    known = yaml.safe_load((run / "config.yaml").read_text())
    call = {"_target_": name, **calls(mark)[name]}
    call["_args_"] = [str(arg) for arg in call.pop("_args_", [])]
    extension = read([f"extend={run}", "trainer.steps=30"])
    for section in SECTIONS:
        for tree in hostile(known, section, call):
            (run / "config.yaml").write_text(yaml.safe_dump(tree))
            seal(run)
            said(lambda: prepare(extension))
            if section in SECTIONS[:4]:
                said(lambda: normbench.load(run))
                said(lambda: sample(run))
            assert not mark.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_runs_of_somebody_else_are_reported_and_run_no_code(mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (name, given) in enumerate(calls(mark).items()):
        run = make_run(Path("runs"), seed=number % 4, norm=("layernorm", "rmsnorm")[number % 2], name=f"run{number}")
        known = yaml.safe_load((run / "config.yaml").read_text())
        call = {"_target_": name, **given, "_args_": ["${oc.env:HOME}"]}
        norm = {"_target_": "hostile.Norm"} if number < 2 else known["norm"]
        (run / "config.yaml").write_text(yaml.safe_dump({**known, "norm": {**norm, "eps": call}}))
    sys.path.append(str(Path.cwd()))  # where such a class would be found
    assert len(normbench.load_runs("runs")) == len(CALLS)
    for words in (["report", "runs"], ["runs", "runs"], ["compare", "rmsnorm", "layernorm", "--in", "runs"]):
        assert main(words) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()


def test_a_sweep_of_somebody_else_goes_on_with_trust_alone(mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, word in enumerate(FOREIGN):
        folder = mark.parent / f"sweep{number}"
        SweepFolder(folder).write_plan([], ["norm=layernorm", word], [word])
        assert main(["sweep", "--resume", str(folder), "--dry-run"]) == 2
        err = capsys.readouterr().err
        assert f"has {word!r}, which may run somebody else's code or reach another machine: if you trust" in err
        assert not mark.exists() and SweepFolder(folder).command().endswith(folder.name)
        assert SweepFolder(folder).command([word]).endswith(f"{folder.name} --trust")
    check_words(OURS, mark.parent)


def test_the_words_of_a_sweep_of_somebody_else_make_a_claim_with_trust_alone(
    mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Entry("run", {"norm": "layernorm"}, 0, 3, [])
    Path("conf").mkdir()
    for number, word in enumerate(FOREIGN):
        folder = mark.parent / f"sweep{number}"
        SweepFolder(folder).write_plan([entry], ["norm=layernorm", word])
        draft = Path(f"conf/claim/mine{number}.yaml")
        words = ["claims", "--new", f"mine{number}", str(folder), "--config-dir", "conf"]
        if key_of(word).startswith(("launcher", "hydra")):  # which say how runs are made, and no claim has them
            assert main(words) == 0 and word not in draft.read_text()
            continue
        assert main(words) == 2
        assert f"has {word!r}, which may run somebody else's code" in capsys.readouterr().err
        assert not draft.exists() and not mark.exists()
        assert main([*words, "--trust"]) == 0 and draft.exists()
    assert main(["claims", "--trust"]) == 2
    assert "--trust is for --new" in capsys.readouterr().err


def test_a_command_with_words_of_somebody_else_comes_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert caution("normbench sweep norm=layernorm,rmsnorm seed=0,1 launcher=local") == ""
    assert caution("normbench sweep --resume outputs/sweep norm._target_=hostile.Norm") == ""
    told = caution("normbench sweep norm._target_=hostile.Norm seed=0,1")
    assert "if you trust whoever made it: norm._target_=hostile.Norm may run code of theirs" in told
    own = caution("normbench sweep and sweep.lr=auto")  # as where no sweep has made the runs
    assert own == "" and "may run code of theirs" in say_chosen_for_none("0.1", "normbench sweep logger=wandb")
    entry = Entry("run", {}, 0, 3, ["norm._target_=hostile.Norm"])
    assert show_failures([Standing(entry, "failed", cause="boom")], "normbench sweep", are_given=False) == 1
    assert "repeat it (if you trust whoever made it: norm._target_=hostile.Norm" in capsys.readouterr().out
    step = NextStep(StepKind.LONGER, "normbench sweep launcher=submitit norm=layernorm")
    assert "launcher=submitit may run code of theirs, or reach another machine" in say_step(step, "nats")


@pytest.mark.parametrize(
    "word", ["launcher.partition=gpu\ntouch x", "launcher.additional_parameters={comment: 'a\rb'}"]
)
def test_no_line_break_reaches_a_script_of_a_cluster(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "launcher=submitit", "norm=rmsnorm,layernorm", "--dry-run", word]) == 2
    assert "holds a line break or another control character: write it without" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pandas", "../pandas", "a/../b", "a/b/c", "owner/.."])
def test_a_format_is_no_data_set_of_the_hub(name: str) -> None:
    assert "a word alone may be a file format: give owner/name" in said(lambda: Hub(name, "main", None, None))


def test_who_trusts_a_run_loads_a_class_of_its_own(runs: dict[str, Path], mark: Path) -> None:
    run = Path(shutil.copytree(runs["text"], "run"))
    known = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**known, "norm": {"_target_": "hostile.Norm"}}))
    seal(run)
    sentence = "has norm._target_=hostile.Norm, which is neither normbench's nor torch's, and loading it runs its code"
    assert f"run {sentence}: if you trust" in said(lambda: normbench.load(run))
    assert main(["sample", str(run)]) == main(["train", f"extend={run}", "trainer.steps=30"]) == 2
    assert not mark.exists()
    with pytest.raises(RuntimeError, match="Unexpected key"):  # the model is built, of that class
        main(["sample", str(run), "--trust"])
    assert mark.exists()


def test_no_record_is_written_through_a_link_or_above_its_folder(mark: Path) -> None:
    folder = mark.parent / "sweep"
    run = make_run(folder)
    for name in (".lock", "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(mark)
    (folder / ".sweep").symlink_to(mark.parent / "here")
    for write in (
        lambda: RunDirectory(run).hold().__enter__(),
        lambda: Lines(run, 0),
        lambda: SweepFolder(folder).write_plan([], ["seed=0"], ["run"]),
        lambda: SweepFolder(folder).note_failure("run", "boom"),
        lambda: inside(folder, "../../above"),
    ):
        assert "and nothing is written there" in said(write)
    assert not mark.exists() and not (mark.parent / "here/plans").exists()
    elsewhere = run.rename(mark.parent / "elsewhere")
    run.symlink_to(elsewhere)
    assert said(lambda: inside(folder, run.name)) == (
        f"{run} is a link that leads out of {folder}, to {elsewhere}, and nothing is written there: "
        "move what it leads to into the place of the link, or remove the link"
    )
    assert inside(folder, folder_name("..")) == folder / "_"


def test_no_setting_makes_something(capsys: pytest.CaptureFixture[str]) -> None:
    word = "data.nested={deep:[{_target_:os.getcwd}]}"
    assert main(["train", "data._target_=own.Data", word]) == 2
    assert "data.nested holds a _target_: settings are plain values" in capsys.readouterr().err
