"""What makes a comparison unfair, from the recorded facts: one sentence each."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normbench.analysis.comparisons import (
    LEARNING_RATE,
    LOST,
    Comparison,
    rate_families,
    settled_seeds,
    shortened,
    without_rate,
)
from normbench.analysis.measures import known
from normbench.analysis.records import Arm, Run, Study, candidates, setting
from normbench.analysis.wording import count
from normbench.catalog import GROUPS
from normbench.rundir import CHOICE_FILE, read_json

SHORT = 8  # characters of a commit or a fingerprint that tell it

# Seeds of one arm do the same work: medians further apart than this were measured under different conditions.
STEADY = 1.5
FEWEST_STEPS = 10  # steps that a median must be of at least


@dataclass(frozen=True)
class Finding:
    """One fact. topic: a word or two. text: the sentence. serious: whether it may decide who wins."""

    topic: str
    text: str
    serious: bool = True


def findings(
    study: Study,
    rates_chosen: bool = False,
    comparisons: Sequence[Comparison] = (),
    missing: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """Return all that is unfair in a study, what may decide it first.

    rates_chosen: whether a learning rate was chosen for each arm on what is reported. comparisons: of its arms.
    missing: planned runs without a directory -> why, where they have failed.
    """
    checks = (
        damaged, equal_everywhere, versions, seeds, doubles, nowhere, ledgers, learning_rates, open_rates, settings,
        step_times,
    )  # fmt: skip
    found = [*(finding for check in checks for finding in check(study)), *survivors(comparisons)]
    found += not_made(missing or {})
    if rates_chosen:
        text = "the learning rate of each arm was chosen by the validation loss of the runs that are reported"
        found.append(Finding("learning rate", f"{text}, which favours arms with more rates to choose from"))
    return tuple(sorted(found, key=lambda finding: not finding.serious))


# ---- what all runs should have in common


@dataclass(frozen=True)
class Equal:
    """What should be the same in all runs. read: its values in a run. unless: where one of these settings varies, it
    explains the difference; one that ends in a dot stands for all below it."""

    topic: str
    words: str
    read: Callable[[Run], Iterable[Any]]
    unless: tuple[str, ...] = ()
    serious: bool = True

    def check(self, study: Study) -> Iterator[Finding]:
        """Say which arms have which values, where they are not all the same."""
        below = tuple(key for key in self.unless if key.endswith("."))
        if any(varied in self.unless or varied.startswith(below) for varied in study.varied):
            return
        if len(found := arms_by_value(study, self.read)) > 1:
            yield Finding(self.topic, f"{self.words}: {values_in_words(found)}", self.serious)


def of_sessions(key: str) -> Callable[[Run], Iterable[Any]]:
    """Read what the sessions of a run have, also those before it was stopped and taken up again."""
    return lambda run: (session.get(key) for session in run.sessions)


def of_ledger(words: str, key: str, *unless: str, serious: bool = True) -> Equal:
    """Compare an entry of the ledger."""
    return Equal("ledger", f"the arms differ in {words}", lambda run: [ledger(run).get(key)], unless, serious)


def ledger(run: Run) -> Mapping[str, Any]:
    """Return what a run notes of its arithmetic."""
    return run.summary.get("ledger") or {}


def implementation(run: Run) -> str | None:
    """Return what kind of implementation the norm has: its operator's name alone is another for each norm."""
    name = ledger(run).get("implementation")
    return None if name is None else "torch's operator" if "torch.nn.functional" in str(name) else str(name)


def short_commit(commit: str) -> str:
    """Return a commit's first digits, and whether there were changes."""
    head, plus, changes = commit.partition("+")
    return head[:SHORT] + plus + changes


EQUAL = (
    Equal("unequal steps", "runs are not all of the same length, in steps", lambda run: [run.steps or None],
          ("trainer.steps", "trainer.epochs")),
    Equal("different data", "the data are not the same, by their fingerprints",
          lambda run: [(run.data.get("fingerprint") or "")[:SHORT] or None], ("data",)),
    Equal("different machines", "times do not compare over different processors", of_sessions("cpu")),
    Equal("different machines", "times do not compare over different accelerators", of_sessions("accelerator")),
    Equal("different machines", "times do not compare over different devices", of_sessions("device")),
    Equal("different threads", "times do not compare over numbers of threads", of_sessions("threads")),
)  # fmt: skip
LEDGER = (
    of_ledger("eps", "eps", "norm.eps"),
    of_ledger("weight decay of the norms' γ and β", "norm_parameters_decayed", "trainer.decay_norms"),
    of_ledger("initialisation", "init", "init", "init."),
    of_ledger("scaling of residual branches at initialisation", "residual_scale", "init", "init."),
    of_ledger("gain of branches at initialisation", "branch_gain", "placement", "placement."),
    of_ledger("gain of the residual stream", "residual_gain", "placement", "placement."),
    of_ledger("precision", "precision", "trainer.precision"),
    of_ledger("batches a step", "batches_a_step", "trainer.accumulate"),
    of_ledger("compilation", "compiled", "trainer.compile", serious=False),
    Equal("ledger", "the arms differ in implementation (step times then compare kernels, not norms)",
          lambda run: [implementation(run)], ("norm.impl",), False),
    Equal("ledger", "the arms differ in number of parameters",
          lambda run: [(ledger(run).get("parameters") or {}).get("total")], ("model", "model."), False),
)  # fmt: skip

# What is said elsewhere, or changes no result.
SAID = ("trainer.steps", "trainer.epochs", "trainer.log_every", "trainer.decay_norms", "trainer.precision",
        "trainer.accumulate", "trainer.compile", "norm.eps", "norm.impl", LEARNING_RATE)  # fmt: skip


def equal_everywhere(study: Study) -> Iterator[Finding]:
    """Find runs of different lengths, on different data, or on different machines, which make times incomparable."""
    for rule in EQUAL:
        yield from rule.check(study)


def ledgers(study: Study) -> Iterator[Finding]:
    """Find entries of the ledger that differ and are not what is compared."""
    for rule in LEDGER:
        yield from rule.check(study)


def versions(study: Study) -> Iterator[Finding]:
    """Find different versions of what made the runs."""
    rules = {
        f"{name} is not always the same": lambda run, name=name: (
            (session.get("packages") or {}).get(name) for session in run.sessions
        )
        for name in sorted({name for run in study.runs for one in run.sessions for name in one.get("packages") or {}})
    }
    rules["Python is not always the same"] = of_sessions("python")
    rules["the code is not always the same, by commit"] = lambda run: (
        commit and short_commit(commit) for commit in of_sessions("commit")(run)
    )
    for words, read in rules.items():
        yield from Equal("different versions", words, read).check(study)


def settings(study: Study) -> Iterator[Finding]:
    """Find settings that go along with what is compared."""
    compared, asked = [key for key in study.varied if key in GROUPS], asked_for(study)
    for key in candidates(study.runs):
        if key in GROUPS or key in study.varied or key in SAID:
            continue
        if key.partition(".")[0] in compared and (key not in asked or key.endswith("._target_")):
            continue  # an option has its own values
        rule = Equal("settings", f"the arms differ in {key} too", lambda run, key=key: [run.config.get(key)])
        yield from rule.check(study)


def asked_for(study: Study) -> set[str]:
    """Return the keys that the commands of runs set: what they say does not follow from an option."""
    words = (word for run in study.runs for word in str(run.session.get("command") or "").split())
    return {word.strip("'\"").lstrip("+~").partition("=")[0] for word in words if "=" in word}


# ---- what no arm should have


def takes_one(key: str) -> Callable[[Run], bool]:
    """Say whether a norm's statistics cross samples, and a batch has one."""
    return lambda run: bool((run.summary.get("norm_facts") or {}).get("crosses_samples")) and run.config.get(key) == 1


# Of a run that has it: the topic, how the sentence goes on behind the names of the arms, and whether a run has it.
NOWHERE: tuple[tuple[str, str, Callable[[Run], Any]], ...] = (
    ("leaking norm", "the norm shows each position its future in training, so its training loss does not compare",
     lambda run: run.summary.get("leak")),
    ("padding", "the norm counts the padding of shorter texts in its statistics",
     lambda run: run.summary.get("padding")),
    ("batch of one", "the norm takes statistics over the batch, and is trained at a batch size of 1",
     takes_one("data.batch_size")),
    ("batch of one", "the norm takes statistics over the batch, and is judged at a batch size of 1",
     takes_one("data.eval_batch_size")),
)  # fmt: skip
NO_RESULT_YET = {"running": "still going or killed", "interrupted": "interrupted"}


def nowhere(study: Study) -> Iterator[Finding]:
    """Find runs that may still become results, and norms that see what they should not."""
    for status, words in NO_RESULT_YET.items():
        if number := sum(run.status == status for run in study.runs):
            names = shortened(arms_with(study, lambda run, status=status: run.status == status), 6)
            yield Finding("unfinished runs", f"{count(number, 'run')} {words}, so no result yet: {names}")
    for topic, words, has in NOWHERE:
        if names := arms_with(study, has):
            yield Finding(topic, f"{shortened(names, 6)}: {words}")


def damaged(study: Study) -> Iterator[Finding]:
    """Find runs that cannot be read, and those whose last line is half written."""
    for name, why in study.damaged:
        yield Finding("damaged run", f"{name} is left out: {why}")
    for run in study.runs:
        if run.recorded.torn:
            yield Finding("torn line", f"{run.name} is read up to it: {run.recorded.torn}", serious=run.ended)


def step_times(study: Study) -> Iterator[Finding]:
    """Find arms whose seeds took unlike times for the same work."""
    ratios = {}
    for arm in study.arms:
        times = [run.summary.get("step_time", {}) for run in arm.runs]
        medians = known(time.get("median_ms") for time in times if (time.get("n") or 0) >= FEWEST_STEPS)
        if medians and max(medians) > STEADY * min(medians) > 0:
            ratios[arm.name] = max(medians) / min(medians)
    if ratios:
        text = "so runs disturbed each other, or the machine did other work: their times say little"
        worst = f"step times differ up to {max(ratios.values()):.1f}-fold between seeds of one arm"
        yield Finding("step times", f"{worst}, {text}: {shortened(list(ratios), 6)}", serious=False)


# ---- seeds


def seeds(study: Study) -> Iterator[Finding]:
    """Find arms that lack a seed that others have."""
    every = {run.seed for run in study.runs}
    lacking: dict[str, list[str]] = {}
    for arm in study.arms:
        if lacks := every - {run.seed for run in arm.runs}:
            lacking.setdefault(shortened([str(seed) for seed in sorted(lacks)]), []).append(arm.name)
    for lacks, names in lacking.items():
        yield Finding("missing seeds", f"{shortened(names, 6)}: no run with seed {lacks}, which other arms have")


def doubles(study: Study) -> Iterator[Finding]:
    """Find several runs of one arm with one seed."""
    for arm in study.arms:
        for seed, number in Counter(run.seed for run in arm.runs).items():
            if number > 1:
                names = shortened([run.name for run in arm.runs if run.seed == seed], 4)
                yield Finding("doubles", f"{arm.name} has {number} runs with seed {seed}, whose mean counts: {names}")


def survivors(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Find arms that lost runs and are judged by those that are left."""
    arms = {arm.name: arm for one in comparisons if one.n and one.survived for arm in (one.baseline, one.arm)}
    if losers := [f"{name}: {words}" for name, arm in arms.items() if (words := losses(arm))]:
        text = "arms are compared only on the seeds that survived in both, which flatters those that lose runs"
        yield Finding("lost runs", f"{'; '.join(losers[:6])}; {text}")


def losses(arm: Arm) -> str:
    """Say how many runs of an arm were lost and how, such as `2 of 5 runs diverged, 1 of 5 runs failed`."""
    counts = Counter(run.status for run in arm.runs)
    words = {"diverged": "diverged", "failed": "failed", "out_of_memory": "ran out of memory"}
    return ", ".join(f"{counts[status]} of {len(arm.runs)} runs {words[status]}" for status in LOST if counts[status])


def not_made(missing: Mapping[str, str]) -> Iterator[Finding]:
    """Find runs that a sweep has planned and that are not there."""
    if missing:
        names = shortened([f"{name} ({why})" if why else name for name, why in missing.items()], 3)
        number = "1 planned run is" if len(missing) == 1 else f"{len(missing)} planned runs are"
        yield Finding("missing runs", f"{number} not there (failed or not begun): {names}")


# ---- learning rates


def learning_rates(study: Study) -> Iterator[Finding]:
    """Find learning rates that go along with what is compared: fair where each was chosen for its arm on other data."""
    found = arms_by_value(study, lambda run: [run.config.get(LEARNING_RATE)])
    if LEARNING_RATE in study.varied or len(found) < 2:
        return
    noted = {folder: read_json(folder / CHOICE_FILE) or {} for folder in {run.path.parent for run in study.runs}}
    choices = {run.path: choice_of(run, noted[run.path.parent].get("arms", [])) for run in study.runs}
    if all(choices.values()):
        text = "the learning rate of each arm was chosen on data held out of the training data"
        yield Finding("learning rate", f"{text}: {values_in_words(found)}", serious=False)
        if names := arms_with(study, lambda run: choices[run.path].get("edge")):
            text = "the chosen learning rate is at the end of those tried, so a wider grid may have a better one"
            yield Finding("learning rate", f"{shortened(names, 6)}: {text}")
    elif "optim" not in study.varied or LEARNING_RATE in asked_for(study):
        text = f"the arms differ in {LEARNING_RATE} too, which is fair only if each was chosen for its arm"
        yield Finding("settings", f"{text}: {values_in_words(found)}")


def choice_of(run: Run, noted: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what a sweep with `sweep.lr=auto` has noted of the choice of a run's rate; nothing where it chose none."""
    for choice in noted:
        groups = ((key, value) for key, value in choice["arm"].items() if key in GROUPS)
        rates = run.config.get(LEARNING_RATE), choice["lr"]
        if None not in rates and math.isclose(*rates) and all(str(setting(run, key)) == value for key, value in groups):
            return choice
    return {}


def open_rates(study: Study) -> Iterator[Finding]:
    """Find arms whose learning rates have not all ended with the same seeds, so that another may yet be chosen."""
    for family in rate_families(study):
        every = {run.seed for arm in family for run in arm.runs}
        lacking = {arm.settings[LEARNING_RATE]: lacks for arm in family if (lacks := every - settled_seeds(arm))}
        if lacking:
            seeds = {rate: shortened([str(seed) for seed in sorted(lacks)], 6) for rate, lacks in lacking.items()}
            words = "; ".join(f"lr {in_words(rate)} lacks seed {listed}" for rate, listed in seeds.items())
            text = f"{without_rate(family[0]).name}: the choice of its learning rate is not final, as {words}"
            yield Finding("learning rate", text)


# ---- arms and what they have


def arms_by_value(study: Study, read: Callable[[Run], Iterable[Any]]) -> dict[Any, list[str]]:
    """Return the names of the arms that have each value, without runs that do not tell; odd values by their text."""
    found: dict[Any, dict[str, None]] = {}
    for arm in study.arms:
        for run in arm.runs:
            for value in read(run):
                if value is not None:
                    key = value if isinstance(value, int | float | str) else json.dumps(value, default=str)
                    found.setdefault(key, {})[arm.name] = None
    return {value: list(names) for value, names in found.items()}


def arms_with(study: Study, has: Callable[[Run], Any]) -> list[str]:
    """Return the names of the arms of which a run is such."""
    return [arm.name for arm in study.arms if any(has(run) for run in arm.runs)]


def values_in_words(found: Mapping[Any, Sequence[str]]) -> str:
    """Write values and who has them, such as `100 (layernorm), 200 (rmsnorm, dyt)`."""
    return "; ".join(f"{in_words(value)} ({shortened(names, 4)})" for value, names in found.items())


def in_words(value: Any) -> str:
    """Write a value: numbers short, yes and no for truths."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
