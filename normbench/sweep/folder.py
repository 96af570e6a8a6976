"""How the runs of a sweep stand, by their directories and what it keeps beside them in `.sweep`; and how that is shown.

On a terminal it is shown live, elsewhere in lines.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from normbench.config.sections import GROUPS
from normbench.config.trust import needs_trust
from normbench.errors import HeldElsewhere
from normbench.record.directory import RunDirectory, fingerprint
from normbench.record.files import inside, read_json, write_json
from normbench.sweep.words import is_own

LOOK_SECONDS = 1.0
LINE_SECONDS = 60.0  # at most, between two lines of a log

ENTRY = {"run": str, "arm": {str: str}, "seed": int, "steps": int, "words": [str]}
PLAN = {"words": [str], "asked": [str], "runs": [ENTRY]}


@dataclass(frozen=True)
class Entry:
    """One run in the list of those that a sweep makes.

    arm: what varies, less the seed. words: those that `train` is given, or of a stack `sweep`.
    """

    run: str
    arm: Mapping[str, str]
    seed: int
    steps: int
    words: Sequence[str]


@dataclass(frozen=True)
class Standing:
    """How a run stands. loss: of validation, in the end. cause: of its failure."""

    entry: Entry
    state: Literal["finished", "diverged", "failed", "running", "waiting"]
    step: int = 0
    loss: float | None = None
    cause: str = ""

    @property
    def over(self) -> bool:
        return self.state in ("finished", "diverged", "failed")


class SweepFolder:
    """The runs of a folder and what is noted about them. Nothing is created before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.notes = path, path / ".sweep"
        self.plans, self.failures = self.notes / "plans", self.notes / "failures"

    def command(self, words: Sequence[str] = ()) -> str:
        """Return the command that goes on with the sweeps of the folder.

        words: those that whoever reads it has given or trusted; what is only noted in the folder is trusted by nobody.
        """
        trust = ["--trust"] * any(map(needs_trust, words))
        return shlex.join(["normbench", "sweep", "--resume", str(self.path), *trust])

    @property
    def foreign(self) -> list[str]:
        """The words of its sweeps that may run code of somebody's, or reach another machine."""
        return [word for note in self.read_notes() for word in note["words"] if needs_trust(word)]

    def write_plan(self, entries: Iterable[Entry], words: Sequence[str] = (), asked: Iterable[str] = ()) -> None:
        """Note which runs a sweep makes, for whoever looks on or goes on; the same runs are the same file.

        Args:
            entries: none: those that are noted already, if any.
            words: of the sweep.
            asked: names of the runs that the words ask for, where learning rates are still to be chosen.
        """
        runs = [{name: getattr(entry, name) for name in ENTRY} for entry in entries]
        names = sorted(asked or (run["run"] for run in runs))
        path = self.plans / f"{fingerprint({'runs': names})}.json"
        known = (read_json(path, PLAN) or {"runs": []})["runs"]
        inside(self.path, ".sweep", "plans").mkdir(parents=True, exist_ok=True)
        write_json(path, {"words": [*words], "asked": names, "runs": runs or known})

    def read_notes(self) -> list[dict[str, Any]]:
        """Return what is noted of each sweep that was started on this folder, the last one last."""
        files = sorted(self.plans.glob("*.json"), key=lambda path: path.stat().st_mtime)
        return [note for path in files if (note := read_json(path, PLAN))]

    def read_plans(self) -> list[Entry]:
        """Return the runs of all sweeps that were started on this folder, each once."""
        runs = [run for note in self.read_notes() for run in note["runs"]]
        return list({run["run"]: Entry(*(run[name] for name in ENTRY)) for run in runs}.values())

    @contextmanager
    def worked_on(self) -> Iterator[None]:
        """Let others know that a sweep is at work on the folder, while this lasts."""
        with ExitStack() as stack:
            with suppress(HeldElsewhere, OSError):  # another sweep lets them know already
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(RunDirectory(self.path).held())
            yield

    def is_worked_on(self) -> bool:
        """Tell whether a sweep is at work on the folder."""
        return RunDirectory(self.path).is_held()

    def missing(self) -> dict[str, str]:
        """Return the planned runs that have no directory -> why they have failed; empty: not begun."""
        names = [entry.run for entry in self.read_plans() if not (self.path / entry.run).is_dir()]
        return {name: self.failure(name) for name in names}

    def note_failure(self, name: str, cause: str, details: str = "") -> None:
        """Note that a run has failed, in one line. details: what it has printed, and a traceback."""
        inside(self.path, ".sweep", "failures").mkdir(parents=True, exist_ok=True)
        write_json(self.failures / f"{name}.json", {"cause": cause, "details": details})

    def forget_failure(self, name: str) -> None:
        """Let a run be tried again that has failed."""
        inside(self.path, ".sweep", "failures", f"{name}.json").unlink(missing_ok=True)

    def failure(self, name: str) -> str:
        """Return why a run has failed; empty: it has not."""
        return str((read_json(self.failures / f"{name}.json") or {}).get("cause", ""))

    def look(self, entry: Entry) -> Standing:
        """Return how a run stands, and how far it is."""
        directory = RunDirectory(self.path / entry.run)
        if summary := directory.ended():
            return Standing(entry, summary["status"], summary["step"], summary["metrics"].get("loss/val"))
        step = int((read_json(directory.status) or {}).get("step", 0))
        if directory.is_held():
            return Standing(entry, "running", step)
        cause = self.failure(entry.run)
        return Standing(entry, "failed" if cause else "waiting", step, cause=cause)


def arm_name(arm: Mapping[str, str]) -> str:
    """Name an arm, such as `rmsnorm · pre · optim.lr=0.001`: options and classes by their words."""
    words = [value if key in GROUPS or key.endswith("._target_") else f"{key}={value}" for key, value in arm.items()]
    return " · ".join(words) or "all runs"


# ---- what a person sees


class View:
    """Shows how runs stand: a bar for all and for each at work, or a line when one ends and one from time to time."""

    def __init__(self, console: Console, folder: SweepFolder, entries: Sequence[Entry]) -> None:
        self.console, self.folder, self.entries = console, folder, entries
        self.bars = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(None), TimeRemainingColumn(), console=console,
            disable=not console.is_terminal, expand=True, speed_estimate_period=3600, refresh_per_second=1,
        )  # fmt: skip
        self.over: dict[str, Standing] = {}  # these are read once
        first, total = self.read(), sum(entry.steps for entry in entries)
        self.whole = self.bars.add_task("", total=total, completed=steps_done(first))
        self.looked = self.printed = float("-inf")

    def read(self) -> list[Standing]:
        """Return how all runs stand now."""
        standings = [self.over.get(entry.run) or self.folder.look(entry) for entry in self.entries]
        self.over |= {one.entry.run: one for one in standings if one.over}
        return standings

    def look(self, again: bool = False) -> None:
        """Show how the runs stand, at most once a second, or again at once."""
        if (now := time.monotonic()) - self.looked < LOOK_SECONDS and not again:
            return
        known, standings, self.looked = {*self.over}, self.read(), now
        self.bars.update(self.whole, description=overall(standings), completed=steps_done(standings))
        if not self.bars.disable:
            for task in self.bars.task_ids[1:]:
                self.bars.remove_task(task)
            running = [one for one in standings if one.state == "running"]
            for one in running[: max(3, self.console.size.height - 4)]:  # as many as there is room for
                self.bars.add_task(said(one), total=one.entry.steps, completed=one.step)
            self.bars.start()
            return
        lines = [said(one) for one in standings if one.over and one.entry.run not in known]
        left = self.bars.tasks[0].time_remaining
        time_left = f"{timedelta(seconds=left)} left" if left else ""
        for line in lines or [""] * (now - self.printed > LINE_SECONDS):
            self.printed = now
            say(self.console, "  ".join(filter(None, (overall(standings), line, time_left))))

    def close(self) -> None:
        """Leave the last state to be seen."""
        self.look(again=True)
        self.bars.stop()


def steps_done(standings: Sequence[Standing]) -> int:
    """Return how many steps are done; a run that is over counts in full."""
    return sum(one.entry.steps if one.over else one.step for one in standings)


def overall(standings: Sequence[Standing]) -> str:
    """Return such as `5/8 runs  1 diverged  2 running`."""
    counts = Counter(one.state for one in standings)
    parts = [f"{sum(one.over for one in standings)}/{len(standings)} runs"]
    parts += [f"{counts[state]} {state}" for state in ("diverged", "failed", "running") if counts[state]]
    return "  ".join(parts)


def said(standing: Standing) -> str:
    """Return a run's arm and seed, how far it is, and its loss."""
    entry = standing.entry
    done = standing.state if standing.over else f"{standing.step:,}/{entry.steps:,}"
    loss = "" if standing.loss is None else f" loss {standing.loss:.4f}"
    return f"{arm_name(entry.arm)} · seed {entry.seed} {done}{loss}"


def say_done(console: Console, folder: SweepFolder, standings: Sequence[Standing], command: str) -> None:
    """Say that a sweep is over, and how to go on. command: goes on with it."""
    say(console, f"{overall(standings)} in {folder.path}")
    if any(folder.path.glob("*/events.out.tfevents.*")):
        say(console, f"look at the curves: {shlex.join(['normbench', 'tensorboard', str(folder.path)])}")
    if any(one.state != "failed" for one in standings):
        say(console, f"more seeds or arms: {command} KEY=VALUES sweep.extend=true")


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


# ---- tables


def show_arms(console: Console, folder: Path, arms: Mapping[str, Sequence[Standing]]) -> None:
    """Print how the runs of each arm stand."""
    title, columns = Text(str(folder), "bold"), ("arm", "seeds", "to do", "done", "failed")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    whole = [one for standings in arms.values() for one in standings]
    for name, standings in [*arms.items(), (f"in all: {len(arms):,}", whole)]:
        counts = Counter(one.state for one in standings)
        seeds = ", ".join(map(str, sorted({one.entry.seed for one in standings})))
        done, failed = counts["finished"] + counts["diverged"], counts["failed"]
        table.add_row(Text(name), seeds, *map(str, (len(standings) - done - failed, done, failed)))
    table.rows[-2].end_section = True
    console.print(table)


def show_failures(failed: Sequence[Standing], command: str) -> int:
    """Print why runs have failed, if any, and for each cause the command that repeats one; returns the exit status.

    command: goes on with all.
    """
    console, table = Console(), Table("failed run", "cause", box=SIMPLE_HEAD, pad_edge=False)
    alike: dict[str, list[Standing]] = {}
    for one in failed:
        alike.setdefault(one.cause, []).append(one)
    for cause, ones in alike.items():
        others = f" and {len(ones) - 1:,} more" if len(ones) > 1 else ""
        table.add_row(Text(f"{ones[0].entry.run}{others}"), Text(cause))
    if failed:
        console.print(table)
        for first, *_ in alike.values():
            words = first.entry.words
            alone = ["sweep", *words, "sweep.retry_failed=true"] if any(map(is_own, words)) else ["train", *words]
            say(console, f"repeat {'it' if len(alike) == 1 else first.entry.run}: {shlex.join(['normbench', *alone])}")
        say(console, f"try all of them again: {command} sweep.retry_failed=true")
    return 1 if failed else 0
