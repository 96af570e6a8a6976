"""What a report says: measures, differences, the verdict and tables, against figures worked out here."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import make_report, make_run, make_study, plan, read_study
from markupsafe import escape
from scipy import stats

from normbench.commands.report import print_verdict
from normbench.errors import UsageError
from normbench.evidence.baselines import given_baseline
from normbench.evidence.measures import comparable, seconds_at
from normbench.evidence.run import RecordedRun
from normbench.results.answer import NextStep, StepKind
from normbench.results.causes import confirm_elsewhere
from normbench.results.caveat import CaveatKind
from normbench.results.caveats import own_rates
from normbench.results.rules import Verdict
from normbench.results.statistics import seeds_needed
from normbench.show.drawings import draw_arms
from normbench.show.figures import draw_all
from normbench.show.figures.differences import draw_forest
from normbench.show.figures.finals import draw_step_times
from normbench.show.latex import in_text
from normbench.show.report import Report, fill_pages
from normbench.wording import rounded_up

LAYERNORM = [2.00, 2.10, 2.05, 1.98, 2.04]
SAME = [2.003, 2.098, 2.051, 1.979, 2.041]  # the same but for a few thousandths
WORSE = [2.11, 2.20, 2.16, 2.07, 2.15]
ALL_DATA = {"trainer.eval_batches": None}  # in every evaluation, as in the last one


def verdicts(report: Report) -> dict[str, Verdict]:
    return {one.arm: one.verdict for one in report.answer.differences}


def table(report: Report, key: str) -> list[dict[str, str]]:
    (found,) = [table for table in report.tables if table.key == key]
    return [dict(zip(found.frame.columns, row, strict=True)) for row in found.rows]


def pairs(report: Report) -> list[tuple[str, str]]:
    return [(one.arm, one.baseline) for one in report.family.differences]


def runs_of(folder: Path) -> tuple[RecordedRun, ...]:
    return read_study([folder]).runs


# ---- differences


def test_differences_are_the_paired_t_test_of_scipy_and_holm_by_hand(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "rmsnorm": SAME, "dyt": WORSE})
    report = make_report([tmp_path])
    dyt, rmsnorm = report.family.differences
    assert pairs(report) == [("dyt", "layernorm"), ("rmsnorm", "layernorm")]
    p = {}
    for one, losses in ((dyt, WORSE), (rmsnorm, SAME)):
        test = stats.ttest_rel(losses, LAYERNORM)
        interval = test.confidence_interval()
        assert one.interval is not None and one.detectable is not None
        assert one.mean == pytest.approx(np.mean(losses) - np.mean(LAYERNORM))
        assert (one.interval.lower, one.interval.upper) == pytest.approx((interval.low, interval.high))
        p[one.arm] = test.pvalue
        shown = [row["minimum detectable effect"] for row in table(report, "differences") if row["arm"] == one.arm]
        assert [cell.partition(" (")[0] for cell in shown] == [f"{rounded_up(one.detectable, 2):g}"]
    assert dyt.corrected == pytest.approx(2 * p["dyt"])  # the smallest of two
    assert rmsnorm.corrected == pytest.approx(max(p["rmsnorm"], 2 * p["dyt"]))
    assert verdicts(report) == {"dyt": Verdict.DIFFERENT, "rmsnorm": Verdict.ALIKE}
    assert not dyt.better
    reach = max(abs(interval.low), abs(interval.high))  # of the whole interval
    assert rmsnorm.interval and rmsnorm.interval.reach == pytest.approx(reach)


def test_an_arm_whose_runs_end_in_two_groups_has_no_mean(tmp_path: Path) -> None:
    constant = {"constant": {"loss/val": 3.0}}
    make_study(tmp_path, {"layernorm": LAYERNORM, "dyt": [3.0, 3.01, *WORSE[2:]]}, data=constant)
    report = make_report([tmp_path])
    whole, torn = table(report, "arms")
    assert whole["arm"] == "layernorm" and "–" not in whole.values()
    arm, n, *figures, time = torn.values()  # to the target: a median
    assert (arm, n, time) == ("dyt", "5", "not reached") and {*figures} == {"–"}
    assert "tab:arms-short" in in_text(report.tables) and "differences-short" not in in_text(report.tables)


def test_figures_draw_the_seeds_of_an_arm_in_two_groups_and_no_mean(tmp_path: Path) -> None:
    finals = {"layernorm": LAYERNORM, "rmsnorm": SAME, "dyt": [3.0, 3.01, *WORSE[2:]]}
    make_study(tmp_path, finals, data={"constant": {"loss/val": 3.0}})
    report = make_report([tmp_path])
    arms = report.study.arms
    (figure,) = draw_forest(report.family.differences, arms)
    assert "two groups" in figure.alt and "their seeds alone are drawn" in figure.caption
    rows = figure.data.set_index("arm")
    means = rows[rows["kind"] == "mean"]["difference"].astype(float)
    assert math.isnan(means["dyt"]) and means["rmsnorm"] == pytest.approx(np.mean(SAME) - np.mean(LAYERNORM))
    assert len(rows.loc[["dyt"]]) == 6
    drawn = [line for axes in figure.canvas.axes for line in axes.lines]
    assert {line.get_marker() for line in drawn if "two groups" in str(line.get_gid())} == {"."}
    (against,) = draw_step_times(arms, report.yardstick.primary)
    assert [*against.data["arm"]] == ["layernorm", "rmsnorm"]
    assert against.caption.endswith("Not shown, as their runs end in two groups: dyt.")


def test_all_arms_that_did_not_train_are_named(tmp_path: Path) -> None:
    rates = [0.001 * 2**power for power in range(9)]
    make_study(tmp_path, {rate: [3.0] for rate in rates}, over="lr", data={"constant": {"loss/val": 3.0}})
    report = make_report([tmp_path])
    for texts in ([one.text for one in report.verdict], report.why, report.next):
        named = [text for text in texts if all(f"lr={rate:g}" in text for rate in rates)]
        assert named, texts


def test_one_seed_or_one_arm_says_nothing_about_differences(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1]})
    report = make_report([tmp_path])
    assert report.answer.differences == () and len(report.verdict) == 1
    assert [table.key for table in report.tables] == ["arms", "costs"]
    make_run(tmp_path, norm="rmsnorm", final=1.5)
    (row,) = table(make_report([tmp_path]), "differences")
    assert row == {"arm": "rmsnorm", "seeds": "1 of 2", "difference, nats": "−0.50", "found": "too few seeds"}


def test_classifiers_are_judged_by_accuracy_and_then_by_loss(tmp_path: Path) -> None:
    for norm, shift in (("layernorm", 0.0), ("rmsnorm", 0.05)):
        for seed, accuracy in enumerate((0.99, 0.98, 0.97)):
            noise = 0.001 * seed * (shift > 0)
            how = {"step_ms": 12 + seed + noise if shift else 10 + seed, "accuracy": accuracy - shift - noise}
            make_run(tmp_path, norm=norm, seed=seed, **how)
    report = make_report([tmp_path])
    (one,) = report.answer.differences
    assert (one.metric.tag, one.metric.unit) == ("accuracy/val", "percentage points")
    assert one.mean == pytest.approx(-5.1) and one.verdict == Verdict.DIFFERENT and not one.better
    keys = [table.key for table in report.tables]
    assert keys == ["arms", "differences", "differences-loss", "worth", "costs", "step-times"]
    assert report.tables[0].rows[0][:4] == ("layernorm", "3", "98.00", "95.51 to 100.00")  # and no further


def test_step_times_are_compared_by_their_ratio(tmp_path: Path) -> None:
    times = {"layernorm": [10.0, 11.0, 9.0], "rmsnorm": [12.0, 13.1, 11.1]}
    for norm, own in times.items():
        for seed, milliseconds in enumerate(own):
            make_run(tmp_path, norm=norm, seed=seed, step_ms=milliseconds)
    (row,) = table(make_report([tmp_path]), "step-times")
    test = stats.ttest_rel(*(np.log(times[norm]) for norm in ("rmsnorm", "layernorm")))
    low, high = np.exp(test.confidence_interval())
    mean = stats.gmean(np.divide(times["rmsnorm"], times["layernorm"]))
    assert float(row["ratio of step times"]) == pytest.approx(mean, abs=0.0005)
    assert list(map(float, row["95 % interval"].split(" to "))) == pytest.approx([low, high], abs=0.002)


def test_every_time_names_what_ran_the_norms(tmp_path: Path) -> None:
    """The arms' costs in a column; times to a target, ratios and figures over time in the words below them."""
    ran = {"layernorm": "torch.nn.functional.layer_norm", "rmsnorm": ["native", "eager"]}
    for norm, seed in product(ran, range(3)):
        make_run(tmp_path, norm=norm, seed=seed, step_ms=10.0 + seed + len(norm), ledger={"implementation": ran[norm]})
    report = make_report([tmp_path])
    column = {row["arm"]: row["norms run as"] for row in table(report, "costs")}
    assert column == {"layernorm": "torch.nn.functional.layer_norm", "rmsnorm": "native and eager"}
    said = "ran as native and eager (rmsnorm); torch.nn.functional.layer_norm (layernorm)."
    notes = {one.key: " ".join(" ".join(one.notes).split()) for one in report.tables}
    assert said in notes["arms"] and said in notes["step-times"] and said not in notes["differences"]
    drawn = {one.name: said in one.caption for one in draw_all(report.study, dict(report.baseline.settings))}
    assert {name for name, named in drawn.items() if named} == {name for name in drawn if "time" in name} != set()


# ---- baselines


def test_a_baseline_is_layernorm_and_pre_or_what_words_name(tmp_path: Path) -> None:
    for norm, placement in product(("dyt", "layernorm"), ("pre", "post")):
        make_run(tmp_path, norm=norm, placement=placement)
    others = ["dyt · post", "dyt · pre", "layernorm · post"]
    assert pairs(make_report([tmp_path])) == [(name, "layernorm · pre") for name in others]
    at_each_placement = [("dyt · post", "layernorm · post"), ("dyt · pre", "layernorm · pre")]
    for words in ("norm=layernorm", "layernorm"):
        assert pairs(make_report([tmp_path], baseline=words)) == at_each_placement
    for words in ("dyt post", "dyt · post", "norm=dyt placement=post", "norm=dyt,placement=post"):
        assert given_baseline(read_study([tmp_path]), words) == {"norm": "dyt", "placement": "post"}


def test_a_baseline_may_be_the_name_of_an_arm_with_a_list(tmp_path: Path) -> None:
    for norm, betas in product(("dyt", "layernorm"), ([0.9, 0.95], [0.9, 0.99])):
        make_run(tmp_path, norm=norm, settings={"optim.betas": betas})
    study = read_study([tmp_path, tmp_path])
    assert len(study.runs) == 4  # each once
    assert all(arm.has(given_baseline(study, arm.name)) for arm in study.arms)
    assert given_baseline(study, "betas=[0.9, 0.95] dyt") == given_baseline(study, "dyt · betas=[0.9, 0.95]")


# ---- learning rates


def test_each_arm_is_compared_at_its_own_best_learning_rate(tmp_path: Path) -> None:
    finals = {("layernorm", 1e-3): 2.0, ("layernorm", 3e-3): 2.2, ("dyt", 1e-3): 2.1, ("dyt", 3e-3): 1.9}
    for seed in range(3):
        for (norm, lr), final in finals.items():
            make_run(tmp_path, norm=norm, lr=lr, seed=seed, final=final + 0.01 * seed)
        make_run(tmp_path, norm="dyt", lr=1e-2, seed=seed, status="diverged" if seed < 2 else "finished")
    report = make_report([tmp_path])
    assert pairs(report) == [("dyt", "layernorm")]
    assert report.family.differences[0].mean == pytest.approx(-0.1)
    assert CaveatKind.LEARNING_RATE in [caveat.kind for caveat in report.answer.caveats]
    rows = [(row["arm"], row["best rate"], row["lost or did not train"]) for row in table(report, "rates")]
    assert rows == [("dyt", "0.003", "2 at 0.01"), ("layernorm", "0.001", "0")]
    statuses = {arm.name: arm.statuses for arm in report.answer.arms}
    assert statuses["dyt · lr=0.01"] == {"diverged": 2, "finished": 1}


# ---- measures


def test_training_time_is_step_time_times_steps(tmp_path: Path) -> None:
    make_run(tmp_path, steps=100, log_every=10, step_ms=20.0)
    (run,) = runs_of(tmp_path)
    times = run.curves["time/step_ms"]
    assert times.steps.tolist() == [20, 30, 40, 50, 60, 70, 80, 90, 100]  # the first steps warm up
    by_hand = (20 * times.values[0] + 10 * times.values[1:].sum()) / 1e3
    assert seconds_at(run, np.array([100]))[0] == pytest.approx(by_hand)
    assert seconds_at(run, np.array([10]))[0] == pytest.approx(10 * times.values[0] / 1e3)


def test_time_to_target_is_from_where_the_loss_stays_at_or_below_it(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1, 3.0], "rmsnorm": [2.0, 3.0, 3.0], "prmsnorm": [3.0]})
    make_run(tmp_path, norm="dyt", status="running")
    report = make_report([tmp_path], target=2.5)
    times = report.runs.loc[report.runs["arm"] == "layernorm", "target_seconds"].tolist()
    for run, seconds in zip([run for run in runs_of(tmp_path) if "layernorm" in run.name][:2], times, strict=False):
        losses = run.curves["loss/val"]
        assert seconds == pytest.approx(seconds_at(run, losses.steps[losses.values <= 2.5][:1])[0])
    assert math.isnan(times[2])
    median = f"{max(times[:2]):.3g} s (2 of 3: not seed 2)"  # a run that never gets there counts as endless
    wanted = [median, "not reached (1 of 3: seed 0)", "not reached", "–"]
    assert [row["time to 2.5 nats"] for row in table(report, "arms")] == wanted


def test_a_loss_that_comes_back_has_not_reached_its_target(tmp_path: Path) -> None:
    """The target of each pair is where its own baseline ends on average."""
    for placement, shift in (("pre", 0.0), ("post", 0.5)):
        for seed, final in enumerate((2.0, 2.1)):
            how = {"placement": placement, "seed": seed, "settings": ALL_DATA}
            make_run(tmp_path, final=final + shift, **how)
            path = make_run(tmp_path, norm="rmsnorm", final=1.9 + shift, **how)
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            for line in lines:  # one evaluation is below the target, and the next one is not
                line |= {"loss/val": 1.0 if line["step"] == 20 else line["loss/val"]} if "loss/val" in line else {}
            (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = make_report([tmp_path], baseline="norm=layernorm")
    targets = report.runs.groupby("placement")["target"].unique()
    assert {name: own.tolist() for name, own in targets.items()} == {"post": [2.55], "pre": [2.05]}
    for _, row in report.runs[report.runs["norm"] == "rmsnorm"].iterrows():
        (run,) = [run for run in report.study.runs if run.name == row["run"]]
        losses = run.curves["loss/val"]
        step = losses.steps[losses.values <= row["target"]][1]
        assert losses.values[0] == 1.0 and row["target_seconds"] == pytest.approx(seconds_at(run, step))


@pytest.mark.parametrize(
    ("metric", "words", "unit"),
    [
        ("best", "best validation loss during training", "nats"),
        ("loss/train", "training loss", "nats"),
        ("act/stream03/rms", "act/stream03/rms", ""),
    ],
)
def test_any_logged_tag_may_judge(tmp_path: Path, metric: str, words: str, unit: str) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "dyt": WORSE}, probed=20)
    report = make_report([tmp_path], metric=metric)
    primary = report.family.differences[0].metric
    assert (primary.words, primary.unit) == (words, unit) and report.tables[0].frame.columns[2].startswith(words)
    assert verdicts(report) == {"dyt": Verdict.DIFFERENT if primary.judges else Verdict.SAME}
    with pytest.raises(UsageError, match=r"metric=act/stream03/rsm is .*: give one such as act/stream03/rms"):
        make_report([tmp_path], metric="act/stream03/rsm")
    with pytest.raises(UsageError, match=r"such as loss/val or best"):
        make_report([tmp_path], metric="foo")


def test_the_next_step_is_a_command_with_as_many_seeds_as_are_needed(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "rmsnorm": SAME})
    plan(tmp_path, "norm=layernorm,rmsnorm", "seed=range(0,5)")
    report = make_report([tmp_path], margin=0.001)
    (step,) = report.answer.next
    one = report.family.differences[0]
    more = seeds_needed(0.001, one.sd) - 5
    assert (step.kind, step.seeds, step.size) == (StepKind.ADD_SEEDS, more, 0.001)
    assert step.command == f"normbench sweep --resume {tmp_path} 'seed=range(5,{5 + more})' sweep.extend=true"
    assert f"{step.command}. Looking again after each" in report.next[0]
    (decided,) = make_report([tmp_path], margin=0.1).answer.next
    assert decided.kind == StepKind.OWN_RATES
    words = "norm=layernorm,rmsnorm 'seed=range(0,5)' name=made-each sweep.lr=each"
    assert decided.command == f"normbench sweep {words}"


@pytest.mark.parametrize(
    ("tie", "rest"),
    [
        ("data.batch_size=2,8;optim.lr=0.025,0.1", "data.batch_size=2,8"),
        ("model.depth=2,3;model.width=40,60;optim.lr=0.1,0.2", "'sweep.tie=model.depth=2,3;model.width=40,60'"),
        ("model.depth=2,3;model.width=40,60", "'sweep.tie=model.depth=2,3;model.width=40,60'"),
    ],
)
def test_a_learning_rate_of_its_own_leaves_a_tie(tie: str, rest: str, tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    plan(tmp_path, "norm=layernorm,dyt", f"sweep.tie={tie}")
    command = f"normbench sweep norm=layernorm,dyt {rest} name=made-each sweep.lr=each"
    assert own_rates(read_study([tmp_path])) == command


def test_a_command_is_printed_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "dyt": WORSE})
    tie = "sweep.tie=model.depth=2,3,4,6,10;model.width=40,60,80,120,200;model.heads=2,3,4,6,10"
    plan(tmp_path, "norm=layernorm,dyt", tie)
    monkeypatch.setenv("COLUMNS", "70")
    print_verdict(make_report([tmp_path]))
    told = capsys.readouterr().out
    assert tie in "".join(told.split()) and max(map(len, told.splitlines())) <= 70


def test_runs_of_several_lengths_have_no_command_that_doubles_all(tmp_path: Path) -> None:
    for steps, lr in ((20, 0.1), (20, 0.2), (30, 0.1)):
        make_run(tmp_path, steps=steps, lr=lr)
    plan(tmp_path, "optim.lr=0.1,0.2", "trainer.steps=20,30")
    study = read_study([tmp_path])
    assert confirm_elsewhere(study) == NextStep(StepKind.LONGER, "")
    alike = replace(study, arms=study.arms[:2])
    assert confirm_elsewhere(alike).command == "normbench sweep optim.lr=0.1,0.2 name=made-longer trainer.steps=40"


def test_loss_at_equal_time_is_taken_where_the_fastest_run_ends(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm", step_ms=10.0, settings=ALL_DATA)
    make_run(tmp_path, norm="rmsnorm", step_ms=20.0, settings=ALL_DATA)
    fast, slow = make_report([tmp_path]).runs["loss/val_at_equal_time"]
    assert fast == pytest.approx(2.0)
    half = runs_of(tmp_path)[1].curves["loss/val"]
    assert half.values[3] < slow < half.values[1]  # half-way: between steps 40 and 80


@pytest.mark.parametrize("metric", ["best", None])
def test_evaluations_of_a_few_batches_are_not_judged_with_the_one_of_all_data(
    tmp_path: Path, metric: str | None
) -> None:
    """All data are easier than the few batches, and one arm is at its best before the end."""
    evaluations = {"layernorm": {50: 2.3, 100: 2.2, 150: 2.1}, "rmsnorm": {50: 2.2, 100: 2.1, 150: 2.2}}
    for norm, ends in evaluations.items():
        for seed, more in enumerate((0.0, 0.01, -0.01)):
            path = make_run(tmp_path, norm=norm, seed=seed, steps=200, eval_every=300, final=1.9)
            lines = [{"step": step, "loss/val": loss + more} for step, loss in ends.items()]
            with open(path / "metrics.jsonl", "a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
    report = make_report([tmp_path], metric=metric)
    runs = report.runs.groupby("norm").mean(numeric_only=True)
    assert runs["best"].to_dict() == pytest.approx({"layernorm": 2.1, "rmsnorm": 2.1})
    assert runs["best_step"].to_dict() == {"layernorm": 150, "rmsnorm": 100}
    assert report.yardstick.targets["rmsnorm"] == pytest.approx(2.1) and report.yardstick.timed == "loss/val"
    assert runs["loss/val_at_equal_time"]["layernorm"] == pytest.approx(2.1, abs=0.01)
    assert [*runs["loss/val"]] == pytest.approx([1.9, 1.9])  # what judges by default is of all data
    assert report.family.differences[0].mean == pytest.approx(0) and not report.family.differences[0].real


ENDED_AT_40, ENDED_AT_60 = ({"steps": steps, "eval_batches": 8} for steps in (40, 60))


@pytest.mark.parametrize(
    ("session", "left"),
    [
        ({"step": 40}, [20, 60, 80]),  # as older versions have noted it
        ({"step": 40, "extended": [ENDED_AT_40]}, [20, 60, 80]),
        ({"step": 60, "extended": [ENDED_AT_40, ENDED_AT_60]}, [20, 80]),
        ({"step": 60, "extended": [{"steps": 30, "eval_batches": 2}, ENDED_AT_60]}, [40, 80]),  # others at first
        ({"step": 0, "extended": []}, [20, 40, 60, 80]),
    ],
)  # fmt: skip
def test_a_run_that_extends_others_leaves_out_how_those_ended(
    tmp_path: Path, session: dict[str, Any], left: list[int]
) -> None:
    make_run(tmp_path, session=session, settings={"trainer.eval_batches": 8})
    assert comparable(runs_of(tmp_path)[0], "loss/val").steps.tolist() == left


def test_a_run_judged_by_all_data_leaves_out_where_the_one_before_was_judged_by_some(tmp_path: Path) -> None:
    make_run(tmp_path, session={"step": 60, "extended": [ENDED_AT_60]}, settings=ALL_DATA)
    assert comparable(runs_of(tmp_path)[0], "loss/val").steps.tolist() == [60, 80, 100]


def test_the_best_of_one_evaluation_is_refused(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "dyt": WORSE}, eval_every=1_000)
    with pytest.raises(UsageError, match="needs evaluations on the way"):
        make_report([tmp_path], metric="best")


def test_the_best_value_comes_from_the_curve_and_the_gap_from_the_end(tmp_path: Path) -> None:
    path = make_run(tmp_path, settings=ALL_DATA)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 100, "loss/val": 1.25}\n')
    row = make_report([tmp_path]).runs.iloc[0]
    assert (row["best"], row["best_step"]) == (1.25, 100)
    assert row["gap"] == pytest.approx(row["loss/val"] - row["loss/train"])
    make_run(tmp_path / "smoothed", settings={"data.label_smoothing": 0.1})
    assert math.isnan(make_report([tmp_path / "smoothed"]).runs.iloc[0]["gap"])


def test_activations_are_the_last_ones_of_each_block_over_seeds(tmp_path: Path) -> None:
    """With a second part in a block: gradients add up to the norm of the whole, all else is averaged."""
    make_run(tmp_path, probed=20)
    with open(make_run(tmp_path, seed=1, probed=20) / "metrics.jsonl", "a") as file:
        file.write('{"step": 101, "act/stream00/rms": 4.0, "grad/block00.attention/norm": 0.3}\n')
    make_run(tmp_path, seed=2, status="diverged", probed=20)
    report = make_report([tmp_path])
    first = report.blocks.iloc[0]
    assert (len(report.blocks), first["seeds"], first["stream RMS"]) == (4, 2, 2.5)
    assert first["gradient norm"] == pytest.approx((0.1 + math.hypot(0.1, 0.3)) / 2)
    (row,) = table(report, "activations")
    wanted = {"n": "2", "blocks": "4", "stream RMS": "2.50 → 3.00 → 4.00", "mean γ": "1.01 → 1.01 → 1.01"}
    assert wanted.items() <= row.items() and "saturated" not in row


def test_blocks_are_shown_where_arms_differ_in_what_is_drawn(tmp_path: Path) -> None:
    drawings = {"pre": "block00: pre\nx ─┬─ <norm> ─ mlp ─⊕─→ x", "post": "block00: post\nx ─┬─ mlp ─⊕─ <norm> ─→ x"}
    for placement, drawing in drawings.items():
        for seed in range(2):
            make_run(tmp_path / "placements", placement=placement, seed=seed, session={"blocks": drawing})
    make_run(tmp_path / "placements", placement="sandwich")  # of a version that drew nothing
    report = make_report([tmp_path / "placements"])
    assert {one.arms: one.text for one in draw_arms(report.study)} == {(arm,): text for arm, text in drawings.items()}
    pages = fill_pages(report, [], [])
    for drawing in drawings.values():
        assert str(escape(drawing)) in pages["report.html"]
        assert all(f"    {line}\n" in pages["report.md"] for line in drawing.splitlines())
    for norm in ("layernorm", "rmsnorm"):
        make_run(tmp_path / "norms", norm=norm, session={"blocks": norm})
    assert draw_arms(read_study([tmp_path / "norms"])) == []
