"""`normbench claims`: the table of claims, and what is printed of those that are run, verified or registered."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench.errors import UsageError
from normbench.settings import key_of, nearest
from normbench.stopping import Stopped
from normbench.sweep.words import settings_in
from normbench.wording import count, fixed, list_words, short, with_unit, write_minutes

if TYPE_CHECKING:  # imports pandas and scipy: after every mistake that the words alone show
    from normbench.claims.claim import Claim, Withdrawn
    from normbench.claims.run import ClaimRun
    from normbench.claims.suite import ClaimStanding, Way
    from normbench.results.claimed import Suite

ALL = "all"
DATA_ROOT = "data.root"
DATA_VARIABLE = "NORMBENCH_DATA"  # of the environment, where data of the hub are looked for


@dataclass(frozen=True)
class ClaimsRequest:
    """What a command line asks of claims.

    Attributes:
        names: of claims, `all`, or the folder for a draft.
        words: KEY=VALUE.
        folders: with further options.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    folders: tuple[Path, ...]
    minutes: float | None = None
    dry_run: bool = False
    trial: bool = False
    at_scale: bool = False
    device: str = ""
    report: bool = False
    new: bool = False
    register: bool = False
    reason: str = ""
    verify: Path | None = None
    trust: bool = False


def claims(request: ClaimsRequest) -> int:
    """Do what a command line asks of claims; return the exit status.

    Raises:
        UsageError: any mistake of the user's.
        RunFailure: the machine has ended it.
    """
    check_flags(request)
    if request.new:
        return draft(request)
    with data_root_of(request.words):
        return use_claims(request)


def use_claims(request: ClaimsRequest) -> int:
    """List, run, plan, register or verify claims; return the exit status."""
    from normbench.claims.claim import read_claims
    from normbench.claims.suite import ClaimStanding, Way

    known = read_claims(request.folders)
    words = tuple(word for word in request.words if key_of(word) != DATA_ROOT)
    way = Way(words, request.trial, request.at_scale, request.device)
    way.check()
    if request.device:
        from normbench.claims.on_gpu import claims_on_gpu

        known = claims_on_gpu(known)
    names = chosen_names(request, known)
    if request.register:
        return register([known[name] for name in names], request.reason, way)
    if request.report:
        print(write_page(request, known, way))
        return 0
    listed = names or (list(known) if request.verify else list_standing(known))
    if request.at_scale and (not names or ALL in request.names):
        listed = [name for name in listed if known[name].at_scale]
    if not names and not (request.verify or request.dry_run or request.minutes):
        show_table([ClaimStanding.of(known[name], known, way) for name in known if name in listed or not way.at_scale])
        return 0
    from normbench.claims.run import STOPPED, ClaimRun  # imports torch

    runs = [ClaimRun.of(known[name], known, way) for name in listed]
    if request.verify:
        return show_findings(request.verify, runs, are_chosen=bool(names))
    if request.dry_run:
        return show_plans(runs, request.minutes)
    for claim_run in runs:
        claim_run.console.quiet = way.is_quiet
    status = run(runs, request.minutes)
    if status >= STOPPED:
        return status
    page = write_page(request, known, way)
    if request.device and not request.trial:  # on the page of all claims they stand beside what was measured on a CPU
        here = replace(request, device="")
        page = write_page(here, read_claims(request.folders), Way(words))
    if not way.is_quiet:
        say(f"all claims side by side: {page}")
    return status


def check_flags(request: ClaimsRequest) -> None:
    """Refuse flags that do not go together.

    Raises:
        UsageError: with what to leave out.
    """
    asked = [name for name in ("new", "register", "verify", "dry_run", "report") if getattr(request, name)]
    if len(asked) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in asked[:2])
        raise UsageError(f"{first} and {second} are two things to do: give one of them")
    if request.trial and request.at_scale:
        raise UsageError("--trial and --at-scale do not go together: a trial takes the words of the line")
    if request.device:
        check_device(request)
    if request.reason and not request.register:
        raise UsageError("--reason is for --register: add it, or leave --reason out")
    if request.trust and not request.new:
        raise UsageError("--trust is for --new, which takes words from a folder: leave it out")


def check_device(request: ClaimsRequest) -> None:
    """Refuse a device that is no GPU, and what does not go with claims on one.

    Raises:
        UsageError: with what to leave out.
    """
    if not re.fullmatch(r"cuda(:\d+)?", request.device):
        what = f"--device {request.device} is no GPU on which claims are run: give cuda, or cuda:0"
        raise UsageError(f"{what}; device= as a word runs a claim as it is")
    if "device" in settings_in(request.words):
        raise UsageError(f"--device and {request.words[0]} both name a device: leave one of them out")
    if request.at_scale:
        raise UsageError("--at-scale and --device are two scales: leave one of them out")
    if request.new:
        raise UsageError("--new and --device do not go together: leave one of them out")


@contextmanager
def data_root_of(words: Sequence[str]) -> Iterator[None]:
    """Let all data of the hub be looked for where data.root= says, if a word does.

    As a word of a run it would be refused by claims whose data are not of the hub. Runs in processes of their own read
    the environment too; a command that is given next in this one has its own words.
    """
    before = os.environ.get(DATA_VARIABLE)
    root = settings_in(words).get(DATA_ROOT)
    if root is not None:
        os.environ[DATA_VARIABLE] = os.path.expanduser(root.strip("'\""))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DATA_VARIABLE, None)
        else:
            os.environ[DATA_VARIABLE] = before


def list_standing(known: Mapping[str, Claim]) -> list[str]:
    """Return the names of the claims that are not withdrawn."""
    return [name for name, claim in known.items() if not claim.withdrawn]


def chosen_names(request: ClaimsRequest, known: Mapping[str, Claim]) -> list[str]:
    """Return the names of the claims that are asked for; where all are, those that stand, in the order of their files.

    Raises:
        UsageError: there is no such claim.
    """
    if ALL in request.names:
        return list(known) if request.register or request.verify else list_standing(known)
    names = request.names
    if request.device:  # where a claim has the name of the one whose sentence it tests, too
        by_base = {claim.base: name for name, claim in known.items()}
        names = tuple(by_base.get(name, name) for name in names)
    for name in names:
        if name not in known:
            if request.device:
                raise UsageError(f"{name} has no test on a GPU: normbench claims --device cuda lists those that have")
            cure = "normbench claims lists them all, and with --config-dir DIR those of DIR/claim"
            raise UsageError(f"{name} is not a claim: {nearest(name, known)}{cure}")
    return list(dict.fromkeys(names))


# ---- the list


def show_table(claims: Sequence[ClaimStanding]) -> None:
    """Print all claims, a line each.

    Of those that stand: what each says, its verdict or why there is none, and its minutes; below, what has no room
    there. Of those that are withdrawn: since when, what stands for each, and the verdict that is struck.
    """
    console = Console()
    if not claims:
        console.print("there are no claims: --config-dir DIR looks for DIR/claim/NAME.yaml, and --new writes one")
        return
    ours = [standing for standing in claims if not standing.claim.is_own]
    theirs = [standing for standing in claims if standing.claim.is_own]
    lines = {standing.claim.name: describe_standing(standing) for standing in (*ours, *theirs)}
    listed = [standing.claim for standing in (*ours, *theirs) if not standing.claim.withdrawn]
    withdrawn = [standing.claim for standing in (*ours, *theirs) if standing.claim.withdrawn]
    days = sorted({lines[claim.name].published for claim in listed})  # that of what was not published is the first: ""
    for day in days:
        if day:
            say(f"published {day}; not run here:")
        table = table_of_claims([claim.name for claim in listed if lines[claim.name].published == day], "it says")
        table.add_column("verdict", no_wrap=True)
        table.add_column("min", no_wrap=True, justify="right")
        for claim in listed:
            line = lines[claim.name]
            if line.published == day:
                minutes = short(claim.minutes) if claim.minutes else ""  # none: its runs are another claim's
                sentence = Text(claim.claim, no_wrap=True, overflow="ellipsis")
                table.add_row(Text(claim.name), sentence, line.label, minutes)
        console.print(table)
    for claim in listed:
        if lines[claim.name].reason:
            say(f"{claim.name}: {lines[claim.name].reason}")
    if withdrawn:
        table = table_of_claims([claim.name for claim in withdrawn], "withdrawn")
        table.add_column("struck verdict")
        for claim in withdrawn:
            table.add_row(Text(claim.name), Text(lines[claim.name].reason), lines[claim.name].label)
        console.print(table)
    folder = claims[0].way.folder
    if ours:
        judged = [lines[standing.claim.name] for standing in ours if lines[standing.claim.name].is_complete]
        published = sum(bool(line.published) for line in judged)
        parts = [f"{len(judged) - published} of {count(len(ours), 'claim')} were judged here, in {folder}"]
        if published:
            parts.append(f"{published} more {'have' if published > 1 else 'has'} a published verdict")
        command = " ".join(["normbench claims NAME", *(["--device cuda"] if claims[0].way.device else [])])
        say("; ".join([*parts, f"{command} runs what is missing"]))
    if theirs:
        complete = sum(lines[standing.claim.name].is_complete for standing in theirs)
        say(f"{complete} of {len(theirs)} of your own were judged, and are a family by themselves, in {folder}")


def table_of_claims(names: Sequence[str], what: str) -> Table:
    """Return a table without rows, whose first column has room for the names of claims; the second has WHAT of each."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("claim", no_wrap=True, min_width=max(map(len, names)))  # however narrow the terminal
    table.add_column(what, overflow="fold")
    return table


@dataclass(frozen=True)
class ClaimLine:
    """How a claim stands.

    Attributes:
        label: for the table.
        reason: what has no room there; empty where nothing is left to say.
        is_complete: whether it has a verdict that counts.
        published: the day of the published result that it has in place of runs here; empty for none.
    """

    label: Text
    reason: str = ""
    is_complete: bool = False
    published: str = ""


def describe_standing(standing: ClaimStanding) -> ClaimLine:
    """Say what a claim has come to, or why it has no verdict for its registration, which is then struck out."""
    from normbench.claims.registration import why_unregistered
    from normbench.results.claimed import RegisteredClaim

    if standing.claim.withdrawn:
        return describe_withdrawal(standing, standing.claim.withdrawn)
    left_out = standing.why_left_out()
    if left_out:
        return ClaimLine(Text("damaged", "strike"), f"{left_out}: run it again")
    result = standing.read_any_result()
    if result is not None and result.digest != standing.claim.digest:
        before = str(result.judgement.verdict if result.judgement else result.status)
        return ClaimLine(Text(before, "strike"), f"was run for the registration of {result.registered}: run it again")
    if result is not None and result.judgement is not None and not standing.way.trial:
        entry = RegisteredClaim(standing.claim.name, standing.claim.content, result)
        return ClaimLine(Text(str(entry.standing)), entry.reason, is_complete=not entry.opposed)
    unregistered = "" if standing.way.trial else why_unregistered(standing.claim)
    if unregistered:
        return ClaimLine(Text("not registered"), unregistered.removeprefix(f"{standing.claim.name} "))
    if result is not None:
        return ClaimLine(Text(str(result.status)), result.reason)
    done, planned = standing.count_runs()
    if planned and done == planned:
        return ClaimLine(Text("not measured"))
    if planned:
        return ClaimLine(Text(f"{done} of {planned} runs"))
    published = standing.read_published()
    if published is not None:
        entry = RegisteredClaim(standing.claim.name, standing.claim.content, published)
        label = Text(str(entry.standing))
        return ClaimLine(label, entry.reason, is_complete=not entry.opposed, published=published.date)
    return ClaimLine(Text(f"needs {', '.join(standing.claim.needs)}" if standing.claim.needs else "not run"))


def describe_withdrawal(standing: ClaimStanding, withdrawn: Withdrawn) -> ClaimLine:
    """Say since when a claim is withdrawn, and what stands for it.

    Its label is the verdict, struck out: that of the result here, which counts no longer and so is not asked for again
    where it is damaged; else the published one.
    """
    result = None if standing.why_left_out() else standing.read_any_result()
    if result is None or result.judgement is None:
        result = standing.read_published()
    verdict = str(result.judgement.verdict) if result is not None and result.judgement is not None else ""
    others = f"; see {list_words(withdrawn.by)}" if withdrawn.by else ""
    return ClaimLine(Text(verdict, "strike"), f"on {withdrawn.date}{others}")


# ---- running


def run(runs: Sequence[ClaimRun], minutes: float | None) -> int:
    """Run claims and say what each has come to; return the exit status."""
    from normbench.claims.run import STOPPED, run_all
    from normbench.commands.report import report_of_sweep

    try:
        status = run_all(runs, report_of_sweep, minutes, show_result)
    except Stopped as stopped:
        status = stopped.status
    if status >= STOPPED:
        say("stopped; the same command goes on")
    return status


def write_page(request: ClaimsRequest, known: Mapping[str, Claim], way: Way) -> Path:
    """Write the page on all claims that are registered, or, of trials, that were tried; return its path."""
    from normbench.claims.files import CLAIM_FILE
    from normbench.claims.page import write_page as write
    from normbench.claims.registering import tell_changes
    from normbench.claims.registration import find_registration

    on_gpu = None if request.device or way.trial or way.at_scale else read_on_gpu(known, way)
    shown = {}
    for name, claim in known.items():
        was_tried = way.trial and (way.folder / name / CLAIM_FILE).exists()
        is_registered = not way.trial and find_registration(claim) is not None
        is_shown = was_tried or is_registered
        if way.at_scale and claim.at_scale is None:
            continue
        if is_shown:
            shown[name] = {**claim.content, "scope": way.apply(claim).scope}
    digests = {name: known[name].digest for name in shown}
    own_names = [name for name in shown if known[name].is_own]
    way.check_place()
    changes = {}
    for name in shown:
        if (way.folder / name / CLAIM_FILE).exists() and not way.trial:
            changes[name] = tell_changes(known[name], way.options, way.at_scale)
    page, *_ = write(way.folder, shown, digests, own_names, words_for_page(request), changes, on_gpu)
    return page


def read_on_gpu(known: Mapping[str, Claim], way: Way) -> Suite | None:
    """Return the claims on a GPU with what they have come to; None where none was run there."""
    from normbench.claims.on_gpu import claims_on_gpu
    from normbench.claims.registration import find_registration
    from normbench.claims.suite import ON_GPU, read_suites
    from normbench.results.claimed import Suite

    folder = way.outputs / ON_GPU
    if not folder.is_dir():
        return None
    derived = {name: claim for name, claim in claims_on_gpu(known).items() if find_registration(claim)}
    contents = {name: claim.content for name, claim in derived.items()}
    digests = {name: claim.digest for name, claim in derived.items()}
    own_names = [name for name, claim in derived.items() if claim.is_own]
    ours, theirs = read_suites(folder, contents, digests, [], own_names)
    return Suite([*ours.entries, *theirs.entries])


def words_for_page(request: ClaimsRequest) -> list[str]:
    """Return what a command line needs to find the claims and the results of this one, and to run them alike."""
    words = []
    if request.trial:
        words.append("--trial")
    if request.at_scale:
        words.append("--at-scale")
    if request.device:
        words += ["--device", request.device]
    for folder in request.folders:
        words += ["--config-dir", str(folder)]
    for word in request.words:
        if key_of(word) in ("outputs", DATA_ROOT):
            words.append(word)
    return words


def show_result(standing: ClaimStanding) -> None:
    """Print what a claim has come to."""
    from normbench.tell.claim_sentences import write_outcome

    result = standing.read_any_result()
    if result is None:
        return
    if standing.way.is_quiet:
        print(standing.folder)
        return
    say(f"{standing.claim.name}: {write_outcome(result, standing.claim.scope)}")


def show_plans(runs: Sequence[ClaimRun], minutes: float | None) -> int:
    """Print what would be run, how long it takes and what it could show; return the exit status."""
    from normbench.claims.run import CannotBegin, choose_within, costs_of
    from normbench.tell.claim_sizes import write_tested

    choice = choose_within(costs_of(runs), math.inf if minutes is None else minutes)
    for name, needed in choice.left_out.items():
        say(f"{name} is left out: it takes about {write_minutes(needed)}")
    runs = [claim_run for claim_run in runs if claim_run.claim.name in choice.taken]
    for claim_run in runs:
        claim_run.check()
    for claim_run in runs:
        claim = claim_run.claim
        counts = " and then ".join(map(str, claim.seeds))
        say(f"{claim.name}: {write_tested(claim.content)}")
        rule = f"{claim.kind}, margin {with_unit(short(claim.margin), claim.unit)}"
        say(f"  {claim.effect.text} of {claim.measure}, {counts} seeds, {rule}")
        say(f"  {describe_minutes(claim, choice.taken[claim.name])}")
        changed = claim_run.tell_changes()
        if changed:
            say(f"  {changed}: it is not run before it is registered anew")
        if claim.kind == "exact":
            say("  power: none is needed, as there is no chance in it")
        elif claim.pilot:
            power = claim.rule.power(claim.pilot.sd, claim.seeds[-1])
            power_text = "none, values that do not spread" if power is None else fixed(power, 2)
            say(f"  power at the margin: {power_text} (standard deviation {short(claim.pilot.sd)} of its pilot)")
        else:
            say("  power at the margin: not known without a pilot, which --trial makes")
        if claim_run.is_complete:
            continue
        try:
            planned = claim_run.plan(claim_run.looks[-1])
        except CannotBegin as error:
            if not claim.needs:
                raise
            say(f"  it cannot be run here: {error}")
            continue
        if planned is not None:
            planned.show()
        if claim_run.owner.study:
            say(f"  {describe_time_of_study(claim_run.owner, planned is not None)}")
    where = "one GPU" if runs and runs[0].way.device else "two idle cores"
    say(f"in all about {write_minutes(sum(choice.taken.values()))} on {where}")
    return 0


def describe_minutes(claim: Claim, left: float) -> str:
    """Say how many minutes a claim takes as it is registered. left: those that the missing runs still take."""
    if claim.runs_of and not claim.minutes:
        return f"its runs are those of {claim.runs_of}; left: {write_minutes(left)}"
    return f"registered: {write_minutes(claim.minutes)}; left: {write_minutes(left)}"


def describe_time_of_study(claim: Claim, trains: bool) -> str:
    """Say what is not known of the time of a claim whose rows a study measures. trains: whether it trains runs."""
    if trains:
        return f"what study {claim.study} measures of these runs takes time besides, which the registered minutes hold"
    return f"study {claim.study} trains no runs whose time could be told by a few steps: the registered minutes stand"


# ---- registering, verifying, drafting


def register(chosen: Sequence[Claim], reason: str, way: Way) -> int:
    """Register claims as they stand; return the exit status.

    way: with the words that say where further options are.

    Raises:
        UsageError: no claim is named, one is not filled in, there is no reason, or all are registered as they stand.
    """
    from normbench.claims.drafts import check_filled
    from normbench.claims.registering import register as note
    from normbench.claims.registering import tell_changes
    from normbench.claims.registration import tell_digest, why_unregistered

    if not chosen:
        raise UsageError("--register needs the names of claims: give some, or all")
    for claim in chosen:
        check_filled(claim)
    changed = [claim for claim in chosen if why_unregistered(claim) or tell_changes(claim, way.options)]
    for claim in changed or chosen:  # the first of those that stand says so
        new = note(claim, reason, date.today().isoformat(), way.options)
        say(f"{claim.name} is registered, {new.date}, {new.digest[:12]}…: {new.reason}")
    for folder in dict.fromkeys(claim.path.parent for claim in chosen):
        say(tell_digest(folder))
    return 0


def show_findings(folder: Path, runs: Sequence[ClaimRun], are_chosen: bool) -> int:
    """Print what verification has found of each claim; return 1 where something is wrong.

    Args:
        folder: of the claims, or of a single one; or of published results.
        runs: the claims.
        are_chosen: whether the person has named them; of all others those with a result are verified.

    Raises:
        UsageError: the folder holds no claim that was run.
    """
    from normbench.claims.files import CLAIM_FILE, list_published
    from normbench.claims.verify import verify, verify_published

    if (folder / CLAIM_FILE).exists():
        name = folder.absolute().name
        if not are_chosen:
            runs = [claim_run for claim_run in runs if claim_run.claim.name == name]
        folder = folder.parent
    to_verify = [claim_run.at(folder) for claim_run in runs]
    published = {path.stem for path in list_published(folder)}
    if not are_chosen:
        to_verify = [
            claim_run
            for claim_run in to_verify
            if claim_run.claim.name in published or (claim_run.folder / CLAIM_FILE).exists()
        ]
    if not to_verify:
        raise UsageError(f"{folder} holds no claim that was run: give outputs/claims, or the folder of one")
    with_runs = [claim_run for claim_run in to_verify if claim_run.claim.name not in published]
    without_runs = [claim_run for claim_run in to_verify if claim_run.claim.name in published]
    is_wrong = False
    for finding in (*verify(with_runs), *verify_published(without_runs, folder)):
        if finding.wrong:
            is_wrong = True
            say(f"{finding.name}: wrong: {'; '.join(finding.wrong)}")
        else:
            by = " by its values, as its runs are not here" if finding.name in published else ""
            say(f"{finding.name}: verified{by}, {finding.verdict}{tell_undigested(finding.undigested)}")
        if finding.changed:
            say(f"{finding.changed}; it is verified by what was registered")
    return 1 if is_wrong else 0


def tell_undigested(undigested: Sequence[str]) -> str:
    """Say what of a claim was made before records had digests, so that a change of it could not be told."""
    if not undigested:
        return ""
    more = f" and {len(undigested) - 1} more" if len(undigested) > 1 else ""
    return f" ({undigested[0]}{more}: made before digests, so that nothing tells whether it was changed)"


def draft(request: ClaimsRequest) -> int:
    """Write the YAML of a new claim, to be filled in; return the exit status.

    Raises:
        UsageError: it cannot be written.
    """
    from normbench.claims.drafts import write_draft

    if len(request.names) != 2:
        raise UsageError("--new needs a name and the folder of a sweep: normbench claims --new my-claim outputs/sweep")
    name, folder = request.names
    into = request.folders[0] if request.folders else Path()
    path = write_draft(name, Path(folder).expanduser(), into, request.folders, request.trust)
    command = shlex.join(["normbench", "claims", "--config-dir", str(into), name, "--trial"])
    say(f"fill in {path}, then try it: {command}")
    return 0


def say(line: str) -> None:
    """Print a line as it is."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
