"""How learning rates were chosen: how much the choice matters, by hand, in reports, and as claims keep and tell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from claim_documents import make_page
from conftest import draw_for_pages_alone
from made_claims import NOW, claims_and_digests, complete, content
from made_runs import make_report, make_run
from test_claims import read_one, write_claim

from normbench.claims.files import load_result, write_result
from normbench.claims.measuring import measure_runs
from normbench.claims.page import write_page
from normbench.claims.suite import read_suite
from normbench.evidence.arms import Arm
from normbench.record.digests import write_with_digests
from normbench.record.forms import CHOICE_FILE
from normbench.results.claimed import ClaimResult, RegisteredClaim, Tuning
from normbench.results.one_rate import effects_at_one_rate
from normbench.results.rules import ClaimKind
from normbench.results.search import RateChoice, Search, read_choice
from normbench.sweep.folder import Entry
from normbench.tell.claim_sentences import list_notes, name_kind, tell_one_rate, tell_tuning, tell_unlike_rates

ARM = {"norm": "rmsnorm"}


def choice(lr: float | None, losses: dict[float, list[float | None]], **more: Any) -> RateChoice:
    """A choice by the losses at each rate."""
    curve = [{"lr": rate, "losses": of_rate} for rate, of_rate in losses.items()]
    found = read_choice({"arm": ARM, "lr": lr, "edge": None, "curve": curve} | more)
    assert found is not None
    return found


def search(*choices: RateChoice) -> Search:
    return Search(Arm(ARM), choices)


# ---- by hand


def test_the_curvature_is_that_of_the_parabola_through_three_rates() -> None:
    rates, losses = [1e-3, 3e-3, 1e-2], [2.03, 2.0, 2.05]
    found = search(choice(3e-3, {rate: [loss] for rate, loss in zip(rates, losses, strict=True)}))
    by_numpy = 2 * np.polyfit(np.log2(rates), losses, 2)[0]
    assert found.best == 3e-3 and found.curvature == pytest.approx(by_numpy)
    assert found.neighbours == pytest.approx({1e-3: 0.03, 1e-2: 0.05})
    # Over doublings it is the second difference.
    even = search(choice(2e-3, {1e-3: [2.03], 2e-3: [2.0], 4e-3: [2.05]}))
    assert even.curvature == pytest.approx(2.03 - 2 * 2.0 + 2.05)


def test_choices_of_seeds_are_compared_within_each() -> None:
    first = choice(3e-3, {1e-3: [2.1], 3e-3: [2.0], 1e-2: [2.2]}, seed=0)
    second = choice(3e-3, {3e-3: [5.0], 1e-2: [5.1], 3e-2: [5.4]}, seed=1)  # whose losses are all larger
    third = choice(1e-2, {1e-3: [3.3], 3e-3: [3.1], 1e-2: [3.0], 3e-2: [3.2]}, seed=2, edge="highest", length=0.25)
    found = search(first, second, third)
    assert found.best == 3e-3 and found.chosen == [3e-3, 3e-3, 1e-2] and found.edges == ["highest"]
    assert found.neighbours == pytest.approx({1e-3: np.mean([0.1, 0.2]), 1e-2: np.mean([0.2, 0.1, -0.1])})
    curves = ([2.1, 2.0, 2.2], [3.3, 3.1, 3.0])
    fitted = [2 * np.polyfit(np.log2([1e-3, 3e-3, 1e-2]), losses, 2)[0] for losses in curves]
    assert found.curvature == pytest.approx(np.mean(fitted)) and found.length == 0.25
    assert found.losses[3e-3] == [2.0, 5.0, 3.1] and found.means[3e-2] == pytest.approx(5.3 - 1.0)


def test_lost_runs_and_ends_leave_nothing_to_compare() -> None:
    at_end = search(choice(1e-3, {1e-3: [2.0, 2.2], 3e-3: [2.1, 2.2]}))
    assert at_end.curvature is None and at_end.neighbours == pytest.approx({3e-3: 0.05})
    lost = search(choice(3e-3, {1e-3: [None], 3e-3: [2.0], 1e-2: [2.1]}))
    assert lost.curvature is None and lost.neighbours == pytest.approx({1e-2: 0.1}) and lost.lost[1e-3] == 1
    none = search(choice(None, {1e-3: [None], 3e-3: [None]}))
    assert none.best is None and none.neighbours == {} and none.curvature is None and none.chosen == []
    assert read_choice({"arm": ARM, "lr": 0.1}) is None, "what was tried is not noted"


@pytest.mark.parametrize("flushes", [False, True])
def test_a_rate_is_a_positive_number_also_where_subnormal_ones_are_0(flushes: bool) -> None:
    torch.set_flush_denormal(flushes)  # as a process that trains on a CPU has it
    try:
        for damaged in ({"lr": 0.0, "losses": [2.0]}, {"lr": -1.0, "losses": []}, {"lr": "a", "losses": []}, {}):
            assert read_choice({"arm": ARM, "lr": 0.1, "curve": [damaged]}) is None
        assert read_choice({"arm": ARM, "lr": 0.1, "curve": [{"lr": 1e-300, "losses": [2.0]}]}) is not None
    finally:
        torch.set_flush_denormal(False)


# ---- in reports


def test_a_report_tells_what_the_next_rate_costs(tmp_path: Path) -> None:
    noted = []
    for norm, luck in (("layernorm", 0.0), ("rmsnorm", 0.01)):
        for seed in range(2):
            make_run(tmp_path, norm=norm, seed=seed, lr=3e-3)
            curve = [{"lr": 1e-3, "losses": [2.1 + luck]}, {"lr": 3e-3, "losses": [2.0]}, {"lr": 1e-2, "losses": [2.3]}]
            noted.append({"arm": {"norm": norm}, "lr": 3e-3, "curve": curve, "seed": seed, "length": 0.25})
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    (table,) = [one for one in make_report([tmp_path]).tables if one.key == "search"]
    rows = {row[0]: dict(zip(table.frame.columns, row, strict=True)) for row in table.rows}
    assert rows["rmsnorm"]["chosen"] == "0.003 (2)"
    assert rows["rmsnorm"]["what the next rate costs, nats"] == "+0.110 at 0.001, +0.300 at 0.01"
    fitted = 2 * np.polyfit(np.log2([1e-3, 3e-3, 1e-2]), [2.1, 2.0, 2.3], 2)[0]
    assert float(rows["layernorm"]["curvature, nats per doubling²"]) == pytest.approx(fitted, rel=0.05)
    assert any("25 % of the steps" in note for note in table.notes)


# ---- on claims


def test_the_choices_of_a_claim_are_those_of_its_runs(tmp_path: Path) -> None:
    write_claim(tmp_path, words=["norm=rmsnorm,layernorm", "sweep.lr=each"])
    folder = tmp_path / "runs"
    entries, noted = [], []
    for norm in ("rmsnorm", "layernorm"):
        for seed in (0, 1, 2):
            run = make_run(folder, norm=norm, seed=seed, lr=3e-3)
            if seed < 2:  # the last one is of a later look
                entries.append(Entry(run.name, {"norm": norm}, seed, 100, []))
            curve = [{"lr": 1e-3, "losses": [2.1], "mean": 2.1}, {"lr": 3e-3, "losses": [2.0], "mean": 2.0}]
            noted.append({"name": norm, "arm": {"norm": norm}, "lr": 3e-3, "edge": None, "curve": curve, "seed": seed})
    path = folder / CHOICE_FILE
    write_with_digests(path, {"arms": noted}, [path.name])
    claim = read_one(tmp_path)
    measured = measure_runs(claim, folder, entries)
    assert measured.missing == [] and measured.tuning is not None
    assert [(tuning.arm, [one.seed for one in tuning.choices]) for tuning in measured.tuning] == [
        ("rms", [0, 1]),
        ("ln", [0, 1]),
    ]
    assert measured.tuning[0].search.neighbours == pytest.approx({1e-3: 0.1})
    path.write_text(path.read_text().replace("2.1", "2.2"))
    assert measure_runs(claim, folder, entries).tuning is None, "a file that was changed tells nothing"
    write_claim(tmp_path, words=["norm=rmsnorm,layernorm"])
    assert measure_runs(read_one(tmp_path), folder, entries).tuning is None


def test_a_claim_keeps_and_tells_how_its_rates_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_for_pages_alone(monkeypatch)
    claims, digests = claims_and_digests()
    claims["larger"] = content("Larger", ClaimKind.LARGER, 0.02, words=["model=nano", "sweep.lr=each"])
    losses: dict[float, list[float | None]] = {1e-3: [2.01], 3e-3: [2.0], 1e-2: [2.03]}
    choices = tuple(choice(3e-3, losses, seed=seed) for seed in range(10))
    path = tmp_path / "larger" / "claim.json"
    path.parent.mkdir()

    def page_with(**more: Any) -> str:
        write_result(complete("larger", claims["larger"], 0.03, digest=NOW, **more), path)
        write_page(tmp_path, claims, digests)
        return (tmp_path / "claims.html").read_text()

    page = page_with(tuning=(Tuning("one", choices),))
    said = "one at 0.003 (10 seeds), where the next rate costs 0.01 nats (0.5 of the margin) at 0.001 and 0.03"
    assert said in page and "curvature, nats per doubling²" in page and 'id="figure--rates-larger"' in page
    whole = json.loads(path.read_text())
    assert load_result(path).tuning == (Tuning("one", choices),)
    (kept,) = whole["tuning"]
    assert kept["best"] == 3e-3 and kept["neighbours"] == pytest.approx({"0.001": 0.01, "0.01": 0.03})
    assert kept["curvature"] == pytest.approx(2 * np.polyfit(np.log2([1e-3, 3e-3, 1e-2]), [2.01, 2.0, 2.03], 2)[0])
    changes: list[tuple[list[str | int], Any]] = [
        ([0, "curvature"], 1.0),
        ([0, "neighbours", "0.01"], 0.0),
        ([0, "choices", 3, "lr"], 1e-2),
        ([0, "choices", 3, "curve", 0, "losses"], [1.9]),
        ([0, "choices", 3, "seed"], 77),
        ([0, "arm"], "three"),
        ([0, "choices"], []),
    ]
    for place, value in changes:
        changed = json.loads(json.dumps(whole))
        part: Any = changed["tuning"]
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = value
        write_with_digests(path, changed, [path.name])
        with pytest.raises(ValueError, match="larger"):
            load_result(path)
    entries = read_suite(tmp_path, claims, digests, []).entries
    write_result(complete("larger", claims["larger"], 0.03, digest=NOW, tuning=(Tuning("one", choices),)), path)
    kept_suite = read_suite(tmp_path, claims, digests, [])
    assert not any(entry.judgement for entry in entries), "what is changed is left out"
    row = "| `larger` | one | 0.003 (10 seeds) | 0.01 nats (0.5 of the margin) at 0.001<br>0.03"
    assert row in make_page(kept_suite, [])
    # Of results from before the losses were kept it is said that they were not.
    page = page_with()
    assert "chosen by losses on held-out data that were not kept" in page and "figure--rates" not in page
    row = (tmp_path / "claims.csv").read_text()
    assert "way_of_rates" in row and "each" in row


@pytest.mark.parametrize(
    ("rates", "length", "said"),
    [
        ([1e-3] * 10, 0.25, ""),  # the other arm's at each seed
        ([3e-3] * 10, 0.25, "have the same learning rate at no seed, which runs of 25 % of the steps have chosen."),
        (
            [1e-3] * 4 + [3e-3] * 6,
            1.0,
            "have the same learning rate at 4 of 10 seeds: there the effect is +0.5 nats in the mean, and −0.1 nats at "
            "the others.",
        ),
    ],
)
def test_a_claim_tells_what_rests_on_unlike_rates(rates: list[float], length: float, said: str) -> None:
    curve = ({"lr": 1e-3, "losses": [2.0]},)
    by_seed = {
        "one": [RateChoice(ARM, rate, curve, seed, None, length) for seed, rate in enumerate(rates)],
        "two": [RateChoice(ARM, 1e-3, curve, seed, None, length) for seed in range(10)],
    }
    tuning = tuple(Tuning(arm, tuple(choices)) for arm, choices in by_seed.items())
    claim = content("A claim", ClaimKind.ANY, 0.02)
    values = {seed: 0.5 if rate == 1e-3 else -0.1 for seed, rate in enumerate(rates)}
    told = tell_unlike_rates(complete("tiny", claim, 0.1, values=values, tuning=tuning), "nats")
    assert told == ([f"The two arms {said}"] if said else [])
    assert tell_unlike_rates(complete("tiny", claim, 0.1), "nats") == []


# ---- with one rate for all arms

SPREAD = [0.02 * place - 0.09 for place in range(10)]  # of ten seeds, around 0


def tuned(claim: dict[str, Any], mean: float, **more: Any) -> ClaimResult:
    """A claim of ten seeds: arm two leads at 0.001 by 0.3 nats, is 0.1 behind at 0.003, and is lost once at 0.01."""
    choices: dict[str, list[RateChoice]] = {"one": [], "two": []}
    for seed, off in enumerate(SPREAD):
        of_one: dict[float, list[float | None]] = {1e-3: [2.3], 3e-3: [2.0], 1e-2: [2.2]}
        of_two: dict[float, list[float | None]] = {1e-3: [2.0 - off], 3e-3: [2.1 - off], 1e-2: [2.5 if seed else None]}
        choices["one"].append(choice(3e-3, of_one, seed=seed))
        choices["two"].append(choice(1e-3, of_two, seed=seed))
    tuning = tuple(Tuning(arm, tuple(of_arm)) for arm, of_arm in choices.items())
    return complete("tuned", claim, mean, **({"tuning": tuning} | more))


def test_runs_that_chose_tell_the_effect_at_one_rate() -> None:
    of_loss = content("A claim", ClaimKind.ANY, 0.02, effect="one - two")
    low, high = effects_at_one_rate(tuned(of_loss, 0.0))
    assert (low.rate, high.rate) == (1e-3, 3e-3), "at 0.01 a run was lost"
    assert low.effect.values == pytest.approx([0.3 + off for off in SPREAD])
    assert high.effect.values == pytest.approx([-0.1 + off for off in SPREAD])
    assert low.is_chosen and high.is_chosen and low.unit == "nats"
    # By hand: Student's quantile for nine degrees of freedom is 2.262, and the ten values have the sd 0.0606.
    half = 2.2622 * np.std(SPREAD, ddof=1) / np.sqrt(10)
    assert low.effect.interval == pytest.approx((0.3 - half, 0.3 + half), abs=1e-4)
    # A higher accuracy and a lower loss are both the better.
    of_accuracy = content("A claim", ClaimKind.ANY, 1.0, effect="two - one", measure="accuracy/val", unit="points")
    assert effects_at_one_rate(tuned(of_accuracy, 3.0))[0].effect.mean == pytest.approx(0.3)
    assert effects_at_one_rate(tuned(of_accuracy, 3.0))[0].unit == "nats"
    ratio = content("A claim", ClaimKind.ANY, 0.02, effect="log(one / two)", unit="log ratio")
    by_hand = np.mean([np.log(2.3 / (2.0 - off)) for off in SPREAD])
    assert effects_at_one_rate(tuned(ratio, 0.0))[0].effect.mean == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "more",
    [
        {"effect": "speedup(one, two)"},
        {"measure": "act/stream1/rms"},
        {"effect": "slope(one - two, model.depth)"},
        {"effect": "one - three"},
        {"effect": "log(one / two)", "measure": "accuracy/val"},
    ],
)
def test_other_effects_have_none_at_one_rate(more: dict[str, Any]) -> None:
    claim = content("A claim", ClaimKind.ANY, 0.02, **more)
    assert effects_at_one_rate(tuned(claim, 0.0)) == []


def test_nothing_is_told_at_one_rate_of_arms_with_several_kinds_of_runs_or_one_choice() -> None:
    claim = content("A claim", ClaimKind.ANY, 0.02, effect="one - two", words=["sweep.lr=each"])
    whole = tuned(claim, 0.0)
    assert whole.tuning is not None
    one, two = whole.tuning
    deeper = [RateChoice({"norm": "rmsnorm", "model.depth": "4"}, of.lr, of.curve, of.seed) for of in two.choices]
    both = tuned(claim, 0.0, tuning=(one, two, Tuning("two", tuple(deeper))))
    assert effects_at_one_rate(both) == []
    told = tell_tuning(RegisteredClaim("tuned", claim, both))
    assert "two at" in told and "two (model.depth=4) at" in told
    for_all = tuple(Tuning(tuning.arm, (choice(1e-3, {1e-3: [2.0]}),)) for tuning in (one, two))
    assert effects_at_one_rate(tuned(claim, 0.0, tuning=for_all)) == []
    assert effects_at_one_rate(tuned(claim, 0.0, tuning=(one,))) == []


def test_a_kind_of_runs_is_told_by_the_fewest_settings_that_tell_it_from_the_others() -> None:
    curve = ({"lr": 1e-3, "losses": [2.0]},)

    def kind(**settings: str) -> Tuning:
        return Tuning("ln", (RateChoice({"norm": "layernorm"} | settings, 1e-3, curve, 0),))

    only = kind(steps="150")
    assert name_kind(only, [only]) == "ln"
    # The context and the batch go together, as those of a tie do.
    short, long = {"context": "64", "batch": "8"}, {"context": "512", "batch": "1"}
    tied = [kind(**short), kind(**long)]
    assert [name_kind(one, tied) for one in tied] == ["ln (context=64)", "ln (context=512)"]
    grid = [kind(steps=steps, **of_context) for steps in ("150", "450") for of_context in (short, long)]
    assert name_kind(grid[2], grid) == "ln (steps=450, context=64)"


@pytest.mark.parametrize("mean", [0.3, -0.3, 0.0])
def test_a_claim_notes_where_one_rate_for_all_gives_another_sign(mean: float) -> None:
    claim = content("A claim", ClaimKind.ANY, 0.02, effect="one - two", words=["sweep.lr=each"])
    entry = RegisteredClaim("tuned", claim, tuned(claim, mean))
    # Intervals are rounded away from their mean.
    said = "+0.300 nats (95 %: +0.256 to +0.344) at 0.001; −0.100 nats (95 %: −0.144 to −0.056) at 0.003"
    assert tell_one_rate(entry) == said
    noted = f"With one learning rate for all arms the runs that chose rates give another picture: {said}."
    assert noted in list_notes(entry)


def test_a_claim_notes_nothing_where_one_rate_for_all_gives_the_same_sign() -> None:
    claim = content("A claim", ClaimKind.ANY, 0.02, effect="one - two", words=["sweep.lr=each"])
    agreeing = tuned(claim, 0.3)
    assert agreeing.tuning is not None
    one, two = agreeing.tuning
    at_low = []
    for tuning in (one, two):
        choices = [RateChoice(of.arm, 1e-3, of.curve, of.seed) for of in tuning.choices]
        at_low.append(Tuning(tuning.arm, tuple(choices)))
    entry = RegisteredClaim("tuned", claim, tuned(claim, 0.3, tuning=tuple(at_low)))
    assert "at 0.003" in tell_one_rate(entry), "it is shown where nobody chose it"
    assert not any("another picture" in note for note in list_notes(entry))


def test_a_claim_tells_which_chosen_rates_have_no_effect_and_notes_no_sign_that_is_not_of_rates() -> None:
    claim = content("A claim", ClaimKind.ANY, 0.02, effect="one - two", words=["sweep.lr=each"])
    whole = tuned(claim, 0.3)
    assert whole.tuning is not None

    def at(*rates: float) -> tuple[Tuning, ...]:
        """The same searches, with these rates chosen for the arms."""
        tunings = []
        for tuning, rate in zip(whole.tuning or (), rates, strict=True):
            choices = [RateChoice(of.arm, rate, of.curve, of.seed) for of in tuning.choices]
            tunings.append(Tuning(tuning.arm, tuple(choices)))
        return tuple(tunings)

    def noted(claim: dict[str, Any], tuning: tuple[Tuning, ...]) -> bool:
        entry = RegisteredClaim("tuned", claim, tuned(claim, 0.3, tuning=tuning))
        return any("another picture" in note for note in list_notes(entry))

    # At 0.01 a run of arm two was lost.
    entry = RegisteredClaim("tuned", claim, tuned(claim, 0.3, tuning=at(1e-2, 1e-3)))
    assert tell_one_rate(entry).endswith(" at 0.003; none at 0.01, where not every arm has a loss at each seed")
    assert noted(claim, at(3e-3, 1e-3))
    assert not noted(claim, at(3e-3, 3e-3)), "the reported runs are at one rate themselves"
    assert not noted(claim | {"kind": "parity", "margin": 1.0}, at(3e-3, 1e-3)), "parity is not about a sign"
