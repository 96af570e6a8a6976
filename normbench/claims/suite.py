"""Claims side by side: the ways in which they are run, where their runs and results lie, and what they have come to."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from normbench.claims.claim import FIRST_TRIAL_SEED, OLDER, ON_GPU_SUFFIX, Claim
from normbench.claims.files import (
    CLAIM_FILE,
    blame_result,
    find_other_rule,
    load_result,
    published_directory,
    read_published_result,
    read_result,
    read_results,
)
from normbench.claims.registration import find_witness
from normbench.config.groups import SEARCH_PATH
from normbench.errors import UsageError
from normbench.record.files import inside, read_form
from normbench.results.claimed import NOT_SETTLED, WITHDRAWN, ClaimResult, RegisteredClaim, Status, Suite
from normbench.results.rules import OF_CLAIMS, Verdict
from normbench.settings import key_of
from normbench.sweep.folder import SweepFolder
from normbench.sweep.words import settings_in

# The folders of the ways in which claims are run, in `outputs`.
CLAIMS = "claims"
TRIALS = "claims-trial"
AT_SCALE = "claims-at-scale"
ON_GPU = "claims-on-gpu"

SUFFIXES = ("", "-lr")  # of the folders of a sweep

NOTE_FILE = "registration.json"  # in the folder of runs: the registration that they were made for

# Words of the machine, which change no claim. Those of DECISIVE make other runs: they stay as they were at the start.
MACHINE = ("outputs", "quiet", "sweep.jobs", "sweep.timeout", "sweep.retry_failed", SEARCH_PATH)
DECISIVE = ("device", "threads", "sweep.stack")


class RunsNote(Struct):
    """What is noted beside the runs of a claim.

    Attributes:
        claim: whose they are.
        digest: of its registration when they were begun; empty for trials.
        registered: the day of that.
        words: of the claim.
        minutes: that the runs have taken so far.
        how: the words of the machine that decide which runs are made, by key.
    """

    claim: str = ""
    digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""
    registered: str = ""
    words: tuple[str, ...] = ()
    minutes: float = 0.0
    how: dict[str, str] | None = None


def is_of_machine(word: str) -> bool:
    """Tell whether a word says how runs are made, and not which."""
    key = key_of(word)
    return key in (*MACHINE, *DECISIVE) or key.partition(".")[0] == "launcher"


@dataclass(frozen=True)
class Way:
    """How claims are run.

    Attributes:
        words: of the command line.
        trial: with any words, on seeds of their own, without a verdict.
        at_scale: with the words that a claim has for a larger scale.
        device: the GPU on which claims are run that are derived for one; empty for all others.
    """

    words: tuple[str, ...] = ()
    trial: bool = False
    at_scale: bool = False
    device: str = ""

    @property
    def outputs(self) -> Path:
        """Return the folder of all results."""
        return Path(settings_in(self.words).get("outputs", "outputs").strip("'\"")).expanduser()

    @property
    def folder(self) -> Path:
        """Return the folder of all claims that are run in this way."""
        if self.trial:
            return self.outputs / TRIALS
        if self.device:
            return self.outputs / ON_GPU
        return self.outputs / (AT_SCALE if self.at_scale else CLAIMS)

    def check_place(self) -> None:
        """Refuse a folder of claims that leads out of that of all results.

        Raises:
            UsageError: it is a link to elsewhere.
        """
        inside(self.outputs, self.folder.name)

    @property
    def machine(self) -> tuple[str, ...]:
        """Return the words of the machine."""
        given = [word for word in self.words if is_of_machine(word)]
        return (*given, f"device={self.device}") if self.device else tuple(given)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the words that say where further options are."""
        return tuple(word for word in self.words if key_of(word) == SEARCH_PATH)

    @property
    def of_claims(self) -> list[str]:
        """Return the words that change a claim."""
        return [word for word in self.words if not is_of_machine(word)]

    @property
    def changing(self) -> tuple[str, ...]:
        """Return the words that change a claim, but for those on seeds."""
        return tuple(word for word in self.of_claims if key_of(word) != "seed")

    @property
    def is_quiet(self) -> bool:
        """Tell whether the person has asked for quiet."""
        return settings_in(self.words).get("quiet") == "true"

    def check(self) -> None:
        """Refuse words that change claims, unless it is a trial.

        Raises:
            UsageError: with the word.
        """
        if self.of_claims and not self.trial:
            what = f"{self.of_claims[0]} would change what claims say"
            raise UsageError(f"{what}: leave it out, or add --trial, which runs them without a verdict")

    def apply(self, claim: Claim) -> Claim:
        """Return a claim with the words that it has in this way.

        Raises:
            UsageError: it has none for a larger scale.
        """
        if self.at_scale:
            if claim.at_scale is None:
                raise UsageError(f"{claim.name} says nothing of a larger scale: leave out --at-scale")
            hours = claim.at_scale.hours
            minutes = claim.minutes if hours is None else 60 * hours
            scope = " ".join(claim.at_scale.words)
            claim = replace(claim.with_words(claim.at_scale.words), minutes=minutes, scope=scope)
        return claim.with_words(self.changing) if self.trial else claim


@dataclass
class ClaimStanding:
    """One claim, and how it stands.

    Attributes:
        claim: with its words in this way.
        owner: the claim whose runs are measured: the same, or another.
        place: the folder of claims, where that is not the one of the way.
    """

    claim: Claim
    owner: Claim
    way: Way
    place: Path | None = None

    @classmethod
    def of(cls, claim: Claim, claims: Mapping[str, Claim], way: Way) -> Self:
        """Return a claim as it is run in a way. claims: all of them."""
        return cls(way.apply(claim), way.apply(claims[claim.runs]), way)

    def at(self, folder: Path) -> Self:
        """Return it as it lies in another folder of claims."""
        return replace(self, place=folder)

    @property
    def root(self) -> Path:
        """Return the folder of claims in which it lies."""
        return self.place or self.way.folder

    @property
    def folder(self) -> Path:
        """Return the folder of its claim.json."""
        return self.root / self.claim.name

    @property
    def runs_folder(self) -> Path:
        """Return the folder of its runs."""
        return self.root / self.owner.name

    def check_places(self) -> None:
        """Refuse links to elsewhere in place of the folders that runs and results are written to.

        Raises:
            UsageError: with the link.
        """
        self.way.check_place()
        runs = self.owner.name
        for name in (self.claim.name, *(f"{runs}{suffix}" for suffix in SUFFIXES), OLDER):
            inside(self.root, name)

    def read_note(self) -> RunsNote:
        """Return what is noted in the folder of runs, nothing where nothing is, or it is damaged."""
        return read_form(self.runs_folder / NOTE_FILE, RunsNote) or RunsNote()

    def read_any_result(self) -> ClaimResult | None:
        """Return what it has come to, perhaps for an earlier registration; None where nothing is noted."""
        return read_result(self.folder / CLAIM_FILE)

    def why_left_out(self) -> str:
        """Return why the result that there is does not count; empty where there is none, or it counts."""
        path = self.folder / CLAIM_FILE
        if not path.exists():
            return ""
        try:
            result = load_result(path)
        except ValueError as error:
            return str(error)
        if result.digest != self.claim.digest:
            return ""
        faults = find_other_rule(result, self.claim.content)
        return blame_result(result.name, faults) if faults else ""

    @property
    def result(self) -> ClaimResult | None:
        """Return what it has come to so far, for the claim as it is registered now."""
        result = self.read_any_result()
        if result is None or result.digest != self.claim.digest or find_other_rule(result, self.claim.content):
            return None
        return result

    def read_published(self) -> ClaimResult | None:
        """Return its published result; None where there is none for its registration of today, or in another way."""
        if self.claim.is_own or self.way.trial or self.way.at_scale:
            return None
        result = read_published_result(published_directory() / f"{self.claim.name}.json")
        is_current = result is not None and result.digest == self.claim.digest
        return result if is_current and result is not None and result.judgement is not None else None

    @property
    def is_complete(self) -> bool:
        """Tell whether it has a verdict."""
        result = self.result
        return not self.way.trial and result is not None and result.status is Status.COMPLETE

    def count_runs(self) -> tuple[int, int]:
        """Return how many runs of its sweep are over, and how many are planned so far."""
        folder = SweepFolder(self.runs_folder)
        entries = folder.read_plans()
        over = 0
        for entry in entries:
            if folder.read_standing(entry).over:
                over += 1
        return over, len(entries)


# ---- all of them

# The order of what claims have come to, in tables.
ORDER = (*OF_CLAIMS, NOT_SETTLED, Status.NOT_COMPLETE, Status.UNCOMMITTED, Status.TRIAL, Status.NOT_RUN, WITHDRAWN)

OF_FOLDER = ("outputs", "name", "sweep.extend", "sweep.report")  # words that a command on claims itself gives its runs


def read_suites(
    folder: Path,
    claims: Mapping[str, Mapping[str, Any]],
    digests: Mapping[str, str],
    left_out: list[str],
    own: Container[str] = (),
    changes: Mapping[str, str] = {},
) -> tuple[Suite, Suite]:
    """Return normbench's registered claims, and a person's own, so that neither changes what is said of the other.

    Args:
        folder, claims, digests, left_out, changes: as `read_suite` has them.
        own: names of a person's own claims.
    """
    ours = {name: claim for name, claim in claims.items() if name not in own}
    theirs = {name: claim for name, claim in claims.items() if name in own}
    suite = read_suite(folder, ours, digests, left_out, changes)
    return suite, read_suite(folder, theirs, digests, [], changes)  # of the same files


def read_suite(
    folder: Path,
    claims: Mapping[str, Mapping[str, Any]],
    digests: Mapping[str, str],
    left_out: list[str],
    changes: Mapping[str, str] = {},
) -> Suite:
    """Return registered claims that are corrected together, with what is found of them below a folder.

    They are sorted by `ORDER` and by name. A result of which something does not follow from its own values, or that
    does not lie where those of its claim do, counts as none. Nor does that of a claim that is withdrawn: it stays among
    those that are registered, with p = 1, so that taking it back makes no other verdict easier. So does one whose own
    confounds say the opposite (`found` with `opposite`).

    Args:
        folder: of NAME/claim.json, or of NAME.json where they are published.
        claims: key and value of the YAML of each registered claim, by name.
        digests: sha256 of each as it is registered.
        left_out: to which a sentence is added for each result that does not count.
        changes: in which settings words ask for other runs now than when they were registered, by the claim's name.
    """
    from normbench.results.family import correct_verdicts  # imports all that reports test

    results = read_results(folder, left_out)
    older = read_older(folder, left_out)
    current = dict[str, ClaimResult]()
    for name, result in results.items():
        is_current = digests.get(name) == result.digest
        if name not in claims or not (is_current or result.judgement):
            continue
        faults = find_other_rule(result, claims[name]) if is_current else []
        if faults:
            left_out.append(blame_result(name, faults))
        elif is_current and claims[name].get("withdrawn"):
            older.append(result)
        elif is_current:
            current[name] = result
        else:
            older.append(result)
    entries = []
    for name, claim in claims.items():
        before = [result for result in older if result.name == name]
        found = current.get(name)
        witness = ""
        if found:
            witness = find_witness(name, found.digest, found.commits or [found.machine.get("commit")])
        entries.append(RegisteredClaim(name, claim, found, before, witness=witness, changed=changes.get(name, "")))
    corrected = correct_verdicts({entry.name: entry.judgement for entry in entries})
    entries = [replace(entry, corrected=corrected[entry.name]) for entry in entries]
    entries.sort(key=lambda entry: (ORDER.index(entry.standing), entry.name))
    return Suite(entries)


def put_beside(suite: Suite, on_gpu: Suite) -> Suite:
    """Return claims, each with the one that tests the same sentence on a GPU."""
    by_name = {entry.name: entry for entry in on_gpu.entries}
    return Suite([replace(entry, on_gpu=by_name.get(f"{entry.name}{ON_GPU_SUFFIX}")) for entry in suite.entries])


def read_older(folder: Path, left_out: list[str]) -> list[ClaimResult]:
    """Return the results with a verdict that were put aside below a folder, each for an earlier registration.

    left_out: as `read_suite` has it.
    """
    older = []
    for path in sorted(folder.glob(f"{OLDER}/*/{CLAIM_FILE}")):
        try:
            result = load_result(path)
        except ValueError as error:
            left_out.append(str(error))
            continue
        if result.judgement:
            older.append(result)
    return older


# ---- words of a command


def settling_words(entry: RegisteredClaim) -> list[str]:
    """Return the words that try an inconclusive claim with as many new seeds as settle it; none for other claims."""
    judgement = entry.judgement
    if judgement is None or not judgement.seeds_to_settle or judgement.verdict is not Verdict.INCONCLUSIVE:
        return []
    last = FIRST_TRIAL_SEED + judgement.seeds_to_settle
    return ["--trial", f"seed=range({FIRST_TRIAL_SEED},{last})"]


def trial_words(entry: RegisteredClaim) -> list[str]:
    """Return the words with which a claim was tried, other than those that it has itself; none for other claims."""
    result = entry.result
    if result is None or result.status is not Status.TRIAL:
        return []
    words_of_claim = entry.claim["words"]
    return [word for word in result.words if word not in words_of_claim and key_of(word) not in OF_FOLDER]
