"""What a report says, as values: question, arms, differences, causes, caveats and next steps.

`examine.py` makes them of a study, `sentences.py` words of them, and `answer.json` keeps them. A number that is missing
is None, or NaN where a type is a plain float; JSON has null for both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from normbench.evidence.measures import Metric
from normbench.results.caveat import Caveat
from normbench.results.result import Difference, FactorEffect, LostRuns, Scaling
from normbench.results.statistics import Interval
from normbench.results.worth import Worth

VERSION = 1  # of answer.json: higher when a key changes its name or its meaning


# ---- the question


@dataclass(frozen=True)
class Factor:
    """A setting that varies, and its values in the order of the runs."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Held:
    """What runs have in common beside what varies.

    Attributes:
        what: `steps`, `batch` or `rate`.
        values: one where it is held equal.
        goes_with: the settings that it follows, by name; empty where it is equal.
    """

    what: str
    values: tuple[str, ...]
    goes_with: str


@dataclass(frozen=True)
class Question:
    """What was asked.

    Attributes:
        task: the kind of task.
        metric: the primary one, by which arms are judged.
        margin: the largest difference in it that does not matter.
        varied: the settings that tell the arms apart.
        data: the data options of the runs.
        model: the model options of the runs.
        norm: the norm options of the runs.
        held: what runs have in common beside what varies.
        parameters: the fewest and the most that a model has.
        seeds: all of them.
        by_hand: the settings that the commands of all runs give, as words of a command.
        command: the command of the sweep; empty where no sweep made the runs, or several did.
        trained: the fewest and the most parameters that are trained, where some model has others.
        of_schemes: in what arms differ since their schemes set it, such as `eps`.
    """

    task: str
    metric: Metric
    margin: float | None
    varied: tuple[Factor, ...]
    data: tuple[str, ...]
    model: tuple[str, ...]
    norm: tuple[str, ...]
    held: tuple[Held, ...]
    parameters: tuple[int, int] | None
    seeds: tuple[int, ...]
    by_hand: tuple[str, ...]
    command: str
    trained: tuple[int, int] | None = None
    of_schemes: tuple[str, ...] = ()


# ---- arms


@dataclass(frozen=True)
class Stuck:
    """A run that finished and did not train.

    Attributes:
        run: its name.
        loss: its last validation loss (nats).
        constant_loss: what a constant guess reaches (nats); None where that is not known.
        constant_accuracy: the share that a constant guess gets right; None where that is not known, or accuracy is not
            measured.
    """

    run: str
    loss: float
    constant_loss: float | None
    constant_accuracy: float | None


@dataclass(frozen=True)
class ArmEnd:
    """How an arm ended in a metric.

    Attributes:
        metric: its tag.
        n: how many seeds have a result.
        mean: over these seeds, in the metric's unit; missing where runs end in two groups, of which one did not train.
        interval: Student's 95 % interval; missing where the mean is.
    """

    metric: str
    n: int
    mean: float
    interval: Interval | None


@dataclass(frozen=True)
class ArmResult:
    """The runs of one arm.

    Attributes:
        name: such as `rmsnorm · pre`.
        settings: its values of the settings that vary.
        compared_as: its name among the arms that are compared; None where another learning rate of the arm is better.
        seeds: of its runs.
        statuses: how many runs have each status.
        trained: whether most of the runs that finished trained.
        stuck: the runs that did not train.
        results: how it ended in each metric.
    """

    name: str
    settings: Mapping[str, Any]
    compared_as: str | None
    seeds: tuple[int, ...]
    statuses: Mapping[str, int]
    trained: bool
    stuck: tuple[Stuck, ...]
    results: tuple[ArmEnd, ...]


# ---- causes


class ReasonKind(StrEnum):
    """What probes show."""

    SMALL_STREAM = "small stream"  # what enters the first norm is near 0
    SATURATED = "saturated"  # inputs of norms are at their bound
    EXPLODING = "exploding gradients"
    VANISHING = "vanishing gradients"  # in all blocks
    VANISHING_DOWN = "gradients vanish on their way down"
    STANDING = "standing loss"  # the training loss no longer falls
    FALLING = "falling loss"  # it still does
    STREAM = "stream"  # what leaves the last block differs in size from the baseline's
    FIRST_GRADIENT = "first gradient"  # its norm differs from the baseline's
    LAST_GRADIENT = "last gradient"


@dataclass(frozen=True)
class Reason:
    """What probes show of an arm, and the numbers behind it, by the names of `causes.Readings`."""

    kind: ReasonKind
    evidence: Mapping[str, float]


@dataclass(frozen=True)
class Cause:
    """What probes show of an arm that did not train, or that differs from its baseline.

    Attributes:
        arm: its name.
        baseline: None for one that did not train.
        reasons: none where the runs were not probed.
    """

    arm: str
    baseline: str | None
    reasons: tuple[Reason, ...]


# ---- what to do next


class StepKind(StrEnum):
    """What to do next."""

    FINISH = "finish"  # the runs that have not ended
    MAKE_TRAIN = "make train"  # arms that did not
    ADD_SEEDS = "add seeds"  # so many, to find a difference of a size
    PILOT = "pilot"  # some seeds, to learn how much they differ
    OWN_RATES = "own rates"  # a learning rate for each arm
    LONGER = "longer"  # runs of twice as many steps


class Remedy(StrEnum):
    """What may make an arm train."""

    LARGER_STREAM = "larger stream"
    WARMUP = "longer warm-up"
    STEPS = "more steps"
    OTHER_RATES = "other learning rates"


@dataclass(frozen=True)
class NextStep:
    """What to do next.

    Attributes:
        kind: what to do.
        command: a line for a shell, or a word to add to one's own command; empty where neither is known.
        arm: the arm that did not train.
        remedies: what may make it train.
        seeds: how many more seeds to run.
        size: the difference that they would show, in the metric's unit.
    """

    kind: StepKind
    command: str = ""
    arm: str = ""
    remedies: tuple[Remedy, ...] = ()
    seeds: int = 0
    size: float | None = None


# ---- all of it


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that a report says of runs of one task.

    Attributes:
        version: of `answer.json`.
        question: what was asked.
        baseline: the settings in which the partner of an arm differs from it.
        metrics: the primary one first.
        arms: what became of each.
        differences: in the primary metric, corrected as one family with effects, losses and scaling.
        others: those in the other metrics, corrected by metric.
        effects: of crossed factors.
        losses: how many runs were lost.
        causes: what probes show.
        caveats: what is unfair, the serious ones first.
        next: what to do next.
        damaged: why each run that cannot be read cannot.
        missing: why each planned run without a directory failed, empty where that is not known.
        scaling: how differences change with the size of the model.
        worth: what arms take to the losses of their baselines, in steps and in time.
    """

    version: int = VERSION
    question: Question
    baseline: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    arms: tuple[ArmResult, ...]
    differences: tuple[Difference, ...]
    others: tuple[Difference, ...]
    effects: tuple[FactorEffect, ...]
    losses: tuple[LostRuns, ...]
    causes: tuple[Cause, ...]
    caveats: tuple[Caveat, ...]
    next: tuple[NextStep, ...]
    damaged: Mapping[str, str]
    missing: Mapping[str, str]
    scaling: tuple[Scaling, ...] = ()
    worth: tuple[Worth, ...] = ()

    def to_json(self) -> str:
        """Return the content of `answer.json`."""
        return json.dumps(to_plain(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Return the answer that the content of an `answer.json` holds.

        Raises:
            ValueError, LookupError, TypeError: it is not one, or one of another version.
        """
        content = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(f"an answer of version {content['version']!r}, where {VERSION} is read")
        answer: Answer = from_plain(cls, content)
        return answer


def to_plain(value: Any) -> Any:
    """Return a value in types that JSON has: null for NaN, a word for an infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Interval):
        return to_plain(value._asdict())
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        names += getattr(value, "DERIVED", ())
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """Return a value of a type, read from what `to_plain` has made of it. kind: the type, as annotations have it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:  # with None
        return None if value is None else from_plain(arguments[0], value)
    if kind is float:
        if value is None:
            return math.nan
        return float(value) if isinstance(value, str) else value  # an infinity is a word
    if isinstance(kind, type) and (kind is Interval or is_dataclass(kind)):
        values = {}
        for name, hint in get_type_hints(kind).items():
            if name in value:  # an older answer may lack what has a default now
                values[name] = from_plain(hint, value[name])
        make: type[Any] = kind
        return make(**values)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(from_plain(item_kind, item) for item_kind, item in zip(kinds, value, strict=True))
    if origin is Mapping:
        return {key: from_plain(arguments[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    return value
