"""The interface for Python: `normbench.load` and `normbench.load_runs`."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from support import refused

import normbench
from normbench.data import digits, pydocs
from normbench.errors import UsageError
from normbench.training.checkpoint import read
from normbench.training.evaluation import evaluate

pytest_plugins = ["trained_runs"]

CPU = torch.device("cpu")


def summary(run: Path) -> dict:
    content: dict = json.loads((run / "summary.json").read_text())
    return content


# ---- load


def test_a_loaded_model_judges_as_its_run_did(runs: dict[str, Path]) -> None:
    """The validation loss of the summary, from the weights in the checkpoint."""
    sizes = {"batch_size": 12, "eval_batch_size": 512, "seed": 0}
    for kind, data in (("text", pydocs(context=16, **sizes)), ("images", digits(scaling="standard", **sizes))):
        model = normbench.load(runs[kind])
        assert not model.training
        found = evaluate(model, data.eval_batches("val"), data.task, CPU)
        assert found["loss"] == pytest.approx(summary(runs[kind])["metrics"]["loss/val"], rel=1e-6)


def test_the_averaged_and_the_best_weights(runs: dict[str, Path]) -> None:
    state, best = read(runs["text"] / "checkpoint.pt"), read(runs["text"] / "checkpoint.best.pt")
    wanted = [
        (normbench.load(runs["text"]), state["model"]),
        (normbench.load(str(runs["text"]), ema=True), state["average"]["model"]),
        (normbench.load(runs["text"], which="best", device=CPU), best["model"]),
    ]
    for model, weights in wanted:
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights.items())
    first, averaged = (next(model.parameters()) for model, _ in wanted[:2])
    assert not torch.equal(first, averaged)


def test_loading_needs_no_data_and_moves_no_random_number(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text classifier's data are gone."""
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path))
    copy = moved(runs["texts"], tmp_path)
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("/hub\n", "/nowhere\n"))
    before = torch.get_rng_state()
    model = normbench.load(copy)
    assert torch.equal(torch.get_rng_state(), before)
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 3)


def moved(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / run.name))


def test_the_checkpoint_before_serves_where_the_last_is_damaged(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = moved(runs["images"], tmp_path)
    shutil.copy(copy / "checkpoint.pt", copy / "checkpoint.prev.pt")
    (copy / "checkpoint.pt").write_bytes((copy / "checkpoint.pt").read_bytes()[:-100])
    with pytest.warns(UserWarning, match="checkpoint.pt is damaged"):
        normbench.load(copy)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ema": True}, "has no averaged weights: the last ones of a run with trainer.ema"),
        ({"which": "best"}, "has no best checkpoint: trainer.keep_checkpoint=best keeps it"),
        ({"which": "first"}, "which=first is unknown: use last or best"),
        ({"device": "gpu"}, "device=gpu is unknown: use auto, cpu, cuda"),
    ],
)
def test_what_a_run_does_not_have_is_said(runs: dict[str, Path], options: dict, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        normbench.load(runs["images"], **options)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        normbench.load(tmp_path / "nowhere")


def test_a_run_of_another_version_is_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = moved(runs["text"], tmp_path)
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("embedding_scale: unit", "embedding_scale: false"))
    sentence = f"{config} is of another version of normbench, or was edited (model.embedding_scale=false is not allowed"
    with pytest.raises(UsageError, match=re.escape(sentence)):
        normbench.load(copy)
    assert sentence in refused(["train", f"extend={copy}", "trainer.steps=100"], capsys)


# ---- load_runs


def test_a_row_holds_what_the_run_is_and_what_came_out(runs: dict[str, Path]) -> None:
    table = normbench.load_runs(runs["text"].parent.parent)
    assert sorted(table.path) == sorted(str(run) for run in runs.values())
    row = table.set_index("path").loc[str(runs["text"])]
    record = summary(runs["text"])
    assert row["run"] == f"train/{runs['text'].name}"
    assert (row.status, row.step, row.steps, row.seed) == ("finished", 20, 20, 0)
    assert (row.norm, row.placement, row.model, row["data"]) == ("rmsnorm", "pre", "nano", "pydocs")
    assert (row["norm.eps"], row["model.width"], row["optim.betas"]) == (1e-5, 16, "[0.9, 0.99]")
    assert row["loss/val"] == record["metrics"]["loss/val"]
    assert row["ledger.parameters.total"] == record["ledger"]["parameters"]["total"]
    assert math.isnan(table.set_index("path").loc[str(runs["images"])]["loss/val_ema"])
    assert len(normbench.load_runs(runs["text"])) == 1


def test_a_run_that_has_not_ended_has_its_status(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = moved(runs["images"], tmp_path)
    (copy / "summary.json").unlink()
    stands = {"status": "interrupted", "step": 7, "steps": 46, "heartbeat": 0.0}
    (copy / "status.json").write_text(json.dumps(stands))
    row = normbench.load_runs(tmp_path).iloc[0]
    assert (row.status, row.norm) == ("interrupted", "batchnorm") and "loss/val" not in row
    assert row.heartbeat.isoformat() == "1970-01-01T00:00:00+00:00"


def test_runs_that_were_set_aside_are_left_out(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = moved(runs["images"], tmp_path / "name")
    old = Path(shutil.copytree(copy, copy.with_name(f"{copy.name}.old1")))
    shutil.copytree(copy, tmp_path / ".hidden" / copy.name)
    assert list(normbench.load_runs(tmp_path).path) == [str(copy)]
    assert list(normbench.load_runs(old).path) == [str(old)]  # it was asked for


def test_metrics_come_in_long_form(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = moved(runs["images"], tmp_path)
    before = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    with open(copy / "metrics.jsonl", "a") as file:
        file.write('{"step": 47, "loss/train": null}\n{"step": 48, "lo')  # not finite; torn by a kill
    with pytest.warns(UserWarning, match=r"metrics.jsonl: changed after the run had ended"):
        table, logged = normbench.load_runs(tmp_path, metrics=True)
    assert list(logged) == ["run", "step", "tag", "value"] and set(logged.run) == set(table.run)
    found = logged[logged.tag == "loss/train"]
    expected = [(line["step"], line["loss/train"]) for line in before if "loss/train" in line]
    assert list(zip(found.step, found.value, strict=True))[:-1] == expected
    assert found.step.iloc[-1] == 47 and math.isnan(found.value.iloc[-1])
    assert logged[logged.tag == "loss/val"].value.iloc[-1] == table["loss/val"].iloc[0]


def test_the_package_is_typed() -> None:
    assert (Path(normbench.__file__).parent / "py.typed").exists()
