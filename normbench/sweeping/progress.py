"""How far the runs of a sweep are, from their directories alone."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from normbench.sweeping.folder import OVER, Entry, State, SweepFolder

TAIL = 4096  # bytes at the end of metrics.jsonl that hold its last line


@dataclass(frozen=True)
class Standing:
    """How a run stands. loss: of training, as last logged, or in the end of validation; None: not known."""

    entry: Entry
    state: State
    step: int
    loss: float | None

    @property
    def over(self) -> bool:
        return self.state in OVER


@dataclass(frozen=True)
class Progress:
    """How all runs stand at a moment."""

    standings: tuple[Standing, ...]
    seconds_left: float | None

    @property
    def counts(self) -> Counter[State]:
        """How many runs stand how."""
        return Counter(standing.state for standing in self.standings)

    @property
    def over(self) -> int:
        """How many runs have ended, in whatever way."""
        return sum(standing.over for standing in self.standings)

    @property
    def steps(self) -> tuple[float, int]:
        """Steps that are done, and all; a run that is over counts in full."""
        done = sum(standing.entry.steps if standing.over else standing.step for standing in self.standings)
        return done, sum(standing.entry.steps for standing in self.standings)


@dataclass
class Reader:
    """Reads how the runs of a folder stand; what is over is read once."""

    folder: SweepFolder
    entries: Sequence[Entry]
    begun: float = field(default_factory=time.monotonic)
    done_before: float | None = None
    known: dict[str, Standing] = field(default_factory=dict)

    def read(self) -> Progress:
        """How all runs stand now."""
        standings = tuple(self.known.get(entry.run) or self.look(entry) for entry in self.entries)
        return Progress(standings, self.seconds_left(Progress(standings, None)))

    def look(self, entry: Entry) -> Standing:
        """How one run stands."""
        state, content = self.folder.look(entry.run)
        step, loss = int(content.get("step") or 0), content.get("metrics", {}).get("loss/val")
        if state == "running":
            logged, loss = last_logged(self.folder.run(entry.run).metrics)
            step = max(step, logged)
        standing = Standing(entry, state, step, loss)
        if state in ("finished", "diverged"):
            self.known[entry.run] = standing
        return standing

    def seconds_left(self, progress: Progress) -> float | None:
        """The time to the end at the pace since this reader began; None: not known yet."""
        done, steps = progress.steps
        if self.done_before is None:
            self.done_before, self.begun = done, time.monotonic()
        gained = done - self.done_before
        return (time.monotonic() - self.begun) * (steps - done) / gained if gained > 0 else None


def last_logged(path: Path) -> tuple[int, float | None]:
    """The last step in metrics.jsonl and the last training loss near it; 0 and None: nothing is logged."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return 0, None
    step, loss = 0, None
    for line in lines:
        try:
            logged = json.loads(line)
            step, loss = max(step, int(logged["step"])), logged.get("loss/train", loss)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # the tail begins within a line, and the last one may be half written
    return step, loss
