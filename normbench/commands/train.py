"""`normbench train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normbench.catalog import Choices
from normbench.config import OPEN_SECTIONS, lookup
from normbench.errors import UsageError
from normbench.glance import glance
from normbench.request import check_settings, find_own_classes, settled, wanted
from normbench.rundir import RunDirectory

if TYPE_CHECKING:  # imports Hydra: behind every mistake that the words alone show
    from normbench.compose import Composition

# What may be changed of a run that is extended; everything else is its parent's.
EXTENSION_KEYS = ("extend", "trainer", "name", "outputs", "quiet", "rerun", "device")
# ... and what of the trainer may not: a checkpoint has what belongs to it.
FIXED_KEYS = ("trainer.precision", "trainer.accumulate", "trainer.ema")

DRY_RUN = "--dry-run"


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


def read(words: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration that `train` would take, and the option of each group."""
    composition = checked(words)
    assert composition is not None
    tree = composition.tree
    if tree["extend"] is not None:
        tree, _ = extended(composition, RunDirectory(Path(tree["extend"])))
    elif any(composition.overridden(f"{section}._target_") for section in OPEN_SECTIONS):
        find_own_classes()
        from normbench.assembly import adopt_targets  # imports torch: only the class itself tells what it takes

        tree = adopt_targets(composition.tree, composition.overridden)
    return tree, composition.groups


def checked(words: list[str]) -> Composition | None:
    """The configuration that the words ask for, after all checks that it alone allows; None where Hydra has answered.

    Raises:
        UsageError: any mistake in the words.
    """
    glance("train", words)
    composition = compose("train", words)
    return None if composition is None else settled(composition)


def compose(command: str, words: list[str]) -> Composition | None:
    """`normbench.compose.compose`, whose import takes a third of a second."""
    from normbench.compose import compose

    return compose(command, words)


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
