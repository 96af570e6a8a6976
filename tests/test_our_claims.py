"""The claims of conf/claim as they stand: registered, and with words that compose and give each arm its runs."""

from __future__ import annotations

import pytest
from support import WHOLE

from normbench.claims.checks import check_claim
from normbench.claims.claim import claim_files, read_claims, why_unregistered
from normbench.claims.standing import Way

NAMES = list(claim_files())


def test_every_claim_is_registered_as_it_stands() -> None:
    reasons = [why_unregistered(claim) for claim in read_claims().values()]
    assert [reason for reason in reasons if reason] == []


@pytest.mark.parametrize("name", NAMES if WHOLE else NAMES[::6])
def test_a_claim_plans_the_runs_of_its_arms_here_and_at_a_larger_scale(name: str) -> None:
    claim = read_claims()[name]
    check_claim(claim, [0])
    if claim.at_scale:
        check_claim(Way(at_scale=True).apply(claim), [0])
