"""Command lines that no person would write: `python tests/fuzz.py [FIRST NUMBER]` shows those that do not end well.

Each line is drawn from its number alone. Training and measuring are left out: what is fuzzed comes before.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from normbench.cli import cli, main
from normbench.config.groups import options
from normbench.config.schema import KEYS
from normbench.config.sections import GROUPS

SECONDS = 60  # that a line may take

COMMANDS = ["train", "sweep", "show", "list", "check", "sample", "report", "compare", "tensorboard", "completion"]
COMMANDS += sorted({*cli.commands} - {*COMMANDS, "help"})
FILES = ["fifo", "loop", "deep.yaml", "/dev/zero", "/dev/null", "/proc/self/mem", "/root/no", "a" * 300, "gone/a",
         "dir", "file", "x/" * 3000, "\udcff", "", ".", "~nobody", "noread"]  # fmt: skip
VALUES = ["1", "-1", "0", "1e999", "nan", "null", "true", "[]", "{}", "[1,2]", "{a:1}", "???", "${seed}",
          "${oc.env:HOME}", "${", "$", "'", '"', "\\", "\x1b[31m", "é", "𝔘", " ", "a b", "a,b", "1,2,3", "range(0,10)",
          "range(0,1000000000)", "glob(*)", "choice(a,b)", "interval(0,1)", "sort(3,2,1)", "shuffle(1,2)", "tag(x,1,2)",
          "9" * 400, "9" * 5000, "[" * 200, "[" * 5000, "{a:" * 400, "(" * 3000, "${a" * 500, "1.5", "cpu", "cuda:99",
          "_target_", "{_target_:os.getcwd}", "os.system", "torch.nn.LayerNorm", "builtins.print", "1:2", "=",
          "==", "@", "int(3)", "float(x)", "json_str([1])", "extend_list(1)", "0x10", "1_000", "+1", "inf", "-inf",
          "1e-400"]  # fmt: skip
KEYWORDS = [*KEYS, *GROUPS, "norm.eps", "model.width", "model.depth", "model.heads", "data.path", "data.root",
            "optim.lr", "hydra.run.dir", "sweep.lr", "sweep.jobs", "sweep.exclude", "sweep.tie", "launcher", "x", "",
            "a.b.c.d"]  # fmt: skip
FLAGS = [
    option for command in cli.commands.values() for param in command.params for option in param.opts if option[0] == "-"
]


def line(number: int) -> list[str]:
    """Return one command line."""
    draw = random.Random(number)
    words = [draw.choice(COMMANDS)] if draw.random() < 0.97 else [draw.choice(VALUES)]
    return [*words, *(word(draw) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 5))))]


def word(draw: random.Random) -> str:
    """Return one word: a setting, an option, a flag, a path or anything."""
    kind = draw.choice(("setting", "setting", "setting", "option", "path", "flag", "folder", "garbled", "anything"))
    value = draw.choice(FILES if draw.random() < 0.2 else VALUES)
    if kind == "setting":
        return f"{draw.choice(('', '', '', '+', '~', '++'))}{draw.choice(KEYWORDS)}={value}"
    if kind == "option":
        group = draw.choice([*GROUPS])
        return f"{group}={draw.choice([*options(group), value])}"
    if kind == "path":
        return f"{draw.choice(('data.path', 'data.root', 'extend', 'outputs', 'name'))}={draw.choice(FILES)}"
    if kind == "flag":
        return draw.choice(FLAGS) + draw.choice(("", "", f"={value}"))
    if kind == "folder":
        return draw.choice(FILES)
    if kind == "garbled":
        letters = list(f"{draw.choice(KEYWORDS)}={value[:50]}")
        draw.shuffle(letters)
        return "".join(letters)
    return value


def make_files(folder: Path) -> None:
    """Make the files that FILES names."""
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "deep.yaml").write_text("[" * 5000)
    (folder / "file").write_text("some text\n" * 50)
    (folder / "noread").touch(0)
    (folder / "dir/norm").mkdir(parents=True)
    os.mkfifo(folder / "dir/norm/pipe.yaml")
    for name, content in (
        ("config.yaml", "[" * 100_000),
        ("status.json", "[" * 100_000),
        ("summary.json", '{"sessions": 5}'),
    ):
        (folder / "dir/run").mkdir(exist_ok=True)
        (folder / "dir/run" / name).write_text(content)


class Hangs(BaseException):
    """A line takes too long."""


def hang(*_: Any) -> None:
    raise Hangs


@contextlib.contextmanager
def without_training() -> Iterator[None]:
    """Let no run train, nothing replace the process, and no machine be examined, which takes half a minute."""
    from normbench.commands import doctor
    from normbench.runs import session
    from normbench.studies import study
    from normbench.sweep import work

    os.environ["HF_HUB_OFFLINE"] = "1"
    before = signal.signal(signal.SIGALRM, hang)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGALRM, before)
        trained = (session.Session, "train"), (work.Execution, "finish"), (study, "measure_all"), (study, "save")
        for owner, name in (*trained, (os, "execv")):
            stack.enter_context(mock.patch.object(owner, name, return_value=0))
        stack.enter_context(mock.patch.object(doctor, "examine", return_value=()))
        yield


def fault(words: list[str]) -> str:
    """Return what is wrong with how a line ends; nothing where it is done, or refused in a sentence."""
    out, err = io.StringIO(), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
    except Hangs:
        return "hangs"
    except BaseException as error:  # whatever a line makes of it
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    said = err.getvalue()
    if "Traceback" in said or "\x1b" in said:
        return f"says {said[-300:]!r}"
    return "" if status in (0, 1, 2) else f"ends with {status}"


def faults(first: int, number: int) -> Iterator[tuple[list[str], str]]:
    """Return the lines that do not end well, and how they end; the current directory is where the files are."""
    with without_training():
        for place in range(first, first + number):
            if found := fault(words := line(place)):
                yield words, found


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as here, contextlib.chdir(here):
        make_files(Path(here))
        for each in faults(*(given or (0, 5000))):
            print(*each, flush=True)
