"""A sweep from its words to its end: plan, learning rates where they are to be chosen, runs, and what has failed."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from normbench.build import is_here
from normbench.config.signatures import import_target
from normbench.errors import RunFailure, UsageError, explain
from normbench.record.directory import fingerprint
from normbench.record.shapes import CHOICE_FILE
from normbench.runs.contexts import limits_named, notes_shown
from normbench.runs.dry_run import busy, measure
from normbench.runs.plan import same_elsewhere
from normbench.runs.session import Session
from normbench.sweep import tuning
from normbench.sweep.folder import LOOK_SECONDS, Standing, SweepFolder, View, say, say_done, show_arms, show_failures
from normbench.sweep.plan import SWEEP_NAME, Planner, SweepPlan, balanced, changed, exclude, read_grid, stacked
from normbench.sweep.words import HOW, ONCE, SweepConfig, key_of, read_settings
from normbench.sweep.work import Execution, Stopped

# Reports on the runs of a folder; the second says whether the person asked for quiet.
Report = Callable[[Path, bool], None]


@dataclass
class Sweep:
    """A sweep that is understood; nothing has been run or written.

    words: that it is made of, less those of one command. plan: where learning rates are to be chosen, with those that
    are set in their place. choices: of learning rates, so far. failed: runs that have failed, by name.
    """

    words: Sequence[str]
    settings: SweepConfig
    planner: Planner
    plan: SweepPlan
    console: Console = field(default_factory=Console)
    choices: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, Standing] = field(default_factory=dict)

    @property
    def folder(self) -> SweepFolder:
        """The folder of the runs that are reported."""
        return SweepFolder(self.plan.folder)

    @property
    def command(self) -> str:
        """The command that goes on with it."""
        return self.folder.command(self.words)

    @property
    def asked(self) -> list[str]:
        """Return the names of the runs that the words ask for; where rates are to be chosen they say from which."""
        rates = fingerprint({"rates": self.settings.lr_grid, "seeds": self.settings.lr_seeds})
        chosen = f" lr {rates}" if self.settings.lr else ""
        return [f"{run.run}{chosen}" for run in self.plan.runs]

    def check_folder(self) -> None:
        """Refuse to add runs to those of another sweep, unless that is meant.

        Raises:
            UsageError: with the difference.
        """
        notes = self.folder.read_notes()
        there = {name for note in notes for name in note["asked"]}
        if there and (new := {*self.asked} - there) and not self.settings.extend:
            differing = difference(notes[-1]["words"], self.words)
            cure = f"sweep.extend=true adds {len(new):,} to its {len(there):,} runs, and name= gives a new folder"
            raise UsageError(f"{self.plan.folder} has the runs of another sweep ({differing}): {cure}")

    # ---- --dry-run

    def show(self) -> int:
        """Say what would run; returns the exit status."""
        plan = next(plan for plan in self.plans() if self.to_do(plan) or self.is_reported(plan))
        if not self.is_reported(plan):
            say(self.console, "runs that choose learning rates, followed by those that are reported:")
            self.show_one(plan, tuning.follow_up(self.plan, plan, self.settings))
        self.show_one(plan if self.is_reported(plan) else self.plan)
        self.say_left_out()
        return 0

    def show_one(self, plan: SweepPlan, later: int = 0) -> None:
        """Print a plan, and the time of one run times their number. later: runs that will follow from their results."""
        folder, first = SweepFolder(plan.folder), plan.runs[0]
        arms = {name: [folder.look(run) for run in runs] for name, runs in plan.arms.items()}
        show_arms(self.console, plan.folder, arms)
        self.say_elsewhere(plan)
        if number := self.to_do(plan):
            beside = min(number, self.planner.jobs)
            whole = f"{number:,} runs" + (f" and {later:,} more that their results ask for" if later else "")
            device = str(first.prepared.device)
            if not is_here(device):  # the launcher takes the runs to other machines
                say(self.console, f"the time of {whole} is not known here, as this machine has no device={device}")
                return
            try:
                begun = time.perf_counter()
                session = Session(replace(first.prepared))  # which reads the data anew, as the run's process will
                start = time.perf_counter() - begun
                seconds = start + measure(session).seconds(first.steps)
                total, each = (timedelta(seconds=math.ceil(seconds * n)) for n in ((number + later) / beside, 1))
                line = f"about {total} for {whole}, {beside} at a time, each {each} as its start and a few steps tell"
                line += "; as stacks of seeds they take another time, which was not measured" * (self.planner.stack > 1)
            except Exception as error:  # of a user's class, as a run of the sweep would fail with, or it diverges
                line = f"the time of {whole} is not known: {first.run} fails ({explain(error)})"
            say(self.console, line)
            if others := busy(first.prepared.threads):
                say(self.console, others)

    def to_do(self, plan: SweepPlan) -> int:
        """Return how many runs of a plan are not over."""
        return sum(not SweepFolder(plan.folder).look(run).over for run in plan.runs)

    def say_left_out(self) -> None:
        """Say what is not run, and why."""
        for reason, number in self.plan.left_out.items():
            say(self.console, f"left out, runs: {number:,}: {reason}")

    def say_elsewhere(self, plan: SweepPlan) -> None:
        """Say which runs of a plan are there with other threads, or on another device."""
        if same := same_elsewhere([run.prepared for run in plan.runs]):
            say(self.console, f"note: {same}")

    # ---- the runs

    def run(self, report: Report) -> int:
        """Make the runs and report on them; returns the exit status."""
        self.console.quiet = self.planner.quiet
        self.say_left_out()
        try:
            with self.folder.worked_on():
                if self.settings.lr:
                    say(self.console, "learning rates are chosen on held out data: a few first, then what they ask for")
                    self.folder.write_plan((), self.words, self.asked)
                for plan in self.plans():
                    if self.choices:
                        tuning.write_choices(self.plan.folder / CHOICE_FILE, self.choices, self.settings)
                    standings = self.finish(plan)
        except Stopped as stop:
            say(Console(), f"stopped by {stop}; go on, each run from its checkpoint: {self.command}")
            return 128 + signal.Signals[str(stop)]
        say_done(self.console, self.folder, standings, self.command)
        if self.console.quiet:
            print(self.plan.folder)
        if self.settings.report and any(one.state != "failed" for one in standings):
            report(self.plan.folder, self.console.quiet)
        return show_failures([*self.failed.values()], self.command)

    def plans(self) -> Iterator[SweepPlan]:
        """Yield what is to run, each plan over before the next: runs that choose learning rates, if any, come first.

        Raises:
            UsageError, RunFailure: no rate is good.
        """
        while self.settings.lr and (points := tuning.tuning_grid(self.plan, self.settings, self.choices)):
            yield (choosing := self.planner.plan(points))
            self.choices = tuning.choose(choosing, self.settings.lr_grid)
        for choice in self.choices:
            say(self.console, tuning.said(choice))
        if self.choices and all(choice["lr"] is None for choice in self.choices):
            show_failures([*self.failed.values()], self.command)
            text = f"sweep.lr={self.settings.lr} has found no learning rate for any arm: give others with sweep.lr_grid"
            raise RunFailure(text) if self.failed else UsageError(text)
        yield self.planner.plan(tuning.tuned_grid(self.plan, self.choices)) if self.choices else self.plan

    def is_reported(self, plan: SweepPlan) -> bool:
        """Return whether the runs of a plan are reported; others choose learning rates."""
        return plan.folder == self.plan.folder

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
            folder.write_plan(plan.runs, *((self.words, self.asked) if self.is_reported(plan) else ()))
            beside = min(-(-left // planner.stack), planner.jobs)
            how = f"in stacks of up to {planner.stack} seeds, " if planner.stack > 1 else ""
            share = f"{how}{beside} at a time with threads={planner.threads} each{planner.launcher.where}"
            say(self.console, f"{left} of {whole} runs to do, {share}, in {plan.folder}")
            self.say_elsewhere(plan)
            with closing(view):
                stacks = stacked(balanced(plan.runs), planner.stack)
                Execution(planner, folder, stacks, self.settings.timeout).finish(view)
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
    launcher = import_target(path, f"launcher._target_={path}")(**section)
    planner = Planner(launcher, settings.jobs or 0, stack=settings.stack)
    kept, excluded = exclude(points, settings.exclude or ())
    with Console().status(f"planning {len(kept):,} runs"), notes_shown("quiet=true" in words):
        plan = planner.plan(kept, excluded)
    if settings.lr:
        tuning.check_tunable(plan, settings)
    return Sweep([word for word in words if key_of(word) not in ONCE], settings, planner, plan)


def sweep(words: Sequence[str], dry_run: bool, report: Report) -> int:
    """Make many runs and report on them, or say what they would take; returns the exit status.

    Raises:
        UsageError: any mistake in the words; nothing was started.
        RunFailure: the launcher starts nothing.
    """
    outputs = {key_of(word): word.partition("=")[2] for word in words}.get("outputs", "outputs")
    with limits_named(outputs):
        understood = understand(words)
        understood.check_folder()
        understood.plan.runs[0].prepared.directory.check_creatable()
        return understood.show() if dry_run else understood.run(report)


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Say in which of the words that decide about runs two sweeps differ."""
    said = [{key_of(word): word.partition("=")[2] for word in words} for words in (before, now)]
    keys = [key for key in {**said[0], **said[1]} if key.partition(".")[0] not in HOW and key not in HOW]
    pairs = [(key, *(each.get(key, "not given") for each in said)) for key in keys]
    parts = [f"{key}: {there} there, {here} here" for key, there, here in pairs if there != here]
    return "; ".join(parts) or "its words make other runs now: a default, the device, the data or a class has changed"


def resume(folder: Path, words: Sequence[str], dry_run: bool, report: Report, trust: bool = False) -> int:
    """Go on with the sweeps that were started on a folder; returns the exit status.

    words: in place of some of theirs, or beside them. trust: whether theirs may run code of anybody's.

    Raises:
        UsageError: there is none, one has such words and no trust, or what `sweep` raises.
        RunFailure: the launcher starts nothing.
    """
    noted = [note for note in SweepFolder(folder).read_notes() if note["words"]]
    noted = [note for note in noted if not any({*note["asked"]} < {*other["asked"]} for other in noted)]
    if not noted:
        raise UsageError(f"{folder} holds no sweep that can go on: give the folder of one, as outputs/{SWEEP_NAME}")
    if not trust and (foreign := SweepFolder(folder).foreign):
        what = f"{folder} has {foreign[0]!r}, which may run code of somebody's or reach another machine"
        raise UsageError(f"{what}: if you trust whoever made the sweep, add --trust")
    place = {"name": folder.absolute().name, "outputs": str(folder.parent)}
    place = {key: path if re.fullmatch(r"[a-z./][\w./-]*", path) else f"'{path}'" for key, path in place.items()}
    more = {key_of(word): word.partition("=")[2] for word in words} | place
    commands, status = [*dict.fromkeys(changed(note["words"], more) for note in noted)], 0
    for command in commands:
        status = max(status, sweep(command, dry_run, report if command == commands[-1] else lambda *_: None))
        if status >= 128:  # stopped by a signal
            break
    return status


def watch(folder: Path) -> int:
    """Show how far the sweeps of a folder are, as long as somebody is at work on them; returns the exit status.

    Where learning rates are being chosen, those runs come first.

    Raises:
        UsageError: there is no sweep.
    """
    reported, console, over, busy = SweepFolder(folder), Console(), dict[str, Standing](), True
    places = (SweepFolder(Path(f"{folder}{tuning.SUFFIX}")), reported)
    if not reported.read_notes():
        raise UsageError(f"{folder} holds no sweep: give the folder of one, such as outputs/{SWEEP_NAME}")
    while busy:
        busy = reported.is_worked_on()  # asked first: what has been done until then is seen
        for runs in places:
            entries = runs.read_plans()
            if {entry.run for entry in entries} <= over.keys():
                continue
            with closing(View(console, runs, entries)) as view:
                while busy and len(view.over) < len(entries):
                    view.look()
                    time.sleep(LOOK_SECONDS)
                    busy = reported.is_worked_on() or any(one.state == "running" for one in view.read())
            over |= view.over
        time.sleep(LOOK_SECONDS * busy)
    planned = {entry.run for runs in places for entry in runs.read_plans()}
    if all(note["runs"] for note in reported.read_notes()) and planned <= over.keys():
        say_done(console, reported, [over[entry.run] for entry in reported.read_plans()], reported.command())
    else:
        say(console, f"no process is working on {folder} now; resume with: {reported.command()}")
    return show_failures([one for one in over.values() if one.state == "failed"], reported.command())
