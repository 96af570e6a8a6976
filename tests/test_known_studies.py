"""What the first screen of a report says of studies whose answer is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from known_studies import STUDIES
from made_runs import make_report

from normbench.analysis.answers import Answer
from normbench.analysis.report import Report, save
from normbench.analysis.sentences import say_question

BETTER = r"is (better|worse) than"


@pytest.fixture
def answer(tmp_path: Path, request: pytest.FixtureRequest) -> Report:
    """A report whose answer comes back from JSON as it is."""
    STUDIES[request.param](tmp_path)
    report = make_report([tmp_path])
    assert Answer.from_json(report.answer.to_json()) == report.answer
    return report


def said(report: Report) -> str:
    return "\n".join(sentence for sentence, _ in report.verdict)


def caveats(report: Report) -> str:
    return "\n".join(caveat.text for caveat in report.answer.caveats)


def study(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answer", [name], indirect=True)


@study("true_difference")
def test_a_true_difference_is_called_one_and_its_interval_holds_it(answer: Report) -> None:
    words = said(answer)
    assert "rmsnorm is better than layernorm" in words
    low, high = map(number, re.findall(r"95 %: (\S+) to (\S+);", words)[0])
    assert low <= -0.08 <= high < 0


@study("no_difference")
def test_no_difference_is_no_difference_and_has_a_bound(answer: Report) -> None:
    words = said(answer)
    assert not re.search(BETTER, words)
    assert all(0 < float(bound) < 0.05 for bound in re.findall(r"by more than (\S+) nats", words))
    assert words.count("by more than") == 2


@study("never_trains")
def test_an_arm_that_never_trains_is_said_to(answer: Report) -> None:
    words = said(answer)
    assert words.startswith("dyt did not train") and "3.309" in words
    assert not re.search(BETTER, words)
    assert "RMS 0.03" in "\n".join(answer.why) and "gradients vanish" in "\n".join(answer.why)
    assert "train" in answer.next[0]


@study("survivors")
def test_an_arm_that_lost_its_worst_seeds_is_not_better(answer: Report) -> None:
    words = said(answer)
    assert not re.search(BETTER, words)
    assert "rmsnorm diverged in 2 of 5 runs" in words and "2 of 5" in caveats(answer)


@study("batch_sizes")
def test_batch_size_is_a_factor_though_the_rate_follows_it(answer: Report) -> None:
    words = said(answer)
    assert answer.study.varied == ("norm", "data.batch_size")
    (effect,) = re.findall(r"batch_size=\S+ instead of \S+ .* (\d+\.\d+) percentage points", words.split("\n")[0])[:1]
    assert float(effect) == pytest.approx(16.7, abs=1.0)
    assert "groupnorm · batch_size=2 is better than batchnorm · batch_size=2" in words
    assert not re.search(r"batch_size=32 is", words)
    _, held = say_question(answer.answer.question)
    assert "learning rate" not in held.partition(".")[0]
    assert "Goes with data.batch_size: a learning rate of 0.0000625, 0.001." in held


@study("interaction")
def test_a_difference_of_differences_is_the_answer(answer: Report) -> None:
    first = said(answer).split("\n")[0]
    effect = re.match(r"warmup=50 instead of 0 helps post by (\S+) nats more than pre \(95 %: (\S+) to (\S+);", first)
    assert effect
    found, low, high = map(float, effect.groups())
    assert found == pytest.approx(0.9, abs=0.03) and low <= 0.9 <= high


@study("no_interaction")
def test_no_difference_of_differences_is_found_where_there_is_none(answer: Report) -> None:
    words = said(answer)
    assert words.startswith("warmup=50 instead of 0: no difference in its effect was found between pre and post")
    assert not re.search(BETTER, words)


@study("skewed")
def test_an_outlier_is_said_beside_a_test_of_signed_ranks(answer: Report) -> None:
    words = caveats(answer)
    assert "outlier" in words and "signed ranks" in words


@study("unequal_rates")
def test_more_rates_to_choose_from_are_no_advantage(answer: Report) -> None:
    assert not re.search(BETTER, said(answer))
    assert "7 learning rates to choose from and layernorm 2" in caveats(answer)


@study("identical_step_times")
def test_identical_work_has_one_step_time(answer: Report) -> None:
    (table,) = [table for table in answer.tables if table.key == "step-times"]
    low, high = map(number, table.frame["95 % interval"][0].split(" to "))
    assert low <= 1 <= high


@pytest.mark.slow
@study("cut_short")
def test_a_sweep_that_was_cut_short_says_how_much_it_has(answer: Report) -> None:
    assert "rmsnorm is better than layernorm" in said(answer) and "3 of 5 seeds" in said(answer)
    assert "interrupted" in caveats(answer)
    folder = answer.study.folders[0]
    assert answer.next[0] == f"Finish the runs that have not ended: normbench sweep --resume {folder}."
    page = save(answer, folder / "report").read_text()
    assert f"<code>normbench sweep --resume {folder}</code>." in page


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))
