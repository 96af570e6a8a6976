"""What a report says: measures, differences, the verdict and what is unfair, against figures worked out here."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study
from scipy import stats

from normbench.analysis.comparisons import given_baseline
from normbench.analysis.measures import loss_on, rounded_up, seconds_at, training_time
from normbench.analysis.records import read_study
from normbench.analysis.report import Report, make_report
from normbench.errors import UsageError

LAYERNORM = [2.00, 2.10, 2.05, 1.98, 2.04]
SAME = [2.003, 2.098, 2.051, 1.979, 2.041]  # the same but for a few thousandths
WORSE = [2.11, 2.20, 2.16, 2.07, 2.15]


def text_of(report: Report) -> str:
    return "\n".join(sentence.text for sentence in report.verdict)


def topics(report: Report) -> dict[str, str]:
    return {finding.topic: finding.text for finding in report.findings}


def table(report: Report, key: str) -> list[dict[str, str]]:
    (found,) = [table for table in report.tables if table.key == key]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


# ---- differences


def test_differences_are_the_paired_t_test_of_scipy_and_holm_by_hand(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "rmsnorm": SAME, "dyt": WORSE})
    dyt, rmsnorm = make_report([tmp_path]).comparisons
    assert (dyt.arm.name, dyt.baseline.name, rmsnorm.arm.name) == ("dyt", "layernorm", "rmsnorm")
    p = {}
    for one, losses in ((dyt, WORSE), (rmsnorm, SAME)):
        test = stats.ttest_rel(losses, LAYERNORM)
        interval = test.confidence_interval()
        assert one.paired is not None and one.interval is not None
        assert one.paired.mean == pytest.approx(np.mean(losses) - np.mean(LAYERNORM))
        assert (one.interval.lower, one.interval.upper) == pytest.approx((interval.low, interval.high))
        p[one.arm.name] = test.pvalue
    assert dyt.corrected == pytest.approx(2 * p["dyt"])  # the smallest of two
    assert rmsnorm.corrected == pytest.approx(max(p["rmsnorm"], 2 * p["dyt"]))


def test_the_verdict_calls_a_planted_difference_and_not_one_that_is_none(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "rmsnorm": SAME, "dyt": WORSE})
    text = text_of(make_report([tmp_path]))
    assert "dyt is worse than layernorm: its validation loss is 0.104 nats higher (95 %: +0.092 to +0.116; " in text
    assert "rmsnorm and layernorm do not differ by more than 0.00" in text
    assert "rmsnorm is" not in text


def test_what_is_said_not_to_differ_by_more_holds_the_whole_interval(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": LAYERNORM, "rmsnorm": SAME})
    report = make_report([tmp_path])
    (one,) = report.comparisons
    interval = stats.ttest_rel(SAME, LAYERNORM).confidence_interval()
    bound = float(text_of(report).partition("by more than ")[2].split()[0])
    reach = max(abs(interval.low), abs(interval.high))
    assert reach <= bound <= reach * 1.1
    assert one.detectable is not None
    assert table(report, "differences")[0]["smallest to be shown"] == f"{rounded_up(one.detectable, 2):g}"


def test_one_seed_says_nothing_about_differences(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0], "rmsnorm": [1.5]})
    report = make_report([tmp_path])
    assert "With one seed for each arm nothing can be said about differences: add at least 2 seeds" in text_of(report)
    (row,) = table(report, "differences")
    assert row == {"arm": "rmsnorm", "seeds": "1", "difference, nats": "−0.50", "found": "too few seeds"}


def test_one_arm_is_compared_with_nothing(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1]})
    report = make_report([tmp_path])
    assert "Nothing is compared: there is one arm." in text_of(report)
    assert [table.key for table in report.tables] == ["arms", "costs"]


def test_classifiers_are_judged_by_accuracy_and_then_by_loss(tmp_path: Path) -> None:
    for norm, shift in (("layernorm", 0.0), ("rmsnorm", 0.05)):
        for seed, accuracy in enumerate((0.80, 0.82, 0.81)):
            noise = 0.001 * seed * (shift > 0)
            how = {"step_ms": 12 + seed + noise if shift else 10 + seed, "accuracy": accuracy + shift + noise}
            make_run(tmp_path, norm=norm, seed=seed, kind="image_classification", **how)
    report = make_report([tmp_path])
    assert "rmsnorm is better than layernorm: its validation accuracy is 5.10 percentage points higher" in text_of(
        report
    )
    assert [table.key for table in report.tables] == ["arms", "differences", "differences-loss", "costs", "step-times"]


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


def test_test_data_judge_where_every_finished_run_has_them(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1]}, test=True)
    assert make_report([tmp_path]).by.primary.words == "test loss"
    make_run(tmp_path, norm="rmsnorm")
    assert make_report([tmp_path]).by.primary.words == "validation loss"


# ---- baselines


def grid(folder: Path) -> None:
    for norm in ("dyt", "layernorm"):
        for placement in ("pre", "post"):
            for seed in range(2):
                make_run(folder, norm=norm, placement=placement, seed=seed)


def pairs(report: Report) -> list[tuple[str, str]]:
    return [(one.arm.name, one.baseline.name) for one in report.comparisons]


def test_by_default_all_arms_are_compared_with_layernorm_and_pre(tmp_path: Path) -> None:
    grid(tmp_path)
    others = ["dyt · post", "dyt · pre", "layernorm · post"]
    assert pairs(make_report([tmp_path])) == [(name, "layernorm · pre") for name in others]


def test_a_baseline_that_names_the_norm_compares_at_each_placement(tmp_path: Path) -> None:
    grid(tmp_path)
    wanted = [("dyt · post", "layernorm · post"), ("dyt · pre", "layernorm · pre")]
    for words in ("norm=layernorm", "layernorm"):
        assert pairs(make_report([tmp_path], baseline=words)) == wanted


@pytest.mark.parametrize("words", ["dyt post", "dyt · post", "norm=dyt placement=post", "norm=dyt,placement=post"])
def test_a_baseline_may_name_any_arm(tmp_path: Path, words: str) -> None:
    grid(tmp_path)
    study = read_study([tmp_path])
    assert given_baseline(study, words).name() == "dyt · post"


def test_a_baseline_may_be_the_name_of_an_arm_with_a_list(tmp_path: Path) -> None:
    for norm in ("dyt", "layernorm"):
        for betas in ([0.9, 0.95], [0.9, 0.99]):
            make_run(tmp_path, norm=norm, settings={"optim.betas": betas})
    study = read_study([tmp_path, tmp_path])
    assert len(study.runs) == 4  # each once
    for arm in study.arms:
        assert given_baseline(study, arm.name).has(arm)
    assert given_baseline(study, "betas=[0.9, 0.95] dyt") == given_baseline(study, "dyt · betas=[0.9, 0.95]")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("norm=layernom", r"--baseline norm=layernom is no arm: did you mean layernorm\? allowed are dyt, layernorm"),
        ("layernom", r"did you mean layernorm\?"),
        ("nrm=layernorm", r"did you mean norm\? allowed are norm, placement"),
        ("norm=dyt placement=deep", r"placement=deep is no arm: .*allowed are post, pre"),
    ],
)
def test_a_misspelt_baseline_gets_did_you_mean(tmp_path: Path, words: str, complaint: str) -> None:
    grid(tmp_path)
    with pytest.raises(UsageError, match=complaint):
        make_report([tmp_path], baseline=words)


# ---- learning rates


def rates(folder: Path) -> None:
    finals = {("layernorm", 1e-3): 2.0, ("layernorm", 3e-3): 2.2, ("post_rms", 1e-3): 2.1, ("post_rms", 3e-3): 1.9}
    for (norm, lr), final in finals.items():
        for seed in range(3):
            make_run(folder, norm=norm, lr=lr, seed=seed, final=final + 0.01 * seed)
    for seed in range(3):
        status = "diverged" if seed < 2 else "finished"
        make_run(folder, norm="post_rms", lr=1e-2, seed=seed, status=status, message="not finite: block00.mlp")


def test_each_arm_is_compared_at_its_own_best_learning_rate(tmp_path: Path) -> None:
    rates(tmp_path)
    report = make_report([tmp_path])
    (one,) = report.comparisons
    assert (one.arm.name, one.baseline.name) == ("post_rms", "layernorm")
    assert one.paired is not None and one.paired.mean == pytest.approx(-0.1)
    assert "learning rate" in topics(report)
    assert [(row["arm"], row["best rate"], row["lost runs"]) for row in table(report, "rates")] == [
        ("layernorm", "0.001", "0"),
        ("post_rms", "0.003", "2 at 0.01"),
    ]


def test_divergence_is_told_from_the_lowest_rate_at_which_there_is_one(tmp_path: Path) -> None:
    rates(tmp_path)
    assert "post_rms diverged in 2 of 3 runs at lr ≥ 0.01." in text_of(make_report([tmp_path]))


def test_learning_rates_alone_are_compared_themselves(tmp_path: Path) -> None:
    for lr, final in ((1e-3, 2.0), (3e-3, 2.5)):
        for seed in range(4):
            make_run(tmp_path, lr=lr, seed=seed, final=final + 0.01 * seed + 0.001 * seed**2 * (lr > 1e-3))
    assert "lr=0.003 is worse than lr=0.001" in text_of(make_report([tmp_path]))


# ---- measures


def test_training_time_is_step_time_times_steps(tmp_path: Path) -> None:
    make_run(tmp_path, steps=100, log_every=10, step_ms=20.0)
    (run,) = read_study([tmp_path]).runs
    times = run.curves["time/step_ms"]
    assert times.steps.tolist() == [20, 30, 40, 50, 60, 70, 80, 90, 100]  # the first steps warm up
    by_hand = (20 * times.values[0] + 10 * times.values[1:].sum()) / 1e3
    assert training_time(run).values[-1] == pytest.approx(by_hand)
    assert seconds_at(run, np.array([10]))[0] == pytest.approx(10 * times.values[0] / 1e3)


def test_time_to_target_is_that_of_the_first_evaluation_at_or_below_it(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm", step_ms=10.0)
    make_run(tmp_path, norm="rmsnorm", step_ms=30.0, final=3.0)
    make_run(tmp_path, norm="dyt", status="running")
    report = make_report([tmp_path], target=2.5)
    (fast,), (slow,) = report.measures["layernorm"], report.measures["rmsnorm"]
    losses = fast.run.curves["loss/val"]
    step = losses.steps[losses.values <= 2.5][0]
    assert fast.target_seconds == pytest.approx(seconds_at(fast.run, np.array([step]))[0])
    assert math.isnan(slow.target_seconds)
    assert [row["time to 2.5 nats"] for row in table(report, "arms")[::2]] == ["–", "not reached"]
    assert "time to 1.23456 nats" in table(make_report([tmp_path], target=1.23456), "arms")[0]


def test_runs_that_end_above_the_target_count_as_never(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1, 3.0], "rmsnorm": [2.0, 3.0, 3.0]})
    report = make_report([tmp_path], target=2.5)
    first, second = (row["time to 2.5 nats"] for row in table(report, "arms"))
    times = [one.target_seconds for one in report.measures["layernorm"][:2]]
    assert first == f"{max(times):.3g} s (2 of 3)" and second == "not reached (1 of 3)"


def test_intervals_of_accuracies_end_where_accuracies_do(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((1.0, 0.99, 0.98)):
        make_run(tmp_path, seed=seed, kind="image_classification", accuracy=accuracy)
    (row,) = make_report([tmp_path]).tables[0].rows
    assert row[:4] == ("all runs", "3", "99.00", "96.51 to 100.00")


def test_loss_at_equal_time_is_taken_where_the_fastest_run_ends(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm", step_ms=10.0)
    make_run(tmp_path, norm="rmsnorm", step_ms=20.0)
    report = make_report([tmp_path])
    (fast,), (slow,) = report.measures["layernorm"], report.measures["rmsnorm"]
    assert fast.timed_loss == pytest.approx(fast.final(loss_on("val")))
    half = slow.run.curves["loss/val"]
    assert half.values[3] < slow.timed_loss < half.values[1]  # half-way: between steps 40 and 80


def test_the_best_value_comes_from_the_curve_and_the_gap_from_the_end(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 100, "loss/val": 1.25}\n')
    (one,) = make_report([tmp_path]).measures["all runs"]
    assert one.best == (1.25, 100)
    metrics = one.run.summary["metrics"]
    assert one.gap == pytest.approx(metrics["loss/val"] - metrics["loss/train"])


def test_counts_of_what_did_not_finish(tmp_path: Path) -> None:
    for seed, status in enumerate(("finished", "diverged", "failed", "out_of_memory", "running")):
        make_run(tmp_path, seed=seed, status=status, message="why")
    report = make_report([tmp_path])
    (row,) = table(report, "costs")
    counted = [row[name] for name in ("diverged", "out of memory", "failed", "unfinished")]
    assert counted == ["1 of 5"] * 4
    assert [row["status"] for row in table(report, "lost")] == ["diverged", "failed", "out of memory", "running"]
    assert "1 run ran out of memory: all runs." in text_of(report)


def test_a_run_without_memory_or_times_has_none(tmp_path: Path) -> None:
    make_run(tmp_path, summary={"peak_memory_bytes": None, "step_time": {"median_ms": None, "p90_ms": None, "n": 1}})
    (row,) = table(make_report([tmp_path]), "costs")
    assert "steps timed" in row and not {"peak memory, MiB", "step time, ms"} & row.keys()  # as no arm has one
