"""What arms are compared with: the usual baseline, the one that words name, and two arms that words name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from normbench.config.sections import GROUPS
from normbench.errors import ArgumentError, UsageError
from normbench.evidence.arms import Arm, Baseline, canonical
from normbench.evidence.study import RecordedStudy, read_studies
from normbench.settings import nearest
from normbench.wording import join_first

# One of the words that name an arm, as they stand in its name: a list in brackets is one, with its commas.
WORD = re.compile(r"(?:\[[^\]]*\]|[^\s,·\[])+")

# Against what arms are compared where a person says nothing and the study has it.
USUAL = {"norm": "layernorm", "placement": "pre"}
OF_HOST = {"norm": "own"}
USUAL_SCHEME = {"scheme": "gpt2"}  # which has both


# ---- the baseline


def usual_baseline(study: RecordedStudy) -> Baseline:
    """Return layernorm with pre, or the one of them that the study has, or gpt2; else the settings of the first arm.

    Of a model of another library it is the norms that it has by itself, where an arm has them.
    """
    first = study.arms[0].settings
    choices: list[Baseline] = [dict(OF_HOST), dict(USUAL)]
    for key, value in USUAL.items():
        choices.append({key: value})
    choices.append(dict(USUAL_SCHEME))
    of_groups = {key: value for key, value in first.items() if key in GROUPS}
    choices.append(of_groups)
    if first:
        first_key = next(iter(first))
        choices.append({first_key: first[first_key]})
    for choice in choices:
        if choice and any(arm.has(choice) for arm in study.arms):
            return choice
    return {}


def given_baseline(study: RecordedStudy, words: str) -> Baseline:
    """Return the settings of the baseline that words name.

    Raises:
        ArgumentError: no arm has them.
    """
    try:
        return settings_named(study, words)
    except UnknownArm as error:
        raise ArgumentError("baseline", error.word, error.why) from error


class UnknownArm(UsageError):
    """A word that names no arm, and why."""

    def __init__(self, word: str, why: str) -> None:
        super().__init__(f"{word} {why}")
        self.word = word
        self.why = why


def settings_named(study: RecordedStudy, words: str) -> Baseline:
    """Return the settings that words name: `norm=layernorm placement=pre`, or an arm's options alone.

    Raises:
        UnknownArm: no arm has them.
    """
    if len(study.arms) == 1:
        raise UnknownArm(words, "chooses among arms, and all these runs are of one: give other folders")
    known = words_for_arms(study)
    whole = words.strip()
    single_words = [whole] if whole in known else WORD.findall(words)
    settings: Baseline = {}
    for word in single_words:
        name, equals, value = word.rpartition("=")
        in_one_spelling = f"{name}{equals}{canonical(value)}"
        settings_of_word = known.get(word, known.get(in_one_spelling))
        if settings_of_word is None:
            allowed = join_first([*known])
            raise UnknownArm(word, f"is not an arm: {nearest(word, known)}allowed are {allowed}")
        settings |= settings_of_word
    if not any(arm.has(settings) for arm in study.arms):
        allowed = join_first([arm.name for arm in study.arms])
        raise UnknownArm(words, f"is not an arm: allowed are {allowed}")
    return settings


def words_for_arms(study: RecordedStudy) -> dict[str, Baseline]:
    """Return the words that name arms, and the settings that each stands for."""
    known: dict[str, Baseline] = {arm.name: dict(arm.settings) for arm in study.arms}
    for arm in study.arms:
        for key, value in arm.settings.items():
            word = canonical(str(value))
            name = key.rpartition(".")[2]
            known[f"{key}={word}"] = {key: value}
            known[f"{name}={word}"] = {key: value}
            known[word] = {key: value}
    settings = study.settings_of(study.runs[0])
    for group in GROUPS:
        if group not in study.varied:
            known[f"{group}={settings.get(group)}"] = {}  # which every arm has
    return known


# ---- two arms


def read_pairs(first: str, second: str, folder: Path) -> list[RecordedStudy]:
    """Read the two arms that words name, for each task that has both: folders of runs, or arms of runs below `folder`.

    Raises:
        UsageError: no task has both; it says why the first does not.
    """
    are_folders = Path(first).is_dir() and Path(second).is_dir()
    folders = [Path(first), Path(second)] if are_folders else [folder]
    pairs = []
    errors = []
    for study in read_studies(folders):
        try:
            pairs.append(pair_of(study, first, second, None if are_folders else folder))
        except UsageError as error:
            errors.append(error)
    if not pairs:
        raise errors[0]
    return pairs


def pair_of(study: RecordedStudy, first: str, second: str, folder: Path | None) -> RecordedStudy:
    """Return the two arms of a study that words name. folder: where they are; None where the words are folders.

    Raises:
        UsageError: a word names no arm or several, or both name the same.
    """
    first_arm = arm_of(study, first, folder)
    second_arm = arm_of(study, second, folder)
    paths = {run.path for run in first_arm.runs}
    if any(run.path in paths for run in second_arm.runs):
        raise UsageError(f"{first} and {second} are the same runs: name two arms")
    if first_arm.name == second_arm.name:  # the same settings in two folders
        first_arm = replace(first_arm, settings={**first_arm.settings, "in": first})
        second_arm = replace(second_arm, settings={**second_arm.settings, "in": second})
    return replace(study, arms=(first_arm, second_arm))


def arm_of(study: RecordedStudy, word: str, folder: Path | None) -> Arm:
    """Return the arm of a study that a word names. folder: where it is; None where the word is a folder.

    Raises:
        UsageError: the word names no arm or several.
    """
    settings = settings_named(study, word) if folder else {}
    place = (folder or Path(word)).resolve()
    arms = []
    for arm in study.arms:
        runs = [run for run in arm.runs if run.path.resolve().is_relative_to(place)]
        if runs and arm.has(settings):
            arms.append(Arm(arm.settings, tuple(runs)))
    if len(arms) != 1:
        names = join_first([arm.name for arm in arms])
        where = "" if folder else f", with --in {word}"
        raise UsageError(f"{word} names {len(arms)} arms: name one of {names}{where}")
    return arms[0]
