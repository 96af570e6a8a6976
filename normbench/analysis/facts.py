"""What is found unfair, what runs have, and how that is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normbench.analysis.comparisons import shortened
from normbench.analysis.records import Run, Study


@dataclass(frozen=True)
class Finding:
    """One fact. topic: a word or two. text: the sentence. serious: whether it may decide who wins."""

    topic: str
    text: str
    serious: bool = True


# ---- words


def by_value(pairs: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
    """The names of the arms that have each value; values of any kind by their text."""
    found: dict[Any, list[str]] = {}
    for value, name in pairs:
        names = found.setdefault(value if isinstance(value, int | float | str) else json.dumps(value, default=str), [])
        if name not in names:
            names.append(name)
    return found


def values_in_words(found: Mapping[Any, Sequence[str]]) -> str:
    """Such as `100 (layernorm), 200 (rmsnorm, dyt)`."""
    return "; ".join(f"{in_words(value)} ({shortened(names, 4)})" for value, names in found.items())


def in_words(value: Any) -> str:
    """A value as it is written: numbers short, yes and no for truths."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def of_runs(study: Study, read: Callable[[Run], Any]) -> dict[Any, list[str]]:
    """What runs have, and the arms that have it; without those that do not tell."""
    pairs = ((read(run), arm.name) for arm in study.arms for run in arm.runs)
    return by_value((value, name) for value, name in pairs if value is not None)


def of_sessions(study: Study, read: Callable[[Mapping[str, Any]], Any]) -> dict[Any, list[str]]:
    """What the sessions of runs have, also those before a run was stopped and taken up again, and whose arms."""
    pairs = ((read(session), arm.name) for arm in study.arms for run in arm.runs for session in run.sessions)
    return by_value((value, name) for value, name in pairs if value is not None)


def arms_with(study: Study, has: Callable[[Run], Any]) -> list[str]:
    """The names of the arms of which a run is such."""
    return [arm.name for arm in study.arms if any(has(run) for run in arm.runs)]


# ---- what is asked of a run


def session_value(key: str) -> Callable[[Mapping[str, Any]], Any]:
    """An entry of a session."""
    return lambda session: session.get(key)


def package(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """The version of a package in a session."""
    return lambda session: (session.get("packages") or {}).get(name)


def config_value(key: str) -> Callable[[Run], Any]:
    """A setting."""
    return lambda run: run.config.get(key)


def has_status(status: str) -> Callable[[Run], bool]:
    """Whether it stands so."""
    return lambda run: run.status == status


def takes_one(key: str) -> Callable[[Run], bool]:
    """Whether its norm's statistics cross samples, and a batch has one."""
    return lambda run: bool((run.summary.get("norm_facts") or {}).get("crosses_samples")) and run.config.get(key) == 1
