"""`normbench report` and `normbench compare`: what they print of what is found."""

from __future__ import annotations

import gc
import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from normbench.errors import ArgumentError, RunFailure, UsageError, is_disk_full
from normbench.record.console import Stages
from normbench.record.files import inside
from normbench.wording import count

if TYPE_CHECKING:  # imports pandas, scipy and matplotlib: after every mistake that the words alone show
    from normbench.evidence.study import RecordedStudy
    from normbench.results.result import Difference
    from normbench.show.report import Report
    from normbench.show.tables import Table


WIDTHS = {"column": 3.5, "page": 7.0}  # inches
NOT_SHOWN = "not shown"
STATUSES = {"better": 0, "worse": 3, "same": 4, NOT_SHOWN: 5}  # 1 and 2 are errors, as of all commands
WIDEST = 9  # columns of a table that a terminal shows as it is; of a wider one, rows are columns


def report(
    folders: Sequence[Path],
    *,
    out: Path | None = None,
    baseline: str | None = None,
    target: float | None = None,
    margin: float | None = None,
    metric: str | None = None,
    width: str = "column",
    quiet: bool = False,
    arms: bool = False,
) -> int:
    """Write the report of the runs below some folders, and print its verdict; return the exit status.

    Args:
        folders: of runs.
        out: where it goes, by default `report` in the first folder.
        baseline, target, margin, metric: what is asked, as a `Request` has it.
        width: of figures, a word or inches.
        quiet: print nothing.
        arms: write them too, for TensorBoard.

    Raises:
        UsageError: no such folder, what `make_reports` raises, no such width, or `out` cannot be written.
        RunFailure: the disk is full.
    """
    inches = inches_of(width)
    gc.disable()  # a million logged numbers hold no circles, and to look for some takes a tenth of the time
    out = out or inside(folders[0], "report")
    # no spinner: it would need a thread, beside which no process is forked that helps
    with Stages(quiet=quiet) as stages:
        stages.begin("reading the runs")
        from normbench.results.examine import Request
        from normbench.show.report import make_reports, save_all
        from normbench.sweep.folder import missing_below, say_damaged_notes, sweeps_below

        request = Request(baseline=baseline, target=target, margin=margin, metric=metric)
        reports = make_reports(folders, request, missing_below(folders))
        say_damaged_notes(Console(stderr=True), sweeps_below(folders))
        if arms:
            from normbench.show.tensorboard import write_arms

            write_arms(folders[0], [report_of_task.study for report_of_task in reports])
        number = sum(len(report_of_task.runs) for report_of_task in reports)
        stages.begin(f"drawing {count(number, 'run')}")
        try:
            page = save_all(reports, folders, out, inches)
        except OSError as error:
            if is_disk_full(error):
                raise RunFailure(f"the disk is full: {out} is not whole, free some space and try again") from error
            raise UsageError(f"{out} cannot be written ({error.strerror}): give another folder with --out") from error
    if not quiet:
        for report_of_task in reports:
            if len(reports) > 1:
                console().rule(report_of_task.study.task.replace("_", " "))
            print_verdict(report_of_task)
        print(f"\n{page}")
    return 0


def inches_of(width: str) -> float:
    """Return the width of figures that a person gave.

    Raises:
        ArgumentError: it is not a width.
    """
    inches = WIDTHS.get(width, 0.0)
    if re.fullmatch(r"\d+(\.\d+)?", width):
        inches = float(width)
    if not 3 <= inches <= 20:
        raise ArgumentError("width", width, "is not a width: give column (3.5 inches), page (7), or 3 to 20 inches")
    return inches


def report_of_sweep(folder: Path, quiet: bool) -> None:
    """Write the report of a sweep's runs into their folder, and print its verdict; and their arms, for TensorBoard."""
    try:
        report([folder], quiet=quiet, arms=True)
    except UsageError as error:  # no run has ended, say: the sweep's own result stands
        print(f"no report: {error}")


def compare(
    first: str, second: str, folder: Path, margin: float | None, plan: bool, difference: float | None, as_json: bool
) -> int:
    """Print what two arms differ in and whether the difference is real, or how many seeds one needs.

    Returns:
        The exit status: with `as_json` that of the verdict, and else 0.

    Raises:
        UsageError: a word names no arm, or several.
    """
    if difference is not None and not plan:
        raise UsageError("--difference is what a plan is for: add --plan, or leave it out")
    if as_json and plan:
        raise UsageError("--json is of what was found, and --plan finds nothing: leave one of them out")
    from normbench.evidence import baselines
    from normbench.results.examine import Request
    from normbench.show import tables
    from normbench.show.report import report_on

    studies = baselines.read_pairs(first, second, folder)
    comparisons = [report_on(study, dict(study.arms[1].settings), Request(margin=margin)) for study in studies]
    if as_json:
        return print_json(comparisons)
    for study, comparison in zip(studies, comparisons, strict=True):
        if len(studies) > 1:
            console().rule(study.task.replace("_", " "))
        if plan:
            print_table(tables.plan_table(comparison.family.differences[0], difference))
            if difference is not None:
                print(more_seeds(comparison.family.differences[0], difference, study))
            continue
        print_verdict(comparison)
        print()
        print_table(tables.settings_table(study, *study.arms))
        for table in comparison.tables:
            if table.key.startswith(("arms", "differences", "worth", "step-times")):
                print_table(table.transposed())
    return 0


def print_json(comparisons: Sequence[Report]) -> int:
    """Print what was found of two arms as JSON; return the exit status that stands for the verdict.

    The verdict over several tasks is the one that all have, or else that nothing was shown.
    """
    from normbench.results.answer import to_plain

    found, verdicts = [], set[str]()
    for comparison in comparisons:
        difference = comparison.family.differences[0]
        verdict = side_of(difference)
        verdicts.add(verdict)
        words = [sentence.text for sentence in comparison.verdict]
        unfair = [caveat.text for caveat in comparison.answer.caveats if caveat.serious]
        of_task = {"task": comparison.study.task, "verdict": verdict, "words": words, "unfair": unfair}
        lost = [to_plain(losses) for losses in comparison.family.losses]
        found.append({**of_task, "difference": to_plain(difference), "lost": lost})
    overall = verdicts.pop() if len(verdicts) == 1 else NOT_SHOWN
    print(json.dumps({"verdict": overall, "comparisons": found}, indent=2, ensure_ascii=False, allow_nan=False))
    return STATUSES[overall]


def side_of(difference: Difference) -> str:
    """Return what was found of the first of two arms in a word, one of `STATUSES`."""
    from normbench.results.rules import Verdict
    from normbench.tell.verdicts import is_within

    match difference.verdict:
        case Verdict.SAME | Verdict.WITHIN:
            return "same"
        case Verdict.DIFFERENT | Verdict.POSSIBLE if is_within(difference):  # though not equal
            return "same"
        case Verdict.DIFFERENT:
            return "better" if difference.better else "worse"
    return NOT_SHOWN


def more_seeds(pilot: Difference, difference: float, study: RecordedStudy) -> str:
    """Say with which command a sweep gets the seeds that a difference needs, beside those of the pilot."""
    from normbench.results.statistics import seeds_needed

    needed = seeds_needed(difference, pilot.sd or 0.0)
    if needed <= pilot.n:
        return f"the {count(pilot.n, 'seed')} that are there are enough"
    more = study.more_seeds(needed - pilot.n)
    if not study.plans:
        return f"{count(needed, 'seed')}: normbench sweep with the words of these runs and {shlex.quote(more)}"
    return f"{count(needed, 'seed')}: {more}"


def console() -> Console:
    """Return what prints in the width of the terminal, as far as lines are still easy to read."""
    terminal = shutil.get_terminal_size((100, 24))
    return Console(width=min(terminal.columns, 120), highlight=False)


def print_verdict(report: Report) -> None:
    """Print what was found, and what may decide it."""
    for sentence in report.verdict:
        console().print(Text(sentence.text))
    serious = [caveat for caveat in report.answer.caveats if caveat.serious]
    if serious:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(overflow="fold")  # a command has long words, of which nothing may be lacking
        for caveat in serious:
            grid.add_row(Text(caveat.kind), Text(caveat.text))
        console().print("\nunfair:", grid, sep="\n")
    print_details(report.details)


def print_details(details: Sequence[str]) -> None:
    """Print what sentences rest on, where there is something."""
    if details:
        console().print("\nwhat this rests on:")
        for text in details:
            console().print(Text(text, style="dim"))


def print_table(table: Table) -> None:
    """Print a table with its notes; names of arms and settings stay as they are, whatever brackets they have."""
    from normbench.show.narrow import grids

    if table.rows:
        screen = console()
        columns = len(table.frame.columns)
        if columns > WIDEST and columns > len(table.rows):
            table = table.transposed()
        for title, grid, below in grids(table, screen.width):
            screen.print(Text(title, style="bold"))
            screen.print(grid)
            if below:
                screen.print(Text(below))
    for note in (*table.warnings, *table.notes):
        console().print(Text(note))
    print()
