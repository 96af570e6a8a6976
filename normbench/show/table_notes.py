"""What stands below the tables of a report: a function for each table, a paragraph for each note."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from normbench.evidence.measures import VALIDATION_LOSS, Metric
from normbench.evidence.run import LEARNED, LEARNED_RIGHT
from normbench.evidence.yardstick import Yardstick
from normbench.results.result import EffectKind
from normbench.wording import compact, count, duration, percent


def write_notes(table: str, columns: Collection[str], **about: object) -> tuple[str, ...]:
    """Return the notes of a table; none for one that explains itself.

    table: the first word of its key. columns: those that it shows. about: what its writer takes besides.
    """
    writer = WRITERS.get(table)
    return tuple(writer(columns, **about)) if writer else ()


def summary(columns: Collection[str], *, metric: Metric, paired: bool) -> list[str]:
    """Explain which arm is better. paired: whether there are differences."""
    if not paired:
        return []
    for what in ("time", "steps"):
        if f"{what} to the same loss" in columns:
            return [f"{say_paired(metric)} {what.capitalize()} to the same loss: as a multiple of the baseline's."]
    return [say_paired(metric)]


def say_paired(metric: Metric) -> str:
    """Say what a difference is, and on which side of zero an arm is better."""
    side = "below" if metric.lower_is_better else "above"
    return f"Arm less baseline, paired by seed: {side} zero, the arm is better."


def runs(columns: Collection[str], *, left_out: int) -> list[str]:
    """Say how many runs are not in the table."""
    return [f"{count(left_out, 'more run')} in runs.csv."] if left_out else []


def arms(columns: Collection[str], *, yardstick: Yardstick, evaluated: str, ran: str) -> list[str]:
    """Explain the results of arms. evaluated: on how much during training. ran: what computed the norms."""
    least = "0 and 100 %" if yardstick.primary.scale == 100 else "0"
    notes = [
        "Means over the n seeds that have a result (of all), with Student's t interval, cut where no value can be "
        f"({least}); it stands for each arm alone. Seeds that all end the same have none. An arm of which some runs "
        "trained and others end far from them has neither.",
        "The best value on the way is chosen on the validation data, so it flatters: it judges nothing. The gap is the "
        "final validation loss less the mean training loss of the last logged steps, or that of a final evaluation of "
        "the training data where there is one.",
    ]
    if yardstick.primary.in_doublings:
        notes.append(
            f"Of the {yardstick.primary.words} the mean is geometric, and the interval is that of its logarithms."
        )
    timed = not math.isnan(yardstick.seconds)
    if timed:
        loss = "validation" if yardstick.timed == VALIDATION_LOSS else "training"
        notes.append(
            f"Loss at {duration(yardstick.seconds)}: the mean {loss} loss at this time of training, the last of the "
            "fastest run, which every finished run had. Training time is step time × steps, without evaluation, "
            "probing, checkpoints and warm-up."
        )
    if ran and (timed or yardstick.targets):
        notes.append(f"The norms whose times these are ran as {ran}.")
    if yardstick.targets:
        target = "the loss that was asked for" if yardstick.given else "the mean of the last ones of the arm's baseline"
        notes.append(
            f"Time to a target: the median time from which on the validation loss stays at or below {target}; a run "
            "that is above it later on counts as never, and in brackets is how many got there, and which."
        )
    if evaluated:
        notes.append(
            f"On the way runs were evaluated on {evaluated}, at the last step on all validation data. The best value, "
            "the time to a target and what is reached by a time are of the first kind alone, the final values of the "
            "second."
        )
    return notes


def costs(columns: Collection[str]) -> list[str]:
    """Explain what arms cost and how stable they were."""
    notes = [
        "Step time: median over the runs of their medians and 90th percentiles, with taking the batch from memory and "
        "without warm-up, evaluation or probing."
    ]
    if "operators a step" in columns:
        notes.append(
            "Operators a step: those that a step gives to its device, but for views and new memory, counted on an "
            "early one."
        )
    notes.append(
        "Did not train: runs of which neither validation nor training loss ended "
        f"{percent(LEARNED)} below the loss of a constant guess, the best predictor that always says the same, and "
        f"which did not make {percent(LEARNED_RIGHT)} fewer errors either."
    )
    if "spikes" in columns:
        notes.append(
            "Spikes: the share of logged training losses, each a mean over its steps, at least 7 standard deviations "
            "from the mean of the 1,000 before."
        )
    return notes


def activations(columns: Collection[str]) -> list[str]:
    """Explain what probes measured."""
    stream = (
        "Stream RMS: the root mean square of the residual stream after the block. Gradient norm: of all weights of "
        "the block, before clipping."
    )
    if "saturated" in columns:
        stream += " Saturated: the share of its inputs at which a bounded norm is at its bound."
    notes = [
        "What the probes measured last, from the first block to the last one by way of the one in the middle, as means "
        "over the n seeds that finished; activations.csv has all blocks.",
        stream,
    ]
    if "effective learning rate" in columns:
        notes.append(
            "Update ratio: the norm of a step's change of the weights of a branch over theirs. Effective learning "
            "rate: the rate over the norm of these weights, with SGD over its square; where a norm follows on them, it "
            "is how fast the optimizer turns them (van Laarhoven 2017)."
        )
    if "γ with depth" in columns:
        notes.append(
            "γ with depth: the rank correlation of a block's mean γ with its place, over all blocks, from −1 to 1."
        )
    return notes


def noise(columns: Collection[str], *, crossing: Sequence[str]) -> list[str]:
    """Explain gradient noise. crossing: the arms whose statistics cross samples."""
    notes = [
        "Gradient variance: the trace of the covariance of one example's gradient, from the differences between "
        "micro-batches of a probed step. Noise scale: it over the squared norm of the true gradient, in examples, the "
        "batch at which noise and gradient weigh alike (McCandlish et al. 2018, appendix A.1); unlike the variance it "
        "does not grow with the gradients themselves.",
        "Means over the probed steps since the learning rate was at its peak; ratios to the baseline are geometric "
        "means over the seeds with the t interval of their logarithms. The intervals are not "
        "corrected for their number.",
    ]
    if crossing:
        notes.append(
            f"Not like the others: {'; '.join(crossing)}. There statistics cross samples (BatchNorm): each micro-batch "
            "has its own, and the loss that is trained has those of whole batches. So the variance is of another loss."
        )
    return notes


def differences(columns: Collection[str], *, metric: Metric, family: int, primary: bool) -> list[str]:
    """Explain differences. family: over how many tests Holm corrects. primary: whether the answer speaks of them."""
    notes = [say_paired(metric)]
    if "p after Holm" in columns:
        tests = (
            "all that the answer states: those of this table, of crossed factors and of lost runs"
            if primary
            else "those of this table alone, of which the answer does not speak"
        )
        notes.append(
            f"Holm corrects p for {count(family, 'test')}, {tests}. Perhaps: p is below 0.05 by itself, but not after "
            "correction."
        )
    if not primary:
        return notes
    if "p" in columns:
        notes.append(
            "Interval and p: paired t, which takes differences by seed to be Gaussian; the 95 % hold for each interval "
            "by itself, not for all of them together. Where every seed differs by the same amount, there is neither, "
            "as the spread is not known."
        )
        if family == 1:
            notes.append(
                "One comparison, so p is not corrected; a report over more arms corrects it and may find less."
            )
    if "effect size" in columns:
        notes.append(
            "Effect size: how many standard deviations of the differences by seed their mean is from zero, unbiased "
            "(Hedges' g): at 1, about five in six seeds differ in the same direction."
        )
    if "Wilcoxon p" in columns:
        notes.append(
            "Wilcoxon: p of the test of signed ranks, not corrected; with fewer than six ranks it cannot be below "
            "0.05. A run that was lost ranks behind all others."
        )
    if "minimum detectable effect" in columns:
        corrected = ", correction included" if family > 1 else ""
        notes.append(
            "Minimum detectable effect: a true difference of this size would have been found four times in five with "
            f"so many seeds{corrected}, if the spread is as measured; in brackets, the 95 % interval that the spread "
            "of so few differences leaves to it (by χ²)."
        )
    return notes


def designs(columns: Collection[str], *, kinds: Collection[str], family: int) -> list[str]:
    """Explain effects of factors. kinds: of effects. family: over how many tests Holm corrects."""
    corrected = f"; Holm corrects p for all {family} tests that the answer states" if family > 1 else ""
    notes = [
        "What a factor does to an arm, what it does to the baseline, and the difference of the two, paired by seed, "
        f"with paired t intervals{corrected}. An arm that did not train, or whose runs end in two groups, takes no "
        "part. Where other factors vary too, it is the mean over them."
    ]
    if EffectKind.CHANGE in kinds or EffectKind.SLOPE in kinds:
        notes.append(
            "A run that diverged, or ended worse than a constant predictor, counts as a constant predictor, where the "
            "data have one. A slope is by least squares over the logarithm of the factor to base 2."
        )
    if EffectKind.LARGEST in kinds:
        largest = (
            "The largest that trains: geometric means over the seeds of the largest value tried at which a seed "
            "trains, and their ratio; a seed that trains at none counts as half the lowest. Two arms that train at "
            "none are not compared."
        )
        if EffectKind.SENSITIVITY in kinds:
            largest += " Sensitivity is that of the table of learning rates."
        notes.append(largest)
    return notes


def scaling(columns: Collection[str], *, family: int) -> list[str]:
    """Explain how differences change with the size of the model. family: over how many tests Holm corrects."""
    corrected = f"; Holm corrects p for all {family} tests that the answer states" if family > 1 else ""
    return [
        "Arm less baseline, over log10 of the parameters of the baseline's model (all of them, embeddings included): "
        "in each seed a line by least squares, and over the seeds the mean of their slopes and heights with Student's "
        f"t interval{corrected}. Only seeds that finished at all of these sizes count.",
        "Extrapolated: the lines a decade beyond the largest size. No model of that size was trained. The interval "
        "tells how far seeds differ, and not whether the line goes on. p of a bend: of the t test of the seeds' "
        "second-order coefficients, not corrected; where it is small, a line does not describe the differences.",
    ]


def survival(columns: Collection[str]) -> list[str]:
    """Explain at which levels of a setting arms train."""
    return [
        "Of the runs that have ended: those that neither diverged nor ended close to a constant predictor. All, most: "
        "the largest value at which all of them, or half of them or more, train."
    ]


def areas(columns: Collection[str]) -> list[str]:
    """Explain in which share of a grid arms train."""
    return [
        "The share of all pairs of values at which a run trains, which neither diverged nor ended close to a constant "
        "predictor: mean over the seeds that have ended at all of them, with its t interval."
    ]


def step_times(columns: Collection[str], *, ran: str) -> list[str]:
    """Explain ratios of step times. ran: what computed the norms."""
    text = (
        "Median step time over that of the baseline, paired by seed: geometric mean of the ratios with the t interval "
        "of their logarithms. Runs that shared a machine with others have disturbed times."
    )
    return [f"{text} The norms ran as {ran}." if ran else text]


def worth(columns: Collection[str], *, limits: Sequence[str]) -> list[str]:
    """Explain what differences in loss are worth. limits: sentences on what is not measured of some arms."""
    notes = [
        "What the arm takes to the same validation loss, as a multiple of what the baseline takes, paired by seed: "
        "geometric means of the ratios with the t interval of their logarithms, which are not corrected for their "
        "number. That loss is the baseline's last one on the way; at a seed at which the arm ends above it, it is the "
        "arm's own last one, so that no seed is left out. Between evaluations, which are of the same data, the loss is "
        "taken for a line over the logarithm of the step.",
        "A run that is planned for this loss is shorter, and its rate falls sooner, so that it takes fewer steps than "
        "those at which a longer one passes it: such ratios lie rather farther from 1 than these.",
    ]
    if "time to the same loss, ×" in columns:
        notes.append("Time: steps times the median time of a step, by seed.")
    return [*notes, *limits]


def search(columns: Collection[str], *, seeds: int, length: float) -> list[str]:
    """Explain how learning rates were chosen. seeds: by how many. length: of their runs, as a share of the others'."""
    notes = [
        f"The mean final validation loss over {count(seeds, 'seed')} of its own, on a tenth held out of the training "
        "data, by learning rate; – where a rate was not tried. The rate with the lowest one is that of the runs that "
        "are reported, or that of the run of one seed where each seed has a choice of its own (in brackets: of how "
        "many); where one of its runs was lost, as it diverged or failed, a rate is not chosen."
    ]
    if length < 1:
        notes.append(
            f"The runs that chose have {percent(length)} of the steps of those that are reported, and may prefer "
            "another rate than they."
        )
    if "what the next rate costs, nats" in columns:
        notes.append(
            "What the next rate costs: by how much the loss at the rates beside the one chosen most often is above "
            "that at it, over the choices that tried both. Curvature: of the parabola through all three, by the square "
            "of a doubling of the rate. Where one seed has chosen for an arm, both have the noise of its runs, and are "
            "rather too large: the lowest of a few losses would be higher another time."
        )
    return notes


def rates(columns: Collection[str]) -> list[str]:
    """Explain how sensitive arms are to the learning rate."""
    return [
        "Sensitivity: the mean over the rates of min(final validation loss, loss at the start), less the loss at the "
        "best rate (Wortsman et al. 2023), averaged over the seeds that ended at every rate; lower is calmer. A run "
        "that diverged counts its loss at the start. Its interval is cut at 0, below which it cannot be. An arm that "
        "trains at no rate has no best one; an arm most of whose runs do not train at its best rate has no "
        "sensitivity; a low sensitivity beside a high loss is not a merit."
    ]


def plan(columns: Collection[str], *, n: int, sd: float, unit: str) -> list[str]:
    """Explain how many seeds are needed. n, sd: of the pilot's differences, and their standard deviation."""
    return [
        f"To be found four times in five by a paired t test at 5 %. Pilot: {count(n, 'seed')}, standard deviation of "
        f"the paired differences {compact(sd, 2)} {unit}.",
        "A pilot knows its spread only roughly: with the cautious number the plan holds in four of five cases.",
    ]


# By the first word of a table's key.
WRITERS: dict[str, Callable[..., list[str]]] = {
    "summary": summary,
    "runs": runs,
    "arms": arms,
    "costs": costs,
    "activations": activations,
    "noise": noise,
    "differences": differences,
    "designs": designs,
    "scaling": scaling,
    "survival": survival,
    "areas": areas,
    "step": step_times,
    "worth": worth,
    "search": search,
    "rates": rates,
    "plan": plan,
}
