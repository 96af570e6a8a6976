"""A run that extends a finished one: what it may change, and how it begins with the other's record."""

from __future__ import annotations

from typing import Any

from normbench.config.compose import Config
from normbench.config.groups import SEARCH_PATH, Choices
from normbench.config.schema import blame_file, check_config
from normbench.config.sections import LOGGER
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory, extended_runs
from normbench.record.files import write_bytes
from normbench.record.tensorboard import event_files
from normbench.runs.reading import read_record
from normbench.settings import key_of, lookup
from normbench.training.checkpoint import is_whole
from normbench.types import Data

# What may be changed of a run that is extended; everything else is its parent's.
EXTENSION_KEYS = ("extend", "trainer", "name", "outputs", "quiet", "rerun", "device", LOGGER)
# What of the trainer may not be changed, since the checkpoint holds states that belong to it.
FIXED_KEYS = ("trainer", "trainer.precision", "trainer.accumulate", "trainer.ema", "trainer.swa",
              "trainer.train", "trainer.norm_dtype")  # fmt: skip


def extend(config: Config, parent: RunDirectory, trust: bool) -> Config:
    """Return the parent's configuration with what an extension may change, and the parent's choices.

    Raises:
        UsageError: there is no such run, or something else was set.
    """
    summary = parent.read_result()
    if summary is None or summary["status"] != "finished":
        raise UsageError(f"extend={parent.path} is not the directory of a finished run: give one under outputs/")
    tree = read_record(parent, trust).configuration
    for key in ("rerun", "quiet", LOGGER):  # of this command, not of the parent's
        tree[key] = config.tree[key]
    for word in config.words:
        if not word.startswith(SEARCH_PATH):  # which says where the parent's classes may be
            apply_word(tree, word, config)
    if config.overridden("trainer.epochs") and not config.overridden("trainer.steps"):
        tree["trainer"]["steps"] = None
    name_words = parent.path.name.rsplit("-", 2)[0].split("-")
    with blame_file(parent.config):
        tree, closed = check_config(tree)
    return Config(tree, closed, Choices(summary["choices"], tuple(name_words)), config.words)


def apply_word(tree: dict[str, Any], word: str, config: Config) -> None:
    """Set in the parent's configuration what a word of the command line sets.

    Raises:
        UsageError: an extension may not set it.
    """
    path = key_of(word)
    if path in FIXED_KEYS or path.partition(".")[0] not in EXTENSION_KEYS:
        why = "everything but trainer.* is the run's own, and of that precision, accumulate, ema, swa and train"
        raise UsageError(f"{word} cannot be changed with extend=: leave it out, {why}")
    section, _, key = path.rpartition(".")
    values = lookup(tree, section) if section else tree
    values[key] = lookup(config.tree, path)


def check_extension(parent: RunDirectory, steps: int, data: Data) -> None:
    """Refuse to extend a run without its checkpoint, on other data, or to fewer steps.

    Raises:
        UsageError: with the cure.
    """
    if not parent.checkpoint.exists() or not is_whole(parent.checkpoint):
        cure = "make that run again with rerun=true, and without trainer.keep_checkpoint=none"
        raise UsageError(f"extend={parent.path} has no checkpoint.pt, or a damaged one: {cure}")
    sessions = parent.sessions()
    if sessions and sessions[-1]["data"]["fingerprint"] != data.fingerprint:
        raise UsageError(f"extend={parent.path} was trained on other data than are there now: bring those back")
    done = (parent.read_result() or {})["steps"]
    if steps <= done:
        raise UsageError(f"trainer.steps={steps} does not extend a run of {done} steps: give a larger number")


def copy_record(parent: RunDirectory, child: RunDirectory) -> None:
    """Begin a run with its parent's record; the checkpoint comes last, so that a copy cut short is begun again."""
    for source in (parent.metrics, *event_files(parent.path), parent.best, parent.checkpoint):
        if source.exists():
            write_bytes(child.path / source.name, source.read_bytes())


def runs_before(parent: RunDirectory | None) -> list[dict[str, Any]]:
    """Return where each of the runs before this one ended, the first one first: its parent is the last.

    The list is like that of `extended_runs`, and empty for a run that extends none.
    """
    if parent is None:
        return []
    eval_batches = parent.configuration()["trainer"].get("eval_batches")
    end_of_parent = {"steps": (parent.read_result() or {})["steps"], "eval_batches": eval_batches}
    return [*extended_runs(parent.sessions(), eval_batches), end_of_parent]
