"""The interface for Python: `normbench.load`, `normbench.load_runs` and `normbench.answer`."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_run, make_study, seal
from support import refused

import normbench
from normbench.data import digits, pydocs
from normbench.errors import UsageError
from normbench.results.answer import VERSION, Answer, StepKind
from normbench.results.caveat import CaveatKind
from normbench.results.examine import Request
from normbench.results.result import EffectKind
from normbench.results.rules import Verdict
from normbench.show.report import make_reports, save
from normbench.training.checkpoint import read
from normbench.training.evaluation import evaluate
from normbench.wording import bound, fixed, p_value, precision

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
    seal(copy)
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
    seal(copy)
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


# ---- answer


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_an_answer_is_what_the_report_writes_and_comes_back_from_json(tmp_path: Path) -> None:
    """Of a study with a difference, an arm that did not train, one without a result, crossed factors and lost runs."""
    constant = {"constant": {"loss/val": 3.309}}
    cells = {("layernorm", 0): 2.0, ("rmsnorm", 0): 2.4, ("layernorm", 50): 2.0, ("rmsnorm", 50): 2.1, ("dyt", 0): 3.3}
    for (norm, warmup), final in cells.items():
        for seed in range(3):
            more = {"settings": {"schedule.warmup": warmup}, "data": constant, "probed": 20}
            luck = 0.01 * seed * (1.2 if norm == "rmsnorm" else 1)
            make_run(tmp_path, norm=norm, seed=seed, final=final + luck, **more)
    make_run(tmp_path, norm="none", status="failed", settings={"schedule.warmup": 0}, data=constant)
    found = normbench.answer(tmp_path, margin=0.01)
    (report,) = make_reports([tmp_path], Request(margin=0.01))
    save(report, tmp_path / "report")
    text = (tmp_path / "report/answer.json").read_text("utf-8")
    # as text: a number that is not known is NaN, which from Python 3.13 on is not equal to itself in a dataclass
    assert Answer.from_json(text).to_json() == found.to_json() == report.answer.to_json() == text
    known = json.loads(text, parse_constant=pytest.fail)
    assert known["version"] == VERSION and list(known)[:3] == ["version", "question", "baseline"]
    verdicts = {one.arm: one.verdict for one in found.differences}
    assert verdicts["rmsnorm · warmup=0"] == Verdict.DIFFERENT
    assert verdicts["dyt · warmup=0"] == Verdict.UNTRAINED and verdicts["none · warmup=0"] == Verdict.NO_SEED
    assert [arm.name for arm in found.arms if not arm.trained] == ["dyt · warmup=0"]
    assert found.effects[0].kind == EffectKind.CHANGE and found.effects[0].mean == pytest.approx(-0.3)
    assert {CaveatKind.LEARNING_RATE, CaveatKind.MISSING_SEEDS} <= {one.kind for one in found.caveats}
    assert found.next[0].kind == StepKind.MAKE_TRAIN and found.causes[0].arm == "dyt · warmup=0"


def test_an_answer_that_an_older_version_wrote_is_read(tmp_path: Path) -> None:
    """It has the values of evidence, and the arms, alone."""
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0]})
    found = normbench.answer(tmp_path)
    content = json.loads(found.to_json())
    for caveat in content["caveats"]:
        caveat["found"] = [{"value": one["value"], "arms": one["arms"]} for one in caveat["found"]]
    older = Answer.from_json(json.dumps(content))
    assert [one.text for one in older.caveats] == [one.text for one in found.caveats]
    assert older.caveats[0].found[0].arms == found.caveats[0].found[0].arms
    assert older.differences == found.differences


def test_an_answer_has_the_numbers_of_the_tables(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1, 2.05], "rmsnorm": [2.03, 2.1, 2.11], "dyt": [2.4, 2.52, 2.44]})
    (report,) = make_reports([tmp_path])
    tables = {table.key: table.frame.set_index("arm") for table in report.tables if "arm" in table.frame}
    for arm in report.answer.arms:
        (result,) = arm.results
        assert tables["arms"].loc[arm.name, "validation loss, nats"] == f"{result.mean:.4f}"
    for one in report.answer.differences:
        row = tables["differences"].loc[one.arm]
        assert row["difference, nats"] == fixed(one.mean, precision(one.mean, one.interval), sign=True)
        assert row["p after Holm"] == p_value(one.corrected)
        assert bound(one.detectable) in row["minimum detectable effect"]


def test_an_answer_is_of_one_task(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.2]})
    make_study(tmp_path / "more", {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.2]}, accuracy=0.9)
    with pytest.raises(UsageError, match="give one of image_classification, language_model"):
        normbench.answer(tmp_path)
    with pytest.raises(UsageError, match="task=translation is not a task"):
        normbench.answer(tmp_path, task="translation")
    assert normbench.answer(tmp_path, task="language_model").question.task == "language_model"


@pytest.mark.parametrize("name, value", [("metric", "foo"), ("baseline", "layernom"), ("task", "foo"), ("margin", -1)])
def test_a_complaint_names_the_argument_and_on_the_command_line_the_flag(
    name: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.2]})
    with pytest.raises(UsageError, match=f"^{name}={value} "):
        normbench.answer(tmp_path, **{name: value})
    if name in ("metric", "baseline"):
        assert f"--{name} {value} is not" in refused(["report", str(tmp_path), f"--{name}", value], capsys)


@pytest.mark.parametrize("margin", [-0.01, math.nan])
def test_an_answer_refuses_a_margin_that_is_not_a_size(tmp_path: Path, margin: float) -> None:
    with pytest.raises(UsageError, match="margin="):
        normbench.answer(tmp_path, margin=margin)
