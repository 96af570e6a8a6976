"""A first YAML of a claim, from a sweep that was made: its words, arms and seeds, with the rest to fill in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from normbench.claims.claim import FORBIDDEN, Claim, check_name, claim_files
from normbench.claims.registration import FOLDER
from normbench.config.trust import check_words
from normbench.errors import UsageError
from normbench.record.files import inside, make_folder, write_bytes
from normbench.results.effects import NAMES
from normbench.settings import key_of
from normbench.sweep.folder import Entry, SweepFolder

# What a draft says in place of what its author is to write.
UNFILLED = {
    "claim": "one sentence, as it was published",
    "source": "who published it, and where",
    "published": "the number that was published",
    "scope": "the model, its steps and data",
}

DRAFT = """\
claim: {claim}
source: {source}
published: {published}
published_effect: null      # the same in the unit of the effect, where the same is measured
registered: null            # normbench claims {name} --register --reason "…" writes the date
words: {words}
seeds: {seeds}                   # 0 and on; or [5, 10] with one planned look after 5
arms:{arms}
measure: loss/val           # the tag of a run's final value
effect: {effect}   # for each seed, positive as published
kind: sized                 # as large as the margin; or any, parity, at_least, exact, slope
margin: 0.02                # the smallest effect that matters, in the unit
unit: nats
needs: []                   # hub, gpu, or an extra such as hf
pilot: null                 # {{sd: 0.016, seeds: 5, date: 2026-11-28, machine: …, commit: …}}, of a --trial
minutes: 10                 # on two idle cores
scope: {scope}
confounds: []
"""


def write_draft(name: str, folder: Path, into: Path, others: Sequence[Path] = (), trust: bool = False) -> Path:
    """Write the YAML of a new claim, to be filled in; return its path.

    Args:
        name: of the claim.
        folder: of a sweep.
        into: the folder of options that it is for.
        others: folders with further claims.
        trust: whether words of the sweep may run anybody's code.

    Raises:
        UsageError: there is such a claim, the name is not one, the folder holds no sweep, or one with words that need
            trust.
    """
    check_name(name)
    path = into / FOLDER / f"{name}.yaml"
    if name in claim_files(others) or path.exists():
        raise UsageError(f"there is a claim {name} already: give another name")
    sweep = SweepFolder(folder)
    notes = [note for note in sweep.read_notes() if note.words]
    entries = sweep.read_plans()
    if not notes or not entries:
        raise UsageError(f"{folder} holds no sweep: give the folder of one, such as outputs/sweep")
    words = own_words(notes[-1].words)
    if not trust:
        check_words(words, folder)
    text = fill_draft(name, words, entries)
    make_folder(into, FOLDER)
    write_bytes(inside(into, FOLDER, path.name), text.encode())
    return path


def own_words(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep that a claim may have: none on how runs are made."""
    remaining = []
    for word in words:
        key = key_of(word)
        if key not in FORBIDDEN and key.partition(".")[0] not in ("launcher", "hydra"):
            remaining.append(word)
    return remaining


def fill_draft(name: str, words: Sequence[str], entries: Sequence[Entry]) -> str:
    """Return the YAML of a claim with the words, arms and seeds of a sweep.

    Args:
        name: of the claim.
        words: of the claim.
        entries: its runs.
    """
    seeds = {entry.seed for entry in entries}
    arms: dict[str, Mapping[str, str]] = {}
    for entry in entries:
        arms.setdefault(name_arm(entry.arm, arms), entry.arm)
    lines = []
    for arm, settings in arms.items():
        conditions = [f"{key}={value}" for key, value in settings.items()]
        lines.append(f"\n  {arm}: {in_yaml(conditions)}")
    first, *rest = arms
    return DRAFT.format(
        name=name,
        **UNFILLED,
        words=in_yaml(words),
        seeds=len(seeds),
        arms="".join(lines),
        effect=f"{rest[0]} - {first}" if rest else first,
    )


def check_filled(claim: Claim) -> None:
    """Refuse a claim that still has words of the draft.

    Raises:
        UsageError: with their line.
    """
    for key, unfilled in UNFILLED.items():
        if claim.content[key] == unfilled:
            raise claim.blame(key, f"{key} is as --new has written it: say {unfilled}")


def name_arm(settings: Mapping[str, str], taken: Mapping[str, Mapping[str, str]]) -> str:
    """Return a name for an arm: by the values of its settings; that of the same arm where it has one."""
    for name, other in taken.items():
        if dict(other) == dict(settings):
            return name
    words = []
    for value in settings.values():
        words.append("".join(filter(str.isalnum, value)))
    name = "_".join(words) or "runs"
    if not name.isidentifier() or name in NAMES:
        name = f"arm_{name}"
    return name if name not in taken else f"{name}_{len(taken)}"


def in_yaml(value: Any) -> str:
    """Return a list as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).strip()
