"""What commands have in common: their order, help pages, flags, and the kinds of words that they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from normbench.errors import UsageError


class Commands(click.Group):
    """The commands in the order in which they are written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if "=" in args[0] and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise UsageError(f"{args[0]} is not a command: did you mean normbench train {args[0]}?")
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise UsageError(f"{error.format_message()} Allowed are {', '.join(self.commands)}: see --help") from error


class Command(click.Command):
    """A command whose words may come with a folder of the user's own, and whose help page may tell more of them.

    page: writes what else the help page has, from the words and the user's own folders.
    """

    def __init__(self, *args: Any, page: Callable[..., None] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.page = page

    def get_short_help_str(self, limit: int = 0) -> str:
        return str(self.help).partition("\n")[0].rstrip(".")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["args"], ctx.meta["folders"] = [word for word in args if word not in ctx.help_option_names], []
        rest = super().parse_args(ctx, args)
        if "config_dir" in ctx.params:
            if config_dir := ctx.params.pop("config_dir"):
                from normbench.config.groups import own_folder

                ctx.meta["folders"] = [own_folder(str(config_dir))]
                ctx.params["words"] += (f"hydra.searchpath=['file://{ctx.meta['folders'][0]}']",)
            if not ctx.resilient_parsing:
                check_options(ctx.params["words"], ctx.meta["folders"])
        return rest

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.page:  # --help is answered before the other words are read
            asked = self.make_context(ctx.info_name, ctx.meta["args"], ctx.parent, resilient_parsing=True)
            check_options(asked.params["words"], asked.meta["folders"])
            self.page(formatter, asked.params["words"], asked.meta["folders"])


Commands.command_class = Command


def check_options(words: Iterable[str], folders: Iterable[Path]) -> None:
    """Refuse an option that there is not, before Hydra is imported, which takes a third of a second.

    Raises:
        UsageError: there is one.
    """
    from normbench.config.groups import GROUPS, check_option

    for group, _, option in (word.partition("=") for word in words):
        if group in GROUPS and re.fullmatch(r"[A-Za-z]\w*", option):
            check_option(group, option, *folders)


class Folder(click.Path):
    """A folder; `~` is the home folder, also behind a `=`, where the shell leaves it alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(value).expanduser()


class Number(click.ParamType):
    """A number within bounds; 1e3 is an integer too."""

    name = "number"

    def __init__(self, kind: type, **bounds: Any) -> None:
        self.kind, self.bounds = kind, bounds

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        from normbench.settings import Setting

        with suppress(ValueError):
            value = int(value) if str(value).isdigit() else float(value)
        return Setting(types=(self.kind,), **self.bounds).check(param.opts[0], value)


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function of `normbench.commands`, whose module is imported when the function is called."""
    return lambda *given: getattr(import_module(f"normbench.commands.{module}"), function)(*given)


def flag(name: str, help: str, **more: Any) -> Callable[[Any], Any]:
    """Declare a flag; without a type or the name of its value it takes none."""
    return click.option(f"--{name}", help=help, **more if more else {"is_flag": True})


FOLDER = Folder(file_okay=False)

# GROUP=OPTION and KEY=VALUE, as `normbench train` takes them, and where further options are.
SETTINGS = click.argument(
    "words", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=later("completion", "complete_settings")
)
CONFIG_DIR = flag("config-dir", "Look for options in DIR/norm/NAME.yaml, ... too.", metavar="DIR", type=FOLDER)
