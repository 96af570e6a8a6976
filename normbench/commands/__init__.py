"""What commands have in common: their order, help pages, flags, the words KEY=VALUE, and their output streams."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import click

from normbench.errors import UsageError, is_disk_full
from normbench.settings import nearest

# Python's garbage collector searches torch's half a million objects for reference cycles, which takes a fifth of the
# start, and a third of a second at the end. A training sets the threshold back.
gc.set_threshold(100_000)
atexit.register(gc.freeze)


class Commands(click.Group):
    """The commands in the order in which they are written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if "=" in args[0] and not args[0].startswith("-"):
            raise UsageError(f"{args[0]} is not a command: did you mean normbench train {args[0]}?")
        is_unknown = args[0] not in self.commands and not args[0].startswith("-")
        if is_unknown and not ctx.resilient_parsing:
            kind = "command" if ctx.parent is None else str(ctx.info_name)
            near = self.suggest(ctx, args[0])
            raise UsageError(f"{args[0]} is not a {kind}: {near}there are {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)

    def suggest(self, ctx: click.Context, word: str) -> str:
        """Return `did you mean X? ` for the command that a word may stand for; else nothing."""
        return nearest(word, self.commands)


class Word(click.Choice[str]):
    """One of some words; for another word it says which may be meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        near = nearest(str(value), self.choices)
        allowed = ", ".join(self.choices)
        return f"{value} is unknown: {near}allowed are {allowed}"


class Command(click.Command):
    """A command whose help page may go on after its text.

    Args:
        page: what writes that, from the words and folders given.
    """

    def __init__(self, *args: Any, page: Callable[..., None] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.page = page

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            cure = self.explain_flag(error.option_name)
            if cure:
                raise UsageError(f"{error.option_name} is not a flag of normbench {ctx.info_name}: {cure}") from error
            raise

    def explain_flag(self, flag: str) -> str:
        """Return what to write in place of a flag that other programs have, or that is a setting; else nothing."""
        from normbench.config.compose import ELSEWHERE

        word = flag.lstrip("-").replace("-", "_")
        if word in ELSEWHERE:
            return ELSEWHERE[word]
        key = self.find_setting(word.partition("=")[0])
        return f"settings have no dashes, write {key}=VALUE" if key else ""

    def find_setting(self, word: str) -> str:
        """Return the setting that a command takes by a word, or by the end of its key; empty where there is none."""
        from normbench.commands.pages import COMMON_KEYS
        from normbench.config.schema import KEYS
        from normbench.config.sections import GROUPS

        if all(parameter.name != "words" for parameter in self.params):
            return ""
        for key in (*GROUPS, *KEYS, *COMMON_KEYS):
            if key == word or key.endswith(f".{word}"):
                return key
        return ""

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


def check_words(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse words that cannot be meant, before Hydra is imported; return those that Hydra is to read.

    Raises:
        UsageError: a blank after a comma, a range that is not written as one, or an option that there is not.
    """
    folders = ctx.meta.get("folders", [])
    for word, following in pairwise(words):
        if "=" in word and word.endswith(",") and "=" not in following:
            raise UsageError(f"'{word} {following}' has a blank after a comma: write {word}{following}")
    if any("{" in word for word in words):
        from normbench.config.compose import write_out

        words = tuple(write_out(words))
    for word in words:
        check_range(word)
        if not ctx.resilient_parsing:
            check_options(word, folders)
    words_for_hydra = []
    for word in words:
        for_hydra = as_list(word)
        if ctx.info_name == "sweep":
            for_hydra = re.sub(r"^\+*hydra/launcher=", "launcher=", for_hydra)
        words_for_hydra.append(for_hydra)
    for folder in folders:
        words_for_hydra.append(f"hydra.searchpath=['file://{folder}']")
    return tuple(words_for_hydra)


def check_range(word: str) -> None:
    """Refuse `seed=0-4` and the like for a setting that takes integers.

    Raises:
        UsageError: with the range as it is written here.
    """
    from normbench.config.schema import KEYS

    key, _, values = word.lstrip("+").partition("=")
    ends = re.fullmatch(r"(\d+)(?:-|:|\.\.\.?)(\d+)", values)
    if ends and key in KEYS and int in KEYS[key].types:
        low, high = sorted(map(int, ends.groups()))
        raise UsageError(f"a range is written '{key}=range({low},{high + 1})', in a sweep, not {word}")


def check_options(word: str, folders: Sequence[Path]) -> None:
    """Refuse a word that chooses an option which its group does not have.

    Raises:
        UsageError: with the options that there are.
    """
    from normbench.config.groups import check_option
    from normbench.config.sections import GROUPS, LOGGER

    key, equals, values = word.lstrip("+").partition("=")
    if not equals or key not in GROUPS:
        return
    if values.lstrip().startswith("{"):  # several mappings, for a sweep
        return
    if key == LOGGER:
        values = values.strip("[]")
    elif "(" in values:  # such as glob(*), which Hydra reads
        return
    for option in values.split(","):
        check_option(key, option.strip(" '\""), *folders)


def as_list(word: str) -> str:
    """Return a word with brackets around several loggers: all of them are of one run."""
    return re.sub(r"^(\+*logger=)([^\[(].*,.*)", r"\1[\2]", word)


def refuse_multirun(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    """Refuse Hydra's `-m` where one run is made; a sweep is what it asks for."""
    if given and ctx.info_name != "sweep":
        raise UsageError(f"normbench {ctx.info_name} takes no -m: for many runs give normbench sweep the same words")


class Folder(click.Path):
    """A folder; `~` is the home folder, also after a `=`, where the shell leaves it alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(os.path.expanduser(value))


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function of `normbench.commands`, whose module is imported when the function is called."""

    def call(*given: Any) -> Any:
        imported = getattr(import_module(f"normbench.commands.{module}"), function)
        return imported(*given)

    return call


def refuse_nan(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse what no range does: nan is neither below nor above anything."""
    if value != value:
        raise click.BadParameter("nan is not a number.", ctx, param)
    return value


def flag(name: str, help: str, **more: Any) -> Callable[[Any], Any]:
    """Declare a flag; it takes a value if more is said of it, such as its type or default."""
    if not more:
        return click.option(f"--{name}", help=help, is_flag=True)
    more.setdefault("callback", refuse_nan)
    return click.option(f"--{name}", help=help, **more)


FOLDER = Folder(file_okay=False)

# GROUP=OPTION and KEY=VALUE, as `normbench train` takes them, and where further options are; both are read before
# --help is answered, whose page goes by them.
SETTINGS = click.argument(
    "words", nargs=-1, metavar="[KEY=VALUE]...", is_eager=True, callback=check_words,
    shell_complete=later("completion", "complete_settings"),
)  # fmt: skip
CONFIG_DIR = flag(
    "config-dir", "Look for options in DIR/norm/NAME.yaml, ... too.", metavar="DIR", type=FOLDER, is_eager=True,
    expose_value=False, callback=find_options,
)  # fmt: skip
TRUST = flag("trust", "Let loaded runs and sweeps use classes that are not normbench's or torch's: their code runs.")
MULTIRUN = click.option("-m", "--multirun", is_flag=True, hidden=True, expose_value=False, callback=refuse_multirun)
HELP = click.help_option("-h", "--help", is_eager=False)


# ---- standard streams that outlive their reader, and replace letters that the terminal does not have


class Outlet(io.FileIO):
    """A standard stream that drops what is written once its reader has gone, as in `normbench list | head`.

    It also does where its disk is full, so that a run goes on whose log has no room; that is noted in `lost`.
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
    """Return a standard stream that raises no error: neither without a reader nor for letters that it does not have.

    Each line is written at once, also to a file: what a killed run has said is there.
    """
    if stream is None:  # closed, as by >&-
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    raw = Outlet(number, "wb", closefd=False)
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), errors="replace", line_buffering=True)
    unbuffered = stream.write_through  # as python -u asks
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=True,
        write_through=unbuffered,
    )
