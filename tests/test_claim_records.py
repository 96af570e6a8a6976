"""What is said of claims is what was measured: every number of a result, on its way from the runs to the page."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import claim_documents
import pandas as pd
import pytest
from conftest import draw_for_pages_alone
from made_claims import claims_and_digests, complete, content
from support import REPOSITORY
from test_claims import read_one, write_claim, write_rows
from test_damage import damaged

from normbench.claims import registering
from normbench.claims.claim import Claim, read_claims
from normbench.claims.files import (
    effects_again,
    find_faults,
    find_other_rule,
    load_result,
    name_of_place,
    read_results,
    write_result,
)
from normbench.claims.measuring import Measured
from normbench.claims.page import write_page
from normbench.claims.registering import Runs, compose_runs, register
from normbench.claims.registration import SCHEME
from normbench.claims.run import ClaimRun
from normbench.claims.suite import Way, is_of_machine, read_suite
from normbench.claims.verify import list_not_compared, verify
from normbench.cli import main
from normbench.errors import UsageError
from normbench.record.digests import write_with_digests
from normbench.results.effects import ArmValue
from normbench.results.rules import ClaimKind
from normbench.studies.study import read_journal, write_journal

EFFECTS = (0.21, 0.2, 0.25)


@pytest.fixture(scope="module")
def compose_once() -> Callable[[Claim, Sequence[str]], Runs]:
    """Compose the runs of a claim once: hundreds of verifications here compare the same with them."""
    composed: dict[tuple[Any, ...], Runs] = {}  # by what asks for them

    def compose_or_find(claim: Claim, options: Sequence[str]) -> Runs:
        asked = (claim.digest, claim.study, claim.words, *options)
        if asked not in composed:
            composed[asked] = compose_runs(claim, options)
        return composed[asked]

    return compose_or_find


@pytest.fixture
def claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compose_once: Callable[[Claim, Sequence[str]], Runs]
) -> ClaimRun:
    """A claim that has been reproduced, on the rows of a study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registering, "compose_runs", compose_once)
    write_claim(tmp_path, study="depth", words=["norm=rmsnorm,layernorm"], seeds=3, measure="loss", kind="any",
                margin=0.1, at_scale={"words": ["model.depth=9"], "hours": 2, "machine": "one H100"},
                pilot={"sd": 0.02, "seeds": 3}, confounds=["none"], needs=["hub"])  # fmt: skip
    register(read_one(tmp_path), "to see", "2026-11-28")
    claims = read_claims([tmp_path / "conf"])
    one = ClaimRun.of(claims["tiny"], claims, Way(("device=cpu",)))
    write_rows(one.rows_file(one.runs_folder), EFFECTS)
    one.write_note(minutes=1.5)
    measured = one.measure_study(range(3))
    one.keep(one.gather_result(measured, range(3)))
    return one


def file_of(one: ClaimRun) -> Path:
    return one.folder / "claim.json"


def wrong_with(one: ClaimRun) -> list[str]:
    (found,) = verify([one])
    return list(found.wrong)


def leaves_of(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value that a JSON holds, and of each list and mapping without values."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    found = list(items)
    if not found:
        yield path
    for key, value in found:
        yield from leaves_of(value, (*path, key))


def change(content: Any, path: tuple[Any, ...]) -> Any:
    """Return a JSON with another value at a place."""
    changed = copy.deepcopy(content)
    place = changed
    for key in path[:-1]:
        place = place[key]
    value = place[path[-1]]
    if isinstance(value, str):
        place[path[-1]] = f"{value}x"
    elif isinstance(value, dict):
        place[path[-1]] = {"ln": 1}
    elif isinstance(value, list):
        place[path[-1]] = ["norm=dyt"]
    else:
        place[path[-1]] = 1 if value is None else not value if isinstance(value, bool) else value + 1
    return changed


def name_place(path: tuple[Any, ...]) -> str:
    """Write the path of a value as verification does."""
    place = ""
    for key in path:
        place += f"[{key}]" if isinstance(key, int) else f".{key}" if place else str(key)
    return place


def is_compared(path: tuple[Any, ...]) -> bool:
    """Tell whether verification computes a value again, and does not only check what it may be."""
    words = [str(key) for key in path]
    prefixes = {".".join(words[:length]) for length in range(1, len(words) + 1)}
    return prefixes.isdisjoint(list_not_compared(SCHEME))


def test_a_claim_verifies_as_it_was_written(claim: ClaimRun) -> None:
    assert wrong_with(claim) == []
    (found,) = verify([claim])
    assert (found.verdict, found.undigested) == ("reproduced", [])


def test_several_changed_numbers_are_all_told_with_or_without_a_digest_that_fits(claim: ClaimRun) -> None:
    whole = json.loads(file_of(claim).read_text())
    changed = whole
    paths = [("judgement", key) for key in ("mean", "sd", "p", "n", "power")] + [("values", "1"), ("arms", "ln", "2")]
    for path in paths:
        changed = change(changed, path)
    file_of(claim).write_text(json.dumps(changed))
    told = wrong_with(claim)
    assert f"{file_of(claim)} changed after it had been written" in told
    write_with_digests(file_of(claim), changed, ["claim.json"])
    for wrong in (told, wrong_with(claim)):
        for path in paths:
            assert [phrase for phrase in wrong if f" {name_place(path)} is " in phrase], path


def test_rows_of_uncommitted_code_give_no_verdict(claim: ClaimRun) -> None:
    write_rows(claim.rows_file(claim.runs_folder), EFFECTS, commit="fa7f780aa0011+changes")
    assert any("made with uncommitted changes" in one for one in wrong_with(claim))
    result = claim.gather_result(claim.measure_study(range(3)), range(3))
    assert (result.status, result.judgement) == ("uncommitted code", None)
    assert [*result.values.values()] == pytest.approx([*EFFECTS])
    assert "(fa7f780aa0011+changes), which gives no verdict: commit or undo the changes, remove" in result.reason
    claim.keep(result)
    assert wrong_with(claim) == [f"it is uncommitted code: {result.reason}"]


def test_every_value_of_a_result_that_is_changed_is_told(claim: ClaimRun) -> None:
    whole = json.loads(file_of(claim).read_text())
    paths = list(leaves_of(whole))
    assert len(paths) > 70
    for path in paths:
        file_of(claim).write_text(json.dumps(change(whole, path)))
        assert wrong_with(claim), path


def test_every_value_is_computed_again_whoever_has_written_the_digest(claim: ClaimRun) -> None:
    whole = json.loads(file_of(claim).read_text())
    del whole["digests"]
    unseen = set[str]()
    for path in leaves_of(whole):
        write_with_digests(file_of(claim), change(whole, path), ["claim.json"])
        wrong = wrong_with(claim)
        if not wrong:
            assert not is_compared(path), path
            unseen.add(".".join(str(key) for key in path))
        if path[0] in ("judgement", "values", "arms"):
            assert [phrase for phrase in wrong if f" {name_place(path)} is " in phrase], path
    # Of what is only checked, most is told as well: no more passes than what is said beside a claim, the version that
    # judged, and how the machine was used.
    of_machine = {f"words.{place}" for place, word in enumerate(whole["words"]) if is_of_machine(word)}
    assert {one for one in unseen if not one.startswith("claim.")} == {"machine.normbench", *of_machine}
    assert len(of_machine) == 2 < len(whole["words"])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"minutes": 1000.0}, "minutes is 1000.0, where 1.50 are noted"),
        ({"minutes": -1.0}, "minutes is −1"),
        ({"date": "2026-11-26"}, "date is 2026-11-26, and not a day from its registration to today"),
        ({"date": "9999-01-01"}, "date is 9999-01-01"),
        ({"date": "yesterday"}, "date is yesterday"),
        ({"registered": "2026-11-01"}, "registered is 2026-11-01"),
        ({"words": ["norm=dyt"]}, "words are not those of the claim: norm=dyt"),
        ({"report": "elsewhere.html"}, "report is"),
    ],
)
def test_what_no_run_tells_is_within_what_it_may_be(claim: ClaimRun, changed: dict[str, Any], said: str) -> None:
    whole = json.loads(file_of(claim).read_text())
    write_with_digests(file_of(claim), whole | changed, ["claim.json"])
    assert any(said in one for one in wrong_with(claim))


def test_a_result_and_rows_of_before_digests_are_read_and_said_to_be(
    claim: ClaimRun, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(file_of(claim).read_text())
    del whole["digests"]
    file_of(claim).write_text(json.dumps(whole))
    claim.rows_file(claim.runs_folder).with_name("study.json").write_text("{}")
    (found,) = verify([claim])
    assert found.wrong == [] and len(found.undigested) == 2
    assert main(["claims", "--config-dir", "conf", "--verify", "outputs/claims"]) == 0
    assert "tiny: verified, reproduced (claim.json and 1 more: made before digests" in capsys.readouterr().out


def test_rows_that_were_changed_are_told_and_none_of_a_study_that_has_not_ended(claim: ClaimRun) -> None:
    rows = claim.rows_file(claim.runs_folder)
    whole = rows.read_text()
    rows.write_text(whole.replace("1.21", "1.91"))
    (wrong,) = wrong_with(claim)
    assert "has rows.csv changed after the study had ended" in wrong
    rows.write_text(whole)
    rows.with_name("study.json").unlink()
    (wrong,) = wrong_with(claim)
    assert "study.json is missing or damaged" in wrong


def test_damage_is_told_or_harmless(claim: ClaimRun) -> None:
    rows = claim.rows_file(claim.runs_folder)
    files = [file_of(claim), rows, rows.with_name("study.json"), claim.runs_folder / "registration.json"]
    whole = file_of(claim).read_text()
    for number in range(80):
        draw = random.Random(number)
        path = draw.choice(files)
        before = path.read_bytes()
        path.write_bytes(damaged(before, draw))
        (found,) = verify([claim])
        if not found.wrong:
            assert json.loads(file_of(claim).read_text()) == json.loads(whole), number
        path.write_bytes(before)
    assert wrong_with(claim) == []


# ---- the page, and what is published


def write_one(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write the result of `larger` with changes, and a digest that fits them; return it as it was."""
    claims, _ = claims_and_digests()
    result = complete("larger", claims["larger"], 0.03)
    (folder / "larger").mkdir(parents=True, exist_ok=True)
    path = folder / "larger" / "claim.json"
    write_result(result, path)
    whole: dict[str, Any] = json.loads(path.read_text())
    for place, value in changes.items():
        section, _, key = place.rpartition("__")
        (whole[section] if section else whole)[key] = value
    write_with_digests(path, whole, ["claim.json"])
    return whole


FALSE: list[dict[str, Any]] = [
    {"judgement__mean": -0.9, "judgement__n": 300},
    {"judgement__sd": 0.0},
    {"judgement__p": 0.9},
    {"judgement__p_against": 0.0},
    {"judgement__interval": [0.01, 0.02]},
    {"judgement__inner": None},
    {"judgement__level": 0.5},
    {"judgement__power": 0.1},
    {"judgement__note": "it is certain"},
    {"judgement__seeds_to_settle": 3},
    {"judgement__verdict": "contradicted"},
    {"claim__margin": 0.9},
    {"arms__one": dict.fromkeys(map(str, range(10)), 3.0)},
    {"arms__three": dict.fromkeys(map(str, range(10)), 3.0)},
    {"values__0": 9.0},
    {"unreached": {"one": 11}},
    {"lost": {"one": -1}},
    {"minutes": -5.0},
    {"minutes": float("inf")},
    {"date": "<b>"},
    {"machine__commit": "fa7f780aa0011+changes"},
]


@pytest.mark.parametrize("changes", FALSE, ids=lambda changes: "-".join(changes))
def test_a_result_that_does_not_follow_from_its_values_is_told_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    claims, digests = claims_and_digests()
    write_one(tmp_path)
    left_out = list[str]()
    entries = read_suite(tmp_path, claims, digests, left_out).entries
    assert left_out == [] and [entry.name for entry in entries if entry.judgement] == ["larger"]
    write_one(tmp_path, **changes)
    suite = read_suite(tmp_path, claims, digests, left_out)
    assert len(left_out) == 1 and "larger" in left_out[0]
    assert not suite.judgements and not any(entry.result for entry in suite.entries)
    if changes is FALSE[0]:
        draw_for_pages_alone(monkeypatch)
        write_page(tmp_path, claims, digests)
        page = (tmp_path / "claims.html").read_text()
        assert "Left out: the result of larger contradicts itself" in page and "300 seeds" not in page
        assert "it is left out" in caplog.text
        assert json.loads((tmp_path / "claims.json").read_text())["left_out"] == left_out
        table = pd.read_csv(tmp_path / "claims.csv", index_col="claim")
        assert table.loc["larger", "verdict"] == "not run"


def test_a_result_in_the_folder_of_another_claim_replaces_none(tmp_path: Path) -> None:
    claims, digests = claims_and_digests()
    write_one(tmp_path)
    result = load_result(tmp_path / "larger" / "claim.json")
    for name in ("worse", "zzz"):  # each is read after it
        (tmp_path / name).mkdir()
        write_result(replace(complete("larger", claims["larger"], -0.5)), tmp_path / name / "claim.json")
    write_result(complete("larger", claims["larger"], -0.5), tmp_path / "a.json")
    older = tmp_path / "older" / "larger-cccccccc"
    older.mkdir(parents=True)
    write_result(complete("worse", claims["worse"], 0.5), older / "claim.json")
    left_out = list[str]()
    entries = read_suite(tmp_path, claims, digests, left_out).entries
    (entry,) = (entry for entry in entries if entry.name == "larger")
    assert entry.result == result and len(left_out) == 4
    assert any(f"lies where that of {name} belongs" in one for name in ("worse", "zzz") for one in left_out)
    assert not any(entry.older for entry in entries)


def test_the_place_of_an_older_result_ends_in_a_digest() -> None:
    """And perhaps in a number, where there are several; a name may have such a part, too."""
    assert name_of_place(Path("older/eps-00000001-cccccccc2/claim.json")) == "eps-00000001"


def test_a_published_result_that_is_damaged_stops_the_documents(tmp_path: Path) -> None:
    claims = read_claims()
    results = read_results(REPOSITORY / "docs" / "claims", [])
    assert len(results) >= 40
    for name, result in results.items():
        assert find_other_rule(result, claims[name].content) == []
    names = sorted(results)
    published = tmp_path / "docs" / "claims"
    published.mkdir(parents=True)
    for name in names[:3]:
        shutil.copy(REPOSITORY / "docs" / "claims" / f"{name}.json", published)
    path = published / f"{names[0]}.json"
    whole = json.loads(path.read_text())
    for digests in ({**whole["digests"]}, None):
        changed = copy.deepcopy(whole)
        changed["judgement"]["mean"] += 0.1
        path.write_text(json.dumps({**changed, "digests": digests}))
        with pytest.raises(UsageError, match=names[0]):
            claim_documents.write_documents(tmp_path)
    assert not (tmp_path / "docs" / "claims.md").exists()


def test_a_damaged_result_is_struck_in_the_list(
    claim: ClaimRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    file_of(claim).write_text(file_of(claim).read_text().replace('"n": 3', '"n": 300'))
    assert main(["claims", "--config-dir", "conf"]) == 0
    told = capsys.readouterr().out
    assert "claim.json changed after it had been written: run it again" in told and "0 of 1 of your own" in told


# ---- the journal of a study


def test_a_line_of_the_journal_that_was_changed_is_measured_again_and_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for key in ("a", "b", "c"):
        write_journal(path, key, [{"loss": 1.25, "nan": float("nan")}])
    whole = path.read_bytes()
    assert [*read_journal(path).rows] == ["a", "b", "c"] and read_journal(path).notes == []
    first, second, third = whole.splitlines(keepends=True)
    for changed in (
        second.replace(b"1.25", b"1.35"),
        second.replace(b"sha256", b"sha257"),
        second[: second.index(b', "sha')] + b"}\n",
        second[: second.index(b', "sha')].replace(b"1.25", b"1.35") + b', "sha256": null}\n',
    ):
        path.write_bytes(first + changed + third)
        found = read_journal(path)
        assert [*found.rows] == ["a", "c"] and "is measured again" in found.notes[0]
        assert path.read_bytes() == first + third
    path.write_bytes(whole + b'{"key": "torn')  # as a kill leaves it
    assert [*read_journal(path).rows] == ["a", "b", "c"] and read_journal(path).notes == []
    path.write_bytes(whole.rstrip(b"\n"))
    read_journal(path)
    write_journal(path, "d", [])
    assert [*read_journal(path).rows] == ["a", "b", "c", "d"]


def test_a_journal_of_before_digests_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"key": "a", "rows": [{"loss": 1.0}]}\n{"key": "b", "rows": []}\n')
    found = read_journal(path)
    assert [*found.rows] == ["a", "b"] and "2 lines made before lines had digests" in found.notes[0]
    write_journal(path, "c", [{"loss": 2.0}])
    again = read_journal(path)
    assert again.rows == {**found.rows, "c": [{"loss": 2.0}]} and again.notes == []
    path.write_bytes(path.read_bytes().replace(b"1.0", b"1.5"))
    assert [*read_journal(path).rows] == ["b", "c"], "from now on a change of them is told"


def test_values_of_an_arm_that_has_several_at_a_seed_are_kept_and_give_the_effect_again(tmp_path: Path) -> None:
    measured = Measured()
    for seed in (0, 1, 2):
        for depth in (2, 4, 8):
            keys = {"model.depth": str(depth), "norm": "rmsnorm", "ms": str(depth + seed)}  # ms: measured as well
            measured.add("one", [ArmValue(seed, keys, seed + 0.5 * depth)])
        measured.add("two", [ArmValue(seed, {}, 1.0)])
    cells = measured.cells(["ms"])
    assert [dict(cell.keys) for cell in cells] == [{"model.depth": depth} for depth in ("2", "4", "8")]
    assert cells[1].values == {0: 2.0, 1: 3.0, 2: 4.0}
    assert measured.cells() == ()  # with that column no place has all seeds
    claim = content("A claim", ClaimKind.ANY, 0.02, effect="slope(one, model.depth) - 0 * two", seeds=[3])
    values = dict.fromkeys((0, 1, 2), 0.5)
    result = complete("tiny", claim, 0.5, values=values, arms=measured.values_by_arm(), cells=cells)
    assert effects_again(result) == pytest.approx(values)
    assert not list(find_faults(result))
    path = tmp_path / "tiny.json"
    write_result(result, path)
    assert load_result(path).cells == cells
    changed = replace(cells[0], values={**cells[0].values, 1: 7.0})
    (fault,) = find_faults(replace(result, cells=(changed, *cells[1:])))
    assert fault == "values.1 is −0.214286, and not 0.5"  # of a line through 7, 3 and 5 at 2, 4 and 8
    fewer = replace(cells[0], values={0: 1.0})
    assert "a cell of one has other seeds than values" in list(find_faults(replace(result, cells=(fewer, *cells[1:]))))


def test_a_place_that_has_two_values_at_one_seed_while_another_has_none_is_not_kept() -> None:
    measured = Measured()
    for depth, seed in ((2, 0), (2, 0), (2, 1), (4, 0)):
        measured.add("one", [ArmValue(seed, {"model.depth": str(depth)}, 1.0)])
    assert measured.cells() == ()
