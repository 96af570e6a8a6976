"""The methods of a study as prose for a paper: what varied, all else that played a part, and the works behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from normbench import __version__
from normbench.analysis import facts
from normbench.analysis.comparisons import contenders
from normbench.analysis.examine import Examined
from normbench.analysis.fairness import asked_for
from normbench.analysis.records import LEARNING_RATE, Arm, RecordedRun, RecordedStudy, candidates, in_order, shortened
from normbench.analysis.references import in_brackets, works_of
from normbench.analysis.wording import count, in_words, one_line
from normbench.config.groups import options, section_of
from normbench.config.sections import GROUPS
from normbench.config.signatures import settings_of
from normbench.settings import either, flat

MOST = 12  # things that a sentence lists
SHOWN = ("data", "model", "optim")
ELSEWHERE = ("data.batch_size", "data.context", "data.holdout", "data.root", "data.path")  # told by other sentences
PRECISIONS = {
    "fp32": "in float32",
    "bf16": "with matrix products in bfloat16 (Micikevicius et al. 2018)",
    "fp16": "with matrix products in float16 and a scaled loss (Micikevicius et al. 2018)",
}


def methods(found: Examined) -> str:
    """Return a paragraph for a paper, with every number filled in; works stand in brackets, such as `(Holm 1979)`."""
    parts = [
        *say_configurations(found),
        *say_setting(found),
        *say_training(found),
        *say_runs(found),
        *say_tests(found),
        *say_software(found.study.runs),
    ]
    return one_line(" ".join(parts))


def say_configurations(found: Examined) -> list[str]:
    """Say what was compared."""
    study = found.study
    varied = factors(study)
    if not varied:
        return ["We trained one configuration."]
    differ = ". They also differ in ".join(factor_in_words(study, one) for one in varied)
    parts = [f"We compared {count(len(study.arms), 'configuration')}. They differ in {differ}."]
    if len(varied) > 1:
        parts.append("All of their combinations were trained.")
    rates = " but the learning rate" if study.fairly_chosen else ""
    alike = alike_in_words(study, {*study.varied, *along(study)})
    parts.append(f"All else{rates} was held equal{alike}.")
    return parts


def say_setting(found: Examined) -> list[str]:
    """Say what the model is, and on which data."""
    study = found.study
    aside = told_elsewhere(study)
    model = one_of(part_in_words(run, "model", aside) for run in study.runs)
    init = one_of(option_in_words(run, "init", aside) for run in study.runs)
    data = one_of(option_in_words(run, "data", aside) for run in study.runs)
    fixed = fixed_in_words(study, {*study.varied, *along(study)})
    amounts = shortened(facts.distinct(study.runs, facts.amounts), 4, between="; ")
    parameters = facts.sizes(facts.parameters_of(study.runs))
    initialised = f", initialised by {init}" if init else ""
    parts = [f"The model is {model}; it has {parameters} parameters{initialised}."]
    if fixed:
        parts.append(f"The {fixed}.")
    parts.append(f"The data are {data}: {amounts}.")
    return parts


def say_training(found: Examined) -> list[str]:
    """Say how runs were trained."""
    study = found.study
    aside = told_elsewhere(study)
    steps = one_of(facts.steps(run) for run in study.runs)
    batch = one_of(facts.batch(run) for run in study.runs)
    optim = one_of(part_in_words(run, "optim", aside) for run in study.runs)
    schedule = one_of(part_in_words(run, "schedule", aside) for run in study.runs)
    clip = one_of(facts.clip(run) for run in study.runs)
    precision = one_of(PRECISIONS[run.config.get("trainer.precision", "fp32")] for run in study.runs)
    parts = [
        f"Each run was trained for {steps} steps of {batch} by {optim}, under the schedule {schedule}, {clip}, "
        f"{precision}."
    ]
    decays = [run.config.get("trainer.ema") for run in study.runs]
    average = one_of(value_in_words(decay) for decay in decays if decay)
    if average:
        parts.append(f"A moving average of the weights, with a decay of {average}, was evaluated as well.")
    return parts


def say_runs(found: Examined) -> list[str]:
    """Say how many runs there are, how they ended, and how their learning rates were chosen."""
    study = found.study
    runs = study.runs
    seeds = facts.seeds_of(runs)
    uneven = len({frozenset(arm.seeds) for arm in study.arms}) > 1
    missing = len(found.answer.missing)
    finished = sum(run.status == "finished" for run in runs)
    stuck = sum(run.trained is False for run in runs)
    names = shortened([str(seed) for seed in seeds])
    planned = count(len(runs) + missing, "run") + (" that were planned" if missing else "")
    untrained = f", {stuck} of which did not train" if stuck else ""
    parts = [
        f"Each configuration was trained with {'up to ' if uneven else ''}{count(len(seeds), 'seed')} ({names}); "
        f"{finished} of {planned} finished{untrained}."
    ]
    judged, _ = contenders(study, dict(found.baseline.settings))
    rates = "; ".join(rates_of(arm) for arm in judged)
    if study.fairly_chosen:
        parts.append(
            "The learning rate of each configuration was chosen beforehand, with other seeds, by the final loss on a "
            f"tenth held out of the training data: {rates}."
        )
    elif found.chosen:
        parts.append(
            "Each configuration was judged at its own best learning rate, that with the fewest runs lost and then the "
            f"lowest mean validation loss: {rates}."
        )
    return parts


def say_tests(found: Examined) -> list[str]:
    """Say what was tested, and how."""
    differences, losses = found.answer.differences, found.answer.losses
    compared = any(one.n > 1 for one in differences)
    survived = any(one.counted for one in losses)
    parts = []
    if compared:
        text = (
            f"The final {found.by.primary.words} was compared with that of {found.baseline.name}, paired by seed, by "
            "two-sided t tests (Student 1908) with 95 % confidence intervals"
        )
        if any(one.effect_size is not None for one in differences):
            text += "; effect sizes are Hedges' g of the differences (Hedges 1981)"
        if any(one.ranked_p is not None for one in differences):
            text += ". Signed ranks (Wilcoxon 1945) stand beside them"
        parts.append(f"{text}.")
    if survived:
        parts.append(
            "How many runs were lost was compared by Fisher's exact test (Fisher 1922), as far as so many can show "
            "anything (Tarone 1990)."
        )
    if compared or survived:
        family = max(one.family for one in (*differences, *losses))
        if family > 1:
            called = f"The p values of these {family} tests were corrected after Holm (Holm 1979), and are called"
        else:
            called = "A p value is called"
        parts.append(f"{called} significant below 0.05.")
    return parts


def say_software(runs: Sequence[RecordedRun]) -> list[str]:
    """Say how translations were judged, with which software, and on what."""
    parts = []
    scores = facts.every(runs, facts.bleu)
    if scores:
        parts.append(
            "Translations were found by beam search and judged by BLEU (Papineni et al. 2002) as sacrebleu has it "
            f"(Post 2018): {scores}."
        )
    code = facts.every(runs, facts.code)
    commit = f", commit {code}" if code else ""
    parts.append(f"Software: normbench {__version__}, {facts.every(runs, facts.versions)}{commit}.")
    parts.append(f"Hardware: {facts.every(runs, facts.machine)}.")
    return parts


def told_elsewhere(study: RecordedStudy) -> set[str]:
    """Return the settings that other sentences tell."""
    varied = {*study.varied, *along(study)}
    return varied | {LEARNING_RATE} if study.fairly_chosen else varied


def options_of(study: RecordedStudy) -> dict[str, str]:
    """Return what data, model and optimizer are called, and what was changed of them, by their groups."""
    found = {}
    for group in SHOWN:
        found[group] = one_of(option_in_words(run, group, study.varied) for run in study.runs)
    return found


# ---- what varied


@dataclass(frozen=True)
class JointFactor:
    """Settings that vary together, and the values that they take together."""

    keys: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]


def factors(study: RecordedStudy) -> list[JointFactor]:
    """Return what varied: settings that take all pairs of their values stand alone, and those that do not, together."""
    keys = (*study.varied, *along(study))
    groups: list[tuple[str, ...]] = [(key,) for key in keys]
    tied = tied_pair(study, groups)
    while tied:
        one, other = tied
        groups[groups.index(one)] = (*one, *other)
        groups.remove(other)
        tied = tied_pair(study, groups)
    found = [JointFactor(keys, levels_of(study, keys)) for keys in groups]
    if math.prod(len(one.levels) for one in found) > len(study.arms):  # pairs are whole, and triples are not
        every = tuple(key for keys in groups for key in keys)
        return [JointFactor(every, levels_of(study, every))]
    return found


def tied_pair(
    study: RecordedStudy, groups: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the first two groups of settings some of whose values are not taken together; None where all are."""
    for one, other in combinations(groups, 2):
        if are_tied(study, one, other):
            return one, other
    return None


def along(study: RecordedStudy) -> list[str]:
    """Return the settings that were asked for and go along with what varies, as warm-up that is tied to placement."""
    chosen = (LEARNING_RATE,) if study.fairly_chosen else ()
    asked = asked_for(study).difference(study.varied, chosen)
    found = [key for key in candidates(study.runs) if key in asked]
    return [key for key in found if len(levels_of(study, (key,))) > 1]


def are_tied(study: RecordedStudy, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Say whether some values of settings are not taken together."""
    together = len(levels_of(study, (*one, *other)))
    return together < len(levels_of(study, one)) * len(levels_of(study, other))


def levels_of(study: RecordedStudy, keys: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """Return the values that settings take together, in order."""
    found = {level_of(run, keys) for run in study.runs}
    return tuple(sorted(found, key=lambda level: [in_order(value) for value in level]))


def level_of(run: RecordedRun, keys: Sequence[str]) -> tuple[Any, ...]:
    """Return the values that a run has in some settings."""
    return tuple(run.config.get(key) for key in keys)


def factor_in_words(study: RecordedStudy, factor: JointFactor) -> str:
    """Write what a factor is and its levels: `norm: layernorm (Ba et al. 2016) and rmsnorm (Zhang & Sennrich 2019)`."""
    by_level = {level_of(run, factor.keys): run for run in study.runs}
    levels = []
    for level in factor.levels:
        words = [level_in_words(study, by_level[level], key) for key in factor.keys]
        levels.append(" with ".join(words))
    return f"{' together with '.join(factor.keys)}: {listed(levels)}"


def level_in_words(study: RecordedStudy, run: RecordedRun, key: str) -> str:
    """Write what a run has in a setting that varies; of an option with the works behind it."""
    return option_in_words(run, key, study.varied) if key in GROUPS else value_in_words(run.config.get(key))


# ---- what was held equal


def alike_in_words(study: RecordedStudy, varied: Iterable[str]) -> str:
    """Write what runs of one seed have in common: their weights and batches, as far as what varies leaves them."""
    sections = {key.partition(".")[0] for key in varied}
    gains = {str(run.ledger.get("branch_gain")) for run in study.runs if run.summary}
    weights = "start from the same weights"
    if len(gains) > 1:
        weights += " (up to the scaling that the placement prescribes)"
    shared = {weights: {"model", "init"}, "see the same batches in the same order": {"data"}}
    words = [text for text, changing in shared.items() if not sections & changing]
    return f": for each seed, runs {' and '.join(words)}" if words else ""


def fixed_in_words(study: RecordedStudy, varied: Container[str]) -> str:
    """Write which norm and placement all runs have, where these do not vary: `norm is layernorm (Ba et al. 2016)`."""
    words = []
    for group in ("norm", "placement"):
        if group not in varied:
            options = one_of(option_in_words(run, group, ()) for run in study.runs)
            words.append(f"{group} is {options}")
    return " and the ".join(words)


def part_in_words(run: RecordedRun, group: str, aside: Iterable[str]) -> str:
    """Write what stands for a group: its class, the works behind it, and each setting that plays a part.

    aside: settings that are told elsewhere. Where settings are not as the option has them, that is said: `the preset
    nano but for depth and width`.
    """
    option = str(run.config.get(group, ""))
    target = str(run.config.get(f"{group}._target_", option))
    name = target.rpartition(".")[2]
    altered = changed(run, group, aside)
    shown = []
    for key, value in playing(run, group, aside).items():
        if value not in (None, False) or key in altered:
            shown.append(setting_in_words(key, value))
    words = name + in_brackets(works_of(group, option))
    if target.startswith("normbench.models."):
        words = f"normbench's {words}"
    if shown:
        words += f" with {listed(shown, len(shown))}"
    if option not in options(group):
        return words
    if altered:
        names = [key.rpartition(".")[2].replace("_", " ") for key in altered]
        return f"{words} (the preset {option} but for {listed(names)})"
    return words if option.casefold() == name.casefold() else f"{words} (the preset {option})"


def option_in_words(run: RecordedRun, group: str, aside: Iterable[str]) -> str:
    """Write the name of a group's option, the works behind it, and what of it is not as it has it."""
    option = str(run.config.get(group, ""))
    altered = changed(run, group, {*aside, *ELSEWHERE})
    words = option + in_brackets(works_of(group, option))
    if altered:
        words += f" but with {listed([setting_in_words(key, run.config[key]) for key in altered])}"
    return words


def playing(run: RecordedRun, group: str, aside: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a group that play a part in a run's task, but those aside, by dotted path."""
    known = settings_of(str(run.config.get(f"{group}._target_", ""))) or {}
    found = {}
    for key, value in run.config.items():
        section, _, name = key.partition(".")
        is_setting = section == group and name and not name.startswith("_")
        is_idle = name in known and not known[name].plays_a_part(run.task, value)
        if is_setting and key not in aside and not is_idle:
            found[key] = value
    return found


def changed(run: RecordedRun, group: str, aside: Iterable[str]) -> list[str]:
    """Return the settings that play a part and are not as the option has them that the run was given."""
    option = str(run.config.get(group, ""))
    if option not in options(group):
        return []
    preset = flat({group: section_of(group, option)})
    found = []
    for key, value in playing(run, group, aside).items():
        usual = preset.get(key)
        follows_others = str(usual).startswith("${")
        if not follows_others and usual != value:
            found.append(key)
    return found


def rates_of(arm: Arm) -> str:
    """Write an arm's learning rate, or rates, after its name."""
    rates = [value_in_words(run.config.get(LEARNING_RATE)) for run in arm.runs]
    return f"{arm.name} {one_of(rates)}"


# ---- words


def setting_in_words(key: str, value: Any) -> str:
    """Write a setting as prose has it: `tied` or `tied off`, `betas (0.9, 0.99)`, `4 heads`."""
    name = key.rpartition(".")[2].replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"{name} off"
    if isinstance(value, int) and name.endswith("s"):
        return count(value, name.removesuffix("s"))
    return f"no {name}" if value is None else f"{name} {value_in_words(value)}"


def value_in_words(value: Any) -> str:
    """Write a value: numbers without needless zeros, as 1e-8 for 1e-08; lists, which are JSON here, in brackets."""
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError, RecursionError):  # a person's own word may begin so, too
            parts = [value_in_words(part) for part in json.loads(value)]
            return f"({', '.join(parts)})"
    words = in_words(value)
    if isinstance(value, float) and "e" in words:
        mantissa, exponent = words.split("e")
        return f"{mantissa}e{int(exponent)}"
    return words


def one_of(words: Iterable[str]) -> str:
    """Join what is said of runs, each once, such as `cnn or vgg`."""
    return either(dict.fromkeys(one_line(text) for text in words if text))


def listed(words: Sequence[str], most: int = MOST) -> str:
    """Join words as prose does: `a, b and c`; of many the first ones, and how many more there are."""
    shown = [*words[:most]]
    if len(words) > most:
        shown.append(f"{len(words) - most} more")
    *others, last = shown
    return f"{', '.join(others)} and {last}" if others else last
