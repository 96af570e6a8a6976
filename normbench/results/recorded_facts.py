"""What all runs of a study should have in common, and what none of them should have: one rule each.

A rule reads something of a `Record`, which is one session of a run. To add a rule, add an `Alike` to SHOULD_BE_ALIKE or
a `Never` to SHOULD_NEVER_BE, with the function that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normbench.evidence.arms import Arm
from normbench.evidence.facts import SHOWN_OF_A_HASH, short_commit
from normbench.evidence.run import RecordedRun
from normbench.results.caveat import CaveatKind


@dataclass(frozen=True)
class Record:
    """What one session of a run has recorded, with the run and its arm."""

    arm: Arm
    run: RecordedRun
    session: Mapping[str, Any]


@dataclass(frozen=True)
class Alike:
    """A value that should be the same in an arm and its baseline.

    Attributes:
        kind: of the caveat.
        sentence: what is said where the values differ; they follow it.
        read: returns the value, or None where nothing is recorded.
        unless: patterns of settings; where one that varies matches, it is why the values differ.
        serious: whether the value may decide which arm is better.
        everywhere: whether it should be the same in all arms.
        of_scheme: what it is called as a part of a scheme, which may set it; empty for what no scheme sets.
    """

    kind: CaveatKind
    sentence: str
    read: Callable[[Record], Any]
    unless: tuple[str, ...] = ()
    serious: bool = True
    everywhere: bool = False
    of_scheme: str = ""


@dataclass(frozen=True)
class Never:
    """Something that should be true of no run.

    Attributes:
        kind: of the caveat.
        sentence: what is said after the names of the arms.
        is_true: tells whether it is true.
        serious: whether it may decide which arm is better.
    """

    kind: CaveatKind
    sentence: str
    is_true: Callable[[Record], bool]
    serious: bool = True


def entry(tree: Any, *path: str) -> Any:
    """Return what stands at the end of a path of keys; None where it is missing."""
    for key in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree


def in_session(*path: str) -> Callable[[Record], Any]:
    """Return a function that reads an entry of the session."""

    def read(record: Record) -> Any:
        return entry(record.session, *path)

    return read


def in_ledger(*path: str) -> Callable[[Record], Any]:
    """Return a function that reads an entry of the run's ledger."""

    def read(record: Record) -> Any:
        return entry(record.run.summary, "ledger", *path)

    return read


# ---- what should be the same


def steps(record: Record) -> int | None:
    """Return how many steps the run has."""
    return record.run.steps or None


def epochs(record: Record) -> float:
    """Return how often the run sees its data, where the batch size varies; 0 elsewhere."""
    steps_per_epoch = entry(record.session, "data", "steps_per_epoch")
    if "data.batch_size" not in record.arm.settings or not steps_per_epoch:
        return 0
    batches = record.run.steps * record.run.config.get("trainer.accumulate", 1)
    return float(round(batches / steps_per_epoch, 1))


def fingerprint(record: Record) -> str | None:
    """Return the beginning of the data's fingerprint."""
    recorded = entry(record.session, "data", "fingerprint")
    return recorded[:SHOWN_OF_A_HASH] if isinstance(recorded, str) else None


def commit(record: Record) -> str | None:
    """Return the beginning of the commit, and whether there were changes to it."""
    return short_commit(record.session) or None


def implementation(record: Record) -> Any:
    """Return how the norms are computed; torch's operators of different norms count as the same."""
    recorded = entry(record.run.summary, "ledger", "implementation")
    if "torch.nn.functional" in str(recorded):
        return "torch's operator"
    return recorded


def stacked_seeds(record: Record) -> Any:
    """Return how many seeds are trained as one model."""
    return record.run.summary.get("stack", 1)


SHOULD_BE_ALIKE = (
    Alike(
        CaveatKind.UNEQUAL_STEPS,
        "runs are not all of the same length, in steps",
        steps,
        unless=("trainer.steps", "trainer.epochs"),
    ),
    Alike(
        CaveatKind.UNEQUAL_SAMPLES,
        "arms with different batch sizes saw different numbers of samples, which trainer.epochs= would keep the same; "
        "in epochs",
        epochs,
        unless=("trainer.steps", "trainer.epochs", "data"),
        everywhere=True,
    ),
    Alike(
        CaveatKind.DATA,
        "the data are not the same, by their fingerprints",
        fingerprint,
        unless=("data",),
    ),
    Alike(
        CaveatKind.MACHINES,
        "times cannot be compared across processors",
        in_session("cpu"),
    ),
    Alike(
        CaveatKind.MACHINES,
        "times cannot be compared across accelerators",
        in_session("accelerator"),
    ),
    Alike(
        CaveatKind.MACHINES,
        "times cannot be compared across devices",
        in_session("device"),
    ),
    Alike(
        CaveatKind.THREADS,
        "times cannot be compared across numbers of threads",
        in_session("threads"),
    ),
    Alike(
        CaveatKind.PROCESSES,
        "neither times nor batch statistics that are not synchronised can be compared across numbers of processes",
        in_session("processes"),
    ),
    Alike(
        CaveatKind.VERSIONS,
        "not all runs used the same version of torch",
        in_session("packages", "torch"),
    ),
    Alike(
        CaveatKind.VERSIONS,
        "not all runs used the same version of numpy",
        in_session("packages", "numpy"),
    ),
    Alike(
        CaveatKind.VERSIONS,
        "not all runs used the same version of datasets",
        in_session("packages", "datasets"),
    ),
    Alike(
        CaveatKind.VERSIONS,
        "not all runs used the same version of Python",
        in_session("python"),
    ),
    Alike(
        CaveatKind.VERSIONS,
        "not all runs used the same code, by commit",
        commit,
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in eps",
        in_ledger("eps"),
        unless=("norm.eps",),
        of_scheme="eps",
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in whether weight decay includes the norms' γ and β",
        in_ledger("norm_parameters_decayed"),
        unless=("trainer.decay_norms",),
        of_scheme="the decay of the norms' γ and β",
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in initialisation",
        in_ledger("init"),
        unless=("init", "init.*"),
        of_scheme="initialisation",
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in how residual branches are scaled at initialisation",
        in_ledger("residual_scale"),
        unless=("init", "init.*"),
        of_scheme="how residual branches are scaled at initialisation",
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in the gain of branches at initialisation",
        in_ledger("branch_gain"),
        unless=("placement", "placement.*"),
        of_scheme="the gain of branches at initialisation",
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in the gain of the residual stream",
        in_ledger("residual_gain"),
        unless=("placement", "placement.*"),
        of_scheme="the gain of the residual stream",
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in precision",
        in_ledger("precision"),
        unless=("trainer.precision",),
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in how many batches make a step",
        in_ledger("batches_a_step"),
        unless=("trainer.accumulate",),
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in compilation",
        in_ledger("compiled"),
        unless=("trainer.compile",),
        serious=False,
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in implementation (step times then compare kernels, not norms)",
        implementation,
        unless=("norm.impl",),
        serious=False,
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in how many seeds are trained as one model (step times then compare that)",
        stacked_seeds,
        serious=False,
    ),
    Alike(
        CaveatKind.LEDGER,
        "the arms differ in the number of parameters",
        in_ledger("parameters", "total"),
        unless=("model", "model.*"),
        serious=False,
        of_scheme="the number of parameters",
    ),
)


# ---- what no run should have


def leaks(record: Record) -> bool:
    """Tell whether the norm shows positions their future."""
    return bool(record.run.summary.get("leak"))


def counts_padding(record: Record) -> bool:
    """Tell whether the norm's statistics count padding."""
    return bool(record.run.summary.get("padding"))


def crosses_samples(record: Record) -> bool:
    """Tell whether the norm's statistics cross samples."""
    return bool(entry(record.run.summary, "norm_facts", "crosses_samples"))


def trains_at_one(record: Record) -> bool:
    """Tell whether a norm of the batch is trained at a batch size of 1."""
    return crosses_samples(record) and record.run.config.get("data.batch_size") == 1


def is_judged_at_one(record: Record) -> bool:
    """Tell whether a norm of the batch is judged at a batch size of 1."""
    return crosses_samples(record) and record.run.config.get("data.eval_batch_size") == 1


def loses_most_steps(record: Record) -> bool:
    """Tell whether the norms' parameters are in 16 bits and more than half of their steps were seen to be lost."""
    lost = record.run.summary.get("share_of_norm_steps_lost", 0)
    return bool(lost > 0.5)


def is_in_16_bits(record: Record) -> bool:
    """Tell whether the norms' parameters are in 16 bits, where not as many steps were seen to be lost."""
    return entry(record.run.summary, "ledger", "norm_parameters_dtype") is not None and not loses_most_steps(record)


def is_running(record: Record) -> bool:
    """Tell whether the run is still going, by its status."""
    return record.run.status == "running"


def is_interrupted(record: Record) -> bool:
    """Tell whether the run was interrupted."""
    return record.run.status == "interrupted"


def is_torn(record: Record) -> bool:
    """Tell whether the last line of an ended run's metrics is torn."""
    return record.run.has_torn_line and record.run.ended


def is_torn_under_way(record: Record) -> bool:
    """Tell whether the last line of the metrics is torn and the run has not ended."""
    return record.run.has_torn_line and not record.run.ended


def is_double(record: Record) -> bool:
    """Tell whether another run of the arm has the same seed."""
    return sum(run.seed == record.run.seed for run in record.arm.runs) > 1


SHOULD_NEVER_BE = (
    Never(
        CaveatKind.LEAK,
        "the norm shows each position its future in training, so its training loss cannot be compared",
        leaks,
    ),
    Never(
        CaveatKind.PADDING,
        "the norm counts the padding of shorter texts in its statistics",
        counts_padding,
    ),
    Never(
        CaveatKind.BATCH_OF_ONE,
        "the norm takes statistics over the batch, and is trained at a batch size of 1",
        trains_at_one,
    ),
    Never(
        CaveatKind.BATCH_OF_ONE,
        "the norm takes statistics over the batch, and is judged at a batch size of 1",
        is_judged_at_one,
    ),
    Never(
        CaveatKind.ROUNDED,
        "the norms' γ and β are kept in 16 bits, and more than half of their steps round to nothing",
        loses_most_steps,
    ),
    Never(
        CaveatKind.ROUNDED,
        "the norms' γ and β are kept in 16 bits, where small steps round to nothing",
        is_in_16_bits,
    ),
    Never(
        CaveatKind.UNFINISHED,
        "a run is still going, or was killed, so it is not a result yet",
        is_running,
    ),
    Never(
        CaveatKind.UNFINISHED,
        "a run was interrupted, so it is not a result yet",
        is_interrupted,
    ),
    Never(
        CaveatKind.TORN_LINE,
        "the last line of an ended run's metrics.jsonl is torn, and the run is read up to it",
        is_torn,
    ),
    Never(
        CaveatKind.TORN_LINE,
        "the last line of a run's metrics.jsonl is torn, and the run is read up to it",
        is_torn_under_way,
        serious=False,
    ),
    Never(
        CaveatKind.DOUBLES,
        "several runs have the same seed, and their mean counts",
        is_double,
    ),
)
