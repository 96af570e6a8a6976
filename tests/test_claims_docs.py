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
from made_claims import claims_and_digests, write_all
from support import REPOSITORY

import normbench
from normbench.claims.claim import KEYS
from normbench.claims.files import read_results
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
    assert len(rows) == 2 and "**contradicted**" in rows[0] and "**parity**" in rows[1]  # `later` has no verdict
    columns = [[part.strip() for part in row.strip("| ").split(" | ")] for row in rows]
    shown = [(results[name].claim, name) for name in ("worse", "same")]
    for column, (claim, name) in zip(columns, shown, strict=True):
        assert column[4].startswith(f"{claim['margin']:g}"), name
        assert column[5] == claim["scope"] and column[2], name
    # Without results the README is left as it is, and the page has what is written by hand.
    nothing = read_suite(tmp_path / "none", {}, {}, [])
    assert with_results(readme, nothing) == readme
    assert "## How verdicts come about" in make_page(nothing, [])


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
