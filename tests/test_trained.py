"""Whether a run has trained at all, against what a constant predictor reaches, and what a report makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_runs import make_report, make_run, read_study
from scipy import stats

from normbench.data.own import text_file
from normbench.data.sources import digits
from normbench.evidence.arms import LEARNING_RATE
from normbench.evidence.facts import lead
from normbench.evidence.measures import loss_on
from normbench.evidence.run import RecordedRun
from normbench.evidence.yardstick import metrics_of
from normbench.results.answer import ReasonKind, Remedy, StepKind
from normbench.results.caveat import CaveatKind
from normbench.results.designs import compare_levels
from normbench.results.result import EffectKind, TwoGroups
from normbench.results.rules import Verdict
from normbench.results.sensitivity import tried_levels
from normbench.show.figures import draw_all
from normbench.show.figures.finals import draw_learning_rates
from normbench.show.report import Report
from normbench.show.tables import rates_table
from normbench.tell.designs import say_largest
from normbench.tell.methods import write_methods
from normbench.types import Data

CONSTANT = {"constant": {"loss/val": 3.337, "accuracy/val": 0.149}}
STUCK, LEARNED = [3.349, 3.347, 3.348], [2.51, 2.54, 2.53]


def text_of(report: Report) -> str:
    return "\n".join(one.text for one in report.verdict)


def make_arms(folder: Path, arms: dict[str, list[float]], **everywhere: Any) -> Report:
    """The report of runs that know what a constant predictor reaches."""
    for norm, finals in arms.items():
        for seed, final in enumerate(finals):
            make_run(folder, norm=norm, seed=seed, final=final, data=CONSTANT, **everywhere)
    return make_report([folder])


def test_data_say_what_a_constant_predictor_reaches(tmp_path: Path) -> None:
    data: Data = digits(batch_size=32, eval_batch_size=100, seed=0)
    labels = torch.cat([batch.targets for batch in data.eval_batches("val")])
    shares = labels.bincount() / len(labels)
    loss, right = data.task.totals(shares.log().expand(len(labels), -1), labels)
    wanted = {"loss/val": loss.item() / len(labels), "accuracy/val": right.item() / len(labels)}
    assert data.describe()["constant"] == pytest.approx(wanted, rel=1e-5)
    tokens = "to be or not to be" * 50
    path = tmp_path / "own.txt"
    path.write_text(tokens)
    text: Data = text_file(path=str(path), context=4, batch_size=2, eval_batch_size=2, seed=0)
    held = np.bincount(np.frombuffer(tokens.encode()[-90:], np.uint8))
    assert text.describe()["constant"] == pytest.approx(
        {"loss/val": stats.entropy(held), "accuracy/val": held.max() / 90}
    )


@pytest.mark.parametrize(
    ("metrics", "constant", "trained"),
    [
        ({"loss/val": 3.349, "loss/train": 3.30, "accuracy/val": 0.149}, CONSTANT["constant"], False),
        ({"loss/val": 3.349}, CONSTANT["constant"], False),
        ({"loss/val": 2.5}, CONSTANT["constant"], True),
        ({"loss/val": 9.0, "loss/train": 0.1}, CONSTANT["constant"], True),  # by heart
        ({"loss/val": 9.0, "accuracy/val": 0.4}, CONSTANT["constant"], True),  # too sure of itself
        ({"loss/val": 4.0, "accuracy/val": 0.25}, CONSTANT["constant"], False),  # a class more by chance
        ({"loss/val": 3.349}, None, None),
        ({}, CONSTANT["constant"], None),
    ],
)
def test_a_run_has_trained_where_it_is_clearly_better_than_a_constant(
    metrics: dict[str, float], constant: Any, trained: bool | None
) -> None:
    sessions = ({"data": {"constant": constant}},)
    run = RecordedRun("", Path(), "finished", 1, 1, "", 0, {}, {"metrics": metrics}, sessions, {}, "")
    assert run.trained is trained


def test_an_arm_that_did_not_train_is_said_to_be_and_not_worse(tmp_path: Path) -> None:
    report = make_arms(tmp_path, {"layernorm": LEARNED, "dyt": STUCK})
    first, second = text_of(report).splitlines()
    assert first == (
        "dyt did not train: its validation loss ends at 3.348 nats on average, not 5 % below the 3.337 of a constant "
        "guess."
    )
    assert second.startswith("dyt and layernorm are not compared: dyt did not train, which is why its validation loss")
    assert "0.821 nats higher" in second and not report.family.differences[0].real
    cells = {table.key: table.frame.set_index("arm") for table in report.tables if "arm" in table.frame}
    assert cells["costs"].loc["dyt", "did not train"] == "3 of 3"
    shown = cells["differences"].loc["dyt"]
    assert shown["found"] == "did not train" and "+0.8" in shown["difference, nats"]
    assert not {"p", "effect size", "minimum detectable effect"} & {*shown.index}, "which are of a test"
    assert lead(report.study).endswith("6 runs: 6 finished (3 of them did not train)")
    assert report.runs.groupby("arm")["trained"].sum().to_dict() == {"dyt": 0, "layernorm": 3}


def test_many_arms_that_did_not_train_have_one_sentence(tmp_path: Path) -> None:
    report = make_arms(tmp_path, {"layernorm": LEARNED} | dict.fromkeys(("dyt", "none", "batchnorm"), STUCK))
    assert text_of(report) == (
        "3 of 4 arms did not train, and are not compared (batchnorm, dyt, none): their validation losses end at 3.347 "
        "to 3.349 nats, not 5 % below the 3.337 of a constant guess."
    )


def test_what_many_arms_miss_is_said_of_all(tmp_path: Path) -> None:
    """In the plural, and one loss where all have it."""
    for norm in ("layernorm", "dyt", "none"):
        constant = {"loss/val": 2.3, "accuracy/val": 0.1}
        make_run(tmp_path, norm=norm, final=2.31, accuracy=0.1, data={"constant": constant})
    assert text_of(make_report([tmp_path])).startswith(
        "3 of 3 arms did not train, and are not compared (dyt, layernorm, none): their validation losses end at 2.310 "
        "nats, not 5 % below the 2.300 of a constant guess, and they do not make 25 % fewer errors than one, "
    )


def test_data_that_know_the_accuracy_of_a_constant_alone_are_enough(tmp_path: Path) -> None:
    for norm, share in (("layernorm", 0.9), ("dyt", 0.149)):
        make_run(tmp_path, norm=norm, accuracy=share, data={"constant": {"accuracy/val": 0.149}})
    assert "25 % fewer errors than a constant guess, which is right in 14.9 % of all cases." in text_of(
        make_report([tmp_path])
    )


def test_two_arms_that_did_not_train_are_not_compared(tmp_path: Path) -> None:
    report = make_arms(tmp_path, {"layernorm": [3.341, 3.342, 3.343], "dyt": STUCK})
    (one,) = report.answer.differences
    assert (one.verdict, one.untrained) == (Verdict.UNTRAINED, ("dyt", "layernorm"))


def test_nothing_is_tested_of_arms_that_did_not_train(tmp_path: Path) -> None:
    """No p in `answer.json` from which a script could take a difference, and no test in the methods of a paper."""
    report = make_arms(tmp_path, {"layernorm": LEARNED, "dyt": STUCK})
    (one,) = report.answer.differences
    assert (one.verdict, one.untrained) == (Verdict.UNTRAINED, ("dyt",))
    assert (one.p, one.ranked_p, one.corrected, one.effect_size, one.detectable) == (None,) * 5
    assert one.interval and one.interval.lower > 0, "how far apart they end is said"
    methods = write_methods(report)
    assert "Student" not in methods and "significant" not in methods


def test_an_arm_that_trains_at_no_rate_has_no_best_one(tmp_path: Path) -> None:
    for norm, losses in (("layernorm", (2.5, 2.6)), ("dyt", (3.349, 3.348))):
        for lr, final in zip((1e-3, 3e-3), losses, strict=True):
            make_run(tmp_path, norm=norm, lr=lr, final=final, data=CONSTANT)
    study = read_study([tmp_path])
    dyt, layernorm = rates_table(tried_levels(study.arms)).frame.to_dict("records")
    assert (dyt["best rate"], dyt["loss there, nats"]) == ("–", "–")
    assert (layernorm["best rate"], layernorm["loss there, nats"]) == ("0.001", "2.5000")
    (figure,) = draw_learning_rates(study, loss_on("val"))
    filled = figure.data[figure.data["best"] == "yes"]
    assert filled[["arm", "learning_rate"]].to_numpy().tolist() == [["layernorm", 1e-3]]


def test_no_rate_was_chosen_where_no_run_trained(tmp_path: Path) -> None:
    for norm in ("layernorm", "dyt"):
        for lr in (1e-3, 3e-3):
            make_run(tmp_path, norm=norm, lr=lr, final=3.35, data=CONSTANT)
    report = make_report([tmp_path])
    assert CaveatKind.LEARNING_RATE not in {caveat.kind for caveat in report.answer.caveats}
    assert "dyt none, as no run trained; layernorm none, as no run trained." in write_methods(report)


def test_arms_that_diverged_in_every_run_are_to_be_made_train(tmp_path: Path) -> None:
    """Not to be trained longer, which would show whether what was found holds: nothing was."""
    for norm in ("layernorm", "dyt"):
        for lr in (1e-3, 3e-3):
            make_run(tmp_path, norm=norm, lr=lr, status="diverged", data=CONSTANT)
    steps = make_report([tmp_path]).answer.next
    assert {(step.kind, step.remedies) for step in steps} == {(StepKind.MAKE_TRAIN, (Remedy.WARMUP,))}


def test_half_the_lowest_rate_is_called_none(tmp_path: Path) -> None:
    """An arm that trains at no rate, or in one seed of three at none, is not said to train at a rate nobody tried."""
    rates = (1e-3, 3e-3, 9e-3)
    bears = {"layernorm": (3e-3, 9e-3, 3e-3), "dyt": (0.0, 0.0, 0.0), "rmsnorm": (0.0, 1e-3, 1e-3)}
    for norm, largest_of_seed in bears.items():
        for seed, largest in enumerate(largest_of_seed):
            for lr in rates:
                make_run(tmp_path, norm=norm, seed=seed, lr=lr, final=2.5 if lr <= largest else 3.35, data=CONSTANT)
    study = read_study([tmp_path])
    said = {}
    for effect in compare_levels(study.arms, LEARNING_RATE, {"norm": "layernorm"}):
        if effect.kind == EffectKind.LARGEST:
            said[effect.arm] = say_largest(effect)
    assert "dyt at none of the rates tried, at rates" in said["dyt"]
    assert "where none counts as half the lowest" in said["dyt"]
    assert "rmsnorm up to 0.001, some seeds at none, at rates" in said["rmsnorm"]


def test_gradients_that_explode_do_not_vanish(tmp_path: Path) -> None:
    """A norm of 20 in the blocks beside one of a billion outside of them is no norm near 0."""
    for norm, final in (("layernorm", 2.5), ("none", 6e6)):
        path = make_run(tmp_path, norm=norm, final=final, data=CONSTANT, probed=20)
        if norm == "none":
            ended = {"step": 101, "grad/norm": 1e9} | {f"grad/block{n:02}.mlp/norm": 10.0 for n in range(4)}
            with (path / "metrics.jsonl").open("a") as file:
                file.write(f"{json.dumps(ended)}\n")
    report = make_report([tmp_path])
    (cause,) = report.answer.causes
    reasons = {reason.kind: reason.evidence for reason in cause.reasons}
    assert reasons[ReasonKind.EXPLODING] == pytest.approx({"gradient": 1e9})
    assert ReasonKind.VANISHING not in reasons
    (step,) = report.answer.next
    assert (step.kind, step.remedies) == (StepKind.MAKE_TRAIN, (Remedy.WARMUP,))


def test_an_arm_of_which_one_run_did_not_train_has_no_mean(tmp_path: Path) -> None:
    report = make_arms(tmp_path, {"layernorm": LEARNED, "dyt": [3.349, 2.6, 2.61]})
    (one,) = report.answer.differences
    assert (one.verdict, one.torn) == (Verdict.TORN, (TwoGroups("dyt", trained=2, runs=3),))
    assert {arm.name: len(arm.stuck) for arm in report.answer.arms} == {"dyt": 1, "layernorm": 0}
    cells = {table.key: table.frame.set_index("arm") for table in report.tables if "arm" in table.frame}
    assert cells["differences"].loc["dyt", "found"] == "two groups"
    captions = {figure.name: figure.caption for figure in draw_all(report.study, {"norm": "layernorm"})}
    doubt = "The mean tells little where an arm's runs end in two groups, as some did not train: dyt."
    assert doubt in captions["loss-val-steps"] and doubt not in captions["differences"]


def test_a_figure_of_learning_rates_says_at_which_its_mean_is_of_two_groups(tmp_path: Path) -> None:
    for rate, finals in {1e-3: LEARNED, 1e-2: [3.349, 2.6, 2.61]}.items():
        for seed, final in enumerate(finals):
            settings = {"optim.lr": rate}
            make_run(tmp_path, norm="dyt", seed=seed, final=final, data=CONSTANT, settings=settings)
    study = read_study([tmp_path])
    (figure,) = draw_learning_rates(study, metrics_of(study)[0])
    assert figure.caption.endswith("in two groups, as some did not train: lr=0.01.")


def test_a_loss_a_little_below_a_constant_guess_is_not_called_no_better(tmp_path: Path) -> None:
    report = make_arms(tmp_path, {"layernorm": LEARNED, "dyt": [3.27, 3.28, 3.26]})
    costs = " ".join(note for table in report.tables if table.key == "costs" for note in table.notes)
    assert "3.270 nats on average, not 5 % below the 3.337 of a constant guess" in text_of(report)
    assert "5 % below the loss of a constant guess" in costs and "no better" not in costs + text_of(report)


def test_all_arms_that_did_not_train_are_named(tmp_path: Path) -> None:
    names = ["dyt", "none", "batchnorm", "rmsnorm", "groupnorm"]
    report = make_arms(tmp_path, {"layernorm": LEARNED} | dict.fromkeys(names, STUCK))
    for told in (report.why, report.next):
        assert all(any(name in text for text in told if "train" in text) for name in names)
    assert len(report.why) == 1  # they have it for one reason


@pytest.mark.parametrize(
    "arms",
    [
        {"layernorm": STUCK, "dyt": STUCK},
        {"layernorm": LEARNED, "dyt": STUCK},
        {"layernorm": LEARNED, "dyt": [2.6, 3.349, 2.61]},
        {"layernorm": LEARNED, "dyt": [2.6]},
        {"layernorm": LEARNED},
        {"layernorm": [2.5, 2.5], "dyt": [2.5, 2.5]},
    ],
)
@pytest.mark.parametrize("status", ["finished", "diverged", "failed"])
def test_every_sentence_has_its_table(tmp_path: Path, arms: dict[str, list[float]], status: str) -> None:
    for placement in ("pre", "post"):
        how = {"status": status} if placement == "post" else {}
        for norm, finals in arms.items():
            for seed, final in enumerate(finals):
                make_run(tmp_path, norm=norm, placement=placement, seed=seed, final=final, data=CONSTANT, **how)
    report = make_report([tmp_path])
    shown = {table.key for table in report.tables if table.rows}
    assert report.verdict and {one.table for one in report.verdict} <= shown


def test_an_arm_that_trains_at_no_rate_is_not_the_least_sensitive(tmp_path: Path) -> None:
    for norm, losses in (("layernorm", (2.5, 2.6)), ("dyt", (3.349, 3.3495))):
        for lr, final in zip((1e-3, 3e-3), losses, strict=True):
            make_run(tmp_path, norm=norm, lr=lr, final=final, data=CONSTANT)
    dyt, layernorm = tried_levels(read_study([tmp_path]).arms)
    assert not dyt.sensitivity and layernorm.sensitivity
    assert dyt.lost == {1e-3: 1, 3e-3: 1}


# ---- why, and what next


def test_the_probes_say_why_an_arm_did_not_train(tmp_path: Path) -> None:
    """A stream that is too small for a bounded norm, and later at its bound, so that no gradient gets through."""
    for norm, finals in (("layernorm", LEARNED), ("dyt", STUCK)):
        for seed, final in enumerate(finals):
            path = make_run(tmp_path, norm=norm, seed=seed, final=final, data=CONSTANT, probed=20)
            if norm == "dyt":
                begun = {"step": 0, "act/block00.attention/rms_in": 0.028, "act/block00.attention/rms_out": 0.014}
                ended = {"step": 101, "grad/norm": 0.4} | {f"act/block{n:02}.mlp/saturated_out": 0.95 for n in range(4)}
                ended |= {f"grad/block{n:02}.mlp/norm": 1e-6 for n in range(4)}
                file = path / "metrics.jsonl"
                file.write_text(f"{json.dumps(begun)}\n{file.read_text()}{json.dumps(ended)}\n")
    report = make_report([tmp_path])
    (cause,) = report.answer.causes
    assert (cause.arm, cause.baseline) == ("dyt", None)
    reasons = {reason.kind: reason.evidence for reason in cause.reasons}
    assert reasons[ReasonKind.SMALL_STREAM] == pytest.approx({"entering": 0.028, "passed": 0.014})
    assert reasons[ReasonKind.SATURATED] == pytest.approx({"saturated": 0.95})
    assert reasons[ReasonKind.VANISHING] == pytest.approx({"in_blocks": 2e-6, "gradient": 0.4})
    (step,) = report.answer.next
    assert (step.kind, step.arm, step.remedies[0]) == (StepKind.MAKE_TRAIN, "dyt", Remedy.LARGER_STREAM)
    (why,) = report.why
    assert why.startswith("dyt did not train: the stream enters the first norm with RMS 0.028, where its bounded")
