"""A sweep from its words to its end: plan, learning rates where they are to be chosen, runs, and what has failed."""

from __future__ import annotations

import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench import limits
from normbench.assembly import resolve_device
from normbench.compose import compose
from normbench.errors import RunFailure, UsageError
from normbench.run import notes_shown
from normbench.rundir import CHOICE_FILE, ENDED, RunDirectory
from normbench.sweeping.display import LOOK_SECONDS, make_view, overall
from normbench.sweeping.execution import Execution, Stopped
from normbench.sweeping.folder import OVER, Entry, SweepFolder
from normbench.sweeping.forecast import Terms, show_forecast, show_left_out
from normbench.sweeping.gpus import devices_to_hand_out
from normbench.sweeping.grid import Grid, read_common, read_exclusions, read_grid
from normbench.sweeping.launchers import Launching, Share, checked, cores
from normbench.sweeping.plan import PlannedRun, Planner, SweepPlan
from normbench.sweeping.progress import Progress, Reader
from normbench.sweeping.settings import SweepConfig, parse_settings, readable
from normbench.sweeping.tuning import (
    SUFFIX,
    check_tunable,
    choose,
    lines,
    tuned_grid,
    tuning_grid,
    write_choices,
)
from normbench.sweeping.twins import with_other_threads
from normbench.targets import imported

# Called at the end with the folder of the runs, and whether the person asked for quiet.
Report = Callable[[Path, bool], None]

SWEEP_NAME = "sweep"  # of the folder, where neither the words nor an experiment name it
MANY = 100  # runs, whose plan takes a moment


@dataclass
class Sweep:
    """A sweep that is understood; nothing has been run or written.

    plan: where learning rates are to be chosen, with those that are set in their place; then, the runs under way.
    failed: runs that have failed, with their folder.
    """

    grid: Grid
    settings: SweepConfig
    launching: Launching
    share: Share
    devices: tuple[str, ...]
    planner: Planner
    plan: SweepPlan
    quiet: bool
    console: Console = field(default_factory=lambda: Console(file=sys.stdout))
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    failed: list[tuple[SweepFolder, Entry]] = field(default_factory=list)

    def say(self, line: str) -> None:
        """A line for the person, unless they asked for quiet."""
        if not self.quiet:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    # ---- --dry-run

    def forecast(self) -> int:
        """Say what would run; returns the exit status."""
        plan, title, terms = self.plan, f"{self.plan.folder}", self.terms()
        if self.settings.lr:
            tuning = self.planner.plan(tuning_grid(plan, self.settings))
            show_forecast(self.console, tuning, terms, f"{tuning.folder}: runs that choose learning rates")
            title += ": runs that are reported"
            if chosen := self.chosen(tuning):
                plan = chosen
            else:
                title += ", with the learning rate of each arm still to be chosen"
        show_forecast(self.console, plan, terms, title)
        show_left_out(self.console, self.plan.left_out)
        return 0

    def terms(self) -> Terms:
        """How the runs will be made, as far as it decides on their time: what shares a core takes longer."""
        here = len(self.devices) or max(1, cores() // self.share.threads)
        beside = self.share.jobs if self.launching.elsewhere else min(self.share.jobs, here)
        return Terms(beside, self.settings.retry_failed)

    def chosen(self, tuning: SweepPlan) -> SweepPlan | None:
        """The runs that are reported, each with its learning rate; None: some rates are still to be chosen."""
        folder = SweepFolder(tuning.folder)
        over = ENDED if self.settings.retry_failed else OVER
        if any(folder.state(run.name) not in over for run in tuning.runs):
            return None
        choices = choose(tuning)
        for line in lines(choices):
            self.say(line)
        return self.planner.plan(tuned_grid(self.plan, choices)) if any(choice.lr for choice in choices) else None

    # ---- the runs

    def run(self, report: Report) -> int:
        """Make the runs and report on them; returns the exit status."""
        if not self.quiet:
            show_left_out(self.console, self.plan.left_out)
        try:
            progress = self.finish(self.tuned() if self.settings.lr else self.plan)
        except Stopped as stop:
            return self.stopped(stop.number)
        return self.told(progress, report)

    def tuned(self) -> SweepPlan:
        """The plan with each arm's own learning rate, which runs on held out data have chosen."""
        reported = self.plan
        tuning = self.planner.plan(tuning_grid(reported, self.settings))
        self.say(f"learning rates: {len(tuning.runs)} runs in {tuning.folder} choose on a tenth of the training data")
        self.finish(tuning)
        choices = choose(tuning)
        write_choices(reported.folder / CHOICE_FILE, choices, self.settings)
        for line in lines(choices):
            self.say(line)
        if all(choice.lr is None for choice in choices):
            show_failures(self.console, self.failed)
            if self.failed:
                raise RunFailure("sweep.lr=auto has no learning rate for any arm: the runs that were to choose failed")
            raise UsageError("sweep.lr=auto has found no learning rate for any arm: give others with sweep.lr_grid")
        return self.planner.plan(tuned_grid(reported, choices))

    def finish(self, plan: SweepPlan) -> Progress:
        """Make the runs of a plan, and show how far they are.

        Raises:
            UsageError: the folder cannot be made.
            RunFailure: the launcher starts nothing.
            Stopped: by a signal.
        """
        self.plan = plan
        folder, entries = SweepFolder(plan.folder), [run.entry for run in plan.runs]
        if self.settings.retry_failed:
            self.forget_failures(folder, plan.runs)
        reader = Reader(folder, entries)
        if (progress := reader.read()).over < len(entries):
            RunDirectory(folder.notes).create()
            folder.write_plan(entries)
            execution = Execution(self.launching, self.share, self.devices, self.token)
            self.announce(plan, progress)
            with make_view(self.console, reader, self.quiet).showing():
                execution.finish(plan.runs)
            progress = reader.read()
        self.failed += [(folder, standing.entry) for standing in progress.standings if standing.state == "failed"]
        return progress

    def announce(self, plan: SweepPlan, progress: Progress) -> None:
        """Say what begins."""
        left, share = len(plan.runs) - progress.over, self.share
        threads = "1 thread" if share.threads == 1 else f"{share.threads} threads"
        self.say(
            f"{left} of {len(plan.runs)} runs to do, {min(left, share.jobs)} at a time with {threads} each, in "
            f"{plan.folder}"
        )

    def forget_failures(self, folder: SweepFolder, runs: Sequence[PlannedRun]) -> None:
        """Let runs that have failed be tried again."""
        for run in runs:
            if folder.state(run.name) == "failed":
                folder.failures.forget(run.name)
                status = folder.run(run.name).status
                if status.exists():
                    folder.run(run.name).write_status("interrupted", 0, run.steps, "to be tried again")

    def stopped(self, number: int) -> int:
        """Say how far it got."""
        progress = Reader(SweepFolder(self.plan.folder), [run.entry for run in self.plan.runs]).read()
        self.console.print(
            f"stopped by {signal.Signals(number).name}: {progress.over} of {len(progress.standings)} runs are over; "
            "the same command goes on, each run from its checkpoint",
            highlight=False,
            soft_wrap=True,
        )
        return 128 + number

    def told(self, progress: Progress, report: Report) -> int:
        """Say how the sweep has ended, with the report and a table of what has failed; returns the exit status."""
        self.say(f"{overall(progress)} in {self.plan.folder}")
        if self.quiet:
            print(self.plan.folder)
        if self.settings.report:
            report(self.plan.folder, self.quiet)
        show_failures(self.console, self.failed)
        return 1 if self.failed else 0


def show_failures(console: Console, failed: Sequence[tuple[SweepFolder, Entry]]) -> None:
    """A table of the runs that have failed, if any, and behind it the command that repeats each."""
    if not failed:
        return
    failures = [folder.failure(entry) for folder, entry in failed]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("failed run", overflow="fold")
    table.add_column("cause", overflow="fold")
    for failure in failures:
        table.add_row(Text(failure.run), Text(failure.cause))
    console.print(table)
    for failure in failures:
        console.print(failure.command, markup=False, highlight=False, soft_wrap=True)
    console.print("sweep.retry_failed=true tries them again; the commands above repeat one each", highlight=False)


def understand(words: Sequence[str]) -> Sweep:
    """What words ask for, planned down to each run; the data are loaded, which prepares them for all runs.

    Raises:
        UsageError: any mistake, or nothing is left to run.
    """
    grid = read_grid(words)
    composed = compose("sweep", readable(grid.own))
    assert composed is not None
    settings = parse_settings(composed.tree["sweep"])
    launching = make_launching(composed.tree["launcher"])
    common = read_common(grid)
    devices = () if launching.gives_devices else devices_here(common.device, settings.jobs)
    share = launching.share(settings.jobs, common.threads, len(devices))
    grid = grid if common.threads else grid.without("threads").with_words(f"threads={share.threads}")
    grid = grid if grid.named else grid.with_words(f"name={SWEEP_NAME}")
    planner = Planner(launching.elsewhere)
    console = Console(file=sys.stdout)
    with planning(console, len(grid.points), common.quiet), notes_shown(common.quiet):
        plan = planner.plan(grid, read_exclusions(settings.exclude or ()))
    if settings.lr:
        check_tunable(plan, grid, settings)
    understood = Sweep(grid, settings, launching, share, devices, planner, plan, common.quiet, console)
    for line in with_other_threads(plan, planner, share.threads):
        understood.say(line)
    return understood


def planning(console: Console, points: int, quiet: bool) -> AbstractContextManager[object]:
    """While it lasts, a terminal says that many runs are planned."""
    return nullcontext() if quiet or points <= MANY else console.status(f"planning {points:,} runs")


def devices_here(device: str, jobs: int | None) -> tuple[str, ...]:
    """The devices of this machine that runs take turns on.

    Raises:
        UsageError: it has no such device.
    """
    found = str(resolve_device(device))
    return devices_to_hand_out(found, torch.cuda.device_count() if found == "cuda" else 0, jobs)


def make_launching(section: dict[str, object]) -> Launching:
    """Where the runs are started.

    Raises:
        UsageError: it cannot be imported, is not installed, or does not take a setting.
    """
    settings = {key: value for key, value in section.items() if key != "_target_"}
    make = imported(section.get("_target_"), f"launcher._target_={section.get('_target_')}")
    try:
        launching = make(**checked(make, settings))
    except TypeError as error:
        raise UsageError(f"launcher does not take these settings ({error}): see normbench sweep --help") from error
    if not isinstance(launching, Launching):
        raise UsageError(f"launcher._target_={section['_target_']} makes no Launching: choose launcher=joblib, say")
    launching.check()
    return cast(Launching, launching)


def sweep(words: Sequence[str], dry_run: bool, report: Report) -> int:
    """Make many runs and report on them, or say what they would take; returns the exit status.

    Raises:
        UsageError: any mistake in the words; nothing was started.
        RunFailure: the launcher starts nothing.
    """
    understood = understand(words)
    RunDirectory(understood.plan.runs[0].path).check_creatable()
    if dry_run:
        return understood.forecast()
    with limits.named(str(understood.plan.folder.parent)):
        return understood.run(report)


def watch(folder: Path) -> int:
    """Show how far the sweeps of a folder are, which run elsewhere, until they are over; returns the exit status.

    Where learning rates are being chosen, those runs come first.
    """
    console, failed = Console(file=sys.stdout), []
    folders = [SweepFolder(path) for path in (folder.with_name(folder.name + SUFFIX), folder)]
    if not any(runs.read_plans() for runs in folders):
        raise UsageError(f"{folder} holds no sweep: give the folder of one, such as outputs/{SWEEP_NAME}")
    for runs in folders:
        if entries := runs.read_plans():  # the second one's are there when the first ones are over
            look_on(runs, entries, console)
            failed += [(runs, entry) for entry in entries if runs.state(entry.run) == "failed"]
    show_failures(console, failed)
    return 1 if failed else 0


def look_on(folder: SweepFolder, entries: Sequence[Entry], console: Console) -> None:
    """Show how far runs are until they are over; once, that nobody is at work on what is left."""
    view, told = make_view(console, Reader(folder, entries), quiet=False), False
    try:
        while (progress := view.look()).over < len(entries):
            if not told and not progress.counts["running"]:
                console.print(
                    f"nobody is at work on {len(entries) - progress.over} of {len(entries)} runs in {folder.path} now",
                    highlight=False, soft_wrap=True,
                )  # fmt: skip
                told = True
            time.sleep(LOOK_SECONDS)
    finally:
        view.close()
