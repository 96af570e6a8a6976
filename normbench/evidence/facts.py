"""What runs say of themselves, in words: how they were made, on what, and how many of them ended how."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from normbench.evidence.arms import LEARNING_RATE, Arm
from normbench.evidence.measures import implementation
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy
from normbench.wording import count, join_first, one_line, plain, short, whole

STATUSES = ("finished", "diverged", "out_of_memory", "failed", "interrupted", "running")  # in the order of a report
SPLITS = ("train", "val", "test")  # as the names of counts of data begin
SHOWN_OF_A_HASH = 8  # characters
MOST = 4  # values that a sentence names


# ---- of some runs


def distinct(runs: Iterable[RecordedRun], read: Callable[[RecordedRun], str]) -> tuple[str, ...]:
    """Return what is read of each run, each text once, without empty ones."""
    texts: dict[str, None] = {}  # each once, in their order
    for run in runs:
        text = one_line(read(run))
        if text:
            texts[text] = None
    return tuple(texts)


def join_distinct(runs: Iterable[RecordedRun], read: Callable[[RecordedRun], str]) -> str:
    """Write what is read of each run, each text once."""
    return join_first(distinct(runs, read), MOST)


def seeds_of(runs: Iterable[RecordedRun]) -> tuple[int, ...]:
    """Return the seeds of runs, each once."""
    seeds = {run.seed for run in runs}
    return tuple(sorted(seeds))


def parameters_of(runs: Iterable[RecordedRun]) -> tuple[int, int] | None:
    """Return how many parameters the smallest and the largest model have; None where that is not known."""
    known = list[int]()
    for run in runs:
        total = counts_of(run).get("total", 0)
        if total:
            known.append(total)
    if not known:
        return None
    return min(known), max(known)


def trained_of(runs: Sequence[RecordedRun]) -> tuple[int, int] | None:
    """Return the fewest and the most parameters that a run trains; None where all train all."""
    numbers = list[int]()
    all_train_all = True
    for run in runs:
        counts = counts_of(run)
        if counts:
            numbers.append(counts.get("trained", counts["total"]))
            all_train_all = all_train_all and "trained" not in counts
    if all_train_all:
        return None
    return min(numbers), max(numbers)


def counts_of(run: RecordedRun) -> Mapping[str, int]:
    """Return how many parameters the model of a run has, in all and by what they are; empty where that is not known."""
    return run.ledger.get("parameters") or {}


def sizes(parameters: tuple[int, int] | None) -> str:
    """Write how many parameters models have."""
    if parameters is None:
        return "an unknown number of"
    fewest, most = parameters
    return f"{whole(fewest)} to {whole(most)}" if fewest < most else whole(fewest)


def given_settings(study: RecordedStudy) -> list[str]:
    """Return the settings that the commands of all runs give, as words of a command."""
    aside = {"seed", "name", "outputs", "threads", "quiet"}
    if study.fairly_chosen:
        aside.add(LEARNING_RATE)
    first, *others = [words_of_command(run) for run in study.runs]
    shared_words = []
    for word in first:
        everywhere = all(word in other_words for other_words in others)
        if everywhere and word.partition("=")[0] not in aside:
            shared_words.append(word)
    return shared_words


def words_of_command(run: RecordedRun) -> list[str]:
    """Return the words of a run's command without `normbench train`."""
    command = str(run.session.get("command"))
    return shlex.split(command)[2:]


def ran_as(arms: Iterable[Arm]) -> str:
    """Write what computed the norms of arms: `native (rmsnorm); torch.nn.functional.layer_norm (layernorm)`."""
    names = defaultdict[str, list[str]](list)
    for arm in arms:
        for run in arm.runs:
            arm_names = names[implementation(run)]
            if arm.name not in arm_names:
                arm_names.append(arm.name)
    parts = []
    for word in sorted(names):
        if word:
            parts.append(f"{word} ({join_first(names[word], 4)})")
    return "; ".join(parts)


def goes_with(study: RecordedStudy, read: Callable[[RecordedRun], str]) -> str:
    """Name the varied settings that determine what is read of a run, such as `data.batch_size`; empty if all agree."""
    every_text = {read(run).strip() for run in study.runs}
    if len(every_text) < 2:
        return ""
    telling = []
    for key in study.varied:
        texts = defaultdict[str, set[str]](set)
        for run in study.runs:
            value = str(study.value_of(run, key))
            texts[value].add(read(run).strip())
        if all(len(texts_of_value) == 1 for texts_of_value in texts.values()):
            telling.append(key)
    return ", ".join(telling or study.varied)


def lead(study: RecordedStudy) -> str:
    """Say how many arms, seeds and runs there are, and how the runs ended."""
    statuses = Counter(run.status for run in study.runs)
    stuck = sum(run.trained is False for run in study.runs)
    ends = []
    for status in STATUSES:
        if status in statuses:
            words = f"{statuses[status]} {status.replace('_', ' ')}"
            if status == "finished" and stuck:
                words += f" ({stuck} of them did not train)"
            ends.append(words)
    if study.damaged:
        ends.append(f"{len(study.damaged)} damaged and left out")
    arms = count(len(study.arms), "arm")
    seeds = count(len(seeds_of(study.runs)), "seed")
    runs = count(len(study.runs), "run")
    return f"{arms}, {seeds}, {runs}: {', '.join(ends)}"


def facts(study: RecordedStudy, options: Mapping[str, str], judged_by: str, baseline: str) -> dict[str, str]:
    """Return the facts of a study in words, by their names, without those that are not known.

    options: the names of data, model and optimizer. judged_by: the primary metric, in words. baseline: in words; empty
    where nothing is compared.
    """
    runs = study.runs
    judged = f"{judged_by} after the last step"
    scores = join_distinct(runs, bleu)
    if scores:
        judged += f" ({scores})"
    all_facts = {
        "task": study.task.replace("_", " "),
        "data": options["data"],
        "model": options["model"],
        "optimizer": options["optim"],
        "steps": join_distinct(runs, steps),
        "what varies": ", ".join(study.varied) or "the seed alone",
        "baseline": baseline,
        "judged by": judged,
        "machine": join_distinct(runs, machine),
        "versions": join_distinct(runs, versions),
        "code": join_distinct(runs, code),
    }
    known = {}
    for name, text in all_facts.items():
        if text:
            known[name] = one_line(text)
    return known


# ---- of a run


def option_reader(study: RecordedStudy, group: str) -> Callable[[RecordedRun], str]:
    """Return a function that reads which option of a group a run of a study has."""
    return lambda run: str(study.settings_of(run).get(group, ""))


def steps(run: RecordedRun) -> str:
    """Write how many steps a run takes."""
    return whole(run.steps) if run.steps else ""


def batch(run: RecordedRun) -> str:
    """Write what a batch has, such as `32 sequences of 64 tokens`."""
    about = run.data
    context = about.get("context")
    if not context:
        examples = "examples"
    elif about.get("bleu"):
        examples = f"pairs of sentences of up to {context} tokens"
    else:
        examples = f"sequences of {context} tokens"
    batches = run.ledger.get("batches_a_step", 1)
    more = f" in each of {batches} batches" if batches > 1 else ""
    return f"{run.config.get('data.batch_size')} {examples}{more}"


def rate(run: RecordedRun) -> str:
    """Write a run's learning rate."""
    return plain(run.config.get(LEARNING_RATE) or 0)


def clip(run: RecordedRun) -> str:
    """Write at which norm gradients are clipped, or that they are not."""
    most = run.config.get("trainer.grad_clip")
    return f"gradients clipped at a norm of {short(most)}" if most else "without clipping gradients"


def amounts(run: RecordedRun) -> str:
    """Write how many data there are, such as `1,437 training images, fingerprint 0123abcd`."""
    about = run.data
    parts = []
    for key, value in about.items():
        split = key.partition("_")[0]
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if is_count and split in SPLITS:
            words = key.replace("val_", "validation_").replace("train_", "training_").replace("_", " ")
            parts.append(f"{whole(value)} {words}")
    fingerprint = about.get("fingerprint", "")
    parts.append(f"fingerprint {fingerprint[:SHOWN_OF_A_HASH]}")
    return ", ".join(parts)


def bleu(run: RecordedRun) -> str:
    """Write how translations were found and scored; empty where there are none."""
    about = run.data
    if not about.get("bleu"):
        return ""
    return f"beam {about.get('beam')}, {about['bleu']}"


def code(run: RecordedRun) -> str:
    """Write the commit that a run was made with, and whether there were changes to it."""
    return short_commit(run.session)


def short_commit(session: Mapping[str, Any]) -> str:
    """Write the beginning of the commit of a session; empty where there is none."""
    commit = session.get("commit")
    if not commit or not isinstance(commit, str):
        return ""
    return commit[:SHOWN_OF_A_HASH] + ("+changes" if "+" in commit else "")


def machine(run: RecordedRun) -> str:
    """Write on what a run was made; empty where that is not known."""
    name = run.session.get("accelerator") or run.session.get("cpu")
    if not name:
        return ""
    threads = run.session.get("threads") or 0
    words = f"{name}, {count(threads, 'thread')}"
    seeds = run.summary.get("stack") or 1
    if seeds > 1:
        words += f", up to {seeds} seeds as one model, of whose step times each seed has its share"
    return words


def versions(run: RecordedRun) -> str:
    """Write the versions of torch, numpy and Python; empty where they are not known."""
    packages = run.session.get("packages") or {}
    if not packages:
        return ""
    parts = []
    for name in ("torch", "numpy"):
        if packages.get(name):
            parts.append(f"{name} {packages[name]}")
    parts.append(f"Python {run.session.get('python')}")
    return ", ".join(parts)
