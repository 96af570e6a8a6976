"""The page on claims: what counts, what is struck, and the same numbers in all of its files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browsing import needs_browser
from conftest import draw_for_pages_alone, make_once
from made_claims import NOW, SHAPE, claims_and_digests, complete, content, write_all
from scipy import stats
from test_report_browser import SIZES, ask, opened

from normbench.claims.figures import draw_forest, explain, title_effects
from normbench.claims.files import write_result
from normbench.claims.page import write_page
from normbench.claims.suite import read_suite, settling_words
from normbench.results.claimed import ClaimResult, Corrected, RegisteredClaim, Status, judge
from normbench.results.luck import AT_MOST
from normbench.results.rules import ClaimKind, ClaimRule, Verdict
from normbench.results.statistics import holm
from normbench.tell.claim_sentences import list_notes, write_effect, write_interval, write_settling, write_suite
from normbench.wording import short, write_minutes

pytest_plugins = ["browser_fixtures"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of all claims, with its files."""
    return make_once(tmp_path_factory, "claims", write_claims)


def write_claims(folder: Path) -> None:
    """Write the results of all claims into a folder, and their page."""
    write_all(folder)
    with pytest.MonkeyPatch.context() as patch:
        draw_for_pages_alone(patch)
        written = write_page(folder, *claims_and_digests())
    assert [path.name for path in written] == ["claims.html", "claims.json", "claims.csv", "claims.tex"]


def section(page: str, name: str) -> str:
    """What the page says of a claim."""
    found = re.search(
        rf'<details class="claim">(?:(?!<details).)*?<article id="claim--{name}".*?</article>', page, re.DOTALL
    )
    assert found, name
    return found[0]


def test_a_withdrawn_claim_is_struck_and_counts_as_one_that_is_not_run(tmp_path: Path) -> None:
    claim = content("RMSNorm is better", ClaimKind.ANY, 0.02)
    withdrawn = {"date": "2026-11-29", "why": "One arm was broken", "by": ["better", "best"]}
    claims = {name: dict(claim) for name in ("old", "better", "best", "other")}
    claims["old"]["withdrawn"] = withdrawn
    for name, mean in (("old", 0.5), ("better", 0.03)):
        (tmp_path / name).mkdir()
        write_result(complete(name, claim, mean), tmp_path / name / "claim.json")
    suite = read_suite(tmp_path, claims, dict.fromkeys(claims, NOW), [])
    entries = {entry.name: entry for entry in suite.entries}
    old = entries["old"]
    assert (old.standing, old.judgement, len(old.older)) == ("withdrawn", None, 1)
    assert suite.entries[-1] is old and suite.withdrawn == [old] and len(suite.judgements) == 1
    # It stays in the family of Holm's correction, as one that is not run, and makes no other p smaller.
    alone = complete("better", claim, 0.03).judgement
    assert alone is not None and entries["better"].corrected.p == pytest.approx(holm([alone.p, 1.0, 1.0, 1.0])[0])
    said = write_suite(suite)
    assert said[0].startswith("1 of 4 registered claims have a verdict") and "withdrawn" in said[1]
    write_page(tmp_path, claims, dict.fromkeys(claims, NOW))
    of_old = section((tmp_path / "claims.html").read_text(), "old")
    assert re.search(r"<s>reproduced, \+0\.5\d* nats", of_old)
    assert "One arm was broken. better and best stand for it." in of_old
    table = pd.read_csv(tmp_path / "claims.csv", index_col="claim")
    assert table.loc["old", "verdict"] == "withdrawn" and pd.isna(table.loc["old", "effect"])


def test_a_claim_whose_own_confounds_say_the_opposite_has_no_verdict(tmp_path: Path) -> None:
    claim = content("RMSNorm is better", ClaimKind.ANY, 0.02)
    claims = {name: dict(claim) for name in ("turned", "better", "later")}
    claims["turned"]["found"] = [
        {"date": "2026-11-29", "what": "It was the rate.", "opposite": "at a rate of 0.001"},
        {"date": "2026-11-29", "what": "The wind helped."},
    ]
    claims["later"]["found"] = claims["turned"]["found"]  # without runs there is nothing to turn
    for name, mean in (("turned", 0.5), ("better", 0.03)):
        (tmp_path / name).mkdir()
        write_result(complete(name, claim, mean), tmp_path / name / "claim.json")
    suite = read_suite(tmp_path, claims, dict.fromkeys(claims, NOW), [])
    entries = {entry.name: entry for entry in suite.entries}
    turned = entries["turned"]
    assert (turned.standing, turned.judgement, turned.corrected.verdict) == ("not settled", None, None)
    assert turned.reason == "its own confounds say the opposite at a rate of 0.001"
    assert suite.not_settled == [turned] and len(suite.judgements) == 1 and entries["later"].standing == "not run"
    # It stays in the family of Holm's correction, as one that is not run.
    alone = complete("better", claim, 0.03).judgement
    assert alone is not None and entries["better"].corrected.p == pytest.approx(holm([alone.p, 1.0, 1.0])[0])
    said = write_suite(suite)
    assert said[0].startswith("1 of 3 registered claims have a verdict") and "1 more ran and had no verdict" in said[1]
    write_page(tmp_path, claims, dict.fromkeys(claims, NOW))
    page = section((tmp_path / "claims.html").read_text(), "turned")
    assert ">not settled</span>" in page and "the opposite at a rate of 0.001" in page and "It was the rate." in page
    assert "+0.5" in page and ">reproduced</span>" not in page  # the effect is told, and of the verdict only in words
    table = pd.read_csv(tmp_path / "claims.csv", index_col="claim")
    assert table.loc["turned", "verdict"] == "not settled" and pd.isna(table.loc["turned", "effect"])


def test_what_was_found_after_the_runs_is_told_as_such(folder: Path) -> None:
    said = "Found after the runs, 2026-12-24: The wind helped."
    page = (folder / "claims.html").read_text()
    assert said in section(page, "larger") and page.count("Found after") == 1
    table = pd.read_csv(folder / "claims.csv", index_col="claim")
    assert table.found.dropna().to_dict() == {"larger": said}


def test_verdicts_count_for_the_registration_of_today_alone(folder: Path) -> None:
    suite = read_suite(folder, *claims_and_digests(), [])
    entries = suite.entries
    by_name = {entry.name: entry for entry in entries}
    standings = {name: entry.standing for name, entry in by_name.items()}
    assert standings == {
        "larger": "reproduced", "smaller": "not reproduced", "worse": "contradicted", "same": "parity",
        "open": "inconclusive", "harmless": "reproduced", "slope": "reproduced", "exact": "reproduced",
        "later": "not run", "data": "not run", "tried": "trial", "moved": "not run",
    }  # fmt: skip
    assert [result.digest[0] for result in by_name["moved"].older] == ["b"]
    assert len(by_name["same"].older) == 1 and not by_name["larger"].older
    assert by_name["larger"].lost == 2 and "wikitext2" in by_name["data"].reason
    # Twelve are registered, so that Holm's correction is over twelve, of which four are not judged and one is exact.
    larger = by_name["larger"].judgement
    assert larger is not None and larger.p == pytest.approx(stats.ttest_1samp(0.03 + 0.01 * SHAPE, 0).pvalue)
    p_values = [entry.judgement.p if entry.judgement else 1.0 for entry in entries]
    assert len(p_values) == 12 and p_values.count(0.0) == 1
    assert [entry.corrected.p for entry in entries] == pytest.approx(holm(p_values))
    assert len(suite.judgements) == 8 and suite.by_chance == pytest.approx(0.35)
    assert [(chance.verdicts, chance.shares_luck) for chance in suite.chances] == [(7, False), (0, True)]


def test_what_chance_gives_goes_by_how_rates_were_chosen(tmp_path: Path) -> None:
    claims, digests = claims_and_digests()
    claims["larger"] = content("One rate", ClaimKind.LARGER, 0.03, words=["model=nano", "sweep.lr=auto"])
    claims["same"] = content("One rate, chosen by a study", ClaimKind.PARITY, 0.03, study="smoothness")
    claims["open"] = content("Own rates", ClaimKind.PARITY, 0.01, words=["model=nano", "'sweep.lr=each'"])
    for name in ("larger", "same", "open"):
        (tmp_path / name).mkdir()
        write_result(complete(name, claims[name], 0.03), tmp_path / name / "claim.json")
    suite = read_suite(tmp_path, claims, digests, [])
    fair, shared = suite.chances
    assert (fair.verdicts, fair.wrong) == (1, pytest.approx(0.05))
    at_most = AT_MOST[10]
    assert (shared.verdicts, shared.wrong) == (2, pytest.approx(at_most.of_differences + at_most.of_bounds))
    assert suite.by_chance == pytest.approx(fair.wrong + shared.wrong)
    sentences = write_suite(suite)
    assert any("of 1 verdict whose runs have rates" in sentence for sentence in sentences)
    assert any("up to 34 % of differences and 21 % of parities" in sentence for sentence in sentences)


def test_the_page_says_what_there_is(folder: Path) -> None:
    page = (folder / "claims.html").read_text()
    for name, standing in (("larger", "reproduced"), ("smaller", "not reproduced"), ("worse", "contradicted")):
        assert f">{standing}</span>" in section(page, name)
    assert "Larger &lt;b&gt;&amp;&lt;/b&gt; better" in page and "<b>&" not in page
    assert "<s>" in section(page, "same") and "<s>" in section(page, "moved") and "<s>" not in section(page, "open")
    assert 'href="larger/report/report.html"' in section(page, "larger") and "two 2" in section(page, "larger")
    assert "one at 3 seeds" in section(page, "larger") and "so that the effect is a bound" in page
    assert "normbench claims open --trial" in section(page, "open")
    assert "normbench claims larger --at-scale" in section(page, "larger") and "2.5 days" not in page
    assert ">trial</span>" in section(page, "tried")
    assert page.count('class="nb-figure"') == 2 + 8 + 1  # the forest plot, eight claims with verdicts, the trial
    # Files that the page names are there.
    for link in re.findall(r'href="([^"#:,]+)"', page):
        assert (folder / link).exists() or link.endswith("report/report.html"), link


def test_all_files_say_the_same(folder: Path) -> None:
    entries = read_suite(folder, *claims_and_digests(), []).entries
    values = json.loads((folder / "claims.json").read_text())
    table = pd.read_csv(folder / "claims.csv", index_col="claim")
    latex = (folder / "claims.tex").read_text()
    assert [*values["claims"]] == [*table.index] == [entry.name for entry in entries]
    assert values["registered"] == 12 and values["judged"] == 8
    for entry in entries:
        row, value = table.loc[entry.name], values["claims"][entry.name]
        assert row["verdict"] == value["standing"] == entry.standing
        if entry.judgement is not None:
            assert row["effect"] == pytest.approx(entry.judgement.mean)
            assert value["result"]["judgement"]["mean"] == pytest.approx(entry.judgement.mean)
            assert row["p_after_holm"] == pytest.approx(value["corrected"]["p"])
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") > 0
    assert "Larger $<$b$>$\\&" in latex and "contradicted" in latex


def test_own_claims_are_a_family_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_for_pages_alone(monkeypatch)
    ours = {"larger": content("Larger", ClaimKind.LARGER, 0.02), "later": content("Later", ClaimKind.LARGER, 0.02)}
    mine = content("Mine is better", ClaimKind.LARGER, 0.02)
    for name, claim in {**ours, "mine": mine}.items():
        if name != "later":
            (tmp_path / name).mkdir()
            write_result(complete(name, claim, 0.03, digest=NOW), tmp_path / name / "claim.json")
    digests = dict.fromkeys([*ours, "mine"], NOW)
    write_page(tmp_path, ours, digests)
    alone = json.loads((tmp_path / "claims.json").read_text())
    assert alone["own"]["claims"] == {} and "your own" not in section((tmp_path / "claims.html").read_text(), "larger")
    write_page(tmp_path, {**ours, "mine": mine}, digests, own=["mine"], words=["--config-dir", "my folder"])
    both = json.loads((tmp_path / "claims.json").read_text())
    assert {**both, "own": None} == {**alone, "own": None} and both["registered"] == 2
    # Ours is one of two, and theirs is the only one.
    p = both["claims"]["larger"]["result"]["judgement"]["p"]
    assert both["claims"]["larger"]["corrected"]["p"] == pytest.approx(2 * p)
    assert both["own"]["claims"]["mine"]["corrected"]["p"] == pytest.approx(p) and both["own"]["registered"] == 1
    table = pd.read_csv(tmp_path / "claims.csv", index_col="claim")
    assert table["family"].to_dict() == {"larger": "claims", "later": "claims", "mine": "own-claims"}
    page, latex = (tmp_path / "claims.html").read_text(), (tmp_path / "claims.tex").read_text()
    assert "over all 2 registered claims" in page and "over all 1 registered claim" in page
    assert "tab:own-claims" in latex and latex.index("tab:claims") < latex.index("Mine is better")
    assert "normbench claims mine --config-dir &#39;my folder&#39;" in page
    assert "normbench claims mine --at-scale --config-dir" in page
    # Of a person's own alone, as on the page on trials, with the words with which it was tried.
    trials = tmp_path / "trials"
    words = (*mine["words"], "trainer.steps=9", "seed=100,101", "outputs='outputs/claims-trial'", "name=mine")
    tried = ClaimResult("mine", NOW, "", Status.TRIAL, "", mine, {100: 0.1, 101: 0.3}, words=words)
    (trials / "mine").mkdir(parents=True)
    write_result(tried, trials / "mine" / "claim.json")
    write_page(trials, {"mine": mine}, digests, own=["mine"], words=["--trial"])
    page = (trials / "claims.html").read_text()
    assert "No claim is registered" not in page
    assert "normbench claims mine trainer.steps=9 seed=100,101 --trial<" in page and "--at-scale" not in page


def test_effects_are_drawn_in_units_of_their_margins(folder: Path) -> None:
    entries = read_suite(folder, *claims_and_digests(), []).entries
    figures = draw_forest(entries)
    data = pd.concat([figure.data for figure in figures]).set_index("claim")
    drawn = ["harmless", "larger", "open", "same", "slope", "smaller", "worse"]
    assert sorted(data.index) == drawn  # no exact one
    half = stats.t.isf(0.025, 9) * 0.01 * SHAPE.std(ddof=1) / 10**0.5
    larger = data.loc["larger", ["effect", "low", "high", "published"]].tolist()
    assert larger == pytest.approx([1.5, (0.03 - half) / 0.02, (0.03 + half) / 0.02, 2.5])
    assert data.loc["slope", "effect"] == pytest.approx(0.3)  # from the value of theory on
    assert data.loc["same", "low"] > data.loc["same", "outer_low"]  # 90 % decides, 95 % is drawn thin
    one = next(entry for entry in entries if entry.name == "larger")
    many = [replace(one, name=f"claim{place}") for place in range(30)]
    assert [len(figure.data) for figure in draw_forest(many)] == [30] and draw_forest([]) == []
    differences, others = figures
    assert [text.get_text() for text in differences.canvas.legends[0].get_texts()]  # what marks mean
    assert {"larger", "smaller", "worse"} <= {*differences.data["claim"]} and "same" in {*others.data["claim"]}


def test_captions_and_titles_are_true_of_what_is_drawn() -> None:
    claim = content("Larger", ClaimKind.LARGER, 0.02)
    entry = RegisteredClaim("one", claim, complete("one", claim, 0.03), (), Corrected(0.01, 1.0, Verdict.REPRODUCED))
    assert explain([entry]).endswith("Intervals are of 95 %.")
    assert entry.result is not None
    twice = replace(entry, result=replace(entry.result, claim=claim | {"seeds": [5, 10]}))
    assert explain([twice]).endswith("Intervals are of 97.06 %.")
    assert explain([entry, twice]).endswith("Intervals are of 95 %, or 97.06 % where two looks are planned.")
    parity = [replace(one, claim=claim | {"kind": "parity"}) for one in (entry, twice)]
    assert "interval of 90 %, or 94.12 % where two looks are planned lies" in explain(parity)
    long = replace(entry, claim=claim | {"unit": "percentage points"})
    assert title_effects(entry, 2.0) == "effect, nats" and title_effects(long, 1.2) == "percentage points"
    assert title_effects(long, 0.5) == "effect"


def test_words_for_numbers_and_for_what_would_settle_a_claim(tmp_path: Path) -> None:
    claim = content("Perhaps", ClaimKind.PARITY, 0.01)
    result = complete("perhaps", claim, 0.006)
    entry = RegisteredClaim("perhaps", claim, result, (), Corrected(1.0, 1.0, Verdict.INCONCLUSIVE))
    judgement = result.judgement
    assert judgement is not None and judgement.seeds_to_settle is not None
    seeds = judgement.seeds_to_settle
    assert write_effect(judgement, "nats") == "+0.0060 nats"
    assert write_interval(judgement).startswith("90 %: +0.000")
    larger = judge(result.values, ClaimRule(ClaimKind.LARGER, 0.01))
    assert write_interval(larger).startswith("95 %: −0.00")
    assert f"{seeds} seeds" in write_settling(entry) and write_minutes(12.5 * seeds / 10) in write_settling(entry)
    assert settling_words(entry) == ["--trial", f"seed=range(100,{100 + seeds})"]
    assert [write_minutes(one) for one in (0.5, 13, 252)] == ["30 seconds", "13 minutes", "4.2 hours"]
    assert [short(one) for one in (0.03, 1e-9, -0.5, 0.0)] == ["0.03", "1e-9", "−0.5", "0"]
    settled = RegisteredClaim("same", claim, complete("same", claim, 0.0), (), entry.corrected)
    assert settling_words(settled) == [] and write_settling(settled) == ""
    two_looks = judge(dict(enumerate(0.03 + 0.01 * SHAPE)), ClaimRule(ClaimKind.LARGER, 0.02, looks=2))
    assert write_interval(two_looks).startswith("97.06 %: ")
    # Nothing is run yet.
    suite = read_suite(tmp_path, *claims_and_digests(), [])
    assert {entry.standing for entry in suite.entries} == {"not run"} and len(write_suite(suite)) == 1
    written = write_page(tmp_path, {}, {})
    assert "No claim is registered" in written[0].read_text() and json.loads(written[1].read_text())["claims"] == {}


@pytest.mark.slow
class TestInBrowser:
    pytestmark = needs_browser

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("size", ["desk", "phone"])
    def test_the_page_is_whole_at_each_width(self, browser: Any, folder: Path, size: str, scheme: str) -> None:
        opened(browser, folder / "claims.html", size, features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert browser.get_log("browser") == []
        assert ask(browser, "document.documentElement.scrollWidth") <= SIZES[size][0]
        assert ask(browser, "outside()") == []
        assert ask(browser, "contrast()") >= 4.5  # AA
        table = "document.querySelector('.cards')"
        assert ask(browser, f"{table}.scrollWidth <= {table}.parentElement.clientWidth")  # it is read without scrolling

    def test_it_prints(self, browser: Any, folder: Path) -> None:
        opened(browser, folder / "claims.html", "paper", media="print")
        assert ask(browser, "cut()") == 0


def test_what_holds_by_less_than_matters_or_in_spite_of_harm_is_said_to() -> None:
    def notes_of(kind: ClaimKind, mean: float) -> str:
        claim = content("A claim", kind, 0.05)
        return " ".join(list_notes(RegisteredClaim("tiny", claim, complete("tiny", claim, mean))))

    # the standard deviation is 0.01 with ten seeds, so that an interval of 95 % reaches 0.007 to either side
    assert "real, but smaller than 0.05" in notes_of(ClaimKind.ANY, 0.02)
    assert "smaller than" not in notes_of(ClaimKind.ANY, 0.05)
    assert "A harm is real, but smaller than 0.05" in notes_of(ClaimKind.AT_LEAST, -0.02)
    assert "harm" not in notes_of(ClaimKind.AT_LEAST, -0.005)
    assert "harm" not in notes_of(ClaimKind.AT_LEAST, 0.02)
    assert "below 0; whether by more than 0.05 nats is open" in notes_of(ClaimKind.PARITY, -0.05)
    assert "is open" not in notes_of(ClaimKind.PARITY, -0.005)
