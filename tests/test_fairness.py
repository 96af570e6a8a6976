"""What is said to make a comparison unfair, from runs that differ in one thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run, make_study
from normbench.sweeping.settings import SweepConfig
from normbench.sweeping.tuning import Choice, write_choices

from normbench.analysis.fairness import findings
from normbench.analysis.records import read_study
from normbench.analysis.report import Report, make_report
from normbench.rundir import CHOICE_FILE


def topics(report: Report) -> dict[str, str]:
    return {finding.topic: finding.text for finding in report.findings}


def unfair(folder: Path, **other: Any) -> dict[str, str]:
    """What is said where a second arm differs in something."""
    make_run(folder, norm="layernorm")
    make_run(folder, norm="rmsnorm", **other)
    return topics(make_report([folder]))


def test_a_fair_comparison_has_no_findings(tmp_path: Path) -> None:
    assert unfair(tmp_path) == {}


@pytest.mark.parametrize(
    ("other", "topic", "words"),
    [
        ({"steps": 200}, "unequal steps", "100 (layernorm); 200 (rmsnorm)"),
        ({"data": {"fingerprint": "a" * 64}}, "different data", "ffffffff (layernorm); aaaaaaaa (rmsnorm)"),
        ({"session": {"cpu": "another"}}, "different machines", "a processor (layernorm); another (rmsnorm)"),
        ({"session": {"threads": 2}}, "different threads", "1 (layernorm); 2 (rmsnorm)"),
        ({"session": {"packages": {"torch": "2.6.0", "numpy": "2.4.6"}}}, "different versions", "torch is not always"),
        ({"session": {"commit": "1" * 40 + "+changes"}}, "different versions", "11111111+changes (rmsnorm)"),
        ({"ledger": {"eps": 1e-6}}, "ledger", "eps: 1e-05 (layernorm); 1e-06 (rmsnorm)"),
        ({"ledger": {"norm_parameters_decayed": True}}, "ledger", "γ and β: no (layernorm); yes (rmsnorm)"),
        ({"ledger": {"branch_gain": 0.5}}, "ledger", "gain of branches at initialisation: 1 (layernorm); 0.5 (rms"),
        ({"ledger": {"implementation": "torch.nn.functional.rms_norm"}}, "ledger", "torch's operator (rmsnorm)"),
        ({"ledger": {"parameters": {"total": 7}}}, "ledger", "number of parameters: 802,304 (layernorm); 7 (rmsnorm)"),
        ({"lr": 3e-3}, "settings", "optim.lr too, which is fair only if each was chosen for its arm: 0.001"),
        ({"settings": {"model.width": 64}}, "settings", "model.width too: 128 (layernorm); 64 (rmsnorm)"),
        ({"summary": {"leak": "it does"}}, "leaking norm", "rmsnorm: the norm shows each position its future"),
        ({"summary": {"padding": "it does"}}, "padding", "rmsnorm: the norm counts the padding"),
        ({"seed": 1}, "missing seeds", "rmsnorm: no run with seed 0, which other arms have"),
        ({"status": "running"}, "unfinished runs", "1 run still going or killed, so no result yet: rmsnorm"),
        ({"status": "interrupted"}, "unfinished runs", "1 run interrupted, so no result yet: rmsnorm"),
    ],
)
def test_what_makes_it_unfair_is_said(tmp_path: Path, other: dict[str, Any], topic: str, words: str) -> None:
    assert words in unfair(tmp_path, **other)[topic]


def test_eps_that_one_norm_does_not_have_is_no_difference(tmp_path: Path) -> None:
    assert unfair(tmp_path, ledger={"eps": None}) == {}


@pytest.mark.parametrize(("key", "words"), [("data.batch_size", "trained"), ("data.eval_batch_size", "judged")])
def test_batch_statistics_of_one_sample_are_named(tmp_path: Path, key: str, words: str) -> None:
    for norm in ("layernorm", "batchnorm"):
        make_run(tmp_path, norm=norm, kind="image_classification", accuracy=0.5, settings={key: 1})
    wanted = f"batchnorm: the norm takes statistics over the batch, and is {words} at a batch size of 1"
    assert topics(make_report([tmp_path]))["batch of one"] == wanted


def test_several_runs_of_one_arm_and_seed_are_named_and_count_by_their_mean(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.1]})
    make_run(tmp_path, norm="rmsnorm", seed=1, final=2.3, name="again")
    report = make_report([tmp_path])
    assert "rmsnorm has 2 runs with seed 1, whose mean counts: again, rmsnorm-pre-s1-" in topics(report)["doubles"]
    (one,) = report.comparisons
    assert one.paired is not None and one.paired.differences == pytest.approx((0.0, 0.1))


def test_the_compared_switch_itself_is_not_unfair(tmp_path: Path) -> None:
    for depth in (2, 4):
        ledger = {"parameters": {"total": depth}}
        make_run(
            tmp_path, settings={"model.depth": depth, "norm.eps": depth / 1e6}, ledger={**ledger, "eps": depth / 1e6}
        )
    found = make_report([tmp_path]).findings
    assert [finding.text for finding in found if "number of parameters" in finding.text] == []


@pytest.mark.parametrize(
    ("key", "values", "ledger"),
    [
        ("trainer.decay_norms", (False, True), "norm_parameters_decayed"),
        ("trainer.precision", ("fp32", "bf16"), "precision"),
        ("trainer.steps", (100, 200), None),
    ],
)
def test_a_switch_of_the_training_that_is_compared_is_not_unfair(
    tmp_path: Path, key: str, values: tuple[Any, Any], ledger: str | None
) -> None:
    for value in values:
        steps = value if key == "trainer.steps" else 100
        make_run(tmp_path, steps=steps, settings={key: value}, ledger={ledger: value} if ledger else None)
    assert findings(read_study([tmp_path])) == ()


def test_what_an_earlier_session_had_counts_too(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    path = make_run(tmp_path, norm="rmsnorm") / "environment.json"
    sessions = json.loads(path.read_text())["sessions"]
    before = {**sessions[0], "threads": 2, "packages": {"torch": "2.6.0", "numpy": "2.4.6"}}
    path.write_text(json.dumps({"sessions": [before, *sessions]}))
    found = {finding.topic: finding.text for finding in findings(read_study([tmp_path]))}
    assert "1 (layernorm, rmsnorm); 2 (rmsnorm)" in found["different threads"]
    assert "torch is not always the same: 2.13.0 (layernorm, rmsnorm); 2.6.0" in found["different versions"]


def test_a_setting_that_a_person_gave_does_not_follow_from_the_option(tmp_path: Path) -> None:
    """What the options themselves set differs too, and is what is compared."""
    for model, width in (("nano", 128), ("small", 64)):
        for given in (False, True):
            command = f"normbench train model={model}" + (f" model.width={width}" if given else "")
            path = make_run(tmp_path / str(given), settings={"model.width": width}, session={"command": command})
            environment = json.loads((path / "environment.json").read_text())
            environment["sessions"][0]["choices"]["model"] = model
            (path / "environment.json").write_text(json.dumps(environment))
    assert findings(read_study([tmp_path / "False"])) == ()
    (one,) = findings(read_study([tmp_path / "True"]))
    assert one.text == "the arms differ in model.width too: 128 (nano); 64 (small)"


def test_seeds_that_took_unlike_times_are_named(tmp_path: Path) -> None:
    for norm, ms in (("layernorm", (10.0, 14.0)), ("rmsnorm", (10.0, 21.0))):
        for seed in range(2):
            make_run(tmp_path, norm=norm, seed=seed, step_ms=ms[seed])
    (one,) = findings(read_study([tmp_path]))
    assert one.text.startswith("step times differ up to 2.1-fold between seeds of one arm")
    assert one.text.endswith(": rmsnorm") and not one.serious


def test_learning_rates_chosen_on_held_out_data_are_fair(tmp_path: Path) -> None:
    """As `sweep.lr=auto` notes them beside the runs."""
    rates = {"layernorm": 1e-3, "rmsnorm": 3e-3}
    for norm, lr in rates.items():
        make_run(tmp_path, norm=norm, lr=lr)
    choices = [Choice({"norm": norm}, lr, "highest" if lr > 2e-3 else None, ()) for norm, lr in rates.items()]
    settings = SweepConfig(None, "auto", list(rates.values()), [1000], False, None, False)
    write_choices(tmp_path / CHOICE_FILE, choices, settings)
    edge, fair = findings(read_study([tmp_path]))
    assert (edge.serious, fair.serious) == (True, False)
    assert edge.text.startswith("rmsnorm: the chosen learning rate is at the end of those tried")
    assert "chosen on data held out of the training data: 0.001 (layernorm); 0.003 (rmsnorm)" in fair.text
    make_run(tmp_path, norm="dyt", lr=0.5)  # not by the sweep
    (one,) = findings(read_study([tmp_path]))
    assert one.serious and "fair only if each was chosen for its arm" in one.text


def test_what_may_decide_comes_first(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    make_run(tmp_path, norm="rmsnorm", steps=200, ledger={"parameters": {"total": 7}})
    assert [finding.serious for finding in make_report([tmp_path]).findings] == [True, False]
