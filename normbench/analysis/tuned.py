"""Learning rates that `normbench sweep` has chosen for each arm on held-out data (`sweep.lr=auto`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from normbench.analysis.records import Run, setting
from normbench.analysis.shapes import each, having, or_none, rate, text
from normbench.config.groups import GROUPS
from normbench.rundir import CHOICE_FILE, read_json

CHOICE = having({"arm": each(text), "lr": or_none(rate), "edge": or_none(text)})


def chosen_on_held_out_data(runs: Iterable[Run]) -> dict[Path, Mapping[str, Any] | None]:
    """For each run's path what its sweep notes of the choice of its rate; None: it was not chosen there."""
    noted: dict[Path, list[Mapping[str, Any]]] = {}
    found: dict[Path, Mapping[str, Any] | None] = {}
    for run in runs:
        if (folder := run.path.parent) not in noted:
            noted[folder] = choices_in(folder)
        found[run.path] = next(filter(partial(is_of, run), noted[folder]), None)
    return found


def choices_in(folder: Path) -> list[Mapping[str, Any]]:
    """The choices of a sweep; none where there is no such file, or it is damaged."""
    arms = (read_json(folder / CHOICE_FILE) or {}).get("arms")
    return [arm for arm in arms if CHOICE(arm)] if isinstance(arms, list) else []


def is_of(run: Run, choice: Mapping[str, Any]) -> bool:
    """Whether a choice is that of a run's arm, and the run has its rate."""
    groups = ((key, value) for key, value in choice.get("arm", {}).items() if key in GROUPS)
    had, chosen = run.config.get("optim.lr"), choice.get("lr")
    if had is None or chosen is None or not math.isclose(had, chosen, rel_tol=1e-9):
        return False
    return all(str(setting(run, key)) == value for key, value in groups)
