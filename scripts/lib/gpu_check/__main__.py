"""Runs, within ten minutes on one GPU, what only a GPU can show, and prints what holds.

    scripts/gpu_check                          # all checks
    scripts/gpu_check waits repeats            # some
    scripts/gpu_check --out FOLDER             # where gpu_check.json and gpu_check.md are written

Each check is a process of its own, which ends when its time is over: an error of CUDA's spoils no other one. Those that
measure no times run side by side, as many as the cores allow. The exit status is 1 if something does not hold, and 2 on
a machine without a GPU. gpu_check.md is a section for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import outcomes
from outcomes import CUT, FAILS, Outcome

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
TESTS = ROOT / "tests"
PATHS = (str(FOLDER), str(TESTS), str(TESTS / "pretended_gpu"), str(ROOT))  # what a check imports

WHOLE = 570.0  # seconds for all checks
LINES = 3  # of what a failed check has said
CORES = 2  # for each of the checks that run side by side


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks that are asked for, print and write what was found; return the exit status."""
    sys.path[:0] = [path for path in PATHS if path not in sys.path]
    from checks import CHECKS

    options = parse_options(words, [*CHECKS])
    if options.one:
        outcomes.write(CHECKS[options.checks[0]].outcome(), options.one)
        return 0
    reason = why_not()
    if reason:
        print(f"normbench: {reason}", file=sys.stderr)
        return 2
    claims = {name: CHECKS[name].claim for name in options.checks}
    limits = {name: CHECKS[name].seconds for name in options.checks}
    facts = about()
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Outcome] = {}
    end = time.monotonic() + WHOLE

    def try_one(name: str) -> tuple[str, Outcome]:
        seconds_left = end - time.monotonic()
        return name, try_check([sys.executable, str(FOLDER), name], min(limits[name], seconds_left))

    for name, outcome in try_side_by_side(try_one, options.checks, {name for name in claims if CHECKS[name].alone}):
        found[name] = outcome
        print(f"{name:12s} {outcome.verdict:16s} {outcome.seconds:5.0f} s  {outcome.figure}", flush=True)
        in_order = {name: found[name] for name in options.checks if name in found}  # as far as it is
        known = outcomes.record(in_order, claims, facts)
        (options.out / "gpu_check.json").write_text(json.dumps(known, indent=2) + "\n")
        (options.out / "gpu_check.md").write_text(outcomes.section(in_order, claims, facts))
    print(f"{options.out / 'gpu_check.md'} is a section for docs/benchmarks.md")
    return outcomes.status(found)


def try_side_by_side(
    try_one: Callable[[str], tuple[str, Outcome]], names: Sequence[str], alone: Collection[str]
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each check as it ends: several at once have the cores, and then each by itself that must.

    Args:
        try_one: makes a check by name.
        names: of the checks.
        alone: of those with nothing beside them.
    """
    beside_others = [name for name in names if name not in alone]
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // CORES)) as pool:
        for done in as_completed([pool.submit(try_one, name) for name in beside_others]):
            yield done.result()
    for name in names:
        if name in alone:
            yield try_one(name)


def parse_options(words: Sequence[str] | None, names: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        "scripts/gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checks", nargs="*", default=names, metavar="CHECK", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="folder of the files; by default gpu_check")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # make one check here, and write its outcome
    options = parser.parse_args(words)
    unknown = [name for name in options.checks if name not in names]
    if unknown:
        parser.error(f"there is no check {', '.join(unknown)}: choose from {', '.join(names)}")
    return options


def why_not() -> str:
    """Say why nothing can be checked here; empty if it can."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA: install a build with it, on a machine with a GPU"
    if not torch.cuda.is_available():
        return "CUDA finds no GPU here: run scripts/gpu_check on a machine with one (nvidia-smi lists it)"
    return ""


def about() -> dict[str, str]:
    """Return what a reader must know of the machine and the versions."""
    import torch

    from normbench.record.machine import commit

    properties = torch.cuda.get_device_properties(0)
    gpu = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    count = torch.cuda.device_count()
    if count > 1:
        gpu += f", {count} of them"
    libraries = f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return {
        "GPU": gpu,
        "versions": f"{libraries}, normbench {commit() or 'of no commit'}",
        "command": "scripts/gpu_check",
    }


def try_check(command: Sequence[str], seconds: float) -> Outcome:
    """Make a check in a process of its own, which ends with all that it has started when its time is over.

    command: what makes it, and writes the outcome to the file that `--one` names.
    """
    if seconds <= 1:
        return Outcome(CUT, "no time was left")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="normbench-") as folder:
        file = Path(folder) / "outcome.json"
        with open(Path(folder) / "said", "w+") as said:
            process = subprocess.Popen(
                [*command, "--one", str(file)],
                cwd=folder,
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return Outcome(CUT, f"it was stopped after {seconds:.0f} s", seconds=time.monotonic() - begun)
            finally:
                end(process)
            said.seek(0)
            last = " / ".join(said.read().strip().splitlines()[-LINES:])
        if process.returncode or not file.exists():
            outcome = Outcome(FAILS, f"it ended with status {process.returncode}: {last}")
        else:
            outcome = outcomes.read(file)
    return replace(outcome, seconds=time.monotonic() - begun)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it has started, which have a session of their own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
