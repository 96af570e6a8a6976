"""From the words of a command line to a checked configuration, by Hydra.

Hydra composes the options of the groups; settings are then written into what it has composed, where it is known which
of them the chosen classes take. So runs that differ in settings alone share one composition.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from normbench.config.groups import (
    SEARCH_PATH,
    Choices,
    check_option,
    chosen_options,
    config_directory,
    content,
    find_own_classes,
    leave_out_said,
    options,
    options_with,
    scheme_of_experiment,
    scheme_words,
    section_of,
)
from normbench.config.recipe import Part, Recipe
from normbench.config.rules import RULES, group_of, is_rule, read_rule, rule_sections, section_at
from normbench.config.schema import (
    LEFT_OUT,
    TrainConfig,
    check_config,
    section_settings,
    takes_from_host,
)
from normbench.config.sections import BY_NAME, CLASS_SECTIONS, COMPARED, GROUPS, LOGGER, SECTIONS
from normbench.errors import UsageError
from normbench.settings import LIKE_HOST, Tree, drop_keys, either, flat, key_of, nearest, show

# The groups whose option becomes a word of the run's name where it is not the default, besides norm and placement.
NAMING_GROUPS = ("weights", "model", "data")

# The groups in which a class of a person's own names the run, and those whose section may be left out.
NAMED_BY_CLASS = (*COMPARED, "weights")
WITHOUT_SECTION = tuple(section.name for section in SECTIONS if section.absent)

# A setting that a class takes over, where it takes it, from the one that it replaces: model and data agree on it.
SHARED = {"model": ("context",), "data": ("context",), "optim": ("lr",)}

LIBRARIES = "normbench.hosts."  # where models of other libraries are

SCHEME = "scheme"  # the group whose options stand for words

# Hydra's own groups for its help, its logs and its folders of runs: nothing reads them, and to compose them takes a
# sixth of its time.
DROPPED = [f"~hydra/{group}" for group in ("help", "hydra_help", "hydra_logging", "job_logging", "output")]

# Words that others have for it, or that are a sweep's.
GOES_ON = "the command of a run that was stopped goes on with it, and normbench sweep --resume FOLDER with a sweep"
ELSEWHERE = {
    **dict.fromkeys(("resume", "ckpt_path", "resume_from_checkpoint"), GOES_ON),
    **dict.fromkeys(("sweep", "launcher", "hydra/launcher", "hydra/sweeper"), "start it with normbench sweep"),
    **dict.fromkeys(("trainer.accelerator", "trainer.devices", "gpus"), "use device=cpu, cuda or cuda:N"),
}


@dataclass(frozen=True)
class Config:
    """A run's configuration, every value checked and in its own type.

    Attributes:
        tree: resolved, plain containers.
        closed: the part of it that is no class's.
        words: of the command line.
        varied: the keys that the runs of its sweep differ in.
        resolved: the parts that were asked for so far, which one that differs in length or threads alone shares.
    """

    tree: dict[str, Any]
    closed: TrainConfig
    choices: Choices
    words: tuple[str, ...]
    varied: tuple[str, ...] = ()
    resolved: dict[str, Part] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def recipe(self) -> Recipe:
        """Return its parts, each of which is resolved once."""
        return Recipe(self.tree, self.choices.groups, self.resolved)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was resolved, whose classes another process may find only after it has begun."""
        return {**drop_keys(vars(self), "recipe"), "resolved": {}}

    def overridden(self, key: str) -> bool:
        """Tell whether the command line set this key, or one below it."""
        return is_overridden(key, self.words)


def read(words: Sequence[str]) -> Config:
    """Return the configuration that words ask for.

    Raises:
        UsageError: any mistake in the words.
    """
    return read_each([words])[0]


def read_each(points: Iterable[Sequence[str]]) -> list[Config]:
    """Return the configuration of each list of words; those that choose the same options are composed once.

    Raises:
        UsageError: any mistake in the words.
    """
    find_own_classes()
    configs: list[Config] = []
    for point in points:
        with translate_errors():
            words = write_out(point)
            scheme_words = words_of_scheme(words)
            every_word = (*scheme_words, *words)
            rules = read_rules(every_word)
            chosen, settings = divide(every_word)
            config, groups = compose(chosen)
            refuse_section_of_rules(config, groups, own_folders(words))
            of_scheme = {key_of(word) for word in scheme_words}
            apply(config, groups, settings, of_scheme)
            finished = finish(config, groups, every_word, rules)
            configs.append(replace(finished, words=tuple(words)))
    return configs


def write_out(words: Iterable[str]) -> list[str]:
    """Return words in which a mapping that is given whole is a word for each of its values, as one may write them too.

    `optim={lr: 0.1, betas: [0.9, 0.95]}` is `optim.lr=0.1 optim.betas=[0.9,0.95]`. So whatever reads words knows one
    form, and runs are the same in both.
    """
    written: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        mapping = value_of(value) if value.lstrip().startswith("{") else None
        if isinstance(mapping, dict) and not key.startswith("~"):
            written += words_in(key, mapping)
        else:
            written.append(word)
    return written


def words_in(key: str, value: Any) -> list[str]:
    """Return the words that set a value, one for each value in it where it is a mapping by plain keys."""
    if not value or not isinstance(value, dict) or not all(map(is_plain, value)):
        return [f"{key}={in_hydra_grammar(value)}"]
    words: list[str] = []
    for name, inner_value in value.items():
        words += words_in(f"{key}.{name}", inner_value)
    return words


def is_plain(name: Any) -> bool:
    """Tell whether a key of a mapping can stand between the dots of a key."""
    return isinstance(name, str) and re.fullmatch(r"[\w-]+", name) is not None


def divide(words: Sequence[str]) -> tuple[list[str], list[Override]]:
    """Return the words that choose options, which Hydra composes, and the settings, a class before its own.

    Rules are neither, and left out.

    Raises:
        UsageError: a word is not in Hydra's grammar, gives several values, or chooses an option that there is not.
    """
    chosen: list[str] = []
    settings: list[Override] = []
    folders = own_folders(words)
    for word in words:
        if is_rule(key_of(word)):
            continue
        override = parse_one(word)
        if override.key_or_group in (*GROUPS, SEARCH_PATH):
            check_choice(override, folders)
            chosen.append(text(override))
        else:
            settings.append(override)
    settings.sort(key=lambda override: not override.key_or_group.endswith("._target_"))
    return chosen, settings


def compose(words: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """Return what Hydra composes of the options that words choose, free to be changed, and the option of each group."""
    own_files: list[tuple[Path, int]] = []
    for folder in own_folders(words):
        for file in sorted((*folder.glob("*.yaml"), *folder.glob("*/*.yaml"))):
            if file.is_file():
                own_files.append((file, file.stat().st_mtime_ns))
    pickled = compose_once(tuple(words), tuple(own_files))
    composed: tuple[DictConfig, dict[str, str]] = pickle.loads(pickled)
    return composed


@cache
def compose_once(words: tuple[str, ...], own_files: tuple[tuple[Path, int], ...]) -> bytes:
    """Return what `compose` does, pickled: to read that takes a hundredth of the time that Hydra takes.

    Args:
        own_files: the YAMLs of the person's own folders, and when each was last written; with others Hydra reads anew.
    """
    with start_hydra():
        config = hydra.compose("train", [*words, *DROPPED], return_hydra_config=True)
    with open_dict(config):
        runtime = config.pop("hydra").runtime
        config.pop(SCHEME, None)  # whose words are among those of the line
    options = {}
    for group, option in runtime.choices.items():
        if group in GROUPS:
            options[group] = str(option)
    return pickle.dumps((config, options))


def refuse_section_of_rules(config: DictConfig, groups: Mapping[str, str], folders: Sequence[Path]) -> None:
    """Refuse a YAML that has the section of rules, which are words.

    Raises:
        UsageError: with the option whose YAML it is.
    """
    if RULES not in config:
        return
    named: list[str] = []
    for group, option in groups.items():
        if option in options(group, *folders) and RULES in content(group, option, tuple(folders)):
            named.append(f"{group}={option}")
    cure = "give rules as words, such as norm@qk=rmsnorm, or as lines of a scheme"
    raise UsageError(f"{either(named) or 'a YAML'} has a section {RULES}: {cure}")


def finish(config: DictConfig, groups: dict[str, str], words: tuple[str, ...], rules: Mapping[str, Tree]) -> Config:
    """Return what was composed as a checked configuration.

    Args:
        config: what was composed.
        groups: the option of each group.
        words: of the command line.
        rules: the section of each rule by its key.
    """
    tree, closed = check_config(complete(config, words, rules))
    choices = name_choices(groups, tree, words)
    leave_out_defaults(tree, choices.groups, own_folders(words))
    checked = Config(tree, closed, choices, words)
    steps = closed.trainer.steps
    if steps and checked.overridden("trainer.epochs") and not checked.overridden("trainer.steps"):
        raise UsageError(f"trainer.epochs is given where trainer.steps={steps} is set already: add trainer.steps=null")
    return checked


def complete(config: DictConfig, words: tuple[str, ...], rules: Mapping[str, Tree]) -> dict[str, Any]:
    """Return what was composed as plain containers, with the rules, and without what is not of the chosen classes."""
    tree = resolve(config)
    adopt(tree, words)
    leave_out_absent(tree)
    if rules:
        tree[RULES] = dict(rules)
    if takes_from_host(flat(tree)):
        leave_to_host(tree, words)
    for key in ("outputs", "extend"):
        if isinstance(tree.get(key), str):
            tree[key] = os.path.expanduser(tree[key])  # the shell leaves `~` alone after a `=`
    return tree


def leave_to_host(tree: dict[str, Any], words: tuple[str, ...]) -> None:
    """Remove settings of norms that no word gives, where each norm has those of the one in whose place it comes."""
    for section, values in {"norm": tree.get("norm"), **rule_sections(tree)}.items():
        if group_of(section) != "norm" or not isinstance(values, dict):
            continue
        for name in LIKE_HOST:
            if name in values and not is_overridden(f"{section}.{name}", words):
                del values[name]


def name_choices(groups: dict[str, str], tree: dict[str, Any], words: tuple[str, ...]) -> Choices:
    """Return the option of each group, a class of the user's own by its name, and the words that name the run."""
    named = dict(groups)
    for group in NAMED_BY_CLASS:
        if is_overridden(f"{group}._target_", words):
            named[group] = name_class(section_at(tree, group))
    named[LOGGER] = ",".join(tree[LOGGER]) or "none"
    word_of_key = {key_of(word): word for word in words}
    rules = tree.get(RULES, {})
    for key, section in rules.items():
        if f"{key}._target_" in word_of_key:
            named[key] = name_class(section)
        else:
            named[key] = str(parse(word_of_key[key]).value())
    name_words = [named["norm"], named["placement"]]
    if named[SCHEME] == "None":
        del named[SCHEME]
    else:
        name_words.insert(0, named[SCHEME])
    defaults = chosen_options([])
    for group in NAMING_GROUPS:
        if named.get(group, defaults[group]) != defaults[group]:
            name_words.append(named[group])
            if str(section_at(tree, group)["_target_"]).startswith(LIBRARIES):  # a model among many of a library
                name_words.append(re.sub(r"[^\w.]+", "_", section_at(tree, group)["name"]))
    for key in rules:
        place = key.partition("@")[2]
        name_words.append(f"{named[key]}@{place}")  # rmsnorm@qk
    for group in WITHOUT_SECTION:
        if group not in tree:
            named.pop(group, None)
    return Choices(named, tuple(name_words))


def name_class(section: Mapping[str, Any]) -> str:
    """Return the word for a section's class in the name of a run: the class's own name, in lower case."""
    path = str(section["_target_"])
    return path.rpartition(".")[2].lower()


def leave_out_absent(tree: dict[str, Any]) -> None:
    """Remove the sections and keys that a configuration is without where they are as usual.

    So runs that are older than these stay the same.
    """
    for section in WITHOUT_SECTION:
        values = tree.get(section, {})
        if values.get("_target_") == BY_NAME[section].absent:
            del tree[section]
    for path, usual in LEFT_OUT.items():
        section, _, name = path.partition(".")
        values = tree.get(section)
        if isinstance(values, dict) and values.get(name) == usual:
            del values[name]


def leave_out_defaults(tree: dict[str, Any], chosen: Mapping[str, str], folders: Sequence[Path]) -> None:
    """Remove settings of our classes that have their default, and that the YAML of the chosen option does not mention.

    So a run is the same whether they are written out or not, and runs that are older than these settings stay the same.

    Args:
        tree: the configuration, checked.
        chosen: the option of each section and rule.
        folders: those with further options.
    """
    for section in (*CLASS_SECTIONS, *rule_sections(tree)):
        values = section_at(tree, section)
        if not str(values["_target_"]).startswith("normbench."):
            continue
        group = group_of(section)
        option = chosen.get(section, "")
        preset = section_of(group, option, *folders) if option in options(group, *folders) else {}
        known = section_settings(section, values) or {}
        for name, value in [*values.items()]:
            if name in known and name not in preset and known[name].is_default(value):
                del values[name]


def words_of_scheme(words: Sequence[str]) -> list[str]:
    """Return the words that a scheme stands for, less those that the given words say otherwise.

    Raises:
        UsageError: there is no such scheme.
    """
    value_of_key = {key_of(word): word.partition("=")[2] for word in words}
    folders = own_folders(words)
    scheme = value_of_key.get(SCHEME) or scheme_of_experiment(value_of_key.get("experiment", ""), *folders)
    if scheme == "null":
        return []
    unsaid = leave_out_said(scheme_words(scheme, *folders), value_of_key)
    return [f"{key}={show(value)}" for key, value in unsaid.items()]


def keys_of_schemes(words: Sequence[str]) -> set[str]:
    """Return the keys that schemes set: the one that words name, or all of several."""
    folders = own_folders(words)
    known = options(SCHEME, *folders)
    keys = set[str]()
    for word in words:
        if key_of(word) == SCHEME:
            named = word.partition("=")[2]
            every = "(" in named  # such as glob(*)
            for scheme in known:
                if every or scheme in named.split(","):
                    keys.update(scheme_words(scheme, *folders))
    return keys


def check_choice(override: Override, folders: Sequence[Path]) -> None:
    """Refuse a word that chooses an option which its group does not have.

    Raises:
        UsageError: with the options that there are.
    """
    group = override.key_or_group
    if group not in GROUPS or override.is_delete():
        return
    value = override.value()
    for option in value if isinstance(value, list) else [value]:
        if isinstance(option, str):
            check_option(group, option, *folders)


def read_rules(words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the section of each rule that words give, such as `norm@qk=rmsnorm norm@qk.eps=1e-6`, by its key.

    Raises:
        UsageError: a place that is not written as one, an unknown option, or a setting of a rule that is not given.
    """
    folders = own_folders(words)
    word_of_key = {key_of(word): word for word in words if is_rule(key_of(word))}
    rules = {key.removesuffix("._target_") for key in word_of_key}
    sections: dict[str, dict[str, Any]] = {}
    for key, word in word_of_key.items():
        if word.startswith("~"):
            raise UsageError(f"{word} takes a rule back: leave out {key} instead")
        value = parse_one(word).value()
        option = str(value)
        group = read_rule(key).group
        place, _, name = key.rpartition(".")
        if place in rules and (name.startswith("_") or option not in options(group, *folders)):  # a setting
            sections.setdefault(place, {})[name] = value
            continue
        if option not in options(group, *folders) and options_with(group, name):
            raise UsageError(f"{key} is a setting of {place}, which is not given: add {place}={group.upper()}")
        check_option(key, option, *folders)
        preset = {} if f"{key}._target_" in word_of_key else section_of(group, option, *folders)
        sections[key] = preset | sections.get(key, {})
    return sections


def own_folders(words: Iterable[str]) -> list[Path]:
    """Return the folders that `--config-dir` names, as they stand among the words."""
    folders: list[Path] = []
    for word in words:
        if key_of(word) == SEARCH_PATH:
            places = value_of(word.partition("=")[2])
            if isinstance(places, list):  # else Hydra says that it must be one
                for place in places:
                    path = str(place).removeprefix("file://")
                    folders.append(Path(path))
    return folders


def is_overridden(key: str, words: Iterable[str]) -> bool:
    """Tell whether words set this key, or one below it."""
    setting_it = re.compile(rf"[+~]*{re.escape(key)}([=.]|$)")
    return any(map(setting_it.match, words))


def adopt(tree: dict[str, Any], words: tuple[str, ...]) -> None:
    """Remove what a YAML sets for a class that the command line has replaced by another `_target_`.

    What the words themselves set stays; of the rest, what the new class takes and has no default for, and what is not
    the replaced class's alone: the peak of the schedule, and the length of a window, on which model and data agree.
    """
    for section in CLASS_SECTIONS:
        if not is_overridden(f"{section}._target_", words):
            continue
        values = tree[section]
        known = section_settings(section, values, imports=True)
        kept: dict[str, Any] = {}
        for name, value in values.items():
            is_given = name.startswith("_") or is_overridden(f"{section}.{name}", words)
            is_shared = name in SHARED.get(section, ()) and (known is None or name in known)
            is_required = known is not None and name in known and known[name].required
            if is_given or is_shared or is_required:
                kept[name] = value
        tree[section] = kept


# ---- words


@cache
def parse(word: str) -> Override:
    """Return a word as Hydra's parser reads it, which takes a millisecond; a `+` before it changes nothing here.

    Raises:
        UsageError: it is not in Hydra's grammar.
    """
    key, equals, value = word.partition("=")
    with suppress(HydraException, ValueError, RecursionError):
        override = OverridesParser.create().parse_override(word.lstrip("+"))
        if override.key_or_group:
            return override
    if not equals:
        cure = "write a setting as one word, such as norm=rmsnorm; normbench train --help shows the keys"
        raise UsageError(f"'{word}' is not KEY=VALUE: {cure}")
    quoted = value.replace("'", "")
    signs = "blanks, commas, brackets, '=', '~' or letters beyond ASCII"
    cure = f"write KEY=VALUE without blanks, and quote a value that has {signs}, as in \"{key}='{quoted}'\""
    raise UsageError(f"{word} cannot be read: {cure}")


def parse_one(word: str) -> Override:
    """Return a word as Hydra's parser reads it.

    Raises:
        UsageError: it is not in Hydra's grammar, or gives several values.
    """
    override = parse(word)
    if override.is_sweep_override():
        cure = "start it with normbench sweep, give one, or quote the commas"
        raise UsageError(f"{text(override)} gives several values, which only a sweep takes: {cure}")
    return override


def value_of(text: str) -> Any:
    """Return what Hydra reads a value as; several values, and what is not in its grammar, stay text."""
    try:
        override = parse(f"key={text}")
    except UsageError:
        return text
    if override.is_sweep_override():
        return text
    return override.value()


def text(override: Override) -> str:
    """Return an override as it was written."""
    return override.input_line or ""


def apply(
    config: DictConfig, groups: dict[str, str], settings: Iterable[Override], of_scheme: Collection[str] = ()
) -> None:
    """Write settings into a composed configuration.

    Args:
        config: what was composed.
        groups: the option of each group.
        settings: as Hydra's parser reads them.
        of_scheme: the keys that a scheme sets, and no word of the person.

    Raises:
        UsageError: a key that there is not.
    """
    for override in settings:
        key = override.key_or_group
        section, _, name = key.rpartition(".")
        values = OmegaConf.select(config, section) if section else config
        known = isinstance(values, DictConfig) and name in values
        may_be_set = known or takes(section, name, values) or takes_mapping(config, section)
        if override.is_delete() and may_be_set:
            refuse_idle_removal(override, OmegaConf.select(config, key) if known else MISSING)
            with open_dict(config):
                del values[name]
        elif may_be_set:
            with open_dict(config):  # also where a mapping has keys that the one in its place has not
                OmegaConf.update(config, key, override.value(), merge=True)
        elif key in of_scheme and section in groups:
            chosen = f"{section}={groups[section]}"
            having = either(f"{section}={option}" for option in options_with(section, name))
            what = f"scheme={groups[SCHEME]} sets {key}, which is not a setting of {chosen}"
            raise UsageError(f"{what}: choose {having}, or give norm and placement in place of the scheme")
        else:
            raise UsageError(explain_unknown(key, config, groups))


def refuse_idle_removal(override: Override, current: Any) -> None:
    """Refuse a word that takes a setting back, as `~model.kwargs.depth`, where it would take nothing back.

    Args:
        override: the word; of `~KEY=VALUE` the key must have that value, as Hydra has it.
        current: the value of the key; MISSING where it has none.

    Raises:
        UsageError: the key has no value, or another.
    """
    key = override.key_or_group
    if current is MISSING:
        raise UsageError(f"{text(override)} takes nothing back, since {key} is not set: leave it out")
    value = override.value()
    if OmegaConf.is_config(current):
        current = OmegaConf.to_container(current)
    if value not in (None, "", current):
        raise UsageError(f"{text(override)} takes nothing back, since {key} is {show(current)}: write ~{key}")


def takes(section: str, name: str, values: Any) -> bool:
    """Tell whether a class takes a setting that its YAML does not mention."""
    if section.startswith(f"{LOGGER}.") and name == "_target_":
        return True  # one of the user's own, under a new name
    root = section.partition(".")[0]
    if root not in (*CLASS_SECTIONS, LOGGER) or not isinstance(values, DictConfig):
        return False
    known = section_settings(section, values, imports=True)
    return known is None or name in known


def takes_mapping(config: DictConfig, path: str) -> bool:
    """Tell whether a class takes a setting, at a path or above it, that its YAML does not mention and may be a mapping.

    It is not there yet: a key below it makes it one.
    """
    while "." in path and OmegaConf.select(config, path) is None:
        path, _, name = path.rpartition(".")
        if path != LOGGER and takes(path, name, OmegaConf.select(config, path)):
            return True
    return False


def explain_unknown(key: str, config: DictConfig, groups: dict[str, str]) -> str:
    """Say what is meant, perhaps, by a key that a configuration does not have."""
    section, _, name = key.rpartition(".")
    if section in CLASS_SECTIONS:
        having = options_with(section, name)
        if having:
            chosen = f"{section}={groups[section]}"
            return f"{key} is not a setting of {chosen}: leave it out, or choose {section}={either(having)}"
    group, _, option = section.partition(".")
    if group == LOGGER and option in options(group) and option not in config[group]:
        return f"{key} is a setting of {group}={option}, which is not chosen: add it, several as {group}=[csv,{option}]"
    elsewhere = ELSEWHERE.get(key) or ELSEWHERE.get(key.partition(".")[0])
    if elsewhere:
        return f"{key} is not a key of a run: {elsewhere}"
    known = [*flat(resolve(config)), *GROUPS]
    beside: list[str] = []
    if section:
        start = f"{section}."
        beside = [path.removeprefix(start) for path in known if path.startswith(start)]
    if beside and not nearest(name, beside):  # what is most like the whole would be like it in the section's name
        there = sorted(each for each in beside if not each.startswith("_"))
        settings = f"{', '.join(there)}; normbench show says what each is" if there else "no settings"
        return f"{key} is unknown: {section} has {settings}"
    meant = nearest(key, known)
    in_sections = [path for path in known if path.endswith(f".{key}")]
    if in_sections:
        meant = f"did you mean {either(in_sections[:2])}? "
    return f"{key} is unknown: {meant}normbench train --help lists the keys, and normbench show all of them"


# ---- Hydra


@contextmanager
def start_hydra() -> Iterator[None]:
    """Let Hydra find our configurations."""
    with hydra.initialize_config_dir(str(config_directory()), version_base="1.3"):
        yield


def read_experiment(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name that an experiment gives, and its `hydra.sweeper.params`: what a sweep varies."""
    chosen = [word.lstrip("+") for word in words]
    with translate_errors(), start_hydra():
        config = hydra.compose("train", [*chosen, *DROPPED], return_hydra_config=True)
        params = config.hydra.sweeper.get("params")
        varied = resolve(params) if params else {}
        return str(config.name), varied


def resolve(config: DictConfig) -> dict[str, Any]:
    """Return a configuration as dicts and lists, with what refers to other keys filled in."""
    tree: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return dict(tree)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn what Hydra, OmegaConf and YAML raise into one sentence.

    Raises:
        UsageError: for any mistake in the words, or in a file that they name.
    """
    try:
        yield
    except UsageError:
        raise
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"{said.rstrip('.')}: check the keys and their values with normbench show") from error


def ask_hydra(words: Sequence[str], *flags: str) -> None:
    """Let Hydra itself print the configuration that words ask for, or which files it comes from, as its flags say."""
    config = read(words)  # says in a sentence what is wrong
    every_word = (*words_of_scheme(words), *words)
    chosen, settings = divide(every_word)
    changes: list[str] = []
    for override in settings:
        word = text(override)
        changes.append(word if override.is_delete() else f"++{word}")
    for section in WITHOUT_SECTION:
        if section not in config.tree:
            chosen = [word for word in chosen if key_of(word) != section]
            changes.append(f"~{section}")
    rules = read_rules(every_word)
    if rules:
        changes.append(f"+{RULES}={in_hydra_grammar(rules)}")
    main = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")
    before = sys.argv
    sys.argv = ["normbench train", *chosen, *changes, *flags]
    try:
        main(lambda config: None)()
    finally:
        sys.argv = before


def in_hydra_grammar(value: Any) -> str:
    """Return a value as Hydra's grammar has it: sections in braces, lists in brackets, text in quotes."""
    if isinstance(value, Mapping):
        entries = []
        for key, inner_value in value.items():
            entries.append(f"{key}:{in_hydra_grammar(inner_value)}")
        return "{" + ",".join(entries) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(in_hydra_grammar, value)) + "]"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        return repr(value)  # all of its digits
    if isinstance(value, Sweep):
        cure = "let whole mappings vary, as KEY={a: 1},{a: 2}, or the key in them, as KEY.a=1,2"
        raise UsageError(f"several values stand inside of a mapping: {cure}")
    return show(value)


def quote(text: str) -> str:
    """Return text in quotes, in which a backslash is one where a quote follows."""
    inside = re.sub(r"(\\*)('|$)", double_backslashes, text)
    return f"'{inside}'"


def double_backslashes(found: re.Match[str]) -> str:
    """Return backslashes twice, and one more before the quote that follows them."""
    quoted = r"\'" if found[2] else ""
    return found[1] * 2 + quoted
