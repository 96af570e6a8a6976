"""What others need not see of what is shown to them: home folder, user, passwords and tokens."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY")  # in the name of a variable
SHORTEST = 6  # letters of what is taken for a secret; such variables may also hold a yes or no
HIDDEN = "***"


@dataclass(frozen=True)
class Private:
    """What is private here.

    Attributes:
        homes: the home folder, as it is named and as it lies on the disk.
        users: the person's names.
        secrets: values of variables whose names say that they are secret.
    """

    homes: Sequence[str]
    users: Sequence[str]
    secrets: Sequence[str]

    def hide(self, text: str) -> str:
        """Return a text with `~` for the home folder and the user, and `***` for secrets."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        text = re.sub(r"://[^/\s@]+@", f"://{HIDDEN}@", text)  # user and password of an address
        text = re.sub(r"\bhf_\w{20,}", HIDDEN, text)  # a token of the hub
        for home in self.homes:
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        for user in self.users:
            text = re.sub(rf"(?<![\w.-]){re.escape(user)}(?![\w-])", "~", text)
        return text


def private_here() -> Private:
    """Return what is private of the person who runs this process."""
    home = os.path.expanduser("~")
    homes = {home, os.path.realpath(home)} - {"/", "~"}
    users = {os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    with suppress(Exception):  # a number without a name, as in containers; what is raised depends on Python's version
        users.add(getpass.getuser())
    secrets = set()
    for name, value in os.environ.items():
        if SECRET.search(name.upper()) and len(value) >= SHORTEST:
            secrets.add(value)
    return Private(longest_first(homes), longest_first(users - {""}), longest_first(secrets))


def longest_first(words: set[str]) -> list[str]:
    """Return words so that none stands before a longer one, which may hold it."""
    return sorted(words, key=len, reverse=True)
