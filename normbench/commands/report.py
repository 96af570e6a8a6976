"""`normbench report`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from normbench.commands.pages import entries, paragraph
from normbench.commands.parser import Parser
from normbench.errors import RunFailure, UsageError
from normbench.files import is_disk_full
from normbench.glance import scalar
from normbench.keys import Key

if TYPE_CHECKING:  # imports pandas, scipy and matplotlib: behind every mistake that the words alone show
    from normbench.analysis.report import Report

# Flags: what each may be.
FLAGS: dict[str, Key] = {
    "out": Key("where the report goes; by default report in the first FOLDER", (str, NoneType)),
    "baseline": Key(
        "the arm that others are compared with, such as norm=layernorm; in what it does not name, each arm is compared "
        "with its like; by default layernorm and pre, or the first arm",
        (str, NoneType),
    ),
    "target": Key("the loss in nats whose time is asked; by default where the baseline ends", (float, NoneType)),
    "margin": Key(
        "a difference that does not matter, in nats or for accuracies in percentage points; the verdict says whether "
        "arms are the same within it",
        (float, NoneType),
        low=0,
    ),
}

EXAMPLES = """\
examples:
  normbench report outputs/train
  normbench report outputs/norms_lm --baseline norm=layernorm --margin 0.01
  normbench report outputs/first outputs/second --baseline "rmsnorm post" --target 2.0 --out both"""


def run(words: list[str]) -> int:
    """Write the report of the runs below some folders, and print its verdict."""
    settings = parsed(words)
    folders = [Path(os.path.expanduser(folder)) for folder in settings.folders]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder: give the folder of your runs, such as outputs")
    out = Path(os.path.expanduser(settings.out)) if settings.out else folders[0] / "report"
    show(*made(folders, out, baseline=settings.baseline, target=settings.target, margin=settings.margin))
    return 0


def made(folders: list[Path], out: Path, **settings: Any) -> tuple[Report, Path]:
    """Write the report and return it with its page; on a terminal it says what it does.

    settings: those of `make_report`.

    Raises:
        UsageError: what `make_report` raises, or `out` cannot be written.
        RunFailure: the disk is full.
    """
    from rich.console import Console

    with Console(stderr=True).status("reading the runs") as status:
        from normbench.analysis.report import make_report, save

        missing = {name: why for folder in folders for name, why in missing_below(folder).items()}
        report = make_report(folders, missing=missing, **settings)
        try:
            return report, save(report, out, lambda: status.update(f"drawing {len(report.runs):,} runs"))
        except OSError as error:
            if is_disk_full(error):
                message = f"the disk is full: {out} is not whole, free some space and repeat the command"
                raise RunFailure(message) from error
            raise UsageError(f"{out} cannot be written ({error.strerror}): give another folder with --out") from error


def missing_below(folder: Path) -> dict[str, str]:
    """Return the runs that sweeps on a folder, or on those in it, have planned and that have no directory -> why."""
    from normbench.sweeping.folder import SweepFolder

    places = [folder, *(path for path in folder.iterdir() if (path / ".sweep").is_dir())]
    return {name: why for place in places for name, why in SweepFolder(place).missing().items()}


def show(report: Report, page: Path) -> None:
    """Print what was found, what may decide it, and where the page is."""
    show_verdict(report)
    print(f"\n{page}")


def show_verdict(report: Report) -> None:
    """Print what was found, and what may decide it."""
    for sentence, _ in report.verdict:
        print("\n".join(paragraph(sentence)))
    if serious := [(finding.topic, finding.text) for finding in report.findings if finding.serious]:
        print("\nunfair:")
        print("\n".join(entries(serious)))


def parsed(words: list[str]) -> argparse.Namespace:
    """Read the words as settings, each checked.

    Raises:
        UsageError: an unknown flag, or a value that is not allowed.
    """
    parser = Parser("report")
    parser.add_argument("folders", metavar="FOLDER", nargs="+")
    for name in FLAGS:
        parser.add_argument(f"--{name}")
    settings = parser.parse_intermixed_args(words)
    for name, key in FLAGS.items():
        given: Any = getattr(settings, name)
        if given is not None and str not in key.types:
            setattr(settings, name, key.check(f"--{name}", scalar(given)))
    return settings


def help_text(words: list[str]) -> str:
    """Return the page of `normbench report --help`."""
    what = (
        "Says what the runs below FOLDER show: which differences between arms are real, how large the others may still "
        "be, and what makes the comparison unfair. It reads run directories only, whether all have finished or not. "
        "Runs that differ in nothing but the seed are an arm; arms are compared seed by seed."
    )
    leaves = (
        "It writes report.html (one file, which opens offline), report.md, runs.csv, runs.parquet, activations.csv "
        "(where there were probes), and figures/ with SVG, PNG and data of each figure; files of an earlier report are "
        "replaced."
    )
    return "\n".join(
        [
            "usage: normbench report FOLDER [FOLDER ...] [FLAGS]",
            "",
            *paragraph(what),
            "",
            *paragraph(leaves),
            "",
            EXAMPLES,
            "",
            "flags:",
            *entries((f"--{name} {name.upper()}", key.doc) for name, key in FLAGS.items()),
        ]
    )
