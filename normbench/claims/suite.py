"""All claims side by side: what is registered, and what it has come to."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.claims.claim import FIRST_TRIAL_SEED, OLDER
from normbench.claims.files import CLAIM_FILE, blame_result, find_other_rule, load_result, read_results
from normbench.results.claimed import ClaimResult, Entry, Status
from normbench.results.family import Suite, correct_verdicts
from normbench.results.rules import OF_CLAIMS, Verdict
from normbench.settings import key_of

ORDER = (*OF_CLAIMS, Status.NOT_COMPLETE, Status.TRIAL, Status.NOT_RUN)  # of what claims have come to, in tables
OF_FOLDER = ("outputs", "name", "sweep.extend", "sweep.report")  # words that a command on claims itself gives its runs


@dataclass(frozen=True)
class Family:
    """Claims among which Holm's correction counts: those that come with normbench, or a person's own.

    Attributes:
        entries: of its registered claims, sorted by what they have come to.
        suite: their corrected verdicts.
    """

    entries: Sequence[Entry]
    suite: Suite


def read_families(
    folder: Path,
    claims: Mapping[str, Mapping[str, Any]],
    digests: Mapping[str, str],
    left_out: list[str],
    own: Container[str] = (),
) -> tuple[Family, Family]:
    """Return normbench's registered claims, and a person's own, so that neither changes what is said of the other.

    Args:
        folder, claims, digests, left_out: as `read_entries` has them.
        own: names of a person's own claims.
    """
    ours = {name: claim for name, claim in claims.items() if name not in own}
    theirs = {name: claim for name, claim in claims.items() if name in own}
    found = Family(*read_entries(folder, ours, digests, left_out))
    return found, Family(*read_entries(folder, theirs, digests, []))  # of the same files


def read_entries(
    folder: Path, claims: Mapping[str, Mapping[str, Any]], digests: Mapping[str, str], left_out: list[str]
) -> tuple[list[Entry], Suite]:
    """Return the registered claims of a family with what is found below a folder, and the suite that they are.

    They are sorted by `ORDER` and by name. A result of which something does not follow from its own values, or that
    does not lie where those of its claim do, counts as none.

    Args:
        folder: of NAME/claim.json, or of NAME.json where they are published.
        claims: key and value of the YAML of each registered claim, by name.
        digests: sha256 of each as it is registered.
        left_out: to which a sentence is added for each result that does not count.
    """
    found = read_results(folder, left_out)
    older = read_older(folder, left_out)
    current = dict[str, ClaimResult]()
    for name, result in found.items():
        is_current = digests.get(name) == result.digest
        if name not in claims or not (is_current or result.judgement):
            continue
        faults = find_other_rule(result, claims[name]) if is_current else []
        if faults:
            left_out.append(blame_result(name, faults))
        elif is_current:
            current[name] = result
        else:
            older.append(result)
    suite = correct_verdicts({name: current[name].judgement if name in current else None for name in claims})
    entries = []
    for name, claim in claims.items():
        before = [result for result in older if result.name == name]
        entries.append(Entry(name, claim, current.get(name), before, suite.corrected[name]))
    entries.sort(key=lambda entry: (ORDER.index(entry.standing), entry.name))
    return entries, suite


def read_older(folder: Path, left_out: list[str]) -> list[ClaimResult]:
    """Return the results with a verdict that were put aside below a folder, each for an earlier registration.

    left_out: as `read_entries` has it.
    """
    older = []
    for path in sorted(folder.glob(f"{OLDER}/*/{CLAIM_FILE}")):
        try:
            result = load_result(path)
        except ValueError as error:
            left_out.append(str(error))
            continue
        if result.judgement:
            older.append(result)
    return older


# ---- words of a command


def settling_words(entry: Entry) -> list[str]:
    """Return the words that try an inconclusive claim with as many new seeds as settle it; none for other claims."""
    judgement = entry.judgement
    if judgement is None or not judgement.seeds_to_settle or judgement.verdict is not Verdict.INCONCLUSIVE:
        return []
    last = FIRST_TRIAL_SEED + judgement.seeds_to_settle
    return ["--trial", f"seed=range({FIRST_TRIAL_SEED},{last})"]


def trial_words(entry: Entry) -> list[str]:
    """Return the words with which a claim was tried, other than those that it has itself; none for other claims."""
    result = entry.result
    if result is None or result.status is not Status.TRIAL:
        return []
    own = entry.claim["words"]
    return [word for word in result.words if word not in own and key_of(word) not in OF_FOLDER]
