"""What is measured of runs: how well they ended, how fast they got there, what they cost, and how calm they were."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from normbench.evidence.run import LARGEST_RATE, Curve, RecordedRun
from normbench.record.directory import extended_runs
from normbench.wording import whole

NAN = float("nan")
TRAINING_LOSS, VALIDATION_LOSS = "loss/train", "loss/val"
STEP_TIME = "time/step_ms"
AVERAGED = "averaged weights' validation"
SPLITS = {"test": "test", "val": "validation", "train": "training", "val_ema": AVERAGED, "val_swa": AVERAGED}
BEST = "best"  # the word for the best validation loss during training
NOTHING = Curve(np.array([], int), np.array([]))
# Splits that are evaluated during training, perhaps on some batches alone.
IN_TRAINING = ("/val", "/val_ema", "/val_swa")

# What probes measure in each block, by the form of their tags, which has the number of the block as its group.
IN_BLOCKS = {
    "stream RMS": r"act/stream(\d+)/rms",
    "gradient norm": r"grad/block(\d+)(?:\.[^/]*)?/norm",
    "saturated": r"act/block(\d+)(?:\.[^/]*)?/saturated_out",
    "update ratio": r"update/block(\d+)\.[^/]*/ratio",
    "effective learning rate": r"update/block(\d+)\.[^/]*/effective_lr",
    "mean γ": r"norm/block(\d+)(?:\.[^/]*)?/gamma_mean",
}


@dataclass(frozen=True)
class Metric:
    """A number by which runs are judged.

    Attributes:
        tag: as it is recorded.
        unit: of a difference: that of two shares is in points.
        symbol: what stands after a value.
        scale: what a recorded value is multiplied by to be in the unit.
        decimals: of a value.
        bounds: the lowest and the highest that a value can be.
        lower_is_better: or else higher is.
        judges: whether lower or higher is better at all.
        in_doublings: whether a value is the binary logarithm of what is recorded, so that differences are of factors.
    """

    tag: str
    unit: str = "nats"
    symbol: str = "nats"
    scale: float = 1.0
    decimals: int = 4
    bounds: tuple[float, float] = (0.0, math.inf)
    lower_is_better: bool = True
    judges: bool = True
    in_doublings: bool = False

    def of(self, recorded: float) -> float:
        """Return a recorded value in the metric's unit."""
        if not self.in_doublings:
            return self.scale * recorded
        return math.log2(recorded) if recorded > 0 else NAN  # somebody else's record may hold any number

    @property
    def kind(self) -> str:
        """Return the tag without its split, such as `loss`."""
        return self.tag.partition("/")[0]

    @property
    def words(self) -> str:
        """Name it, such as `validation loss`."""
        if self.tag == BEST:
            return "best validation loss during training"
        if self.tag == LARGEST_RATE:
            return "largest learning rate"
        split = self.tag.partition("/")[2]
        if split not in SPLITS:
            return self.tag
        kind = self.kind.replace("bleu", "BLEU")
        return f"{SPLITS[split]} {kind}"

    @property
    def final_words(self) -> str:
        """Name its last value, such as `final validation loss`."""
        return self.words if self.tag == LARGEST_RATE else f"final {self.words}"


def loss_on(split: str) -> Metric:
    """Return the loss of a split, in nats."""
    return Metric(f"loss/{split}")


def accuracy_on(split: str) -> Metric:
    """Return the accuracy of a split, in percent; differences are percentage points."""
    return Metric(f"accuracy/{split}", "percentage points", "%", 100.0, 2, (0.0, 100.0), lower_is_better=False)


def bleu_on(split: str) -> Metric:
    """Return the BLEU of a split's translations, from 0 to 100."""
    return Metric(f"bleu/{split}", "points", "points", 1.0, 1, (0.0, 100.0), lower_is_better=False)


def largest_rate() -> Metric:
    """Return the largest learning rate that a run bore as it grew; differences are doublings of it."""
    bounds = (-math.inf, math.inf)
    return Metric(LARGEST_RATE, "doublings", "log₂", 1.0, 2, bounds, lower_is_better=False, in_doublings=True)


METRICS_OF_KINDS = {"accuracy": accuracy_on, "bleu": bleu_on}  # of a split; all other kinds are losses


def finite_numbers(values: Iterable[float | None]) -> list[float]:
    """Return the values that are finite numbers."""
    numbers = []
    for value in values:
        if value is not None and math.isfinite(value):
            numbers.append(float(value))
    return numbers


def final(run: RecordedRun, metric: Metric) -> float:
    """Return the run's last value in the metric's unit, or its best for `best`; NaN for a run that did not finish."""
    value = recorded_final(run, metric)
    return NAN if value is None else metric.of(value)


def final_values(runs: Iterable[RecordedRun], metric: Metric) -> list[float]:
    """Return the last values of runs in the metric's unit, those that are finite."""
    return finite_numbers(final(run, metric) for run in runs)


def recorded_final(run: RecordedRun, metric: Metric) -> float | None:
    """Return the same as it is recorded; None for a run that did not finish, or has none."""
    if run.status != "finished":
        return None
    value: float | None
    if metric.tag == BEST:
        losses = finite_points(comparable(run, VALIDATION_LOSS)).values
        value = min(losses, default=None)
    elif metric.tag in run.metrics:
        value = run.metrics[metric.tag]
    else:  # the summary has only some tags
        logged = finite_points(run.curves.get(metric.tag)).values
        value = logged[-1] if len(logged) else None
    return None if value is None else float(value)


def metric_of(tag: str) -> Metric:
    """Return the metric of a tag; for an unknown kind, one of which neither lower nor higher is better."""
    if tag == LARGEST_RATE:
        return largest_rate()
    kind, _, split = tag.partition("/")
    if kind in METRICS_OF_KINDS:
        return METRICS_OF_KINDS[kind](split)
    if kind in ("loss", BEST):
        return Metric(tag)
    return Metric(tag, "", "", bounds=(-math.inf, math.inf), judges=kind == "perplexity")


def evaluations_in_words(runs: Iterable[RecordedRun]) -> str:
    """Write on how much runs were evaluated during training, such as `20 batches`; empty where it was all data."""
    counts = set[str]()
    for run in runs:
        if is_evaluated_in_part(run):
            number = run.config["trainer.eval_batches"]
            counts.add(whole(number))
    if not counts:
        return ""
    batches = "batch" if counts == {"1"} else "batches"
    return f"{' or '.join(sorted(counts))} {batches}"


def is_evaluated_in_part(run: RecordedRun) -> bool:
    """Tell whether evaluations during training were of some batches, and that at the last step of all data."""
    return math.isfinite(batches_evaluated(run, run.config.get("trainer.eval_batches")))


def batches_evaluated(run: RecordedRun, limit: int | None) -> float:
    """Return how many batches of a run's data an evaluation with a limit takes; infinite where it takes all."""
    if limit is None:
        return math.inf
    examples = limit * run.config.get("data.eval_batch_size", 0)
    for name in ("val_images", "val_texts", "val_sentences"):
        if name in run.data:
            return math.inf if examples >= run.data[name] else limit
    return limit


def comparable(run: RecordedRun, tag: str) -> Curve:
    """Return the points of a curve that can be compared: of evaluations, those on the same batches.

    These are as many batches as the run is evaluated on during training, which may be easier or harder than all data.
    Left out are evaluations of all data, at the last step of the run and of each run that it extends, and those of an
    extended run that was evaluated on another number of batches.
    """
    curve = run.curves.get(tag, NOTHING)
    if not tag.endswith(IN_TRAINING):
        return curve
    limit = run.config.get("trainer.eval_batches")
    batches = np.full(len(curve.steps), math.inf)  # of each evaluation
    begun = 0
    stretches = list(extended_runs(run.sessions, limit))
    stretches.append({"steps": run.steps, "eval_batches": limit})
    for stretch in stretches:
        is_during = (curve.steps > begun) & (curve.steps < stretch["steps"])
        batches[is_during] = batches_evaluated(run, stretch["eval_batches"])
        begun = stretch["steps"]
    kept = batches == batches_evaluated(run, limit)
    return Curve(curve.steps[kept], curve.values[kept])


def implementation(run: RecordedRun) -> str:
    """Return what computed a run's norms, such as `torch.nn.functional.layer_norm`; empty where it is not recorded."""
    recorded = run.ledger.get("implementation") or ""
    return recorded if isinstance(recorded, str) else " and ".join(recorded)


# ---- time


def finite_points(curve: Curve | None) -> Curve:
    """Return a curve without its points that are not finite; an empty one for None."""
    curve = curve or NOTHING
    is_finite = np.isfinite(curve.values)
    return Curve(curve.steps[is_finite], curve.values[is_finite])


def seconds_at(run: RecordedRun, steps: np.ndarray | int) -> np.ndarray:
    """Return how many seconds of training a run took up to a step, or up to each of some (n,).

    That is the sum over the logged intervals of their step time × their steps, without evaluation, probing, checkpoints
    and the extra time of the first steps. Steps before the first recorded time are taken to be as fast as those after
    it, and steps after the last one as those before it. NaN where no time is recorded.
    """
    timed = finite_points(run.curves.get(STEP_TIME))
    if not len(timed.steps):
        return np.full(np.shape(steps), NAN)
    ends = np.concatenate([[0], timed.steps])
    milliseconds = np.cumsum(timed.values * np.diff(ends))
    seconds = np.concatenate([[0.0], milliseconds / 1e3])
    last_interval = ends[-1] - ends[-2]
    seconds_a_step = (seconds[-1] - seconds[-2]) / last_interval
    after = np.maximum(steps - ends[-1], 0)
    return np.asarray(np.interp(steps, ends, seconds) + after * seconds_a_step)


class GradientNoise(NamedTuple):
    """How noisy gradients are; NaN where that is not known.

    variance: of one example's gradient. scale: the noise scale, in examples.
    """

    variance: float = NAN
    scale: float = NAN


def gradient_noise(run: RecordedRun) -> GradientNoise:
    """Return the mean noise of a finished run's gradients, over the probed steps since the learning rate's peak.

    The noise scale is a ratio of means, as single ratios are biased and spread widely (McCandlish et al. 2018,
    appendix A.1).
    """
    rates = finite_points(run.curves.get("optim/lr"))
    if run.status != "finished" or "noise/variance" not in run.curves or not len(rates.steps):
        return GradientNoise()
    peak = rates.steps[rates.values.argmax()]
    variance = mean_since(run.curves["noise/variance"], peak)
    squared = mean_since(run.curves["noise/squared_gradient"], peak)
    return GradientNoise(variance, variance / squared)


def mean_since(curve: Curve, step: int) -> float:
    """Return the mean of a curve from a step on; NaN where it is not above 0."""
    curve = finite_points(curve)
    values = curve.values[curve.steps >= step]
    mean = float(values.mean()) if len(values) else NAN
    return mean if mean > 0 else NAN


def value_at(run: RecordedRun, tag: str, seconds: float) -> float:
    """Return a loss at a time of training, interpolated between records; NaN before the first and after the last."""
    curve = finite_points(comparable(run, tag))
    times = seconds_at(run, curve.steps)
    within = len(times) and times[0] <= seconds <= times[-1] * (1 + 1e-9)
    return float(np.interp(seconds, times, curve.values)) if within else NAN


def last_seconds(run: RecordedRun, tag: str) -> float:
    """Return the time of training of the last value that `comparable` keeps, in seconds; NaN where there is none."""
    steps = finite_points(comparable(run, tag)).steps
    return float(seconds_at(run, steps[-1])) if len(steps) else NAN


def step_at_target(run: RecordedRun, target: float) -> int:
    """Return the step from which on a finished run's validation loss stays at or below a target; 0 if it does not.

    Only evaluations that `comparable` keeps count.
    """
    curve = comparable(run, VALIDATION_LOSS)
    if run.status != "finished":
        return 0
    above = np.flatnonzero(~(curve.values <= target))
    first = above[-1] + 1 if len(above) else 0
    return int(curve.steps[first]) if first < len(curve.steps) else 0


# ---- ends and blocks


def shown_metrics(run: RecordedRun) -> dict[str, float | None]:
    """Return the last losses, accuracies and BLEUs of a run."""
    metrics = {}
    for tag, value in run.summary.get("metrics", {}).items():
        if tag.partition("/")[0] in ("loss", *METRICS_OF_KINDS):
            metrics[tag] = value
    return metrics


def best_during_training(run: RecordedRun, metric: Metric) -> tuple[float, int]:
    """Return the best value that `comparable` keeps, in the metric's unit, and its step; NaN and 0 if there is none."""
    sign = 1 if metric.lower_is_better else -1
    curve = finite_points(comparable(run, metric.tag))
    badness = sign * curve.values
    best, step = min(zip(badness, curve.steps, strict=True), default=(NAN, 0))
    return metric.scale * sign * float(best), int(step)


def gap(run: RecordedRun) -> float:
    """Return the last validation loss less the last training loss (nats); NaN where that says nothing."""
    if run.ramp:
        return NAN
    if "loss/train_eval" in run.metrics:
        return final(run, loss_on("val")) - final(run, loss_on("train_eval"))
    if run.config.get("data.label_smoothing"):  # which the training loss alone has
        return NAN
    return final(run, loss_on("val")) - final(run, loss_on("train"))


@cache  # runs of a study have the same tags
def block_of(tag: str, tags: str) -> int | None:
    """Return of which block a tag is, 0 for the whole network; None where it is not of the form that `tags` has."""
    match = re.fullmatch(tags, tag)
    if not match:
        return None
    return int(match[1]) if match.groups() else 0


def by_block(run: RecordedRun, tags: str) -> dict[int, Curve]:
    """Return what a run has logged under tags of some form, by the number of the block; 0 for the whole network.

    Where parts of a block are logged, it is their mean, but of gradients the norm of all parts together.
    """
    parts: dict[int, list[Curve]] = defaultdict(list)
    for tag, curve in run.curves.items():
        block = block_of(tag, tags)
        if block is not None:
            parts[block].append(curve)
    curve_of_block = {}
    for block, curves in sorted(parts.items()):
        common = min(len(curve.steps) for curve in curves)  # the last ones: parts of a block are logged together
        values = np.array([curve.values[-common:] for curve in curves])
        whole = np.linalg.norm(values, axis=0) if tags.startswith("grad/") else values.mean(axis=0)
        steps = curves[0].steps[-common:]
        curve_of_block[block] = Curve(steps, np.asarray(whole))
    return curve_of_block


def last_in_blocks(run: RecordedRun) -> dict[int, dict[str, float]]:
    """Return what probes measured last in each block of a run, by the names in IN_BLOCKS."""
    values_of_block = defaultdict[int, dict[str, float]](dict)
    for name, tags in IN_BLOCKS.items():
        for block, curve in by_block(run, tags).items():
            values_of_block[block][name] = curve.values[-1]
    return values_of_block
