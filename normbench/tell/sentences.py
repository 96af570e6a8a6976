"""The sentences of an answer: a function for each kind of what is asked, found, unfair, and to be done next.

Nothing is called a difference unless its p, corrected after Holm, is below 0.05; where none is found, the sentence says
how large one may still be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normbench.config.trust import caution
from normbench.evidence.arms import ALL_RUNS
from normbench.evidence.facts import sizes
from normbench.evidence.run import LEARNED, LEARNED_RIGHT
from normbench.record.directory import ENDED
from normbench.results.answer import (
    Answer,
    ArmResult,
    Cause,
    NextStep,
    Question,
    Reason,
    ReasonKind,
    Remedy,
    StepKind,
    Stuck,
)
from normbench.tell.designs import say_effects, say_effects_not_found, say_scaling
from normbench.tell.details import say_assumptions
from normbench.tell.phrases import Said
from normbench.tell.verdicts import say_found, say_losses, say_not_compared, say_not_found
from normbench.wording import (
    compact,
    count,
    fixed,
    in_words,
    join_first,
    list_words,
    one_line,
    percent,
    plain,
    with_unit,
)

MOST = 8  # sentences of an answer; the tables have the others
FEW_STUCK = 2  # arms that did not train have a sentence each
MOST_CAUSES = 3  # of differences
MOST_VALUES = 4  # of a setting
MOST_LOST = 6  # arms that are named where runs were lost


class Statement(NamedTuple):
    """A sentence of an answer, the key of the table behind it, and what it rests on, if that is to be told."""

    text: str
    table: str
    detail: str = ""


# ---- all of it


def say(answer: Answer) -> list[Statement]:
    """Say what was asked: which arms did not train, what crossed factors do, and how arms compare; then what was lost.

    Of many, only the largest of each kind are told, and how many more there are.
    """
    kinds = list[tuple[str, Sequence[Said]]]()  # the sentences of each kind, after the key of their table
    arms = compared_arms(answer) or {arm.name: arm for arm in answer.arms}
    kinds.append(("arms", say_plainly(say_stuck(arms))))
    kinds.append(("scaling", say_scaling(answer.scaling)))
    for effects in say_effects(answer.effects):
        kinds.append(("designs", effects))
    for differences in say_found(answer.differences):
        kinds.append(("differences", differences))
    kinds.append(("designs", say_plainly(say_effects_not_found(answer.effects))))
    kinds.append(("differences", say_not_found(answer.differences)))
    if not answer.differences:
        kinds.append(("arms", [Said(say_not_compared(len(answer.arms)))]))
    kinds.append(("costs", say_losses(answer.losses)))
    kinds.append(("costs", say_plainly(say_diverged(answer.arms))))
    kinds.append(("lost", say_plainly(say_lost(answer.arms))))
    allotted = allot_sentences([len(sentences) for _, sentences in kinds])
    statements = []
    for (table, sentences), number in zip(kinds, allotted, strict=True):
        for sentence in first_of(sentences, number):
            statements.append(Statement(one_line(sentence.text), table, one_line(sentence.detail)))
    return statements


def say_plainly(texts: Sequence[str]) -> list[Said]:
    """Return sentences that rest on nothing but what they say."""
    return [Said(text) for text in texts]


def say_details(statements: Sequence[Statement], answer: Answer) -> list[str]:
    """Say what the sentences of an answer rest on, and what is assumed of few seeds."""
    details = [statement.detail for statement in statements if statement.detail]
    return [*details, *map(one_line, say_assumptions(answer.differences))]


def compared_arms(answer: Answer) -> dict[str, ArmResult]:
    """Return the arms that are compared, by their names in the comparisons, in the order of these."""
    by_name = {arm.compared_as: arm for arm in answer.arms}
    compared = {}
    for difference in answer.differences:
        for name in (difference.arm, difference.baseline):
            compared[name] = by_name[name]
    return compared


def allot_sentences(lengths: Sequence[int]) -> list[int]:
    """Return how many sentences of each kind to tell: the first of each, and as many more as there is room for.

    lengths: how many there are of each kind.
    """
    ranked = []
    for place, length in enumerate(lengths):
        for rank in range(length):
            ranked.append((rank, place))
    allotted = [0] * len(lengths)
    for number, (rank, place) in enumerate(sorted(ranked)):
        if rank == 0 or number < MOST:
            allotted[place] += 1
    return allotted


def first_of(sentences: Sequence[Said], most: int) -> list[Said]:
    """Return the first of some sentences; the last of them says how many more there are."""
    shown = list(sentences[:most])
    left = len(sentences) - most
    if left > 0:
        verb = "is" if left == 1 else "are"
        last = shown[-1]
        shown[-1] = last._replace(text=f"{last.text} {left} more of this kind {verb} in the tables.")
    return shown


# ---- arms that did not train


def say_stuck(arms: Mapping[str, ArmResult]) -> list[str]:
    """Name the arms that did not train, or some of whose runs did not. arms: by their names."""
    never = {name: arm for name, arm in arms.items() if not arm.trained}
    texts = []
    if len(never) > FEW_STUCK:
        stuck = list[Stuck]()
        for arm in never.values():
            stuck += arm.stuck
        ends = [run.loss for run in stuck]
        lowest_and_highest = dict.fromkeys([fixed(min(ends), 3), fixed(max(ends), 3)])
        texts.append(
            f"{len(never)} of {len(arms)} arms did not train, and are not compared ({', '.join(never)}): their "
            f"validation losses end at {' to '.join(lowest_and_highest)} nats, {missed(stuck[0], 'they do')}."
        )
    for name, arm in arms.items():
        if arm.stuck and (arm.trained or len(never) <= FEW_STUCK):
            texts.append(say_stuck_arm(name, arm))
    return texts


def say_stuck_arm(name: str, arm: ArmResult) -> str:
    """Say in how many runs an arm did not train."""
    stuck = len(arm.stuck)
    finished = arm.statuses["finished"]
    if name == ALL_RUNS:
        who = name_runs(stuck, finished, "did not train")
    else:
        some = "" if stuck == finished else f" in {stuck} of {finished} runs"
        who = f"{name} did not train{some}"
    losses = [run.loss for run in arm.stuck]
    mean = sum(sorted(losses)) / stuck
    on_average = " on average" if stuck > 1 else ""
    whose = "their" if name == ALL_RUNS and stuck > 1 else "its"
    return f"{who}: {whose} validation loss ends at {fixed(mean, 3)} nats{on_average}, {missed(arm.stuck[0])}."


def name_runs(some: int, total: int, what: str) -> str:
    """Say what became of some of the runs, where nothing varies, so that they have no name."""
    if total == 1:
        return f"the one run {what}"
    which = f"each of the {total} runs" if some == total else f"{some} of {total} runs"
    return f"{which} {what}"


def missed(run: Stuck, who_does: str = "it does") -> str:
    """Say what a run would have had to reach to count as trained: the rule of `RecordedRun.trained`.

    who_does: not make few errors, it or they.
    """
    loss, accuracy = run.constant_loss, run.constant_accuracy
    words = "" if loss is None else f"not {percent(LEARNED)} below the {fixed(loss, 3)} of a constant guess"
    if accuracy is None:
        return words
    if loss is not None:
        words += ","
    guess = "a constant guess" if loss is None else "one"
    return (
        f"{words} and {who_does} not make {percent(LEARNED_RIGHT)} fewer errors than {guess}, which is right in "
        f"{fixed(100 * accuracy, 1)} % of all cases"
    ).strip()


# ---- runs that were lost


def say_diverged(arms: Sequence[ArmResult]) -> list[str]:
    """Name the arms of which runs diverged."""
    texts = []
    for arm in arms:
        gone = arm.statuses.get("diverged", 0)
        if gone:
            ended = sum(arm.statuses.get(status, 0) for status in ENDED)
            if arm.name == ALL_RUNS:
                texts.append(f"{name_runs(gone, ended, 'diverged')}.")
            else:
                texts.append(f"{arm.name} diverged in {gone} of {count(ended, 'run')}.")
    return texts


def say_lost(arms: Sequence[ArmResult]) -> list[str]:
    """Name the arms of which runs ran out of memory or failed."""
    texts = []
    for status, how in (("out_of_memory", "ran out of memory"), ("failed", "failed")):
        names, lost = [], 0
        for arm in arms:
            if status in arm.statuses:
                names.append(arm.name)
                lost += arm.statuses[status]
        if names:
            where = "" if names == [ALL_RUNS] else f": {join_first(names, MOST_LOST)}"
            texts.append(f"{count(lost, 'run')} {how}{where}.")
    return texts


# ---- the question


def say_question(question: Question) -> tuple[str, str]:
    """Say what was asked, and what was held equal."""
    return one_line(say_asked(question)), one_line(say_held(question))


def say_asked(question: Question) -> str:
    """Say what varies, and on what."""
    model = join_first(question.model, MOST_VALUES)
    data = join_first(question.data, MOST_VALUES)
    if not question.varied:
        return f"How does the model {model} with {join_first(question.norm, MOST_VALUES)} end on {data}?"
    keys = [factor.key for factor in question.varied]
    words = []
    for factor in question.varied:
        values = join_first([in_words(value) for value in factor.values], MOST_VALUES)
        words.append(f"{factor.key} ({values})")
    factors = list_words(words)
    verb = "do" if len(words) > 1 else "does"
    of_model = "" if "model" in keys else f" of the model {model}"
    on_data = "" if "data" in keys else f" on {data}"
    return f"What {verb} {factors} do to the {question.metric.final_words}{of_model}{on_data}?"


def say_held(question: Question) -> str:
    """Say what is held equal, what goes with what varies, and what was set by hand."""
    words = {"steps": "{} steps", "batch": "batches of {}", "rate": "a learning rate of {}"}
    equal = []
    following = defaultdict[str, list[str]](list)
    for held in question.held:
        text = words[held.what].format(join_first(held.values, MOST_VALUES))
        if held.goes_with:
            following[held.goes_with].append(text)
        else:
            equal.append(text)
    parameters = f"{sizes(question.parameters)} parameters"
    if question.trained:
        parameters += f", of which {sizes(question.trained)} are trained"
    equal += [parameters, f"{count(len(question.seeds), 'seed')} for each arm"]
    sentences = [f"Held equal: {'; '.join(equal)}."]
    for keys, texts in following.items():
        sentences.append(f"Goes with {keys}: {'; '.join(texts)}.")
    if question.of_schemes:
        belongs = "; ".join(question.of_schemes)
        sentences.append(f"A scheme is compared as a whole, and what it sets is a part of it: {belongs}.")
    if question.by_hand:
        sentences.append(f"Set by hand: {' '.join(question.by_hand)}. All else is as it is by default.")
    else:
        sentences.append("No setting was changed by hand.")
    return " ".join(sentences)


# ---- why


def say_why(causes: Sequence[Cause]) -> list[str]:
    """Say why arms did not train, once for all that have the same reasons, and what goes along with differences."""
    alike = defaultdict[str, list[str]](list)
    for cause in causes:
        if cause.baseline is None:
            alike[say_reasons(cause)].append(cause.arm)
    texts = []
    for reasons, arms in alike.items():
        who = "these runs" if arms == [ALL_RUNS] else ", ".join(arms)
        texts.append(f"{who} did not train: {reasons}.")
    between = [cause for cause in causes if cause.baseline is not None]
    for cause in between[:MOST_CAUSES]:
        texts.append(
            f"With {cause.arm} in the place of {cause.baseline}, at the end of training, {say_reasons(cause)} (what "
            "goes along with a difference need not be its cause)."
        )
    return [one_line(text) for text in texts]


def say_reasons(cause: Cause) -> str:
    """Say what probes show of an arm."""
    parts = []
    for reason in cause.reasons:
        text = say_reason(reason)
        if reason.kind == ReasonKind.SATURATED and cause.baseline is None:
            text = f"at the end {text}"
        parts.append(text)
    return "; ".join(parts) or "the runs were not probed, so nothing shows why"


def say_reason(reason: Reason) -> str:
    """Say one thing that probes show."""
    numbers = {}
    for name, value in reason.evidence.items():
        numbers[name] = compact(value, 2)
    if reason.kind == ReasonKind.SMALL_STREAM:
        text = f"the stream enters the first norm with RMS {numbers['entering']}"
        if "passed" in numbers:
            text += f", where its bounded function is linear and passes on values of RMS {numbers['passed']}"
        return text
    if reason.kind == ReasonKind.SATURATED:
        share = fixed(100 * reason.evidence["saturated"], 0)
        return f"up to {share} % of what enters the norms of a block is at their bound"
    if reason.kind == ReasonKind.EXPLODING:
        return f"gradients explode: their norm is {numbers['gradient']} at the end"
    if reason.kind == ReasonKind.VANISHING:
        inside, outside = numbers["in_blocks"], numbers["gradient"]
        return f"gradients vanish: their norm is {inside} in all blocks together, and {outside} outside of them"
    if reason.kind == ReasonKind.VANISHING_DOWN:
        last, first = numbers["last_gradient"], numbers["first_gradient"]
        return (
            f"gradients vanish on their way down: their norm is {last} in the last block and {first} in the first one"
        )
    if reason.kind == ReasonKind.STANDING:
        return "the training loss no longer falls"
    if reason.kind == ReasonKind.FALLING:
        return "the training loss still falls at the end"
    names = {
        ReasonKind.STREAM: "the stream leaves the last block with RMS",
        ReasonKind.FIRST_GRADIENT: "the gradient norm of the first block is",
        ReasonKind.LAST_GRADIENT: "the gradient norm of the last block is",
    }
    return f"{names[reason.kind]} {numbers['arm']} instead of {numbers['baseline']}"


# ---- what to do next

REMEDIES = {
    Remedy.LARGER_STREAM: (
        "a larger norm.alpha0 or, in a model of our own, model.embedding_scale=unit, so that the norm does not read "
        "values near 0"
    ),
    Remedy.WARMUP: "a longer schedule.warmup, and a smaller optim.lr",
    Remedy.STEPS: "more trainer.steps",
    Remedy.OTHER_RATES: "other learning rates, smaller and larger ones",
}

WHEN_LOOKING_AGAIN = (
    "Looking again after each addition makes false alarms more frequent (17 % where two seeds at a time are added, "
    "from 3 to 15): decide beforehand how often to look, K times in all, and call a difference only where p is below "
    "0.05 / K."
)


def say_next(answer: Answer) -> list[str]:
    """Say what to do now, and with which commands; once for all arms that the same may make train."""
    alike = defaultdict[tuple[Remedy, ...], list[str]](list)
    for step in answer.next:
        if step.kind == StepKind.MAKE_TRAIN:
            alike[step.remedies].append(step.arm)
    texts = []
    for step in answer.next:
        if step.kind == StepKind.MAKE_TRAIN:
            arms = alike.pop(step.remedies, [])
            if arms:
                texts.append(say_remedies(arms, step.remedies))
        else:
            texts.append(say_step(step, answer.question.metric.unit))
    return [one_line(text) for text in texts]


def say_remedies(arms: Sequence[str], remedies: Sequence[Remedy]) -> str:
    """Say what may make arms train."""
    words = [REMEDIES[remedy] for remedy in remedies]
    return f"To make {', '.join(arms)} train, try {'; '.join(words)}."


def say_step(step: NextStep, unit: str) -> str:
    """Say what to do. unit: of the size of a difference."""
    command = f"{step.command}{caution(step.command)}" if step.command.startswith("normbench ") else step.command
    if step.kind == StepKind.FINISH:
        return f"Finish the runs that have not ended: {command}."
    if step.kind == StepKind.ADD_SEEDS:
        gain = f"would show a difference of {with_unit(plain(step.size or 0.0), unit)} four times in five"
        return f"{count(step.seeds, 'more seed')} {gain}: {command}. {WHEN_LOOKING_AGAIN}"
    if step.kind == StepKind.PILOT:
        return f"More seeds show how much seeds differ by themselves: {command}. {WHEN_LOOKING_AGAIN}"
    if step.kind == StepKind.OWN_RATES:
        return f"See whether it holds where each arm has a learning rate of its own: {command}."
    longer = f": {command}" if command else ""
    return f"See whether it holds in longer runs, of twice as many steps{longer}."
