"""What is said to make a comparison unfair, from runs that differ in one thing."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_report, make_run, make_study, plan, read_study

from normbench.evidence import study as studies
from normbench.evidence.facts import given_settings
from normbench.evidence.study import read_studies
from normbench.record.digests import write_with_digests
from normbench.record.files import read_json
from normbench.record.forms import CHOICE_FILE
from normbench.results.answer import StepKind
from normbench.results.caveat import Caveat, CaveatKind
from normbench.results.caveats import Case, find_caveats, records_of
from normbench.results.recorded_facts import SHOULD_BE_ALIKE
from normbench.tell.methods import write_methods


def beside_rates(folder: Path) -> list[Caveat]:
    """Return what is found beside one learning rate for all arms."""
    return [one for one in find_caveats(Case(read_study([folder]))) if one.kind != CaveatKind.LEARNING_RATE]


def caveats(folder: Path) -> dict[CaveatKind, Caveat]:
    """Return what a report finds, the last of each kind."""
    return {caveat.kind: caveat for caveat in make_report([folder]).answer.caveats}


def values(caveat: Caveat) -> dict[str, tuple[str, ...]]:
    """Return the arms that have each value."""
    return {one.value: one.arms for one in caveat.found}


LAYERNORM, RMSNORM = ("layernorm",), ("rmsnorm",)


@pytest.mark.parametrize(
    ("other", "kind", "found"),
    [
        ({"steps": 200}, CaveatKind.UNEQUAL_STEPS, {"100": LAYERNORM, "200": RMSNORM}),
        ({"data": {"fingerprint": "a" * 64}}, CaveatKind.DATA, {"f" * 8: LAYERNORM, "a" * 8: RMSNORM}),
        (
            {"session": {"packages": {"torch": "2.6.0", "numpy": "2.4.6"}}},
            CaveatKind.VERSIONS,
            {"2.13.0": LAYERNORM, "2.6.0": RMSNORM},
        ),
        ({"session": {"commit": "1" * 40 + "+changes"}}, CaveatKind.VERSIONS, {"11111111+changes": RMSNORM}),
        (
            {"ledger": {"implementation": "torch.nn.functional.rms_norm"}},
            CaveatKind.LEDGER,
            {"torch's operator": RMSNORM},
        ),
        ({"ledger": {"parameters": {"total": 7}}}, CaveatKind.LEDGER, {"802,304": LAYERNORM, "7": RMSNORM}),
        ({"lr": 3e-3}, CaveatKind.SETTINGS, {"0.001": LAYERNORM, "0.003": RMSNORM}),
        ({"summary": {"leak": "it does"}}, CaveatKind.LEAK, {"": RMSNORM}),
        (
            {"summary": {"norm_facts": {"crosses_samples": True}}, "settings": {"data.batch_size": 1}},
            CaveatKind.BATCH_OF_ONE,
            {"": RMSNORM},
        ),
        ({"status": "running"}, CaveatKind.UNFINISHED, {"": RMSNORM}),
    ],
)
def test_what_makes_it_unfair_is_found_and_said(
    tmp_path: Path, other: dict[str, Any], kind: CaveatKind, found: dict[str, tuple[str, ...]]
) -> None:
    make_run(tmp_path, norm="layernorm")
    make_run(tmp_path, norm="rmsnorm", **other)
    caveat = caveats(tmp_path)[kind]
    assert found.items() <= values(caveat).items()
    for value, arms in found.items():
        assert value in caveat.text and all(arm in caveat.text for arm in arms)


def test_seeds_that_an_arm_lacks_are_named(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    make_run(tmp_path, norm="rmsnorm", seed=1)
    lacking = [one for one in make_report([tmp_path]).answer.caveats if one.kind == CaveatKind.MISSING_SEEDS]
    assert [(one.found[0].arms, one.found[0].seeds) for one in lacking] == [(LAYERNORM, (1,)), (RMSNORM, (0,))]


@pytest.mark.parametrize(
    "other",
    [
        {"norm": "rmsnorm", "ledger": {"eps": None, "implementation": None}},  # a norm may have none
        {"settings": {"model.depth": 2}, "ledger": {"parameters": {"total": 7}}},
        {"settings": {"trainer.decay_norms": True}, "ledger": {"norm_parameters_decayed": 9}},
        {"steps": 200},
    ],
)
def test_a_fair_comparison_has_no_caveats(tmp_path: Path, other: dict[str, Any]) -> None:
    make_run(tmp_path)
    make_run(tmp_path, **other)
    assert beside_rates(tmp_path) == []


def make_run_of(folder: Path, scheme: str, eps: float, word: str = "", norm: str = "layernorm") -> None:
    """Make a run of a scheme. word: that its command has besides."""
    choices = {"scheme": scheme, "norm": norm, "placement": "pre", "model": "nano", "data": "pydocs"}
    session = {"choices": choices, "command": f"normbench train scheme={scheme} {word}".strip()}
    make_run(folder, norm=norm, settings={"norm.eps": eps}, ledger={"eps": eps}, session=session)


@pytest.mark.parametrize(
    ("others", "is_fair"),
    [
        ([("llama", 1e-6)], True),
        ([("llama", 1e-6, "norm.eps=1e-6")], False),
        ([("gpt2", 1e-6, "norm=rmsnorm", "rmsnorm"), ("llama", 1e-6)], False),
    ],
    ids=["set by the scheme", "set by hand", "differs within a scheme"],
)
def test_what_a_scheme_sets_is_a_part_of_what_is_compared(
    tmp_path: Path, others: list[tuple[Any, ...]], is_fair: bool
) -> None:
    make_run_of(tmp_path, "gpt2", 1e-5)
    for other in others:
        make_run_of(tmp_path, *other)
    assert [one.kind for one in beside_rates(tmp_path)] == ([] if is_fair else [CaveatKind.LEDGER])
    assert make_report([tmp_path]).answer.question.of_schemes == (("eps",) if is_fair else ())


def test_several_runs_of_one_arm_and_seed_are_named_and_count_by_their_mean(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.1]})
    make_run(tmp_path, norm="rmsnorm", seed=1, final=2.3, name="again")
    assert caveats(tmp_path)[CaveatKind.DOUBLES].found[0].arms == RMSNORM
    (one,) = make_report([tmp_path]).family.differences
    assert one.values == pytest.approx((0.0, 0.1))


def test_every_rule_asks_for_what_runs_have(tmp_path: Path) -> None:
    make_run(tmp_path)
    (record,) = records_of(read_study([tmp_path]))
    unknown = [rule.sentence for rule in SHOULD_BE_ALIKE if rule.read(record) is None]
    assert len(unknown) == 2 and "accelerators" in unknown[0] and "residual branches are scaled" in unknown[1]


def test_what_an_earlier_session_had_counts_too(tmp_path: Path) -> None:
    file = make_run(tmp_path) / "environment.json"
    (latest,) = json.loads(file.read_text())["sessions"]
    before = {**latest, "threads": 8, "packages": {"torch": "2.6.0"}}
    file.write_text(json.dumps({"sessions": [before, latest]}))
    found = caveats(tmp_path)
    every = ("all runs",)
    assert values(found[CaveatKind.THREADS]) == {"8": every, "1": every}
    assert values(found[CaveatKind.VERSIONS]) == {"2.6.0": every, "2.13.0": every}


@pytest.mark.parametrize("given", [False, True])
def test_what_an_option_sets_is_no_difference_and_what_a_person_sets_is(tmp_path: Path, given: bool) -> None:
    for model, width in (("nano", 128), ("small", 64)):
        command = f"normbench train model={model}" + (f" model.width={width}" if given else "")
        path = make_run(tmp_path, settings={"model.width": width}, session={"command": command})
        file = path / "environment.json"
        file.write_text(file.read_text().replace('"model": "nano"', f'"model": "{model}"'))
    found = beside_rates(tmp_path)
    assert [one.kind for one in found] == ([CaveatKind.SETTINGS] if given else [])
    assert [values(one) for one in found] == ([{"128": ("nano",), "64": ("small",)}] if given else [])


def test_seeds_that_took_unlike_times_are_named_and_not_serious(tmp_path: Path) -> None:
    for norm, seed, ms in (("layernorm", 0, 10.0), ("layernorm", 1, 14.0), ("rmsnorm", 0, 10.0), ("rmsnorm", 1, 21.0)):
        make_run(tmp_path, norm=norm, seed=seed, step_ms=ms, ledger={"eps": len(norm)})
    _, eps, times = find_caveats(Case(read_study([tmp_path])))
    assert (eps.serious, times.serious) == (True, False)  # what may decide it first
    (unsteady,) = times.found
    assert unsteady.arms == RMSNORM and unsteady.numbers == {"ratio": pytest.approx(2.1)}
    assert times.text.startswith("step times differ up to 2.1-fold between seeds of one arm")


def test_one_learning_rate_for_all_arms_is_the_first_to_be_unfair(tmp_path: Path) -> None:
    for norm in ("layernorm", "rmsnorm"):
        make_run(tmp_path, norm=norm, ledger={"eps": len(norm)})
    plan(tmp_path, "norm=layernorm,rmsnorm", "optim.lr=0.001", "+norm.note=a b", "name=study")
    first, *_ = make_report([tmp_path]).answer.caveats
    assert first.serious and first.text == (
        "all arms ran at lr 0.001, which was not chosen for any of them: choose one for each with normbench sweep "
        "norm=layernorm,rmsnorm '+norm.note=a b' name=made-each sweep.lr=each"
    )
    plan(tmp_path, "norm=dyt")
    first, *_ = make_report([tmp_path]).answer.caveats
    assert first.text.endswith("choose one for each with normbench sweep and sweep.lr=each")  # two sweeps


def test_rates_that_a_sweep_chose_for_each_batch_size_are_cited(tmp_path: Path) -> None:
    """The batch size is a factor, and no arm's best rate is its best batch size."""
    arms = [("batchnorm", 4, 1e-3), ("batchnorm", 64, 3e-3), ("groupnorm", 4, 3e-3), ("groupnorm", 64, 3e-3)]
    for (norm, size, lr), seed in product(arms, range(3)):
        final = 2.0 + 0.01 * seed * len(norm) + (size == 4) * (0.3 if norm == "batchnorm" else 0.001 * seed)
        make_run(tmp_path, norm=norm, lr=lr, seed=seed, settings={"data.batch_size": size}, final=final)
    noted = [{"arm": {"norm": norm, "data.batch_size": str(size)}, "lr": lr, "edge": None} for norm, size, lr in arms]
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    report = make_report([tmp_path], baseline="norm=groupnorm")
    assert report.study.varied == ("norm", "data.batch_size") and not report.rates_chosen
    pairs = [(one.arm, one.baseline) for one in report.family.differences]
    assert pairs == [(f"batchnorm · batch_size={n}", f"groupnorm · batch_size={n}") for n in (4, 64)]
    assert report.family.differences[0].real and report.family.differences[0].mean > 0.2
    assert report.study.fairly_chosen


@pytest.mark.parametrize("equal", [False, True])
def test_what_goes_with_a_factor_is_fair_to_arms_that_share_its_value(tmp_path: Path, equal: bool) -> None:
    """Two norms at two batch sizes, each with its own rate: so they are compared at one rate and number of steps."""
    for norm, (size, lr, steps) in product(
        ("batchnorm", "groupnorm"), ((4, 1e-3, 160), (16, 4e-3, 40 if equal else 160))
    ):
        data = {"steps_per_epoch": 320 // size}
        make_run(tmp_path, norm=norm, lr=lr, steps=steps, settings={"data.batch_size": size}, data=data)
    found = caveats(tmp_path)
    assert not {CaveatKind.SETTINGS, CaveatKind.UNEQUAL_STEPS} & {*found}
    assert (CaveatKind.UNEQUAL_SAMPLES in found) is not equal
    if not equal:
        epochs = values(found[CaveatKind.UNEQUAL_SAMPLES])
        assert epochs["2"] == ("batchnorm · batch_size=4", "groupnorm · batch_size=4")


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_rate_is_chosen_by_results_alone(tmp_path: Path, status: str) -> None:
    """Of arms that diverged at every rate none was chosen."""
    for norm, lr in product(("layernorm", "rmsnorm"), (0.1, 0.2)):
        make_run(tmp_path, norm=norm, lr=lr, status=status)
    kinds = [caveat.kind for caveat in make_report([tmp_path]).answer.caveats]
    assert (CaveatKind.LEARNING_RATE in kinds) == (status == "finished")


def test_learning_rates_chosen_on_held_out_data_are_fair(tmp_path: Path) -> None:
    """As `sweep.lr=auto` notes them beside the runs."""
    make_run(tmp_path, norm="layernorm", lr=1e-3)
    make_run(tmp_path, norm="rmsnorm", lr=3e-3)
    noted = [{"arm": {"norm": "layernorm"}, "lr": 1e-3, "edge": None}]
    noted.append({"arm": {"norm": "rmsnorm"}, "lr": 3e-3, "edge": "highest"})
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    edge, fair = find_caveats(Case(read_study([tmp_path])))
    assert {edge.kind, fair.kind} == {CaveatKind.LEARNING_RATE} and (edge.serious, fair.serious) == (True, False)
    assert values(edge) == {"highest": RMSNORM} and values(fair) == {"0.001": LAYERNORM, "0.003": RMSNORM}
    make_run(tmp_path, norm="dyt", lr=0.5)  # not by the sweep
    (one,) = find_caveats(Case(read_study([tmp_path])))
    assert one.serious and one.kind == CaveatKind.SETTINGS and values(one)["0.5"] == ("dyt",)


def test_rates_that_were_chosen_for_each_seed_tell_no_arms_apart(tmp_path: Path) -> None:
    """As `sweep.lr=each` notes them: what an arm comes to includes what its choices come to."""
    noted = list[dict[str, Any]]()
    for norm, rates in (("layernorm", [1e-3, 3e-3, 1e-3]), ("rmsnorm", [3e-3, 3e-3, 1e-2])):
        for seed, lr in enumerate(rates):
            make_run(tmp_path, norm=norm, seed=seed, lr=lr, final=2.0 + 0.01 * seed)
            noted.append({"arm": {"norm": norm}, "seed": seed, "lr": lr, "edge": None, "curve": []})
    assert len(read_study([tmp_path]).arms) == 4  # nobody has noted why rates differ: each is an arm
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    report = make_report([tmp_path])
    assert [(arm.name, len(arm.runs)) for arm in report.arms] == [("layernorm", 3), ("rmsnorm", 3)]
    (difference,) = report.answer.differences
    assert difference.n == 3 and difference.choices == 1
    (fair,) = [caveat for caveat in report.answer.caveats if caveat.kind == CaveatKind.LEARNING_RATE]
    assert not fair.serious and values(fair) == {
        "0.001": ("layernorm",), "0.003": ("layernorm", "rmsnorm"), "0.01": ("rmsnorm",),
    }  # fmt: skip
    assert "for each seed with another one" in write_methods(report) and "length" not in write_methods(report)
    (rate,) = [held for held in report.answer.question.held if held.what == "rate"]
    assert rate.goes_with == "seed" and rate.values == ("0.001", "0.003", "0.01")
    noted[-1] |= {"edge": "highest", "length": 0.25}
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    report = make_report([tmp_path])
    assert "in runs of 25 % of the length" in write_methods(report)
    edge, *_ = report.answer.caveats
    assert edge.text.startswith("rmsnorm (1 of 3 seeds): the chosen learning rate is at the end of those tried")
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted[1:]}))  # one is not known
    assert len(read_study([tmp_path]).arms) == 4


def test_seeds_and_arms_that_trained_at_no_rate_are_told(tmp_path: Path) -> None:
    noted = list[dict[str, Any]]()
    rates_of = {"layernorm": [1e-3, 3e-3, 1e-3], "rmsnorm": [3e-3, 3e-3, None], "none": [None, None, None]}
    for norm, rates in rates_of.items():
        for seed, lr in enumerate(rates):
            if lr is not None:
                make_run(tmp_path, norm=norm, placement="post", seed=seed, lr=lr)
            losses = [2.0] if lr else [None]
            arm = {"placement": "post", "norm": norm}  # in the order of the command, which is not that of the names
            noted.append({"arm": arm, "seed": seed, "lr": lr, "edge": None, "curve": [{"lr": 1e-3, "losses": losses}]})
    for seed in range(3):
        make_run(tmp_path, seed=seed, lr=1e-3)
    noted += [{"arm": {"placement": "pre", "norm": "layernorm"}, "seed": seed, "lr": 1e-3} for seed in range(3)]
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    report = make_report([tmp_path])
    never, at_seed = [caveat for caveat in report.answer.caveats if caveat.kind == CaveatKind.LOST_RUNS]
    assert never.serious and at_seed.serious
    assert never.text.startswith("post · none: every learning rate that was tried diverged or failed, so")
    assert at_seed.found[0].arms == ("rmsnorm · post",) and at_seed.found[0].seeds == (2,)
    (table,) = [table for table in report.tables if table.key == "search"]
    assert [row[0] for row in table.rows] == ["layernorm · post", "rmsnorm · post", "post · none"]
    for seed in range(3):  # in another folder the arm has runs
        make_run(tmp_path / "more", norm="none", placement="post", seed=seed)
    (at_seed,) = [one for one in make_report([tmp_path]).answer.caveats if one.kind == CaveatKind.LOST_RUNS]
    assert at_seed.found[0].arms[0].startswith("rmsnorm")


@pytest.mark.parametrize("noted", [{}, {"lr": "a"}, {"lr": None, "seed": {"a": 1}}, {"lr": 1e-3, "seed": "0"}])
def test_choices_that_are_not_as_sweeps_note_them_are_left_out(
    tmp_path: Path, noted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.1]})
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": [{"arm": {"norm": "rmsnorm"}, **noted}]}))
    assert not make_report([tmp_path]).study.choices
    assert "lr_choice.json is damaged; it is left out" in caplog.text


@pytest.mark.parametrize("value, word", [(None, "null"), (False, "false"), ([0.9, 0.99], "[0.9,0.99]"), (1e-3, "1e-3")])
def test_a_choice_is_of_the_arm_however_its_values_are_written(tmp_path: Path, value: Any, word: str) -> None:
    for other, lr in ((value, 1e-3), (0.5, 3e-3)):
        make_run(tmp_path, lr=lr, settings={"norm.setting": other})
    noted = [{"arm": {"norm.setting": text}, "lr": lr, "edge": None} for text, lr in ((word, 1e-3), ("0.5", 3e-3))]
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    assert read_study([tmp_path]).fairly_chosen


def test_the_methods_say_how_learning_rates_were_chosen(tmp_path: Path) -> None:
    noted = [{"arm": {"norm": norm}, "lr": lr, "edge": None} for norm, lr in (("layernorm", 1e-3), ("rmsnorm", 3e-3))]
    for one in noted:
        make_run(tmp_path, norm=one["arm"]["norm"], lr=one["lr"])
    assert "All else was held equal" in write_methods(make_report([tmp_path]))
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    words = write_methods(make_report([tmp_path]))
    assert "All else but the learning rate was held equal" in words
    assert "AdamW (Loshchilov & Hutter 2019) with betas" in words
    assert "a tenth held out of the training data: layernorm 0.001; rmsnorm 0.003." in words


def test_one_rate_that_was_chosen_for_every_arm_is_cited_too(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0], "rmsnorm": [2.0]})
    noted = [{"arm": {"norm": norm}, "lr": 1e-3, "edge": None} for norm in ("layernorm", "rmsnorm")]
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    (one,) = find_caveats(Case(read_study([tmp_path])))
    assert not one.serious and values(one) == {"0.001": ("layernorm", "rmsnorm")}


def test_a_rate_that_a_sweep_chose_was_not_set_by_hand(tmp_path: Path) -> None:
    session = {"command": "normbench train data=digits optim.lr=0.001"}
    for norm in ("layernorm", "rmsnorm"):
        make_run(tmp_path, norm=norm, session=session)
    [study] = read_studies([tmp_path])
    assert given_settings(study) == ["data=digits", "optim.lr=0.001"]
    noted = [{"arm": {"norm": norm}, "lr": 1e-3, "edge": None} for norm in ("layernorm", "rmsnorm")]
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    [study] = read_studies([tmp_path])
    assert given_settings(study) == ["data=digits"]


def test_the_choice_of_rates_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.3]})
    noted = [{"arm": {"norm": norm}, "lr": 1e-3, "edge": None} for norm in ("layernorm", "rmsnorm")]
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    read: list[Path] = []
    monkeypatch.setattr(studies, "read_json", lambda path: read.append(path) or read_json(path))
    make_report([tmp_path])
    assert [path.name for path in read].count(CHOICE_FILE) == 1


def test_a_choice_of_rates_that_was_changed_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.3]})
    noted = [{"arm": {"norm": norm}, "lr": 1e-3, "edge": None} for norm in ("layernorm", "rmsnorm")]
    path = tmp_path / CHOICE_FILE
    write_with_digests(path, {"arms": noted}, [CHOICE_FILE])
    assert read_study([tmp_path]).fairly_chosen and not caplog.text
    path.write_text(path.read_text().replace('"edge": null', '"edge": "highest"'))
    assert not read_study([tmp_path]).fairly_chosen
    assert f"{path} changed after the sweep had written it; it is left out" in caplog.text
    for content in ("", "{", '{"arms": 5}'):
        caplog.clear()
        path.write_text(content)
        assert not read_study([tmp_path]).fairly_chosen
        assert f"{path} is damaged; it is left out" in caplog.text


def test_a_summary_that_contradicts_what_was_logged_is_named(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.1]})
    assert CaveatKind.DAMAGED_RECORD not in caveats(tmp_path)
    changed = next(tmp_path.glob("rmsnorm-pre-s1-*"))
    file = changed / "summary.json"
    file.write_text(file.read_text().replace('"loss/val": 2.1', '"loss/val": 1.5'))
    (evidence,) = caveats(tmp_path)[CaveatKind.DAMAGED_RECORD].found
    assert evidence.runs == (changed.name,) and evidence.arms == RMSNORM


# ---- runs whose learning rate grows


def make_ramp(folder: Path, norm: str, seed: int, rate: float, bore_all: bool = False) -> None:
    """Make a run that bore a rate, and diverged then or bore all."""
    settings = {"schedule._target_": "normbench.training.schedules.Ramp"}
    ramp = {"largest_rate": rate, "last_step": 40, "bore_all": bore_all, "diverged": not bore_all}
    summary = {"ramp": ramp, "metrics": {"rate/largest": rate}}
    status = "finished" if bore_all else "diverged"
    make_run(folder, norm=norm, seed=seed, settings=settings, summary=summary, status=status)


def test_a_ramp_that_diverges_is_a_result(tmp_path: Path) -> None:
    for seed, rate in enumerate((0.1, 0.12, 0.11)):
        make_ramp(tmp_path, "layernorm", seed, rate)
        make_ramp(tmp_path, "rmsnorm", seed, rate * (4, 4.2, 3.8)[seed], bore_all=seed == 2)
    answer = make_report([tmp_path]).answer
    (metric,) = answer.metrics
    assert (metric.tag, metric.unit, metric.lower_is_better) == ("rate/largest", "doublings", False)
    (difference,) = answer.differences
    assert difference.seeds == (0, 1, 2)
    assert difference.mean == pytest.approx((math.log2(4) + math.log2(4.2) + math.log2(3.8)) / 3)
    assert difference.better and difference.real and not difference.survived
    assert not any(losses.counted for losses in answer.losses)
    found = {(caveat.kind, caveat.serious): caveat for caveat in answer.caveats}
    assert {CaveatKind.LOST_RUNS, CaveatKind.LEARNING_RATE}.isdisjoint(kind for kind, _ in found)
    (ended,) = found[CaveatKind.RAMP, False].found
    assert ended.numbers == {"diverged": 5, "runs": 6}
    (censored,) = found[CaveatKind.RAMP, True].found
    assert (censored.arms, censored.numbers) == (("rmsnorm",), {"bore_all": 1})
    assert StepKind.OWN_RATES not in {step.kind for step in answer.next}, "which a sweep of ramps refuses"


def test_a_ramp_of_somebody_else_is_read_with_care(tmp_path: Path) -> None:
    for seed, rate in enumerate((0.1, -1.0, 0.2)):
        make_ramp(tmp_path, "layernorm", seed, rate)
    make_run(tmp_path, norm="layernorm", seed=3, summary={"ramp": "all of it"}, status="diverged")
    answer = make_report([tmp_path]).answer
    (arm,) = answer.arms
    assert arm.results[0].n == 2
    (damaged,) = [caveat for caveat in answer.caveats if caveat.kind == CaveatKind.DAMAGED_RUN]
    assert "summary.json" in damaged.text
