"""What commands have in common: their order, help pages, flags, the words KEY=VALUE, and where they print."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import click

from normbench.errors import UsageError, is_disk_full
from normbench.settings import Setting, nearest

# Python's garbage collector searches torch's half a million objects for reference cycles: a fifth of the start, and a
# third of a second at the end. A training sets it back.
gc.set_threshold(100_000)
atexit.register(gc.freeze)


class Commands(click.Group):
    """The commands in the order in which they are written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if "=" in args[0] and not args[0].startswith("-"):
            raise UsageError(f"{args[0]} is not a command: did you mean normbench train {args[0]}?")
        return super().resolve_command(ctx, args)


class Word(click.Choice[str]):
    """One of some words; for another one it says which is meant, perhaps."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"{value} is unknown: {nearest(str(value), self.choices)}allowed are {', '.join(self.choices)}"


class Command(click.Command):
    """A command whose help page may go on behind its text. page: writes that, from the words and folders given."""

    def __init__(self, *args: Any, page: Callable[..., None] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.page = page

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from normbench.config.compose import ELSEWHERE

            if told := ELSEWHERE.get(error.option_name.lstrip("-").replace("-", "_")):
                raise UsageError(f"{error.option_name} is no flag of normbench {ctx.info_name}: {told}") from error
            if key := self.setting(error.option_name.lstrip("-").replace("-", "_").partition("=")[0]):
                cure = f"settings have no dashes, write {key}=VALUE"
                raise UsageError(f"{error.option_name} is no flag of normbench {ctx.info_name}: {cure}") from error
            raise

    def setting(self, word: str) -> str:
        """Return the setting that a command takes by a word, or by the end of its key; empty where there is none."""
        from normbench.commands.pages import COMMON_KEYS
        from normbench.config.schema import KEYS
        from normbench.config.sections import GROUPS

        known = [*GROUPS, *KEYS, *COMMON_KEYS] if any(each.name == "words" for each in self.params) else []
        return next((key for key in known if key == word or key.endswith(f".{word}")), "")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.page:
            self.page(formatter, ctx.params["words"], ctx.meta.get("folders", []))


Commands.command_class = Command


def find_options(ctx: click.Context, param: click.Parameter, folder: Path | None) -> None:
    """Note the user's own folder of options."""
    from normbench.config.groups import own_folder

    if folder:
        ctx.meta["folders"] = [own_folder(folder)]


def check_options(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an option that there is not, before Hydra is imported, and tell Hydra of the user's own folder.

    Raises:
        UsageError: there is one.
    """
    from normbench.config.groups import check_option
    from normbench.config.schema import KEYS, MANY
    from normbench.config.sections import GROUPS

    folders = ctx.meta.get("folders", [])
    for word, following in pairwise(words):
        if "=" in word and word.endswith(",") and "=" not in following:
            raise UsageError(f"'{word} {following}' has a blank behind a comma: write {word}{following}")
    for word in words:
        key, equals, values = word.lstrip("+").partition("=")
        if int in KEYS.get(key, Setting()).types and (ends := re.fullmatch(r"(\d+)(?:-|:|\.\.\.?)(\d+)", values)):
            low, high = sorted(map(int, ends.groups()))
            raise UsageError(f"a range is written '{key}=range({low},{high + 1})', in a sweep, not {word}")
        if key in GROUPS and equals and (key == MANY or "(" not in values) and not ctx.resilient_parsing:
            for option in (values.strip("[]") if key == MANY else values).split(","):
                check_option(key, option.strip(" '\""), *folders)
    words = tuple(re.sub(r"^(\+*logger=)([^\[(].*,.*)", r"\1[\2]", word) for word in words)  # all of them, in one run
    if ctx.info_name == "sweep":
        words = tuple(re.sub(r"^\+*hydra/launcher=", "launcher=", word) for word in words)
    return (*words, *(f"hydra.searchpath=['file://{folder}']" for folder in folders))


def refuse_multirun(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    """Refuse Hydra's `-m` where one run is made; a sweep is what it asks for."""
    if given and ctx.info_name != "sweep":
        raise UsageError(f"normbench {ctx.info_name} takes no -m: for many runs give normbench sweep the same words")


class Folder(click.Path):
    """A folder; `~` is the home folder, also behind a `=`, where the shell leaves it alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(os.path.expanduser(value))


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function of `normbench.commands`, whose module is imported when the function is called."""
    return lambda *given: getattr(import_module(f"normbench.commands.{module}"), function)(*given)


def not_nan(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse what no range does: nan is neither below nor above anything."""
    if value != value:
        raise click.BadParameter("nan is not a number.", ctx, param)
    return value


def flag(name: str, help: str, **more: Any) -> Callable[[Any], Any]:
    """Declare a flag; without a type or the name of its value it takes none."""
    return click.option(f"--{name}", help=help, **{"callback": not_nan} | more if more else {"is_flag": True})


FOLDER = Folder(file_okay=False)

# GROUP=OPTION and KEY=VALUE, as `normbench train` takes them, and where further options are; both are read before
# --help is answered, whose page goes by them.
SETTINGS = click.argument(
    "words", nargs=-1, metavar="[KEY=VALUE]...", is_eager=True, callback=check_options,
    shell_complete=later("completion", "complete_settings"),
)  # fmt: skip
CONFIG_DIR = flag(
    "config-dir", "Look for options in DIR/norm/NAME.yaml, ... too.", metavar="DIR", type=FOLDER, is_eager=True,
    expose_value=False, callback=find_options,
)  # fmt: skip
TRUST = flag("trust", "Let loaded runs and sweeps have classes that are not normbench's or torch's: their code runs.")
MULTIRUN = click.option("-m", "--multirun", is_flag=True, hidden=True, expose_value=False, callback=refuse_multirun)
HELP = click.help_option("-h", "--help", is_eager=False)


# ---- standard streams that outlive their reader, and write what the terminal has no letters for


class Outlet(io.FileIO):
    """A standard stream; once its reader or terminal has gone, as in `normbench list | head`, it leads nowhere.

    Nor does it where its disk is full, so that a run goes on whose log has no room; that is noted in `lost`.
    """

    lost: ClassVar[list[str]] = []

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if is_disk_full(error):
                self.lost.append(f"not all that this command printed could be written ({error.strerror}): make room")
            elif error.errno not in (errno.EPIPE, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def steady(stream: Any, number: int) -> io.TextIOWrapper:
    """Return a standard stream that raises no error: not without its reader, nor for letters that it does not have.

    Each line is written at once, also to a file: what a killed run has said is there.
    """
    if stream is None:  # closed, as by >&-
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    raw = Outlet(number, "wb", closefd=False)
    kept = {name: getattr(stream, name) for name in ("encoding", "write_through") if stream}
    binary = raw if kept.get("write_through") else io.BufferedWriter(raw)  # as python -u asks
    return io.TextIOWrapper(binary, errors="replace", line_buffering=True, **kept)
