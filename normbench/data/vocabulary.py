"""From text to token ids and back: characters, bytes, words, byte pairs, and the tokenizer of a file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice, repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Integer, UInt

from normbench.data.cache import file_digest
from normbench.errors import UsageError

# Characters of which byte pairs are made at a time, and in one piece: the library takes hundreds of bytes for each.
TOGETHER = 2**20
LONGEST = 2**16
BEFORE_A_BLANK = re.compile(r"\S(?= \S)")
BEFORE_A_LINE = re.compile(r"[^\n](?=\n)")

# Tokens and words that C code takes at a time: a signal is heard between two such calls.
AT_A_TIME = 2**20

Tokens = Integer[np.ndarray, " tokens"]


class Vocabulary:
    """The symbols that tokens stand for: a token is the index of one. Here they are Unicode characters."""

    level: ClassVar[str] = "character"
    total: ClassVar[bool] = False  # whether there is a token for whatever a text holds

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self.index = {symbol: index for index, symbol in enumerate(self.symbols)}
        # What JSON can hold, and `recall` makes the vocabulary of.
        self.facts: dict[str, Any] = {"level": self.level, "symbols": list(self.symbols)}

    @property
    def digest(self) -> str:
        """Return eight digits that tell it from others."""
        facts = json.dumps(self.facts)
        return hashlib.sha256(facts.encode()).hexdigest()[:8]

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> Vocabulary:
        """Return the vocabulary of texts, the training text first; of at most `size` symbols where that makes sense.

        Here: the sorted set of all characters; other characters have no token.
        """
        characters = set[str]().union(*texts)
        return cls(sorted(characters))

    @classmethod
    def identity(cls, text: str) -> str:
        """Return what is the same of all texts that are the same tokens, whatever is learned."""
        return text

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens of a text, in the smallest unsigned type that holds them.

        Raises:
            UsageError: a character has no token.
        """
        try:
            return self.array(map(self.index.__getitem__, text))
        except KeyError as unknown:
            raise UsageError(f"the text has the character {unknown}, which was not learned: leave it out") from unknown

    def encode_example(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens of a text that stands by itself, as those that are classified do."""
        return self.encode(text)

    def array(self, tokens: Iterable[int]) -> UInt[np.ndarray, " tokens"]:
        """Return tokens in the smallest unsigned type that tells the symbols apart."""
        largest = max(len(self.symbols) - 1, 0)
        kind = np.min_scalar_type(largest)
        left = iter(tokens)
        parts = [np.fromiter(islice(left, AT_A_TIME), dtype=kind)]
        while len(parts[-1]) == AT_A_TIME:
            parts.append(np.fromiter(islice(left, AT_A_TIME), dtype=kind))
        return np.concatenate(parts)

    def decode(self, tokens: Tokens) -> str:
        """Return the text of the tokens."""
        return "".join(self.symbols[token] for token in tokens.tolist())


class Bytes(Vocabulary):
    """The 256 bytes of UTF-8, whatever the text."""

    level = "byte"
    total = True

    def __init__(self, symbols: Iterable[str] | None = None) -> None:
        super().__init__(map(chr, range(256)))

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, tokens: Tokens) -> str:
        return bytes(tokens.tolist()).decode(errors="replace")


class Words(Vocabulary):
    """Words between blanks; the end of a line is a word too, and `<unk>` (0) stands for all unknown words.

    The vocabulary has the most frequent words of the training text; `<unk>` counts as one of `size`. With wikitext-2
    these are the 33,278 words of its authors (Merity et al. 2017, table 1).
    """

    level = "word"
    total = True
    unknown = "<unk>"
    line_end = "<eos>"

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> Words:
        counts = Counter[str]()
        words = iter(cls.split(texts[0]))
        while some := list(islice(words, AT_A_TIME)):
            counts.update(some)
        del counts[cls.unknown]
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([cls.unknown, *by_frequency][:size])

    @classmethod
    def identity(cls, text: str) -> str:
        return " ".join(cls.split(text))

    @classmethod
    def split(cls, text: str) -> list[str]:
        """Return the words of a text."""
        words = []
        for line in text.removesuffix("\n").split("\n"):
            words += line.split()
            words.append(cls.line_end)
        return words

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        numbers = map(self.index.get, self.split(text), repeat(0))  # faster than a loop over millions of words
        return self.array(numbers)

    def decode(self, tokens: Tokens) -> str:
        words = []
        for token in tokens.tolist():
            word = self.symbols[token]
            words.append("\n" if word == self.line_end else word)
        return " ".join(words)


class LowercaseWords(Words):
    """Runs of letters and digits in lower case, and each other sign by itself; lines are not told apart."""

    level = "lowercase_word"

    @classmethod
    def split(cls, text: str) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())


class BytePairs(Vocabulary):
    """Byte pairs over GPT-2's alphabet of bytes, so that every text has tokens; 8,192 where no size is given.

    They are learned from the training text. Source: Sennrich et al. 2016, algorithm 1; bytes and pre-tokenization as
    Radford et al. 2019, §2.2.
    """

    level = "bpe"
    total = True

    def __init__(self, state: Mapping[str, Any]) -> None:
        check_tokenizers()
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(json.dumps(state))
        indices = self.tokenizer.get_vocab()
        super().__init__(sorted(indices, key=indices.__getitem__))
        self.facts = {"level": self.level, "tokenizer": state}

    @classmethod
    def learn(cls, texts: Sequence[str], size: int | None = None) -> BytePairs:
        check_tokenizers()
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = byte_level
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size or 8192, initial_alphabet=byte_level.alphabet(), show_progress=False
        )
        tokenizer.train_from_iterator(pieces(texts[0]), trainer)
        return cls(json.loads(tokenizer.to_str()))

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return self.array(self.token_ids(text))

    def token_ids(self, text: str) -> Iterator[int]:
        """Yield the tokens of a text, some TOGETHER characters at a time."""
        for lines in batches(pieces(text)):
            for encoding in self.tokenizer.encode_batch_fast(lines):
                yield from encoding.ids

    def decode(self, tokens: Tokens) -> str:
        return str(self.tokenizer.decode(tokens.tolist()))


class FromFile(BytePairs):
    """The tokens of a `tokenizer.json`, which the tokenizers of Hugging Face write: nothing is learned.

    A running text has no special tokens; it is cut before some line ends, LONGEST characters from each other or more,
    so that a tokenizer that puts something in front of a text does so there too. A text by itself has those that the
    file says, such as BERT's `[CLS]` and `[SEP]`.

    Args:
        state: the content of the file. Under `vocabulary_size` it may say how many symbols there are, where those of a
            model are more than its tokenizer's.

    Raises:
        UsageError: it is no tokenizer, or has more symbols than are wanted.
    """

    level = "hf"

    def __init__(self, state: Mapping[str, Any]) -> None:
        wanted = state.get("vocabulary_size")
        try:
            own_state = {key: value for key, value in state.items() if key != "vocabulary_size"}
            super().__init__(own_state)
        except UsageError:
            raise
        except Exception as error:  # of the library, whatever is wrong with the file
            message = " ".join(str(error).split())
            raise UsageError(f"data.tokenizer holds no tokenizer ({message:.120}): give a tokenizer.json") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        indices = self.tokenizer.get_vocab()
        size = 1 + max(indices.values(), default=-1)
        if wanted and wanted < size:
            what = f"data.vocabulary_size={wanted:,} is less than the {size:,} symbols of data.tokenizer"
            raise UsageError(f"{what}: leave it out, or give as many as the model has")
        symbols = [""] * (wanted or size)  # some numbers may be without a symbol
        for symbol, index in indices.items():
            symbols[index] = symbol
        self.symbols = tuple(symbols)
        self.facts = {"level": self.level, "tokenizer": dict(state)}

    @classmethod
    def read(cls, path: str, size: int | None = None) -> FromFile:
        """Read a tokenizer.json, or the one of a folder. size: of the vocabulary, where it is more than the file's.

        Raises:
            UsageError: it is none.
        """
        try:
            state = json.loads(tokenizer_file(path).read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"data.tokenizer={path} cannot be read ({error}): give a tokenizer.json") from error
        if not isinstance(state, dict):
            raise UsageError(f"data.tokenizer={path} holds no tokenizer: give a tokenizer.json")
        return cls(state | {"vocabulary_size": size} if size else state)

    def token_ids(self, text: str) -> Iterator[int]:
        for some in batches(long_pieces(text)):
            for encoding in self.tokenizer.encode_batch_fast(some, add_special_tokens=False):
                yield from encoding.ids

    def encode_example(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return self.array(self.tokenizer.encode(text).ids)


def tokenizer_file(path: str) -> Path:
    """Return the file that a setting names, in a folder the one of the usual name."""
    place = Path(os.path.expanduser(path))
    return place / "tokenizer.json" if place.is_dir() else place


def long_pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of LONGEST characters and more, each of which ends before the end of a line."""
    start = 0
    while len(text) > start + LONGEST:
        boundary = BEFORE_A_LINE.search(text, start + LONGEST)
        if not boundary:
            break
        yield text[start : boundary.end()]
        start = boundary.end()
    yield text[start:]


def pieces(text: str) -> Iterator[str]:
    """Yield the lines of a text, and long ones in parts; these end before a blank, as byte pairs do anyway."""
    for line in text.splitlines(keepends=True):
        start = 0
        while len(line) > start + LONGEST:
            boundary = BEFORE_A_BLANK.search(line, start + LONGEST)
            if not boundary:
                break
            yield line[start : boundary.end()]
            start = boundary.end()
        yield line[start:]


def batches(parts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the parts of a text in lists of some TOGETHER characters."""
    some: list[str] = []
    size = 0
    for piece in parts:
        some.append(piece)
        size += len(piece)
        if size >= TOGETHER:
            yield some
            some = []
            size = 0
    yield some


def check_tokenizers() -> None:
    """Refuse byte pairs if the package tokenizers is not installed."""
    if find_spec("tokenizers") is None:
        raise UsageError("byte pairs need the package tokenizers: pip install 'normbench[bpe]'")


LEVELS: dict[str, Any] = {kind.level: kind for kind in (Vocabulary, Bytes, Words, LowercaseWords, BytePairs, FromFile)}


def learn(level: str, texts: Sequence[str], size: int | None = None, tokenizer: str | None = None) -> Vocabulary:
    """Return a vocabulary: learned from texts, the training text first, or that of a file.

    Args:
        level, size, tokenizer: the settings `level`, `vocabulary_size` and `tokenizer` of data.

    Raises:
        UsageError: the file holds none.
    """
    if tokenizer:
        return FromFile.read(tokenizer, size)
    learned: Vocabulary = LEVELS[level].learn(texts, size)
    return learned


def identity_of(level: str, tokenizer: str | None) -> Callable[[str], bytes]:
    """Return what gives the same bytes for all texts that are the same tokens, whatever is learned.

    Args:
        level, tokenizer: the settings of these names.
    """
    if tokenizer:  # nothing is learned, so that its tokens are known, which may be the same with and without capitals
        tokens_of_file = FromFile.read(tokenizer)
        return lambda text: tokens_of_file.encode_example(text).tobytes()
    kind = LEVELS[level]
    return lambda text: kind.identity(text).encode()


def key_of_file(level: str, tokenizer: str | None) -> list[str]:
    """Return what tells the content of a tokenizer's file from others; nothing where there is none.

    Raises:
        UsageError: there is a file without its level, or the level without a file.
    """
    if level != FromFile.level and tokenizer:
        raise UsageError(f"data.tokenizer={tokenizer} is not for data.level={level}: set data.level={FromFile.level}")
    if level != FromFile.level:
        return []
    if not tokenizer:
        raise UsageError(f"data.level={level} takes the tokens of a file: set data.tokenizer=PATH, of a tokenizer.json")
    file = tokenizer_file(tokenizer)
    if not file.is_file():
        raise UsageError(f"data.tokenizer={tokenizer} is not there: give a tokenizer.json, or the folder of one")
    return [file_digest(file)]


def recall(facts: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary that has these facts; bytes, where they say nothing."""
    kind = LEVELS[facts.get("level", Bytes.level)]
    vocabulary: Vocabulary = kind(facts.get("tokenizer") or facts.get("symbols"))
    return vocabulary
