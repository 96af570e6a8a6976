"""The runs below folders as a study: arms, which differ in what a person varied, each with a run for each seed."""

from __future__ import annotations

import logging
import shlex
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normbench.config.rules import RULES, is_rule, short_name
from normbench.config.schema import CLOSED, ROOT, list_unwritten, section_settings
from normbench.config.sections import CLASS_SECTIONS, GROUPS
from normbench.errors import UsageError
from normbench.processes import run_beside
from normbench.record.digests import find_altered
from normbench.record.directory import ENDED, RunDirectory
from normbench.record.files import read_json
from normbench.record.metrics import UNREADABLE, logged_lines
from normbench.record.shapes import CHOICE_FILE
from normbench.runs.load import flat, run_directories
from normbench.settings import Setting, key_of, show
from normbench.wording import PYTHON_WORDS

# Several settings may tell the same runs apart, and one of them names the arm. They are tried in this order, then all
# others by their names, and the learning rate last: it mostly follows from another setting, and was not chosen.
FIRST_KEYS = (
    "scheme", "norm", "placement", "weights", "model", "data", "optim", "schedule", "init",
    "model.depth", "model.width", "model.heads", "model.context", "data.batch_size",
)  # fmt: skip

LEARNING_RATE = "optim.lr"
TIE = "sweep.tie"
LARGEST_RATE = "rate/largest"  # the metric of a run whose learning rate grows

# Keys that tell no arms apart: the seed, where a run is kept and where it runs, what is shown, saved or probed.
ASIDE = (
    "seed", "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path", "experiment",
    "probes", "logger", "trainer.checkpoint_every", "trainer.keep_checkpoint", "trainer.shard",
    "trainer.recompute",
)  # fmt: skip


# Keys that analysis cannot do without, and that every version has written.
NEEDED = ("seed", "trainer.eval_batches")

# What a run has learned at the least, as a share of what a constant predictor loses: runs that are stuck end within 2 %
# of it on either side, and those that learn 20 % below; in between they have hardly begun.
LEARNED = 0.05

# Of errors alone it must be more: a network whose loss is no better is right in a class or two of ten by chance.
LEARNED_RIGHT = 0.25

ALL_RUNS = "all runs"  # the name of the arm where nothing varies


class Curve(NamedTuple):
    """What a run has logged under one tag.

    steps: (n,) integers, increasing. values: (n,) float64; NaN where the number was not finite.
    """

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RecordedRun:
    """One run as its directory tells it.

    Attributes:
        name: the path of the directory from the given folder on.
        path: the directory.
        status: as status.json has it, but `diverged` for a run that finished without a finite loss, and `finished` for
            one that diverged as its learning rate grew (`ramp`).
        step: the last one that it made.
        steps: how many it is to make.
        message: why it did not finish; empty where there is nothing to say.
        seed: of its weights and batches.
        config: by dotted path, and the option of each group by the group's name.
        summary: empty until the run has ended.
        sessions: of environment.json, one for each time that the run was started or continued.
        curves: of every tag of metrics.jsonl, up to a torn line.
        has_torn_line: whether the last line of metrics.jsonl is torn.
    """

    name: str
    path: Path
    status: str
    step: int
    steps: int
    message: str
    seed: int
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]
    curves: Mapping[str, Curve]
    has_torn_line: bool

    @property
    def session(self) -> Mapping[str, Any]:
        """Return the newest session."""
        return self.sessions[-1]

    @property
    def rules(self) -> list[str]:
        """Return the keys of its rules for places, such as `norm@qk`, in the order in which they were given."""
        return [key for key in self.session["choices"] if is_rule(key)]

    @property
    def data(self) -> Mapping[str, Any]:
        """Return what its newest session has recorded of its data."""
        return self.session.get("data") or {}

    @property
    def ledger(self) -> Mapping[str, Any]:
        """Return what it has recorded of the model and of a step; empty until it has ended."""
        return self.summary.get("ledger") or {}

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Return its final metrics; empty for a run that did not finish."""
        if self.status != "finished":
            return {}
        metrics: Mapping[str, float | None] = self.summary["metrics"]
        if self.ramp:  # at the rates of its end its losses say nothing
            return {LARGEST_RATE: metrics[LARGEST_RATE]} if LARGEST_RATE in metrics else {}
        return metrics

    @property
    def ramp(self) -> Mapping[str, Any]:
        """Return how far it came, if its learning rate grew until it no longer learned; else nothing."""
        return self.summary.get("ramp") or {}

    @property
    def step_ms(self) -> float:
        """Return the median of its step times, in milliseconds; NaN where none was taken."""
        return float(self.summary.get("step_time", {}).get("median_ms") or "nan")

    @property
    def operators(self) -> float:
        """Return how many operators a step gives to its device; NaN where they were not counted."""
        return float(self.ledger.get("operators_a_step") or "nan")

    @property
    def host_share(self) -> float:
        """Return the share of a step's time for which a GPU's host was at work on it; NaN where that is not known."""
        return float(self.ledger.get("host_share_of_step") or "nan")

    @property
    def ended(self) -> bool:
        """Tell whether it has ended, so that it is a result."""
        return self.status in ENDED

    @property
    def constant(self) -> Mapping[str, float]:
        """Return what a predictor that always says the same reaches on its data; empty where that is not recorded."""
        return dict(self.data.get("constant") or {})

    @cached_property
    def trained(self) -> bool | None:
        """Tell whether it is clearly better than a constant predictor, in loss or accuracy; None if not known.

        That of a run whose learning rate grew until it no longer learned is not.
        """
        known = list[bool]()
        usual_loss = self.constant.get("loss/val")
        for tag in ("loss/val", "loss/train"):
            loss = self.metrics.get(tag)
            if loss is not None and usual_loss is not None:
                known.append(loss < (1 - LEARNED) * usual_loss)
        right = self.metrics.get("accuracy/val")
        usually_right = self.constant.get("accuracy/val")
        if right is not None and usually_right is not None:
            known.append(1 - right < (1 - LEARNED_RIGHT) * (1 - usually_right))
        return any(known) if known else None

    def was_given(self, choice: Mapping[str, Any]) -> bool:
        """Tell whether it has the settings and the learning rate of a choice that a sweep has noted."""
        given = {**choice["arm"], LEARNING_RATE: choice["lr"]}
        for key, value in given.items():
            own = self.config.get(key)
            if canonical(str(own)) != canonical(str(value)):
                return False
        return True

    @property
    def task(self) -> str:
        """Return its kind of task."""
        return str(self.session["task"]["kind"])


@dataclass(frozen=True)
class Arm:
    """The runs that differ in nothing but the seed.

    Attributes:
        settings: its values of the settings that vary in the study.
        runs: by seed.
        rates_tried: among how many learning rates its own was chosen, by the runs that are reported; 1 if it was not.
    """

    settings: Mapping[str, Any]
    runs: tuple[RecordedRun, ...] = ()
    rates_tried: int = 1

    @cached_property
    def name(self) -> str:
        """Name it, such as `rmsnorm · pre`: options by their words, other settings as `lr=0.001`."""
        return name_arm(self.settings)

    @property
    def seeds(self) -> set[int]:
        """Return the seeds of its runs."""
        return {run.seed for run in self.runs}

    @property
    def finished(self) -> list[RecordedRun]:
        """Return the runs that finished."""
        return [run for run in self.runs if run.status == "finished"]

    @property
    def stuck(self) -> list[RecordedRun]:
        """Return the runs that finished and did not train."""
        return [run for run in self.runs if run.trained is False]

    @property
    def trained(self) -> bool:
        """Tell whether most of its runs trained, of those that finished."""
        return 2 * len(self.stuck) < max(len(self.finished), 1)

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Tell whether it has all of some settings."""
        return all(self.settings.get(key) == value for key, value in settings.items())


@dataclass(frozen=True)
class RecordedStudy:
    """Runs of one task, which may be compared.

    Attributes:
        folders: below which they were found.
        arms: in the order of their settings.
        varied: the settings that tell the arms apart.
        damaged: the name of each run that cannot be read, and why.
    """

    folders: tuple[Path, ...]
    arms: tuple[Arm, ...]
    varied: tuple[str, ...]
    damaged: tuple[tuple[str, str], ...] = ()

    @property
    def task(self) -> str:
        """Return the kind of task of its runs."""
        return self.runs[0].task

    @property
    def pairs(self) -> list[tuple[Arm, RecordedRun]]:
        """Return all runs, arm by arm, each with its arm."""
        found = []
        for arm in self.arms:
            for run in arm.runs:
                found.append((arm, run))
        return found

    @property
    def runs(self) -> list[RecordedRun]:
        """Return all runs, arm by arm."""
        found = list[RecordedRun]()
        for arm in self.arms:
            found += arm.runs
        return found

    @cached_property
    def finished(self) -> list[RecordedRun]:
        """Return the runs that finished, arm by arm."""
        return [run for run in self.runs if run.status == "finished"]

    @cached_property
    def noted(self) -> dict[Path, list[dict[str, Any]]]:
        """Return what sweeps with `sweep.lr=auto` have noted of how each arm's rate was chosen, by their folders."""
        folders = sorted({run.path.parent for run in self.runs})
        found = {}
        for folder in folders:
            found[folder] = read_choices(folder / CHOICE_FILE)
        return found

    @cached_property
    def choices(self) -> dict[Path, dict[str, Any]]:
        """Return what was noted of how each run's learning rate was chosen, by the path of the run."""
        found = {}
        for run in self.runs:
            for choice in self.noted[run.path.parent]:
                if run.was_given(choice):
                    found[run.path] = choice
        return found

    @property
    def fairly_chosen(self) -> bool:
        """Tell whether the learning rate of every run was chosen on data that are not reported."""
        return len(self.choices) == len(self.runs)

    @property
    def ramps(self) -> bool:
        """Tell whether the learning rate of every run grew until it no longer learned, and so took all rates."""
        return all(run.ramp for run in self.runs)

    @property
    def plans(self) -> list[list[str]]:
        """Return the words of each sweep that noted them beside the runs."""
        found = []
        for folder in {run.path.parent for run in self.runs}:
            for file in folder.glob(".sweep/plans/*.json"):
                note = read_json(file, {"words": [str]})
                if note:
                    found.append(note["words"])
        return found

    def command(self, **changes: str | None) -> str:
        """Return the command of the sweep that made these runs, with changes; empty where no sweep did, or several.

        changes: new values of settings; None to leave a setting out.
        """
        plans = self.plans
        if len(plans) != 1:
            return ""
        kept = []
        for word in plans[0]:
            key = key_of(word)
            if key == TIE:
                kept += leave_out_of_tie(word, changes)
            elif key not in changes and key != "sweep.report":
                kept.append(word)
        if not kept:
            return ""
        new = []
        for key, value in changes.items():
            if value is not None:
                new.append(f"{key}={value}")
        return shlex.join(["normbench", "sweep", *kept, *new])

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
    kept = [setting for setting in settings if key_of(setting) not in keys]
    if len(kept) == len(settings):
        return [word]
    return kept if len(kept) < 2 else [f"{TIE}={';'.join(kept)}"]


def read_studies(folders: Sequence[Path]) -> list[RecordedStudy]:
    """Return the runs below some folders as a study for each task; a run counts once, also below two of them.

    Raises:
        UsageError: a folder is not there or holds no runs, or no run has ended.
    """
    found = dict[Path, NamedDirectory]()
    for folder in folders:
        for name, one in run_directories(folder).items():
            found[one.path.resolve()] = NamedDirectory(name, one)
    every = list(found.values())
    half = len(every) // 2
    read_others = run_beside(lambda: read_all(every[half:]))
    results = read_all(every[:half])
    results += read_others()
    runs = list[RecordedRun]()
    damaged = list[tuple[str, str]]()
    for result in results:
        if isinstance(result, RecordedRun):
            runs.append(result)
        else:
            damaged.append((result.name, result.why))
    tasks = sorted({run.task for run in runs if run.ended})
    if not tasks:
        why = ""
        if damaged:
            name, reason = damaged[0]
            why = f": {name} is damaged, {reason}"
        where = ", ".join(str(folder) for folder in folders)
        raise UsageError(f"{where} holds no run that has ended{why}: wait for one, or give another folder")
    studies = []
    for task in tasks:
        own = [run for run in runs if run.task == task]
        studies.append(study_of(own, folders, damaged))
    return studies


@dataclass(frozen=True)
class NamedDirectory:
    """A run that is to be read. name: its path from the given folder on."""

    name: str
    directory: RunDirectory


@dataclass(frozen=True)
class DamagedRun:
    """A run that cannot be read, and why."""

    name: str
    why: str


def read_all(directories: Iterable[NamedDirectory]) -> list[RecordedRun | DamagedRun]:
    """Read runs; where one cannot be read, return why."""
    found = list[RecordedRun | DamagedRun]()
    for one in directories:
        try:
            found.append(read_run(one.directory, one.name))
        except ValueError as error:
            found.append(DamagedRun(one.name, str(error)))
    return found


def read_run(directory: RunDirectory, name: str) -> RecordedRun:
    """Read one run.

    Raises:
        ValueError: what it must have is missing or damaged.
    """
    record = directory.read_record()
    summary = record.summary
    state = {**record.status, **summary}
    sessions = record.sessions
    recorded = read_metrics(directory.metrics)
    config = {**read_config(record.configuration), **sessions[-1]["choices"]}
    if recorded.damage and (summary or recorded.curves):  # a run that has not ended may have no metrics yet
        raise ValueError(recorded.damage)
    directory.check_unaltered()
    if summary.get("ramp"):
        if state["status"] == "diverged":  # which is how such a run gives its result
            state["status"] = "finished"
    elif state["status"] == "finished":
        for tag in ("loss/val", "loss/test"):
            if summary["metrics"].get(tag, 0.0) is None:
                state.update(status="diverged", message=f"its final {tag} is not finite")
                break
    return RecordedRun(
        name=name,
        path=directory.path,
        status=state["status"],
        step=state["step"],
        steps=state["steps"],
        message=state.get("message") or "",
        seed=config["seed"],
        config=config,
        summary=summary,
        sessions=sessions,
        curves=recorded.curves,
        has_torn_line=recorded.is_torn,
    )


def read_choices(path: Path) -> list[dict[str, Any]]:
    """Return the learning rates that a sweep has chosen, one for each arm; none of a file that is not as it was."""
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


def read_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration by dotted path.

    A key that its version did not have may be missing, and values may be out of bounds that are stricter now.

    Raises:
        ValueError: it lacks a key that every run has, or has a value of a wrong type.
    """
    config = dict[str, Any]()
    for path, value in flat(tree).items():
        config[path.removeprefix(f"{RULES}.")] = value
    for key in NEEDED:
        if key not in config:
            raise ValueError(f"config.yaml is damaged (it has no {key})")
    check_types("", tree, ROOT)
    for section in (*CLOSED, *CLASS_SECTIONS):
        values = tree.get(section, {})
        if not isinstance(values, dict):
            raise ValueError(f"config.yaml is damaged ({section} is not a section)")
        if section in CLOSED:
            check_types(section, values, CLOSED[section])
        elif str(values.get("_target_")).startswith("normbench."):  # a person's own may have other settings by now
            check_types(section, values, section_settings(section, values) or {})
    return config


def check_types(section: str, values: Mapping[str, Any], known: Mapping[str, Setting]) -> None:
    """Refuse values of a section that are of a wrong type. known: its settings.

    Raises:
        ValueError: a value is; its message names it.
    """
    for name in known.keys() & values.keys():
        if not known[name].has_type(values[name]):
            key = f"{section}.{name}" if section else name
            wrong = f"{key}={show(values[name]):.100}"
            raise ValueError(f"config.yaml is damaged ({wrong}, where only {known[name].allowed} is allowed)")


@dataclass(frozen=True)
class RecordedMetrics:
    """What a metrics.jsonl holds, up to the first line that cannot be read.

    curves: by tag. is_torn: whether that is the last line, as a kill leaves it. damage: words for it, where more lines
    follow the one that cannot be read, or the file itself cannot.
    """

    curves: Mapping[str, Curve]
    is_torn: bool
    damage: str


def read_metrics(path: Path) -> RecordedMetrics:
    """Return what a metrics.jsonl holds."""
    try:
        lines = logged_lines(path)
    except OSError as error:
        return RecordedMetrics({}, is_torn=False, damage=f"metrics.jsonl cannot be read ({error.strerror})")
    points = defaultdict[str, list[tuple[float, float]]](list)
    good = 0  # lines
    for _, step, numbers in takewhile(lambda line: line.step != UNREADABLE, lines):
        good += 1
        for tag, value in numbers.items():
            points[tag].append((step, value))
    curves = {}
    for tag, own in points.items():
        steps, values = zip(*own, strict=True)
        curves[tag] = Curve(np.array(steps), np.array(values))
    unread = len(lines) - good
    damage = f"metrics.jsonl is damaged at line {good + 1} of {len(lines)}" if unread > 1 else ""
    return RecordedMetrics(curves, is_torn=unread == 1, damage=damage)


# ---- arms


def name_arm(settings: Mapping[str, Any]) -> str:
    """Name an arm by its settings: options by their words, others as `lr=0.001`."""
    words = []
    for key, value in settings.items():
        word = PYTHON_WORDS.get(str(value), str(value))
        if key not in GROUPS:
            word = f"{short_name(key)}={word}"
        words.append(word)
    return " · ".join(words) or ALL_RUNS


def study_of(
    runs: Sequence[RecordedRun], folders: Sequence[Path] = (), damaged: Sequence[tuple[str, str]] = ()
) -> RecordedStudy:
    """Gather runs of one task by the settings that vary; arms in the order of their settings, runs by seed."""
    runs = fill_in_unwritten(disambiguate_classes(runs))
    varied = varied_settings(runs)
    gathered = defaultdict[tuple[Any, ...], list[RecordedRun]](list)
    for run in sorted(runs, key=lambda run: (run.seed, run.name)):
        values = tuple(run.config.get(key) for key in varied)
        gathered[values].append(run)
    arms = []
    for values in sorted(gathered, key=sort_keys):
        settings = dict(zip(varied, values, strict=True))
        arms.append(Arm(settings, tuple(gathered[values])))
    return RecordedStudy(tuple(folders), tuple(arms), varied, tuple(damaged))


def disambiguate_classes(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return runs whose options are paths, `a.MyNorm` and `b.MyNorm`, where classes share a name and are not ours."""
    changes: list[dict[str, Any]] = [{} for _ in runs]
    for section in CLASS_SECTIONS:
        target = f"{section}._target_"
        paths = defaultdict[Any, set[Any]](set)
        for run in runs:
            name = run.config.get(section)
            paths[name].add(run.config.get(target))
        for run, change in zip(runs, changes, strict=True):
            path = str(run.config.get(target))
            is_ambiguous = len(paths[run.config.get(section)]) > 1
            if is_ambiguous and not path.startswith("normbench."):
                change[section] = path
    return change_configs(runs, changes)


def fill_in_unwritten(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return runs with what they are without, as it is as usual, where others have it: `weights=plain`, `gain0=1`."""
    keys = keys_in_configs(runs)
    changes = []
    for run in runs:
        unwritten = list_unwritten(run.config)
        changes.append({key: value for key, value in unwritten.items() if key in keys})
    return change_configs(runs, changes)


def change_configs(runs: Sequence[RecordedRun], changes: Sequence[Mapping[str, Any]]) -> list[RecordedRun]:
    """Return runs with other values in their configurations; those that were read stay as they are."""
    changed = []
    for run, change in zip(runs, changes, strict=True):
        changed.append(replace(run, config={**run.config, **change}) if change else run)
    return changed


def keys_in_configs(runs: Iterable[RecordedRun]) -> set[str]:
    """Return the settings that the configurations of runs have."""
    keys = set[str]()
    for run in runs:
        keys.update(run.config)
    return keys


def varied_settings(runs: Sequence[RecordedRun]) -> tuple[str, ...]:
    """Return the settings that tell the arms apart, groups first, without any that follows from those before it."""
    cells: list[Any] = [()] * len(runs)  # of each run: its values of the settings so far, nested
    varied = []
    for key in candidate_settings(runs):
        values = [run.config.get(key) for run in runs]
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


def sort_key(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key for values of any kind: none, numbers, then words."""
    is_word = not isinstance(value, int | float)
    return value is not None, is_word, str(value) if is_word else value


def sort_keys(values: Iterable[Any]) -> list[tuple[bool, bool, Any]]:
    """Return a sort key for values of several settings: the first one decides, then the next."""
    return list(map(sort_key, values))


def canonical(text: str) -> str:
    """Return one spelling of a value that can be written in several: 0.001 of 1e-3, True of true."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return {"null": "None", "true": "True", "false": "False"}.get(text, text.replace(" ", ""))


def join_first(names: Sequence[str], most: int = 12, between: str = ", ") -> str:
    """Join names; of many only the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more
