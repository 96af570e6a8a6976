"""What makes a comparison unfair: a function for each caveat, which reads the evidence and writes the sentence.

To add a caveat, add a function below with `@caveat`, and its kind to `CaveatKind`. Caveats stand in a report in the
order of this file, the serious ones first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import filter as matching
from statistics import median
from typing import Any

from normbench.config.groups import options, scheme_words
from normbench.config.rules import belongs_to, is_rule
from normbench.config.sections import GROUPS
from normbench.config.trust import caution
from normbench.evidence.arms import LEARNING_RATE, Arm, settled_seeds, without_settings
from normbench.evidence.measures import final_values, finite_points, loss_on
from normbench.evidence.run import WITHOUT_RESULT, RecordedRun
from normbench.evidence.study import RecordedStudy, candidate_settings, rate_families
from normbench.results.caveat import Caveat, CaveatKind, Evidence
from normbench.results.recorded_facts import SHOULD_BE_ALIKE, SHOULD_NEVER_BE, Alike, Record
from normbench.results.result import Difference, Scaling
from normbench.results.sensitivity import is_lost
from normbench.results.statistics import FEWEST_RANKS
from normbench.wording import count, equals, fixed, in_words, join_first, whole

MOST = 6  # arms or runs that a sentence names
MOST_OF_ONE_VALUE = 4  # arms
MOST_MISSING = 3  # runs, each with why it is missing

# Seeds of one arm do the same work: medians further apart than this were measured under different conditions.
STEADY = 1.5
FEWEST_STEPS = 10  # steps that a median must be of at least

# A host that is at work for this share of a step's time has probably kept the GPU waiting: otherwise the GPU would
# still be at work after the host is done. A step that itself waits for the GPU looks the same.
LAUNCH_BOUND = 0.9
FEW_EXAMPLES = 5000  # below, an accuracy is that of these examples more than of the data behind them

# Simulated with three rates, as luck.py has it: between 5 % and these, by how much the rates beside the best one cost.
SHARED_LUCK = (
    "an arm's choice holds for all of its seeds, so a lucky one is in every seed and in no interval: of equal arms up "
    "to one in five seems different with five seeds, and to one in three with ten; sweep.lr=each chooses for each seed"
)

# Settings of which another check speaks, or that change no result.
SAID_ELSEWHERE = (
    "trainer.steps", "trainer.epochs", "trainer.log_every", "trainer.decay_norms", "trainer.precision",
    "trainer.accumulate", "trainer.compile", "norm.eps", "norm.impl", LEARNING_RATE,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """All that a caveat may be read from.

    Attributes:
        study: the runs.
        arms: those that are compared.
        differences: between them; where there are none, whatever differs among arms counts.
        ladders: how differences change with the size of the model.
        missing: for each planned run without a directory why it failed, empty where that is not known.
        chosen_by_what_is_reported: whether each arm's learning rate was chosen by the data that are reported.
    """

    study: RecordedStudy
    arms: Sequence[Arm] = ()
    differences: Sequence[Difference] = ()
    ladders: Sequence[Scaling] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    chosen_by_what_is_reported: bool = False

    def arm_named(self, name: str) -> Arm:
        """Return the compared arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def concerns_any(self, values: Mapping[Any, Sequence[str]]) -> bool:
        """Tell whether values matter to some difference: an arm has another one than its baseline, or several.

        values: each with the names of the arms that have it.
        """
        if not self.differences:
            return True
        for difference in self.differences:
            of_arm = [value for value, names in values.items() if difference.arm in names]
            of_baseline = [value for value, names in values.items() if difference.baseline in names]
            if len(of_arm) != 1 or of_arm != of_baseline:
                return True
        return False


CAVEATS: list[Callable[[Case], Iterator[Caveat]]] = []  # in the order of this file


def caveat(finder: Callable[[Case], Iterator[Caveat]]) -> Callable[[Case], Iterator[Caveat]]:
    """Let reports have the caveats that a function finds."""
    CAVEATS.append(finder)
    return finder


def find_caveats(case: Case) -> tuple[Caveat, ...]:
    """Return all that is unfair, the serious caveats first."""
    caveats = list[Caveat]()
    for finder in CAVEATS:
        caveats += finder(case)
    return tuple(sorted(caveats, key=lambda each: not each.serious))


# ---- parts of sentences


def say_values(sentence: str, evidence: Iterable[Evidence]) -> str:
    """Say after a sentence who has which value, such as `100 (layernorm); 200 (rmsnorm, dyt)`."""
    values = []
    for item in evidence:
        having = join_first(item.arms, MOST_OF_ONE_VALUE)
        values.append(f"{item.value} ({having})")
    return f"{sentence}: {'; '.join(values)}"


def say_of_arms(evidence: Iterable[Evidence], sentence: str) -> str:
    """Say of which arms a sentence is true."""
    return f"{join_first(arms_in(evidence), MOST)}: {sentence}"


def arms_in(evidence: Iterable[Evidence]) -> tuple[str, ...]:
    """Return the arms that evidence names, each once."""
    names = list[str]()
    for item in evidence:
        names += item.arms
    return each_once(names)


def each_once(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in their order, each once."""
    return tuple(dict.fromkeys(names))


# ---- values of arms


def arms_by_value(pairs: Iterable[tuple[str, Any]]) -> dict[Any, list[str]]:
    """Return the names of the arms that have each value. pairs: an arm's name and a value of it, None for no value."""
    names_of_value: dict[Any, list[str]] = {}
    for name, value in pairs:
        if value is None:
            continue
        key = tuple(value) if isinstance(value, list) else value
        names = names_of_value.setdefault(key, [])
        if name not in names:
            names.append(name)
    return names_of_value


def arms_by_setting(study: RecordedStudy, key: str) -> dict[Any, list[str]]:
    """Return the names of the arms whose runs have each value of a setting."""
    return arms_by_value((arm.name, study.value_of(run, key)) for arm, run in study.pairs)


def evidence_of(values: Mapping[Any, Sequence[str]]) -> tuple[Evidence, ...]:
    """Return values, with the names of the arms that have them, as evidence."""
    return tuple(Evidence(in_words(value), tuple(names)) for value, names in values.items())


# ---- learning rates


@caveat
def learning_rates(case: Case) -> Iterator[Caveat]:
    """Find learning rates that vary along with what is compared, which is fair if each was chosen on other data."""
    study = case.study
    values = arms_by_setting(study, LEARNING_RATE)
    if LEARNING_RATE in study.varied or not values or len(study.arms) < 2 or study.ramps:
        return
    rates = evidence_of(values)
    is_concerned = case.concerns_any(values)
    if len(rates) == 1 and not study.choices:
        text = say_chosen_for_none(rates[0].value, own_rates(study))
        rates_are_asked_about = any(key.startswith(("optim", "schedule")) for key in study.varied)
        yield Caveat(kind=CaveatKind.LEARNING_RATE, serious=not rates_are_asked_about, found=rates, text=text)
    elif study.fairly_chosen:
        if study.chosen_for_each_seed:
            text = say_values("the learning rate of each seed was chosen on data held out of the training data", rates)
            yield Caveat(kind=CaveatKind.LEARNING_RATE, serious=False, found=rates, text=text)
        elif is_concerned:
            text = say_values("the learning rate of each arm was chosen on data held out of the training data", rates)
            text += f"; {SHARED_LUCK}"
            yield Caveat(kind=CaveatKind.LEARNING_RATE, serious=False, found=rates, text=text)
        yield from rates_at_an_edge(study)
    elif len(rates) > 1 and is_concerned and ("optim" not in study.varied or LEARNING_RATE in asked_for(study)):
        sentence = f"the arms differ in {LEARNING_RATE} too, which is fair only if each was chosen for its arm"
        yield Caveat(kind=CaveatKind.SETTINGS, found=rates, text=say_values(sentence, rates))


def say_chosen_for_none(rate: str, command: str) -> str:
    """Say that all arms ran at one rate. command: chooses one for each."""
    why = f"all arms ran at lr {rate}, which was not chosen for any of them"
    return f"{why}: choose one for each with {command}{caution(command)}"


def own_rates(study: RecordedStudy) -> str:
    """Return the command that chooses a learning rate for each arm."""
    name = f"{study.runs[0].config.get('name')}-each"
    command = study.command(**{"name": name, LEARNING_RATE: None, "sweep.lr": "each"})
    return command or "normbench sweep and sweep.lr=each"


def rates_at_an_edge(study: RecordedStudy) -> Iterator[Caveat]:
    """Find arms whose chosen learning rate is the lowest or the highest of those tried."""
    evidence, names = [], []
    for arm in study.arms:
        edges = [study.choices.get(run.path, {}).get("edge") for run in arm.runs]
        named = [edge for edge in edges if edge]
        if named:
            evidence.append(Evidence(str(named[0]), (arm.name,)))
            of_seeds = f" ({len(named)} of {count(len(edges), 'seed')})" if study.chosen_for_each_seed else ""
            names.append(f"{arm.name}{of_seeds}")
    if evidence:
        sentence = "the chosen learning rate is at the end of those tried, so a wider grid may have a better one"
        text = f"{join_first(names, MOST)}: {sentence}"
        yield Caveat(kind=CaveatKind.LEARNING_RATE, found=tuple(evidence), text=text)


@caveat
def growing_rates(case: Case) -> Iterator[Caveat]:
    """Find runs whose learning rate grew until they no longer learned, and those that bore all of it."""
    runs = diverged = 0
    bore_all: dict[str, list[float]] = {}  # the largest rates of such runs, by arm
    for arm, run in case.study.pairs:
        if not run.ramp:
            continue
        runs += 1
        diverged += run.ramp["diverged"]
        rates_of_arm = bore_all.setdefault(arm.name, [])
        if run.ramp["bore_all"] and run.ramp["largest_rate"]:
            rates_of_arm.append(run.ramp["largest_rate"])
    if not runs:
        return
    no_failure = f"that {diverged} of {runs} runs diverged further on is no failure; " if diverged else ""
    text = (
        "the learning rate grew in each run, and the largest rate is the last one at which a run kept half of what it "
        f"had learned; {no_failure}a slower growth finds smaller rates, and the largest rate is not one to train at"
    )
    evidence = Evidence("", tuple(bore_all), numbers={"diverged": diverged, "runs": runs})
    yield Caveat(kind=CaveatKind.RAMP, serious=False, found=(evidence,), text=text)
    yield from censored_rates(bore_all)


def censored_rates(bore_all: Mapping[str, Sequence[float]]) -> Iterator[Caveat]:
    """Find arms with runs that bore all rates, so that the largest is not known. bore_all: such rates, by arm."""
    evidence, phrases = [], []
    for name, rates in bore_all.items():
        if rates:
            largest = in_words(max(rates))
            evidence.append(Evidence(largest, (name,), numbers={"bore_all": len(rates)}))
            phrases.append(f"{name} in {count(len(rates), 'run')}, up to {largest}")
    if evidence:
        sentence = "no rate was too large, so the largest that is borne lies above: raise schedule.final"
        text = f"{join_first(phrases, MOST)}: {sentence}"
        yield Caveat(kind=CaveatKind.RAMP, found=tuple(evidence), text=text)


# ---- what is damaged


@caveat
def damaged_runs(case: Case) -> Iterator[Caveat]:
    """Find runs that cannot be read."""
    for name, why in case.study.damaged:
        evidence = Evidence(why, (), runs=(name,))
        yield Caveat(kind=CaveatKind.DAMAGED_RUN, found=(evidence,), text=f"{name} is left out: {why}")


@caveat
def contradictions(case: Case) -> Iterator[Caveat]:
    """Find runs whose summary has other final metrics than they have logged."""
    arms, runs = list[str](), list[str]()
    for arm, run in case.study.pairs:
        if contradicts_itself(run):
            arms.append(arm.name)
            runs.append(run.name)
    if runs:
        evidence = Evidence("", each_once(arms), runs=each_once(runs))
        sentence = "summary.json has other final metrics than those logged last in metrics.jsonl"
        text = f"{join_first(evidence.runs, MOST)}: {sentence}"
        yield Caveat(kind=CaveatKind.DAMAGED_RECORD, found=(evidence,), text=text)


def contradicts_itself(run: RecordedRun) -> bool:
    """Tell whether a final metric of the summary is not what was logged last."""
    for tag, value in run.metrics.items():
        if value is None:
            continue
        logged = finite_points(run.curves.get(tag)).values
        if len(logged) and logged[-1] != value:
            return True
    return False


# ---- what all runs should have in common, and what none should have


@caveat
def unequal_facts(case: Case) -> Iterator[Caveat]:
    """Find values that should be the same and are not."""
    for rule, values in differing_facts(case.study):
        is_part_of_question = is_of_schemes(case.study, rule, values)
        if not is_part_of_question and (rule.everywhere or case.concerns_any(values)):
            evidence = evidence_of(values)
            text = say_values(rule.sentence, evidence)
            yield Caveat(kind=rule.kind, serious=rule.serious, found=evidence, text=text)


def differing_facts(study: RecordedStudy) -> Iterator[tuple[Alike, dict[Any, list[str]]]]:
    """Yield each rule of what should be the same whose values differ, with the names of the arms that have each."""
    records = records_of(study)
    for rule in SHOULD_BE_ALIKE:
        if any(matching(study.varied, pattern) for pattern in rule.unless):
            continue
        values = arms_by_value((record.arm.name, rule.read(record)) for record in records)
        if len(values) > 1:
            yield rule, values


def records_of(study: RecordedStudy) -> list[Record]:
    """Return all sessions of all runs."""
    records = []
    for arm, run in study.pairs:
        for session in run.sessions:
            records.append(Record(arm, run, session))
    return records


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
    for arms_of_scheme in arms_of_schemes.values():
        having = [value for value, names in values.items() if not arms_of_scheme.isdisjoint(names)]
        if len(having) > 1:
            return False
    return True


def differences_of_schemes(study: RecordedStudy) -> tuple[str, ...]:
    """Return in what arms differ since their schemes set it, beside what schemes are chosen for."""
    return tuple(rule.of_scheme for rule, values in differing_facts(study) if is_of_schemes(study, rule, values))


@caveat
def forbidden_facts(case: Case) -> Iterator[Caveat]:
    """Find what no run should have."""
    records = records_of(case.study)
    for rule in SHOULD_NEVER_BE:
        names = [record.arm.name for record in records if rule.is_true(record)]
        if names:
            evidence = (Evidence("", each_once(names)),)
            text = say_of_arms(evidence, rule.sentence)
            yield Caveat(kind=rule.kind, serious=rule.serious, found=evidence, text=text)


# ---- seeds and rates that are missing


@caveat
def missing_seeds(case: Case) -> Iterator[Caveat]:
    """Find arms that lack a seed that others have."""
    seeds_of_study = {run.seed for run in case.study.runs}
    names_lacking: dict[tuple[int, ...], list[str]] = {}
    for arm in case.study.arms:
        lacks = sorted(seeds_of_study - arm.seeds)
        if lacks:
            names_lacking.setdefault(tuple(lacks), []).append(arm.name)
    for seeds, names in names_lacking.items():
        evidence = Evidence("", tuple(names), seeds=seeds)
        lacking = join_first([str(seed) for seed in seeds])
        text = say_of_arms([evidence], f"no run with seed {lacking}, which other arms have")
        yield Caveat(kind=CaveatKind.MISSING_SEEDS, found=(evidence,), text=text)


@caveat
def without_rate(case: Case) -> Iterator[Caveat]:
    """Find arms, and seeds of arms, that a sweep left out since they did not train at any learning rate."""
    names = list[str]()
    seeds_of = defaultdict[str, list[int]](list)  # by the arm, of those that have runs
    for arm, choice in case.study.without_rate():
        if not arm.runs:
            names.append(arm.name)
        elif choice.get("seed", None) not in {None, *arm.seeds}:
            seeds_of[arm.name].append(choice["seed"])
    if names:
        evidence = Evidence("", each_once(names))
        sentence = "every learning rate that was tried diverged or failed, so it has no run and is not compared"
        yield Caveat(kind=CaveatKind.LOST_RUNS, found=(evidence,), text=say_of_arms([evidence], sentence))
    for name, seeds in seeds_of.items():
        evidence = Evidence("", (name,), seeds=tuple(seeds))
        lost = join_first([str(seed) for seed in seeds])
        sentence = f"every learning rate that was tried for seed {lost} diverged or failed, so it has no run there"
        text = f"{name}: {sentence}; without these seeds it looks better than it is"
        yield Caveat(kind=CaveatKind.LOST_RUNS, found=(evidence,), text=text)


@caveat
def open_rates(case: Case) -> Iterator[Caveat]:
    """Find arms whose learning rates have not all ended with the same seeds, so that another may yet be chosen."""
    for family in rate_families(case.study):
        seeds_of_family = set[int]()
        for arm in family:
            seeds_of_family |= arm.seeds
        name = without_settings(family[0], LEARNING_RATE).name
        evidence, lacking = [], []
        for arm in family:
            seeds = sorted(seeds_of_family - settled_seeds(arm))
            if seeds:
                rate = in_words(arm.settings[LEARNING_RATE])
                evidence.append(Evidence(rate, (name,), seeds=tuple(seeds)))
                lacking.append(f"lr {rate} lacks seed {join_first([str(seed) for seed in seeds], MOST)}")
        if evidence:
            text = f"{name}: the choice of its learning rate is not final, as {'; '.join(lacking)}"
            yield Caveat(kind=CaveatKind.LEARNING_RATE, found=tuple(evidence), text=text)


@caveat
def rates_of_sizes(case: Case) -> Iterator[Caveat]:
    """Find learning rates that were not chosen for each arm at each size of the model that is compared."""
    study = case.study
    were_tried = LEARNING_RATE in study.varied
    if not case.ladders or were_tried or study.fairly_chosen or study.ramps:
        return
    names_of_rate = dict[str, dict[str, None]]()  # by the rate, as it is written
    for ladder in case.ladders:
        for arm in arms_of(ladder, case.arms):
            for run in arm.runs:
                rate = study.value_of(run, LEARNING_RATE)
                if rate is not None:
                    names_of_rate.setdefault(in_words(rate), {})[ladder.arm] = None
    if not names_of_rate:
        return
    evidence = tuple(Evidence(rate, tuple(names)) for rate, names in names_of_rate.items())
    rates = join_first(list(names_of_rate), MOST)
    text = (
        f"learning rates were not chosen for each arm at each size of the model (lr {rates}): a difference that "
        "changes with the size may be one of rates that suit an arm less and less"
    )
    yield Caveat(kind=CaveatKind.LEARNING_RATE, found=evidence, text=text)


def arms_of(ladder: Scaling, arms: Sequence[Arm]) -> Iterator[Arm]:
    """Yield the arm of a ladder at each of its sizes."""
    for size in ladder.sizes:
        for arm in arms:
            if arm.has(size.settings) and without_settings(arm, *size.settings).name == ladder.arm:
                yield arm


# ---- settings that vary too


@caveat
def settings(case: Case) -> Iterator[Caveat]:
    """Find settings that vary along with what is compared."""
    study = case.study
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
        if len(values) > 1 and case.concerns_any(values):
            evidence = evidence_of(values)
            text = say_values(f"the arms differ in {key} too", evidence)
            yield Caveat(kind=CaveatKind.SETTINGS, found=evidence, text=text)


def keys_of_schemes(study: RecordedStudy) -> list[str]:
    """Return the keys that the schemes of a study's runs set."""
    keys: dict[str, None] = {}
    for scheme in {study.value_of(run, "scheme") for run in study.runs}:
        if scheme in options("scheme"):
            keys |= dict.fromkeys(scheme_words(scheme))
    return [*keys]


def asked_for(study: RecordedStudy) -> set[str]:
    """Return the keys that the commands of runs set, whose values so do not follow from an option."""
    keys = set[str]()
    for run in study.runs:
        for word in run.session["command"].split():
            key, sign, _ = word.strip("'\"").lstrip("+~").partition("=")
            if sign:
                keys.add(key)
    return keys


# ---- step times


@caveat
def step_times(case: Case) -> Iterator[Caveat]:
    """Find arms whose seeds took unlike times for the same work."""
    evidence = []
    for arm in case.study.arms:
        ratio = time_ratio(arm)
        if ratio > STEADY:
            evidence.append(Evidence("", (arm.name,), numbers={"ratio": ratio}))
    if evidence:
        worst = max(item.numbers["ratio"] for item in evidence)
        text = (
            f"step times differ up to {fixed(worst, 1)}-fold between seeds of one arm, so runs disturbed each other, "
            f"or the machine did other work: their times say little: {join_first(arms_in(evidence), MOST)}"
        )
        yield Caveat(kind=CaveatKind.STEP_TIMES, serious=False, found=tuple(evidence), text=text)


def time_ratio(arm: Arm) -> float:
    """Return the longest step time of an arm's runs over the shortest; 1 where fewer than two are known."""
    medians = []
    for run in arm.runs:
        time = run.summary.get("step_time", {})
        if (time.get("n") or 0) >= FEWEST_STEPS:
            medians.append(time["median_ms"])
    return float(max(medians) / min(medians)) if medians else 1.0


@caveat
def waiting_gpus(case: Case) -> Iterator[Caveat]:
    """Find GPUs that probably waited for their hosts in most runs of each arm, so that step times count operators."""
    if len(case.study.arms) < 2:
        return
    of_arms = []
    gpu_of_arm = []  # an arm's name, and that of its GPU
    for arm in case.study.arms:
        waiting = [run for run in arm.runs if waits_for_host(run)]
        if 2 * len(waiting) <= len(arm.runs):
            return
        for run in waiting:
            gpu_of_arm.append((arm.name, run.session.get("accelerator") or "GPU"))
        operators = median(run.operators for run in waiting)
        host_share = min(run.host_share for run in waiting)
        of_arms.append(Evidence("", (arm.name,), numbers={"operators": operators, "host_share": host_share}))
    gpus = [Evidence(gpu, tuple(names)) for gpu, names in arms_by_value(gpu_of_arm).items()]
    text = say_waiting([gpu.value for gpu in gpus], of_arms)
    yield Caveat(kind=CaveatKind.STEP_TIMES, serious=False, found=(*gpus, *of_arms), text=text)


def waits_for_host(run: RecordedRun) -> bool:
    """Tell whether the GPU of a run, whose operators are known, has probably waited for its host."""
    return run.host_share >= LAUNCH_BOUND and run.operators > 0


def say_waiting(gpus: Sequence[str], of_arms: Sequence[Evidence]) -> str:
    """Say that GPUs probably waited for their hosts. of_arms: the work of the hosts."""
    operators = [f"{whole(item.numbers['operators'])} ({item.arms[0]})" for item in of_arms]
    least = round(1000 * min(item.numbers["host_share"] for item in of_arms)) // 10
    gpu = f"the {gpus[0]}" if len(gpus) == 1 else f"the GPU (one of {join_first(gpus)})"
    return (
        f"in most runs the host was at work for at least {least} % of a step, so {gpu} probably waited for it, "
        "and step times compare how many operators there are, and not what they compute: "
        f"{'; '.join(operators[:MOST])}; "
        "but a step that itself waits for the GPU, as with .item() in a norm, looks alike"
    )


# ---- what the differences themselves make unfair


@caveat
def lost_runs(case: Case) -> Iterator[Caveat]:
    """Find arms that are compared on the seeds that survived."""
    names = list[str]()
    for difference in case.differences:
        if difference.n and difference.survived:
            names += [difference.baseline, difference.arm]
    evidence, losses = [], []
    for name in each_once(names):
        runs = case.arm_named(name).runs
        for status in WITHOUT_RESULT:
            lost = sum(run.status == status for run in runs)
            if lost:
                how = status.replace("_", " ")
                evidence.append(Evidence(how, (name,), numbers={"lost": lost, "runs": len(runs)}))
                losses.append(f"{name}: {lost} of {len(runs)} runs {how}")
    if evidence:
        sentence = "arms are compared only on the seeds that survived in both, which flatters those that lose runs"
        text = f"{'; '.join(losses[:MOST])}; {sentence}"
        yield Caveat(kind=CaveatKind.LOST_RUNS, found=tuple(evidence), text=text)


@caveat
def unequal_choices(case: Case) -> Iterator[Caveat]:
    """Find arms that had other numbers of learning rates to choose from than their baselines."""
    for difference in case.differences:
        if difference.choices == 1:
            continue
        arm, baseline = difference.arm, difference.baseline
        rates_of_arm = case.arm_named(arm).rates_tried
        rates_of_baseline = case.arm_named(baseline).rates_tried
        text = (
            f"{arm} had {count(rates_of_arm, 'learning rate')} to choose from and {baseline} {rates_of_baseline}, so "
            f"p is multiplied by {difference.choices}"
        )
        of_arm = Evidence("", (arm,), numbers={"rates": rates_of_arm})
        of_baseline = Evidence("", (baseline,), numbers={"rates": rates_of_baseline})
        yield Caveat(kind=CaveatKind.LEARNING_RATE, found=(of_arm, of_baseline), text=text)


@caveat
def skewed_differences(case: Case) -> Iterator[Caveat]:
    """Find differences by seed that may be too skewed for the t test, and say what the signed-rank test gives."""
    for difference in case.differences:
        if not difference.skewed or not difference.is_tested:
            continue
        numbers: dict[str, float] = {"ranks": difference.ranks}
        if difference.ranked_p is not None:
            numbers["ranked_p"] = difference.ranked_p
        text = (
            f"{difference.arm} and {difference.baseline}: the differences by seed are skewed or have an outlier, so "
            "the t test and its interval may be wrong; the test of signed ranks gives "
            f"p {equals(difference.ranked_p)}"
        )
        if difference.ranks < FEWEST_RANKS:
            text += f", and cannot give less than 0.05 with fewer than {FEWEST_RANKS} seeds"
        evidence = Evidence("", (difference.arm, difference.baseline), numbers=numbers)
        yield Caveat(kind=CaveatKind.SKEWED, found=(evidence,), text=text)


@caveat
def few_examples(case: Case) -> Iterator[Caveat]:
    """Find accuracies of few examples; one of the first baseline stands for all, as they differ little."""
    if not case.differences or case.differences[0].metric.symbol != "%":
        return
    tag = case.differences[0].metric.tag
    name = case.differences[0].baseline
    run = case.arm_named(name).runs[0]
    split = tag.split("/")[1]
    data = run.session["data"]
    n = data.get(f"{split}_images") or data.get(f"{split}_texts") or 0
    accuracy = run.metrics.get(tag)
    if accuracy is None or not 0 < n < FEW_EXAMPLES:
        return
    standard_error = (accuracy * (1 - accuracy) / n) ** 0.5
    text = (
        f"the accuracy is that of {count(n, 'example')}, each of which counts {fixed(100 / n, 2)} points: on as many "
        f"other examples an accuracy of {fixed(100 * accuracy, 1)} % would differ by about "
        f"{fixed(100 * standard_error, 1)} points (binomial standard error), which the intervals do not include"
    )
    numbers = {"examples": n, "accuracy": accuracy, "standard_error": standard_error}
    evidence = Evidence("", (name,), runs=(run.name,), numbers=numbers)
    yield Caveat(kind=CaveatKind.FEW_EXAMPLES, serious=False, found=(evidence,), text=text)


# ---- runs that are missing, and rates that the report chose


@caveat
def missing_runs(case: Case) -> Iterator[Caveat]:
    """Find runs that were planned and have no directory."""
    if not case.missing:
        return
    evidence = tuple(Evidence(why, (), runs=(name,)) for name, why in case.missing.items())
    names = [f"{name} ({why})" if why else name for name, why in case.missing.items()]
    text = f"planned and not there (failed or not begun), {len(names)}: {join_first(names, MOST_MISSING)}"
    yield Caveat(kind=CaveatKind.MISSING_RUNS, found=evidence, text=text)


@caveat
def rates_chosen_by_report(case: Case) -> Iterator[Caveat]:
    """Find that each arm's learning rate was chosen by what is reported, and among how many.

    Where no run of an arm trained, nothing was chosen by one.
    """
    if not case.chosen_by_what_is_reported or case.study.fairly_chosen:
        return
    evidence = []
    for family in rate_families(case.study):
        chosen_among = [run for arm in family for run in arm.runs if not is_lost(run)]
        if final_values(chosen_among, loss_on("val")):
            name = without_settings(family[0], LEARNING_RATE).name
            evidence.append(Evidence("", (name,), numbers={"rates": len(family)}))
    if not evidence:
        return
    text = (
        "the learning rate of each arm was chosen by the validation loss of the runs that are reported, which favours "
        "arms with more rates to choose from"
    )
    yield Caveat(kind=CaveatKind.LEARNING_RATE, found=tuple(evidence), text=text)
