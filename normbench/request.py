"""What a composed configuration of `train` asks for: checked, and with the words that name its run."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normbench.catalog import Choices, default_options
from normbench.config import OPEN_SECTIONS, Tree, parse, typed
from normbench.errors import UsageError

if TYPE_CHECKING:  # imports Hydra: behind every mistake that the words alone show
    from normbench.compose import Composition

# The groups whose option becomes a word of the run's name where it is not the default, beside norm and placement.
NAMING_GROUPS = ("model", "data")


def settled(composition: Composition) -> Composition:
    """The composition after all checks that the configuration alone allows, each value in its own type.

    Raises:
        UsageError: any mistake.
    """
    composition = replace(composition, tree=typed(composition.tree))
    parse(composition.tree)
    for folder in ("outputs", "extend"):  # the shell leaves `~` alone behind a `=`
        if (path := composition.tree[folder]) is not None:
            composition.tree[folder] = os.path.expanduser(path)
    check_length(composition)
    return composition


def check_length(composition: Composition) -> None:
    """Refuse epochs on the command line where an experiment's steps would win."""
    steps = composition.tree["trainer"]["steps"]
    if steps and composition.overridden("trainer.epochs") and not composition.overridden("trainer.steps"):
        raise UsageError(f"trainer.epochs is given where trainer.steps={steps} is set already: add trainer.steps=null")


def find_own_classes() -> None:
    """Let a class of the user's own be in a file in the current directory."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def wanted(composition: Composition) -> tuple[dict[str, Any], Choices]:
    """The configuration for the classes that were named, and what names the run. Imports torch.

    Raises:
        UsageError: a class that cannot be imported.
    """
    find_own_classes()
    from normbench import assembly

    tree = assembly.adopt_targets(composition.tree, composition.overridden)
    return tree, Choices(named_groups(composition), tuple(name_words(composition)))


def check_settings(tree: Tree) -> None:
    """Refuse, before the data are read, settings that a class does not take.

    Raises:
        UsageError: there is one.
    """
    from normbench import assembly

    for section in OPEN_SECTIONS:
        assembly.factory(tree, section)


def named_groups(composition: Composition) -> dict[str, str]:
    """The option of each group; a class of the user's own by its name."""
    groups = dict(composition.groups)
    for section in ("norm", "placement", "model", "data"):
        if composition.overridden(f"{section}._target_"):
            groups[section] = str(composition.tree[section]["_target_"]).rpartition(".")[2].lower()
    return groups


def name_words(composition: Composition) -> list[str]:
    """Norm, placement, and what else is not the default."""
    groups, defaults = named_groups(composition), default_options("train")
    others = [groups[group] for group in NAMING_GROUPS if groups[group] != defaults[group]]
    return [groups["norm"], groups["placement"], *others]
