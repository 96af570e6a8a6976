"""What makes a comparison unfair, from the recorded facts: one sentence each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import filter as matching
from statistics import median
from typing import Any, NamedTuple

from jinja2 import ChainableUndefined

from normbench.analysis.comparisons import Comparison, rate_families, settled_seeds, without
from normbench.analysis.measures import finite
from normbench.analysis.records import LEARNING_RATE, Study, candidates, shortened
from normbench.analysis.wording import TEMPLATES, environment, in_words, paragraphs
from normbench.config.sections import GROUPS

RULES = tomllib.loads((TEMPLATES / "fairness.toml").read_text("utf-8"))

# What fairness.jinja says of comparisons, macro -> topic.
SAID = {"survivors": "lost runs", "rates": "learning rate", "skewed": "skewed differences", "few": "few examples"}

# Seeds of one arm do the same work: medians further apart than this were measured under different conditions.
STEADY = 1.5
FEWEST_STEPS = 10  # steps that a median must be of at least

# A host that is at work for this share of a step's time has probably kept the GPU waiting, which would else end long
# after it. A step that itself waits for the GPU looks alike.
LAUNCH_BOUND = 0.9
MOST_TOLD = 6  # arms


class Finding(NamedTuple):
    """One fact.

    topic: a word or two. text: the sentence. serious: whether it may decide who wins. between: value -> names of arms,
    where it matters between an arm and its baseline alone.
    """

    topic: str
    text: str
    serious: bool = True
    between: Mapping[Any, Sequence[str]] = {}

    def concerns(self, comparisons: Sequence[Comparison]) -> bool:
        """Say whether there is an arm that differs in it from its baseline."""
        pairs = [
            [{value for value, names in self.between.items() if arm.name in names} for arm in (one.arm, one.baseline)]
            for one in comparisons
        ]
        return not self.between or not pairs or any(own != other or len(own) != 1 for own, other in pairs)


def findings(
    study: Study, chosen: bool = False, comparisons: Sequence[Comparison] = (), missing: Mapping[str, str] | None = None
) -> tuple[Finding, ...]:
    """Return all that is unfair in a study, what may decide it first.

    chosen: whether a learning rate was chosen for each arm on what is reported. comparisons: of its arms.
    missing: planned runs without a directory -> why, where they have failed.
    """
    found = [*learning_rates(study)]
    found += [Finding("damaged run", f"{name} is left out: {why}") for name, why in study.damaged]
    for check in (contradictions, rules, seeds, open_rates, settings, step_times, launches):
        found += check(study)
    for said, topic in SAID.items():
        found += [Finding(topic, text, said != "few") for text in paragraphs("fairness.jinja", said, comparisons)]
    if missing:
        names = shortened([f"{name} ({why})" if why else name for name, why in missing.items()], 3)
        found.append(Finding("missing runs", f"planned and not there (failed or not begun), {len(missing)}: {names}"))
    if chosen and not study.fairly_chosen:
        text = "the learning rate of each arm was chosen by the validation loss of the runs that are reported"
        found.append(Finding("learning rate", f"{text}, which favours arms with more rates to choose from"))
    own = [finding for finding in found if finding.concerns(comparisons)]
    return tuple(sorted(own, key=lambda finding: not finding.serious))


def contradictions(study: Study) -> Iterator[Finding]:
    """Find runs whose summary has other final metrics than they have logged."""
    finals = ((run, value, run.curves.get(tag)) for run in study.runs for tag, value in run.metrics.items())
    logged = [(run.name, value, finite(curve).values[-1:]) for run, value, curve in finals if value is not None]
    wrong = dict.fromkeys(name for name, value, last in logged if len(last) and last[0] != value)
    if wrong:
        text = "summary.json has other final metrics than those logged last in metrics.jsonl"
        yield Finding("damaged record", f"{shortened([*wrong], 6)}: {text}")


# ---- what all runs should have in common, and what none should have


def told(study: Study, question: str) -> dict[Any, list[str]]:
    """Return what the runs answer to an expression, in all of their sessions: answer -> names of arms."""
    ask = environment().overlay(undefined=ChainableUndefined).compile_expression(question)
    sessions = [(arm, run, session) for arm, run in study.pairs for session in run.sessions]
    return arms_by_value((arm.name, ask(arm=arm, run=run, session=session)) for arm, run, session in sessions)


def arms_by_value(answers: Iterable[tuple[str, Any]]) -> dict[Any, list[str]]:
    """Return the names of the arms whose runs have each value, but none for None; answers: arm, value."""
    found: dict[Any, dict[str, None]] = {}
    for name, value in answers:
        if value is not None:
            found.setdefault(tuple(value) if isinstance(value, list) else value, {})[name] = None
    return {value: [*names] for value, names in found.items()}


def rules(study: Study) -> Iterator[Finding]:
    """Find what fairness.toml names."""
    for rule in RULES["same"]:
        if not any(matching(study.varied, pattern) for pattern in rule.get("unless", [])):
            for one in unequal(rule["topic"], rule["sentence"], told(study, rule["reads"]), not rule.get("minor")):
                yield one._replace(between={}) if rule.get("everywhere") else one
    for rule in RULES["never"]:
        if names := told(study, f"true if {rule['reads']} else none").get(True):
            yield Finding(rule["topic"], f"{shortened(names, 6)}: {rule['sentence']}", not rule.get("minor"))


def unequal(
    topic: str, words: str, found: Mapping[Any, Sequence[str]], serious: bool = True, fewest: int = 2
) -> Iterator[Finding]:
    """Say who has which values, where there are so many, such as `100 (layernorm); 200 (rmsnorm, dyt)`."""
    if len(found) >= fewest:
        values = "; ".join(f"{in_words(value)} ({shortened(names, 4)})" for value, names in found.items())
        yield Finding(topic, f"{words}: {values}", serious, found)


def settings(study: Study) -> Iterator[Finding]:
    """Find settings that go along with what is compared."""
    compared, asked = [key for key in study.varied if key in GROUPS], asked_for(study)
    for key in candidates(study.runs):
        follows = key.partition(".")[0] in compared and (key not in asked or key.endswith("._target_"))
        if not follows and key not in (*GROUPS, *study.varied, *RULES["said"]):  # an option has its own values
            found = arms_by_value((arm.name, run.config.get(key)) for arm, run in study.pairs)
            yield from unequal("settings", f"the arms differ in {key} too", found)


def asked_for(study: Study) -> set[str]:
    """Return the keys that the commands of runs set: what they say does not follow from an option."""
    words = (word for run in study.runs for word in run.session["command"].split())
    return {word.strip("'\"").lstrip("+~").partition("=")[0] for word in words if "=" in word}


# ---- seeds


def seeds(study: Study) -> Iterator[Finding]:
    """Find arms that lack a seed that others have."""
    every = {run.seed for run in study.runs}
    lacking = {arm.name: sorted(every - {run.seed for run in arm.runs}) for arm in study.arms}
    for seeds, names in arms_by_value((name, [*map(str, lacks)] or None) for name, lacks in lacking.items()).items():
        text = f"{shortened(names, 6)}: no run with seed {shortened(seeds)}, which other arms have"
        yield Finding("missing seeds", text)


def step_times(study: Study) -> Iterator[Finding]:
    """Find arms whose seeds took unlike times for the same work."""
    ratios = {}
    for arm in study.arms:
        times = [run.summary.get("step_time", {}) for run in arm.runs]
        medians = [time["median_ms"] for time in times if time.get("n", 0) >= FEWEST_STEPS]
        ratios[arm.name] = max(medians, default=1.0) / min(medians, default=1.0)
    if unsteady := [name for name, ratio in ratios.items() if ratio > STEADY]:
        text = "so runs disturbed each other, or the machine did other work: their times say little"
        worst = f"step times differ up to {max(ratios.values()):.1f}-fold between seeds of one arm"
        yield Finding("step times", f"{worst}, {text}: {shortened(unsteady, 6)}", serious=False)


def launches(study: Study) -> Iterator[Finding]:
    """Find GPUs that probably waited for their hosts in most runs of each arm, so that step times count operators."""
    waiting = {
        arm.name: [run for run in arm.runs if run.host_share >= LAUNCH_BOUND and run.operators > 0]
        for arm in study.arms
    }
    if len(study.arms) < 2 or any(2 * len(waiting[arm.name]) <= len(arm.runs) for arm in study.arms):
        return
    runs = [run for own in waiting.values() for run in own]
    least = round(1000 * min(run.host_share for run in runs)) // 10
    gpus = [*dict.fromkeys(run.session.get("accelerator") or "GPU" for run in runs)]
    named = f"the {gpus[0]}" if len(gpus) == 1 else f"the GPU (one of {shortened(gpus)})"
    why = f"in most runs the host was at work for at least {least} % of a step, so {named} probably waited for it"
    counts = {name: median(run.operators for run in own) for name, own in waiting.items()}
    numbers = "; ".join(f"{number:,.0f} ({name})" for name, number in [*counts.items()][:MOST_TOLD])
    told = f"and step times compare how many operators there are, and not what they compute: {numbers}"
    alike = "a step that itself waits for the GPU, as with .item() in a norm, looks alike"
    yield Finding("step times", f"{why}, {told}; but {alike}", serious=False)


# ---- learning rates


def learning_rates(study: Study) -> Iterator[Finding]:
    """Find learning rates that go along with what is compared: fair where each was chosen for its arm on other data."""
    found = arms_by_value((arm.name, run.config.get(LEARNING_RATE)) for arm, run in study.pairs)
    if LEARNING_RATE in study.varied or not found or len(study.arms) < 2:
        return
    if len(found) == 1 and not study.choices:
        text = f"all arms ran at lr {in_words(*found)}, which was chosen for none of them: choose one for each with "
        crossed = any(key.startswith(("optim", "schedule")) for key in study.varied)  # what is asked is about rates
        yield Finding("learning rate", text + own_rates(study), serious=not crossed)
    elif study.fairly_chosen:
        text = "the learning rate of each arm was chosen on data held out of the training data"
        yield from unequal("learning rate", text, found, serious=False, fewest=1)
        at_edge = {path for path, choice in study.choices.items() if choice.get("edge")}
        if names := [arm.name for arm in study.arms if any(run.path in at_edge for run in arm.runs)]:
            text = "the chosen learning rate is at the end of those tried, so a wider grid may have a better one"
            yield Finding("learning rate", f"{shortened(names, 6)}: {text}")
    elif "optim" not in study.varied or LEARNING_RATE in asked_for(study):
        text = f"the arms differ in {LEARNING_RATE} too, which is fair only if each was chosen for its arm"
        yield from unequal("settings", text, found)


def own_rates(study: Study) -> str:
    """Return the command that chooses a learning rate for each arm."""
    name = f"{study.runs[0].config.get('name')}-auto"
    command = study.command(**{"name": name, LEARNING_RATE: None, "sweep.lr": "auto"})
    return command or "normbench sweep and sweep.lr=auto"


def open_rates(study: Study) -> Iterator[Finding]:
    """Find arms whose learning rates have not all ended with the same seeds, so that another may yet be chosen."""
    for family in rate_families(study):
        every = {run.seed for arm in family for run in arm.runs}
        lacking = {arm.settings[LEARNING_RATE]: every - settled_seeds(arm) for arm in family}
        if open_ones := {rate: sorted(map(str, lacks)) for rate, lacks in lacking.items() if lacks}:
            words = "; ".join(f"lr {in_words(rate)} lacks seed {shortened(own, 6)}" for rate, own in open_ones.items())
            text = f"{without(family[0], LEARNING_RATE).name}: the choice of its learning rate is not final, as {words}"
            yield Finding("learning rate", text)
