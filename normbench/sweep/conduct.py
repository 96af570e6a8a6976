"""A sweep from its words to its end: plan, learning rates where they are to be chosen, runs, and what has failed."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from normbench.errors import RunFailure, UsageError, explain
from normbench.run.session import Session
from normbench.run.train import limits_named, measure, notes_shown
from normbench.rundir import CHOICE_FILE, ENDED, RunDirectory
from normbench.sweep.display import LOOK_SECONDS, View, overall, say, show_failures, show_left_out, show_plan
from normbench.sweep.folder import OVER, Standing, SweepFolder
from normbench.sweep.grid import read_exclusions, read_grid
from normbench.sweep.launchers import cores, make_launcher
from normbench.sweep.plan import SWEEP_NAME, PlannedRun, Planner, SweepPlan
from normbench.sweep.tuning import SUFFIX, check_tunable, choose, said, tuned_grid, tuning_grid, write_choices
from normbench.sweep.words import SweepConfig, read_settings
from normbench.sweep.work import Execution, Stopped

# Called at the end with the folder of the runs, and whether the person asked for quiet.
Report = Callable[[Path, bool], None]

MANY = 100  # runs, whose plan takes a moment


@dataclass
class Sweep:
    """A sweep that is understood; nothing has been run or written.

    plan: where learning rates are to be chosen, with those that are set in their place; then, the runs under way.
    failed: runs that have failed.
    """

    settings: SweepConfig
    planner: Planner
    plan: SweepPlan
    console: Console
    failed: list[Standing] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Print a line for the person, unless they asked for quiet."""
        if not self.planner.quiet:
            say(self.console, line)

    # ---- --dry-run

    def show(self) -> int:
        """Say what would run; returns the exit status."""
        plan = self.plan
        if self.settings.lr:
            tuning = self.planner.plan(tuning_grid(plan, self.settings))
            say(self.console, "runs that choose learning rates, and behind them those that are reported:")
            if not self.show_one(tuning):
                plan = self.reported(choose(tuning))
        self.show_one(plan)
        show_left_out(self.console, self.plan)
        return 0

    def show_one(self, plan: SweepPlan) -> int:
        """Print a plan, and the time of one run times their number; returns how many runs are to do."""
        folder, again = SweepFolder(plan.folder), self.settings.retry_failed
        states = {run.entry.run: folder.look(run.entry).state for run in plan.runs}
        show_plan(self.console, plan, states, again)
        to_do = [run for run in plan.runs if states[run.entry.run] not in (ENDED if again else OVER)]
        if to_do:
            with self.console.status("measuring a run"):
                said = self.expected(to_do)
            say(self.console, said)
        return len(to_do)

    def expected(self, runs: Sequence[PlannedRun]) -> str:
        """Return how long runs take, if each takes as long as the first."""
        planner, first = self.planner, runs[0]
        here = len(planner.devices) or max(1, cores() // planner.threads)  # what shares a core takes longer
        beside = min(len(runs), planner.jobs, len(runs) if planner.launcher.elsewhere else here)
        try:
            seconds = measure(Session(first.prepared)).seconds(first.entry.steps)
        except Exception as error:  # of a user's class, as a run of the sweep would fail with, or it diverges
            return f"the time is not known: {first.entry.run} fails ({explain(error)})"
        whole, one = (timedelta(seconds=math.ceil(taken)) for taken in (seconds * len(runs) / beside, seconds))
        return f"about {whole} for {len(runs):,} runs, {beside} at a time, each {one} as measured on a few steps of one"

    # ---- the runs

    def run(self, report: Report) -> int:
        """Make the runs and report on them; returns the exit status."""
        if not self.planner.quiet:
            show_left_out(self.console, self.plan)
        try:
            standings = self.finish(self.tuned() if self.settings.lr else self.plan)
        except Stopped as stop:
            folder, (number,) = SweepFolder(self.plan.folder), stop.args
            over = sum(folder.look(run.entry).over for run in self.plan.runs)
            said = f"stopped by {signal.Signals(number).name}: {over} of {len(self.plan.runs)} runs are over"
            say(self.console, f"{said}; the same command goes on, each run from its checkpoint")
            return 128 + int(number)
        self.say(f"{overall(standings)} in {self.plan.folder}")
        if self.planner.quiet:
            print(self.plan.folder)
        if self.settings.report:
            report(self.plan.folder, self.planner.quiet)
        show_failures(self.console, self.failed)
        return 1 if self.failed else 0

    def tuned(self) -> SweepPlan:
        """Return the plan with each arm's own learning rate, which runs on held out data have chosen."""
        plan, tuning = self.plan, self.planner.plan(tuning_grid(self.plan, self.settings))
        self.say(f"learning rates: {len(tuning.runs)} runs in {tuning.folder} choose on a tenth of the training data")
        self.finish(tuning)
        write_choices(plan.folder / CHOICE_FILE, choices := choose(tuning), self.settings)
        self.plan = plan
        return self.reported(choices)

    def reported(self, choices: Sequence[Mapping[str, Any]]) -> SweepPlan:
        """Return the runs that are reported, each with its learning rate.

        Raises:
            UsageError, RunFailure: no rate is good.
        """
        for choice in choices:
            self.say(said(choice))
        if all(choice["lr"] is None for choice in choices):
            show_failures(self.console, self.failed)
            if self.failed:
                raise RunFailure("sweep.lr=auto has no learning rate for any arm: the runs that were to choose failed")
            raise UsageError("sweep.lr=auto has found no learning rate for any arm: give others with sweep.lr_grid")
        return self.planner.plan(tuned_grid(self.plan, choices))

    def finish(self, plan: SweepPlan) -> list[Standing]:
        """Make the runs of a plan, and show how far they are; returns how they stand in the end.

        Raises:
            UsageError: the folder cannot be made.
            RunFailure: the launcher starts nothing.
            Stopped: by a signal.
        """
        self.plan, planner = plan, self.planner
        folder, entries = SweepFolder(plan.folder), [run.entry for run in plan.runs]
        if self.settings.retry_failed:
            for entry in entries:
                folder.forget_failure(entry)
        view = View(self.console, folder, entries, planner.quiet)
        if left := len(entries) - len(view.told):
            RunDirectory(folder.notes).create()
            folder.write_plan(entries)
            threads = "1 thread" if planner.threads == 1 else f"{planner.threads} threads"
            at_a_time = f"{min(left, planner.jobs)} at a time with {threads} each"
            self.say(f"{left} of {len(entries)} runs to do, {at_a_time}, in {plan.folder}")
            try:
                Execution(planner, folder, list(plan.runs)).finish(view.look)
            finally:
                view.close()
        standings = view.read()
        self.failed += [one for one in standings if one.state == "failed"]
        return standings


def understand(words: Sequence[str]) -> Sweep:
    """Plan what words ask for down to each run; the data are loaded, which prepares them for all runs.

    Raises:
        UsageError: any mistake, or nothing is left to run.
    """
    grid = read_grid(words)
    settings, section = read_settings(grid.own)
    planner, console = Planner(make_launcher(section), settings.jobs or 0), Console(file=sys.stdout)
    quiet = "quiet=true" in (word.lower() for word in grid.points[0].words)
    many = len(grid.points) > MANY and not quiet
    with console.status(f"planning {len(grid.points):,} runs") if many else nullcontext(), notes_shown(quiet):
        plan = planner.plan(grid, read_exclusions(settings.exclude or ()))
    if settings.lr:
        check_tunable(plan, settings)
    return Sweep(settings, planner, plan, console)


def sweep(words: Sequence[str], dry_run: bool, report: Report) -> int:
    """Make many runs and report on them, or say what they would take; returns the exit status.

    Raises:
        UsageError: any mistake in the words; nothing was started.
        RunFailure: the launcher starts nothing.
    """
    understood = understand(words)
    understood.plan.runs[0].prepared.directory.check_creatable()
    if dry_run:
        return understood.show()
    with limits_named(str(understood.plan.folder.parent)):
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
        if not (entries := runs.read_plans()):  # the second one's are there when the first one's are over
            continue
        view, told = View(console, runs, entries), False
        try:
            while left := [one for one in view.read() if not one.over]:
                view.look()
                if not told and not any(one.state == "running" for one in left):
                    say(console, f"nobody is at work on {len(left)} of {len(entries)} runs in {runs.path} now")
                    told = True
                time.sleep(LOOK_SECONDS)
        finally:
            view.close()
        failed += [one for one in view.read() if one.state == "failed"]
    show_failures(console, failed)
    return 1 if failed else 0
