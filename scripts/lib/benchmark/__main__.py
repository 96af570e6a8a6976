"""Times normbench against its peers, in alternation, and prints ratios with medians and extremes.

    scripts/benchmark --quick                                  # does everything work? under 3 minutes
    scripts/benchmark start mistake norms --pairs 5            # some parts
    scripts/benchmark --nanogpt DIR --examples DIR --out FILE  # all, hours; nothing else should be at work

DIR are checkouts of karpathy/nanoGPT and pytorch/examples; they are copied, and nothing is written there. What needs
the public data sets takes them from the folder that NORMBENCH_DATA names.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import peers
from commands import Bench, Failed, Left
from parts import PARTS
from results import HEADS, Row, line, markdown
from rich.console import Console
from rich.table import Table

from normbench.record.machine import commit, cpu_name

NEEDS = {
    "nanogpt": f"--nanogpt DIR, a checkout of {peers.NANOGPT}",
    "examples": f"--examples DIR, a checkout of {peers.EXAMPLES}",
    "data": "NORMBENCH_DATA, a folder with the public data sets",
    "torchvision": "torchvision: .venv/bin/python -m pip install torchvision",
}


def main() -> int:
    """Measure the parts that are asked for, print and write what was found; return the exit status."""
    options = parse_options()
    failed = False
    rows = list[Row]()
    ended = dict[str, str]()
    status = Console(stderr=True).status("")
    with tempfile.TemporaryDirectory(prefix="normbench-") as folder, status:
        # Two threads on a machine that has other work wait for each other most of the time.
        threads = 1 if options.quick else cores()
        bench = Bench(Path(folder), 1, options.quick, threads, options.nanogpt, options.examples, status.update)
        for name in options.parts:
            try:
                for row in measure_part(name, bench, options.pairs):
                    print(line(row), flush=True)
                    rows.append(row)
            except (Failed, Left) as reason:
                failed |= isinstance(reason, Failed)
                ended[name] = str(reason)
                print(f"{name}: {reason}", flush=True)
            if options.out:  # as far as it is: all takes hours
                options.out.write_text(markdown(rows, facts(options, bench), ended))
        known = facts(options, bench)
    show(rows, known)
    return int(failed)


def measure_part(name: str, bench: Bench, pairs: int | None) -> Iterator[Row]:
    """Yield the rows of a part.

    Raises:
        Left: it needs what is not here.
        Failed: a command has failed.
    """
    part = PARTS[name]
    there = {
        "nanogpt": bench.nanogpt,
        "examples": bench.examples,
        "data": os.environ.get("NORMBENCH_DATA"),
        "torchvision": find_spec("torchvision") if "torchvision" in part.needs else None,
    }
    missing = [NEEDS[need] for need in part.needs if not there[need]]
    if missing:
        raise Left(f"left out: it needs {', and '.join(missing)}")
    number = pairs or (1 if bench.quick else part.pairs)
    yield from part.measure(replace(bench, pairs=number, say=lambda text: bench.say(f"{name}: {text}")))


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser("benchmark", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    listed = "\n".join(f"{name:<10} {part.about}" for name, part in PARTS.items()).replace("%", "%%")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to measure; all but the last two if none:\n{listed}"
    )
    parser.add_argument("--nanogpt", type=checkout, metavar="DIR", help=f"a checkout of {peers.NANOGPT}")
    parser.add_argument("--examples", type=checkout, metavar="DIR", help=f"a checkout of {peers.EXAMPLES}")
    parser.add_argument("--pairs", type=positive, metavar="N", help="alternated pairs of each part")
    parser.add_argument("--quick", action="store_true", help="one small pair of each: for breakage, not for times")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a page in Markdown with what was measured")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is named {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    options.parts = [*dict.fromkeys(options.parts)] or [name for name, part in PARTS.items() if part.default]
    return options


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of pairs: give 1 or more")
    return int(text)


def checkout(text: str) -> Path:
    """Return an existing folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder: give that of a checkout")
    return Path(text).absolute()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def facts(options: argparse.Namespace, bench: Bench) -> dict[str, str]:
    """Return where and with what was measured."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    found = {
        "machine": f"{cpu_name()}, {cores()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}",
        "versions": f"Python {platform.python_version()}, torch {version('torch')}, normbench {commit()}",
        "command": shlex.join(["scripts/benchmark", *("PATH" if "/" in word else word for word in sys.argv[1:])]),
    }
    for threads, peak in sorted(bench.peaks.items()):
        found[f"peaks, threads: {threads}"] = (
            f"matrix product {peak['matrix'] / 1e9:.0f} GFLOP/s (the fastest of 1024³, 1536³, 2048³, fp32); copy "
            f"{peak['copy'] / 1e9:.1f} GB/s read and written ({peak['bytes'] / 2**20:.0f} MiB)"
        )
    for name, path in {peers.NANOGPT: options.nanogpt, peers.EXAMPLES: options.examples}.items():
        if path:
            found[name] = peers.commit(path)
    return found


def show(rows: list[Row], known: dict[str, str]) -> None:
    """Print a table of all rows, below what they were measured on."""
    table = Table(*HEADS)
    for row in rows:
        table.add_row(*row.cells)
    print("", *(f"{name}: {fact}" for name, fact in known.items()), sep="\n")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
