"""The commands. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from normbench import __version__
from normbench.errors import RunFailure, UsageError


@dataclass(frozen=True)
class Command:
    """A command.

    line: in the overview. run: what runs it; None: not in this version. words: what it takes. help: its own page.
    takes: how its words are completed: kinds that `normbench.commands.complete` knows, and flags.
    """

    line: str
    run: Callable[[list[str]], int] | None = None
    words: str = ""
    help: Callable[[list[str]], str] | None = None
    takes: tuple[str, ...] = ()


def train(words: list[str]) -> int:
    from normbench.commands.train import run

    return run(words)


def train_help(words: list[str]) -> str:
    from normbench.commands.train import help_text

    return help_text(words)


def sweep(words: list[str]) -> int:
    from normbench.commands.sweep import run

    return run(words)


def sweep_help(words: list[str]) -> str:
    from normbench.commands.sweep import help_text

    return help_text(words)


def list_options(words: list[str]) -> int:
    from normbench.commands.list import run

    return run(words)


def show(words: list[str]) -> int:
    from normbench.commands.show import run

    return run(words)


def check(words: list[str]) -> int:
    from normbench.commands.check import run

    return run(words)


def check_help(words: list[str]) -> str:
    from normbench.commands.check import help_text

    return help_text(words)


def tensorboard(words: list[str]) -> int:
    from normbench.commands.tensorboard import run

    return run(words)


def sample(words: list[str]) -> int:
    from normbench.commands.sample import run

    return run(words)


def sample_help(words: list[str]) -> str:
    from normbench.commands.sample import help_text

    return help_text(words)


def report(words: list[str]) -> int:
    from normbench.commands.report import run

    return run(words)


def report_help(words: list[str]) -> str:
    from normbench.commands.report import help_text

    return help_text(words)


def compare(words: list[str]) -> int:
    from normbench.commands.compare import run

    return run(words)


def compare_help(words: list[str]) -> str:
    from normbench.commands.compare import help_text

    return help_text(words)


def completion(words: list[str]) -> int:
    from normbench.commands.completion import run

    return run(words)


def complete(words: list[str]) -> int:
    """What the completion scripts ask: `normbench complete -- WORDS`."""
    from normbench.commands.complete import Known, run

    return run(words, {name: Known(known.line, known.takes) for name, known in COMMANDS.items() if known.run})


def show_help(words: list[str]) -> int:
    """`normbench help [COMMAND]`."""
    print(command_help(words[0], words[1:]) if words else overview())
    return 0


COMMANDS = {
    "train": Command(
        "train one model and record it, or go on with a run that was stopped",
        train,
        help=train_help,
        takes=("settings", "--dry-run", "--cfg", "--config-dir", "--info"),
    ),
    "sweep": Command(
        "many runs, each as train would make it: resumable, side by side, on this machine or a cluster",
        sweep,
        help=sweep_help,
        takes=("sweep settings", "--dry-run", "--watch", "--config-dir"),
    ),
    "show": Command(
        "the whole configuration that train would take: values, units, what is allowed, and where each was written",
        show,
        "[GROUP=OPTION ...] [KEY=VALUE ...] [--config-dir DIR]",
        takes=("settings", "--config-dir"),
    ),
    "list": Command(
        "what there is to choose: norms, placements, models, data sets, experiments; what is refused and why",
        list_options,
        "[GROUP ...]",
        takes=("groups",),
    ),
    "check": Command(
        "whether a norm, placement, model or data set keeps its contract, your own or ours",
        check,
        help=check_help,
        takes=("settings", "--config-dir"),
    ),
    "tensorboard": Command(
        "look at the runs under outputs/, or under FOLDER; flags are TensorBoard's own",
        tensorboard,
        "[FOLDER] [--port N] [FLAGS]",
        takes=("folders", "--port"),
    ),
    "sample": Command(
        "what a run's model has learned: text that it writes, or validation data that it classifies, mistakes first",
        sample,
        "RUN [FLAGS]",
        help=sample_help,
        takes=(
            "folders",
            "--prompt",
            "--tokens",
            "--temperature",
            "--top-k",
            "--seed",
            "--count",
            "--out",
            "--which",
            "--device",
            "--ema",
        ),
    ),
    "report": Command(
        "which differences between runs are real: a verdict, tables and figures in one page",
        report,
        "FOLDER [FOLDER ...] [FLAGS]",
        help=report_help,
        takes=("folders", "--out", "--baseline", "--target", "--margin"),
    ),
    "compare": Command(
        "two arms side by side: what differs, whether it is real, and how many seeds a difference needs",
        compare,
        "A B [--in FOLDER] [FLAGS]",
        help=compare_help,
        takes=("folders", "--in", "--margin", "--plan", "--difference"),
    ),
    "completion": Command(
        "the script with which a shell completes normbench's words: source <(normbench completion bash)",
        completion,
        "bash|zsh|fish",
        takes=("shells",),
    ),
    "help": Command("this page, or one command's", show_help, "[COMMAND]", takes=("commands",)),
    "bench": Command("operator timings"),
    "study": Command("experiments around or on a trained run"),
}

# Commands for programs, which no page names.
HIDDEN = {"complete": complete}


def overview() -> str:
    """The page of `normbench --help`."""
    from normbench.commands.pages import entries

    planned = [f"{name} ({command.line})" for name, command in COMMANDS.items() if not command.run]
    return "\n".join(
        [
            f"normbench {__version__}: compare normalization in neural networks.",
            "",
            "usage: normbench COMMAND [GROUP=OPTION ...] [KEY=VALUE ...] [FLAGS]",
            "",
            "commands:",
            *entries((name, command.line) for name, command in COMMANDS.items() if command.run),
            "",
            "first steps:",
            "  normbench train norm=rmsnorm placement=pre",
            "  normbench tensorboard",
            "  normbench list",
            "  normbench train --help",
            "",
            *entries([("not in this version:", ", ".join(planned))], indent=0),
        ]
    )


def find(name: str) -> Command:
    """The command of this name.

    Raises:
        UsageError: there is none, or not in this version.
    """
    from normbench.config import nearest

    command = COMMANDS.get(name)
    if command is None:
        known = [other for other, candidate in COMMANDS.items() if candidate.run]
        meant = f"did you mean normbench train {name}? " if "=" in name else nearest(name, known)
        raise UsageError(f"{name} is not a command: {meant}allowed are {', '.join(known)}")
    if command.run is None:
        raise UsageError(f"{name} ({command.line}) is not in this version: normbench --help lists what is")
    return command


def command_help(name: str, words: list[str]) -> str:
    """The help page of one command."""
    command = find(name)
    return command.help(words) if command.help else f"usage: normbench {name} {command.words}\n\n{command.line}"


def dispatch(argv: list[str]) -> int:
    """Run the command that the words name; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0
    if "--version" in argv[:2] and argv[0] != "tensorboard":
        print(f"normbench {__version__}")
        return 0
    name, words = argv[0], argv[1:]
    if name in HIDDEN:
        return HIDDEN[name](words)
    command = find(name)
    assert command.run is not None
    if "-h" in words or "--help" in words:
        print(command_help(name, words))
        return 0
    return command.run(words)


def complain(text: str, status: int) -> int:
    """One line on stderr; returns the exit status."""
    print(f"normbench: {' '.join(text.split())}", file=sys.stderr)
    return status


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 the machine ended it, 2 the user's mistake, 130 Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters shows ? for them
    try:
        status = dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except UsageError as error:
        return complain(str(error), 2)
    except RunFailure as error:
        return complain(str(error), 1)
    except KeyboardInterrupt:
        return complain("stopped", 130)
    except BrokenPipeError:  # the reader of our output has gone, as in `normbench list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to write goes nowhere
        return 0
