"""What a report says, as values: question, arms, differences, causes, caveats and next steps.

`examine.py` makes them of a study, `sentences.py` words of them, and `answer.json` keeps them. A number that is missing
is None, or NaN where a type is a plain float; JSON has null for both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from normbench.evidence.measures import Metric
from normbench.results.statistics import Interval

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
class Result:
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
    results: tuple[Result, ...]


# ---- what is tested


class Verdict(StrEnum):
    """What can be said of a difference."""

    DIFFERENT = "different"  # it is one after correction
    FLATTERED = "flattered"  # the arm that looks better has lost more runs
    POSSIBLE = "possible"  # p is below 0.05 by itself, but not after correction
    CONSTANT = "constant"  # it is the same in each seed, so that the spread is not known
    TORN = "torn"  # runs of an arm end in two groups, of which some did not train
    UNTRAINED = "untrained"  # an arm did not train
    SAME = "same"  # both end the same in each seed
    WITHIN = "within"  # the interval lies within the margin
    UNKNOWN = "unknown"  # there are too few seeds to tell
    ALIKE = "alike"  # no difference was found
    ONE_SEED = "one_seed"
    NO_SEED = "no_seed"


@dataclass(frozen=True, kw_only=True)
class StatedTest:
    """What is tested of an arm against its baseline.

    Attributes:
        arm: its name.
        baseline: the name of its baseline.
        p: of the test by itself.
        corrected: p after Holm, and for learning rates that one of the two had more of to choose from.
        family: over how many tests Holm corrects.
        real: whether it may be called a difference.
    """

    arm: str
    baseline: str
    p: float | None
    corrected: float | None
    family: int
    real: bool


@dataclass(frozen=True, kw_only=True)
class Paired(StatedTest):
    """A number of an arm less the same number of its baseline, seed by seed.

    Attributes:
        metric: in which both are measured.
        seeds: those that are compared.
        values: the difference in each of these seeds.
        tried: how many seeds the arm and the baseline have, counting each once.
        mean: of the values.
        sd: standard deviation of the values; 0 where all are equal.
        interval: Student's 95 % interval of the mean.
    """

    metric: Metric
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    tried: int
    mean: float
    sd: float
    interval: Interval | None

    @property
    def n(self) -> int:
        """Return how many seeds are compared."""
        return len(self.seeds)


@dataclass(frozen=True)
class TwoGroups:
    """An arm whose runs end in two groups far apart: how many of its runs trained, of how many that finished."""

    arm: str
    trained: int
    runs: int


@dataclass(frozen=True)
class Deciding:
    """The seed without which the answer would change, and p without it."""

    seed: int
    p: float


@dataclass(frozen=True, kw_only=True)
class ArmDifference(Paired):
    """An arm less its baseline in a metric's unit.

    Attributes:
        verdict: what can be said of it.
        better: whether the arm's mean is the better one.
        effect_size: Hedges' g.
        detectable: the smallest true difference that would be found four times in five with these seeds.
        detectable_interval: its 95 % interval, since the spread is estimated from few seeds.
        untrained: which of the two did not train.
        torn: which of the two have no mean, so that nothing is tested.
        survived: whether other seeds were lost, so that these are the survivors.
        lost: how many seeds the arm and the baseline lost, of those that ended in both.
        ranks: how many values the signed-rank test has, in which a lost run ranks last.
        ranked_p: p of that test.
        skewed: whether the values are skewed, or one is an outlier.
        deciding: the one seed that decides the answer, if one does.
    """

    verdict: Verdict
    better: bool
    effect_size: float | None
    detectable: float | None
    detectable_interval: Interval | None
    untrained: tuple[str, ...]
    torn: tuple[TwoGroups, ...]
    survived: bool
    lost: tuple[int, int]
    ranks: int
    ranked_p: float | None
    skewed: bool
    deciding: Deciding | None


class EffectKind(StrEnum):
    """What is measured of a factor's effect on an arm."""

    CHANGE = "change"  # from its usual value to another
    SLOPE = "slope"  # per doubling
    LARGEST = "largest"  # the logarithm to base 2 of its largest value at which an arm trains
    AREA = "area"  # the percentage of the grid of two factors in which an arm trains
    SENSITIVITY = "sensitivity"  # to the learning rate


@dataclass(frozen=True, kw_only=True)
class Effect(Paired):
    """What a factor does to an arm, less what it does to the baseline.

    Attributes:
        kind: what is measured of it.
        factor: the setting, or the two of a grid.
        levels: its values, the usual one first, or all from low to high.
        own: the effects on the arm, by seed.
        other: the effects on the baseline, by seed.
    """

    kind: EffectKind
    factor: str
    levels: tuple[Any, ...]
    own: tuple[float, ...]
    other: tuple[float, ...]


@dataclass(frozen=True)
class DifferenceAtSize:
    """The difference between an arm and its baseline in models of one size.

    Attributes:
        parameters: of the baseline's model; where they are extrapolated to, of none that was trained.
        values: in each seed.
        mean: of the values.
        interval: Student's 95 % interval of the mean.
        settings: that make the size; none on a line.
    """

    parameters: float
    values: tuple[float, ...]
    mean: float
    interval: Interval | None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scaling(Paired):
    """By how much the difference between an arm and its baseline changes with each tenfold of parameters.

    In each seed the differences at all sizes have a line over log10 of the parameters, by least squares; `values` are
    the slopes.

    Attributes:
        sizes: what was measured, from the smallest size to the largest.
        at_smallest: the seeds' lines at the smallest size.
        at_largest: the seeds' lines at the largest size.
        extrapolated: the seeds' lines a decade beyond the largest size.
        bend_p: p of the test of whether the lines are curved, by the seeds' second-order coefficients.
        left_out: arms of sizes at which one of the two did not train, or no seed finished in both.
    """

    sizes: tuple[DifferenceAtSize, ...]
    at_smallest: DifferenceAtSize
    at_largest: DifferenceAtSize
    extrapolated: DifferenceAtSize
    bend_p: float | None
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Losses(StatedTest):
    """How many runs of an arm and of its baseline were lost.

    Attributes:
        lost: how many runs the arm and the baseline lost.
        runs: how many runs of each finished or diverged.
        counted: whether the test can show anything with so many lost in all, and so counts in its family.
        diverged: whether some runs diverged.
        stuck: whether some runs did not train.
    """

    lost: tuple[int, int]
    runs: tuple[int, int]
    counted: bool
    diverged: bool
    stuck: bool


# ---- causes


class ReasonKind(StrEnum):
    """What probes show."""

    SMALL_STREAM = "small stream"  # what enters the first norm is near 0
    SATURATED = "saturated"  # inputs of norms are at their bound
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


# ---- caveats


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
    """

    version: int = VERSION
    question: Question
    baseline: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    arms: tuple[ArmResult, ...]
    differences: tuple[ArmDifference, ...]
    others: tuple[ArmDifference, ...]
    effects: tuple[Effect, ...]
    losses: tuple[Losses, ...]
    causes: tuple[Cause, ...]
    caveats: tuple[Caveat, ...]
    next: tuple[NextStep, ...]
    damaged: Mapping[str, str]
    missing: Mapping[str, str]
    scaling: tuple[Scaling, ...] = ()

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
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(own) for key, own in value.items()}
    if isinstance(value, tuple):
        return [to_plain(own) for own in value]
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
        own = {}
        for name, hint in get_type_hints(kind).items():
            if name in value:  # an older answer may lack what has a default now
                own[name] = from_plain(hint, value[name])
        make: type[Any] = kind
        return make(**own)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(from_plain(one, own) for one, own in zip(kinds, value, strict=True))
    if origin is Mapping:
        return {key: from_plain(arguments[1], own) for key, own in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    return value
