"""Runs of one task as a study: arms by what a person varied, and a run for each seed."""

from __future__ import annotations

import logging
import shlex
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from normbench.config.schema import list_unwritten
from normbench.config.sections import CLASS_SECTIONS
from normbench.errors import UsageError
from normbench.evidence.arms import (
    LEARNING_RATE,
    Arm,
    Baseline,
    best_rate,
    canonical,
    families_of,
    sort_keys,
    without_settings,
)
from normbench.evidence.run import WITHOUT_RESULT, RecordedRun, read_run
from normbench.processes import run_beside
from normbench.record.digests import find_altered
from normbench.record.directory import RunDirectory
from normbench.record.files import read_form, read_json
from normbench.record.forms import CHOICE_FILE, PlannedWords
from normbench.runs.finding import run_directories
from normbench.runs.reading import DamagedRun
from normbench.settings import drop_keys, key_of

# Several settings may tell the same runs apart, and one of them names the arm. They are tried in this order, then all
# others by their names, and the learning rate last: it mostly follows from another setting, and was not chosen.
FIRST_KEYS = (
    "scheme", "norm", "placement", "weights", "model", "data", "optim", "schedule", "init",
    "model.depth", "model.width", "model.heads", "model.context", "data.batch_size",
)  # fmt: skip

TIE = "sweep.tie"

# Keys that tell no arms apart: the seed, where a run is kept and where it runs, what is shown, saved or probed.
ASIDE = (
    "seed", "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path", "experiment",
    "probes", "logger", "trainer.checkpoint_every", "trainer.keep_checkpoint", "trainer.shard",
    "trainer.recompute",
)  # fmt: skip


@dataclass(frozen=True)
class RecordedStudy:
    """Runs of one task, which may be compared.

    Attributes:
        folders: below which they were found.
        arms: in the order of their settings.
        varied: the settings that tell the arms apart.
        damaged: the name of each run that cannot be read, and why.
        seen: the settings of each run as the study sees them (`settings_as_seen`), by the path of the run.
    """

    folders: tuple[Path, ...]
    arms: tuple[Arm, ...]
    varied: tuple[str, ...]
    damaged: tuple[tuple[str, str], ...] = ()
    seen: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Return the kind of task of its runs."""
        return self.runs[0].task

    @cached_property
    def kinds(self) -> list[RecordedRun]:
        """Return the first run of each kind: runs of one kind have the same settings but for the seed."""
        first = dict[frozenset[tuple[str, Any]], RecordedRun]()
        for run in self.runs:
            settings = drop_keys(self.settings_of(run), "seed")
            first.setdefault(frozenset(settings.items()), run)
        return [*first.values()]

    @property
    def pairs(self) -> list[tuple[Arm, RecordedRun]]:
        """Return all runs, arm by arm, each with its arm."""
        pairs = []
        for arm in self.arms:
            for run in arm.runs:
                pairs.append((arm, run))
        return pairs

    @property
    def runs(self) -> list[RecordedRun]:
        """Return all runs, arm by arm."""
        runs = list[RecordedRun]()
        for arm in self.arms:
            runs += arm.runs
        return runs

    def settings_of(self, run: RecordedRun) -> Mapping[str, Any]:
        """Return the settings of a run as the study sees them, by dotted path."""
        return self.seen.get(run.path, run.config)

    def value_of(self, run: RecordedRun, key: str) -> Any:
        """Return a run's value of a setting as the study sees it; None where it has none."""
        return self.settings_of(run).get(key)

    @cached_property
    def finished(self) -> list[RecordedRun]:
        """Return the runs that finished, arm by arm."""
        return [run for run in self.runs if run.status == "finished"]

    @cached_property
    def noted(self) -> dict[Path, list[dict[str, Any]]]:
        """Return what sweeps with `sweep.lr` have noted of how rates were chosen, by their folders."""
        return read_all_choices(self.runs)

    @cached_property
    def choices(self) -> dict[Path, dict[str, Any]]:
        """Return what was noted of how each run's learning rate was chosen, by the path of the run."""
        choices = {}
        for run in self.runs:
            for choice in self.noted[run.path.parent]:
                if self.was_given(run, choice):
                    choices[run.path] = choice
        return choices

    def was_given(self, run: RecordedRun, choice: Mapping[str, Any]) -> bool:
        """Tell whether a run has the settings and the learning rate of a choice that a sweep has noted."""
        if choice.get("seed", run.seed) != run.seed:
            return False
        return self.has_settings(run, {**choice["arm"], LEARNING_RATE: choice["lr"]})

    def has_settings(self, run: RecordedRun, settings: Mapping[str, Any]) -> bool:
        """Tell whether a run has settings, however their values are written."""
        return all(canonical(str(self.value_of(run, key))) == canonical(str(value)) for key, value in settings.items())

    def without_rate(self) -> Iterator[tuple[Arm, Mapping[str, Any]]]:
        """Yield what sweeps have noted of arms, or of seeds of an arm, for which no learning rate was left.

        Each with its arm, which has no runs where no rate was left for any of its seeds.
        """
        for noted in self.noted.values():
            for choice in noted:
                if choice["lr"] is None:
                    yield self.arm_of(choice), choice

    def arm_of(self, choice: Mapping[str, Any]) -> Arm:
        """Return the arm for which a sweep has chosen; one without runs where no run has its settings."""
        for arm in self.arms:
            if any(self.has_settings(run, choice["arm"]) for run in arm.runs):
                return arm
        return Arm(choice["arm"])

    @property
    def fairly_chosen(self) -> bool:
        """Tell whether the learning rate of every run was chosen on data that are not reported."""
        return len(self.choices) == len(self.runs)

    @property
    def chosen_for_each_seed(self) -> bool:
        """Tell whether the learning rate of every run was chosen for its seed, on another seed and on held-out data."""
        choices = self.choices.values()
        return self.fairly_chosen and all("seed" in choice for choice in choices)

    @property
    def choice_length(self) -> float:
        """Return the length of the shortest runs that chose a rate, as a share of those that are reported."""
        return min((choice.get("length", 1.0) for choice in self.choices.values()), default=1.0)

    @property
    def ramps(self) -> bool:
        """Tell whether the learning rate of every run grew until it no longer learned, and so took all rates."""
        return all(run.ramp for run in self.runs)

    @cached_property
    def plans(self) -> list[list[str]]:
        """Return the words of each sweep that noted them beside the runs."""
        plans = []
        for folder in {run.path.parent for run in self.runs}:
            for file in folder.glob(".sweep/plans/*.json"):
                plan = read_form(file, PlannedWords)
                if plan:
                    plans.append(plan["words"])
        return plans

    def command(self, **changes: str | None) -> str:
        """Return the command of the sweep that made these runs, with changes; empty where no sweep did, or several.

        changes: new values of settings; None to leave a setting out.
        """
        plans = self.plans
        if len(plans) != 1:
            return ""
        words = []
        for word in plans[0]:
            key = key_of(word)
            if key == TIE:
                words += leave_out_of_tie(word, changes)
            elif key not in changes and key != "sweep.report":
                words.append(word)
        if not words:
            return ""
        new = []
        for key, value in changes.items():
            if value is not None:
                new.append(f"{key}={value}")
        return shlex.join(["normbench", "sweep", *words, *new])

    def more_seeds(self, number: int) -> str:
        """Return the command that runs so many new seeds; only its word for them where no sweep made the runs."""
        first = max(run.seed for run in self.runs) + 1
        word = f"seed={first}" if number == 1 else f"seed=range({first},{first + number})"
        return self.resume(word, "sweep.extend=true") or word

    def resume(self, *words: str) -> str:
        """Return the command that resumes the sweep that made these runs; empty where no sweep did."""
        command = ["normbench", "sweep", "--resume", str(self.runs[0].path.parent), *words]
        return shlex.join(command) if self.plans else ""


def leave_out_of_tie(word: str, keys: Container[str]) -> list[str]:
    """Return the words in place of a tie without some of its settings; one that is left alone varies by itself."""
    settings = word.partition("=")[2].strip("'\"").split(";")
    remaining = [setting for setting in settings if key_of(setting) not in keys]
    if len(remaining) == len(settings):
        return [word]
    return remaining if len(remaining) < 2 else [f"{TIE}={';'.join(remaining)}"]


# ---- reading


def say_why_none_ended(runs: Sequence[RecordedRun], damaged: Sequence[tuple[str, str]]) -> str:
    """Say why no run has ended, and what to do. damaged: the name of each run that cannot be read, and the reason."""
    if damaged:
        name, reason = damaged[0]
        return f": {name} is damaged, {reason}: wait for one, or give another folder"
    failed = [run for run in runs if run.status in WITHOUT_RESULT]
    if failed and len(failed) == len(runs):
        first, *others = failed
        subject = f"all {len(runs)} runs failed, {first.name} with" if others else f"{first.name} failed with"
        message = first.message or first.status
        return f": {subject}: {message}: mend the cause, and run them again with sweep.retry_failed=true"
    return ": wait for one, or give another folder"


def read_studies(folders: Sequence[Path]) -> list[RecordedStudy]:
    """Return the runs below some folders as a study for each task; a run counts once, also below two of them.

    Raises:
        UsageError: a folder is not there or holds no runs, or no run has ended.
    """
    named_directories = dict[Path, tuple[str, RunDirectory]]()
    for folder in folders:
        for name, directory in run_directories(folder).items():
            named_directories[directory.path.resolve()] = name, directory
    directories = list(named_directories.values())
    half = len(directories) // 2
    read_others = run_beside(lambda: read_all(directories[half:]))
    runs, damaged = read_all(directories[:half])
    other_runs, other_damaged = read_others()
    runs += other_runs
    damaged += other_damaged
    tasks = sorted({run.task for run in runs if run.ended})
    if not tasks:
        where = ", ".join(str(folder) for folder in folders)
        raise UsageError(f"{where} holds no run that has ended{say_why_none_ended(runs, damaged)}")
    studies = []
    for task in tasks:
        runs_of_task = [run for run in runs if run.task == task]
        studies.append(study_of(runs_of_task, folders, damaged))
    return studies


def read_all(directories: Iterable[tuple[str, RunDirectory]]) -> tuple[list[RecordedRun], list[tuple[str, str]]]:
    """Read runs; return them, and the name of each that cannot be read, and why. directories: with the run's name."""
    runs = list[RecordedRun]()
    damaged = list[tuple[str, str]]()
    for name, directory in directories:
        try:
            runs.append(read_run(directory, name))
        except DamagedRun as error:
            damaged.append((name, error.reason))
    return runs, damaged


def read_all_choices(runs: Iterable[RecordedRun]) -> dict[Path, list[dict[str, Any]]]:
    """Return what sweeps with `sweep.lr` have noted beside runs of how their rates were chosen, by their folders."""
    folders = sorted({run.path.parent for run in runs})
    return {folder: read_choices(folder / CHOICE_FILE) for folder in folders}


def read_choices(path: Path) -> list[dict[str, Any]]:
    """Return the learning rates that a sweep has chosen, for each arm or seed; none of a file that is not as it was."""
    note = read_json(path)
    if note is None and not path.exists():
        return []
    wrong = ""
    if note is None:
        wrong = "is damaged"
    elif find_altered(path):
        wrong = "changed after the sweep had written it"
    if note is None or wrong:
        what = f"{path} {wrong}; it is left out, so the rates that it has count as chosen for no arm"
        logging.getLogger("normbench").warning("warning: %s", what)
        return []
    chosen: list[dict[str, Any]] = note["arms"]
    return chosen


# ---- arms


def study_of(
    runs: Sequence[RecordedRun], folders: Sequence[Path] = (), damaged: Sequence[tuple[str, str]] = ()
) -> RecordedStudy:
    """Gather runs of one task by the settings that vary; arms in the order of their settings, runs by seed.

    Learning rates that were chosen for each seed by itself tell no arms apart: each is one draw of what an arm's choice
    may come to.
    """
    seen = settings_as_seen(runs)
    varied = varied_settings(runs, seen)
    study = RecordedStudy(tuple(folders), gather_arms(runs, varied, seen), varied, tuple(damaged), seen)
    if LEARNING_RATE not in varied or not study.chosen_for_each_seed:
        return study
    without_rate = tuple(key for key in varied if key != LEARNING_RATE)
    return replace(study, arms=gather_arms(runs, without_rate, seen), varied=without_rate)


def gather_arms(
    runs: Sequence[RecordedRun], varied: Sequence[str], seen: Mapping[Path, Mapping[str, Any]]
) -> tuple[Arm, ...]:
    """Return runs as arms, which differ in some settings. seen: as `settings_as_seen` has them."""
    gathered = defaultdict[tuple[Any, ...], list[RecordedRun]](list)
    for run in sorted(runs, key=lambda run: (run.seed, run.name)):
        values = tuple(seen[run.path].get(key) for key in varied)
        gathered[values].append(run)
    arms = []
    for values in sorted(gathered, key=sort_keys):
        settings = dict(zip(varied, values, strict=True))
        arms.append(Arm(settings, tuple(gathered[values])))
    return tuple(arms)


# ---- what varies


def settings_as_seen(runs: Sequence[RecordedRun]) -> dict[Path, Mapping[str, Any]]:
    """Return the settings of each run beside those of the others, by the path of the run.

    What it is without, as it is as usual, is written out where others have it: `weights=plain`, `gain0=1`. And where
    classes that are not ours share a name, the option is the class's path: `a.MyNorm` and `b.MyNorm`.
    """
    keys = keys_in_configs(runs)
    paths = paths_of_options(runs)
    settings_of_run = {}
    for run in runs:
        changes = dict[str, Any]()
        for section in CLASS_SECTIONS:
            path = str(run.config.get(f"{section}._target_"))
            is_ambiguous = len(paths[section, run.config.get(section)]) > 1
            if is_ambiguous and not path.startswith("normbench."):
                changes[section] = path
        for key, value in list_unwritten(run.config).items():
            if key in keys:
                changes[key] = value
        settings_of_run[run.path] = {**run.config, **changes} if changes else run.config
    return settings_of_run


def paths_of_options(runs: Iterable[RecordedRun]) -> dict[tuple[str, Any], set[Any]]:
    """Return the paths of the classes that runs have under the name of an option, by the section and that name."""
    paths = defaultdict[tuple[str, Any], set[Any]](set)
    for run in runs:
        for section in CLASS_SECTIONS:
            paths[section, run.config.get(section)].add(run.config.get(f"{section}._target_"))
    return paths


def keys_in_configs(runs: Iterable[RecordedRun]) -> set[str]:
    """Return the settings that the configurations of runs have."""
    keys = set[str]()
    for run in runs:
        keys.update(run.config)
    return keys


def varied_settings(runs: Sequence[RecordedRun], seen: Mapping[Path, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the settings that tell the arms apart, groups first, without any that follows from those before it."""
    cells: list[Any] = [()] * len(runs)  # of each run: its values of the settings so far, nested
    varied = []
    for key in candidate_settings(runs):
        values = [seen[run.path].get(key) for run in runs]
        refined = list(zip(cells, values, strict=True))
        if len(set(refined)) > len(set(cells)):
            varied.append(key)
            cells = refined
    return tuple(varied)


def candidate_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the settings that could tell arms apart, in the order in which they are tried."""
    keys = set[str]()
    for key in keys_in_configs(runs):
        if not key.startswith(("probes.", "logger.")):
            keys.add(key)
    rules = set[str]()
    for run in runs:
        rules.update(run.rules)
    first_keys = (*FIRST_KEYS[:3], *sorted(rules), *FIRST_KEYS[3:])
    first = [key for key in first_keys if key in keys]
    last = [LEARNING_RATE] if LEARNING_RATE in keys else []
    others = sorted(keys.difference(first, last, ASIDE))
    return [*first, *others, *last]


# ---- learning rates


def choose_contenders(study: RecordedStudy, baseline: Baseline) -> tuple[tuple[Arm, ...], bool]:
    """Return the arms that are compared, and whether a learning rate was chosen for each.

    Of an arm that was tried at several rates, that is the arm at the best of them (`best_rate`), unless the rates
    themselves are what is compared.
    """
    families = rate_families(study)
    if LEARNING_RATE in baseline or not families:
        return study.arms, False
    chosen = []
    for family in families:
        best = without_settings(best_rate(family), LEARNING_RATE)
        chosen.append(replace(best, rates_tried=len(family)))
    return tuple(chosen), True


def rate_families(study: RecordedStudy) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms in groups that differ only in the learning rate; none where it does not vary, or varies alone."""
    if LEARNING_RATE not in study.varied or len(study.varied) == 1:
        return ()
    return families_of(study.arms, LEARNING_RATE)
