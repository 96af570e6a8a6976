"""`normbench train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normbench.catalog import GROUPS, NOTES, Choices, check_names, options, options_with, own_folders
from normbench.commands.pages import entries, paragraph
from normbench.config import COMMON_KEYS, KEYS, Tree, lookup
from normbench.errors import UsageError
from normbench.glance import glance
from normbench.keys import either, show
from normbench.request import check_settings, settled, wanted
from normbench.rundir import RunDirectory

if TYPE_CHECKING:  # imports Hydra: behind every mistake that the words alone show
    from normbench.compose import Composition

# What may be changed of a run that is extended; everything else is its parent's.
EXTENSION_KEYS = ("extend", "trainer", "name", "outputs", "quiet", "rerun", "device")
# ... and what of the trainer may not: a checkpoint has what belongs to it.
FIXED_KEYS = ("trainer.precision", "trainer.accumulate", "trainer.ema")

EXAMPLES = """\
examples:
  normbench train norm=rmsnorm placement=pre
  normbench train model=cnn data=digits norm=groupnorm norm.groups=8 seed=1
  normbench train experiment=nanogpt_cpu data.root=PATH trainer.steps=500"""

DRY_RUN = "--dry-run"

FLAGS = {
    DRY_RUN: "print what would run, with its memory, time and disk, measured on a few steps; leave nothing behind",
    "--cfg job": "print the whole configuration and do nothing else; --resolve fills in what refers to other keys",
    "--config-dir DIR": "look for options in DIR/norm/NAME.yaml, DIR/placement/NAME.yaml, ... too",
    "--info defaults-tree": "print which files the configuration comes from",
}


def run(words: list[str]) -> int:
    """Train one model, or with `--dry-run` say what that would take; returns the exit status."""
    composition = checked([word for word in words if word != DRY_RUN])
    if composition is None:
        return 0
    tree, choices = wanted(composition)  # imports torch: behind every mistake that the configuration alone shows
    from normbench.dryrun import dry_run
    from normbench.run import train

    parent = None
    if tree["extend"] is not None:
        parent = RunDirectory(Path(tree["extend"]))
        tree, choices = extended(composition, parent)
    check_settings(tree)
    return (dry_run if DRY_RUN in words else train)(tree, choices, parent)


def checked(words: list[str], traced: bool = False) -> Composition | None:
    """The configuration that the words ask for, after all checks that it alone allows; None where Hydra has answered.

    traced: find out where each value was written.

    Raises:
        UsageError: any mistake in the words.
    """
    for word in words:
        if word == "-m" or (len(word) > 2 and "--multirun".startswith(word)):
            raise UsageError(
                f"{word} (many runs) is sweep's: normbench sweep takes the same words, with several values each"
            )
    glance("train", words)
    composition = compose("train", words, traced)
    return None if composition is None else settled(composition)


def compose(command: str, words: list[str], traced: bool = False) -> Composition | None:
    """`normbench.compose.compose`, whose import takes a third of a second."""
    from normbench.compose import compose

    return compose(command, words, traced)


def extended(composition: Composition, parent: RunDirectory) -> tuple[dict[str, Any], Choices]:
    """The parent's configuration with what an extension may change, and the parent's choices.

    Raises:
        UsageError: there is no such run, or something else was set.
    """
    import yaml

    summary = parent.ended()
    if summary is None or not parent.config.exists():
        raise UsageError(f"extend={parent.path} is not the directory of a finished run: give one under outputs/")
    for word in composition.overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key in FIXED_KEYS or not any(key == part or key.startswith(f"{part}.") for part in EXTENSION_KEYS):
            raise UsageError(
                f"{word} cannot be changed with extend=: leave it out, everything but trainer.* is the run's own, and "
                "of that precision, accumulate and ema"
            )
    tree: dict[str, Any] = yaml.safe_load(parent.config.read_text())
    for word in composition.overrides:
        path = word.lstrip("+~").partition("=")[0]
        section, _, key = path.rpartition(".")
        target = lookup(tree, section) if section else tree
        target[key] = lookup(composition.tree, path)
    tree |= {key: composition.tree[key] for key in ("rerun", "quiet")}  # of this command, not of the parent's
    if composition.overridden("trainer.epochs") and not composition.overridden("trainer.steps"):
        tree["trainer"]["steps"] = None
    words = parent.path.name.rsplit("-", 2)[0].split("-")
    return tree, Choices(summary["choices"], tuple(words))


def help_text(words: list[str]) -> str:
    """The page of `normbench train --help`; `--config-dir` among the words adds its options."""
    composition = compose("train", [])
    assert composition is not None
    lines = [
        "usage: normbench train [GROUP=OPTION ...] [KEY=VALUE ...] [FLAGS]",
        "",
        *paragraph(
            "Trains one model and records it in outputs/NAME/RUN, which normbench tensorboard shows. The same command "
            "goes on with a run that was stopped."
        ),
        "",
        EXAMPLES,
        "",
        "groups:",
    ]
    more = own_folders(words)
    check_names(more)
    for group, meaning in GROUPS.items():
        chosen = composition.groups.get(group, "None")
        lines.append(f"  {group}=  {meaning}" + ("" if chosen == "None" else f" (default: {chosen})"))
        lines += entries(options(group, *more).items(), indent=4)
        lines += paragraph(NOTES[group], indent=4) if group in NOTES else []
    lines += [
        "",
        *paragraph("keys that people set most, with the defaults of the default options; all keys: --cfg job"),
    ]
    lines += entries([(f"{path}={default(path, composition.tree)}", meaning_of(path)) for path in COMMON_KEYS])
    return "\n".join([*lines, "", "flags:", *entries(FLAGS.items())])


def default(path: str, tree: Tree) -> str:
    """The default of a key: in the default configuration, else in the first option that has it."""
    try:
        return show(lookup(tree, path))
    except KeyError:
        written = next(iter(options_with(*path.split(".")).values()))
        return re.sub(r"\$\{oc\.env:(\w+),\w+\}", r"$\1", written)


def meaning_of(path: str) -> str:
    """What a key is, and its unit or words."""
    key = KEYS[path]
    unit = key.unit or (either(key.choices) if key.choices else "true or false" if bool in key.types else "")
    return f"{key.doc} [{unit}]" if unit else key.doc
