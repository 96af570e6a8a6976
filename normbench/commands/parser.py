"""Words that are not settings of `train`: arguments and flags."""

from __future__ import annotations

import argparse
from typing import NoReturn

from normbench.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A command's parser, whose complaints are a UsageError."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: normbench {self.prog} --help shows how it is called")
