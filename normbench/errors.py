"""The ways in which normbench stops without a traceback, and what any exception says in one line."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten

# What the system says when a disk, a quota or a limit on file sizes is used up.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What colours or moves the writing of a terminal, which some libraries put into their messages.
COLOURING = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

LINE = 120  # letters of a person's words that a message repeats at the most: as wide as pages are


class UsageError(ValueError):
    """A user's mistake: one sentence with what was given, what is allowed and how to fix it (exit status 2)."""


class ArgumentError(UsageError):
    """A value that an argument does not take.

    It names the argument as Python has it, `metric=foo is not logged`; `of_flag` is the same for the command line.
    """

    def __init__(self, argument: str, value: object, why: str) -> None:
        super().__init__(f"{argument}={value} {why}")
        self.of_flag = f"--{argument} {value} {why}"


class ContractError(UsageError):
    """A class of the user's own lacks something that every norm, placement, model or data set has."""


class CombinationRefused(UsageError):
    """What was chosen does not go together, each part being right; a sweep leaves it out."""


class RunFailure(RuntimeError):
    """A run that the machine ended, not the user: full disk, no memory, a run held elsewhere (exit status 1)."""


class HeldElsewhere(RunFailure):
    """Another process is working on the run."""


def shorten_words(text: str, words: Iterable[str]) -> str:
    """Return a message in which words of the command line, and the values in them, take a line each at the most."""
    parts: set[str] = set()
    for word in words:
        value = word.partition("=")[2]
        parts.add(" ".join(word.split()))
        parts.add(" ".join(value.split()))
    for part in sorted(parts, key=len, reverse=True):
        if len(part) > LINE:
            text = text.replace(part, f"{part[: LINE - 31]}…{part[-30:]}")
    return text


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error means that a disk, a quota or a limit on file sizes is used up."""
    return isinstance(error, OSError) and error.errno in DISK_FULL


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or a GPU; torch has no class for the CPU's."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    words = ("DefaultCPUAllocator", "out of memory", "bad_alloc", "STATUS_ALLOC_FAILED")  # the last: cuBLAS, cuDNN
    return type(error).__name__ == "OutOfMemoryError" or any(word in str(error) for word in words)


def explain(error: BaseException) -> str:
    """Return what an exception says, in one line, and where it was raised, if that is known."""
    lines = lines_of(error)
    if isinstance(error, UsageError | RunFailure):
        return " ".join(lines)
    said = type(error).__name__
    if lines:
        said += f": {shorten(lines[0], 160)}"
    place = place_of(error)
    if place:
        said += f" ({place})"
    return said


def lines_of(error: BaseException) -> list[str]:
    """Return the lines of what an exception says, without what colours them on a terminal."""
    return COLOURING.sub("", str(error)).strip().splitlines()


def place_of(error: BaseException) -> str:
    """Return the innermost file and line that is the user's own, as `mynorms.py, line 3`; empty for none.

    Not the user's own are torch's files, ours, and those of Python itself. An installed package may be the user's own,
    where no file of theirs is outside of those: others' code, such as a hook that wandb puts in place of sys.exit, is
    mostly called by it.
    """
    others = [Path(__file__).parent]
    standard = Path(os.__file__).parent
    torch = sys.modules.get("torch")  # not imported for this: it takes a second
    if torch:
        others.append(Path(str(torch.__file__)).parent)
    installed = ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.exists() or any(path.is_relative_to(other) for other in others):
            continue
        place = f"{path.name}, line {frame.lineno}"
        is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
        if not is_installed and path.is_relative_to(standard):
            continue
        if not is_installed:
            return place
        installed = installed or place
    return installed


def comes_from_torchvision(error: BaseException | None) -> bool:
    """Tell whether an error of a library that imports torchvision, or what led to it, was raised for torchvision.

    transformers imports its models one by one, and then says only which one it could not import.
    """
    while error is not None:
        names_it = "torchvision::" in str(error) or (type(error) is ImportError and "torchvision" in str(error))
        if names_it or comes_from_import(error, "torchvision"):
            return True
        error = error.__cause__
    return False


def comes_from_import(error: BaseException, package: str) -> bool:
    """Tell whether an error was raised while a file of a package was imported, not while its functions were called."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == "<module>" and is_of_package(Path(frame.filename), package) for frame in frames)


def is_of_package(path: Path, package: str) -> bool:
    """Tell whether a file is that of a package, or in its folder, and not in a folder that merely has its name."""
    if path.stem == package:
        return True
    return any(folder.name == package and (folder / "__init__.py").exists() for folder in path.parents)


def refuse_single(what: str, examples: str, failure: BaseException) -> UsageError:
    """Return what refuses a batch of one example, which fails where two do not.

    Args:
        what: the model.
        examples: what the data hold.
        failure: of the batch.
    """
    why = f"does not train on a batch of 1 of the {examples} ({explain(failure)})"
    return UsageError(f"{what} {why}: use a larger data.batch_size, with which no batch of 1 is left over")


def explain_torchvision(importer: str, error: BaseException) -> str:
    """Say why torchvision fails where something imports it, and how to fix it.

    Each release of torchvision is built for one of torch's, and for the CPU or a version of CUDA as that is. Beside
    another build its operators cannot be loaded, and its import fails.

    Args:
        importer: what imports it, such as `timm`; or itself.
        error: with which that failed.
    """
    import torch

    while error.__cause__ is not None:
        error = error.__cause__
    whose = "torchvision" if importer == "torchvision" else f"torchvision, which {importer} imports,"
    build = "for CUDA" if torch.version.cuda else "for the CPU alone"
    cure = f"install both at once from the index that has builds {build}, by the command that pytorch.org shows"
    return f"{whose} does not fit torch {torch.__version__} ({explain(error)}): {cure}"
