"""Claims on a GPU: derived from those that are tested here, registered by themselves, and put beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from claim_documents import MOST_WANTED
from conftest import draw_for_pages_alone
from made_claims import NOW, complete, content
from test_claims import TINY, read_one, write_claim

from normbench.claims.checks import check_claim
from normbench.claims.claim import Claim, read_claims
from normbench.claims.files import write_result
from normbench.claims.on_gpu import claims_on_gpu
from normbench.claims.page import write_page
from normbench.claims.registration import find_registration, read_registrations, why_unregistered
from normbench.claims.suite import Way, read_suite
from normbench.cli import main
from normbench.errors import UsageError
from normbench.results.rules import ClaimKind, Verdict

SECTION: dict[str, Any] = {"words": ["model.width=32", "trainer.steps=9"], "seeds": 3, "minutes": 2, "scope": "there"}


def derive_one(folder: Path, name: str = "tiny") -> Claim:
    return claims_on_gpu(read_claims([folder / "conf"]))[f"{name}-on-gpu"]


def test_a_claim_on_a_gpu_has_the_sentence_of_another_and_a_scale_of_its_own(tmp_path: Path) -> None:
    more = {"kind": "any", "confounds": ["a GPU"]}
    write_claim(
        tmp_path, on_gpu={**SECTION, **more}, confounds=["a CPU"], first_seed=7, at_scale={"words": ["data=mnist"]}
    )
    here, there = read_one(tmp_path), derive_one(tmp_path)
    assert (there.name, there.base, there.claim, there.arms) == ("tiny-on-gpu", "tiny", here.claim, here.arms)
    assert there.words[-2:] == ("model.width=32", "trainer.steps=9") and "model.width=16" not in there.words
    assert there.looks == [[0, 1, 2]] and here.looks == [[7, 8]]
    assert (there.kind, there.minutes, there.scope, there.needs) == (ClaimKind.ANY, 2, "there", ("gpu",))
    assert there.content["confounds"] == ["a GPU"] and there.content["at_scale"] is None
    assert here.kind is ClaimKind.PARITY and here.content["confounds"] == ["a CPU"]
    check_claim(there, [0, 1, 2])


def test_what_a_claim_says_of_a_gpu_leaves_its_own_registration_as_it_is(tmp_path: Path) -> None:
    write_claim(tmp_path)
    before = read_one(tmp_path).digest
    write_claim(tmp_path, on_gpu=SECTION)
    assert read_one(tmp_path).digest == before
    digests = {derive_one(tmp_path).digest}
    for change in ({"words": ["model.width=64"]}, {"seeds": 4}, {"scope": "elsewhere"}, {"kind": "sized"}):
        write_claim(tmp_path, on_gpu={**SECTION, **change})
        digests.add(derive_one(tmp_path).digest)
    write_claim(tmp_path, on_gpu={**SECTION, "minutes": 5})  # how long it takes decides nothing
    digests.add(derive_one(tmp_path).digest)
    assert len(digests) == 5 and before not in digests


def test_claims_share_runs_on_a_gpu_as_they_do_here(tmp_path: Path) -> None:
    write_claim(tmp_path, on_gpu=SECTION)
    shared = {key: ... for key in ("words", "seeds", "minutes")}
    write_claim(tmp_path, "other", runs_of="tiny", on_gpu={"scope": "there too"}, **shared)
    other = derive_one(tmp_path, "other")
    assert (other.runs, other.words, other.seeds) == ("tiny-on-gpu", derive_one(tmp_path).words, (3,))
    assert (other.minutes, other.scope) == (0, "there too")
    write_claim(tmp_path, on_gpu=...)
    with pytest.raises(UsageError, match="on_gpu: tiny, whose runs these are, has no on_gpu"):
        derive_one(tmp_path, "other")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"scope": "there"}, "on_gpu.words is missing"),
        ({**SECTION, "seeds": None}, "on_gpu.seeds is missing"),
        ({**SECTION, "seeds": 0}, "on_gpu.seeds: 0 is not a number of seeds"),
        ({**SECTION, "words": ["seed=3"]}, "on_gpu: seed=3 does not belong here"),
        ({**SECTION, "kind": "larger than"}, "on_gpu.kind: larger than is not"),
        ({**SECTION, "hours": 2}, "on_gpu.hours is unknown"),
    ],
)
def test_a_mistake_in_what_is_said_of_a_gpu_is_told_with_its_line(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    write_claim(tmp_path, on_gpu=section)
    with pytest.raises(UsageError) as caught:
        read_one(tmp_path)
    assert said in str(caught.value) and f"line {len(TINY) + 1}" in str(caught.value)


def test_a_claim_on_a_gpu_is_registered_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_claim(tmp_path, on_gpu=SECTION)
    text = path.read_text()
    command = ["claims", "--config-dir", "conf", "tiny", "--device", "cuda"]
    assert "normbench claims tiny-on-gpu --device cuda" in why_unregistered(derive_one(tmp_path))
    assert main([*command, "--register", "--reason", "to see"]) == 0
    assert [*read_registrations(path.parent)] == ["tiny-on-gpu"] and path.read_text() == text
    there = derive_one(tmp_path)
    registration = find_registration(there)
    assert registration is not None and there.registered == registration.date
    assert find_registration(read_one(tmp_path)) is None  # which is registered by itself, too
    settings = json.loads((path.parent / "configurations/tiny-on-gpu.json").read_text())["runs"]["all"]
    assert (settings["model.width"], settings["trainer.steps"]) == (32, 9)
    write_claim(tmp_path, on_gpu={**SECTION, "seeds": 4})
    assert "is not as it was registered" in why_unregistered(derive_one(tmp_path))
    capsys.readouterr()


def test_without_a_gpu_a_claim_on_one_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    draw_for_pages_alone(monkeypatch)
    write_claim(tmp_path, on_gpu=SECTION)
    write_claim(tmp_path, "other")
    command = ["claims", "--config-dir", "conf", "--device", "cuda"]
    assert main([*command, "tiny", "--register", "--reason", "to see"]) == 0
    assert main([*command, "tiny", "--minutes", "25"]) == 0
    result = json.loads((tmp_path / "outputs/claims-on-gpu/tiny-on-gpu/claim.json").read_text())
    assert (result["status"], result["reason"]) == ("not run", "needs a GPU")
    assert not (tmp_path / "outputs/claims/tiny").exists()
    capsys.readouterr()
    assert main([*command, "tiny", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "it cannot be run here" in said and "about 2 minutes on one GPU" in said
    for words, why in (
        (["other", "--device", "cuda"], "other has no test on a GPU"),
        (["tiny", "--device", "tpu"], "--device tpu is no GPU"),
        (["tiny", "--device", "cuda", "device=cuda:1"], "both name a device"),
        (["tiny", "--device", "cuda", "--at-scale"], "are two scales"),
    ):
        assert main(["claims", "--config-dir", "conf", *words]) == 2
        assert why in capsys.readouterr().err


def test_verdicts_on_a_gpu_stand_beside_those_of_the_same_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_for_pages_alone(monkeypatch)
    claims = {name: content(name, ClaimKind.ANY, 0.02) for name in ("one", "two", "three")}
    there = {f"{name}-on-gpu": content(name, ClaimKind.ANY, 0.02, scope="large models") for name in ("one", "two")}
    here, gpu = tmp_path / "claims", tmp_path / "claims-on-gpu"
    for folder, name, mean in ((here, "one", 0.03), (here, "three", 0.03), (gpu, "one-on-gpu", -0.3)):
        (folder / name).mkdir(parents=True)
        claim = claims.get(name) or there[name]
        write_result(complete(name, claim, mean), folder / name / "claim.json")
    on_gpu = read_suite(gpu, there, dict.fromkeys(there, NOW), [])
    write_page(here, claims, dict.fromkeys(claims, NOW), on_gpu=on_gpu)
    table = pd.read_csv(here / "claims.csv", index_col="claim")
    assert table.loc["one", "verdict"] == "reproduced" and table.loc["one", "verdict_on_gpu"] == "contradicted"
    assert table.loc["one", "effect_on_gpu"] == pytest.approx(-0.3)
    assert table.verdict_on_gpu.isna().sum() == 2
    page = (here / "claims.html").read_text()
    assert ">on a GPU</th>" in page and "contradicted, −0.3" in page and "large models" in page
    values = json.loads((here / "claims.json").read_text())["claims"]
    assert (values["one"]["on_gpu"], values["two"]["on_gpu"], values["three"]["on_gpu"]) == (
        "contradicted",
        "not run",
        None,
    )
    # Those on a GPU are corrected for each other alone, and change nothing here.
    alone = complete("one-on-gpu", there["one-on-gpu"], -0.3).judgement
    assert alone is not None and alone.verdict is Verdict.CONTRADICTED
    by_name = {entry.name: entry for entry in on_gpu.entries}
    assert by_name["one-on-gpu"].corrected.p_against == pytest.approx(2 * alone.p_against)
    write_page(here, claims, dict.fromkeys(claims, NOW))
    assert ">on a GPU</th>" not in (here / "claims.html").read_text()


def test_our_claims_on_a_gpu_are_those_that_people_ask_about_and_fit_into_a_lease() -> None:
    derived = claims_on_gpu(read_claims())
    asked = {claim.base for claim in derived.values()}
    assert asked >= {*MOST_WANTED}
    owners = {derived[claim.runs].base for claim in derived.values()}
    assert asked - {*MOST_WANTED} <= owners  # others are there for their runs alone
    assert sum(claim.minutes for claim in derived.values()) <= 25
    for name, claim in derived.items():
        assert why_unregistered(claim) == "", name
        assert claim.kind is not ClaimKind.LARGER, name
        check_claim(Way(device="cuda").apply(claim), [0])
