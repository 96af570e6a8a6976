"""Runs claims: makes what is missing of their runs, measures and judges them, and keeps what they have come to.

The runs of a claim are those of a sweep, or of a study, in a folder with the claim's name. The same command goes on
where it was stopped, and two of them share the runs, as sweeps do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins
from rich.console import Console

import normbench
from normbench.claims.checks import check_claim, find_lacking, is_in_blocks, read_seeds, seed_word, study_of
from normbench.claims.claim import FIRST_TRIAL_SEED, OLDER
from normbench.claims.files import CLAIM_FILE, read_result, write_result
from normbench.claims.measuring import (
    Measured,
    effects_of,
    has_ended,
    join,
    measure_rows,
    measure_runs,
    measure_worth,
    note_missing_seeds,
    read_rows,
    take_medians,
)
from normbench.claims.registering import tell_changes
from normbench.claims.registration import why_unregistered
from normbench.claims.suite import DECISIVE, NOTE_FILE, SUFFIXES, ClaimStanding, RunsNote
from normbench.config.trust import needs_trust
from normbench.errors import RunFailure, UsageError
from normbench.processes import end_with_parent
from normbench.record.directory import RunDirectory
from normbench.record.files import find_unused, inside, make_folder, write_json
from normbench.record.machine import commit, describe_machine, is_changed
from normbench.results.claimed import ClaimResult, Status
from normbench.results.rules import Verdict
from normbench.runs.contexts import explain_limits
from normbench.settings import key_of
from normbench.stopping import Stopped
from normbench.studies import study as studies
from normbench.studies.saving import ROWS_FILE
from normbench.sweep.folder import Entry, SweepFolder, say
from normbench.sweep.sweep import Report, Sweep, plan_sweep, report_nothing
from normbench.sweep.words import settings_in
from normbench.wording import short, write_minutes

JOBS_ON_GPU = 6  # runs at a time: while one starts, or waits for its kernels to be started, others compute
STOPPED = 128  # exit statuses from here on say that a signal has stopped the runs


class CannotBegin(UsageError):
    """The runs of a claim cannot be begun: data are not there, or something in its words does not hold here."""


@dataclass
class ClaimRun(ClaimStanding):
    """One claim that is run. console: where it is shown."""

    console: Console = field(default_factory=Console)

    @property
    def looks(self) -> list[list[int]]:
        """Return the seeds at each look at the claim; a trial has one."""
        claim = self.claim
        if not self.way.trial:
            return claim.looks
        seed_words = [word for word in self.way.words if key_of(word) == "seed"]
        if not seed_words:
            first = 0 if is_in_blocks(study_of(claim)) else FIRST_TRIAL_SEED
            return [list(range(first, first + claim.seeds[-1]))]
        return [read_seeds(seed_words)]

    # ---- words

    def words(self, seeds: Sequence[int]) -> list[str]:
        """Return the words of the sweep or study that makes the runs of some seeds."""
        words = [*self.owner.words, *self.how(), seed_word(seeds)]
        words += [f"outputs={quote(self.way.folder)}", f"name={self.owner.name}", "sweep.extend=true"]
        if not self.owner.study:
            words.append("sweep.report=false")
            if self.way.device and "sweep.jobs" not in settings_in(words):
                words.append(f"sweep.jobs={JOBS_ON_GPU}")
        return words

    def words_of_study(self, seeds: Sequence[int]) -> list[str]:
        """Return the words of the study that makes the runs of some seeds, to which it always adds more."""
        return [word for word in self.words(seeds) if key_of(word) != "sweep.extend"]

    def how(self) -> list[str]:
        """Return the words of the machine; those that decide which runs are made are as they were at the start.

        Raises:
            UsageError: others are given.
        """
        before = {} if self.way.trial else self.read_note().how or {}
        noted = {}
        for key in DECISIVE:
            if key in before and not needs_trust(f"{key}={before[key]}"):  # the folder may be somebody else's
                noted[key] = before[key]
        given = settings_in(self.way.machine)
        for key, value in noted.items():
            if key in given and given[key] != value and not (key == "device" and value in given[key]):
                cure = f"leave {key}= out to go on, or give another outputs="
                raise UsageError(
                    f"the runs of {self.owner.name} were begun with {key}={value}, not {given[key]}: {cure}"
                )
        words = [word for word in self.way.machine if key_of(word) != "outputs"]
        return [*words, *(f"{key}={value}" for key, value in noted.items() if key not in given)]

    # ---- the note of the registration

    def write_note(self, **more: Any) -> None:
        """Note for which registration runs are made, and more."""
        folder = make_folder(self.root, self.owner.name)
        note = self.read_note()
        if not note.claim:
            digest = "" if self.way.trial else self.owner.digest
            note = RunsNote(self.owner.name, digest, self.owner.registered, self.owner.words)
        write_json(inside(folder, NOTE_FILE), to_builtins(structs.replace(note, **more)))

    def set_older_aside(self) -> None:
        """Move runs and results that were made for an earlier registration into the folder of older ones.

        Raises:
            RunFailure: a process works on them.
        """
        if self.way.trial:
            return
        noted = self.read_note().digest
        if noted and noted != self.owner.digest:
            if SweepFolder(self.runs_folder).is_worked_on():
                what = f"a process is at work on the runs of an earlier registration of {self.owner.name}"
                raise RunFailure(f"{what}, in {self.runs_folder}: wait for it, or stop it")
            self.move_aside(self.runs_folder, noted)
        result = read_result(self.folder / CLAIM_FILE)
        if result and result.digest != self.claim.digest and self.folder != self.runs_folder:
            self.move_aside(self.folder, result.digest)

    def move_aside(self, folder: Path, digest: str) -> None:
        """Move a folder, and that of runs which choose learning rates, to the older ones."""
        older = make_folder(self.way.folder, OLDER)
        for suffix in SUFFIXES:
            source = folder.with_name(f"{folder.name}{suffix}")
            if source.is_dir():
                target = older / f"{folder.name}-{digest[:8]}{suffix}"
                if target.exists():  # of a registration to which the claim had come back
                    target = find_unused(target)
                os.rename(source, target)
                say(self.console, f"{source} is of an earlier registration, and kept as {target}")

    # ---- running

    def tell_changes(self) -> str:
        """Say in which settings its runs would differ from those that were registered; empty for none."""
        changed = tell_changes(self.claim, self.way.options, self.way.at_scale)
        if not changed and self.owner.name != self.claim.name:
            changed = tell_changes(self.owner, self.way.options, self.way.at_scale)
        return changed

    def check(self) -> None:
        """Refuse what can be refused before runs are made.

        Raises:
            UsageError: with the line of the mistake.
        """
        looks = self.looks
        more = [word for word in self.way.machine if key_of(word) not in ("quiet", "outputs")]
        check_claim(self.claim, looks[-1], more)

    def plan(self, seeds: Sequence[int]) -> Sweep | None:
        """Return the sweep of some seeds, or that which a study trains; None for a study that trains nothing.

        Raises:
            CannotBegin: data are not there, say.
            UsageError: the folder has other runs, or cannot be written.
        """
        try:
            if self.owner.study:
                planned = studies.plan_training(self.owner.study, self.words_of_study(seeds))
            else:
                planned = plan_sweep(self.words(seeds))
        except UsageError as error:
            raise CannotBegin(str(error)) from error
        if planned is None:
            return None
        planned.check_folder()
        planned.plan.runs[0].prepared.directory.check_creatable()
        return planned

    def run(self, report: Report) -> int:
        """Make what is missing, measure and judge it; return the exit status.

        Args:
            report: on the runs of a sweep.

        Raises:
            UsageError, RunFailure: it cannot be run.
            Stopped: by a signal.
        """
        if not self.way.trial:
            why = why_unregistered(self.claim)
            if why:
                raise UsageError(why)
            if is_changed(commit()):
                what = "normbench's code or conf has uncommitted changes, so that new runs give no verdict"
                say(self.console, f"{self.claim.name}: {what}: commit or undo them first, or add --trial")
            changed = self.tell_changes()
            if changed:
                cure = "its runs would not be those that were registered; --register --reason '…' registers it anew"
                raise UsageError(f"{changed}: {cure}")
        self.check_places()
        lacking = find_lacking(self.claim)
        if lacking:
            self.keep(self.empty_result(lacking))
            return 0
        self.set_older_aside()
        looks = self.looks
        for number, seeds in enumerate(looks, 1):
            try:
                status, measured = self.make(seeds)
            except CannotBegin as error:
                if not self.claim.needs:
                    raise
                self.keep(self.empty_result(str(error)))
                return 0
            if status >= STOPPED:
                return status
            result = self.gather_result(measured, seeds)
            judgement = result.judgement
            is_open = judgement is not None and judgement.verdict is Verdict.INCONCLUSIVE
            if result.status is not Status.COMPLETE or not is_open or number == len(looks):
                break
            say(self.console, f"{self.claim.name}: inconclusive after {len(seeds)} seeds, and goes on as planned")
        is_over = result.status in (Status.COMPLETE, Status.TRIAL)
        if is_over and not self.owner.study and not (self.claim.runs_of and self.report_page.exists()):
            report(self.runs_folder, True)
        self.keep(result)
        return 1 if result.status is Status.NOT_COMPLETE else 0

    def make(self, seeds: Sequence[int]) -> tuple[int, Measured]:
        """Make what is missing of some seeds; return the exit status, and what was measured."""
        begun = time.monotonic()
        try:
            if not self.owner.study:
                return self.make_sweep(seeds)
            if is_in_blocks(study_of(self.owner)):
                return self.make_blocks(seeds)
            return self.make_study(seeds)
        finally:
            if self.runs_folder.is_dir():
                minutes = (time.monotonic() - begun) / 60
                self.write_note(minutes=self.read_note().minutes + minutes)

    def make_sweep(self, seeds: Sequence[int]) -> tuple[int, Measured]:
        """Make the runs of a sweep."""
        with explain_limits(str(self.way.folder)):
            planned = self.plan(seeds)
            assert planned is not None  # it has no study
            planner = planned.planner
            device = planner.devices[0].partition(":")[0]
            self.write_note(how={"device": device, "threads": str(planner.threads), "sweep.stack": str(planner.stack)})
            status = planned.run(report_nothing, is_part=True)
        if status >= STOPPED:
            return status, Measured()
        return status, self.measure_sweep(planned.plan_reported().runs, seeds)

    def measure_sweep(self, entries: Sequence[Entry], seeds: Sequence[int], recompute: bool = False) -> Measured:
        """Return what the runs of some seeds have measured. entries, recompute: as `measure_runs` has them."""
        entries_of_seeds = [entry for entry in entries if entry.seed in seeds]
        measured = measure_runs(self.claim, self.runs_folder, entries_of_seeds, recompute)
        if not measured.missing:
            note_missing_seeds(self.claim, measured, seeds)
        return measured

    def make_study(self, seeds: Sequence[int]) -> tuple[int, Measured]:
        """Make a study and what it trains."""
        self.write_note()
        try:
            studies.run_study(self.owner.study, self.words_of_study(seeds))
        except UsageError as error:
            raise CannotBegin(str(error)) from error
        except Stopped as stopped:
            return stopped.status, Measured()
        return 0, self.measure_study(seeds)

    def measure_study(self, seeds: Sequence[int]) -> Measured:
        """Return what a study has measured of some seeds."""
        rows = read_rows(self.rows_file(self.runs_folder))
        measured = measure_rows(self.claim, rows.of_seeds(seeds))
        note_missing_seeds(self.claim, measured, seeds)
        return measured

    def make_blocks(self, seeds: Sequence[int]) -> tuple[int, Measured]:
        """Make a study once in a fresh process for each seed, one after the other."""
        self.write_note()
        keys_set_here = ("seed", "name", "outputs", "sweep.extend", "quiet")
        words = [word for word in self.words(seeds) if key_of(word) not in keys_set_here]
        for number in seeds:
            name = block_name(number)
            if has_ended(self.rows_file(self.runs_folder / name)):
                continue
            say(self.console, f"{self.claim.name}: process {number - seeds[0] + 1} of {len(seeds)}")
            words_of_place = [f"outputs={quote(self.runs_folder)}", f"name={name}", "quiet=true"]
            command = [sys.executable, "-m", "normbench", "study", self.owner.study, *words, *words_of_place]
            begin = partial(end_with_parent, os.getpid())
            status = subprocess.run(command, stdout=subprocess.DEVNULL, preexec_fn=begin).returncode
            if status >= STOPPED:
                return status, Measured()
            if status:
                raise RunFailure(f"study {self.owner.study} of {self.claim.name} has failed, as said above")
        return 0, self.measure_blocks(seeds)

    def measure_blocks(self, seeds: Sequence[int]) -> Measured:
        """Return what processes have measured, each by its number in place of a seed."""
        kind = study_of(self.owner)
        assert kind is not None
        parts = []
        for number in seeds:
            path = self.rows_file(self.runs_folder / block_name(number))
            if path.exists():
                measured = measure_rows(self.claim, read_rows(path))
                parts.append(take_medians(self.claim, measured, kind.columns, number))
        whole = join(parts)
        note_missing_seeds(self.claim, whole, seeds)
        return whole

    def rows_file(self, root: Path) -> Path:
        """Return the file of the rows of its study. root: the folder of the study's runs."""
        return root / "studies" / self.owner.study / ROWS_FILE

    # ---- the result

    def gather_result(self, measured: Measured, seeds: Sequence[int]) -> ClaimResult:
        """Return what was measured of the claim after some seeds; its verdict follows in `ClaimResult.judgement`."""
        values = effects_of(self.claim, measured, seeds)
        result = self.empty_result("")
        result = replace(
            result,
            values=values,
            arms=measured.values_by_arm(),
            cells=measured.cells(self.measured_columns),
            lost={arm: number for arm, number in measured.lost.items() if number},
            unreached=dict(measured.unreached),
            minutes=round(self.read_note().minutes, 2),
            machine=describe(measured.session),
            date=date.today().isoformat(),
            words=tuple(self.words(seeds)),
            report=os.path.relpath(self.report_page, self.folder),
            worth=measure_worth(self.claim, measured),
            tuning=measured.tuning,
            commits=self.list_commits(measured, seeds),
        )
        if measured.missing:
            reason = "; ".join(measured.missing[:3])
            if len(measured.missing) > 3:
                reason += f"; and {len(measured.missing) - 3} more"
            return replace(result, status=Status.NOT_COMPLETE, reason=reason)
        if self.way.trial:
            return replace(result, status=Status.TRIAL)
        changed = [commit for commit in result.commits if is_changed(commit)]
        if changed:
            reason = f"its runs were made with uncommitted changes of normbench's code or conf ({changed[0]})"
            return replace(result, status=Status.UNCOMMITTED, reason=f"{reason}, which gives no verdict: {self.cure}")
        return replace(result, status=Status.COMPLETE)

    @property
    def measured_columns(self) -> Sequence[str]:
        """Return the columns of its study that hold what was measured; none of runs."""
        kind = study_of(self.owner)
        return list(kind.columns) if kind else []

    @property
    def cure(self) -> str:
        """Return how runs that were made with uncommitted changes are replaced."""
        folders = [self.runs_folder.with_name(f"{self.runs_folder.name}{suffix}") for suffix in SUFFIXES]
        places = " and ".join(str(folder) for folder in folders if folder.is_dir())
        return f"commit or undo the changes, remove {places}, and run the claim again"

    def list_commits(self, measured: Measured, seeds: Sequence[int]) -> tuple[str, ...]:
        """Return the commits of all processes that have worked on runs or rows, each once, in no order.

        Runs that choose learning rates count too; a process of an installed package has the empty one.
        """
        sessions = list(measured.sessions)
        for suffix in SUFFIXES:
            folder = self.runs_folder.with_name(f"{self.runs_folder.name}{suffix}")
            for entry in SweepFolder(folder).read_plans():
                if suffix or entry.seed in seeds:
                    sessions += RunDirectory(folder / entry.run).sessions()
        return tuple(sorted({str(session.get("commit") or "") for session in sessions if session}))

    def empty_result(self, reason: str) -> ClaimResult:
        """Return a result of the claim without values. reason: why its runs cannot be made."""
        return ClaimResult(
            name=self.claim.name,
            digest=self.claim.digest,
            registered=self.claim.registered,
            status=Status.NOT_RUN,
            reason=reason,
            claim={**self.claim.content, "words": list(self.claim.words)},
        )

    @property
    def report_page(self) -> Path:
        """Return the page on its runs; on the first process, where there are several."""
        if not self.owner.study:
            return self.runs_folder / "report" / "report.html"
        root = self.runs_folder
        if is_in_blocks(study_of(self.owner)):
            root = root / block_name(0)
        return self.rows_file(root).with_name("report.html")

    def keep(self, result: ClaimResult) -> None:
        """Write what the claim has come to."""
        write_result(result, inside(make_folder(self.root, self.claim.name), CLAIM_FILE))


def block_name(number: int) -> str:
    """Return the name of the folder of a process."""
    return f"block{number}"


def quote(path: Path) -> str:
    """Return a path as Hydra's grammar takes it."""
    return "'" + str(path) + "'"


def describe(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine of a run's session, or this one where there is none."""
    known = dict(session) or describe_machine()
    packages = known.get("packages") or {}
    machine = {
        "processor": known.get("cpu"),
        "cores": known.get("cores"),
        "torch": packages.get("torch"),
        "normbench": normbench.__version__,
        "commit": known.get("commit"),
    }
    if known.get("accelerator"):
        machine["gpu"] = known["accelerator"]
    return machine


# ---- several


@dataclass(frozen=True)
class Cost:
    """What a claim takes. runs: their name, which claims share. runs_minutes: these take. own_minutes: besides."""

    runs: str
    runs_minutes: float
    own_minutes: float = 0.0


@dataclass(frozen=True)
class Choice:
    """Claims that fit into so many minutes.

    Attributes:
        taken: with the minutes that each takes, in the order in which they are run.
        left_out: with the minutes that each would take.
    """

    taken: dict[str, float]
    left_out: dict[str, float]


def choose_within(costs: Mapping[str, Cost], budget: float) -> Choice:
    """Choose claims for a budget: the shortest first, by name where they take as long, none that does not fit.

    Runs that several claims share count once.

    Args:
        costs: by the claim's name.
        budget: minutes for all of them.
    """
    taken: dict[str, float] = {}
    left = budget
    owners_with_runs: set[str] = set()
    while True:
        minutes: dict[str, float] = {}
        for name, cost in costs.items():
            if name not in taken:
                minutes[name] = cost.own_minutes + (0.0 if cost.runs in owners_with_runs else cost.runs_minutes)
        shortest = min(minutes, key=lambda name: (minutes[name], name), default=None)
        if shortest is None or minutes[shortest] > left:
            return Choice(taken, dict(sorted(minutes.items(), key=lambda item: (item[1], item[0]))))
        taken[shortest] = minutes[shortest]
        left -= minutes[shortest]
        owners_with_runs.add(costs[shortest].runs)


def costs_of(runs: Sequence[ClaimRun]) -> dict[str, Cost]:
    """Return what claims take, as they say; nothing for those with a verdict, and for runs of such."""
    owners_with_runs = {run.owner.name for run in runs if run.is_complete}
    costs: dict[str, Cost] = {}
    for run in runs:
        runs_minutes = 0.0 if run.owner.name in owners_with_runs else run.owner.minutes
        own_minutes = run.claim.minutes if run.claim.runs_of and not run.is_complete else 0.0
        costs[run.claim.name] = Cost(run.owner.name, runs_minutes, own_minutes)
    return costs


def run_all(runs: Sequence[ClaimRun], report: Report, budget: float | None, tell: Callable[[ClaimRun], None]) -> int:
    """Run claims, one after the other; return the exit status.

    Args:
        report: on the runs of a sweep.
        budget: minutes for all of them; None for any.
        tell: says what one has come to.

    Raises:
        UsageError: the budget is too small for any of them.
    """
    console = runs[0].console
    by_name = {run.claim.name: run for run in runs}
    names = list(by_name)
    registered: Mapping[str, float] = {}
    if budget is not None:
        choice = choose_within(costs_of(runs), budget)
        registered = choice.taken
        names = list(registered)
        for name, needed in choice.left_out.items():
            say(console, f"{name} is left out: it takes about {write_minutes(needed)}")
        if not names:
            what = f"--minutes {short(budget)} is too little for any claim"
            raise UsageError(f"{what}: the shortest takes {write_minutes(min(choice.left_out.values()))}")
    for name in names:
        if not by_name[name].is_complete:
            by_name[name].check()
    begun = time.monotonic()
    worst = 0
    for name in names:
        run = by_name[name]
        if run.is_complete:
            tell(run)
            continue
        if budget is not None:
            needed = estimate_minutes(run, registered[name])
            left = budget - (time.monotonic() - begun) / 60
            if needed > left:
                takes = f"{write_minutes(needed)} here, and {write_minutes(max(left, 0.0))} are left"
                say(console, f"{name} is left out: it takes about {takes}")
                continue
        say(console, f"{name}: {run.claim.claim}")
        try:
            status = run.run(report)
        except (RunFailure, UsageError) as failure:  # of its data or its rows, say: the others are run
            if len(names) == 1:
                raise
            say(console, f"{name}: {failure}")
            status = 2 if isinstance(failure, UsageError) else 1
        if status >= STOPPED:
            return status
        tell(run)
        worst = max(worst, status)
    return worst


def estimate_minutes(one: ClaimRun, registered: float) -> float:
    """Return about how many minutes the runs of a claim take here, as a few of their steps tell.

    Where runs cannot be begun here, it is what is registered. A study takes that too, or longer if its training alone
    does: what it measures takes time that nobody knows before.

    Args:
        one: the claim.
        registered: the minutes that are registered for what is left of it.
    """
    with suppress(Exception):  # data are not there, say, or a few steps diverge: whoever runs it says so
        planned = one.plan(one.looks[-1])
        if planned is not None:
            minutes = planned.estimate_seconds() / 60
            return max(minutes, registered) if one.owner.study else minutes
    return registered
