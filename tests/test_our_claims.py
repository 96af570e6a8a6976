"""The claims of conf/claim as they stand: registered, and with words that compose and give each arm its runs."""

from __future__ import annotations

import re

import pytest
from support import REPOSITORY, WHOLE

from normbench.claims.checks import check_claim
from normbench.claims.claim import claim_files, read_claims
from normbench.claims.registration import why_unregistered
from normbench.claims.suite import Way
from normbench.tell.references import works_in

NAMES = list(claim_files())


def test_every_claim_is_registered_as_it_stands() -> None:
    reasons = [why_unregistered(claim) for claim in read_claims().values()]
    assert [reason for reason in reasons if reason] == []


def test_every_work_that_a_claim_or_the_page_on_claims_names_has_an_entry() -> None:
    for name, claim in read_claims().items():
        if re.search(r"\b(development log|issue \d+|pull requests? \d+)", claim.source):
            continue  # of a project's own pages, which nobody cites as a work
        years = re.findall(r"\b(?:19|20)\d\d[a-z]?\b", claim.source)
        assert len(works_in(claim.source)) == len(years), name
        assert years or claim.source.startswith("common knowledge"), name
    page = (REPOSITORY / "docs" / "claims.md").read_text()
    rules = page[page.index("## How verdicts come about") :]
    assert {work.key for work in works_in(rules)} == {"schuirmann1987", "pocock1977", "holm1979"}
    assert len(re.findall(r"\([A-Z]\w+ \d{4}\)", rules)) == 3


def test_what_stands_for_a_withdrawn_claim_is_a_claim_that_stands() -> None:
    claims = read_claims()
    for name, claim in claims.items():
        for other in claim.withdrawn.by if claim.withdrawn else ():
            assert claims[other].withdrawn is None, name


@pytest.mark.parametrize("name", NAMES if WHOLE else NAMES[::9])
def test_a_claim_plans_the_runs_of_its_arms_here_and_at_a_larger_scale(name: str) -> None:
    claim = read_claims()[name]
    check_claim(claim, [0])
    if claim.at_scale:
        check_claim(Way(at_scale=True).apply(claim), [0])
