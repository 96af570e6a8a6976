"""The methods of a study as prose for a paper: what varied, all else that played a part, and the works behind it."""

from __future__ import annotations

from normbench import __version__
from normbench.evidence.arms import name_arm
from normbench.evidence.facts import sizes
from normbench.results.answer import Answer
from normbench.results.examine import Examination
from normbench.tell.setups import RateChoice, Setup, describe_setup
from normbench.wording import count, join_first, one_line, percent

CHOSEN_BEFORE = (RateChoice.HELD_OUT, RateChoice.EACH_SEED)


def write_methods(examination: Examination) -> str:
    """Return a paragraph for a paper, with every number filled in; works stand in brackets, such as `(Holm 1979)`."""
    setup = describe_setup(examination.study, examination.arms, examination.rates_chosen)
    return say_methods(setup, examination.answer)


def say_methods(setup: Setup, answer: Answer) -> str:
    """Say how runs were made and what was tested."""
    parts = [
        *say_configurations(setup, len(answer.arms)),
        *say_setting(setup, answer),
        *say_training(setup),
        *say_runs(answer),
        *say_rates(setup),
        *say_tests(answer),
        *say_software(setup),
    ]
    return one_line(" ".join(parts))


def say_configurations(setup: Setup, arms: int) -> list[str]:
    """Say what was compared. arms: how many there are."""
    if not setup.factors:
        return ["We trained one configuration."]
    differ = ". They also differ in ".join(setup.factors)
    parts = [f"We compared {count(arms, 'configuration')}. They differ in {differ}."]
    if len(setup.factors) > 1:
        parts.append("All of their combinations were trained.")
    rates = " but the learning rate" if setup.rate_choice in CHOSEN_BEFORE else ""
    alike = f": for each seed, runs {' and '.join(setup.alike)}" if setup.alike else ""
    parts.append(f"All else{rates} was held equal{alike}.")
    return parts


def say_setting(setup: Setup, answer: Answer) -> list[str]:
    """Say what the model is, and on which data."""
    parameters = sizes(answer.question.parameters)
    initialised = f", initialised by {setup.init}" if setup.init else ""
    parts = [f"The model is {setup.model}; it has {parameters} parameters{initialised}."]
    if answer.question.trained:
        parts.append(f"Of these, {sizes(answer.question.trained)} were trained, and the others stayed as they start.")
    if setup.norm_and_placement:
        parts.append(f"The {setup.norm_and_placement}.")
    parts.append(f"The data are {setup.data}: {setup.amounts}.")
    return parts


def say_training(setup: Setup) -> list[str]:
    """Say how runs were trained."""
    parts = [
        f"Each run was trained for {setup.steps} steps of {setup.batch} by {setup.optimizer}, under the schedule "
        f"{setup.schedule}, {setup.clip}, {setup.precision}."
    ]
    if setup.average:
        parts.append(f"Averaged weights ({setup.average}) were evaluated as well.")
    return parts


def say_runs(answer: Answer) -> list[str]:
    """Say how many runs there are, and how they ended."""
    seeds = answer.question.seeds
    runs = finished = stuck = 0
    for arm in answer.arms:
        runs += sum(arm.statuses.values())
        finished += arm.statuses.get("finished", 0)
        stuck += len(arm.stuck)
    planned = count(runs + len(answer.missing), "run")
    if answer.missing:
        planned += " that were planned"
    untrained = f", {stuck} of which did not train" if stuck else ""
    number = count(len(seeds), "seed")
    seeds_of_arms = {arm.seeds for arm in answer.arms}
    if len(seeds_of_arms) > 1:
        number = f"up to {number}"
    names = join_first([str(seed) for seed in seeds])
    return [f"Each configuration was trained with {number} ({names}); {finished} of {planned} finished{untrained}."]


def say_rates(setup: Setup) -> list[str]:
    """Say how learning rates were chosen, where they were."""
    if setup.rate_choice == RateChoice.EACH_SEED:
        how = (
            "The learning rate of each run was chosen beforehand, for each seed with another one, by the final loss on "
            "a tenth held out of the training data"
        )
    elif setup.rate_choice == RateChoice.HELD_OUT:
        how = (
            "The learning rate of each configuration was chosen beforehand, with other seeds, by the final loss on a "
            "tenth held out of the training data"
        )
    elif setup.rate_choice == RateChoice.REPORTED:
        how = (
            "Each configuration was judged at its own best learning rate, that with the fewest runs lost and then the "
            "lowest mean validation loss"
        )
    else:
        return []
    if setup.choice_length < 1 and setup.rate_choice in CHOSEN_BEFORE:
        how += f", in runs of {percent(setup.choice_length)} of the length"
    return [f"{how}: {'; '.join(setup.rates)}."]


def say_tests(answer: Answer) -> list[str]:
    """Say what was tested, and how."""
    differences, losses = answer.differences, answer.losses
    compared = any(difference.p_before_holm is not None for difference in differences)
    survived = any(lost_runs.counted for lost_runs in losses)
    parts = []
    if compared:
        text = (
            f"The {answer.question.metric.final_words} was compared with that of {name_arm(answer.baseline)}, paired "
            "by seed, by two-sided t tests (Student 1908) with 95 % confidence intervals"
        )
        if any(difference.effect_size is not None for difference in differences):
            text += "; effect sizes are Hedges' g of the differences (Hedges 1981)"
        if any(difference.ranked_p is not None for difference in differences):
            text += ". Signed ranks (Wilcoxon 1945) stand beside them"
        parts.append(f"{text}.")
    if any(scaling.n > 1 for scaling in answer.scaling):
        parts.append(
            "How the difference changes with the number of parameters is the slope of a line over its logarithm by "
            "least squares in each seed, tested over the seeds in the same way."
        )
    if survived:
        parts.append(
            "How many runs were lost was compared by Fisher's exact test (Fisher 1922), as far as so many can show "
            "anything (Tarone 1990)."
        )
    if compared or survived:
        family = max(result.family for result in (*differences, *losses))
        if family > 1:
            called = f"The p values of these {family} tests were corrected after Holm (Holm 1979), and are called"
        else:
            called = "A p value is called"
        parts.append(f"{called} significant below 0.05.")
    return parts


def say_software(setup: Setup) -> list[str]:
    """Say how translations were judged, with which software, and on what."""
    parts = []
    if setup.scores:
        parts.append(
            "Translations were found by beam search and judged by BLEU (Papineni et al. 2002) as sacrebleu has it "
            f"(Post 2018): {setup.scores}."
        )
    commit = f", commit {setup.code}" if setup.code else ""
    parts.append(f"Software: normbench {__version__}, {setup.versions}{commit}.")
    parts.append(f"Hardware: {setup.machine}.")
    return parts
