"""From text to token ids and back."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Integer, UInt

Tokens = Integer[np.ndarray, " tokens"]


class Vocabulary(Protocol):
    """The symbols that tokens stand for; a token is a symbol's index."""

    level: str
    symbols: tuple[str, ...]

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """The tokens of a text, in the smallest unsigned type that holds them."""

    def decode(self, tokens: Tokens) -> str:
        """The text of the tokens."""


class Characters:
    """Unicode characters, in the order of their code points."""

    level = "character"

    def __init__(self, symbols: str) -> None:
        self.symbols = tuple(symbols)

    @classmethod
    def of(cls, text: str) -> Characters:
        """The sorted set of the characters of a text."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        indices = np.searchsorted(code_points("".join(self.symbols)), code_points(text))
        return indices.astype(np.min_scalar_type(len(self.symbols) - 1))

    def decode(self, tokens: Tokens) -> str:
        return "".join(self.symbols[token] for token in tokens.tolist())


class Bytes:
    """The 256 bytes of UTF-8."""

    level = "byte"
    symbols = tuple(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in range(256))

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, tokens: Tokens) -> str:
        return bytes(tokens.tolist()).decode(errors="replace")


def code_points(text: str) -> UInt[np.ndarray, " characters"]:
    """The Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
