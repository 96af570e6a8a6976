"""Registrations: what their digests cover, in both schemes, and what is said once a default of the runs has changed."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_claims import complete, content
from test_claims import TINY, WORDS, read_one, write_claim

from normbench.claims.claim import KEYS, read_claims
from normbench.claims.registering import compose_configurations, list_changes, multiply_out, register, tell_changes
from normbench.claims.registration import (
    OUTSIDE,
    SCHEME,
    WORDS_ALONE,
    digest_of_json,
    find_witness,
    registered_in,
    why_unregistered,
)
from normbench.claims.run import ClaimRun
from normbench.claims.suite import Way
from normbench.cli import main
from normbench.errors import UsageError
from normbench.record import machine
from normbench.results.claimed import Corrected, RegisteredClaim
from normbench.results.rules import ClaimKind, Verdict
from normbench.sweep.sweep import report_nothing
from normbench.tell.claim_sentences import list_notes, write_registered

# Another value of each key that a registration of either scheme may cover.
OTHERS: Mapping[str, Any] = {
    "claim": "RMSNorm is better",
    "source": "Ba, Kiros & Hinton 2016",
    "published": "BLEU within 0.7",
    "published_effect": 0.2,
    "registered": "2026-11-27",
    "words": [*WORDS, "placement=post"],
    "seeds": 3,
    "arms": {"rms": "norm=rmsnorm", "ln": "norm=layernorm placement=pre"},
    "measure": "loss/test",
    "effect": "rms - ln",
    "kind": "at_least",
    "margin": 2000,
    "unit": "bits",
    "needs": "hub",
    "pilot": {"sd": 0.3, "seeds": 5},
    "minutes": 2,
    "at_scale": {"words": ["trainer.steps=9"], "hours": 2},
    "scope": "next to nothing",
    "confounds": "the weather",
    "found": [{"date": "2026-11-28", "what": "the moon"}],
    "first_seed": 5,
    "withdrawn": {"date": "2026-11-29", "why": "no moon"},
    "on_gpu": {"words": ["trainer.steps=9"], "seeds": 3, "minutes": 2, "scope": "elsewhere"},
}


def digest(folder: Path, scheme: int, **changes: Any) -> str:
    write_claim(folder, **changes)
    return read_one(folder).digest_in(scheme)


@pytest.mark.parametrize("scheme", [WORDS_ALONE, SCHEME])
def test_a_digest_covers_all_but_what_stands_outside_of_it(tmp_path: Path, scheme: int) -> None:
    whole = digest(tmp_path, scheme)
    outside = {key for key, value in OTHERS.items() if digest(tmp_path, scheme, **{key: value}) == whole}
    assert outside == {*OUTSIDE[scheme]}
    assert {*KEYS} - {*OTHERS} == {"study", "where", "target", "runs_of"}
    at_scale = {"words": ["trainer.steps=9"], "hours": 3}
    assert digest(tmp_path, scheme, at_scale=at_scale) == digest(tmp_path, scheme, at_scale=OTHERS["at_scale"])


def test_claims_of_the_first_scheme_are_still_registered_and_new_ones_are_of_the_second() -> None:
    schemes = {claim.scheme for claim in read_claims().values()}
    assert WORDS_ALONE in schemes
    for name, claim in read_claims().items():
        assert why_unregistered(claim) == "", name


def test_a_claim_that_shares_runs_is_registered_with_what_their_owner_says(tmp_path: Path) -> None:
    shared = {"words": ..., "seeds": ..., "minutes": ..., "runs_of": "tiny"}
    write_claim(tmp_path)
    write_claim(tmp_path, "other", **shared)
    for name in ("other", "tiny"):  # in either order
        register(read_one(tmp_path, name), "to see", "2026-11-28")
    for name in ("other", "tiny"):
        assert why_unregistered(read_one(tmp_path, name)) == ""
    write_claim(tmp_path, claim="RMSNorm is better", registered="2026-11-28")
    for name in ("other", "tiny"):
        assert "is not as it was registered" in why_unregistered(read_one(tmp_path, name))


# ---- the configurations of the runs


def test_configurations_are_the_same_in_any_order_and_without_what_changes_no_number(tmp_path: Path) -> None:
    write_claim(tmp_path, at_scale=OTHERS["at_scale"])
    whole = compose_configurations(read_one(tmp_path))
    runs = multiply_out(whole["runs"])
    assert {*runs} == {"norm=layernorm", "norm=rmsnorm"}
    rms = runs["norm=rmsnorm"]
    assert rms["norm._target_"] == "normbench.norms.RMSNorm" and rms["trainer.steps"] == 3
    assert rms["norm.eps"] == 1e-5, "a default of the class's signature or of its YAML"
    unseen = ("seed", "device", "threads", "outputs", "name", "data.root", "quiet")
    assert not {*rms} & {*unseen} and not any(key.startswith("logger") for key in rms)
    assert multiply_out(whole["runs_at_scale"])["norm=rmsnorm"] == rms | {"trainer.steps": 9}
    draw = random.Random(0)
    words = [*WORDS[:-1], "norm=layernorm,rmsnorm"]
    for _ in range(3):
        draw.shuffle(words)
        write_claim(tmp_path, at_scale=OTHERS["at_scale"], words=words)
        assert digest_of_json(compose_configurations(read_one(tmp_path))) == digest_of_json(whole)


def test_what_a_study_and_a_choice_of_rates_take_by_default_is_registered(tmp_path: Path) -> None:
    write_claim(tmp_path, words=[*WORDS, "sweep.lr=each"])
    (one, other) = multiply_out(compose_configurations(read_one(tmp_path))["runs"]).values()
    assert one["sweep.lr"] == other["sweep.lr"] == "each" and len(one["sweep.lr_grid"]) > 3
    words = ["norm=rmsnorm,layernorm", "study.rows=64"]
    write_claim(tmp_path, study="bench", words=words, measure="time_us")
    (run, _) = multiply_out(compose_configurations(read_one(tmp_path))["runs"]).values()
    assert run["study.rows"] == [64] and {"study.rounds", "study.dtypes"} <= {*run}


def test_a_changed_default_of_an_option_is_told_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option is one of the person's own, whose YAML changes after the claim was registered."""
    monkeypatch.chdir(tmp_path)
    option = tmp_path / "conf" / "norm" / "mine.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: normbench.norms.RMSNorm\n_partial_: true\neps: 1.0e-5\n")
    words = [*WORDS[:-1], "norm=mine,layernorm"]
    write_claim(tmp_path, words=words, arms={"rms": "norm=mine", "ln": "norm=layernorm"})
    assert main(["claims", "--config-dir", "conf", "tiny", "--register", "--reason", "to see"]) == 0
    claims = read_claims([tmp_path / "conf"])
    assert (claims["tiny"].scheme, why_unregistered(claims["tiny"])) == (SCHEME, "")
    assert "2:" in (tmp_path / "conf" / "claim" / "REGISTERED").read_text()
    option.write_text("_target_: normbench.norms.RMSNorm\n_partial_: true\neps: 1.0e-3\n")
    capsys.readouterr()
    command = ["claims", "--config-dir", "conf", "tiny", "device=cpu"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "tiny was registered with norm.eps=1e-05, which is 0.001 now at norm=mine: its runs would not be" in said
    assert not (tmp_path / "outputs").exists()
    assert main([*command[:-1], "--register", "--reason", "with another eps"]) == 0
    way = Way(("hydra.searchpath=['file://conf']",))
    assert tell_changes(read_claims([tmp_path / "conf"])["tiny"], way.options) == ""


def test_a_claim_that_is_changed_is_refused_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_claim(tmp_path)
    register(read_one(tmp_path), "to see", "2026-11-28")
    file = tmp_path / "conf" / "claim" / "configurations" / "tiny.json"
    registered = json.loads(file.read_text())
    registered["runs"]["all"]["optim.lr"] = 0.5
    file.write_text(json.dumps(registered))
    claims = read_claims([tmp_path / "conf"])
    with pytest.raises(UsageError, match="is not as it was registered"):
        ClaimRun.of(claims["tiny"], claims, Way()).run(report_nothing)
    file.unlink()
    assert "is not as it was registered" in why_unregistered(read_one(tmp_path))


def test_changes_of_settings_are_told_and_new_settings_at_rest_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.claims.registering.list_unwritten", lambda settings: {"norm.new": 0.0})
    before = {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    resting = {name: {**settings, "norm.new": 0, "study.new": 5} for name, settings in before.items()}
    assert list_changes(before, resting, {"study.new": 5}) == []
    awake = {**resting, "b": {**resting["b"], "norm.new": 7}}
    assert list_changes(before, awake, {"study.new": 5}) == ["norm.new=0, which is 7 now at b"]
    assert list_changes(before, {"a": {"x": 5, "y": 2}, "b": {"x": 5, "y": 3}}, {}) == ["x=1, which is 5 now"]
    assert list_changes(before, {"a": {"y": 2}, "b": {"y": 3}}, {}) == ["x=1, which is nothing now"]
    (said,) = list_changes(before, {"a": before["a"]}, {})
    assert said == "the runs a, b, and its words now ask for a"


# ---- what others can check


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkout of normbench with a claim that is registered in its commit, which is returned."""
    root = tmp_path / "checkout"
    (root / "conf" / "claim").mkdir(parents=True)
    lines = [f"tiny 2026-11-28 {'a' * 64} to see", f"tiny 2026-11-29 2:{'b' * 64} again", "a damaged line"]
    (root / "conf" / "claim" / "REGISTERED").write_text("\n".join(lines))
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    monkeypatch.setattr(machine, "CHECKOUT", root)
    registered_in.cache_clear()
    commit = machine.commit()
    assert commit is not None
    return commit


def test_a_commit_of_runs_is_a_witness_where_it_holds_the_registration(checkout: str) -> None:
    for digest in ("a" * 64, "b" * 64):
        assert find_witness("tiny", digest, [checkout]) == checkout
        assert find_witness("tiny", digest, [f"{checkout}+changes"]) == checkout
        assert find_witness("other", digest, [checkout]) == ""
    assert find_witness("tiny", "c" * 64, [checkout]) == ""
    for unknown in (None, "", "f" * 40, "--output=x", checkout[:9]):
        assert find_witness("tiny", "a" * 64, [unknown]) == ""
        assert find_witness("tiny", "a" * 64, [checkout, unknown]) == ""  # each process counts
    assert find_witness("tiny", "a" * 64, []) == ""
    registered_in.cache_clear()


def test_the_page_says_what_a_registration_rests_on(checkout: str) -> None:
    claim = content("A claim", ClaimKind.ANY, 0.02)
    result = complete("tiny", claim, 0.03, digest="a" * 64)
    corrected = Corrected(0.01, 1.0, Verdict.REPRODUCED)
    alone = RegisteredClaim("tiny", claim, result, (), corrected)
    assert write_registered(alone).endswith("by the word of whoever registered it alone")
    assert checkout[:9] in write_registered(replace(alone, witness=checkout))
    assert write_registered(replace(alone, result=None)) == "2026-11-28"
    changed = "tiny was registered with norm.eps=1, which is 2 now"
    assert any(note.startswith(changed) for note in list_notes(replace(alone, changed=changed)))
    assert not any(changed in note for note in list_notes(alone))


def test_all_lines_of_registered_have_a_digest_that_others_compute_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my folder"
    write_claim(folder)
    write_claim(folder, "other")
    printed = []
    for name in ("tiny", "other"):
        assert main(["claims", "--config-dir", str(folder / "conf"), name, "--register", "--reason", "to see"]) == 0
        printed.append(capsys.readouterr().out)
    for number, said in enumerate(printed, 1):  # the earlier lines still have the digest that they had
        command = said[said.index("head -n") : said.index(" gives it again")]
        computed = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.split()[0]
        assert f"({number} line" in said and f" is {computed}: published" in said


# ---- what was found


def test_what_was_found_after_the_runs_is_dated(tmp_path: Path) -> None:
    for found, said in (
        ([{"date": "soon", "what": "x"}], "found.date: soon is not a date such as 2026-11-28"),
        ([{"what": "x"}], "found.date is missing"),
        (["x"], "found: "),
        ("x", "found: x is not a list such as"),
    ):
        write_claim(tmp_path, found=found)
        with pytest.raises(UsageError, match=said):
            read_one(tmp_path)
    write_claim(tmp_path, found=OTHERS["found"])
    claim = read_one(tmp_path)
    assert claim.content["found"] == OTHERS["found"] and "found" not in TINY
