"""Which run a path means, and which runs lie below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from normbench.errors import UsageError
from normbench.record.directory import RunDirectory, extended_runs
from normbench.settings import either, nearest
from normbench.wording import count

LISTED = 5  # runs that a message names

LEFT_OUT = re.compile(r"\.old\d+$|(^|/)\.[^/]")  # runs that `rerun=true` has set aside, and hidden folders


def find_run(path: str | os.PathLike[str]) -> Path:
    """Return the directory of the one run that a path means; the path itself where there is none.

    It means the run in it, the only one below it, or the only one whose directory begins so: `outputs/tour`,
    `outputs/tour/layernorm-pre`.

    Raises:
        UsageError: it means several; with them.
    """
    place = Path(os.path.expanduser(path))
    return take_only(runs_meant(place), place)


def find_parent(path: str | os.PathLike[str]) -> Path:
    """Return the directory of the run that `extend=PATH` means, as `find_run` does, and leave out its extensions.

    An extension lies beside its parent, in the same folder and with the same beginning of its name: so the same command
    finds the parent again once it has begun the extension.

    Raises:
        UsageError: it means several; with them.
    """
    place = Path(os.path.expanduser(path))
    meant = runs_meant(place)
    if len(meant) > 1:
        extending_none = [run for run in meant if not extended_runs(RunDirectory(run).sessions(), None)]
        meant = extending_none or meant
    return take_only(meant, place)


def runs_meant(place: Path) -> list[Path]:
    """Return the runs that a path may mean: itself, those below it, or those whose directories begin so."""
    if RunDirectory(place).config.exists():
        return [place]
    runs: list[Path] = []
    if place.is_dir():
        with suppress(UsageError):
            runs = [place / name for name in run_directories(place)]
    elif place.parent.is_dir():
        for sibling in sorted(place.parent.iterdir()):
            is_run = sibling.name.startswith(place.name) and RunDirectory(sibling).config.exists()
            if is_run and not LEFT_OUT.search(sibling.name):
                runs.append(sibling)
    return runs


def take_only(meant: Sequence[Path], place: Path) -> Path:
    """Return the only one of the runs that a path means; the path itself where there is none.

    Raises:
        UsageError: there are several; with them.
    """
    if len(meant) > 1:
        listed = [str(candidate) for candidate in meant[:LISTED]]
        more = f" and {len(meant) - LISTED} more" if len(meant) > LISTED else ""
        given = f"{place} stands for {count(len(meant), 'run')}"
        raise UsageError(f"{given}, and this takes one: give {either(listed)}{more}, or a beginning that only one has")
    return meant[0] if meant else place


def nearest_folder(folder: Path) -> str:
    """Return `did you mean X? ` for the folder whose name is most like that of one which is not there; else nothing."""
    if not folder.parent.is_dir():
        return ""
    return nearest(str(folder), [str(sibling) for sibling in folder.parent.iterdir() if sibling.is_dir()])


def run_directories(folder: str | os.PathLike[str]) -> dict[str, RunDirectory]:
    """Return the runs below a folder, or the one that it is, by their paths from the folder on.

    Left out are those that `rerun=true` has set aside (`RUN.old1`), and those in hidden folders.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    base = Path(os.path.expanduser(folder))
    if not base.is_dir():
        cure = f"{nearest_folder(base)}train something first, or give the folder of your runs"
        raise UsageError(f"{folder} is not a folder: {cure}")
    runs: dict[str, RunDirectory] = {}
    paths = [config.parent.relative_to(base) for config in base.rglob("config.yaml")]
    for path in sorted(paths):
        if LEFT_OUT.search(str(path)):
            continue
        run = RunDirectory(base / path)
        if run.status.exists() or run.summary.exists():
            runs[str(path) if path.name else base.name] = run
    if not runs:
        raise UsageError(f"{folder} holds no runs: train something first, or give the folder of your runs")
    return runs
