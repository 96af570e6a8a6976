"""What there is to choose and to set, as `list`, `show` and the help pages show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from click import HelpFormatter

from normbench.config import groups
from normbench.config.groups import NOTES, chosen_options, chosen_tree, find_own_classes, options
from normbench.config.refusals import REFUSALS
from normbench.config.rules import RULES, WORDS, group_of, rule_sections
from normbench.config.schema import KEYS, LEFT_OUT, class_sections, section_settings
from normbench.config.sections import GROUPS, SWEEP_GROUPS
from normbench.settings import Setting, Tree, drop_keys, flat, lookup, show

PARTS = ("norm", "placement", "model", "data")
LISTED = (*PARTS, "weights", "scheme", "experiment", "places", "refusals")
HYDRA_KEYS = ("_partial_", "_recursive_", "_convert_")  # the same for every class

# What people set most, beside the settings of the parts.
COMMON_KEYS = (
    "trainer.steps",
    "trainer.epochs",
    "optim.lr",
    "optim.weight_decay",
    "trainer.grad_clip",
    "trainer.eval_every",
    "trainer.compile",
    "probes.every",
    "device",
    "threads",
    "seed",
    "name",
    "quiet",
)


def list_page(formatter: HelpFormatter, chosen: Sequence[str]) -> None:
    """Write the options of groups, and what is refused and why; by default of the groups that people choose from."""
    groups = GROUPS | SWEEP_GROUPS
    for group in chosen or LISTED:
        if group == "refusals":
            write_refusals(formatter)
        elif group == "places":
            write_places(formatter)
        else:
            write_group(formatter, group, groups[group])
            write_other_names(formatter, group)
        if group == "launcher":
            for option in options(group):
                write_launcher(formatter, option)
        formatter.write_paragraph()
    if not chosen:
        others = sorted(set(groups) - set(LISTED))
        formatter.write_text(f"Also: normbench list GROUP, for {', '.join(others)}.")


def write_group(formatter: HelpFormatter, group: str, meaning: str, *folders: Path) -> None:
    """Write the options of a group, a line each, and a note where there is one."""
    formatter.write_text(f"{group}=  {meaning}")
    with formatter.indentation():
        formatter.write_dl(options(group, *folders).items())
        if group in NOTES:
            formatter.write_text(NOTES[group])


def write_other_names(formatter: HelpFormatter, group: str) -> None:
    """Write the names that people have for options of a group, where there are some."""
    named = [f"{listed} ({option})" for option, listed in groups.other_names(group).items()]
    if named:
        with formatter.indentation():
            formatter.write_text(f"Elsewhere called: {'; '.join(named)}.")


def write_refusals(formatter: HelpFormatter) -> None:
    """Write what is refused, and why."""
    formatter.write_text("refusals  what does not go together, and why; everything else does")
    with formatter.indentation():
        for why, rules in groupby(REFUSALS, lambda rule: f"{rule.reason}; {rule.instead}"):
            formatter.write_text(f"{'; '.join(rule.what for rule in rules)}:")
            with formatter.indentation(), formatter.indentation():
                formatter.write_text(why)


def write_places(formatter: HelpFormatter) -> None:
    """Write the words of places, of which a rule chooses another norm or placement for some."""
    keys = "norm@PLACE=  placement@PLACE=  weights@PLACE="
    formatter.write_text(f"{keys}  another option for some places; words are joined by dots")
    with formatter.indentation():
        formatter.write_dl(WORDS.items())
        example = "norm@first3.attention=rmsnorm norm@qk=layernorm norm@qk.eps=1e-6 placement@first25pct=post"
        formatter.write_text(f"As in {example}.")
        formatter.write_text("Of several rules that fit a place, the one with the most words holds, then the last one.")


def train_page(formatter: HelpFormatter, words: Sequence[str], folders: Sequence[Path]) -> None:
    """Write what can be chosen, and the settings of what the words choose."""
    find_own_classes()
    chosen, tree = chosen_tree(words, *folders)
    for group, meaning in GROUPS.items():
        if chosen[group] != "None":
            meaning += f" (now {chosen[group]})"
        formatter.write_paragraph()
        write_group(formatter, group, meaning, *folders)
    settings = list_settings(tree)
    values = {}
    for path in flat(tree):
        values[path] = show(lookup(tree, path)).partition("${")[0]  # what another key decides is left open
    known = {**values, **settings}
    for part in PARTS:
        paths = []
        for path in known:
            if path.startswith(f"{part}.") and "._" not in path:
                paths.append(path)
        if paths:
            with formatter.section(f"Settings of {part}={chosen[part]}"):
                write_keys(formatter, paths, settings, values)
    with formatter.section("Other keys that people set most (all keys: normbench show)"):
        write_keys(formatter, COMMON_KEYS, settings, values)


def sweep_page(formatter: HelpFormatter, words: Sequence[str], folders: Sequence[Path]) -> None:
    """Write what a sweep takes beside `train`'s words."""
    from normbench.sweep.words import SWEEP_KEYS, launcher_of

    for group, meaning in SWEEP_GROUPS.items():
        formatter.write_paragraph()
        write_group(formatter, group, meaning)
    write_launcher(formatter, launcher_of(words))
    with formatter.section("Keys (beside these, and the groups, those of normbench train --help)"):
        write_keys(formatter, SWEEP_KEYS, SWEEP_KEYS, {})


def write_launcher(formatter: HelpFormatter, option: str) -> None:
    """Write the settings of a launcher, if it has any."""
    section = groups.section_of("launcher", option)
    settings = groups.option_settings("launcher", option)
    if settings:
        known: dict[str, Setting] = {}
        values: dict[str, str] = {}
        for name, setting in settings.items():
            known[f"launcher.{name}"] = setting
            values[f"launcher.{name}"] = show(section.get(name))
        with formatter.section(f"Settings of launcher={option}"):
            write_keys(formatter, known, known, values)


def write_keys(formatter: HelpFormatter, paths: Iterable[str], settings: Mapping[str, Setting], values: Tree) -> None:
    """Write keys with their values, what they are, and what is allowed."""
    rows = []
    for path in paths:
        setting = settings.get(path, Setting())
        usual = "" if setting.default is ... else show(setting.default)
        value = values.get(path, usual)
        allowed = setting.allowed or "anything"
        rows.append((f"{path}={value}", f"{setting.doc} [{allowed}]"))
    formatter.write_dl(rows)


def list_settings(tree: Tree) -> dict[str, Setting]:
    """Return what each key of a configuration may hold, by its path, as far as it is known."""
    settings = dict(KEYS)
    for section, values in class_sections(tree).items():
        known = section_settings(section, values, imports=True) or {}
        for name, setting in known.items():
            settings[f"{section}.{name}"] = setting
    return settings


def show_page(formatter: HelpFormatter, words: Sequence[str]) -> None:
    """Write each key of the configuration that `train` would take, as the help page does for some."""
    from normbench.config.compose import read

    config = read(words)
    if config.closed.extend is not None:
        from normbench.record.directory import RunDirectory
        from normbench.runs.extension import extend
        from normbench.runs.finding import find_parent

        config = extend(config, RunDirectory(find_parent(config.closed.extend)), trust=False)
    rows = []
    defaults = chosen_options([])
    for group, meaning in GROUPS.items():
        option = config.choices.groups.get(group, defaults[group]).replace("None", "null")
        rows.append((f"{group}={option}", f"{meaning} [normbench list {group}]"))
    rules = rule_sections(config.tree)
    for key in rules:
        option = config.choices.groups[key]
        rows.append((f"{key}={option}", f"{group_of(key)} of some places"))
    formatter.write_dl(rows)
    values = {}
    without_rules = drop_keys(config.tree, RULES)
    for path in flat(without_rules):
        if not path.endswith(HYDRA_KEYS):
            values[path] = show(lookup(config.tree, path))
    for key, section in rules.items():
        for name, value in section.items():
            if not name.endswith(HYDRA_KEYS):
                values[f"{key}.{name}"] = show(value)
    for path, usual in LEFT_OUT.items():
        values.setdefault(path, show(usual))
    write_keys(formatter, values, list_settings(config.tree), values)
