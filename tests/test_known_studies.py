"""What a report finds of studies whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_studies import STUDIES
from made_runs import make_report

from normbench.results.answer import Answer, ReasonKind, StepKind
from normbench.results.caveat import CaveatKind, Evidence
from normbench.results.result import Difference, EffectKind
from normbench.results.rules import Verdict
from normbench.show.report import Report, save

CALLED = (Verdict.DIFFERENT, Verdict.POSSIBLE)


@pytest.fixture
def report(tmp_path: Path, request: pytest.FixtureRequest) -> Report:
    """A report whose answer comes back from JSON as it is."""
    STUDIES[request.param](tmp_path)
    made = make_report([tmp_path])
    assert Answer.from_json(made.answer.to_json()) == made.answer
    for caveat in made.answer.caveats:
        assert caveat.found and all(one.arms or one.runs for one in caveat.found)
    return made


@pytest.fixture
def answer(report: Report) -> Answer:
    return report.answer


def study(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("report", [name], indirect=True)


def only_difference(answer: Answer) -> Difference:
    (one,) = answer.differences
    return one


def evidence_of(answer: Answer, kind: CaveatKind) -> tuple[Evidence, ...]:
    (caveat,) = [one for one in answer.caveats if one.kind == kind]
    return caveat.found


def is_any_called(answer: Answer) -> bool:
    """Say whether any arm is called better or worse than its baseline, or may be."""
    return any(one.verdict in CALLED for one in answer.differences)


@study("true_difference")
def test_a_true_difference_is_called_one_and_its_interval_holds_it(answer: Answer) -> None:
    one = only_difference(answer)
    assert one.verdict == Verdict.DIFFERENT and one.better
    assert (one.arm, one.baseline) == ("rmsnorm", "layernorm")
    assert one.interval and one.interval.lower <= -0.08 <= one.interval.upper < 0


@study("no_difference")
def test_no_difference_is_no_difference_and_has_a_bound(answer: Answer) -> None:
    assert [one.verdict for one in answer.differences] == [Verdict.ALIKE] * 2
    assert all(one.interval and 0 < one.interval.reach < 0.05 for one in answer.differences)


@study("never_trains")
def test_an_arm_that_never_trains_is_said_to(report: Report, answer: Answer) -> None:
    assert report.verdict[0].text.startswith("dyt did not train") and "3.309" in report.verdict[0].text
    assert [arm.name for arm in answer.arms if not arm.trained] == ["dyt"]
    assert only_difference(answer).verdict == Verdict.UNTRAINED
    (cause,) = answer.causes
    reasons = {reason.kind: reason.evidence for reason in cause.reasons}
    assert reasons[ReasonKind.SMALL_STREAM]["entering"] == pytest.approx(0.03)
    assert ReasonKind.VANISHING in reasons
    assert answer.next[0].kind == StepKind.MAKE_TRAIN


@study("survivors")
def test_an_arm_that_lost_its_worst_seeds_is_not_better(answer: Answer) -> None:
    one = only_difference(answer)
    assert one.verdict == Verdict.FLATTERED and one.lost == (2, 0)
    (evidence,) = evidence_of(answer, CaveatKind.LOST_RUNS)
    assert (evidence.value, evidence.arms, evidence.numbers) == ("diverged", ("rmsnorm",), {"lost": 2, "runs": 5})


@study("batch_sizes")
def test_batch_size_is_a_factor_though_the_rate_follows_it(answer: Answer) -> None:
    assert [factor.key for factor in answer.question.varied] == ["norm", "data.batch_size"]
    (effect,) = [one for one in answer.effects if one.factor == "data.batch_size"]
    assert effect.kind == EffectKind.CHANGE and effect.real
    assert abs(effect.mean) == pytest.approx(16.7, abs=1.0)
    called = [(one.arm, one.baseline, one.better) for one in answer.differences if one.verdict == Verdict.DIFFERENT]
    assert called == [("groupnorm · batch_size=2", "batchnorm · batch_size=2", True)]
    (rate,) = [one for one in answer.question.held if one.what == "rate"]
    assert (rate.values, rate.goes_with) == (("0.0000625", "0.001"), "data.batch_size")


@study("interaction")
def test_a_difference_of_differences_is_the_answer(report: Report, answer: Answer) -> None:
    (effect,) = answer.effects
    assert (effect.arm, effect.baseline, effect.factor) == ("post", "pre", "schedule.warmup")
    assert effect.real and effect.mean == pytest.approx(-0.9, abs=0.03)
    assert effect.interval and effect.interval.lower <= -0.9 <= effect.interval.upper
    assert report.verdict[0].table == "designs"


@study("no_interaction")
def test_no_difference_of_differences_is_found_where_there_is_none(report: Report, answer: Answer) -> None:
    (effect,) = answer.effects
    assert effect.p is not None and effect.p > 0.05 and not effect.real
    assert report.verdict[0].table == "designs" and not is_any_called(answer)


@study("skewed")
def test_an_outlier_is_said_beside_a_test_of_signed_ranks(answer: Answer) -> None:
    (evidence,) = evidence_of(answer, CaveatKind.SKEWED)
    assert evidence.arms == ("rmsnorm", "layernorm") and evidence.numbers["ranked_p"] > 0.01


@study("unequal_rates")
def test_more_rates_to_choose_from_are_no_advantage(answer: Answer) -> None:
    assert not is_any_called(answer)
    choices = [one.found for one in answer.caveats if one.kind == CaveatKind.LEARNING_RATE]
    numbers = {evidence.arms[0]: evidence.numbers.get("rates") for found in choices for evidence in found}
    assert numbers == {"rmsnorm": 7, "layernorm": 2}


@study("identical_step_times")
def test_identical_work_has_one_step_time(report: Report) -> None:
    (table,) = [table for table in report.tables if table.key == "step-times"]
    low, high = map(number, table.frame["95 % interval"][0].split(" to "))
    assert low <= 1 <= high


@pytest.mark.slow
@study("cut_short")
def test_a_sweep_that_was_cut_short_says_how_much_it_has(report: Report, answer: Answer) -> None:
    one = only_difference(answer)
    assert one.verdict == Verdict.DIFFERENT and one.better and (one.n, one.tried) == (3, 5)
    assert evidence_of(answer, CaveatKind.UNFINISHED)[0].arms == ("rmsnorm",)
    folder = report.study.folders[0]
    command = f"normbench sweep --resume {folder}"
    assert (answer.next[0].kind, answer.next[0].command) == (StepKind.FINISH, command)
    page = save(report, folder / "report").read_text()
    assert f"<code>{command}</code>." in page


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))
