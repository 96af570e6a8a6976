"""A sweep from its words to its end: plan, learning rates where they are to be chosen, runs, and what has failed."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from normbench.errors import RunFailure, UsageError, explain
from normbench.run.session import Session
from normbench.run.train import limits_named, measure, notes_shown
from normbench.rundir import CHOICE_FILE
from normbench.sweep.display import LOOK_SECONDS, View, overall, say, show_failures, show_left_out, show_plan
from normbench.sweep.folder import Standing, SweepFolder
from normbench.sweep.grid import SWEEP_NAME, exclude, read_grid
from normbench.sweep.launchers import make_launcher
from normbench.sweep.plan import PlannedRun, Planner, SweepPlan
from normbench.sweep.tuning import SUFFIX, check_tunable, choose, said, tuned_grid, tuning_grid, write_choices
from normbench.sweep.words import SweepConfig, read_settings
from normbench.sweep.work import Execution, Stopped

# Called at the end with the folder of the runs, and whether the person asked for quiet.
Report = Callable[[Path, bool], None]


@dataclass
class Sweep:
    """A sweep that is understood; nothing has been run or written.

    plan: where learning rates are to be chosen, with those that are set in their place. console: mute, if the person
    asked for quiet. failed: runs that have failed.
    """

    settings: SweepConfig
    planner: Planner
    plan: SweepPlan
    console: Console
    failed: list[Standing] = field(default_factory=list)

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
        folder = SweepFolder(plan.folder)
        standings = {run.run: folder.look(run) for run in plan.runs}
        show_plan(self.console, plan, standings)
        to_do = [run for run in plan.runs if not standings[run.run].over]
        if to_do:
            with self.console.status("measuring a run"):
                said = self.expected(to_do)
            say(self.console, said)
        return len(to_do)

    def expected(self, runs: Sequence[PlannedRun]) -> str:
        """Return how long runs take, if each takes as long as the first."""
        first, beside = runs[0], min(len(runs), self.planner.jobs)
        try:
            seconds = measure(Session(first.prepared)).seconds(first.steps)
        except Exception as error:  # of a user's class, as a run of the sweep would fail with, or it diverges
            return f"the time is not known: {first.run} fails ({explain(error)})"
        whole, one = (timedelta(seconds=math.ceil(taken)) for taken in (seconds * len(runs) / beside, seconds))
        return f"about {whole} for {len(runs):,} runs, {beside} at a time, each {one} as measured on a few steps of one"

    # ---- the runs

    def run(self, report: Report) -> int:
        """Make the runs and report on them; returns the exit status."""
        show_left_out(self.console, self.plan)
        try:
            standings = self.finish(self.tuned() if self.settings.lr else self.plan)
        except Stopped as stop:
            (number,) = stop.args
            name = signal.Signals(number).name
            say(Console(), f"stopped by {name}: the same command goes on, each run from its checkpoint")
            return 128 + int(number)
        say(self.console, f"{overall(standings)} in {self.plan.folder}")
        if self.console.quiet:
            print(self.plan.folder)
        if self.settings.report:
            report(self.plan.folder, self.console.quiet)
        show_failures(self.failed)
        return 1 if self.failed else 0

    def tuned(self) -> SweepPlan:
        """Return the plan with each arm's own learning rate, which runs on held out data have chosen."""
        tuning = self.planner.plan(tuning_grid(self.plan, self.settings))
        line = f"learning rates: {len(tuning.runs)} runs in {tuning.folder} choose on a tenth of the training data"
        say(self.console, line)
        self.finish(tuning)
        choices = choose(tuning)
        write_choices(self.plan.folder / CHOICE_FILE, choices, self.settings)
        return self.reported(choices)

    def reported(self, choices: Sequence[Mapping[str, Any]]) -> SweepPlan:
        """Return the runs that are reported, each with its learning rate.

        Raises:
            UsageError, RunFailure: no rate is good.
        """
        for choice in choices:
            say(self.console, said(choice))
        if all(choice["lr"] is None for choice in choices):
            show_failures(self.failed)
            kind = RunFailure if self.failed else UsageError
            raise kind("sweep.lr=auto has found no learning rate for any arm: give others with sweep.lr_grid")
        return self.planner.plan(tuned_grid(self.plan, choices))

    def finish(self, plan: SweepPlan) -> list[Standing]:
        """Make the runs of a plan, and show how far they are; returns how they stand in the end.

        Raises:
            UsageError: the folder cannot be made.
            RunFailure: the launcher starts nothing.
            Stopped: by a signal.
        """
        planner, folder, whole = self.planner, SweepFolder(plan.folder), len(plan.runs)
        if self.settings.retry_failed:
            for run in plan.runs:
                folder.forget_failure(run.run)
        view = View(self.console, folder, plan.runs)
        if left := whole - len(view.over):
            folder.write_plan(plan.runs)
            share = f"{min(left, planner.jobs)} at a time with threads={planner.threads} each"
            say(self.console, f"{left} of {whole} runs to do, {share}, in {plan.folder}")
            with closing(view):
                Execution(planner, folder, list(plan.runs)).finish(view.look)
        standings = view.read()
        self.failed += [one for one in standings if one.state == "failed"]
        return standings


def understand(words: Sequence[str]) -> Sweep:
    """Plan what words ask for down to each run; the data are loaded, which prepares them for all runs.

    Raises:
        UsageError: any mistake, or nothing is left to run.
    """
    points, own = read_grid(words)
    settings, section = read_settings(own)
    planner, console = Planner(make_launcher(section), settings.jobs or 0), Console()
    kept, excluded = exclude(points, settings.exclude or ())
    with console.status(f"planning {len(kept):,} runs"), notes_shown("quiet=true" in words):
        plan = planner.plan(kept, excluded)
    console.quiet = planner.quiet
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
    standings = list[Standing]()
    for runs in (SweepFolder(folder.with_name(folder.name + SUFFIX)), SweepFolder(folder)):
        if entries := runs.read_plans():  # the second one's are there when the first one's are over
            with closing(View(Console(), runs, entries)) as view:
                while len(view.over) < len(entries):
                    view.look()
                    time.sleep(LOOK_SECONDS)
            standings += view.over.values()
    if not standings:
        raise UsageError(f"{folder} holds no sweep: give the folder of one, such as outputs/{SWEEP_NAME}")
    failed = [one for one in standings if one.state == "failed"]
    show_failures(failed)
    return 1 if failed else 0
