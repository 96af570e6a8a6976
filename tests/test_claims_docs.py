"""The documents on claims: made from what is published, and as the generator makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import claim_documents
import pytest
import yaml
from claim_documents import MOST_WANTED, PAGE, ROWS, make_page, with_results
from conftest import draw_for_pages_alone
from made_claims import NOW, claims_and_digests, complete, content, write_all
from support import REPOSITORY

import normbench
from normbench.claims.claim import KEYS
from normbench.claims.files import read_results, write_result
from normbench.claims.registration import registered_in
from normbench.claims.suite import read_suite
from normbench.record.machine import CHANGES
from normbench.results.effects import NAMES
from normbench.results.rules import ClaimKind


def test_the_documents_are_as_they_are_made(tmp_path: Path) -> None:
    written = [path for path in REPOSITORY.glob("docs/claims/*.json")]
    commits = {json.loads(path.read_text())["machine"]["commit"].removesuffix(CHANGES) for path in written}
    if not all(registered_in(commit) for commit in commits):
        pytest.skip("the page names commits of the runs, and this checkout lacks them: it needs all of the history")
    (tmp_path / "docs/claims").mkdir(parents=True)
    for path in written:
        (tmp_path / "docs/claims" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "README.md").write_text((REPOSITORY / "README.md").read_text())
    for path in claim_documents.write_documents(tmp_path):
        name = path.relative_to(tmp_path)
        made = REPOSITORY / name
        assert made.exists(), name
        if path.suffix == ".md":
            assert made.read_text() == path.read_text(), f"{name} is made: run scripts/claims_docs"
    assert (tmp_path / PAGE).read_text() == (REPOSITORY / PAGE).read_text(), "run scripts/claims_docs"
    assert len(set(MOST_WANTED)) == len(MOST_WANTED) >= ROWS == 3


def test_results_are_published_without_the_places_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims, digests = claims_and_digests()
    monkeypatch.setattr(claim_documents, "registered_claims", lambda: (claims, digests))
    monkeypatch.setattr(claim_documents, "MOST_WANTED", ("worse", "later", "same"))
    draw_for_pages_alone(monkeypatch)
    write_all(tmp_path / "runs")
    (tmp_path / "docs").mkdir()
    readme = "# n\n\n## What it has measured\n\nold\n\n## Read on\n\nmore\n"
    (tmp_path / "README.md").write_text(readme)
    published = claim_documents.publish(tmp_path / "runs", tmp_path)
    assert "moved" not in published and "tried" not in published and len(published) == 9
    results = read_results(tmp_path / "docs/claims", [])
    assert [*results] == sorted(published)
    assert all(not result.report for result in results.values())
    assert results["larger"].words == ("norm=rmsnorm,layernorm", "sweep.stack=10")
    written = claim_documents.write_documents(tmp_path)
    page, table = (tmp_path / PAGE).read_text(), (tmp_path / "README.md").read_text()
    for picture in re.findall(r"\]\((claims/.*?\.svg)\)", page):
        assert tmp_path / "docs" / picture in written
    assert page.count("**reproduced**") == 4 and "`later`" in page and "seeds in all would settle it" in page
    assert "old" not in table and table.endswith("## Read on\n\nmore\n")
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 3 and "**contradicted**" in rows[0] and "| not run |" in rows[1] and "**parity**" in rows[2]
    columns = [[part.strip() for part in row.strip("| ").split(" | ")] for row in rows]
    for column, name in zip(columns, ("worse", "later", "same"), strict=True):
        assert column[3].startswith(f"{claims[name]['margin']:g}"), name
        assert column[4] == claims[name]["scope"] and column[2], name
    assert "beside an interval without 0" not in table
    # Without results the README is left as it is, and the page has what is written by hand.
    nothing = read_suite(tmp_path / "none", {}, {}, [])
    assert with_results(readme, nothing) == readme
    assert "## How verdicts come about" in make_page(nothing, [])


def test_the_rows_of_the_readme_are_those_that_people_ask_about_whatever_came_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_documents, "MOST_WANTED", ("close", "weak", "old", "turned", "later"))
    monkeypatch.setattr(claim_documents, "ROWS", 4)
    means = {"close": (ClaimKind.PARITY, 0.008), "weak": (ClaimKind.ANY, 0.008), "turned": (ClaimKind.ANY, 0.9)}
    claims = {name: content(name, kind, 0.03) for name, (kind, _) in means.items()}
    claims["later"] = content("later", ClaimKind.ANY, 0.03)
    claims["old"] = {**claims["later"], "withdrawn": {"date": "2026-11-29", "why": "It was unfair.", "by": ["newer"]}}
    claims["newer"] = content("newer", ClaimKind.ANY, 0.03)
    claims["turned"]["found"] = [{"date": "2026-11-29", "what": "It turns.", "opposite": "at a rate of 0.001"}]
    for name, (_, mean) in means.items():
        (tmp_path / name).mkdir()
        write_result(complete(name, claims[name], mean, 0.008), tmp_path / name / "claim.json")
    suite = read_suite(tmp_path, claims, dict.fromkeys(claims, NOW), [])
    made = with_results("# n\n\n## What it has measured\n\nold\n\n## Read on\n\nmore\n", suite)
    rows = [line for line in made.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" ")[1] for row in rows] == ["close", "weak", "newer", "turned"]
    close, weak, newer, turned = rows
    assert "**parity**" in close and "beside a 90 % interval without 0" in made
    # What Holm's correction leaves stands in the table, and is not bold where that is nothing.
    assert "inconclusive (reproduced by itself)" in weak and "**" not in weak
    assert "not run" in newer and "**" not in newer
    assert "not settled: its own confounds say the opposite at a rate of 0.001" in turned and "**" not in turned
    assert "reproduced" not in turned


def test_the_page_explains_every_key_kind_and_function() -> None:
    page = (REPOSITORY / PAGE).read_text()
    for word in (*KEYS, *ClaimKind):
        assert f"`{word}`" in page, word
    for name in NAMES:
        assert f"`{name}`" in page or f"`{name}(" in page, name


def test_the_citation_names_this_version() -> None:
    citation: Mapping[str, Any] = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["version"] == normbench.__version__
    assert {"message", "title", "authors"} <= citation.keys()
