"""A sweep from its words to its end: plan, learning rates where they are to be chosen, runs, and what has failed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from normbench.config.signatures import import_target
from normbench.config.trust import check_words
from normbench.errors import RunFailure, UsageError, explain
from normbench.record.console import Stages
from normbench.record.directory import fingerprint
from normbench.record.forms import CHOICE_FILE
from normbench.runs.contexts import explain_limits, show_notes
from normbench.runs.dry_run import measure, note_load
from normbench.runs.plan import same_elsewhere
from normbench.runs.session import Session
from normbench.runs.summary import settle_ended
from normbench.settings import key_of
from normbench.stopping import Stopped
from normbench.sweep import tuning
from normbench.sweep.folder import (
    LOOK_SECONDS,
    Plan,
    Standing,
    SweepFolder,
    View,
    say,
    say_damaged_notes,
    say_done,
    show_arms,
    show_failures,
    summarize,
)
from normbench.sweep.plan import (
    SWEEP_NAME,
    PlannedRun,
    Planner,
    SweepPlan,
    balance,
    exclude,
    make_stacks,
    read_grid,
    replace_settings,
)
from normbench.sweep.words import HOW, ONCE, SweepConfig, read_settings, settings_in
from normbench.sweep.work import Execution
from normbench.training.devices import is_here
from normbench.wording import count, whole

Report = Callable[[Path, bool], None]  # reports on the runs of a folder; the second: whether the person asked for quiet

MOST_TIMED = 8  # sizes of runs of which a plan times one each
LONGEST_TIMING = 120.0  # seconds, after which no run of a further size is timed


@dataclass
class Sweep:
    """A sweep that is planned from its words; nothing has been run or written.

    Attributes:
        words: what it is made of, without the words that are for one command only.
        plan: its runs; where learning rates are to be chosen, still at those of the configuration.
        choices: the learning rates that were chosen so far, as `tuning.choose` returns them.
        failed: runs that have failed, by name.
        seconds: what a run takes, by the size of its work, as far as that was measured.
    """

    words: Sequence[str]
    settings: SweepConfig
    planner: Planner
    plan: SweepPlan
    console: Console = field(default_factory=Console)
    choices: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, Standing] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> SweepFolder:
        """Return the folder of the runs that are reported."""
        return SweepFolder(self.plan.folder)

    @property
    def command(self) -> str:
        """Return the command that goes on with it."""
        return self.folder.command(self.words)

    @property
    def asked_runs(self) -> list[str]:
        """Return the names of the runs that the words ask for; where rates are to be chosen they say from which."""
        names = [run.run for run in self.plan.runs]
        if not self.settings.lr:
            return names
        how = {"rates": self.settings.lr_grid, "seeds": self.settings.lr_seeds}
        if self.settings.lr == tuning.EACH:
            how["for"] = tuning.EACH
        if self.settings.lr_length != 1:
            how["length"] = self.settings.lr_length
        tried = fingerprint(how)
        return [f"{name} lr {tried}" for name in names]

    def check_folder(self) -> None:
        """Refuse to add runs to those of another sweep, unless that is meant.

        Raises:
            UsageError: with the difference.
        """
        notes = self.folder.read_notes()
        asked: set[str] = set()
        for note in notes:
            asked.update(note.asked)
        new = set(self.asked_runs) - asked
        if asked and new and not self.settings.extend:
            difference = describe_difference(notes[-1].words, self.words)
            cure = f"sweep.extend=true adds {len(new):,} to its {len(asked):,} runs, and name= gives a new folder"
            raise UsageError(f"{self.plan.folder} has the runs of another sweep ({difference}): {cure}")

    # ---- --dry-run

    def show(self) -> int:
        """Say what would run; return the exit status."""
        choosing = self.plan_choosing()
        while choosing is not None and self.count_to_do(choosing) == 0:
            self.choices = tuning.choose(self.plan, choosing, self.settings)
            choosing = self.plan_choosing()
        if choosing is None:
            self.say_choices()
            self.show_plan(self.plan_reported())
        else:
            say(self.console, "runs that choose learning rates, followed by those that are reported:")
            self.show_plan(choosing, tuning.follow_up(self.plan, choosing, self.settings))
            self.show_plan(self.plan)
        self.say_left_out()
        return 0

    def show_plan(self, plan: SweepPlan, later: int = 0) -> None:
        """Print a plan, and how long it may take.

        Args:
            plan: the runs.
            later: how many runs will follow from the results of these.
        """
        folder = SweepFolder(plan.folder)
        standings: dict[str, list[Standing]] = {}
        for name, runs in plan.arms.items():
            standings[name] = [folder.read_standing(run) for run in runs]
        show_arms(self.console, plan.folder, standings)
        self.say_elsewhere(plan)
        number = self.count_to_do(plan)
        if not number:
            return
        first = plan.runs[0].prepared
        if not is_here(str(first.device)):  # the launcher takes the runs to other machines
            why = f"is not known here, as this machine has no device={first.device}"
            say(self.console, f"the time of {describe_count(number, later)} {why}")
            return
        say(self.console, self.estimate_time(plan, number, later))
        others = note_load(first.threads)
        if others:
            say(self.console, others)

    def estimate_time(self, plan: SweepPlan, number: int, later: int) -> str:
        """Return a line on how long `number` runs of a plan and `later` more will take, measured on some of them."""
        whole = describe_count(number, later)
        try:
            times, left = self.time_examples(plan)
        except RunFailure as error:
            return f"the time of {whole} is not known: {error}"
        together = min(number, self.planner.jobs)
        total = in_whole_seconds(mean(times) * (number + later) / together)
        shortest = in_whole_seconds(min(times))
        longest = in_whole_seconds(max(times))
        time_of_each = f"{shortest}" if len(set(times)) == 1 else f"{shortest} to {longest}"
        line = f"about {total} for {whole}, {together} at a time, each {time_of_each} as its start and a few steps tell"
        if left:
            line += f"; runs of {left} more sizes were not measured, since these took minutes, and may take longer"
        if self.planner.stack > 1:
            line += "; as stacks of seeds they take another time, which was not measured"
        return line

    def time_examples(self, plan: SweepPlan) -> tuple[list[float], int]:
        """Return how many seconds runs of a plan take, and how many sizes of runs are left when that has taken long.

        Raises:
            RunFailure: a run fails.
        """
        begun = time.perf_counter()
        seconds: list[float] = []
        left = set[str]()
        examples = self.examples_of(plan)
        with Stages(len(examples)) as stages:
            for number, run in enumerate(examples):
                work = work_of(run)
                is_late = time.perf_counter() - begun > LONGEST_TIMING
                if seconds and is_late and work not in self.seconds:
                    left.add(work)
                else:
                    stages.begin(f"taking a few steps of {run.run}", number)
                    seconds.append(self.seconds_of(run))
        return seconds, len(left)

    def examples_of(self, plan: SweepPlan) -> list[PlannedRun]:
        """Return runs of a plan that are to do, by which the time of all is told: every n-th where these are many."""
        to_do = self.list_to_do(plan) or list(plan.runs)
        by_work: dict[str, list[PlannedRun]] = {}
        for run in to_do:
            by_work.setdefault(work_of(run), []).append(run)
        if len(by_work) <= MOST_TIMED:
            return to_do
        works = list(by_work.values())
        step = math.ceil(len(works) / MOST_TIMED)
        chosen: list[PlannedRun] = []
        for runs in works[::step]:
            chosen += runs
        return chosen

    def seconds_of(self, run: PlannedRun) -> float:
        """Return about how many seconds a run takes; those that choose take as long as those that are reported.

        Raises:
            RunFailure: the run fails.
        """
        work = work_of(run)
        if work not in self.seconds:
            try:
                self.seconds[work] = time_run(run)
            except Exception as error:  # of a user's class, as a run of the sweep would fail with, or it diverges
                raise RunFailure(f"{run.run} fails ({explain(error)})") from error
        return self.seconds[work]

    def estimate_seconds(self) -> float:
        """Return about how many seconds all that is to be run takes, those that choose learning rates included.

        Raises:
            RunFailure: a run fails, or it takes minutes to see how long all take.
        """
        number = self.count_to_do(self.plan)
        choosing = self.plan_choosing()
        if choosing is not None:
            number_choosing = self.count_to_do(choosing) + tuning.follow_up(self.plan, choosing, self.settings)
            number += math.ceil(number_choosing * self.settings.lr_length)
        if not number:
            return 0.0
        times, left = self.time_examples(self.plan)
        if left:
            raise RunFailure(f"runs of {left} more sizes are to be timed, and the others took minutes")
        return mean(times) * number / min(number, self.planner.jobs)

    def list_to_do(self, plan: SweepPlan) -> list[PlannedRun]:
        """Return the runs of a plan that are not over."""
        folder = SweepFolder(plan.folder)
        return [run for run in plan.runs if not folder.read_standing(run).over]

    def count_to_do(self, plan: SweepPlan) -> int:
        """Return how many runs of a plan are not over."""
        return len(self.list_to_do(plan))

    def say_left_out(self) -> None:
        """Say what is not run, and why."""
        for reason, number in self.plan.left_out.items():
            say(self.console, f"{count(number, 'run')} left out: {reason}")

    def say_elsewhere(self, plan: SweepPlan) -> None:
        """Say which runs of a plan were made before with other threads, or on another device."""
        prepared = [run.prepared for run in plan.runs]
        same = same_elsewhere(prepared)
        if same:
            say(self.console, f"note: {same}")

    # ---- the runs

    def run(self, report: Report, is_part: bool = False) -> int:
        """Make the runs and report on them; return the exit status.

        Args:
            report: on the runs.
            is_part: whether they are for something that goes on with them itself, and says what is next.
        """
        self.console.quiet = self.planner.quiet
        self.say_left_out()
        try:
            with self.folder.announce_work():
                standings = self.make_runs()
        except Stopped as stopped:
            if not is_part:
                say(Console(), f"stopped by {stopped}; to go on, each run from its checkpoint: {self.command}")
            return stopped.status
        if is_part:
            say(self.console, f"{summarize(standings)} in {self.plan.folder}")
        else:
            say_done(self.console, self.folder, standings, self.command)
        if self.console.quiet and not is_part:
            print(self.plan.folder)
        has_results = any(standing.state != "failed" for standing in standings)
        if self.settings.report and has_results:
            report(self.plan.folder, self.console.quiet)
        return show_failures(list(self.failed.values()), self.command)

    def make_runs(self) -> list[Standing]:
        """Make the runs that choose, if any, and then those that are reported; return how these stand in the end."""
        if self.settings.lr:
            say(self.console, "learning rates are chosen on held-out data: a few first, then those near the best")
            self.folder.write_plan((), self.words, self.asked_runs)
        choosing = self.plan_choosing()
        while choosing is not None:
            self.finish(choosing)
            self.choices = tuning.choose(self.plan, choosing, self.settings)
            choosing = self.plan_choosing()
        if self.choices:  # noted once they are final: until then runs that are there keep the choice that they follow
            tuning.write_choices(self.plan.folder / CHOICE_FILE, self.choices, self.settings)
        self.say_choices()
        return self.finish(self.plan_reported())

    def plan_choosing(self) -> SweepPlan | None:
        """Return the runs that choose learning rates, as far as the choices so far tell; None where all are made."""
        if not self.settings.lr:
            return None
        points = tuning.tuning_grid(self.plan, self.settings, self.choices)
        return self.planner.plan(points) if points else None

    def say_choices(self) -> None:
        """Say which learning rates were chosen, if any were to be.

        Raises:
            UsageError, RunFailure: there is no good rate for any arm.
        """
        if not self.settings.lr:
            return
        for line in tuning.describe_choices(self.choices):
            say(self.console, line)
        if all(choice["lr"] is None for choice in self.choices):
            show_failures(list(self.failed.values()), self.command)
            error = RunFailure if self.failed else UsageError
            cure = "give others with sweep.lr_grid"
            raise error(f"sweep.lr={self.settings.lr} has found no learning rate for any arm: {cure}")

    def plan_reported(self) -> SweepPlan:
        """Return the runs that are reported, each at the learning rate that was chosen for its arm, if one was."""
        if not self.settings.lr:
            return self.plan
        return self.planner.plan(tuning.tuned_grid(self.plan, self.choices, self.settings))

    def is_reported(self, plan: SweepPlan) -> bool:
        """Tell whether the runs of a plan are reported; others choose learning rates."""
        return plan.folder == self.plan.folder

    def finish(self, plan: SweepPlan) -> list[Standing]:
        """Make the runs of a plan, and show how far they are; return how they stand in the end.

        Raises:
            UsageError: the folder cannot be made.
            RunFailure: the launcher starts nothing.
            Stopped: by a signal.
        """
        folder = SweepFolder(plan.folder)
        if self.settings.retry_failed:
            for run in plan.runs:
                folder.forget_failure(run.run)
        view = View(self.console, folder, plan.runs)
        left = len(plan.runs) - len(view.over)
        if left:
            if self.is_reported(plan):
                folder.write_plan(plan.runs, self.words, self.asked_runs)
            else:
                folder.write_plan(plan.runs)
            how = self.describe_jobs(left)
            what = f"{left} of {len(plan.runs)} runs to do"
            say(self.console, f"{what}, {how}, in {plan.folder}")
            self.say_elsewhere(plan)
            stacks = make_stacks(balance(plan.runs), self.planner.stack)
            execution = Execution(self.planner, folder, stacks, self.settings.timeout)
            with closing(view):
                execution.finish(view)
        standings = view.read()
        for run in plan.runs:
            summary = run.prepared.directory.read_result()
            if summary:
                settle_ended(run.prepared, summary)
        for standing in standings:
            if standing.state == "failed":
                self.failed[standing.entry.run] = standing
        return standings

    def describe_jobs(self, left: int) -> str:
        """Return in words how many of the runs that are left are made at a time, and with how many threads each."""
        planner = self.planner
        together = min(math.ceil(left / planner.stack), planner.jobs)
        line = f"{together} at a time with threads={planner.threads} each{planner.launcher.where}"
        if planner.stack > 1:
            line = f"in stacks of up to {planner.stack} seeds, {line}"
        return line


def describe_count(number: int, later: int) -> str:
    """Return in words how many runs there are, and how many more later."""
    if later:
        return f"{count(number, 'run')} and {whole(later)} more that their results ask for"
    return count(number, "run")


def in_whole_seconds(seconds: float) -> timedelta:
    """Return a time that is printed without fractions of a second, rounded up."""
    return timedelta(seconds=math.ceil(seconds))


def work_of(run: PlannedRun) -> str:
    """Return what runs that take about as long have in common: model, data, steps and batch, whatever their norm."""
    tree = run.prepared.config.tree
    trainer = {
        "steps": run.steps,
        "accumulate": tree["trainer"]["accumulate"],
        "precision": tree["trainer"]["precision"],
    }
    data = {"name": run.prepared.config.choices.groups["data"], "batch": tree["data"]["batch_size"]}
    return fingerprint({"model": tree["model"], "data": data, "trainer": trainer})


def time_run(run: PlannedRun) -> float:
    """Return how many seconds a run would take, estimated from its start and a few of its steps."""
    begun = time.perf_counter()
    session = Session(replace(run.prepared, loaded=None))  # it reads the data again, as the run's process will
    start = time.perf_counter() - begun
    return start + measure(session).seconds(run.steps)


def plan_sweep(words: Sequence[str]) -> Sweep:
    """Return a sweep with each of the runs that words ask for; the data are loaded, which prepares them for all runs.

    Raises:
        UsageError: any mistake, or nothing is left to run.
    """
    points, sweep_words = read_grid(words)
    settings, section = read_settings(sweep_words)
    path = section.pop("_target_")
    make_launcher = import_target(path, f"launcher._target_={path}")
    launcher = make_launcher(**section)
    planner = Planner(launcher, settings.jobs or 0, stack=settings.stack)
    kept, excluded = exclude(points, settings.exclude or ())
    with Console().status(f"planning {count(len(kept), 'run')}"), show_notes("quiet=true" in words):
        plan = planner.plan(kept, excluded)
    if settings.lr:
        tuning.check_tunable(plan, settings)
    lasting = [word for word in words if key_of(word) not in ONCE]
    return Sweep(lasting, settings, planner, plan)


def sweep(words: Sequence[str], dry_run: bool, report: Report) -> int:
    """Make many runs and report on them, or say what they would take; return the exit status.

    Raises:
        UsageError: any mistake in the words; nothing was started.
        RunFailure: the launcher starts nothing.
    """
    outputs = settings_in(words).get("outputs", "outputs")
    with explain_limits(outputs):
        planned = plan_sweep(words)
        planned.check_folder()
        planned.plan.runs[0].prepared.directory.check_creatable()
        return planned.show() if dry_run else planned.run(report)


def describe_difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Say in which of the words that decide about runs two sweeps differ."""
    settings_before = settings_in(before)
    settings_now = settings_in(now)
    parts: list[str] = []
    for key in settings_before | settings_now:
        was = settings_before.get(key, "not given")
        is_now = settings_now.get(key, "not given")
        decides = key not in HOW and key.partition(".")[0] not in HOW
        if decides and was != is_now:
            parts.append(f"{key}: {was} there, {is_now} here")
    if not parts:
        return "its words make other runs now: a default, the device, the data or a class has changed"
    return "; ".join(parts)


def resume(folder: Path, words: Sequence[str], dry_run: bool, report: Report, trust: bool = False) -> int:
    """Go on with the sweeps that were started on a folder; return the exit status.

    Args:
        words: in place of some of theirs, or beside them.
        report: what reports on the runs in the end.
        trust: whether theirs may run anybody's code.

    Raises:
        UsageError: there is none, one has such words and no trust, or what `sweep` raises.
        RunFailure: the launcher starts nothing.
    """
    runs = SweepFolder(folder)
    notes = [note for note in runs.read_notes() if note.words]
    if not notes:
        cure = f"give the folder of one, such as outputs/{SWEEP_NAME}"
        raise UsageError(f"{folder} holds no sweep that can go on: {cure}")
    say_damaged_notes(Console(stderr=True), [runs])
    if not trust:
        for note in runs.read_notes():
            check_words(note.words, folder)

    settings = settings_in(words)
    settings["name"] = quote(folder.absolute().name)
    settings["outputs"] = quote(str(folder.parent))
    commands: list[tuple[str, ...]] = []
    for note in notes:
        command = replace_settings(note.words, settings)
        if command not in commands and not is_part_of_another(note, notes):
            commands.append(command)

    status = 0
    for command in commands:
        is_last = command == commands[-1]
        status = max(status, sweep(command, dry_run, report if is_last else report_nothing))
        if status >= 128:  # stopped by a signal
            break
    return status


def is_part_of_another(note: Plan, notes: Sequence[Plan]) -> bool:
    """Tell whether another sweep makes all runs of a sweep, and further ones."""
    asked = set(note.asked)
    return any(asked < set(other.asked) for other in notes)


def quote(path: str) -> str:
    """Return a path as Hydra's grammar takes it for a value."""
    is_plain = re.fullmatch(r"[a-z./][\w./-]*", path)
    return path if is_plain else f"'{path}'"


def report_nothing(folder: Path, quiet: bool) -> None:
    """Report on no runs: more are to come."""


def watch(folder: Path) -> int:
    """Show how far the sweeps of a folder are for as long as a process works on them; return the exit status.

    Where learning rates are being chosen, those runs come first.

    Raises:
        UsageError: there is no sweep.
    """
    reported = SweepFolder(folder)
    choosing = SweepFolder(Path(f"{folder}{tuning.SUFFIX}"))
    console = Console()
    if not reported.read_notes():
        raise UsageError(f"{folder} holds no sweep: give the folder of one, such as outputs/{SWEEP_NAME}")
    over = follow(console, reported, (choosing, reported))
    planned = reported.read_plans()
    is_planned = all(note.runs for note in reported.read_notes())  # else rates are still to be chosen
    every_entry = [*choosing.read_plans(), *planned]
    is_over = all(entry.run in over for entry in every_entry)
    if is_planned and is_over:
        standings = [over[entry.run] for entry in planned]
        say_done(console, reported, standings, reported.command())
    else:
        say(console, f"no process is working on {folder} now; resume with: {reported.command()}")
    failed = [standing for standing in over.values() if standing.state == "failed"]
    return show_failures(failed, reported.command(), are_given=False)


def follow(console: Console, reported: SweepFolder, folders: Sequence[SweepFolder]) -> dict[str, Standing]:
    """Show how far runs are until no process works on them; return how those stand that are over, by name.

    Args:
        console: where it is shown.
        reported: the folder of the sweep, which its processes mark.
        folders: all folders of its runs.
    """
    over: dict[str, Standing] = {}
    working = True
    while working:
        working = reported.is_worked_on()  # asked first: what has been done until then is seen
        for folder in folders:
            entries = folder.read_plans()
            if all(entry.run in over for entry in entries):
                continue
            with closing(View(console, folder, entries)) as view:
                while working and len(view.over) < len(entries):
                    view.show()
                    time.sleep(LOOK_SECONDS)
                    working = reported.is_worked_on()
                    if not working:  # a run may still write its checkpoint
                        working = any(standing.state == "running" for standing in view.read())
            over |= view.over
        if working:
            time.sleep(LOOK_SECONDS)
    return over
