"""Tokenizers of files: a text has the tokens that the library `tokenizers` gives it as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from normbench.data import own_texts, pydocs, text_file
from normbench.data.vocabulary import LONGEST, FromFile, long_pieces, recall
from normbench.errors import UsageError

tokenizers = pytest.importorskip("tokenizers")

TEXT = "A norm, a placement;\n\n  and indented lines: naïve café 🙂.\n" * 4


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte pairs as GPT-2 has them, with a mark before and after a text that stands by itself."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["[A]", "[B]"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[A] $0 [B]", special_tokens=[("[A]", 0), ("[B]", 1)]
    )
    tokenizer.enable_truncation(8)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_running_text_has_the_tokens_of_the_library(file: Path) -> None:
    reference = tokenizers.Tokenizer.from_file(str(file))
    reference.no_truncation()
    vocabulary = FromFile.read(str(file))
    text = TEXT * 400
    assert len(list(long_pieces(text))) == len(text) // LONGEST + 1 and "".join(long_pieces(text)) == text
    assert vocabulary.encode(text).tolist() == reference.encode(text, add_special_tokens=False).ids
    assert vocabulary.decode(vocabulary.encode(TEXT)) == TEXT
    assert vocabulary.encode_example("a norm").tolist() == reference.encode("a norm").ids
    again = recall(json.loads(json.dumps(vocabulary.facts)))
    assert again.digest == vocabulary.digest and again.symbols == vocabulary.symbols
    assert vocabulary.symbols[0] == "[A]" and len(vocabulary.symbols) == reference.get_vocab_size()


def test_a_model_may_have_more_symbols_than_its_tokenizer(file: Path) -> None:
    assert len(FromFile.read(str(file.parent), 384).symbols) == 384
    with pytest.raises(UsageError, match=r"data.vocabulary_size=10 is less than"):
        FromFile.read(str(file), 10)


def test_data_are_read_by_it(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    vocabulary = FromFile.read(str(file))
    how = {"level": "hf", "tokenizer": str(file), "seed": 0, "batch_size": 2, "eval_batch_size": 2, "context": 16}
    own = tmp_path / "own.txt"
    own.write_text(TEXT * 20)
    data = text_file(path=str(own), **how)
    expected = vocabulary.encode((TEXT * 20).encode()[: -len((TEXT * 20).encode()) // 10].decode(errors="ignore"))
    assert data.examples["train"][:100].tolist() == expected[:100].tolist()
    assert data.task.vocabulary_size == len(vocabulary.symbols) and data.describe()["level"] == "hf"
    docs = pydocs(vocabulary_size=512, **how)
    assert docs.task.vocabulary_size == 512
    assert "assert" in docs.decode(docs.examples["train"][:4000])
    table = tmp_path / "texts.csv"
    table.write_text("text,label\n" + "".join(f"a norm {n},{n % 2}\n" for n in range(40)))
    texts = own_texts(path=str(table), **how)
    first = texts.train_batch(0).inputs[0].numpy()
    assert first[0] == 0 and 1 in first and np.isin(first, range(len(vocabulary.symbols))).all()


def test_texts_that_a_tokenizer_makes_equal_are_equal_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An uncased one sees no capitals, and one of words no word that it does not know."""
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    words = {"[UNK]": 0, "norm": 1, **{str(n): n + 2 for n in range(40)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    how = {"level": "hf", "tokenizer": str(tmp_path), "seed": 0, "batch_size": 2, "eval_batch_size": 2, "context": 16}
    forms = ("norm {}", "Norm {}", "NORM  {}")
    rows = [f"{form.format(n)},{n % 2}\n" for n in range(40) for form in forms]
    (tmp_path / "all.csv").write_text("text,label\n" + "".join(rows))
    data = own_texts(path=str(tmp_path / "all.csv"), **how)
    tokens = {split: {tuple(text.tolist()) for text in some} for split, some in data.examples.items()}
    assert not tokens["train"] & tokens["val"]
    assert data.describe()["repeated_texts"] == 80
    (tmp_path / "divided").mkdir()
    for split, place in (("train", 0), ("test", 1)):
        rows = [f"{forms[place].format(n)},{n % 2}\n" for n in range(20)]
        rows += [f"norm {split}{n} {n},{n % 2}\n" for n in range(4)]
        (tmp_path / "divided" / f"{split}.csv").write_text("text,label\n" + "".join(rows))
    assert own_texts(path=str(tmp_path / "divided"), **how).describe()["val_texts_seen_in_training"] == 24


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "is not there"), (b"{", "cannot be read"), (b"[]", "holds no tokenizer"), (b"{}", "holds no tokenizer")],
)
def test_what_is_no_tokenizer_is_refused(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        pydocs(level="hf", tokenizer=str(path), seed=0, batch_size=2, eval_batch_size=2, context=16)


def test_level_and_file_go_together(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    how = {"seed": 0, "batch_size": 2, "eval_batch_size": 2, "context": 16}
    with pytest.raises(UsageError, match=r"set data.tokenizer=PATH"):
        pydocs(level="hf", **how)
    with pytest.raises(UsageError, match=r"set data.level=hf"):
        pydocs(tokenizer=str(file), **how)
