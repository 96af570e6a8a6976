"""Plants each fault of faults.toml in a copy of the checkout, and tells which test sees it.

    python tests/faults/plant.py [NAME ...] [--jobs 2] [--json FILE]

Not a part of the tests: all sixty take half an hour on two cores. Exit status 1 where a fault is seen by none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header")
PATIENCE = 1_200  # seconds: a fault may let tests wait for what never comes
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
ENDED_BY_TESTS = (1, 2)  # exit statuses of pytest: a test failed, or a file of tests could not be imported


@dataclass(frozen=True)
class Fault:
    """A change that makes the package wrong.

    Attributes:
        name: of the table in faults.toml.
        file: in the package.
        old: what stands there, once.
        new: what is put in its place.
        tests: files below tests/ that should see it, the likeliest first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, checkout: Path) -> None:
        """Change the package of a checkout.

        Raises:
            ValueError: what is to be changed does not stand there once.
        """
        path = checkout / "normbench" / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has what is to be changed {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new))


def read_faults() -> list[Fault]:
    """Return all faults, in their order."""
    content = tomllib.loads(FAULTS.read_text())
    faults = []
    for name, table in content.items():
        faults.append(Fault(name, table["file"], table["old"], table["new"], tuple(table["tests"])))
    return faults


def copy_checkout(folder: Path) -> None:
    """Copy what git has of the checkout, as it is now, into a folder."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        source = CHECKOUT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def find_test(fault: Fault) -> str:
    """Return the first test that fails with a fault in a copy of the checkout; empty where none does."""
    with tempfile.TemporaryDirectory(prefix="fault-") as name:
        folder = Path(name)
        copy_checkout(folder)
        fault.plant(folder)
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        for file in fault.tests:
            command = [*PYTEST, f"tests/{file}"]
            try:
                ended = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
                )
            except subprocess.TimeoutExpired:
                return f"{file} (does not end)"
            if ended.returncode in ENDED_BY_TESTS:
                failure = FIRST_FAILURE.search(ended.stdout)
                return failure[1].removeprefix("tests/") if failure else file
            if ended.returncode:
                raise RuntimeError(
                    f"{file} could not be run with {fault.name}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
                )
    return ""


def main(words: Sequence[str] | None = None) -> int:
    """Plant faults; return 1 where one is seen by no test."""
    parser = argparse.ArgumentParser(
        description="Plants faults in copies of the checkout, and runs the tests that should see them."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults; all of them by default")
    parser.add_argument("--jobs", type=int, default=2, help="faults at once")
    parser.add_argument("--json", type=Path, help="a file for the test that sees each fault")
    given = parser.parse_args(words)
    faults = read_faults()
    unknown = set(given.names) - {fault.name for fault in faults}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not in {FAULTS.name}")
    chosen = [fault for fault in faults if not given.names or fault.name in given.names]
    seen = dict[str, str]()
    with ThreadPoolExecutor(given.jobs) as pool:
        waiting = {pool.submit(find_test, fault): fault for fault in chosen}
        for done in as_completed(waiting):
            fault = waiting[done]
            seen[fault.name] = done.result()
            print(f"{fault.name:32} {seen[fault.name] or 'NOT SEEN'}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(dict(sorted(seen.items())), indent=2) + "\n")
    missed = [name for name, test in seen.items() if not test]
    print(f"{len(seen) - len(missed)} of {len(seen)} faults are seen by the tests.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
