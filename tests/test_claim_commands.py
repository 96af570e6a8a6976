"""Commands on claims that disturb one another, that look twice, and that run at another scale; tiny claims all."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from killing import Server, Trap
from test_claims import MACHINE, WORDS, read_one, write_claim
from test_claims import run as run  # a fixture

from normbench.claims.claim import read_claims
from normbench.claims.files import read_result
from normbench.claims.measuring import Measured
from normbench.claims.registering import register
from normbench.claims.run import CannotBegin, ClaimRun, estimate_minutes
from normbench.claims.suite import ClaimStanding, Way
from normbench.cli import main
from normbench.commands.claims import ClaimsRequest, chosen_names, describe_standing
from normbench.errors import UsageError
from normbench.results.claimed import ClaimResult
from normbench.results.effects import ArmValue
from normbench.sweep.sweep import Sweep, report_nothing

pytest_plugins = ["run_fixtures"]

Run = Callable[..., int]


def register_all(folder: Path, *names: str) -> None:
    for name in names:
        register(read_one(folder, name), "a test", "2026-11-28")


def result_of(folder: Path, way: str = "claims", name: str = "tiny") -> ClaimResult | None:
    return read_result(folder / "outputs" / way / name / "claim.json")


# ---- runs that are made up


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Effects by seed, which a test fills in, in place of runs. The claims are those of the test alone."""
    planted: dict[int, float] = {}

    def make(one: ClaimRun, seeds: Sequence[int]) -> tuple[int, Measured]:
        measured = Measured()
        for seed in seeds:
            measured.add("rms", [ArmValue(seed, {}, 1.0)])
            measured.add("ln", [ArmValue(seed, {}, 1.0 + planted[seed])])
        one.write_note()
        return 0, measured

    monkeypatch.setattr(ClaimRun, "make", make)
    monkeypatch.setattr("normbench.claims.claim.config_directory", lambda: tmp_path / "nothing")
    monkeypatch.setattr("normbench.record.machine.CHECKOUT", tmp_path / "nothing")  # as of an installed package
    return planted


@pytest.mark.parametrize(
    ("early", "late", "seeds", "verdict"),
    [
        ((0.30, 0.31, 0.29), (), 3, "reproduced"),  # clear at the first look
        ((-0.30, -0.31, -0.29), (), 3, "contradicted"),
        ((0.30, -0.20, 0.05), (0.30, 0.31, 0.29), 6, "inconclusive"),  # still open at the last
        ((0.30, 0.05, 0.20), (0.21, 0.20, 0.22), 6, "reproduced"),
    ],
    ids=["stops", "stops against it", "stays open", "goes on"],
)
def test_a_second_look_is_taken_only_where_the_first_settles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effects: dict[int, float], early: tuple[float, ...],
    late: tuple[float, ...], seeds: int, verdict: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_claim(tmp_path, kind="any", margin=0.1, seeds=[3, 6])
    register_all(tmp_path, "tiny")
    effects.update(enumerate(early + late))  # a look that is not planned would find no effect
    claims = read_claims([tmp_path / "conf"])
    assert ClaimRun.of(claims["tiny"], claims, Way()).run(report_nothing) == 0
    result = result_of(tmp_path)
    assert result is not None and result.judgement is not None
    assert (result.judgement.verdict, result.judgement.n, result.judgement.level) == (verdict, seeds, 0.0294)
    assert list(result.values) == list(range(seeds))


def test_seeds_count_from_the_first_one_of_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effects: dict[int, float]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_claim(tmp_path, kind="any", margin=0.1, seeds=[3, 6], first_seed=7)
    register_all(tmp_path, "tiny")
    effects.update({7: 0.3, 8: -0.2, 9: 0.05, 10: 0.3, 11: 0.31, 12: 0.29})
    claims = read_claims([tmp_path / "conf"])
    one = ClaimRun.of(claims["tiny"], claims, Way())
    assert one.run(report_nothing) == 0
    result = result_of(tmp_path)
    assert result is not None and list(result.values) == [7, 8, 9, 10, 11, 12]
    assert one.result == result  # which files.py finds nothing wrong with
    write_claim(tmp_path, kind="any", margin=0.1, seeds=[3, 6], first_seed=100)
    with pytest.raises(UsageError, match="first_seed: 100 is not a seed, from 0 to 99"):
        read_claims([tmp_path / "conf"])
    write_claim(tmp_path, kind="any", margin=0.1, seeds=[3, 6], first_seed=95)  # the last of which has been tried
    with pytest.raises(UsageError, match="first_seed: 95 with 6 seeds ends at 100, and seeds from 100 on are for tria"):
        read_claims([tmp_path / "conf"])


def test_a_withdrawn_claim_is_listed_struck_and_run_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effects: dict[int, float], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    write_claim(tmp_path, kind="any", margin=0.1, seeds=3)
    register_all(tmp_path, "tiny")
    effects.update({0: 0.3, 1: 0.31, 2: 0.29})
    claims = read_claims([tmp_path / "conf"])
    assert ClaimRun.of(claims["tiny"], claims, Way()).run(report_nothing) == 0
    digest = claims["tiny"].digest
    withdrawn = {"date": "2026-11-29", "why": "Too few steps", "by": ["longer"]}
    registered = claims["tiny"].registered
    write_claim(tmp_path, kind="any", margin=0.1, seeds=3, withdrawn=withdrawn, registered=registered)
    claims = read_claims([tmp_path / "conf"])
    assert claims["tiny"].digest == digest
    line = describe_standing(ClaimStanding.of(claims["tiny"], claims, Way()))
    assert str(line.label) == "reproduced" and line.label.style == "strike" and not line.is_complete
    assert line.reason == "on 2026-11-29; see longer"
    capsys.readouterr()
    assert main(["claims", "--config-dir", "conf"]) == 0
    (listed,) = (row for row in capsys.readouterr().out.splitlines() if row.startswith("tiny "))
    assert listed.split()[1:] == ["on", "2026-11-29;", "see", "longer", "reproduced"]
    file = tmp_path / "outputs" / "claims" / "tiny" / "claim.json"
    file.write_text(file.read_text().replace("0.31", "0.41"))
    line = describe_standing(ClaimStanding.of(claims["tiny"], claims, Way()))
    assert (str(line.label), line.reason) == ("", "on 2026-11-29; see longer")  # nobody is asked to run it again
    assert chosen_names(ClaimsRequest(("all",), (), ()), claims) == []
    assert chosen_names(ClaimsRequest(("tiny",), (), ()), claims) == ["tiny"]


@pytest.mark.slow
def test_a_larger_scale_has_a_folder_and_a_family_of_its_own(
    tmp_path: Path, run: Run, effects: dict[int, float], capsys: pytest.CaptureFixture[str]
) -> None:
    larger = {"words": ["trainer.steps=9"], "hours": 2, "machine": "one H100"}
    write_claim(tmp_path, kind="any", margin=0.1, seeds=3, at_scale=larger)
    write_claim(tmp_path, "small", kind="any", margin=0.1, seeds=3)
    register_all(tmp_path, "tiny", "small")
    effects.update({0: 0.30, 1: 0.31, 2: 0.29})
    assert run("small", "--at-scale", *MACHINE) == 2
    assert "small says nothing of a larger scale" in capsys.readouterr().err
    assert run("tiny", "--at-scale", *MACHINE) == 0
    result = result_of(tmp_path, "claims-at-scale")
    assert result is not None and result.judgement is not None and result.judgement.verdict == "reproduced"
    assert "trainer.steps=9" in result.claim["words"] and "trainer.steps=3" not in result.claim["words"]
    assert not (tmp_path / "outputs" / "claims").exists()
    values = json.loads((tmp_path / "outputs" / "claims-at-scale" / "claims.json").read_text())
    assert [*values["own"]["claims"]] == ["tiny"]  # with a family of one: `small` has no larger scale
    assert values["own"]["claims"]["tiny"]["corrected"]["p"] == pytest.approx(result.judgement.p)
    assert values["own"]["claims"]["tiny"]["claim"]["scope"] == "trainer.steps=9"
    # What was found there says nothing of the claim at its own scale.
    capsys.readouterr()
    assert run() == 0
    assert "0 of 2 of your own were judged" in capsys.readouterr().out
    assert run("--at-scale") == 0
    assert "1 of 1 of your own were judged" in capsys.readouterr().out
    effects.update({0: -0.30, 1: -0.31, 2: -0.29})
    assert run("tiny", *MACHINE) == 0
    below, above = result_of(tmp_path), result_of(tmp_path, "claims-at-scale")
    assert below is not None and below.judgement is not None and below.judgement.verdict == "contradicted"
    assert above == result


def test_a_study_is_planned_by_the_runs_that_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "placement=pre"]
    write_claim(tmp_path, study="depth", words=words, measure="loss", where={"what": "whole"}, minutes=7)
    write_claim(tmp_path, "none", study="invariance", words=["norm=rmsnorm,layernorm"], measure="departs", minutes=7)
    claims = read_claims([tmp_path / "conf"])
    trains, measures = (ClaimRun.of(claims[name], claims, Way(tuple(MACHINE))) for name in ("tiny", "none"))
    planned = trains.plan([0, 1])
    assert planned is not None and len(planned.plan.runs) == 4 and not (tmp_path / "outputs").exists()
    assert measures.plan([0, 1]) is None
    # What it measures is in the registered minutes alone, which its runs may exceed.
    for seconds, minutes in ((60.0, 7.0), (600.0, 10.0)):
        monkeypatch.setattr(Sweep, "estimate_seconds", lambda _, seconds=seconds: seconds)
        assert estimate_minutes(trains, 7.0) == minutes
    assert estimate_minutes(measures, 7.0) == 7.0


def test_a_dry_run_goes_on_where_the_data_of_a_claim_are_not_there(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_claim(tmp_path, "elsewhere", needs=["hub"])
    write_claim(tmp_path, "here")

    def plan(one: ClaimRun, seeds: Sequence[int]) -> Sweep | None:
        if one.claim.name == "elsewhere":
            raise CannotBegin("no data")
        return None

    monkeypatch.setattr(ClaimRun, "plan", plan)
    assert run("elsewhere", "here", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "it cannot be run here: no data" in printed and "\nhere: " in printed
    write_claim(tmp_path, "elsewhere")  # what needs nothing has a mistake
    assert run("elsewhere", "--dry-run") == 2


# ---- runs that are disturbed


@pytest.fixture
def without_report(tmp_path: Path) -> Iterator[None]:
    """Let a claim with the runs of `tiny` find the report on them, which takes longer than all of these runs."""
    page = tmp_path / "outputs" / "claims" / "tiny" / "report" / "report.html"
    page.parent.mkdir(parents=True)
    page.touch()
    shared = {"words": ..., "seeds": ..., "minutes": ...}
    write_claim(tmp_path, seeds=1)
    write_claim(tmp_path, "other", **shared, runs_of="tiny")
    register_all(tmp_path, "tiny", "other")
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_two_commands_at_once_share_the_runs_of_a_claim(tmp_path: Path, server: Server, run: Run) -> None:
    command = ["claims", "--config-dir", "conf", "other", *MACHINE]
    first = server.start(command, tmp_path, Trap("checkpoint", signals=(signal.SIGSTOP,)))
    first.wait_until_held()
    second = server.start(command, tmp_path)  # makes the other run, and waits for the one of the first
    second.poll(lambda: len(list(tmp_path.glob("outputs/claims/tiny/*/summary.json"))) == 1)
    first.kill(signal.SIGCONT)
    assert (first.wait(), second.wait()) == (0, 0), first.output + second.output
    assert len(list(tmp_path.glob("outputs/claims/tiny/*/summary.json"))) == 2
    result = result_of(tmp_path, name="other")
    assert result is not None and result.judgement is not None
    assert run("other", "--verify", "outputs/claims") == 0
