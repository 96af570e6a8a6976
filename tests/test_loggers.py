"""Loggers: chosen by words, several at once; the real libraries read back what a run wrote that went on."""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from normbench import build
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe
from normbench.errors import RunFailure, UsageError
from normbench.record.loggers import Logger, quiet_loggers
from normbench.record.recorder import Recorder
from normbench.record.services import Csv, MLflow, Trackio, Wandb
from normbench.runs.plan import prepare

TINY = ["model.width=16", "model.heads=2", "model.context=16", "trainer.steps=12", "trainer.eval_every=6",
        "trainer.checkpoint_every=6", "threads=1", "device=cpu", "quiet=true"]  # fmt: skip
BOARD = "normbench.recording.TensorBoard"
OTHERS = pytest.mark.filterwarnings("ignore")  # of other libraries' own code


class Listing(Logger):
    """A logger of a user's own, which lists its calls."""

    calls: ClassVar[list[Any]] = []

    def __init__(self, directory: Path, step: int, *, word: str = "") -> None:
        self.calls.append((directory.name, step, word))

    def scalars(self, step: int, values: Any) -> None:
        self.calls.append(step)

    def close(self, ended: str) -> None:
        self.calls.append(ended)


class Refusing(Logger):
    """A logger that cannot start."""

    def __init__(self, directory: Path, step: int) -> None:
        raise ValueError("no account")


# ---- words


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], {"tensorboard": BOARD}),
        (["logger=[tensorboard,csv]"], {"tensorboard": BOARD, "csv": "normbench.recording.Csv"}),
        (["logger=none", "logger.mine._target_=test_loggers.Listing"], {"mine": "test_loggers.Listing"}),
    ],
)  # fmt: skip
def test_loggers_are_chosen_together_and_change_no_run_s_name(words: list[str], chosen: dict[str, str]) -> None:
    config = read([*TINY, *words])
    assert {name: values["_target_"] for name, values in config.tree["logger"].items()} == chosen
    assert config.choices.groups["logger"] == ",".join(chosen)
    assert prepare(config).directory.path.name == prepare(read(TINY)).directory.path.name


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("logger=wandb logger.wandb.mode=of", "logger.wandb.mode=of is not allowed: use online, offline, "),
        ("logger=csv logger.csv.x=1", "logger.csv.x is unknown"),
        ("logger=[csv,excel]", "logger=excel is unknown: allowed are csv, mlflow, none, tensorboard, trackio, wandb"),
        ("logger.mine._target_=torch.nn.Linear", "logger._target_=torch.nn.Linear makes no Logger"),
    ],
)  # fmt: skip
def test_a_wrong_logger_is_refused_in_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TINY, *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"normbench: {sentence}")


def test_a_package_that_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.config.recipe.find_spec", lambda package: None)
    with pytest.raises(UsageError, match=r"^logger=wandb is not installed: pip install 'normbench\[wandb\]'$"):
        prepare(read([*TINY, "logger=[csv,wandb]"]))


# ---- runs


def test_a_run_writes_what_each_logger_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "logger=csv,tensorboard", "logger.mine._target_=test_loggers.Listing", "logger.mine.word=a"
    assert main(["train", *TINY, *words]) == 0  # `a,b` is `[a,b]` there
    (run,) = tmp_path.glob("outputs/train/*")
    assert Listing.calls[0] == (run.name, 0, "a") and Listing.calls[-1] == "finished"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert Listing.calls[1:-1] == [line["step"] for line in lines]  # at once, in order
    table = pd.read_csv(run / "metrics.csv", index_col="step")
    for line in lines:
        step = line.pop("step")
        assert dict(table.loc[step, list(line)]) == line
    assert len(list(run.glob("events.*"))) == 1


def test_a_logger_that_cannot_start_ends_in_a_sentence(tmp_path: Path) -> None:
    recipe = Recipe({"logger": {"mine": {"_target_": "test_loggers.Refusing"}}})
    with pytest.raises(RunFailure, match=r"^a logger cannot start \(.*no account.*\): see its settings"):
        build.make_loggers(recipe, tmp_path, 0)


def test_a_logger_that_fails_is_left_out_from_then_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Listing):
        def scalars(self, step: int, values: Any) -> None:
            raise ConnectionError("no server")

    record(Failing(tmp_path, 0), tmp_path, range(1, 4), ended="finished")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    (said,) = caplog.messages
    assert said.startswith("warning: Failing has failed and takes no more numbers of this run; metrics.jsonl has")
    assert "ConnectionError: no server" in said


def record(logger: Logger, directory: Path, steps: range, ended: str) -> None:
    """Record as a run does that goes on behind a checkpoint."""
    recorder = Recorder(directory, loggers=[logger])
    choices = {"norm": "rmsnorm", "norm@qk": "dyt", "optim.lr": 1e-3, "norm.groups": None}
    recorder.begin(choices, ("norm",), "page")
    for step in steps:
        recorder.scalars(step, {"loss/train": step / 8, "weight/norm": float("nan")})
        recorder.histograms(step, {"act/final/in": ([1, 2], [0, 1, 2])})
    recorder.flush()
    recorder.close(ended)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run."""
    directory = tmp_path / "study" / "rmsnorm-pre-s0-3f2a9c1b"
    directory.mkdir(parents=True)
    return directory


def test_a_run_without_a_logged_step_has_an_empty_table(run: Path) -> None:
    record(Csv(run, 0), run, range(0), ended="diverged")
    assert (run / "metrics.csv").read_text().strip() == "step"


def test_quiet_holds_for_the_packages_of_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_SILENT", "MLFLOW_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "unset")
        monkeypatch.delenv(name)
    for name in ("mlflow", "alembic"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    quiet_loggers()
    assert os.environ["WANDB_SILENT"] == "true" and os.environ["MLFLOW_LOGGING_LEVEL"] == "WARNING"
    assert not any(logging.getLogger(name).isEnabledFor(logging.INFO) for name in ("mlflow", "alembic"))


def test_a_table_has_a_row_for_each_step(run: Path) -> None:
    record(Csv(run, 0), run, range(1, 4), ended="")
    assert (run / "metrics.csv").read_text() == "step,loss/train,weight/norm\n1,0.125,\n2,0.25,\n3,0.375,\n"


@pytest.mark.slow
@OTHERS
def test_a_run_is_one_run_of_mlflow_however_often_it_goes_on(run: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    pytest.importorskip("alembic", reason="needs the extra mlflow")
    place: Any = {"tracking_uri": f"sqlite:///{run}/ml.db"}
    for steps, ended in ((range(1, 9), ""), (range(1, 26), ""), (range(21, 31), "finished")):
        record(MLflow(run, steps.start - 1, **place), run, steps, ended)
    client = mlflow.MlflowClient(place["tracking_uri"])
    (found,) = client.search_runs([client.get_experiment_by_name("normbench").experiment_id])
    assert (found.info.run_name, found.info.status) == (run.name, "FINISHED")
    choices = {"norm": "rmsnorm", "norm at qk": "dyt", "optim.lr": "0.001", "norm.groups": "None"}
    assert found.data.params == choices
    logged = client.get_metric_history(found.info.run_id, "loss/train")
    assert {each.step: each.value for each in logged} == {step: step / 8 for step in range(1, 31)}
    assert len(logged) == 35  # steps 21 to 25 were made twice, and the first run was replaced
    diverging = MLflow(run, 30, **place)
    diverging.scalars(31, {"loss/val": math.inf})
    diverging.close("finished")
    (lost,) = client.get_metric_history(found.info.run_id, "loss/val")
    assert math.isnan(lost.value)


@pytest.mark.slow
@OTHERS
def test_a_run_is_one_run_of_trackio_however_often_it_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(run / "store"))  # which trackio reads when it is imported
    trackio = pytest.importorskip("trackio", reason="needs the extra trackio")
    from trackio.sqlite_storage import SQLiteStorage

    for steps, ended in ((range(1, 9), ""), (range(1, 26), ""), (range(21, 31), "finished")):
        record(Trackio(run, steps.start - 1), run, steps, ended)
    (found,) = trackio.Api().runs("normbench")
    assert found.name == f"study/{run.name}"
    choices = {"norm": "rmsnorm", "norm@qk": "dyt", "optim.lr": 1e-3, "norm.groups": None}
    assert found.config.items() >= choices.items()
    logged = SQLiteStorage.get_logs("normbench", found.name, run_id=found.id)
    assert {line["step"]: line["loss/train"] for line in logged} == {step: step / 8 for step in range(1, 31)}
    assert len(logged) == 35  # steps 21 to 25 were made twice, and the first run was replaced

    together = [run.with_name(f"rmsnorm-pre-s{seed}-3f2a9c1b") for seed in (1, 2)]
    loggers = [Trackio(directory, 0) for directory in together]
    for logger in loggers:
        logger.scalars(1, {"loss/train": 1.0})
    for logger in loggers:
        logger.close("finished")
    for directory in together:
        assert len(SQLiteStorage.get_logs("normbench", f"study/{directory.name}")) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@OTHERS
def test_a_run_is_one_run_of_wandb_however_often_it_goes_on(run: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    for steps, ended in ((range(1, 26), ""), (range(21, 31), "finished")):
        record(Wandb(run, steps.start - 1, mode="offline"), run, steps, ended)
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    for path, steps, status in zip(files, (range(1, 26), range(21, 31)), (1, 0), strict=True):
        records, deadline = list(wandb_records(path)), time.monotonic() + 30
        while not any(each.HasField("exit") for each in records) and time.monotonic() < deadline:
            time.sleep(0.1)  # a process of W&B's own writes it, perhaps behind `finish`
            records = list(wandb_records(path))
        (known,) = (each.run for each in records if each.HasField("run"))
        assert (known.run_id, known.run_group, known.project) == (f"study-{run.name}", "study", "normbench")
        logged = [{item.key or item.nested_key[0]: item.value_json for item in each.history.item} for each in records]
        found = {int(each["_step"]): float(each["loss/train"]) for each in logged if "loss/train" in each}
        assert found == {step: step / 8 for step in steps}
        assert [each.exit.exit_code for each in records if each.HasField("exit")] == [status]


def wandb_records(path: Path) -> Iterator[Any]:
    """What an offline run holds: LevelDB's log format, in blocks of 32 KiB, with a protocol buffer in each record."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(whole)
            whole = b""
