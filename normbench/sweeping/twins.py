"""Runs that a folder has already, but for their number of threads, which is a part of a run's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from normbench.sweeping.plan import Planner, SweepPlan


def with_other_threads(plan: SweepPlan, planner: Planner, threads: int) -> Iterator[str]:
    """A line for each number of threads with which runs that are to be made were made before.

    threads: of the planned runs.
    """
    there = {path.parent.name: path for path in plan.folder.glob("*/config.yaml")}
    new = [run for run in plan.runs if run.name not in there]
    if not new:
        return
    others = {threads_of(path) for name, path in there.items()} - {None, threads}
    for number in sorted(filter(None, others)):
        if found := sum(planner.path_with(run, number).name in there for run in new):
            yield (
                f"{found} of the {len(new)} new runs {'is' if found == 1 else 'are'} in {plan.folder} with "
                f"threads={number}, and made anew with threads={threads}: add threads={number} to go on with those"
            )


def threads_of(config: Path) -> int | None:
    """The number of threads in a run's configuration; None: torch has chosen it."""
    match = re.search(r"^threads: (\d+)$", config.read_text("utf-8", errors="replace"), re.MULTILINE)
    return int(match[1]) if match else None
