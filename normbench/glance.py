"""Mistakes that a word of the command line shows by itself, found without Hydra, which takes a third of a second."""

from __future__ import annotations

import re
from typing import Any

from normbench.catalog import GROUPS, options
from normbench.complaints import key_of, unknown_key, unknown_option
from normbench.config import KEYS
from normbench.errors import UsageError

PLAIN = re.compile(r"\+{0,2}(?P<key>[a-z_][a-z0-9_.]*)=(?P<value>[A-Za-z0-9_.+-]{1,200})")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf)", re.IGNORECASE)
WORDS = {"null": None, "true": True, "false": False}


def glance(command: str, words: list[str]) -> None:
    """Look at the plain words `KEY=VALUE`; what is quoted, nested or refers to other keys is left to Hydra.

    Raises:
        UsageError: an unknown option or key, or a value that its key does not allow.
    """
    if any(word.startswith(("-", "hydra")) for word in words):
        return  # a directory of the user's own may have more options
    for word in words:
        if match := PLAIN.fullmatch(word):
            check_word(word, match["key"], match["value"], command, words)


def check_word(word: str, key: str, value: str, command: str, words: list[str]) -> None:
    """Check one plain word."""
    section, _, name = key.partition(".")
    if key in GROUPS:
        if value not in options(key):
            raise UsageError(unknown_option(key, value, options(key)))
    elif key in KEYS:
        own_class = any(key_of(other) == f"{section}._target_" for other in words)
        if key == "optim.lr" or not own_class:
            KEYS[key].check(key, scalar(value))
    elif not word.startswith("+") and not name.startswith("_") and not is_section(key):
        raise UsageError(unknown_key(key, command, words))


def is_section(key: str) -> bool:
    """Whether other keys are below this one."""
    return any(path.startswith(f"{key}.") for path in KEYS)


def scalar(text: str) -> Any:
    """What a plain word stands for, as Hydra reads it."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if not NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
