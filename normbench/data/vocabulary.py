"""From text to token ids and back: characters, bytes, words, byte pairs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Integer, UInt

from normbench.errors import UsageError

Tokens = Integer[np.ndarray, " tokens"]


class Vocabulary(Protocol):
    """The symbols that tokens stand for; a token is a symbol's index."""

    level: str
    symbols: tuple[str, ...]

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """The tokens of a text, in the smallest unsigned type that holds them."""

    def decode(self, tokens: Tokens) -> str:
        """The text of the tokens."""

    def facts(self) -> dict[str, Any]:
        """What JSON can hold, and `recall` makes the vocabulary of."""


class Characters:
    """Unicode characters, in the order of their code points."""

    level = "character"

    def __init__(self, symbols: str) -> None:
        self.symbols = tuple(symbols)

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> Characters:
        """The sorted set of all characters; there is no symbol for others, so a size means nothing."""
        return cls("".join(sorted(set().union(*texts))))

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """The tokens of a text.

        Raises:
            UsageError: a character has no token.
        """
        known, wanted = code_points("".join(self.symbols)), code_points(text)
        indices = np.searchsorted(known, wanted)
        unknown = np.flatnonzero(known.take(indices, mode="clip") != wanted)
        if len(unknown):
            raise UsageError(
                f"the text has the character {text[unknown[0]]!r}, which is not among the {len(known)} that were "
                "learned: leave it out"
            )
        return indices.astype(token_type(len(self.symbols)))

    def decode(self, tokens: Tokens) -> str:
        return "".join(self.symbols[token] for token in tokens.tolist())

    def facts(self) -> dict[str, Any]:
        return {"level": self.level, "symbols": "".join(self.symbols)}


class Bytes:
    """The 256 bytes of UTF-8."""

    level = "byte"
    symbols = tuple(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in range(256))

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> Bytes:
        """Nothing to learn."""
        return cls()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, tokens: Tokens) -> str:
        return bytes(tokens.tolist()).decode(errors="replace")

    def facts(self) -> dict[str, Any]:
        return {"level": self.level}


class Words:
    """Words between blanks; the end of a line is a word too, and `<unk>` (0) stands for all that are not known.

    With wikitext-2 these are the 33,278 words of its authors (Merity et al. 2017, table 1).
    """

    level = "word"
    unknown, line_end = "<unk>", "<eos>"

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self._index = {symbol: index for index, symbol in enumerate(self.symbols)}

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> Words:
        """The most frequent words of the first text, the training text; `<unk>` counts as one of `size`."""
        counts = Counter(cls.split(texts[0]))
        del counts[cls.unknown]
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([cls.unknown, *ranked[: None if size is None else size - 1]])

    @classmethod
    def split(cls, text: str) -> list[str]:
        """The words of a text."""
        lines = text.removesuffix("\n").split("\n")
        return [word for line in lines for word in (*line.split(), cls.line_end)]

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return np.array([self._index.get(word, 0) for word in self.split(text)], dtype=token_type(len(self.symbols)))

    def decode(self, tokens: Tokens) -> str:
        words = (self.symbols[token] for token in tokens.tolist())
        return " ".join("\n" if word == self.line_end else word for word in words)

    def facts(self) -> dict[str, Any]:
        return {"level": self.level, "symbols": list(self.symbols)}


class LowercaseWords(Words):
    """Runs of letters and digits in lower case, and each other sign by itself; lines are not told apart."""

    level = "lowercase_word"

    @classmethod
    def split(cls, text: str) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())


class BytePairs:
    """Byte pairs, learned from the training text, over GPT-2's alphabet of bytes: every text has tokens (`tokenizers`).

    Source: Sennrich et al. 2016, algorithm 1; bytes and pre-tokenization as Radford et al. 2019, §2.2.
    """

    level = "bpe"

    def __init__(self, state: str) -> None:
        self._state = state
        self._tokenizer = tokenizers_library().Tokenizer.from_str(state)
        indices = self._tokenizer.get_vocab()
        self.symbols = tuple(sorted(indices, key=indices.__getitem__))

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> BytePairs:
        """Pairs of the first text, the training text, until there are `size` symbols (8,192)."""
        library = tokenizers_library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(vocab_size=size or 8192, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts[0].splitlines(keepends=True), trainer)
        return cls(tokenizer.to_str())

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        encodings = self._tokenizer.encode_batch_fast(text.splitlines(keepends=True))
        tokens = [token for encoding in encodings for token in encoding.ids]
        return np.array(tokens, dtype=token_type(len(self.symbols)))

    def decode(self, tokens: Tokens) -> str:
        text: str = self._tokenizer.decode(tokens.tolist())
        return text

    def facts(self) -> dict[str, Any]:
        return {"level": self.level, "tokenizer": json.loads(self._state)}


LEVELS: dict[str, type[Characters | Bytes | Words | BytePairs]] = {
    kind.level: kind for kind in (Characters, Bytes, Words, LowercaseWords, BytePairs)
}


def learn(level: str, texts: Sequence[str], size: int | None = None) -> Vocabulary:
    """The vocabulary of texts, the training text first.

    Args:
        level: what a token is, a key of LEVELS.
        size: most symbols that it may have; None: as many as there are.

    Raises:
        UsageError: no such level, a size too small, or a text without two different tokens.
    """
    if level not in LEVELS:
        raise UsageError(f"data.level={level} is unknown: use one of {', '.join(LEVELS)}")
    if level == "bpe" and size is not None and size < 256:
        raise UsageError(f"data.vocabulary_size={size} is less than the 256 bytes that byte pairs start from: use more")
    vocabulary = LEVELS[level].learn(texts, size)
    if len(vocabulary.symbols) < 2:
        raise UsageError(
            f"the text has a vocabulary of {len(vocabulary.symbols)} {level}: nothing can be learned, give another text"
        )
    return vocabulary


def recall(facts: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that has these facts."""
    if facts["level"] == Bytes.level:
        return Bytes()
    if facts["level"] == BytePairs.level:
        return BytePairs(json.dumps(facts["tokenizer"]))
    vocabulary: Vocabulary = LEVELS[facts["level"]](facts["symbols"])  # type: ignore[call-arg]  # Bytes is gone above
    return vocabulary


def tokenizers_library() -> Any:
    """The package `tokenizers`.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as fault:
        raise UsageError("data.level=bpe needs the package tokenizers: pip install 'normbench[bpe]'") from fault
    return tokenizers


def token_type(size: int) -> np.dtype[Any]:
    """The smallest unsigned type that tells `size` symbols apart."""
    return np.min_scalar_type(max(size - 1, 0))


def code_points(text: str) -> UInt[np.ndarray, " characters"]:
    """The Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
