"""Registers claims: composes the configurations of their runs, and notes that both are fixed.

What a word such as `model=nano` stands for is in conf/ and in the signatures of classes, which change. So a
registration covers the whole configuration of each run. Nothing is read but YAMLs and signatures: it takes a second for
a claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normbench.claims.checks import is_in_blocks, plan_points, seed_word, study_of
from normbench.claims.claim import Claim
from normbench.claims.registration import (
    CONFIGURATIONS,
    FOLDER,
    REGISTERED,
    SCHEME,
    Registration,
    configurations_file,
    find_registration,
)
from normbench.claims.suite import Way
from normbench.config.rules import RULES
from normbench.config.schema import UNHASHED_KEYS, list_unwritten
from normbench.errors import UsageError
from normbench.record.files import inside, make_folder, read_json, write_bytes, write_json
from normbench.results.rules import ClaimKind
from normbench.settings import drop_keys, flat, show
from normbench.studies.frame import known_settings, make_study, split_words
from normbench.sweep.words import is_own, read_settings
from normbench.tell.claim_sizes import find_mismatch

HERE, AT_SCALE = "runs", "runs_at_scale"  # the parts of the configurations of a claim
ONLY_RUN = "all"  # the name of a run where nothing varies
MOST_CHANGES = 3  # that are told
NO_SIGN = (
    "steps() counts a run that never comes to the loss as its whole length, so that its mean is not 0 for two equal "
    "arms and kind: any has no test: write speedup(arm, reference), which is in doublings"
)

Values = dict[str, Any]  # the settings of a run by path
Runs = dict[str, Values]  # by the words in which runs differ


# ---- configurations


def compose_configurations(claim: Claim, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configurations of a claim's runs, here and at the larger scale, in a form that depends on them alone.

    Each has all settings by path, those that classes have by default too, and none that changes no number: it is the
    same on each machine. Runs of several seeds differ in nothing else. What is the same in all runs stands once.

    options: the words that say where further options are.

    Raises:
        UsageError: a mistake in the words.
    """
    configurations = {HERE: factor(compose_runs(claim, options))}
    if claim.at_scale and not claim.runs_of:  # else it is with the claim whose runs these are
        configurations[AT_SCALE] = factor(compose_runs(Way(at_scale=True).apply(claim), options))
    return configurations


def compose_runs(claim: Claim, options: Sequence[str]) -> Runs:
    """Return all settings of the runs that the words of a claim ask for, of one seed."""
    kind = study_of(claim)
    words = [*claim.words, *options]
    if not is_in_blocks(kind):
        words.append(seed_word([0]))
    of_study, of_runs = split_words(words)
    common = settings_of_sweep(of_runs)
    if kind is not None:
        study = make_study(kind, of_study)
        for name, setting in known_settings(kind).items():
            common[f"study.{name}"] = study.settings.get(name, setting.default)
    runs = {}
    for point in plan_points(claim, kind, words):
        written = drop_keys(flat(dict(point.tree)), "seed")
        settings = {**list_unwritten(written), **written, **common}
        settings["rules"] = list(point.tree.get(RULES, ()))  # whose order plays a part
        runs[name_run(point.varied)] = {key: plain(settings[key]) for key in settings if decides(key)}
    return runs


def settings_of_sweep(words: Sequence[str]) -> Values:
    """Return what a sweep's own words, or their defaults, set of which runs are made; what varies shows in the runs."""
    settings, _ = read_settings([word for word in words if is_own(word)])
    values: Values = {"sweep.stack": settings.stack}
    if settings.lr is not None:
        for name, value in vars(settings).items():
            if name.startswith("lr"):
                values[f"sweep.{name}"] = value
    return values


def settings_at_rest(claim: Claim) -> Values:
    """Return the settings of sweeps and of the claim's study with the values that they have by default."""
    kind = study_of(claim)
    values = settings_of_sweep(["sweep.lr=each"])
    for name, setting in (known_settings(kind) if kind else {}).items():
        values[f"study.{name}"] = setting.default
    return values


def decides(key: str) -> bool:
    """Tell whether a setting may change a number."""
    return not any(key == unhashed or key.startswith(f"{unhashed}.") for unhashed in UNHASHED_KEYS)


def name_run(varied: Mapping[str, str]) -> str:
    """Return the words in which a run differs from others, in an order of their own."""
    words = [f"{key}={value}" for key, value in sorted(varied.items()) if key != "seed"]
    return " ".join(words) or ONLY_RUN


def plain(value: Any) -> Any:
    """Return a value as JSON has it, numbers in one spelling."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def factor(runs: Runs) -> dict[str, Any]:
    """Return the settings of runs, with those that are the same in all of them once."""
    first = next(iter(runs.values()))
    shared = {}
    for key in sorted(first):
        if all(key in settings and settings[key] == first[key] for settings in runs.values()):
            shared[key] = first[key]
    own = {name: dict(sorted(drop_keys(runs[name], *shared).items())) for name in sorted(runs)}
    return {"all": shared, "each": own}


def multiply_out(factored: Mapping[str, Any]) -> Runs:
    """Return the settings of each run again."""
    return {name: {**factored["all"], **own} for name, own in factored["each"].items()}


# ---- what has changed since


def read_runs(claim: Claim, at_scale: bool = False) -> Runs | None:
    """Return all settings of a claim's runs as they were registered; None where none were, as in scheme 1."""
    file = configurations_file(claim.path.parent, claim.name)
    configurations = read_json(file) if claim.scheme == SCHEME else None
    factored = (configurations or {}).get(AT_SCALE if at_scale else HERE)
    return None if factored is None else multiply_out(factored)


def tell_changes(claim: Claim, options: Sequence[str] = (), at_scale: bool = False) -> str:
    """Say in which settings the runs of a claim have other values now than when it was registered; empty for none.

    Args:
        claim: as it is registered.
        options: the words that say where further options are.
        at_scale: whether it is about the runs at the larger scale.

    Raises:
        UsageError: the words cannot be composed any more.
    """
    registered = read_runs(claim, at_scale)
    if registered is None:
        return ""
    now = compose_runs(Way(at_scale=True).apply(claim) if at_scale else claim, options)
    changes = list_changes(registered, now, settings_at_rest(claim))
    if not changes:
        return ""
    more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
    return f"{claim.name} was registered with {'; '.join(changes[:MOST_CHANGES])}{more}"


def list_changes(before: Runs, now: Runs, at_rest: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that runs have with another value than before.

    A setting that is new, and has the value that it has by default, is no change: our classes do without such a one.

    at_rest: the values by default of settings that are no class's.
    """
    if before.keys() != now.keys():
        return [f"the runs {tell_names(before)}, and its words now ask for {tell_names(now)}"]
    names_by_change: dict[tuple[str, str, str], list[str]] = {}
    for name, settings in before.items():
        usual = {key: plain(value) for key, value in {**at_rest, **list_unwritten(settings)}.items()}
        for key in sorted({*settings, *now[name]}):
            old = settings.get(key, usual.get(key, ...))
            new = now[name].get(key, ...)
            if old != new:
                change = (key, tell_value(old), tell_value(new))
                names_by_change.setdefault(change, []).append(name)
    phrases = []
    for (key, old, new), names in names_by_change.items():
        where = "" if len(names) == len(before) else f" at {tell_names(names)}"
        phrases.append(f"{key}={old}, which is {new} now{where}")
    return phrases


def tell_names(names: Iterable[str]) -> str:
    """Write the names of runs."""
    return ", ".join(sorted(names))


def tell_value(value: Any) -> str:
    """Write a value of a setting, ... where there is none."""
    return "nothing" if value is ... else show(value)


# ---- registering


def register(claim: Claim, reason: str, today: str, options: Sequence[str] = ()) -> Registration:
    """Note that a claim is fixed as it stands: in REGISTERED beside its YAML, and the date in the YAML.

    Args:
        claim: as its YAML has it.
        reason: why it is registered, or registered again.
        today: as 2026-11-28.
        options: the words that say where further options are.

    Raises:
        UsageError: it is registered as it stands, there is no reason, its sentence says something else than what is
            tested, or its words cannot be composed.
    """
    reason = " ".join(reason.split())
    if not reason:
        raise UsageError("--register needs --reason: say in words why the claim is registered, or registered again")
    mismatch = find_mismatch(claim.content)
    if mismatch:
        raise claim.blame("claim", f"claim: {mismatch}")
    if claim.kind is ClaimKind.ANY and "steps" in claim.effect.functions:
        raise claim.blame("effect", f"effect: {NO_SIGN}")
    if find_registration(claim) and not tell_changes(claim, options):
        raise UsageError(f"{claim.name} is registered as it stands, on {claim.registered}: there is nothing to do")
    root = claim.path.parent.parent
    configurations = compose_configurations(claim, options)
    folder = make_folder(root, FOLDER, CONFIGURATIONS)
    write_json(inside(folder, f"{claim.name}.json"), configurations)
    new = Registration(claim.name, today, SCHEME, claim.digest_in(SCHEME), reason)
    path = inside(root, FOLDER, REGISTERED)
    before = path.read_text("utf-8") if path.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    write_bytes(path, f"{before}{new.line}\n".encode())
    if claim.base:  # whose YAML has the date of the claim at its own scale
        return new
    text = claim.path.read_text("utf-8")
    changed, count = re.subn(r"^registered:[^#\n]*?(\s*#.*)?$", rf"registered: {today}\1", text, flags=re.MULTILINE)
    if not count:
        changed = f"{text.rstrip()}\nregistered: {today}\n"
    write_bytes(inside(root, FOLDER, claim.path.name), changed.encode())
    return new
