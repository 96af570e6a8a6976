"""Runs whole processes and measures them from outside. It imports no torch: a process's peak memory is at least that of
the one that has started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NORMBENCH = [sys.executable, "-m", "normbench"]
POLL = 0.002  # seconds between two looks at files

Settings = dict[str, Any]


class Failed(Exception):
    """A command has failed; the sentence says which, and the last line of what it has complained about."""


class Left(Exception):
    """A part cannot be measured here; the sentence says what it needs."""


@dataclass(frozen=True)
class Done:
    """A process that has ended.

    Attributes:
        seconds: from its start.
        peak: bytes of memory.
        output: what it has printed.
        complaints: what it has printed on its standard error.
        summary: of the run that it made.
    """

    seconds: float
    peak: int
    output: str
    complaints: str
    summary: Settings = field(default_factory=dict)


@dataclass
class Bench:
    """Where and how parts measure.

    Attributes:
        folder: for whatever they write.
        pairs: how many are measured in alternation.
        quick: only to see whether it works.
        threads: of whole processes.
        nanogpt: a checkout of that peer.
        examples: likewise.
        say: tells what is being measured.
        peaks: of the machine, by the number of threads, as far as they are known.
    """

    folder: Path
    pairs: int
    quick: bool
    threads: int
    nanogpt: Path | None
    examples: Path | None
    say: Callable[[str], None]
    peaks: dict[int, Settings] = field(default_factory=dict)

    def size(self, full: int, quick: int) -> int:
        """Return how much is measured."""
        return quick if self.quick else full

    def new(self) -> Path:
        """Return a new folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def start(self, command: Sequence[str], where: Path, threads: int = 0, **more: Any) -> subprocess.Popen[str]:
        """Start a process, with all cores unless threads are given; more: for Popen, and `cache`, a data cache."""
        cache = more.pop("cache", self.folder / "cache")
        own = {"OMP_NUM_THREADS": str(threads or self.threads), "NORMBENCH_CACHE": str(cache)}
        return subprocess.Popen(command, cwd=where, env={**os.environ, **own}, text=True, **more)

    def run(self, command: Sequence[str], where: Path | None = None, expected: int = 0, **more: Any) -> Done:
        """Run a process to its end.

        Raises:
            Failed: its exit status is not the expected one.
        """
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
            begun = time.perf_counter()
            process = self.start(command, where or self.new(), stdout=output, stderr=complaints, **more)
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                process.wait()
                raise
            seconds = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            complaints.seek(0)
            printed = output.read()
            complained = complaints.read()
        if process.returncode != expected:
            reason = last_line(complained or printed)
            raise Failed(f"failed: {short(command)} ended with status {process.returncode}: {reason}")
        return Done(seconds, 1024 * usage.ru_maxrss, printed, complained)

    def warm_up(self, *commands: Sequence[str], where: Path | None = None) -> None:
        """Let data be decoded and files be in memory before anything is measured."""
        for command in commands if not self.quick else ():
            self.say("warm-up")
            self.run(command, where)

    def train(self, *words: str, threads: int = 0, **more: Any) -> Done:
        """Make a run of `normbench train` in a new folder."""
        where = self.new()
        done = self.run([*NORMBENCH, "train", *words, "quiet=true"], where, threads=threads, **more)
        summary = json.loads((where / last_line(done.output) / "summary.json").read_text())
        return Done(done.seconds, done.peak, done.output, done.complaints, summary)

    def seen(self, command: Sequence[str], *patterns: str) -> list[tuple[float, Path]]:
        """Run a process in a new folder; return when each file of some patterns was first seen with something in it."""
        where = self.new()
        found = dict[Path, float]()
        with tempfile.TemporaryFile("w+") as complaints:
            begun = time.perf_counter()
            process = self.start(command, where, stdout=subprocess.DEVNULL, stderr=complaints)
            try:
                running = True
                while running:
                    running = process.poll() is None  # asked first: what is there at the end is seen
                    there = set[Path]()
                    for pattern in patterns:
                        there.update(where.glob(pattern))
                    new = [path for path in there.difference(found) if path.stat().st_size]
                    found.update(dict.fromkeys(new, time.perf_counter() - begun))
                    time.sleep(POLL)
            finally:
                process.kill()
                process.wait()
            complaints.seek(0)
            if process.returncode:
                raise Failed(f"failed: {short(command)} ended: {last_line(complaints.read())}")
        return sorted((seconds, path) for path, seconds in found.items())

    def until(self, command: Sequence[str], where: Path, reached: Callable[[str], bool]) -> float:
        """Run a process until a line of its output says enough, and end it; return the seconds.

        Raises:
            Failed: it has ended before.
        """
        begun = time.perf_counter()
        said = ""
        with self.start(command, where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                for said in process.stdout or ():
                    if reached(said):
                        return time.perf_counter() - begun
            finally:
                process.kill()
        raise Failed(f"failed: {short(command)} ended before it was there: {said.strip()}")

    def worker(self, name: str, threads: int = 0, **settings: Any) -> list[Settings]:
        """Return what a function of workers.py measures, in a process of its own."""
        command = [sys.executable, str(HERE / "workers.py"), name, json.dumps(settings)]
        return [json.loads(text) for text in self.run(command, threads=threads).output.splitlines() if text[:1] == "{"]

    def peak(self, threads: int = 0) -> Settings:
        """Return the machine's fastest matrix product and copy, measured once for each number of threads."""
        threads = threads or self.threads
        if threads not in self.peaks:
            self.say(f"the machine's peaks with {threads} threads")
            (self.peaks[threads],) = self.worker("peaks", threads, quick=self.quick)
        return self.peaks[threads]

    def alternate(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> list[tuple[Any, Any]]:
        """Return pairs of what both have measured; they take turns in coming first."""
        pairs = []
        for number in range(self.pairs):
            self.say(f"pair {number + 1} of {self.pairs}")
            if number % 2:
                other = theirs()
                own = ours()
            else:
                own = ours()
                other = theirs()
            pairs.append((own, other))
        return pairs


def last_line(text: str) -> str:
    """Return the last line with something on it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def short(command: Sequence[str]) -> str:
    """Return a command as a person would know it."""
    words = " ".join(Path(word).name if "/" in word and "=" not in word else word for word in command)
    return words if len(words) < 90 else f"{words[:87]}..."


def imports(complaints: str) -> str:
    """Say which packages take longest to import, from what `python -X importtime` has written."""
    took = Counter[str]()
    for text in complaints.splitlines():
        parts = text.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdigit():
            took[parts[2].strip().partition(".")[0]] += int(parts[0])
    most = ", ".join(f"{name} {microseconds / 1e6:.2f} s" for name, microseconds in took.most_common(6))
    return f"imports, slower for being watched: {sum(took.values()) / 1e6:.2f} s, of which {most}"
