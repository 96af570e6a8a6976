"""How the runs of a sweep stand, by their directories and the sweep's own notes in `.sweep`, and how that is shown.

On a terminal the display is live; elsewhere it is printed in lines.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from normbench.config.sections import GROUPS
from normbench.config.trust import caution, needs_trust
from normbench.errors import HeldElsewhere
from normbench.record.directory import RunDirectory, fingerprint
from normbench.record.files import inside, make_folder, read_form, read_json, write_json
from normbench.settings import printable
from normbench.sweep.words import is_own
from normbench.wording import fixed, step_of, whole

LOOK_SECONDS = 1.0
LINE_SECONDS = 60.0  # at most, between two lines of a log


@dataclass(frozen=True)
class Entry:
    """One run in the list of those that a sweep makes.

    Attributes:
        arm: what varies, without the seed.
        words: those of the `train` command that makes it, or of the `sweep` command for a run of a stack.
    """

    run: str
    arm: Mapping[str, str]
    seed: int
    steps: int
    words: Sequence[str]


@dataclass(frozen=True)
class Plan:
    """What is noted of a sweep.

    Attributes:
        words: of its command; none where it is part of another sweep.
        asked: names of the runs that the words ask for.
        runs: those that it makes; none where learning rates are still to be chosen.
    """

    words: list[str]
    asked: list[str]
    runs: list[Entry]


@dataclass(frozen=True)
class Standing:
    """How a run stands.

    Attributes:
        loss: the final validation loss.
        cause: why it failed.
    """

    entry: Entry
    state: Literal["finished", "diverged", "failed", "running", "waiting"]
    step: int = 0
    loss: float | None = None
    cause: str = ""

    @property
    def over(self) -> bool:
        """Tell whether nothing is left to do on it."""
        return self.state in ("finished", "diverged", "failed")


class SweepFolder:
    """The runs of a folder and what is noted about them. Nothing is created before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = path / ".sweep"
        self.plans = self.notes / "plans"
        self.failures = self.notes / "failures"

    def command(self, words: Sequence[str] = ()) -> str:
        """Return the command that goes on with the sweeps of the folder.

        Args:
            words: those that the person has given or trusted. Words that are only noted in the folder trust nothing.
        """
        command = ["normbench", "sweep", "--resume", str(self.path)]
        if any(needs_trust(word) for word in words):
            command.append("--trust")
        return shlex.join(command)

    def write_plan(self, entries: Iterable[Entry], words: Sequence[str] = (), asked: Iterable[str] = ()) -> None:
        """Note which runs a sweep makes, for `--watch` and `--resume`; the same runs make the same file.

        Args:
            entries: the runs; if there are none, those that are noted already stay.
            words: of the sweep.
            asked: names of the runs that the words ask for, where learning rates are still to be chosen.
        """
        runs = [Entry(entry.run, entry.arm, entry.seed, entry.steps, entry.words) for entry in entries]
        names = sorted(asked) or sorted(entry.run for entry in runs)
        digest = fingerprint({"runs": names})
        path = self.plans / f"{digest}.json"
        before = read_form(path, Plan)
        if not runs and before:
            runs = before.runs
        make_folder(self.path, ".sweep", "plans")
        write_json(path, asdict(Plan(list(words), names, runs)))

    def read_notes(self) -> list[Plan]:
        """Return what is noted of each sweep that was started on this folder, the last one last."""
        paths = sorted(self.plans.glob("*.json"), key=lambda path: path.stat().st_mtime)
        notes = [read_form(path, Plan) for path in paths]
        return [note for note in notes if note]

    def damaged_notes(self) -> list[Path]:
        """Return the files of notes that cannot be read: which runs they plan is not known."""
        return [path for path in sorted(self.plans.glob("*.json")) if not read_form(path, Plan)]

    def read_plans(self) -> list[Entry]:
        """Return the runs of all sweeps that were started on this folder, each once."""
        entries: dict[str, Entry] = {}
        for note in self.read_notes():
            for entry in note.runs:
                entries[entry.run] = entry
        return list(entries.values())

    @contextmanager
    def announce_work(self) -> Iterator[None]:
        """Let others know, inside the `with`, that a sweep is working on the folder."""
        with ExitStack() as stack:
            with suppress(HeldElsewhere, OSError):  # another sweep lets them know already
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(RunDirectory(self.path).hold())
            yield

    def is_worked_on(self) -> bool:
        """Tell whether a sweep is working on the folder."""
        return RunDirectory(self.path).is_held()

    def missing(self) -> dict[str, str]:
        """Return the planned runs that have no directory, and why each failed; empty: it has not begun."""
        missing: dict[str, str] = {}
        for entry in self.read_plans():
            if not (self.path / entry.run).is_dir():
                missing[entry.run] = self.failure(entry.run)
        return missing

    def note_failure(self, name: str, cause: str, details: str = "") -> None:
        """Note why a run has failed.

        Args:
            cause: in one line.
            details: what it has printed, and a traceback.
        """
        make_folder(self.path, ".sweep", "failures")
        write_json(self.failures / f"{name}.json", {"cause": cause, "details": details})

    def forget_failure(self, name: str) -> None:
        """Let a failed run be tried again."""
        inside(self.path, ".sweep", "failures", f"{name}.json").unlink(missing_ok=True)

    def failure(self, name: str) -> str:
        """Return why a run has failed; empty: it has not."""
        noted = read_json(self.failures / f"{name}.json") or {}
        return str(noted.get("cause", ""))

    def read_standing(self, entry: Entry) -> Standing:
        """Return how a run stands, and how far it is."""
        directory = RunDirectory(self.path / entry.run)
        summary = directory.read_result()
        if summary:
            loss = summary["metrics"].get("loss/val")
            return Standing(entry, summary["status"], summary["step"], loss)
        status = read_json(directory.status) or {}
        step = int(status.get("step", 0))
        if directory.is_held():
            return Standing(entry, "running", step)
        cause = self.failure(entry.run)
        if cause:
            return Standing(entry, "failed", step, cause=cause)
        return Standing(entry, "waiting", step)


def missing_below(folders: Sequence[Path]) -> dict[str, str]:
    """Return the runs that have no directory of those that sweeps planned, and why each failed; empty: not begun.

    The sweeps are those on the folders, and on the folders in them.
    """
    missing: dict[str, str] = {}
    for sweep in sweeps_below(folders):
        missing |= sweep.missing()
    return missing


def sweeps_below(folders: Sequence[Path]) -> list[SweepFolder]:
    """Return folders, and those in them that have been swept."""
    swept = set(folders)
    for folder in folders:
        for path in folder.glob("*/.sweep"):
            swept.add(path.parent)
    return [SweepFolder(folder) for folder in sorted(swept)]


def say_damaged_notes(console: Console, sweeps: Iterable[SweepFolder]) -> None:
    """Say which notes of sweeps cannot be read, since runs that they plan are counted nowhere."""
    for sweep in sweeps:
        for path in sweep.damaged_notes():
            cure = "give the sweep's command again, which writes it anew"
            say(console, f"{printable(str(path))} is damaged, so runs that it planned are not counted: {cure}")


def arm_name(arm: Mapping[str, str]) -> str:
    """Return the name of an arm, such as `rmsnorm · pre · optim.lr=0.001`; options and classes stand without a key."""
    words = []
    for key, value in arm.items():
        is_choice = key in GROUPS or key.endswith("._target_")
        words.append(value if is_choice else f"{key}={value}")
    return " · ".join(words) or "all runs"


# ---- what a person sees


class View:
    """Shows how runs stand.

    On a terminal: a bar for all and one for each run that is running. Elsewhere: a line when a run ends, and one a
    minute.
    """

    def __init__(self, console: Console, folder: SweepFolder, entries: Sequence[Entry]) -> None:
        self.console = console
        self.folder = folder
        self.entries = entries
        self.over: dict[str, Standing] = {}  # these are read once
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            speed_estimate_period=3600,
            refresh_per_second=1,
        )
        total = sum(entry.steps for entry in entries)
        self.whole = self.bars.add_task("", total=total, completed=steps_done(self.read()))
        self.last_shown = float("-inf")
        self.last_line = float("-inf")

    def read(self) -> list[Standing]:
        """Return how all runs stand now."""
        standings = []
        for entry in self.entries:
            standing = self.over.get(entry.run) or self.folder.read_standing(entry)
            if standing.over:
                self.over[entry.run] = standing
            standings.append(standing)
        return standings

    def show(self, at_once: bool = False) -> None:
        """Show how the runs stand, at most once a second unless at once."""
        now = time.monotonic()
        if now - self.last_shown < LOOK_SECONDS and not at_once:
            return
        self.last_shown = now
        known = set(self.over)
        standings = self.read()
        self.bars.update(self.whole, description=summarize(standings), completed=steps_done(standings))
        if self.bars.disable:
            ended = []
            for standing in standings:
                if standing.over and standing.entry.run not in known:
                    ended.append(standing)
            self.print_lines(ended)
        else:
            running = [standing for standing in standings if standing.state == "running"]
            self.draw_bars(running)

    def draw_bars(self, running: Sequence[Standing]) -> None:
        """Draw a bar for each running run, as many as there is room for, below that of all."""
        for task in self.bars.task_ids[1:]:
            self.bars.remove_task(task)
        room = max(3, self.console.size.height - 4)
        for standing in running[:room]:
            self.bars.add_task(describe(standing), total=standing.entry.steps, completed=standing.step)
        self.bars.start()

    def print_lines(self, ended: Sequence[Standing]) -> None:
        """Print a line for each run that has just ended, or one on all runs if the last line is long ago."""
        lines = [describe(standing) for standing in ended]
        if not lines and self.last_shown - self.last_line > LINE_SECONDS:
            lines = [""]
        whole = self.bars.tasks[0]
        left = ""
        if whole.time_remaining:
            left = f"{timedelta(seconds=whole.time_remaining)} left"
        for line in lines:
            self.last_line = self.last_shown
            parts = [part for part in (whole.description, line, left) if part]
            say(self.console, "  ".join(parts))

    def close(self) -> None:
        """Leave the last state on the screen."""
        self.show(at_once=True)
        self.bars.stop()


def steps_done(standings: Sequence[Standing]) -> int:
    """Return how many steps are done; a run that is over counts in full."""
    done = 0
    for standing in standings:
        done += standing.entry.steps if standing.over else standing.step
    return done


def summarize(standings: Sequence[Standing]) -> str:
    """Return how many runs are over, and how many are in some states, such as `5/8 runs  1 diverged  2 running`."""
    counts = Counter(standing.state for standing in standings)
    over = [standing for standing in standings if standing.over]
    parts = [f"{len(over)}/{len(standings)} runs"]
    for state in ("diverged", "failed", "running"):
        if counts[state]:
            parts.append(f"{counts[state]} {state}")
    return "  ".join(parts)


def describe(standing: Standing) -> str:
    """Return one line on a run: its arm and seed, how far it is, and its loss."""
    entry = standing.entry
    done = step_of(standing.step, entry.steps)
    if standing.over:
        done = standing.state
    loss = "" if standing.loss is None else f" loss {fixed(standing.loss, 4)}"
    return f"{arm_name(entry.arm)} · seed {entry.seed} {done}{loss}"


def say_done(console: Console, folder: SweepFolder, standings: Sequence[Standing], command: str) -> None:
    """Say that a sweep is over, and what can be done next.

    Args:
        command: that goes on with it.
    """
    say(console, f"{summarize(standings)} in {folder.path}")
    if any(folder.path.glob("*/events.out.tfevents.*")):
        show_curves = shlex.join(["normbench", "tensorboard", str(folder.path)])
        say(console, f"look at the curves: {show_curves}")
    has_results = any(standing.state != "failed" for standing in standings)
    if has_results:
        say(console, f"more seeds or arms: {command} KEY=VALUES sweep.extend=true")


def say(console: Console, line: str) -> None:
    """Print a line as it is: unwrapped, and without colours or markup."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


# ---- tables


def show_arms(console: Console, folder: Path, arms: Mapping[str, Sequence[Standing]]) -> None:
    """Print how the runs of each arm stand."""
    table = Table("arm", "seeds", "to do", "done", "failed", box=SIMPLE_HEAD, pad_edge=False)
    table.title = Text(str(folder), "bold")
    table.title_justify = "left"
    everything: list[Standing] = []
    for name, standings in arms.items():
        add_arm(table, name, standings)
        everything += standings
    table.add_section()
    add_arm(table, f"in all: {whole(len(arms))}", everything)
    console.print(table)


def add_arm(table: Table, name: str, standings: Sequence[Standing]) -> None:
    """Add a row on some runs: their seeds, and how many are to do, done and failed."""
    counts, seeds = Counter[str](), set[int]()
    for standing in standings:
        counts[standing.state] += 1
        seeds.add(standing.entry.seed)
    done = counts["finished"] + counts["diverged"]
    failed = counts["failed"]
    to_do = len(standings) - done - failed
    seeds_in_order = ", ".join(map(str, sorted(seeds)))
    table.add_row(Text(name), seeds_in_order, str(to_do), str(done), str(failed))


def show_failures(failed: Sequence[Standing], command: str, are_given: bool = True) -> int:
    """Print why runs have failed, if any, and for each cause a command that repeats one; return the exit status.

    Args:
        command: that goes on with all.
        are_given: whether the person has given or trusted the words of the runs, so that they need no warning.
    """
    if not failed:
        return 0
    by_cause: dict[str, list[Standing]] = {}
    for standing in failed:
        by_cause.setdefault(standing.cause, []).append(standing)

    console = Console()
    table = Table("failed run", "cause", box=SIMPLE_HEAD, pad_edge=False)
    for cause, standings in by_cause.items():
        name = standings[0].entry.run
        if len(standings) > 1:
            name += f" and {whole(len(standings) - 1)} more"
        table.add_row(Text(name), Text(cause))
    console.print(table)

    for standings in by_cause.values():
        entry = standings[0].entry
        which = "it" if len(by_cause) == 1 else entry.run
        repeat = repeat_command(entry)
        warning = "" if are_given else caution(repeat)
        say(console, f"repeat {which}{warning}: {repeat}")
    say(console, f"try all of them again: {command} sweep.retry_failed=true")
    return 1


def repeat_command(entry: Entry) -> str:
    """Return the command that makes one failed run again, by itself."""
    words = ["normbench", "train", *entry.words]
    is_of_stack = any(is_own(word) for word in entry.words)
    if is_of_stack:
        words = ["normbench", "sweep", *entry.words, "sweep.retry_failed=true"]
    return shlex.join(words)
