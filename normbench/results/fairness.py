"""What makes a comparison unfair, from the recorded facts: a caveat each, with what shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import filter as matching
from statistics import median
from typing import Any

from normbench.config.groups import options, recipe_of
from normbench.config.rules import belongs_to, is_rule
from normbench.config.sections import GROUPS
from normbench.evidence.arms import LEARNING_RATE, Arm, settled_seeds, without_settings
from normbench.evidence.measures import finite_points
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy, candidate_settings, rate_families
from normbench.results import caveat_sentences as sentences
from normbench.results.answer import Caveat, CaveatKind, Evidence
from normbench.results.comparisons import LOST
from normbench.results.fairness_rules import SHOULD_BE_ALIKE, SHOULD_NEVER_BE, Alike, Record
from normbench.results.result import Difference, Scaling
from normbench.wording import in_words

# Seeds of one arm do the same work: medians further apart than this were measured under different conditions.
STEADY = 1.5
FEWEST_STEPS = 10  # steps that a median must be of at least

# A host that is at work for this share of a step's time has probably kept the GPU waiting: otherwise the GPU would
# still be at work long after the host is done. A step that itself waits for the GPU looks the same.
LAUNCH_BOUND = 0.9
FEW_EXAMPLES = 5000  # below, an accuracy is that of these examples more than of the data behind them

# Settings of which another check speaks, or that change no result.
SAID_ELSEWHERE = (
    "trainer.steps", "trainer.epochs", "trainer.log_every", "trainer.decay_norms", "trainer.precision",
    "trainer.accumulate", "trainer.compile", "norm.eps", "norm.impl", LEARNING_RATE,
)  # fmt: skip


def find_caveats(
    study: RecordedStudy,
    chosen_by_what_is_reported: bool = False,
    arms: Sequence[Arm] = (),
    differences: Sequence[Difference] = (),
    ladders: Sequence[Scaling] = (),
    missing: Mapping[str, str] | None = None,
) -> tuple[Caveat, ...]:
    """Return all that is unfair in a study, the serious caveats first.

    Args:
        study: the runs.
        chosen_by_what_is_reported: whether each arm's learning rate was chosen by the data that are reported.
        arms: those that are compared.
        differences: between them.
        ladders: how differences change with the size of the model.
        missing: for each planned run without a directory why it failed, empty where that is not known.
    """
    found = [
        *learning_rates(study, differences),
        *growing_rates(study),
        *damaged_runs(study),
        *contradictions(study),
        *unequal_facts(study, differences),
        *forbidden_facts(study),
        *missing_seeds(study),
        *open_rates(study),
        *rates_of_sizes(study, arms, ladders),
        *settings(study, differences),
        *step_times(study),
        *waiting_gpus(study),
        *lost_runs(arms, differences),
        *unequal_choices(arms, differences),
        *skewed_differences(differences),
        *few_examples(arms, differences),
        *missing_runs(missing or {}),
    ]
    if chosen_by_what_is_reported and not study.fairly_chosen:
        found.append(rates_chosen_by_report(study))
    return tuple(sorted(found, key=lambda caveat: not caveat.serious))


# ---- what is missing or damaged


def damaged_runs(study: RecordedStudy) -> Iterator[Caveat]:
    """Find runs that cannot be read."""
    for name, why in study.damaged:
        evidence = Evidence(why, (), runs=(name,))
        yield Caveat(kind=CaveatKind.DAMAGED_RUN, found=(evidence,), text=sentences.say_damaged(evidence))


def contradictions(study: RecordedStudy) -> Iterator[Caveat]:
    """Find runs whose summary has other final metrics than they have logged."""
    arms = list[str]()
    runs = list[str]()
    for arm, run in study.pairs:
        if contradicts_itself(run):
            arms.append(arm.name)
            runs.append(run.name)
    if runs:
        evidence = Evidence("", each_once(arms), runs=each_once(runs))
        yield Caveat(kind=CaveatKind.DAMAGED_RECORD, found=(evidence,), text=sentences.say_contradictions(evidence))


def each_once(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in their order, each once."""
    return tuple(dict.fromkeys(names))


def contradicts_itself(run: RecordedRun) -> bool:
    """Tell whether a final metric of the summary is not what was logged last."""
    for tag, value in run.metrics.items():
        if value is None:
            continue
        logged = finite_points(run.curves.get(tag)).values
        if len(logged) and logged[-1] != value:
            return True
    return False


def missing_runs(missing: Mapping[str, str]) -> Iterator[Caveat]:
    """Find runs that were planned and have no directory. missing: why each failed, by name."""
    found = []
    for name, why in missing.items():
        found.append(Evidence(why, (), runs=(name,)))
    if found:
        yield Caveat(kind=CaveatKind.MISSING_RUNS, found=tuple(found), text=sentences.say_missing_runs(found))


def missing_seeds(study: RecordedStudy) -> Iterator[Caveat]:
    """Find arms that lack a seed that others have."""
    every = {run.seed for run in study.runs}
    lacking: dict[tuple[int, ...], list[str]] = {}
    for arm in study.arms:
        lacks = sorted(every - arm.seeds)
        if lacks:
            lacking.setdefault(tuple(lacks), []).append(arm.name)
    for seeds, names in lacking.items():
        evidence = Evidence("", tuple(names), seeds=seeds)
        yield Caveat(kind=CaveatKind.MISSING_SEEDS, found=(evidence,), text=sentences.say_missing_seeds(evidence))


# ---- what all runs should have in common, and what none should have


def records_of(study: RecordedStudy) -> list[Record]:
    """Return all sessions of all runs."""
    found = []
    for arm, run in study.pairs:
        for session in run.sessions:
            found.append(Record(arm, run, session))
    return found


def arms_by_value(pairs: Iterable[tuple[str, Any]]) -> dict[Any, list[str]]:
    """Return the names of the arms that have each value. pairs: an arm's name and a value of it, None for no value."""
    found: dict[Any, list[str]] = {}
    for name, value in pairs:
        if value is None:
            continue
        key = tuple(value) if isinstance(value, list) else value
        names = found.setdefault(key, [])
        if name not in names:
            names.append(name)
    return found


def arms_by_setting(study: RecordedStudy, key: str) -> dict[Any, list[str]]:
    """Return the names of the arms whose runs have each value of a setting."""
    return arms_by_value((arm.name, study.value_of(run, key)) for arm, run in study.pairs)


def concerns_any(values: Mapping[Any, Sequence[str]], differences: Sequence[Difference]) -> bool:
    """Tell whether values matter to some difference: an arm has another one than its baseline, or several.

    values: each with the names of the arms that have it. differences: where there are none, values always matter.
    """
    if not differences:
        return True
    for one in differences:
        own = values_of_arm(values, one.arm)
        other = values_of_arm(values, one.baseline)
        if len(own) != 1 or own != other:
            return True
    return False


def values_of_arm(values: Mapping[Any, Sequence[str]], arm: str) -> list[Any]:
    """Return the values that an arm has. values: each with the names of the arms that have it."""
    return [value for value, names in values.items() if arm in names]


def evidence_of(values: Mapping[Any, Sequence[str]]) -> tuple[Evidence, ...]:
    """Return values, with the names of the arms that have them, as evidence."""
    found = []
    for value, names in values.items():
        found.append(Evidence(in_words(value), tuple(names)))
    return tuple(found)


def unequal_facts(study: RecordedStudy, differences: Sequence[Difference] = ()) -> Iterator[Caveat]:
    """Find values that should be the same and are not."""
    for rule, values in differing_facts(study):
        if not is_of_schemes(study, rule, values) and (rule.everywhere or concerns_any(values, differences)):
            found = evidence_of(values)
            text = sentences.say_unequal(rule.sentence, found)
            yield Caveat(kind=rule.kind, serious=rule.serious, found=found, text=text)


def differing_facts(study: RecordedStudy) -> Iterator[tuple[Alike, dict[Any, list[str]]]]:
    """Yield each rule of what should be the same whose values differ, with the names of the arms that have each."""
    records = records_of(study)
    for rule in SHOULD_BE_ALIKE:
        if any(matching(study.varied, pattern) for pattern in rule.unless):
            continue
        values = arms_by_value((record.arm.name, rule.read(record)) for record in records)
        if len(values) > 1:
            yield rule, values


def is_of_schemes(study: RecordedStudy, rule: Alike, values: Mapping[Any, Sequence[str]]) -> bool:
    """Tell whether it is the schemes of arms that set different values, so that these are a part of what is compared.

    values: each with the names of the arms that have it.
    """
    if not rule.of_scheme or "scheme" not in study.varied:
        return False
    for pattern in rule.unless:
        for key in matching(asked_for(study), pattern):
            if len(arms_by_setting(study, key)) > 1:  # a command sets it otherwise than another
                return False
    arms_of_schemes = defaultdict[Any, set[str]](set)
    for arm in study.arms:
        arms_of_schemes[arm.settings["scheme"]].add(arm.name)
    for own in arms_of_schemes.values():
        having = [value for value, names in values.items() if not own.isdisjoint(names)]
        if len(having) > 1:
            return False
    return True


def differences_of_schemes(study: RecordedStudy) -> tuple[str, ...]:
    """Return in what arms differ since their schemes set it, beside what schemes are chosen for."""
    found = []
    for rule, values in differing_facts(study):
        if is_of_schemes(study, rule, values):
            found.append(rule.of_scheme)
    return tuple(found)


def forbidden_facts(study: RecordedStudy) -> Iterator[Caveat]:
    """Find what no run should have."""
    records = records_of(study)
    for rule in SHOULD_NEVER_BE:
        names = [record.arm.name for record in records if rule.is_true(record)]
        if names:
            found = (Evidence("", each_once(names)),)
            text = sentences.say_of_arms(found, rule.sentence)
            yield Caveat(kind=rule.kind, serious=rule.serious, found=found, text=text)


def settings(study: RecordedStudy, differences: Sequence[Difference] = ()) -> Iterator[Caveat]:
    """Find settings that vary along with what is compared."""
    compared = [key for key in study.varied if key in GROUPS or is_rule(key)]
    if "scheme" in study.varied:
        compared += keys_of_schemes(study)
    asked = asked_for(study)
    aside = {*GROUPS, *study.varied, *SAID_ELSEWHERE}
    for key in candidate_settings(study.runs):
        is_below_option = any(belongs_to(key, option) for option in compared)  # whose own values these are
        is_of_option = key in compared or is_below_option
        is_asked_for = key in asked and not key.endswith("._target_")
        if key in aside or (is_of_option and not is_asked_for):
            continue
        values = arms_by_setting(study, key)
        if len(values) > 1 and concerns_any(values, differences):
            found = evidence_of(values)
            text = sentences.say_unequal(f"the arms differ in {key} too", found)
            yield Caveat(kind=CaveatKind.SETTINGS, found=found, text=text)


def keys_of_schemes(study: RecordedStudy) -> list[str]:
    """Return the keys that the schemes of a study's runs set."""
    found: dict[str, None] = {}
    for scheme in {study.value_of(run, "scheme") for run in study.runs}:
        if scheme in options("scheme"):
            found |= dict.fromkeys(recipe_of(scheme))
    return [*found]


def asked_for(study: RecordedStudy) -> set[str]:
    """Return the keys that the commands of runs set, whose values so do not follow from an option."""
    keys = set[str]()
    for run in study.runs:
        for word in run.session["command"].split():
            key, equals, _ = word.strip("'\"").lstrip("+~").partition("=")
            if equals:
                keys.add(key)
    return keys


# ---- step times


def step_times(study: RecordedStudy) -> Iterator[Caveat]:
    """Find arms whose seeds took unlike times for the same work."""
    found = []
    for arm in study.arms:
        ratio = time_ratio(arm)
        if ratio > STEADY:
            found.append(Evidence("", (arm.name,), numbers={"ratio": ratio}))
    if found:
        text = sentences.say_step_times(found)
        yield Caveat(kind=CaveatKind.STEP_TIMES, serious=False, found=tuple(found), text=text)


def time_ratio(arm: Arm) -> float:
    """Return the longest step time of an arm's runs over the shortest; 1 where fewer than two are known."""
    medians = []
    for run in arm.runs:
        time = run.summary.get("step_time", {})
        if (time.get("n") or 0) >= FEWEST_STEPS:
            medians.append(time["median_ms"])
    return float(max(medians) / min(medians)) if medians else 1.0


def waiting_gpus(study: RecordedStudy) -> Iterator[Caveat]:
    """Find GPUs that probably waited for their hosts in most runs of each arm, so that step times count operators."""
    if len(study.arms) < 2:
        return
    found = []
    named = []  # an arm's name, and that of its GPU
    for arm in study.arms:
        waiting = [run for run in arm.runs if waits_for_host(run)]
        if 2 * len(waiting) <= len(arm.runs):
            return
        for run in waiting:
            named.append((arm.name, run.session.get("accelerator") or "GPU"))
        operators = median(run.operators for run in waiting)
        host_share = min(run.host_share for run in waiting)
        found.append(Evidence("", (arm.name,), numbers={"operators": operators, "host_share": host_share}))
    gpus = [Evidence(gpu, tuple(names)) for gpu, names in arms_by_value(named).items()]
    text = sentences.say_launches(gpus, found)
    yield Caveat(kind=CaveatKind.STEP_TIMES, serious=False, found=(*gpus, *found), text=text)


def waits_for_host(run: RecordedRun) -> bool:
    """Tell whether the GPU of a run, whose operators are known, has probably waited for its host."""
    return run.host_share >= LAUNCH_BOUND and run.operators > 0


# ---- learning rates


def learning_rates(study: RecordedStudy, differences: Sequence[Difference] = ()) -> Iterator[Caveat]:
    """Find learning rates that vary along with what is compared, which is fair if each was chosen on other data."""
    values = arms_by_setting(study, LEARNING_RATE)
    if LEARNING_RATE in study.varied or not values or len(study.arms) < 2:
        return
    if study.ramps:
        return
    found = evidence_of(values)
    is_concerned = concerns_any(values, differences)
    if len(found) == 1 and not study.choices:
        text = sentences.say_chosen_for_none(found[0], own_rates(study))
        crossed = any(key.startswith(("optim", "schedule")) for key in study.varied)  # what is asked is about rates
        yield Caveat(kind=CaveatKind.LEARNING_RATE, serious=not crossed, found=found, text=text)
    elif study.fairly_chosen:
        if is_concerned:
            sentence = "the learning rate of each arm was chosen on data held out of the training data"
            text = sentences.say_unequal(sentence, found)
            yield Caveat(kind=CaveatKind.LEARNING_RATE, serious=False, found=found, text=text)
        yield from rates_at_an_edge(study)
    elif len(found) > 1 and is_concerned and ("optim" not in study.varied or LEARNING_RATE in asked_for(study)):
        sentence = f"the arms differ in {LEARNING_RATE} too, which is fair only if each was chosen for its arm"
        yield Caveat(kind=CaveatKind.SETTINGS, found=found, text=sentences.say_unequal(sentence, found))


def growing_rates(study: RecordedStudy) -> Iterator[Caveat]:
    """Find runs whose learning rate grew until they no longer learned, and those that bore all of it."""
    runs = diverged = 0
    bore_all: dict[str, list[float]] = {}  # the largest rates of such runs, by arm
    for arm, run in study.pairs:
        if not run.ramp:
            continue
        runs += 1
        diverged += run.ramp["diverged"]
        own = bore_all.setdefault(arm.name, [])
        if run.ramp["bore_all"] and run.ramp["largest_rate"]:
            own.append(run.ramp["largest_rate"])
    if not runs:
        return
    found = Evidence("", tuple(bore_all), numbers={"diverged": diverged, "runs": runs})
    yield Caveat(kind=CaveatKind.RAMP, serious=False, found=(found,), text=sentences.say_ramp(found))
    censored = []
    for name, rates in bore_all.items():
        if rates:
            censored.append(Evidence(in_words(max(rates)), (name,), numbers={"bore_all": len(rates)}))
    if censored:
        text = sentences.say_bore_all(censored)
        yield Caveat(kind=CaveatKind.RAMP, found=tuple(censored), text=text)


def rates_chosen_by_report(study: RecordedStudy) -> Caveat:
    """Return the caveat that each arm's learning rate was chosen by what is reported, and among how many."""
    found = []
    for family in rate_families(study):
        name = without_settings(family[0], LEARNING_RATE).name
        found.append(Evidence("", (name,), numbers={"rates": len(family)}))
    text = (
        "the learning rate of each arm was chosen by the validation loss of the runs that are reported, which favours "
        "arms with more rates to choose from"
    )
    return Caveat(kind=CaveatKind.LEARNING_RATE, found=tuple(found), text=text)


def rates_at_an_edge(study: RecordedStudy) -> Iterator[Caveat]:
    """Find arms whose chosen learning rate is the lowest or the highest of those tried."""
    found = []
    for arm in study.arms:
        edges = []
        for run in arm.runs:
            edge = study.choices.get(run.path, {}).get("edge")
            if edge:
                edges.append(edge)
        if edges:
            found.append(Evidence(str(edges[0]), (arm.name,)))
    if found:
        text = "the chosen learning rate is at the end of those tried, so a wider grid may have a better one"
        yield Caveat(kind=CaveatKind.LEARNING_RATE, found=tuple(found), text=sentences.say_of_arms(found, text))


def rates_of_sizes(study: RecordedStudy, arms: Sequence[Arm], ladders: Sequence[Scaling]) -> Iterator[Caveat]:
    """Find learning rates that were not chosen for each arm at each size of the model that is compared.

    arms: those that are compared. ladders: how their differences change with the size of the model.
    """
    were_tried = LEARNING_RATE in study.varied
    if not ladders or were_tried or study.fairly_chosen or study.ramps:
        return
    arms_of = dict[str, dict[str, None]]()  # by the rate, as it is written
    for ladder in ladders:
        for size in ladder.sizes:
            for arm in arms:
                is_on_ladder = arm.has(size.settings) and without_settings(arm, *size.settings).name == ladder.arm
                rates = [study.value_of(run, LEARNING_RATE) for run in arm.runs] if is_on_ladder else []
                for rate in rates:
                    if rate is not None:
                        arms_of.setdefault(in_words(rate), {})[ladder.arm] = None
    if not arms_of:
        return
    found = tuple(Evidence(rate, tuple(names)) for rate, names in arms_of.items())
    text = sentences.say_rates_of_sizes(found)
    yield Caveat(kind=CaveatKind.LEARNING_RATE, found=found, text=text)


def own_rates(study: RecordedStudy) -> str:
    """Return the command that chooses a learning rate for each arm."""
    name = f"{study.runs[0].config.get('name')}-auto"
    command = study.command(**{"name": name, LEARNING_RATE: None, "sweep.lr": "auto"})
    return command or "normbench sweep and sweep.lr=auto"


def open_rates(study: RecordedStudy) -> Iterator[Caveat]:
    """Find arms whose learning rates have not all ended with the same seeds, so that another may yet be chosen."""
    for family in rate_families(study):
        every = set[int]()
        for arm in family:
            every |= arm.seeds
        name = without_settings(family[0], LEARNING_RATE).name
        found = []
        for arm in family:
            seeds = sorted(every - settled_seeds(arm))
            if seeds:
                found.append(Evidence(in_words(arm.settings[LEARNING_RATE]), (name,), seeds=tuple(seeds)))
        if found:
            yield Caveat(kind=CaveatKind.LEARNING_RATE, found=tuple(found), text=sentences.say_open_rate(found))


# ---- what the comparisons themselves make unfair


def lost_runs(arms: Sequence[Arm], differences: Sequence[Difference]) -> Iterator[Caveat]:
    """Find arms that are compared on the seeds that survived."""
    names = dict[str, None]()
    for difference in differences:
        if difference.n and difference.survived:
            names[difference.baseline] = None
            names[difference.arm] = None
    arm_named = by_name(arms)
    evidence = []
    for name in names:
        runs = arm_named[name].runs
        for status in LOST:
            number = sum(run.status == status for run in runs)
            if number:
                words = status.replace("_", " ")
                evidence.append(Evidence(words, (name,), numbers={"lost": number, "runs": len(runs)}))
    if evidence:
        yield Caveat(kind=CaveatKind.LOST_RUNS, found=tuple(evidence), text=sentences.say_lost_runs(evidence))


def by_name(arms: Sequence[Arm]) -> dict[str, Arm]:
    """Return arms by their names."""
    return {arm.name: arm for arm in arms}


def unequal_choices(arms: Sequence[Arm], differences: Sequence[Difference]) -> Iterator[Caveat]:
    """Find arms that had other numbers of learning rates to choose from than their baselines."""
    arm_named = by_name(arms)
    for difference in differences:
        arm, baseline = arm_named[difference.arm], arm_named[difference.baseline]
        if arm.rates_tried != baseline.rates_tried:
            of_arm = Evidence("", (arm.name,), numbers={"rates": arm.rates_tried})
            of_baseline = Evidence("", (baseline.name,), numbers={"rates": baseline.rates_tried})
            text = sentences.say_unequal_choices(of_arm, of_baseline)
            yield Caveat(kind=CaveatKind.LEARNING_RATE, found=(of_arm, of_baseline), text=text)


def skewed_differences(differences: Sequence[Difference]) -> Iterator[Caveat]:
    """Find differences by seed that may be too skewed for the t test."""
    for difference in differences:
        if not difference.skewed or difference.untrained or difference.torn:
            continue
        numbers: dict[str, float] = {"ranks": difference.ranks}
        if difference.ranked_p is not None:
            numbers["ranked_p"] = difference.ranked_p
        evidence = Evidence("", (difference.arm, difference.baseline), numbers=numbers)
        yield Caveat(kind=CaveatKind.SKEWED, found=(evidence,), text=sentences.say_skewed(evidence))


def few_examples(arms: Sequence[Arm], differences: Sequence[Difference]) -> Iterator[Caveat]:
    """Find accuracies of few examples; one of the first baseline stands for all, as they differ little."""
    if not differences or differences[0].metric.symbol != "%":
        return
    tag = differences[0].metric.tag
    name = differences[0].baseline
    run = by_name(arms)[name].runs[0]
    split = tag.split("/")[1]
    data = run.session["data"]
    n = data.get(f"{split}_images") or data.get(f"{split}_texts") or 0
    accuracy = run.metrics.get(tag)
    if accuracy is None or not 0 < n < FEW_EXAMPLES:
        return
    standard_error = (accuracy * (1 - accuracy) / n) ** 0.5
    numbers = {"examples": n, "accuracy": accuracy, "standard_error": standard_error}
    evidence = Evidence("", (name,), runs=(run.name,), numbers=numbers)
    text = sentences.say_few_examples(evidence)
    yield Caveat(kind=CaveatKind.FEW_EXAMPLES, serious=False, found=(evidence,), text=text)
