"""What makes a comparison unfair, from the recorded facts: one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import filter as matching
from statistics import median
from typing import Any

from normbench.analysis.answers import CaveatKind
from normbench.analysis.comparisons import LOST, Comparison, rate_families, settled_seeds, without
from normbench.analysis.fairness_rules import SHOULD_BE_ALIKE, SHOULD_NEVER_BE, Record
from normbench.analysis.measures import finite
from normbench.analysis.records import LEARNING_RATE, Arm, RecordedRun, RecordedStudy, candidates, shortened
from normbench.analysis.statistics import FEWEST_RANKS
from normbench.analysis.wording import chance, fixed, in_words
from normbench.config.sections import GROUPS

# Seeds of one arm do the same work: medians further apart than this were measured under different conditions.
STEADY = 1.5
FEWEST_STEPS = 10  # steps that a median must be of at least

# A host that is at work for this share of a step's time has probably kept the GPU waiting, which would else end long
# after it. A step that itself waits for the GPU looks alike.
LAUNCH_BOUND = 0.9
MOST_TOLD = 6  # arms
FEW_EXAMPLES = 5000  # below, an accuracy is that of these examples more than of the data behind them

# Settings of which another check speaks, or that change no result.
SAID_ELSEWHERE = (
    "trainer.steps", "trainer.epochs", "trainer.log_every", "trainer.decay_norms", "trainer.precision",
    "trainer.accumulate", "trainer.compile", "norm.eps", "norm.impl", LEARNING_RATE,
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fact that makes a comparison unfair.

    topic: its kind. text: the sentence. serious: whether it may decide who wins. between: value -> names of arms,
    where it matters between an arm and its baseline alone.
    """

    topic: CaveatKind
    text: str
    serious: bool = True
    between: Mapping[Any, Sequence[str]] = field(default_factory=dict)

    def concerns(self, comparisons: Sequence[Comparison]) -> bool:
        """Tell whether it matters to some comparison: an arm has another value than its baseline, or several."""
        if not self.between or not comparisons:
            return True
        for one in comparisons:
            own = self.values_of(one.arm)
            if len(own) != 1 or own != self.values_of(one.baseline):
                return True
        return False

    def values_of(self, arm: Arm) -> set[Any]:
        """Return the values that an arm has."""
        return {value for value, names in self.between.items() if arm.name in names}


def findings(
    study: RecordedStudy,
    chosen: bool = False,
    comparisons: Sequence[Comparison] = (),
    missing: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """Return all that is unfair in a study, what may decide it first.

    chosen: whether a learning rate was chosen for each arm on what is reported. comparisons: of its arms.
    missing: planned runs without a directory -> why, where they have failed.
    """
    found = [
        *learning_rates(study),
        *damaged_runs(study),
        *contradictions(study),
        *unequal_facts(study),
        *forbidden_facts(study),
        *missing_seeds(study),
        *open_rates(study),
        *settings(study),
        *step_times(study),
        *launches(study),
        *lost_runs(comparisons),
        *unequal_choices(comparisons),
        *skewed_differences(comparisons),
        *few_examples(comparisons),
        *missing_runs(missing or {}),
    ]
    if chosen and not study.fairly_chosen:
        text = "the learning rate of each arm was chosen by the validation loss of the runs that are reported"
        found.append(Finding(CaveatKind.LEARNING_RATE, f"{text}, which favours arms with more rates to choose from"))
    concerning = [finding for finding in found if finding.concerns(comparisons)]
    return tuple(sorted(concerning, key=lambda finding: not finding.serious))


# ---- what is missing or damaged


def damaged_runs(study: RecordedStudy) -> Iterator[Finding]:
    """Find runs that cannot be read."""
    for name, why in study.damaged:
        yield Finding(CaveatKind.DAMAGED_RUN, f"{name} is left out: {why}")


def contradictions(study: RecordedStudy) -> Iterator[Finding]:
    """Find runs whose summary has other final metrics than they have logged."""
    wrong = dict.fromkeys(run.name for run in study.runs if contradicts_itself(run))
    if wrong:
        text = "summary.json has other final metrics than those logged last in metrics.jsonl"
        yield Finding(CaveatKind.DAMAGED_RECORD, f"{shortened([*wrong], 6)}: {text}")


def contradicts_itself(run: RecordedRun) -> bool:
    """Tell whether a final metric of the summary is not what was logged last."""
    for tag, value in run.metrics.items():
        if value is None:
            continue
        logged = finite(run.curves.get(tag)).values
        if len(logged) and logged[-1] != value:
            return True
    return False


def missing_runs(missing: Mapping[str, str]) -> Iterator[Finding]:
    """Find runs that were planned and have no directory; missing: name -> why, where it failed."""
    if missing:
        names = [f"{name} ({why})" if why else name for name, why in missing.items()]
        text = f"planned and not there (failed or not begun), {len(missing)}: {shortened(names, 3)}"
        yield Finding(CaveatKind.MISSING_RUNS, text)


def missing_seeds(study: RecordedStudy) -> Iterator[Finding]:
    """Find arms that lack a seed that others have."""
    every = {run.seed for run in study.runs}
    lacking: dict[tuple[int, ...], list[str]] = {}
    for arm in study.arms:
        lacks = sorted(every - {run.seed for run in arm.runs})
        if lacks:
            lacking.setdefault(tuple(lacks), []).append(arm.name)
    for seeds, names in lacking.items():
        which = shortened([str(seed) for seed in seeds])
        yield Finding(
            CaveatKind.MISSING_SEEDS, f"{shortened(names, 6)}: no run with seed {which}, which other arms have"
        )


# ---- what all runs should have in common, and what none should have


def records_of(study: RecordedStudy) -> list[Record]:
    """Return all sessions of all runs."""
    return [Record(arm, run, session) for arm, run in study.pairs for session in run.sessions]


def arms_by_value(answers: Iterable[tuple[str, Any]]) -> dict[Any, list[str]]:
    """Return the names of the arms whose runs have each value, but none for None; answers: arm, value."""
    found: dict[Any, dict[str, None]] = {}
    for name, value in answers:
        if value is not None:
            key = tuple(value) if isinstance(value, list) else value
            found.setdefault(key, {})[name] = None
    return {value: [*names] for value, names in found.items()}


def unequal_facts(study: RecordedStudy) -> Iterator[Finding]:
    """Find values that should be the same and are not."""
    records = records_of(study)
    for rule in SHOULD_BE_ALIKE:
        if any(matching(study.varied, pattern) for pattern in rule.unless):
            continue
        values = arms_by_value((record.arm.name, rule.read(record)) for record in records)
        for finding in unequal(rule.topic, rule.sentence, values, rule.serious):
            if rule.everywhere:
                finding = replace(finding, between={})
            yield finding


def forbidden_facts(study: RecordedStudy) -> Iterator[Finding]:
    """Find what no run should have."""
    records = records_of(study)
    for rule in SHOULD_NEVER_BE:
        names = dict.fromkeys(record.arm.name for record in records if rule.is_true(record))
        if names:
            yield Finding(rule.topic, f"{shortened([*names], 6)}: {rule.sentence}", rule.serious)


def unequal(
    topic: CaveatKind, words: str, found: Mapping[Any, Sequence[str]], serious: bool = True, fewest: int = 2
) -> Iterator[Finding]:
    """Say who has which values, where there are so many, such as `100 (layernorm); 200 (rmsnorm, dyt)`."""
    if len(found) >= fewest:
        values = "; ".join(f"{in_words(value)} ({shortened(names, 4)})" for value, names in found.items())
        yield Finding(topic, f"{words}: {values}", serious, found)


def settings(study: RecordedStudy) -> Iterator[Finding]:
    """Find settings that go along with what is compared."""
    compared = [key for key in study.varied if key in GROUPS]
    asked = asked_for(study)
    aside = {*GROUPS, *study.varied, *SAID_ELSEWHERE}
    for key in candidates(study.runs):
        is_of_option = key.partition(".")[0] in compared  # which has its own values
        is_asked_for = key in asked and not key.endswith("._target_")
        if key in aside or (is_of_option and not is_asked_for):
            continue
        found = arms_by_value((arm.name, run.config.get(key)) for arm, run in study.pairs)
        yield from unequal(CaveatKind.SETTINGS, f"the arms differ in {key} too", found)


def asked_for(study: RecordedStudy) -> set[str]:
    """Return the keys that the commands of runs set: what they say does not follow from an option."""
    keys = set[str]()
    for run in study.runs:
        for word in run.session["command"].split():
            key, equals, _ = word.strip("'\"").lstrip("+~").partition("=")
            if equals:
                keys.add(key)
    return keys


# ---- step times


def step_times(study: RecordedStudy) -> Iterator[Finding]:
    """Find arms whose seeds took unlike times for the same work."""
    ratios = {arm.name: time_ratio(arm) for arm in study.arms}
    unsteady = [name for name, ratio in ratios.items() if ratio > STEADY]
    if unsteady:
        worst = f"step times differ up to {max(ratios.values()):.1f}-fold between seeds of one arm"
        why = "so runs disturbed each other, or the machine did other work: their times say little"
        yield Finding(CaveatKind.STEP_TIMES, f"{worst}, {why}: {shortened(unsteady, 6)}", serious=False)


def time_ratio(arm: Arm) -> float:
    """Return the longest step time of an arm's runs over the shortest; 1 where fewer than two are known."""
    medians = []
    for run in arm.runs:
        time = run.summary.get("step_time", {})
        if (time.get("n") or 0) >= FEWEST_STEPS:
            medians.append(time["median_ms"])
    return float(max(medians) / min(medians)) if medians else 1.0


def launches(study: RecordedStudy) -> Iterator[Finding]:
    """Find GPUs that probably waited for their hosts in most runs of each arm, so that step times count operators."""
    if len(study.arms) < 2:
        return
    waiting: dict[str, list[RecordedRun]] = {}
    for arm in study.arms:
        own = [run for run in arm.runs if run.host_share >= LAUNCH_BOUND and run.operators > 0]
        if 2 * len(own) <= len(arm.runs):
            return
        waiting[arm.name] = own
    runs = [run for own in waiting.values() for run in own]
    least = round(1000 * min(run.host_share for run in runs)) // 10
    gpus = [*dict.fromkeys(run.session.get("accelerator") or "GPU" for run in runs)]
    gpu = f"the {gpus[0]}" if len(gpus) == 1 else f"the GPU (one of {shortened(gpus)})"
    counts = [f"{median(run.operators for run in own):,.0f} ({name})" for name, own in waiting.items()]
    text = (
        f"in most runs the host was at work for at least {least} % of a step, so {gpu} probably waited for it, "
        "and step times compare how many operators there are, and not what they compute: "
        f"{'; '.join(counts[:MOST_TOLD])}; "
        "but a step that itself waits for the GPU, as with .item() in a norm, looks alike"
    )
    yield Finding(CaveatKind.STEP_TIMES, text, serious=False)


# ---- learning rates


def learning_rates(study: RecordedStudy) -> Iterator[Finding]:
    """Find learning rates that go along with what is compared: fair where each was chosen for its arm on other data."""
    found = arms_by_value((arm.name, run.config.get(LEARNING_RATE)) for arm, run in study.pairs)
    if LEARNING_RATE in study.varied or not found or len(study.arms) < 2:
        return
    if len(found) == 1 and not study.choices:
        text = f"all arms ran at lr {in_words(*found)}, which was chosen for none of them: choose one for each with "
        crossed = any(key.startswith(("optim", "schedule")) for key in study.varied)  # what is asked is about rates
        yield Finding(CaveatKind.LEARNING_RATE, text + own_rates(study), serious=not crossed)
    elif study.fairly_chosen:
        text = "the learning rate of each arm was chosen on data held out of the training data"
        yield from unequal(CaveatKind.LEARNING_RATE, text, found, serious=False, fewest=1)
        yield from rates_at_an_edge(study)
    elif "optim" not in study.varied or LEARNING_RATE in asked_for(study):
        text = f"the arms differ in {LEARNING_RATE} too, which is fair only if each was chosen for its arm"
        yield from unequal(CaveatKind.SETTINGS, text, found)


def rates_at_an_edge(study: RecordedStudy) -> Iterator[Finding]:
    """Find arms whose chosen learning rate is the lowest or the highest of those tried."""
    at_edge = {path for path, choice in study.choices.items() if choice.get("edge")}
    names = [arm.name for arm in study.arms if any(run.path in at_edge for run in arm.runs)]
    if names:
        text = "the chosen learning rate is at the end of those tried, so a wider grid may have a better one"
        yield Finding(CaveatKind.LEARNING_RATE, f"{shortened(names, 6)}: {text}")


def own_rates(study: RecordedStudy) -> str:
    """Return the command that chooses a learning rate for each arm."""
    name = f"{study.runs[0].config.get('name')}-auto"
    command = study.command(**{"name": name, LEARNING_RATE: None, "sweep.lr": "auto"})
    return command or "normbench sweep and sweep.lr=auto"


def open_rates(study: RecordedStudy) -> Iterator[Finding]:
    """Find arms whose learning rates have not all ended with the same seeds, so that another may yet be chosen."""
    for family in rate_families(study):
        every = {run.seed for arm in family for run in arm.runs}
        lacking = []
        for arm in family:
            seeds = sorted(str(seed) for seed in every - settled_seeds(arm))
            if seeds:
                rate = in_words(arm.settings[LEARNING_RATE])
                lacking.append(f"lr {rate} lacks seed {shortened(seeds, 6)}")
        if lacking:
            name = without(family[0], LEARNING_RATE).name
            text = f"{name}: the choice of its learning rate is not final, as {'; '.join(lacking)}"
            yield Finding(CaveatKind.LEARNING_RATE, text)


# ---- what the comparisons themselves make unfair


def lost_runs(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Find arms that are compared on the seeds that survived."""
    arms: dict[str, Arm] = {}
    for one in comparisons:
        if one.n and one.survived:
            arms |= {one.baseline.name: one.baseline, one.arm.name: one.arm}
    losses = []
    for arm in arms.values():
        for status in LOST:
            number = sum(run.status == status for run in arm.runs)
            if number:
                losses.append(f"{arm.name}: {number} of {len(arm.runs)} runs {status.replace('_', ' ')}")
    if losses:
        text = "arms are compared only on the seeds that survived in both, which flatters those that lose runs"
        yield Finding(CaveatKind.LOST_RUNS, f"{'; '.join(losses[:MOST_TOLD])}; {text}")


def unequal_choices(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Find arms that had other numbers of learning rates to choose from than their baselines."""
    for one in comparisons:
        own, other = one.arm.rates, one.baseline.rates
        if own != other:
            factor = abs(own - other) + 1
            had = f"{one.arm.name} had {own} learning rates to choose from and {one.baseline.name} {other}"
            yield Finding(CaveatKind.LEARNING_RATE, f"{had}, so p is multiplied by {factor}")


def skewed_differences(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Find comparisons whose differences by seed may be too skewed for the t test."""
    for one in comparisons:
        if not one.skewed or not one.trained or one.torn:
            continue
        p = chance(one.ranked_p)
        text = (
            f"{one.arm.name} and {one.baseline.name}: the differences by seed are skewed or have an outlier, so the "
            "t test and its interval may be wrong; the test of signed ranks gives p "
            f"{p if p.startswith('<') else f'= {p}'}"
        )
        if len(one.ranked) < FEWEST_RANKS:
            text += f", and cannot give less than 0.05 with fewer than {FEWEST_RANKS} seeds"
        yield Finding(CaveatKind.SKEWED, text)


def few_examples(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Find accuracies of few examples; one of the first baseline stands for all, as they differ little."""
    if not comparisons or comparisons[0].metric.symbol != "%":
        return
    tag, run = comparisons[0].metric.tag, comparisons[0].baseline.runs[0]
    split = tag.split("/")[1]
    data = run.session["data"]
    n = data.get(f"{split}_images") or data.get(f"{split}_texts") or 0
    share = run.metrics.get(tag)
    if share is None or not 0 < n < FEW_EXAMPLES:
        return
    error = (share * (1 - share) / n) ** 0.5
    text = (
        f"the accuracy is that of {n:,} examples, each of which counts {fixed(100 / n, 2)} points: on as many other "
        f"examples an accuracy of {fixed(100 * share, 1)} % would differ by about {fixed(100 * error, 1)} points "
        "(binomial standard error), which the intervals do not include"
    )
    yield Finding(CaveatKind.FEW_EXAMPLES, text, serious=False)
