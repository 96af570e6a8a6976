"""A run as its directory tells it: read once, and never changed after that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normbench.config.rules import RULES, is_rule
from normbench.record.directory import BLOCKS, ENDED, RunDirectory
from normbench.record.metrics import UNREADABLE, logged_lines
from normbench.runs.reading import DamagedRun, check_configuration, read_record
from normbench.settings import flat

LARGEST_RATE = "rate/largest"  # the metric of a run whose learning rate grows

# How runs end, beside `ENDED`, whose runs have a summary.
WITHOUT_RESULT = ("diverged", "failed", "out_of_memory")
OVER = ("finished", *WITHOUT_RESULT)
REPEATABLE = ("finished", "diverged", "out_of_memory")  # what a run would come to again

# What a run has learned at the least, as a share of what a constant predictor loses: runs that are stuck end within 2 %
# of it on either side, and those that learn 20 % below; in between they have hardly begun.
LEARNED = 0.05

# Of errors alone it must be more: a network whose loss is no better is right in a class or two of ten by chance.
LEARNED_RIGHT = 0.25


class Curve(NamedTuple):
    """What a run has logged under one tag.

    steps: (n,) integers, increasing. values: (n,) float64; NaN where the number was not finite.
    """

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RecordedRun:
    """One run as its directory tells it.

    Attributes:
        name: the path of the directory from the given folder on.
        path: the directory.
        status: as status.json has it, but `diverged` for a run that finished without a finite loss, and `finished` for
            one that diverged as its learning rate grew (`ramp`).
        step: the last one that it made.
        steps: how many it is to make.
        message: why it did not finish; empty where there is nothing to say.
        seed: of its weights and batches.
        config: by dotted path, and the option of each group by the group's name.
        summary: empty until the run has ended.
        sessions: of environment.json, one for each time that the run was started or continued.
        curves: of every tag of metrics.jsonl, up to a torn line.
        has_torn_line: whether the last line of metrics.jsonl is torn.
    """

    name: str
    path: Path
    status: str
    step: int
    steps: int
    message: str
    seed: int
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]
    curves: Mapping[str, Curve]
    has_torn_line: bool

    @property
    def session(self) -> Mapping[str, Any]:
        """Return the newest session."""
        return self.sessions[-1]

    @cached_property
    def rules(self) -> list[str]:
        """Return the keys of its rules for places, such as `norm@qk`, in the order in which they were given."""
        return [key for key in self.session["choices"] if is_rule(key)]

    @property
    def data(self) -> Mapping[str, Any]:
        """Return what its newest session has recorded of its data."""
        return self.session.get("data") or {}

    @property
    def ledger(self) -> Mapping[str, Any]:
        """Return what it has recorded of the model and of a step; empty until it has ended."""
        return self.summary.get("ledger") or {}

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Return its final metrics; empty for a run that did not finish."""
        if self.status != "finished":
            return {}
        metrics: Mapping[str, float | None] = self.summary["metrics"]
        if self.ramp:  # at the rates of its end its losses say nothing
            return {LARGEST_RATE: metrics[LARGEST_RATE]} if LARGEST_RATE in metrics else {}
        return metrics

    @property
    def ramp(self) -> Mapping[str, Any]:
        """Return how far it came, if its learning rate grew until it no longer learned; else nothing."""
        return self.summary.get("ramp") or {}

    @property
    def step_ms(self) -> float:
        """Return the median of its step times, in milliseconds; NaN where none was taken."""
        return float(self.summary.get("step_time", {}).get("median_ms") or "nan")

    @property
    def operators(self) -> float:
        """Return how many operators a step gives to its device; NaN where they were not counted."""
        return float(self.ledger.get("operators_a_step") or "nan")

    @property
    def host_share(self) -> float:
        """Return the share of a step's time for which a GPU's host was at work on it; NaN where that is not known."""
        return float(self.ledger.get("host_share_of_step") or "nan")

    @property
    def drawing(self) -> str:
        """Return the blocks of its model as they are drawn; empty for a run of an older version."""
        return str(self.session.get(BLOCKS) or "")

    @property
    def ended(self) -> bool:
        """Tell whether it has ended, so that it is a result."""
        return self.status in ENDED

    @property
    def constant(self) -> Mapping[str, float]:
        """Return what a predictor that always says the same reaches on its data; empty where that is not recorded."""
        return dict(self.data.get("constant") or {})

    @cached_property
    def trained(self) -> bool | None:
        """Tell whether it is clearly better than a constant predictor, in loss or accuracy; None if not known.

        That of a run whose learning rate grew until it no longer learned is not.
        """
        known = list[bool]()
        usual_loss = self.constant.get("loss/val")
        for tag in ("loss/val", "loss/train"):
            loss = self.metrics.get(tag)
            if loss is not None and usual_loss is not None:
                known.append(loss < (1 - LEARNED) * usual_loss)
        right = self.metrics.get("accuracy/val")
        usually_right = self.constant.get("accuracy/val")
        if right is not None and usually_right is not None:
            known.append(1 - right < (1 - LEARNED_RIGHT) * (1 - usually_right))
        return any(known) if known else None

    @property
    def task(self) -> str:
        """Return its kind of task."""
        return str(self.session["task"]["kind"])


# ---- reading


def read_run(directory: RunDirectory, name: str) -> RecordedRun:
    """Read one run.

    Raises:
        DamagedRun: what it must have is missing or damaged, or was changed after the run had ended.
    """
    record = read_record(directory)
    check_configuration(directory, record.configuration)
    summary = record.summary
    recorded = read_metrics(directory.metrics)
    if recorded.damage and (summary or recorded.curves):  # a run that has not ended may have no metrics yet
        raise DamagedRun(directory.path, recorded.damage)
    config = {**settings_by_path(record.configuration), **record.sessions[-1]["choices"]}
    state = {**record.status, **summary}
    if summary.get("ramp"):
        if state["status"] == "diverged":  # which is how such a run gives its result
            state["status"] = "finished"
    elif state["status"] == "finished":
        for tag in ("loss/val", "loss/test"):
            if summary["metrics"].get(tag, 0.0) is None:
                state.update(status="diverged", message=f"its final {tag} is not finite")
                break
    return RecordedRun(
        name=name,
        path=directory.path,
        status=state["status"],
        step=state["step"],
        steps=state["steps"],
        message=state.get("message") or "",
        seed=config["seed"],
        config=config,
        summary=summary,
        sessions=record.sessions,
        curves=recorded.curves,
        has_torn_line=recorded.is_torn,
    )


def settings_by_path(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration by dotted path, rules for places by their keys."""
    settings = dict[str, Any]()
    for path, value in flat(tree).items():
        settings[path.removeprefix(f"{RULES}.")] = value
    return settings


@dataclass(frozen=True)
class RecordedMetrics:
    """What a metrics.jsonl holds, up to the first line that cannot be read.

    curves: by tag. is_torn: whether that is the last line, as a kill leaves it. damage: words for it, where more lines
    follow the one that cannot be read, or the file itself cannot.
    """

    curves: Mapping[str, Curve]
    is_torn: bool
    damage: str


def read_metrics(path: Path) -> RecordedMetrics:
    """Return what a metrics.jsonl holds."""
    try:
        lines = logged_lines(path)
    except OSError as error:
        return RecordedMetrics({}, is_torn=False, damage=f"metrics.jsonl cannot be read ({error.strerror})")
    steps = defaultdict[str, list[float]](list)
    values = defaultdict[str, list[float]](list)
    good = 0  # lines
    for _, step, numbers in takewhile(lambda line: line.step != UNREADABLE, lines):
        good += 1
        for tag, value in numbers.items():
            steps[tag].append(step)
            values[tag].append(value)
    curves = {tag: Curve(np.array(steps[tag]), np.array(values[tag])) for tag in steps}
    unread = len(lines) - good
    damage = f"metrics.jsonl is damaged at line {good + 1} of {len(lines)}" if unread > 1 else ""
    return RecordedMetrics(curves, is_torn=unread == 1, damage=damage)
