"""A caveat: what makes a comparison unfair, what shows it, and its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CaveatKind(StrEnum):
    """What makes a comparison unfair."""

    DAMAGED_RUN = "damaged run"
    DAMAGED_RECORD = "damaged record"
    UNEQUAL_STEPS = "unequal steps"
    UNEQUAL_SAMPLES = "unequal samples"
    DATA = "different data"
    MACHINES = "different machines"
    THREADS = "different threads"
    PROCESSES = "different processes"
    VERSIONS = "different versions"
    LEDGER = "ledger"
    LEAK = "leaking norm"
    PADDING = "padding"
    BATCH_OF_ONE = "batch of one"
    ROUNDED = "norms in 16 bits"
    UNFINISHED = "unfinished runs"
    TORN_LINE = "torn line"
    DOUBLES = "doubles"
    SETTINGS = "settings"
    MISSING_SEEDS = "missing seeds"
    MISSING_RUNS = "missing runs"
    LOST_RUNS = "lost runs"
    LEARNING_RATE = "learning rate"
    RAMP = "growing learning rate"
    STEP_TIMES = "step times"
    SKEWED = "skewed differences"
    FEW_EXAMPLES = "few examples"


# What makes times unfair.
OF_TIMES = (CaveatKind.STEP_TIMES, CaveatKind.MACHINES, CaveatKind.THREADS, CaveatKind.PROCESSES)


@dataclass(frozen=True)
class Evidence:
    """What shows that something is unfair.

    Attributes:
        value: what arms have, or why a run is missing, in words; empty where the other fields say all.
        arms: their names.
        runs: their names.
        seeds: those that are missing.
        numbers: what was counted or measured, by name.
    """

    value: str
    arms: tuple[str, ...]
    runs: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """What is unfair.

    Attributes:
        kind: what makes the comparison unfair.
        serious: whether it may decide which arm is better.
        found: what shows it.
        text: the sentence made of what is found.
    """

    kind: CaveatKind
    serious: bool = True
    found: tuple[Evidence, ...]
    text: str
