"""What sentences of claims say of sizes, and that none is registered that says another than is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_claims import read_one, write_claim

from normbench.claims.claim import read_claims
from normbench.claims.registering import register
from normbench.cli import main
from normbench.errors import UsageError
from normbench.tell.claim_sizes import find_mismatch, find_sizes, names_size, write_least, write_tested


def claim(sentence: str, kind: str, margin: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"claim": sentence, "kind": kind, "margin": margin, "unit": unit, **more}


@pytest.mark.parametrize(
    ("sentence", "margin", "unit"),
    [
        ("RMSNorm is better by at least 0.02 nats", 0.02, "nats"),
        ("It is worse by 1 percentage point", 1, "percentage points"),
        ("It is worse by 2 points or more", 2, "percentage points"),
        ("It gains 1 BLEU", 1, "BLEU"),
        ("It loses 0.3 points of accuracy a halving", 0.3, "percentage points a halving"),
        ("nGPT needs half as many steps", 1, "doublings"),
        ("nGPT is twice as fast", 1, "doublings"),
        ("It bears a rate larger by a factor of 4", 2, "doublings"),
        ("It bears a rate four times as large", 2, "doublings"),
        ("It takes 14 times fewer steps", 3.807, "doublings"),
        ("A step is faster by at least 5 %", 0.05, "log ratio"),
        ("A step takes 20 % less time", 0.223, "log ratio"),
        ("The memory is 1.5-fold", 0.405, "log ratio"),
        ("It says 0.5 of them", 0.5, ""),
        ("By at least 2 % of all it is so", 0.02, "share of measurements"),
    ],
)
def test_a_sentence_names_its_margin_in_the_words_of_its_unit(sentence: str, margin: float, unit: str) -> None:
    sized = claim(sentence, "sized", margin, unit)
    assert names_size(sized) and find_mismatch(sized) == "" and write_tested(sized) == sentence
    for other in (3 * margin, margin / 3):
        assert not names_size({**sized, "margin": other})
        assert "names no such size" in find_mismatch({**sized, "margin": other})
    if unit:
        said = find_mismatch({**sized, "kind": "any"})
        assert "kind: any tests no size, and the sentence says" in said


@pytest.mark.parametrize("kind", ["sized", "any"])
def test_what_is_proposed_is_accepted(kind: str) -> None:
    for margin, unit in ((0.02, "nats"), (1, "doublings"), (2, "doublings"), (0.05, "log ratio"), (0.5, "log ratio"),
                         (1, "percentage points"), (0.1, "share of all"), (0.3, "Kendall's τ"), (3, "")):  # fmt: skip
        vague = claim("It is better", kind, margin, unit)
        said = find_mismatch(vague)
        if kind == "any":
            assert said == ""
            continue
        assert write_least(vague) in said, unit
        assert find_mismatch({**vague, "claim": write_tested(vague)}) == "", unit


@pytest.mark.parametrize(
    "sentence",
    [
        "BatchNorm degrades at batches of 2, and GroupNorm does not",
        "Derf is better in 12 blocks after 500 steps",
        "deeper blocks are worth less than those of the first half",
        "ε of 1e-8 or 1e-3 does not matter",
        "BatchNorm with a tenth of the paper's noise trains better than no norm",
    ],
)
def test_numbers_of_something_else_are_no_sizes(sentence: str) -> None:
    for unit in ("nats", "doublings", "log ratio", "percentage points", "BLEU"):
        assert find_sizes(sentence, unit) == []


@pytest.mark.parametrize(
    ("sentence", "margin", "unit"),
    [
        ("A step takes 20 % less time", 0.182, "log ratio"),  # which is 20 % more
        ("A step takes 20 % more time", 0.223, "log ratio"),
        ("It needs half as many steps, and is better by 0.02 nats", 0.02, "nats"),
        ("It needs half as many steps, and a third as much time", 1, "doublings"),
    ],
)
def test_a_sentence_that_names_another_size_too_is_not_tested(sentence: str, margin: float, unit: str) -> None:
    said = find_mismatch(claim(sentence, "sized", margin, unit))
    assert "names no such size" in said or "besides: leave that out" in said


def test_the_tested_sentence_has_the_size_that_the_published_one_leaves_out() -> None:
    parity = claim("RMSNorm is as good as LayerNorm", "parity", 0.03, "nats")
    assert write_tested(parity) == "RMSNorm is as good as LayerNorm, to within 0.03 nats"
    assert find_mismatch(parity) == ""
    named = claim("RMSNorm is within 0.03 nats of LayerNorm", "parity", 0.03, "nats")
    assert write_tested(named) == named["claim"] and find_mismatch(named) == ""
    other = claim("RMSNorm is within 0.6 nats of LayerNorm", "parity", 0.03, "nats")
    assert "the sentence says '0.6 nats', and the margin is 0.03 nats" in find_mismatch(other)
    assert "less than 1 percentage point" in write_tested(claim("No worse", "at_least", 1, "percentage points"))
    assert write_tested(claim("Flat", "slope", 0.1, "exponent", target=-0.5)).endswith("exponent −0.5, to within 0.1")
    for one in read_claims().values():
        assert one.claim in write_tested(one.content), one.name


def test_claims_of_the_kinds_of_today_say_what_is_tested() -> None:
    for name, one in read_claims().items():
        if one.kind != "larger":
            assert find_mismatch(one.content) == "", name


def test_a_claim_whose_sentence_says_another_size_is_not_registered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_claim(tmp_path, kind="sized", margin=1, unit="doublings", claim="RMSNorm needs fewer steps")
    command = ["claims", "--config-dir", str(tmp_path / "conf"), "tiny", "--register", "--reason", "to see"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "tiny.yaml, line 1: claim: kind: sized tests an effect of 1 doubling or more" in said
    assert "with this margin it should say half as many" in said
    assert not (tmp_path / "conf" / "claim" / "REGISTERED").exists()
    write_claim(tmp_path, kind="larger", margin=0.02)
    with pytest.raises(UsageError, match=r"write sized, with a sentence that names its size \(by at least 0.02 nats\)"):
        register(read_one(tmp_path), "to see", "2026-11-29")
    write_claim(tmp_path, kind="any", effect="log2(steps(ln, ln) / steps(rms, ln))", unit="doublings")
    with pytest.raises(UsageError, match=r"effect: steps\(\) counts a run .* write speedup"):
        register(read_one(tmp_path), "to see", "2026-11-29")
    write_claim(tmp_path, kind="sized", margin=1, unit="doublings", claim="RMSNorm needs half as many steps")
    assert main(command) == 0
