"""`normbench sweep`."""

from __future__ import annotations

import os
from pathlib import Path

from normbench import catalog
from normbench.catalog import GROUPS, SWEEP_GROUPS, options
from normbench.commands.pages import entries, paragraph
from normbench.errors import UsageError
from normbench.request import find_own_classes
from normbench.sweeping.settings import SWEEP_KEYS, check_names, quoted

DRY_RUN, WATCH, CONFIG_DIR = "--dry-run", "--watch", "--config-dir"

EXAMPLES = """\
examples:
  normbench sweep norm=layernorm,rmsnorm,dyt placement=pre,post seed=0,1,2
  normbench sweep 'norm=glob(*)' 'seed=range(0,5)' sweep.exclude='norm=batchnorm,placement=parallel' --dry-run
  normbench sweep experiment=smoke
  normbench sweep norm=layernorm,dyt seed=0,1,2 sweep.lr=auto
  normbench sweep --watch outputs/sweep"""

FLAGS = {
    DRY_RUN: "print the plan: arms, seeds, what is to do, done and failed, time and disk, measured on a few steps",
    f"{WATCH} FOLDER": "show how far a sweep is that runs elsewhere, from its run directories alone",
    f"{CONFIG_DIR} DIR": "look for options in DIR/norm/NAME.yaml, DIR/placement/NAME.yaml, ... too",
}

ABOUT = (
    "Makes a run for each combination of several values, each as normbench train would with these words, in "
    "outputs/NAME (by default outputs/sweep). The same command again makes only what is missing; runs that were "
    "stopped go on. Two sweeps on one folder share the work. A run that fails stops no other; the exit status is 1."
)
GRAMMAR = {
    "KEY=A,B": "each of the values",
    "KEY=range(0,5)": "numbers from 0 to below 5",
    "GROUP=glob(*)": "all options of a group; glob(*,exclude=none) leaves some out",
    "experiment=NAME": "a study: what its YAML holds under hydra.sweeper.params; the command line wins over it",
}


def run(words: list[str]) -> int:
    """Make many runs, say what they would take, or look on; returns the exit status."""
    if WATCH in words:
        return look_on(words)
    given, dry_run = settings_of(words)
    if not given:
        raise UsageError("sweep has nothing to vary: give several values, such as norm=layernorm,rmsnorm seed=0,1,2")
    check_names(given)
    find_own_classes()
    from normbench.sweeping.conduct import sweep  # imports torch: behind mistakes that the words alone show

    return sweep(given, dry_run, report)


def report(folder: Path, quiet: bool) -> None:
    """Write the report of a sweep's runs into their folder, and print its verdict; one newer than they are stays."""
    from normbench.commands.report import made, show

    page = folder / "report" / "report.html"
    if page.exists() and page.stat().st_mtime_ns > newest(folder):
        if not quiet:
            print(page)
        return
    try:
        written = made([folder], page.parent)
    except UsageError as error:  # no run has ended, say: the sweep's own result stands
        print(f"no report: {error}")
        return
    if not quiet:
        print()
        show(*written)


def newest(folder: Path) -> int:
    """When a run of a folder last changed how it stands, in nanoseconds since 1970."""
    files = [path for name in ("summary.json", "status.json") for path in folder.glob(f"*/{name}")]
    return max((path.stat().st_mtime_ns for path in files), default=0)


def look_on(words: list[str]) -> int:
    """`--watch FOLDER`."""
    folders = [word for word in words if word != WATCH]
    if len(folders) != 1 or folders[0].startswith("-") or "=" in folders[0]:
        raise UsageError(f"{WATCH} takes the folder of a sweep and nothing else: such as {WATCH} outputs/sweep")
    from normbench.sweeping.conduct import watch

    return watch(Path(os.path.expanduser(folders[0])))


def settings_of(words: list[str]) -> tuple[list[str], bool]:
    """The words without flags, and whether `--dry-run` is among them."""
    given, dry_run, rest = [], False, list(words)
    while rest:
        word = rest.pop(0)
        name, _, value = word.partition("=")
        if word == DRY_RUN:
            dry_run = True
        elif name == CONFIG_DIR:
            folder = own_folder(value or (rest.pop(0) if rest and not rest[0].startswith("-") else ""))
            given.append(f"hydra.searchpath=[{quoted(f'file://{folder.absolute()}')}]")
        elif word.startswith("-"):
            raise UsageError(f"{word} is not a flag of sweep: allowed are {', '.join(FLAGS)}")
        elif name in ("rerun", "extend") and value not in ("false", "null"):
            raise UsageError(f"{word} is train's alone: give normbench train the words of the one run")
        else:
            given.append(word)
    return given, dry_run


def own_folder(name: str) -> Path:
    """The folder behind `--config-dir`.

    Raises:
        UsageError: there is none, or it holds an option that normbench has already.
    """
    if not name:
        raise UsageError(f"{CONFIG_DIR} lacks its folder: give the one that holds your norm/NAME.yaml")
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        raise UsageError(f"{CONFIG_DIR} {folder} is not a folder: give the one that holds your norm/NAME.yaml")
    catalog.check_names([folder])
    return folder


def help_text(words: list[str]) -> str:
    """The page of `normbench sweep --help`."""
    lines = [
        "usage: normbench sweep [GROUP=OPTION,OPTION ...] [KEY=VALUE,VALUE ...] [FLAGS]",
        "",
        *paragraph(ABOUT),
        "",
        EXAMPLES,
        "",
        "several values, in Hydra's grammar:",
        *entries(GRAMMAR.items()),
        "",
        *paragraph(f"groups: {', '.join(GROUPS)}, as normbench train --help and normbench list show them, and:"),
    ]
    for group, meaning in SWEEP_GROUPS.items():
        lines += [f"  {group}=  {meaning}", *entries(options(group).items(), indent=4)]
    lines += ["", "keys, beside those of train:"]
    lines += entries((f"{path}=", f"{key.doc} [{key.allowed}]") for path, key in SWEEP_KEYS.items())
    return "\n".join([*lines, "", "flags:", *entries(FLAGS.items())])
