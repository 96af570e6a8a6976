"""Reads the record of a run: the one way in for whoever relies on what a run has left. Nothing in it is run as code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.config.schema import CLOSED, ROOT, section_settings
from normbench.config.sections import CLASS_SECTIONS
from normbench.config.trust import check_trusted
from normbench.errors import UsageError, explain
from normbench.record.directory import ENDED, RunDirectory
from normbench.record.files import read_json
from normbench.settings import Setting, show

NEEDED = ("seed", "trainer.eval_batches")  # keys that nobody can do without, and that every version has written


class DamagedRun(UsageError):
    """A run whose record is missing or damaged, or was changed after the run had ended.

    Attributes:
        reason: which file is, and how.
    """

    def __init__(self, path: Path, reason: str) -> None:
        cure = "make the run again with rerun=true, or remove its folder and give its command again"
        super().__init__(f"{path} is damaged, {reason}: {cure}")
        self.reason = reason


@dataclass(frozen=True)
class Record:
    """What the files of a run hold, beside what it has logged.

    Attributes:
        configuration: resolved.
        sessions: the processes that have worked on the run, the first one first: one at least.
        status: how it stands; empty where that cannot be read.
        summary: empty until the run has ended.
    """

    configuration: dict[str, Any]
    sessions: list[dict[str, Any]]
    status: dict[str, Any]
    summary: dict[str, Any]


def read_record(run: RunDirectory, trust: bool = True) -> Record:
    """Return what the files of a run hold, when all of them are whole and as the run has left them.

    trust: whether the run may have classes that are neither normbench's nor torch's; to who runs none of them, as a
    report does, it may.

    Raises:
        DamagedRun: a file is missing or damaged, or was changed after the run had ended.
        UsageError: the run has such classes, and no trust.
    """
    record = read_whole(run)
    if not trust:
        try:
            check_trusted(record.configuration, run.path)
        except (AttributeError, LookupError, TypeError) as error:
            raise DamagedRun(run.path, f"{run.config.name} lacks a section ({explain(error)})") from error
    check_unaltered(run)
    return record


def read_whole(run: RunDirectory) -> Record:
    """Return what the files of a run hold.

    Raises:
        DamagedRun: one that the run must have by now is missing or damaged.
    """
    status = read_json(run.status) or {}
    has_ended = run.summary.exists() or status.get("status") in ENDED
    summary = read_json(run.summary) or {}
    record = Record(run.configuration(), run.sessions(), status, summary)
    needed = {run.environment: record.sessions, run.config: record.configuration}
    if has_ended:
        needed[run.summary] = summary
    elif not status:
        needed[run.status] = status
    for path, content in needed.items():
        if not content:
            raise DamagedRun(run.path, f"{path.name} is missing or damaged")
    return record


def check_unaltered(run: RunDirectory) -> None:
    """Refuse a run that has ended and whose record was changed after that.

    Raises:
        DamagedRun: it was.
    """
    if not run.summary.exists():
        return
    try:
        altered = run.find_altered()
    except (OSError, ValueError) as error:
        raise DamagedRun(run.path, f"{run.summary.name} cannot be read ({explain(error)})") from error
    if altered:
        raise DamagedRun(run.path, f"{' and '.join(altered)} changed after the run had ended")


def check_configuration(run: RunDirectory, tree: Mapping[str, Any]) -> None:
    """Refuse a configuration whose settings cannot be compared: it lacks a key which every run has, or a type is wrong.

    A key that its version did not have may be missing, and values may be out of bounds that are stricter now: whoever
    builds a model of it checks each value.

    Raises:
        DamagedRun: it is such a one.
    """
    try:
        check_needed(tree)
        check_types("", tree, ROOT)
        for section in (*CLOSED, *CLASS_SECTIONS):
            values = tree.get(section, {})
            if not isinstance(values, dict):
                raise ValueError(f"{section} is not a section")
            if section in CLOSED:
                check_types(section, values, CLOSED[section])
            elif str(values.get("_target_")).startswith("normbench."):  # a person's own may have other settings by now
                check_types(section, values, section_settings(section, values) or {})
    except ValueError as error:
        raise DamagedRun(run.path, f"{run.config.name} is damaged ({error})") from error


def check_needed(tree: Mapping[str, Any]) -> None:
    """Refuse a configuration that lacks a key which every run has.

    Raises:
        ValueError: it does; the message names the key.
    """
    for key in NEEDED:
        section, _, name = key.rpartition(".")
        values = tree.get(section) if section else tree
        if not isinstance(values, Mapping) or name not in values:
            raise ValueError(f"it has no {key}")


def check_types(section: str, values: Mapping[str, Any], known: Mapping[str, Setting]) -> None:
    """Refuse values of a section that are of a wrong type. known: its settings.

    Raises:
        ValueError: a value is; the message names it.
    """
    for name in known.keys() & values.keys():
        if not known[name].has_type(values[name]):
            key = f"{section}.{name}" if section else name
            wrong = f"{key}={show(values[name]):.100}"
            raise ValueError(f"{wrong}, where only {known[name].allowed} is allowed")
