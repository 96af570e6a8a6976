"""How runs were made, in the words of a paper: what varied, what was held equal, and what each part of a run is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain, combinations
from typing import Any

from normbench.config.groups import option_settings, options, section_of
from normbench.config.rules import belongs_to, group_of
from normbench.config.sections import GROUPS
from normbench.config.signatures import settings_of
from normbench.evidence import facts
from normbench.evidence.arms import LEARNING_RATE, Arm, sort_keys
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy, candidate_settings
from normbench.results.caveats import asked_for, keys_of_schemes
from normbench.results.sensitivity import count_trained
from normbench.settings import Setting, either, flat
from normbench.tell.references import in_brackets, works_of
from normbench.wording import count, in_prose, join_first, list_words, one_line, percent

MOST_AMOUNTS = 4
SHOWN_GROUPS = ("data", "model", "optim")
ELSEWHERE = ("data.batch_size", "data.context", "data.holdout", "data.root", "data.path")  # told by other sentences
PRECISIONS = {
    "fp32": "in float32",
    "bf16": "with matrix products in bfloat16 (Micikevicius et al. 2018)",
    "fp16": "with matrix products in float16 and a scaled loss (Micikevicius et al. 2018)",
}


class RateChoice(Enum):
    """On what the learning rate of each arm was chosen."""

    NONE = auto()  # it was not
    EACH_SEED = auto()  # on training data held out, for each seed on another one
    HELD_OUT = auto()  # on training data held out, with other seeds
    REPORTED = auto()  # on the runs that are reported


@dataclass(frozen=True)
class Setup:
    """How the runs of a study were made, in words; where runs differ, what they have is joined by `or`.

    A field is empty where there is nothing to say.

    Attributes:
        factors: what varied, with its levels.
        alike: what runs of one seed have in common.
        model: its class and its settings.
        init: how weights are initialised.
        norm_and_placement: those that do not vary.
        data: their names.
        amounts: how many data there are.
        steps: of a run.
        batch: what a batch has.
        optimizer: its class and its settings.
        schedule: its class and its settings.
        clip: at which norm gradients are clipped.
        precision: that in which runs compute.
        average: what average of the weights was kept, such as `a moving average with a decay of 0.999`.
        rate_choice: on what learning rates were chosen.
        choice_length: the length of the runs that chose them, as a share of those that are reported.
        rates: the learning rate of each arm that is judged, after its name.
        scores: how translations were judged.
        code: the commits of normbench.
        versions: of torch, numpy and Python.
        machine: what runs were made on.
    """

    factors: tuple[str, ...]
    alike: tuple[str, ...]
    model: str
    init: str
    norm_and_placement: str
    data: str
    amounts: str
    steps: str
    batch: str
    optimizer: str
    schedule: str
    clip: str
    precision: str
    average: str
    rate_choice: RateChoice
    choice_length: float
    rates: tuple[str, ...]
    scores: str
    code: str
    versions: str
    machine: str


def describe_setup(study: RecordedStudy, judged: Sequence[Arm], rates_chosen: bool) -> Setup:
    """Return how the runs of a study were made.

    judged: the arms that are compared. rates_chosen: whether each is at the best of several learning rates.
    """
    runs = study.runs
    choice = rate_choice(study, rates_chosen)
    varied = {*study.varied, *accompanying_settings(study)}
    aside = {*varied, LEARNING_RATE} if study.fairly_chosen else varied

    def describe(read: Callable[[RecordedRun], str]) -> str:
        return join(read(run) for run in runs)

    def describe_part(group: str) -> str:
        return join(part_in_words(study, run, group, aside) for run in study.kinds)

    def describe_option(group: str) -> str:
        return join(option_in_words(study, run, group, aside) for run in study.kinds)

    return Setup(
        factors=tuple(factor_in_words(study, factor) for factor in factors(study)),
        alike=alike_in_words(study, varied),
        model=describe_part("model"),
        init=describe_option("init"),
        norm_and_placement=fixed_in_words(study, varied),
        data=describe_option("data"),
        amounts=join_first(facts.distinct(runs, facts.amounts), MOST_AMOUNTS, between="; "),
        steps=describe(facts.steps),
        batch=describe(facts.batch),
        optimizer=describe_part("optim"),
        schedule=describe_part("schedule"),
        clip=describe(facts.clip),
        precision=describe(precision_in_words),
        average=describe(average_in_words),
        rate_choice=choice,
        choice_length=study.choice_length,
        rates=tuple(rates_of(study, arm, choice) for arm in judged),
        scores=facts.join_distinct(runs, facts.bleu),
        code=facts.join_distinct(runs, facts.code),
        versions=facts.join_distinct(runs, facts.versions),
        machine=facts.join_distinct(runs, facts.machine),
    )


def rate_choice(study: RecordedStudy, rates_chosen: bool) -> RateChoice:
    """Return on what learning rates were chosen. rates_chosen: whether each arm is at the best of those reported."""
    if study.chosen_for_each_seed:
        return RateChoice.EACH_SEED
    if study.fairly_chosen:
        return RateChoice.HELD_OUT
    return RateChoice.REPORTED if rates_chosen else RateChoice.NONE


def options_of(study: RecordedStudy) -> dict[str, str]:
    """Return the names of data, model and optimizer, and what was changed of them, by group."""
    options_in_words = {}
    for group in SHOWN_GROUPS:
        options_in_words[group] = join(option_in_words(study, run, group, study.varied) for run in study.kinds)
    return options_in_words


# ---- what varied


@dataclass(frozen=True)
class JointFactor:
    """Settings that vary together, and the values that they take together."""

    keys: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]


def factors(study: RecordedStudy) -> list[JointFactor]:
    """Return what varied, where settings whose values are not all crossed are one factor together."""
    keys = (*study.varied, *accompanying_settings(study))
    groups: list[tuple[str, ...]] = [(key,) for key in keys]
    tied = tied_pair(study, groups)
    while tied:
        first, second = tied
        groups[groups.index(first)] = (*first, *second)
        groups.remove(second)
        tied = tied_pair(study, groups)
    joint_factors = [JointFactor(keys, joint_levels(study, keys)) for keys in groups]
    combinations_of_all = math.prod(len(factor.levels) for factor in joint_factors)
    if combinations_of_all > len(study.arms):  # all pairs of values are there, but not all triples
        all_settings = tuple(chain.from_iterable(groups))
        return [JointFactor(all_settings, joint_levels(study, all_settings))]
    return joint_factors


def tied_pair(
    study: RecordedStudy, groups: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the first two groups of settings whose values are not all crossed; None where all are."""
    for first, second in combinations(groups, 2):
        if are_tied(study, first, second):
            return first, second
    return None


def accompanying_settings(study: RecordedStudy) -> list[str]:
    """Return the settings that were asked for and follow what varies, such as a warm-up tied to the placement."""
    asked = asked_for(study).difference(study.varied)
    if study.fairly_chosen:
        asked.discard(LEARNING_RATE)
    accompanying = []
    for key in candidate_settings(study.runs):
        if key in asked and len(joint_levels(study, (key,))) > 1:
            accompanying.append(key)
    return accompanying


def are_tied(study: RecordedStudy, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Tell whether the values of two groups of settings are not all crossed."""
    together = len(joint_levels(study, (*one, *other)))
    return together < len(joint_levels(study, one)) * len(joint_levels(study, other))


def joint_levels(study: RecordedStudy, keys: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """Return the combinations of values that settings take, in order."""
    levels = {joint_level(study, run, keys) for run in study.runs}
    return tuple(sorted(levels, key=sort_keys))


def joint_level(study: RecordedStudy, run: RecordedRun, keys: Sequence[str]) -> tuple[Any, ...]:
    """Return the values that a run has in some settings."""
    return tuple(study.value_of(run, key) for key in keys)


def factor_in_words(study: RecordedStudy, factor: JointFactor) -> str:
    """Write what a factor is and its levels: `norm: layernorm (Ba et al. 2016) and rmsnorm (Zhang & Sennrich 2019)`."""
    by_level = {joint_level(study, run, factor.keys): run for run in study.runs}
    levels = []
    for level in factor.levels:
        words = [level_in_words(study, by_level[level], key) for key in factor.keys]
        levels.append(" with ".join(words))
    return f"{' together with '.join(factor.keys)}: {list_words(levels)}"


def level_in_words(study: RecordedStudy, run: RecordedRun, key: str) -> str:
    """Write a run's value of a setting that varies; an option with the works that it comes from."""
    if key in GROUPS or key in run.rules:
        return option_in_words(study, run, key, study.varied)
    return in_prose(study.value_of(run, key))


# ---- what was held equal


def alike_in_words(study: RecordedStudy, varied: Collection[str]) -> tuple[str, ...]:
    """Write what runs of one seed have in common: weights and batches, unless they vary."""
    keys = [*varied, *keys_of_schemes(study)] if "scheme" in varied else varied
    sections = {key.partition(".")[0] for key in keys}
    in_common = []
    if not sections & {"model", "init"}:
        gains = set[str]()
        for run in study.runs:
            if run.summary:
                gains.add(str(run.ledger.get("branch_gain")))
        weights = "start from the same weights"
        if len(gains) > 1:
            weights += " (up to the scaling that the placement prescribes)"
        in_common.append(weights)
    if "data" not in sections:
        in_common.append("see the same batches in the same order")
    return tuple(in_common)


def fixed_in_words(study: RecordedStudy, varied: Container[str]) -> str:
    """Write which norm and placement all runs have, where these do not vary: `norm is layernorm (Ba et al. 2016)`."""
    words = []
    for group in ("norm", "placement"):
        if group not in varied:
            option = join(option_in_words(study, run, group, ()) for run in study.kinds)
            words.append(f"{group} is {option}")
    runs_by_rule = defaultdict[str, list[RecordedRun]](list)
    for run in study.runs:
        for key in run.rules:
            if key not in varied:
                runs_by_rule[key].append(run)
    for key, runs in runs_by_rule.items():
        option = join(option_in_words(study, run, key, ()) for run in runs)
        place = key.partition("@")[2]
        words.append(f"{group_of(key)} at {place} is {option}")
    return " and the ".join(words)


def precision_in_words(run: RecordedRun) -> str:
    """Write in which precision a run computes."""
    return PRECISIONS[run.config.get("trainer.precision", "fp32")]


def average_in_words(run: RecordedRun) -> str:
    """Write which average of the weights a run keeps; nothing where it has none."""
    decay = run.config.get("trainer.ema")
    share = run.config.get("trainer.swa")
    if decay:
        return f"a moving average with a decay of {in_prose(decay)}"
    if share:
        return f"the plain average over the steps after the first {percent(share)}"
    return ""


def part_in_words(study: RecordedStudy, run: RecordedRun, group: str, aside: Iterable[str]) -> str:
    """Write what a run has for a group: the class, the works that it comes from, and each setting that plays a part.

    aside: settings that are told elsewhere. Where settings differ from the option, that is said: `the preset nano but
    for depth and width`.
    """
    settings = study.settings_of(run)
    option = str(settings.get(group, ""))
    target = str(settings.get(f"{group}._target_", option))
    name = target.rpartition(".")[2]
    altered = altered_settings(study, run, group, aside)
    shown = []
    for key, value in active_settings(study, run, group, aside).items():
        if value not in (None, False) or key in altered:
            shown.append(setting_in_words(key, value))
    words = name + in_brackets(works_of(group, option))
    if target.startswith("normbench.models."):
        words = f"normbench's {words}"
    if shown:
        words += f" with {list_words(shown, len(shown))}"
    if option not in options(group):
        return words
    if altered:
        names = [name_in_words(key) for key in altered]
        return f"{words} (the preset {option} but for {list_words(names)})"
    if option.casefold() == name.casefold():
        return words
    return f"{words} (the preset {option})"


def option_in_words(study: RecordedStudy, run: RecordedRun, group: str, aside: Iterable[str]) -> str:
    """Write the name of a group's option, the works that it comes from, and the settings that differ from it."""
    settings = study.settings_of(run)
    option = str(settings.get(group, ""))
    altered = altered_settings(study, run, group, {*aside, *ELSEWHERE})
    words = option + in_brackets(works_of(group, option))
    if altered:
        changes = [setting_in_words(key, settings[key]) for key in altered]
        words += f" but with {list_words(changes)}"
    return words


def active_settings(study: RecordedStudy, run: RecordedRun, group: str, aside: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a group that play a part in a run's task, by dotted path. aside: those left out."""
    settings = study.settings_of(run)
    target = str(settings.get(f"{group}._target_", ""))
    known = settings_of(target) or {}
    active = {}
    for key, value in settings.items():
        name = key.rpartition(".")[2]
        is_setting = belongs_to(key, group) and key not in run.rules and not name.startswith("_")
        is_idle = name in known and not known[name].plays_a_part(run.task, value)
        if is_setting and key not in aside and not is_idle:
            active[key] = value
    return active


def altered_settings(study: RecordedStudy, run: RecordedRun, group: str, aside: Iterable[str]) -> list[str]:
    """Return the settings that play a part and differ from the option that the run was given."""
    option = str(study.settings_of(run).get(group, ""))
    if option not in options(group_of(group)):
        return []
    preset = flat({group: section_of(group_of(group), option)})
    known = option_settings(group_of(group), option)
    altered = []
    for key, value in active_settings(study, run, group, aside).items():
        setting = known.get(key.rpartition(".")[2], Setting())
        usual = preset.get(key, None if setting.default is ... else setting.default)
        follows_others = str(usual).startswith("${")
        if not follows_others and usual != value:
            altered.append(key)
    return altered


def rates_of(study: RecordedStudy, arm: Arm, choice: RateChoice) -> str:
    """Write an arm's name and its learning rate, or rates.

    choice: on what they were chosen; there is none where that is the arm's own runs and no run trained.
    """
    if choice == RateChoice.REPORTED and not count_trained(arm.runs):
        return f"{arm.name} none, as no run trained"
    rates = [in_prose(study.value_of(run, LEARNING_RATE)) for run in arm.runs]
    return f"{arm.name} {join(rates)}"


# ---- words


def name_in_words(key: str) -> str:
    """Write the name of a setting as prose has it: `decay norms` for `trainer.decay_norms`."""
    return key.rpartition(".")[2].replace("_", " ")


def setting_in_words(key: str, value: Any) -> str:
    """Write a setting as prose has it: `tied` or `tied off`, `betas (0.9, 0.99)`, `4 heads`."""
    name = name_in_words(key)
    if isinstance(value, bool):
        return name if value else f"{name} off"
    if isinstance(value, int) and name.endswith("s"):
        return count(value, name.removesuffix("s"))
    if value is None:
        return f"no {name}"
    return f"{name} {in_prose(value)}"


def join(words: Iterable[str]) -> str:
    """Join what is said of runs, each once, such as `cnn or vgg`."""
    distinct: dict[str, None] = {}  # in their order
    for text in words:
        if text:
            distinct[one_line(text)] = None
    return either(distinct)
