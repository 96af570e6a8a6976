"""What is published of claims: listed where it was not run, and verified by its values alone, from a clone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY
from test_claim_records import change, leaves_of, name_place

from normbench.claims.claim import Claim, read_claims
from normbench.claims.files import list_published, load_result, published_directory
from normbench.claims.registration import WORDS_ALONE
from normbench.claims.run import ClaimRun
from normbench.claims.suite import ClaimStanding, Way
from normbench.claims.verify import list_not_compared, verify_published
from normbench.cli import main
from normbench.record.digests import write_with_digests
from normbench.results.claimed import WITHDRAWN

PUBLISHED = REPOSITORY / "docs" / "claims"
FORGED = "decay-norms"  # a claim of parity with runs of its own, which stands


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return read_claims()


def wrong_with(claims: Mapping[str, Claim], folder: Path) -> list[str]:
    one = ClaimRun.of(claims[FORGED], claims, Way())
    (found,) = verify_published([one], folder)
    return list(found.wrong)


def test_every_published_verdict_follows_from_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--verify", str(PUBLISHED)]) == 0
    told = capsys.readouterr().out.splitlines()
    verified = {line.partition(":")[0] for line in told if ": verified by its values, as its runs are not here" in line}
    assert verified == {path.stem for path in list_published(PUBLISHED)} and len(verified) >= 40
    assert published_directory() == PUBLISHED


def forgeries(whole: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of values of which a changed one has to be told."""
    for path in leaves_of(whole):
        if path[0] in ("judgement", "values", "arms", "digest", "registered", "date", "lost"):
            yield path


def test_a_forged_number_of_a_published_result_is_told(tmp_path: Path, claims: dict[str, Claim]) -> None:
    path = tmp_path / f"{FORGED}.json"
    shutil.copy(PUBLISHED / path.name, path)
    assert wrong_with(claims, tmp_path) == []
    whole = json.loads(path.read_text())
    paths = list(forgeries(whole))
    assert len(paths) > 40
    for place in paths:
        changed = change(whole, place)
        write_with_digests(path, changed, [path.name])  # as the forger does
        told = wrong_with(claims, tmp_path)
        assert told, place
        if place[0] in ("judgement", "values"):
            assert [phrase for phrase in told if f" {name_place(place)} is " in phrase], place
        path.write_text(json.dumps(change(whole, place)))  # as whoever forgets the digest does
        said = " ".join(wrong_with(claims, tmp_path))
        assert "changed after it had been written" in said or "is missing or damaged" in said, place


def test_what_was_registered_of_a_published_claim_cannot_be_changed(tmp_path: Path, claims: dict[str, Claim]) -> None:
    path = tmp_path / f"{FORGED}.json"
    whole = json.loads((PUBLISHED / path.name).read_text())
    scheme = claims[FORGED].scheme
    beside = {key.partition(".")[2] for key in list_not_compared(scheme) if key.startswith("claim.")}
    assert scheme == WORDS_ALONE and {"source", "pilot"} <= beside
    seen = set()
    for place in leaves_of({"claim": whole["claim"]}):
        write_with_digests(path, change(whole, place), [path.name])
        told = wrong_with(claims, tmp_path)
        if told:
            seen.add(place[1])
    assert seen >= {*whole["claim"]} - beside - {"at_scale", "target"}
    for changes in ({"machine": {**whole["machine"], "commit": f"{'a' * 40}+changes"}}, {"words": whole["words"][1:]},
                    {"digest": "a" * 64}, {"minutes": -1.0}, {"date": "2026-11-01"}):  # fmt: skip
        write_with_digests(path, whole | changes, [path.name])
        assert wrong_with(claims, tmp_path), changes


def test_the_list_has_the_published_verdict_of_what_was_not_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], claims: dict[str, Claim]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["claims"]) == 0
    told = capsys.readouterr().out
    result = load_result(PUBLISHED / f"{FORGED}.json")
    assert result.judgement is not None
    heading = f"published {result.date}; not run here:"
    part = told[told.index(heading) :].partition("\npublished")[0]
    assert re.search(rf"^{FORGED} .* {result.judgement.verdict} ", part, re.MULTILINE)
    way = Way()
    standings = [ClaimStanding.of(claim, claims, way) for claim in claims.values()]
    published = [one for one in standings if one.read_published() is not None and not one.claim.withdrawn]
    judged = [one for one in published if not any("opposite" in found for found in one.claim.content.get("found", ()))]
    assert f"; {len(judged)} more have a published verdict; " in told and len(published) > len(judged) > 20
    assert f"0 of {len(claims)} claims were judged here, in " in told and WITHDRAWN in told
    name = "peri-better-unit"
    withdrawn, verdict = claims[name].withdrawn, load_result(PUBLISHED / f"{name}.json").judgement
    assert withdrawn is not None and verdict is not None
    (old,) = (line for line in told.splitlines() if line.startswith(f"{name} "))
    assert " ".join(old.split()[1:]) == f"on {withdrawn.date}; see {', '.join(withdrawn.by)} {verdict.verdict}"
    # What was run here stands in its place; what another registration has come to does not.
    here = tmp_path / "outputs" / "claims" / FORGED
    here.mkdir(parents=True)
    shutil.copy(PUBLISHED / f"{FORGED}.json", here / "claim.json")
    write_with_digests(here / "claim.json", json.loads((here / "claim.json").read_text()), ["claim.json"])
    assert main(["claims"]) == 0
    told = capsys.readouterr().out
    assert f"1 of {len(claims)} claims were judged here, in " in told
    assert f"\n{FORGED} " in told[: told.index("published 2026")]
    assert main(["claims", "--at-scale"]) == 0
    assert "published" not in capsys.readouterr().out
