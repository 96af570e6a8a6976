"""What makes a comparison unfair, from the recorded facts: one sentence each."""

from __future__ import annotations

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
from normbench.analysis.facts import (
    Finding,
    arms_with,
    by_value,
    config_value,
    has_status,
    in_words,
    of_runs,
    of_sessions,
    package,
    session_value,
    takes_one,
    values_in_words,
)
from normbench.analysis.measures import known
from normbench.analysis.records import Arm, Run, Study, candidates
from normbench.analysis.tuned import chosen_on_held_out_data
from normbench.config.groups import GROUPS

SHORT = 8  # characters of a commit or a fingerprint that tell it


@dataclass(frozen=True)
class Entry:
    """A line of the ledger that is compared. keys: the settings that explain why it differs. serious: as in Finding."""

    words: str
    read: Callable[[Mapping[str, Any]], Any]
    keys: tuple[str, ...] = ()
    serious: bool = True


def implementation(ledger: Mapping[str, Any]) -> str | None:
    """What kind of implementation the norm has: its operator's name alone is another for each norm."""
    name = ledger.get("implementation")
    return None if name is None else "torch's operator" if "torch.nn.functional" in str(name) else str(name)


LEDGER = (
    Entry("eps", lambda ledger: ledger.get("eps"), ("norm.eps",)),
    Entry(
        "weight decay of the norms' γ and β",
        lambda ledger: ledger.get("norm_parameters_decayed"),
        ("trainer.decay_norms",),
    ),
    Entry("initialisation", lambda ledger: ledger.get("init"), ("init",)),
    Entry("scaling of residual branches at initialisation", lambda ledger: ledger.get("residual_scale"), ("init",)),
    Entry("gain of branches at initialisation", lambda ledger: ledger.get("branch_gain"), ("placement",)),
    Entry("gain of the residual stream", lambda ledger: ledger.get("residual_gain"), ("placement",)),
    Entry("precision", lambda ledger: ledger.get("precision"), ("trainer.precision",)),
    Entry("batches a step", lambda ledger: ledger.get("batches_a_step"), ("trainer.accumulate",)),
    Entry("compilation", lambda ledger: ledger.get("compiled"), ("trainer.compile",), False),
    Entry("implementation (step times then compare kernels, not norms)", implementation, ("norm.impl",), False),
    Entry("number of parameters", lambda ledger: (ledger.get("parameters") or {}).get("total"), ("model",), False),
)

# What is said elsewhere, or changes no result.
SAID = ("trainer.steps", "trainer.epochs", "trainer.log_every", "trainer.decay_norms", "trainer.precision",
        "trainer.accumulate", "trainer.compile", "norm.eps", "norm.impl")  # fmt: skip

LENGTHS = ("trainer.steps", "trainer.epochs")

# Seeds of one arm do the same work: medians further apart than this were measured under different conditions.
STEADY = 1.5
FEWEST_STEPS = 10  # steps that a median must be of at least


def findings(
    study: Study,
    rates_chosen: bool = False,
    comparisons: Sequence[Comparison] = (),
    missing: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """All that is unfair in a study, what may decide it first.

    rates_chosen: whether a learning rate was chosen for each arm on what is reported. comparisons: of its arms.
    missing: planned runs without a directory -> why, where they have failed.
    """
    checks = (
        damaged, torn, steps, fingerprints, machines, versions, seeds, doubles, unfinished, leaks, paddings,
        single_samples, ledgers, learning_rates, open_rates, settings, step_times,
    )  # fmt: skip
    found = [*(finding for check in checks for finding in check(study)), *survivors(comparisons)]
    found += not_made(missing or {})
    if rates_chosen:
        text = "the learning rate of each arm was chosen by the validation loss of the runs that are reported"
        found.append(Finding("learning rate", f"{text}, which favours arms with more rates to choose from"))
    return tuple(sorted(found, key=lambda finding: not finding.serious))


def ledger_value(entry: Entry) -> Callable[[Run], Any]:
    """A line of the ledger."""
    return lambda run: entry.read(run.summary.get("ledger") or {})


def damaged(study: Study) -> Iterator[Finding]:
    """Runs that cannot be read."""
    for name, why in study.damaged:
        yield Finding("damaged run", f"{name} is left out: {why}")


def torn(study: Study) -> Iterator[Finding]:
    """Runs whose last line is half written."""
    for run in study.runs:
        if run.recorded.torn:
            yield Finding("torn line", f"{run.name} is read up to it: {run.recorded.torn}", serious=run.ended)


def steps(study: Study) -> Iterator[Finding]:
    """Runs of different lengths, unless that is what is compared."""
    if any(key in study.varied for key in LENGTHS):
        return
    if len(found := of_runs(study, lambda run: run.steps or None)) > 1:
        yield Finding("unequal steps", f"runs are not all of the same length, in steps: {values_in_words(found)}")


def fingerprints(study: Study) -> Iterator[Finding]:
    """Different data under one name."""
    if "data" in study.varied:
        return
    found = of_runs(study, fingerprint)
    if len(found) > 1:
        short = {str(value)[:SHORT]: names for value, names in found.items()}
        yield Finding("different data", f"the data are not the same, by their fingerprints: {values_in_words(short)}")


def fingerprint(run: Run) -> Any:
    """What tells the data apart."""
    return (run.summary.get("data") or run.session.get("data") or {}).get("fingerprint")


def machines(study: Study) -> Iterator[Finding]:
    """Different machines or threads, which make times incomparable."""
    for key, words in (("cpu", "processors"), ("accelerator", "accelerators"), ("device", "devices")):
        if len(found := of_sessions(study, session_value(key))) > 1:
            yield Finding(
                "different machines", f"times do not compare over different {words}: {values_in_words(found)}"
            )
    if len(found := of_sessions(study, session_value("threads"))) > 1:
        yield Finding("different threads", f"times do not compare over numbers of threads: {values_in_words(found)}")


def versions(study: Study) -> Iterator[Finding]:
    """Different versions of what made the runs."""
    names = sorted({name for run in study.runs for session in run.sessions for name in session.get("packages") or {}})
    for name in names:
        found = of_sessions(study, package(name))
        if len(found) > 1:
            yield Finding("different versions", f"{name} is not always the same: {values_in_words(found)}")
    if len(found := of_sessions(study, session_value("python"))) > 1:
        yield Finding("different versions", f"Python is not always the same: {values_in_words(found)}")
    if len(found := of_sessions(study, session_value("commit"))) > 1:
        short = {shorter(str(commit)): names for commit, names in found.items()}
        yield Finding("different versions", f"the code is not always the same, by commit: {values_in_words(short)}")


def shorter(commit: str) -> str:
    """A commit's first digits, and whether there were changes."""
    head, plus, changes = commit.partition("+")
    return head[:SHORT] + plus + changes


def seeds(study: Study) -> Iterator[Finding]:
    """Arms that lack a seed that others have."""
    every = {run.seed for run in study.runs}
    lacking = by_value((missing, arm.name) for arm in study.arms if (missing := missing_seeds(arm, every)))
    for missing, names in lacking.items():
        yield Finding("missing seeds", f"{shortened(names, 6)}: no run with seed {missing}, which other arms have")


def missing_seeds(arm: Arm, every: set[int]) -> str:
    """The seeds that an arm lacks."""
    return shortened([str(seed) for seed in sorted(every - {run.seed for run in arm.runs})])


def doubles(study: Study) -> Iterator[Finding]:
    """Several runs of one arm with one seed."""
    for arm in study.arms:
        for seed, count in Counter(run.seed for run in arm.runs).items():
            if count > 1:
                names = shortened([run.name for run in arm.runs if run.seed == seed], 4)
                yield Finding("doubles", f"{arm.name} has {count} runs with seed {seed}, whose mean counts: {names}")


def unfinished(study: Study) -> Iterator[Finding]:
    """Runs that may still become results."""
    for status, words in (
        ("running", "still going or killed, so no result yet"),
        ("interrupted", "interrupted, so no result yet"),
    ):
        count = sum(run.status == status for run in study.runs)
        if count:
            names = arms_with(study, has_status(status))
            runs = "1 run" if count == 1 else f"{count} runs"
            yield Finding("unfinished runs", f"{runs} {words}: {shortened(names, 6)}")


def leaks(study: Study) -> Iterator[Finding]:
    """Norms that show a causal model its future."""
    if names := arms_with(study, lambda run: run.summary.get("leak")):
        text = "the norm shows each position its future in training, so its training loss does not compare"
        yield Finding("leaking norm", f"{shortened(names, 6)}: {text}")


def paddings(study: Study) -> Iterator[Finding]:
    """Norms that count padding."""
    if names := arms_with(study, lambda run: run.summary.get("padding")):
        yield Finding(
            "padding", f"{shortened(names, 6)}: the norm counts the padding of shorter texts in its statistics"
        )


def single_samples(study: Study) -> Iterator[Finding]:
    """Norms over the batch with a batch of one sample."""
    for key, words in (("data.batch_size", "trained"), ("data.eval_batch_size", "judged")):
        names = arms_with(study, takes_one(key))
        if names:
            text = f"the norm takes statistics over the batch, and is {words} at a batch size of 1"
            yield Finding("batch of one", f"{shortened(names, 6)}: {text}")


def ledgers(study: Study) -> Iterator[Finding]:
    """Entries of the ledger that differ and are not what is compared."""
    for entry in LEDGER:
        if any(varied == key or varied.startswith(f"{key}.") for varied in study.varied for key in entry.keys):
            continue
        found = of_runs(study, ledger_value(entry))
        if len(found) > 1:
            yield Finding("ledger", f"the arms differ in {entry.words}: {values_in_words(found)}", entry.serious)


def settings(study: Study) -> Iterator[Finding]:
    """Settings that go along with what is compared."""
    compared = [key for key in study.varied if key in GROUPS]
    asked = asked_for(study)
    for key in candidates(study.runs):
        if key in GROUPS or key in study.varied or key in SAID or key == LEARNING_RATE:
            continue
        if key.partition(".")[0] in compared and (key not in asked or key.endswith("._target_")):
            continue  # an option has its own values
        found = of_runs(study, config_value(key))
        if len(found) > 1:
            yield Finding("settings", f"the arms differ in {key} too: {values_in_words(found)}")


def asked_for(study: Study) -> set[str]:
    """The keys that the commands of runs set: what they say does not follow from an option."""
    words = (word for run in study.runs for word in str(run.session.get("command") or "").split())
    return {word.strip("'\"").lstrip("+~").partition("=")[0] for word in words if "=" in word}


def learning_rates(study: Study) -> Iterator[Finding]:
    """Learning rates that go along with what is compared: fair where each was chosen for its arm on other data."""
    if LEARNING_RATE in study.varied or len(found := of_runs(study, config_value(LEARNING_RATE))) < 2:
        return
    choices = chosen_on_held_out_data(study.runs)
    if all(choices.values()):
        text = "the learning rate of each arm was chosen on data held out of the training data"
        yield Finding("learning rate", f"{text}: {values_in_words(found)}", serious=False)
        if names := arms_with(study, lambda run: (choices[run.path] or {}).get("edge")):
            text = "the chosen learning rate is at the end of those tried, so a wider grid may have a better one"
            yield Finding("learning rate", f"{shortened(names, 6)}: {text}")
    elif "optim" not in study.varied or LEARNING_RATE in asked_for(study):
        text = f"the arms differ in {LEARNING_RATE} too, which is fair only if each was chosen for its arm"
        yield Finding("settings", f"{text}: {values_in_words(found)}")


def step_times(study: Study) -> Iterator[Finding]:
    """Arms whose seeds took unlike times for the same work."""
    ratios = {arm.name: unlike(arm) for arm in study.arms}
    if names := [name for name, ratio in ratios.items() if ratio > STEADY]:
        text = "so runs disturbed each other, or the machine did other work: their times say little"
        worst = f"step times differ up to {max(ratios.values()):.1f}-fold between seeds of one arm"
        yield Finding("step times", f"{worst}, {text}: {shortened(names, 6)}", serious=False)


def unlike(arm: Arm) -> float:
    """How many times the longest median step time is the shortest."""
    times = [run.summary.get("step_time", {}) for run in arm.runs]
    medians = known(time.get("median_ms") for time in times if (time.get("n") or 0) >= FEWEST_STEPS)
    return max(medians) / min(medians) if medians and min(medians) > 0 else 1.0


def open_rates(study: Study) -> Iterator[Finding]:
    """Arms whose learning rates have not all ended with the same seeds, so that another may yet be chosen."""
    for family in rate_families(study):
        every = {run.seed for arm in family for run in arm.runs}
        lacking = {arm.settings[LEARNING_RATE]: missing for arm in family if (missing := every - settled_seeds(arm))}
        if lacking:
            words = "; ".join(f"lr {in_words(rate)} lacks seed {listed(seeds)}" for rate, seeds in lacking.items())
            text = f"{without_rate(family[0]).name}: the choice of its learning rate is not final, as {words}"
            yield Finding("learning rate", text)


def not_made(missing: Mapping[str, str]) -> Iterator[Finding]:
    """Runs that a sweep has planned and that are not there."""
    if missing:
        names = shortened([f"{name} ({why})" if why else name for name, why in missing.items()], 3)
        count = "1 planned run is" if len(missing) == 1 else f"{len(missing)} planned runs are"
        yield Finding("missing runs", f"{count} not there (failed or not begun): {names}")


def listed(seeds: Iterable[int]) -> str:
    """Seeds in a row."""
    return shortened([str(seed) for seed in sorted(seeds)], 6)


def survivors(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Arms that lost runs and are judged by those that are left."""
    arms = {arm.name: arm for one in comparisons if one.n and one.survived for arm in (one.baseline, one.arm)}
    losers = [f"{name}: {words}" for name, arm in arms.items() if (words := losses(arm))]
    if losers:
        text = "arms are compared only on the seeds that survived in both, which flatters those that lose runs"
        yield Finding("lost runs", f"{'; '.join(losers[:6])}; {text}")


def losses(arm: Arm) -> str:
    """How many runs of an arm were lost and how, such as `2 of 5 runs diverged, 1 of 5 runs failed`."""
    counts = Counter(run.status for run in arm.runs)
    words = {"diverged": "diverged", "failed": "failed", "out_of_memory": "ran out of memory"}
    return ", ".join(f"{counts[status]} of {len(arm.runs)} runs {words[status]}" for status in LOST if counts[status])
