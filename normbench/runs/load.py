"""Reads runs again: trained models, and tables of all runs below a folder. torch is imported for models alone."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from normbench.config.recipe import Recipe
from normbench.config.rules import RULES, is_rule
from normbench.config.schema import blame_file, check_rules, check_section, list_unwritten
from normbench.config.sections import BY_NAME, GROUPS
from normbench.config.trust import check_trusted
from normbench.errors import UsageError, explain
from normbench.record.directory import RECORD, Record, RunDirectory, extended_runs
from normbench.record.files import read_json
from normbench.record.metrics import UNREADABLE, LoggedLine, logged_lines
from normbench.record.shapes import DIGESTS
from normbench.settings import drop_keys, either, flat, nearest

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from normbench.types import Data, Model, Task

Which = Literal["last", "best"]

LOADED = ("norm", "placement", "weights", "model", "data")  # sections of the configuration that decide what is loaded

LOGGED = "metrics.jsonl"  # which `load_metrics` alone reads
MOST = 3  # files that a warning names
LISTED = 5  # runs that a message names

MEANINGS = ("classes", "vocabulary")  # keys in a description of data that say what predictions stand for

LEFT_OUT = re.compile(r"\.old\d+$|(^|/)\.[^/]")  # runs that `rerun=true` has set aside, and hidden folders

# Keys of a summary that make no column: they are among the first columns already, or say nothing in a table.
PLACED = {"status", "step", "steps", "seed", "choices", "metrics", "data", DIGESTS}


# ---- one run's model and data


class TrainedRun(RunDirectory):
    """A run directory with the configuration that made it, every value checked.

    Args:
        path: the directory, or what `find_run` takes for it.
        trust: whether it may have classes that are neither normbench's nor torch's, whose code runs.

    Raises:
        UsageError: the directory is not there, holds no run, a damaged one, one that was changed after its end, or one
            with such classes and no trust.
    """

    def __init__(self, path: str | os.PathLike[str], trust: bool = False) -> None:
        super().__init__(find_run(path))
        self.trust = trust
        if not self.config.exists():
            raise UsageError(f"{path} holds no run: give the directory of one, such as those that normbench runs lists")
        self.tree = read_trusted(self, trust).configuration
        with blame_file(self.config):
            for section in LOADED:
                if section in self.tree or not BY_NAME[section].absent:
                    self.tree[section] = check_section(section, self.tree[section])
            if RULES in self.tree:
                self.tree[RULES] = check_rules(self.tree)

    def data(self) -> Data:
        """Return the data, decoded or from their cache; if their folder is gone, from that of NORMBENCH_DATA.

        Raises:
            UsageError: they are not there, or their classes or tokens are not those that the model was trained on.
        """
        from normbench import build

        section = dict(self.tree["data"])
        root = section.get("root")
        if root and not Path(os.path.expanduser(root)).is_dir():
            section["root"] = os.environ.get("NORMBENCH_DATA", root)
        recipe = Recipe({**self.tree, "data": section})
        data = build.make_data(recipe, self.tree["seed"])
        data = data.as_of(self.sessions()[-1]["data"].get("fingerprint", ""))
        if self.task() != data.task or not self.means_the_same(data):
            what = f"{self.path} was trained on other data or another vocabulary than are there now"
            raise UsageError(f"{what}: bring those back, or train again with rerun=true")
        return data

    def means_the_same(self, data: Data) -> bool:
        """Tell whether predictions stand for the same classes or tokens as when the model was trained."""
        before = self.sessions()[-1]["data"]
        now = data.describe()
        noted = [key for key in MEANINGS if key in before]
        return all(before[key] == now.get(key) for key in noted)

    def task(self) -> Task:
        """Return what the data ask of the model: as the run noted it.

        Raises:
            UsageError: it noted something else.
        """
        from normbench.types import Task

        try:
            return Task.from_record(self.sessions()[-1]["task"])
        except (LookupError, TypeError, ValueError) as error:
            reason = f"{self.environment.name} names no task ({explain(error)})"
            raise UsageError(say_damaged(self.path, reason)) from error


def read_trusted(run: RunDirectory, trust: bool) -> Record:
    """Return what the files of a run hold: the door for whoever loads a run, or goes on with it.

    Raises:
        UsageError: a file is missing or damaged, or was changed after the run had ended; or it has classes that are
            neither normbench's nor torch's, and no trust.
    """
    with blame_record(run):
        record = run.read_record()
        if not trust:
            check_trusted(record.configuration, run.path)
        run.check_unaltered()
    return record


@contextmanager
def blame_record(run: RunDirectory) -> Iterator[None]:
    """Say of what goes wrong inside that the record of a run is damaged.

    Raises:
        UsageError: with the file.
    """
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(say_damaged(run.path, str(error))) from error
    except (AttributeError, LookupError, OSError, TypeError) as error:
        raise UsageError(say_damaged(run.path, f"{run.config.name} lacks a section ({explain(error)})")) from error


def say_damaged(path: Path, reason: str) -> str:
    """Say that the record of a run is damaged, and what to do."""
    cure = "make the run again with rerun=true, or remove its folder and give its command again"
    return f"{path} is damaged, {reason}: {cure}"


def load_model(run: TrainedRun, which: Which = "last", ema: bool = False, device: str | torch.device = "cpu") -> Model:
    """Return a run's model with its trained weights, in evaluation mode; torch's random numbers stay as they are.

    Raises:
        UsageError: the run has no such weights, or they do not fit.
    """
    from normbench import build
    from normbench.training.checkpoint import Checkpoints
    from normbench.training.devices import make_current

    if which not in ("last", "best"):
        raise UsageError(f"which={which} is unknown: use last or best")
    state = Checkpoints(run).load(lambda line: warnings.warn(line, stacklevel=2), best=which == "best")
    if state is None:
        cure = "it must be written and whole; train the run further with its own command, or again with rerun=true"
        raise UsageError(f"{run.path} has no {which} checkpoint: trainer.keep_checkpoint={which} keeps it, and {cure}")
    if ema and state.get("average") is None:
        raise UsageError(f"{run.path} has no averaged weights: the last ones of a run with trainer.ema=0.999 have them")
    target = build.resolve_device(str(device))
    try:
        model, _ = build.build_model(Recipe(run.tree), run.task(), run.tree["seed"])
        weights = state["average"]["model"] if ema else state["model"]
        model.load_state_dict(weights)
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        if isinstance(error, UsageError) or run.trust:  # whose author needs the line
            raise
        raise UsageError(f"{run.path} cannot be loaded ({explain(error)}): its files do not fit each other") from error
    make_current(target)
    return model.to(target).eval()


# ---- tables of runs


def load_runs(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return a row for each run below a folder; see `normbench.load_runs`.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    altered: list[str] = []
    for name, run in run_directories(folder).items():
        summary = read_json(run.summary) or {}
        if summary:
            files = [file for file in RECORD if file != LOGGED]
            altered += altered_files(name, run, files)
        rows.append(row_of(name, run, summary))
    warn_of(altered)
    columns: dict[str, None] = {}  # each once, in their order
    for row in rows:
        columns.update(dict.fromkeys(row))
    for row in rows:
        for column, value in list_unwritten(row).items():
            if column in columns:
                row[column] = value
    frame = pd.DataFrame(rows, columns=[*columns])
    return frame.assign(heartbeat=pd.to_datetime(frame["heartbeat"], unit="s", utc=True))


def row_of(name: str, run: RunDirectory, summary: dict[str, Any]) -> dict[str, Any]:
    """Return a run's row of the table: how it stands, what was chosen, its configuration, and its results."""
    status = read_json(run.status) or {}
    stands = summary or status
    row = {
        "run": name,
        "path": str(run.path),
        "status": stands.get("status"),
        "step": stands.get("step"),
        "steps": stands.get("steps"),
        "heartbeat": status.get("heartbeat"),
    }
    sessions = run.sessions()
    chosen = sessions[-1].get("choices", {}) if sessions else {}
    for group in (*GROUPS, *filter(is_rule, chosen)):
        if group in chosen:
            row[group] = None if chosen[group] == "None" else chosen[group]
    for key, value in flat(run.configuration()).items():
        if not key.endswith("_partial_"):  # which is Hydra's
            row[key] = value
    row |= summary.get("metrics", {})
    others = drop_keys(summary, *PLACED)
    row |= flat(others)
    return row


def load_metrics(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return what the runs below a folder have logged, in long form: `run`, `step`, `tag`, `value`.

    What was not finite is null in metrics.jsonl; its last line may be half written.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    import pandas as pd

    found: list[tuple[str, float, str, float]] = []
    altered: list[str] = []
    for name, run in run_directories(folder).items():
        if read_json(run.summary):
            altered += altered_files(name, run, [LOGGED])
        lines: list[LoggedLine] = []
        with suppress(OSError):
            lines = logged_lines(run.metrics)
        for line in lines:
            if line.step == UNREADABLE:
                break
            for tag, value in line.numbers.items():
                found.append((name, line.step, tag, value))
    warn_of(altered)
    frame = pd.DataFrame(found, columns=["run", "step", "tag", "value"])
    return frame.astype({"run": "category", "step": "int64", "tag": "category", "value": "float64"})


def altered_files(name: str, run: RunDirectory, files: Sequence[str]) -> list[str]:
    """Return which files of a run that has ended are not as it left them, by their paths from `name` on."""
    with suppress(OSError, ValueError):  # what cannot be read is missing in the table
        return [f"{name}/{file}" for file in run.find_altered(files)]
    return []


def warn_of(altered: Sequence[str]) -> None:
    """Warn of files that were changed after their run; the table has their numbers as they are now."""
    if altered:
        files = ", ".join(altered[:MOST])
        if len(altered) > MOST:
            files += f" and {len(altered) - MOST} more"
        what = f"{files}: changed after the run had ended, so numbers may not be what was measured"
        warnings.warn(f"{what}; make such a run again with rerun=true", stacklevel=4)


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
        meant = [each for each in meant if not extended_runs(RunDirectory(each).sessions(), None)] or meant
    return take_only(meant, place)


def runs_meant(place: Path) -> list[Path]:
    """Return the runs that a path may mean: itself, those below it, or those whose directories begin so."""
    if RunDirectory(place).config.exists():
        return [place]
    found: list[Path] = []
    if place.is_dir():
        with suppress(UsageError):
            found = [place / name for name in run_directories(place)]
    elif place.parent.is_dir():
        for sibling in sorted(place.parent.iterdir()):
            is_run = sibling.name.startswith(place.name) and RunDirectory(sibling).config.exists()
            if is_run and not LEFT_OUT.search(sibling.name):
                found.append(sibling)
    return found


def take_only(meant: Sequence[Path], place: Path) -> Path:
    """Return the only one of the runs that a path means; the path itself where there is none.

    Raises:
        UsageError: there are several; with them.
    """
    if len(meant) > 1:
        listed = [str(each) for each in meant[:LISTED]]
        more = f" and {len(meant) - LISTED} more" if len(meant) > LISTED else ""
        given = f"{place} stands for {len(meant):,} runs"
        raise UsageError(f"{given}, and this takes one: give {either(listed)}{more}, or a beginning that only one has")
    return meant[0] if meant else place


def nearest_folder(folder: Path) -> str:
    """Return `did you mean X? ` for the folder whose name is most like that of one which is not there; else nothing."""
    if not folder.parent.is_dir():
        return ""
    return nearest(str(folder), [str(each) for each in folder.parent.iterdir() if each.is_dir()])


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
    found: dict[str, RunDirectory] = {}
    paths = [config.parent.relative_to(base) for config in base.rglob("config.yaml")]
    for path in sorted(paths):
        if LEFT_OUT.search(str(path)):
            continue
        run = RunDirectory(base / path)
        if run.status.exists() or run.summary.exists():
            found[str(path) if path.name else base.name] = run
    if not found:
        raise UsageError(f"{folder} holds no runs: train something first, or give the folder of your runs")
    return found
