"""A sweep from its words to its end: plan, learning rates where they are to be chosen, runs, and what has failed."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from normbench.build import imported
from normbench.errors import RunFailure, UsageError, explain
from normbench.run.session import Session
from normbench.run.train import limits_named, measure, notes_shown
from normbench.rundir import CHOICE_FILE
from normbench.sweep.folder import LOOK_SECONDS, Standing, SweepFolder, View, overall, say, show_arms, show_failures
from normbench.sweep.plan import SWEEP_NAME, Planner, SweepPlan, balanced, exclude, read_grid
from normbench.sweep.tuning import (
    SUFFIX,
    check_tunable,
    choose,
    refinements,
    said,
    tuned_grid,
    tuning_grid,
    write_choices,
)
from normbench.sweep.words import SweepConfig, read_settings
from normbench.sweep.work import Execution, Stopped


@dataclass
class Sweep:
    """A sweep that is understood; nothing has been run or written.

    plan: where learning rates are to be chosen, with those that are set in their place. choices: of learning rates, so
    far. failed: runs that have failed, by name.
    """

    settings: SweepConfig
    planner: Planner
    plan: SweepPlan
    console: Console = field(default_factory=Console)
    choices: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, Standing] = field(default_factory=dict)

    # ---- --dry-run

    def show(self) -> int:
        """Say what would run; returns the exit status."""
        plan = self.plan
        if self.settings.lr:
            say(self.console, "runs that choose learning rates, and behind them those that are reported:")
            tuning = next((tuning for tuning in self.tunings() if self.to_do(tuning)), None)
            if tuning:
                self.show_one(tuning, 0 if self.choices else refinements(plan, self.settings))
            else:
                plan = self.reported(self.choices)
        self.show_one(plan)
        self.say_left_out()
        return 0

    def show_one(self, plan: SweepPlan, later: int = 0) -> None:
        """Print a plan, and the time of one run times their number. later: runs that will follow from their results."""
        folder, first = SweepFolder(plan.folder), plan.runs[0]
        arms = {name: [folder.look(run) for run in runs] for name, runs in plan.arms.items()}
        show_arms(self.console, plan.folder, arms)
        if number := self.to_do(plan):
            beside = min(number, self.planner.jobs)
            whole = f"{number:,} runs" + (f" and {later:,} more beside the best rates" if later else "")
            try:
                seconds = measure(Session(first.prepared)).seconds(first.steps)
                parts = (seconds * (number + later) / beside, seconds)
                total, each = (timedelta(seconds=math.ceil(part)) for part in parts)
                line = f"about {total} for {whole}, {beside} at a time, each {each} as measured on a few steps"
            except Exception as error:  # of a user's class, as a run of the sweep would fail with, or it diverges
                line = f"the time of {whole} is not known: {first.run} fails ({explain(error)})"
            say(self.console, line)

    def to_do(self, plan: SweepPlan) -> int:
        """Return how many runs of a plan are not over."""
        folder = SweepFolder(plan.folder)
        return sum(not folder.look(run).over for run in plan.runs)

    def say_left_out(self) -> None:
        """Say what is not run, and why."""
        for reason, number in self.plan.left_out.items():
            say(self.console, f"left out, runs: {number:,}: {reason}")

    # ---- the runs

    def run(self, report: Callable[[Path, bool], None]) -> int:
        """Make the runs and report on them; returns the exit status.

        report: takes their folder, and whether the person asked for quiet.
        """
        self.console.quiet = self.planner.quiet
        self.say_left_out()
        try:
            standings = self.finish(self.tuned() if self.settings.lr else self.plan)
        except Stopped as stop:
            say(Console(), f"stopped by {stop}: the same command goes on, each run from its checkpoint")
            return 128 + signal.Signals[str(stop)]
        say(self.console, f"{overall(standings)} in {self.plan.folder}")
        if self.console.quiet:
            print(self.plan.folder)
        if self.settings.report:
            report(self.plan.folder, self.console.quiet)
        return show_failures([*self.failed.values()])

    def tuned(self) -> SweepPlan:
        """Return the plan with each arm's own learning rate, which runs on held out data have chosen."""
        say(self.console, "learning rates are chosen on held out data: every other one first, then beside the best")
        for tuning in self.tunings():
            self.finish(tuning)
        write_choices(self.plan.folder / CHOICE_FILE, self.choices, self.settings)
        return self.reported(self.choices)

    def tunings(self) -> Iterator[SweepPlan]:
        """Yield the runs that choose learning rates, with more of them each time; each plan is over before the next."""
        while points := tuning_grid(self.plan, self.settings, self.choices):
            yield (tuning := self.planner.plan(points))
            self.choices = choose(tuning)

    def reported(self, choices: Sequence[Mapping[str, Any]]) -> SweepPlan:
        """Return the runs that are reported, each with its learning rate.

        Raises:
            UsageError, RunFailure: no rate is good.
        """
        for choice in choices:
            say(self.console, said(choice))
        if all(choice["lr"] is None for choice in choices):
            show_failures([*self.failed.values()])
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
                Execution(planner, folder, balanced(plan.runs)).finish(view.look)
        standings = view.read()
        self.failed |= {one.entry.run: one for one in standings if one.state == "failed"}
        return standings


def understand(words: Sequence[str]) -> Sweep:
    """Plan what words ask for down to each run; the data are loaded, which prepares them for all runs.

    Raises:
        UsageError: any mistake, or nothing is left to run.
    """
    points, own = read_grid(words)
    settings, section = read_settings(own)
    path = section.pop("_target_")
    planner = Planner(imported(path, f"launcher._target_={path}")(**section), settings.jobs or 0)
    kept, excluded = exclude(points, settings.exclude or ())
    with Console().status(f"planning {len(kept):,} runs"), notes_shown("quiet=true" in words):
        plan = planner.plan(kept, excluded)
    if settings.lr:
        check_tunable(plan, settings)
    return Sweep(settings, planner, plan)


def sweep(words: Sequence[str], dry_run: bool, report: Callable[[Path, bool], None]) -> int:
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
                if not any(one.over or one.state == "running" for one in view.read()):
                    say(view.console, f"nobody is at work on the runs in {runs.path} now")
                while len(view.over) < len(entries):
                    view.look()
                    time.sleep(LOOK_SECONDS)
            standings += view.over.values()
    if not standings:
        raise UsageError(f"{folder} holds no sweep: give the folder of one, such as outputs/{SWEEP_NAME}")
    return show_failures([one for one in standings if one.state == "failed"])
