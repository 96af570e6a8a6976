"""The sentences of caveats, each made of its evidence alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from normbench.config.trust import caution
from normbench.results.answer import Evidence
from normbench.results.statistics import FEWEST_RANKS
from normbench.wording import count, equals, fixed, join_first

MOST = 6  # arms or runs that a sentence names
MOST_OF_ONE_VALUE = 4  # arms
MOST_MISSING = 3  # runs, each with why it is missing


def arms_in(found: Iterable[Evidence]) -> list[str]:
    """Return the arms that evidence names, each once."""
    names: dict[str, None] = {}
    for one in found:
        names.update(dict.fromkeys(one.arms))
    return list(names)


# ---- what is missing or damaged


def say_damaged(found: Evidence) -> str:
    """Say that a run cannot be read."""
    (run,) = found.runs
    return f"{run} is left out: {found.value}"


def say_contradictions(found: Evidence) -> str:
    """Say of which runs the summary is not what they have logged."""
    text = "summary.json has other final metrics than those logged last in metrics.jsonl"
    return f"{join_first(found.runs, MOST)}: {text}"


def say_missing_runs(found: Sequence[Evidence]) -> str:
    """Say which runs were planned and are not there, and why, where that is known."""
    names = []
    for one in found:
        (run,) = one.runs
        names.append(f"{run} ({one.value})" if one.value else run)
    return f"planned and not there (failed or not begun), {len(found)}: {join_first(names, MOST_MISSING)}"


def say_missing_seeds(found: Evidence) -> str:
    """Say which arms lack seeds that others have."""
    seeds = join_first([str(seed) for seed in found.seeds])
    return f"{join_first(found.arms, MOST)}: no run with seed {seeds}, which other arms have"


# ---- what all runs should have in common, and what none should have


def say_unequal(sentence: str, found: Iterable[Evidence]) -> str:
    """Say after a sentence who has which value, such as `100 (layernorm); 200 (rmsnorm, dyt)`."""
    values = []
    for one in found:
        having = join_first(one.arms, MOST_OF_ONE_VALUE)
        values.append(f"{one.value} ({having})")
    return f"{sentence}: {'; '.join(values)}"


def say_of_arms(found: Iterable[Evidence], sentence: str) -> str:
    """Say of which arms a sentence is true."""
    return f"{join_first(arms_in(found), MOST)}: {sentence}"


# ---- step times


def say_step_times(found: Sequence[Evidence]) -> str:
    """Say how far apart the step times of an arm's seeds are, and of which arms."""
    worst = max(one.numbers["ratio"] for one in found)
    return (
        f"step times differ up to {worst:.1f}-fold between seeds of one arm, so runs disturbed each other, or the "
        f"machine did other work: their times say little: {join_first(arms_in(found), MOST)}"
    )


def say_launches(gpus: Sequence[Evidence], arms: Sequence[Evidence]) -> str:
    """Say that GPUs probably waited for their hosts. gpus: by their names. arms: the work of their hosts."""
    shares, counts = [], []
    for one in arms:
        operators = one.numbers["operators"]
        shares.append(one.numbers["host_share"])
        counts.append(f"{operators:,.0f} ({one.arms[0]})")
    least = round(1000 * min(shares)) // 10
    names = [one.value for one in gpus]
    gpu = f"the GPU (one of {join_first(names)})"
    if len(names) == 1:
        gpu = f"the {names[0]}"
    return (
        f"in most runs the host was at work for at least {least} % of a step, so {gpu} probably waited for it, "
        "and step times compare how many operators there are, and not what they compute: "
        f"{'; '.join(counts[:MOST])}; "
        "but a step that itself waits for the GPU, as with .item() in a norm, looks alike"
    )


# ---- learning rates


def say_chosen_for_none(found: Evidence, command: str) -> str:
    """Say that all arms ran at one rate. command: chooses one for each."""
    told = f"all arms ran at lr {found.value}, which was not chosen for any of them: choose one for each with"
    return f"{told} {command}{caution(command)}"


def say_rates_of_sizes(found: Sequence[Evidence]) -> str:
    """Say that learning rates were not chosen at each size. found: the rates."""
    rates = join_first([one.value for one in found], MOST)
    return (
        f"learning rates were not chosen for each arm at each size of the model (lr {rates}): a difference that "
        "changes with the size may be one of rates that suit an arm less and less"
    )


def say_open_rate(found: Sequence[Evidence]) -> str:
    """Say at which rates an arm lacks seeds."""
    (name,) = arms_in(found)
    lacking = []
    for one in found:
        seeds = join_first([str(seed) for seed in one.seeds], MOST)
        lacking.append(f"lr {one.value} lacks seed {seeds}")
    return f"{name}: the choice of its learning rate is not final, as {'; '.join(lacking)}"


def say_unequal_choices(own: Evidence, other: Evidence) -> str:
    """Say how many rates an arm and its baseline had to choose from."""
    arm_rates, baseline_rates = own.numbers["rates"], other.numbers["rates"]
    factor = abs(arm_rates - baseline_rates) + 1
    return (
        f"{own.arms[0]} had {arm_rates} learning rates to choose from and {other.arms[0]} {baseline_rates}, so p is "
        f"multiplied by {factor}"
    )


def say_ramp(found: Evidence) -> str:
    """Say how runs whose learning rate grew have their result, also those that diverged."""
    diverged, runs = found.numbers["diverged"], found.numbers["runs"]
    no_failure = f"that {diverged} of {runs} runs diverged further on is no failure; " if diverged else ""
    return (
        "the learning rate grew in each run, and the largest rate is the last one at which a run kept half of what it "
        f"had learned; {no_failure}a slower growth finds smaller rates, and the largest rate is not one to train at"
    )


def say_bore_all(found: Iterable[Evidence]) -> str:
    """Say which arms have runs that bore all rates, so that theirs is not known."""
    arms = []
    for one in found:
        runs = count(int(one.numbers["bore_all"]), "run")
        arms.append(f"{one.arms[0]} in {runs}, up to {one.value}")
    text = "no rate was too large, so the largest that is borne lies above: raise schedule.final"
    return f"{join_first(arms, MOST)}: {text}"


# ---- what the comparisons themselves make unfair


def say_lost_runs(found: Iterable[Evidence]) -> str:
    """Say how many runs those arms lost that are compared on the seeds that survived."""
    losses = []
    for one in found:
        lost, runs = one.numbers["lost"], one.numbers["runs"]
        losses.append(f"{one.arms[0]}: {lost} of {runs} runs {one.value}")
    text = "arms are compared only on the seeds that survived in both, which flatters those that lose runs"
    return f"{'; '.join(losses[:MOST])}; {text}"


def say_skewed(found: Evidence) -> str:
    """Say that differences by seed may be too skewed for the t test, and what the signed-rank test gives."""
    arm, baseline = found.arms
    p = equals(found.numbers.get("ranked_p"))
    text = (
        f"{arm} and {baseline}: the differences by seed are skewed or have an outlier, so the t test and its interval "
        f"may be wrong; the test of signed ranks gives p {p}"
    )
    if found.numbers["ranks"] < FEWEST_RANKS:
        text += f", and cannot give less than 0.05 with fewer than {FEWEST_RANKS} seeds"
    return text


def say_few_examples(found: Evidence) -> str:
    """Say by how much an accuracy would differ on as many other examples."""
    n = found.numbers["examples"]
    accuracy = fixed(100 * found.numbers["accuracy"], 1)
    error = fixed(100 * found.numbers["standard_error"], 1)
    return (
        f"the accuracy is that of {n:,} examples, each of which counts {fixed(100 / n, 2)} points: on as many other "
        f"examples an accuracy of {accuracy} % would differ by about {error} points (binomial standard error), which "
        "the intervals do not include"
    )
