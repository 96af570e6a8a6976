"""Text: words and byte pairs, labelled texts and their padding, and files of a person's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from data_helpers import LONG, TEXT, plays, write_parquet, write_text
from support import WHOLE
from test_runs import summary_of, train

from normbench.data import hub_texts, text_file, vocabulary
from normbench.data.text import Text
from normbench.data.vocabulary import LEVELS, BytePairs, LowercaseWords, Vocabulary, Words, recall
from normbench.errors import RunFailure, UsageError

LINES = ["the cat sat .\n", "", "a dog <unk> the cat"]
QUESTIONS = ["Where is my card?", "Is my CARD lost?", "", "Why a fee?", "What is this fee, please?"]


# ---- vocabularies


def test_words_are_those_between_blanks_and_lines_end_in_one() -> None:
    words = Words.learn(["b a a\nc <unk>\n"])
    assert words.symbols == ("<unk>", "<eos>", "a", "b", "c")
    assert words.encode("a new b\n\nc").tolist() == [2, 0, 3, 1, 1, 4, 1]
    assert words.decode(words.encode("a b")) == "a b \n"
    assert Words.learn(["b a a b b c\n"], 3).symbols == ("<unk>", "b", "a"), "the most frequent"


@pytest.mark.parametrize("at_a_time", [1, 4, 5])
def test_words_do_not_depend_on_how_many_are_taken_at_a_time(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal is heard between them."""
    text = "b a a\nc <unk> d d d"
    whole = Words.learn([text])
    monkeypatch.setattr(vocabulary, "AT_A_TIME", at_a_time)
    assert Words.learn([text]).symbols == whole.symbols
    tokens = whole.encode(text)
    assert tokens.tolist() == [4, 3, 3, 2, 5, 0, 1, 1, 1, 2] and tokens.dtype == np.uint8
    assert whole.encode("").tolist() == [2]


def test_lowercase_words_are_runs_of_letters_and_other_signs() -> None:
    assert LowercaseWords.split("Don't pay £5, ÜBER!") == ["don", "'", "t", "pay", "£", "5", ",", "über", "!"]


def test_byte_pairs_give_back_every_text() -> None:
    pairs = BytePairs.learn([LONG * 5], 300)
    assert len(pairs.symbols) == 300
    for text in (LONG, "never seen: 日本 \x00 ’ß\n\n  two blanks\ttab\n"):
        assert pairs.decode(pairs.encode(text)) == text
    assert len(pairs.encode(LONG)) < len(LONG.encode()) / 2
    assert pairs.facts == BytePairs.learn([LONG * 5], 300).facts


@pytest.mark.parametrize("text", ["banana ’tis", "".join(map(chr, range(32, 400)))], ids=["few", "more than 256"])
def test_characters_decode_to_what_they_encode(text: str) -> None:
    vocabulary = Vocabulary.learn([text])
    tokens = vocabulary.encode(text)
    assert tokens.tolist() == [sorted(set(text)).index(character) for character in text]
    assert tokens.dtype == (np.uint8 if len(set(text)) <= 256 else np.uint16)
    assert vocabulary.decode(tokens) == text


@pytest.mark.parametrize("level", LEVELS)
def test_a_vocabulary_comes_back_from_its_facts(level: str) -> None:
    vocabulary = LEVELS[level].learn([LONG], 280 if level == "bpe" else None)
    again = recall(json.loads(json.dumps(vocabulary.facts)))
    assert again.symbols == vocabulary.symbols
    assert again.encode(LONG).tolist() == vocabulary.encode(LONG).tolist()


# ---- language models by words


def test_text_by_lines_and_words_with_a_test_split(tmp_path: Path) -> None:
    root = write_text(tmp_path, train=LINES * 10, validation=LINES * 5, test=["the bird sat"] * 9)
    data = plays(root, level="word", lines=True, val_splits=("validation",), test_splits=("test",))
    assert data.has_test
    assert {split: len(tokens) for split, tokens in data.examples.items()} == {"train": 120, "val": 60, "test": 36}
    assert data.decode(data.examples["test"][:4]) == "the <unk> sat \n"
    found = data.describe()
    assert (found["level"], found["vocabulary_size"], found["test_tokens"]) == ("word", 8, 36)
    targets = torch.cat([batch.targets.flatten() for batch in data.eval_batches("test")])
    assert targets.tolist() == data.examples["test"][1:].tolist()


@pytest.mark.parametrize("holdout", [0.5, 55])
def test_no_words_are_learned_from_held_out_tokens(tmp_path: Path, holdout: float) -> None:
    """Lines of ten words, each of which comes once: of the 110 tokens the last 55 are held out."""
    lines = [" ".join(f"w{10 * line + place}" for place in range(10)) for line in range(10)]
    root = write_text(tmp_path, train=lines, validation=LINES * 5, test=LINES)
    data = plays(root, level="word", lines=True, holdout=holdout)
    known = {f"w{number}" for number in range(50)}  # and five line ends
    assert {*known, "<unk>", "<eos>"} >= set(data.vocabulary.symbols) >= {f"w{number}" for number in range(47)}
    assert [len(data.examples[split]) for split in ("train", "val")] == [55, 55]
    assert set(data.decode(data.examples["val"]).split()) == {"<unk>"}


def test_no_byte_pairs_are_learned_from_held_out_tokens(tmp_path: Path) -> None:
    """What is rare takes more tokens, so that the held-out share of the tokens is a smaller share of the text."""
    rare = "qzqz " * 60 + "\n"
    root = write_text(tmp_path, train=[LONG * 5, rare], validation=[LONG], test=[LONG])
    for holdout, found in ((0.0, True), (0.2, False)):
        data = plays(root, level="bpe", vocabulary_size=300, holdout=holdout)
        symbols = data.vocabulary.symbols
        assert len(symbols) == 300 and any("qz" in symbol for symbol in symbols) == found
    assert "qzqz" in data.decode(data.examples["val"])


@pytest.mark.parametrize(("together", "longest", "least"), [(10**6, 10**6, 1), (1, 10**6, 4), (50, 20, 9), (1, 1, 99)])
def test_byte_pairs_do_not_depend_on_how_much_is_encoded_at_a_time(
    monkeypatch: pytest.MonkeyPatch, together: int, longest: int, least: int
) -> None:
    text = f"{LONG}\n  two  blanks, a\ttab \n{LONG}  don't \u00a0 1 2 \n\nno blank at the end"
    whole = BytePairs.learn([text], 300)
    tokens = whole.encode(text)
    monkeypatch.setattr(vocabulary, "TOGETHER", together)
    monkeypatch.setattr(vocabulary, "LONGEST", longest)
    found = [*vocabulary.batches(text)]
    assert "".join(chain.from_iterable(found)) == text and len(found) >= least
    again = BytePairs.learn([text], 300)
    assert again.facts == whole.facts and np.array_equal(again.encode(text), tokens)


# ---- labelled texts


def write_questions(root: Path, texts: list[str] = QUESTIONS, labels: Any = (0, 0, 1, 1, 1), times: int = 4) -> Path:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["card", "fee"])}
    for split, n in (("train", times), ("test", 1)):
        write_parquet(root / "me/bank", {"text": texts * n, "label": [*labels] * n}, features, split)
    return root


def questions(root: Path, **options: Any) -> Any:
    options = {"context": 16, "batch_size": 4, "eval_batch_size": 4, "seed": 0} | options
    return hub_texts(name="bank", hub_id="me/bank", root=str(root), **options)


def test_batches_are_padded_to_their_longest_text(tmp_path: Path) -> None:
    data = questions(write_questions(tmp_path))
    seen = []
    for batch in data.eval_batches("val"):
        assert batch.mask.dtype == torch.bool and batch.inputs.shape == batch.mask.shape
        assert batch.mask.sum(1).max() == batch.inputs.shape[1]
        assert (batch.inputs[~batch.mask] == 0).all()
        seen += [data.decode(row[mask]) for row, mask in zip(batch.inputs, batch.mask, strict=True)]
    cut = questions(tmp_path, context=3)
    assert max(batch.inputs.shape[1] for batch in cut.eval_batches("val")) == 3
    assert {key: cut.describe()[key] for key in ("cut", "empty")} == {"cut": 20, "empty": 5}
    assert seen == ["where is my card ?", "is my card lost ?", "<unk>", "why a fee ?", "what is this fee , please ?"]


def test_training_texts_are_cut_and_padded_as_asked_for(tmp_path: Path) -> None:
    root = write_questions(tmp_path)
    plain, changed = questions(root), questions(root, train_length=3, pad_to=7)
    for step in range(3):
        one, other = plain.train_batch(step), changed.train_batch(step)
        assert other.inputs.shape[1] == 7 and other.mask.sum(1).tolist() == one.mask.sum(1).clamp_max(3).tolist()
        assert torch.equal(other.inputs[:, :3][other.mask[:, :3]], one.inputs[:, :3][one.mask[:, :3]])
    for one, other in zip(plain.eval_batches("val"), changed.eval_batches("val"), strict=True):
        assert torch.equal(one.inputs, other.inputs)
    assert max(questions(root, pad_to=2).train_batch(step).inputs.shape[1] for step in range(5)) > 2
    with pytest.raises(UsageError, match=r"data\.pad_to=17 is more than model\.context=16"):
        questions(root, pad_to=17)


def test_a_share_of_labelled_texts_keeps_their_labels(tmp_path: Path) -> None:
    texts = [f"question {number}" for number in range(10)]
    data = questions(write_questions(tmp_path, texts, [0, 1] * 5, times=1), train_share=0.4)
    found = {}
    for batch in data.eval_batches("train"):
        for row, label in zip(batch.inputs, batch.targets.tolist(), strict=True):
            found[data.decode(row)] = label
    assert len(found) == data.describe()["train_texts"] == 4
    assert all(texts.index(text) % 2 == label for text, label in found.items())


def test_no_words_are_learned_from_held_out_texts(tmp_path: Path) -> None:
    texts = [f"question {number}" for number in range(10)]
    data = questions(write_questions(tmp_path, texts, [0, 1] * 5, times=1), holdout=4)
    trained, held = ([row for batch in data.eval_batches(split) for row in batch.inputs] for split in ("train", "val"))
    known = {data.decode(row) for row in trained}
    assert len(known) == 6 and known <= set(texts)
    assert [data.decode(row) for row in held] == ["question <unk>"] * 4
    assert len(data.vocabulary.symbols) == 2 + 6


@pytest.mark.slow
@pytest.mark.data
def test_banking77_from_scratch(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """The README's command with half its depth and width at a higher rate, a fifth of one of its ten epochs."""
    words = ["data=banking77", "model.depth=1", "model.width=64", "model.dropout=0.3", "optim.lr=1e-2"]
    words += ["trainer.epochs=0.2", "trainer.eval_every=1000", "threads=1", "quiet=true"]
    found = summary_of(train(tmp_path, *words))["metrics"]
    tell(f"banking77 after a fifth of an epoch: {100 * found['accuracy/val']:.1f} % of the test questions")
    assert found["accuracy/val"] >= 0.2  # by chance 1.3 %


# ---- a person's own file


def own(path: Path, **options: Any) -> Text:
    return text_file(path=str(path), **TEXT | options)


def test_an_own_file_is_read_by_bytes(tmp_path: Path) -> None:
    path, content = tmp_path / "my.txt", LONG.encode()
    path.write_bytes(content)
    data = own(path)
    cut = len(content) - len(content) // 10
    assert (data.describe()["train_tokens"], data.describe()["val_tokens"]) == (cut, len(content) // 10)
    windows = [bytes(row.tolist()) for batch in data.eval_batches("val") for row in batch.inputs]
    assert b"".join(windows) == content[cut:-1]
    assert all(bytes(row.tolist()) in content for row in data.train_batch(0).inputs)
    assert own(path, holdout=0.5).describe()["train_tokens"] == cut - round(cut / 2)
    path.write_bytes(content + b"!")
    assert own(path).fingerprint != data.fingerprint


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x7fELF\xff\xfe" * 50, "cannot be read .*: give a text file in UTF-8"),
        (b"a few bytes, not enough", "data.context=8 is too long for the 2 tokens of text .val.: use a shorter"),
        (b"short of a batch. " * 5, "data.batch_size=30 is more than the 9 training windows"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "my.txt").write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        own(tmp_path / "my.txt", batch_size=30)


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory.*\): give a text file in UTF-8"):
        own(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text(LONG.swapcase(), encoding="utf-8"),  # of the same length
        lambda path: path.write_text(LONG + "!", encoding="utf-8"),
        Path.unlink,
    ],
)
def test_a_file_that_changes_under_a_run_ends_it(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "my.txt"
    path.write_text(LONG, encoding="utf-8")
    os.utime(path, ns=(1, 1))
    data = own(path)
    data.train_batch(0)
    change(path)
    for read in (lambda: data.train_batch(1), lambda: next(data.eval_batches("val"))):
        with pytest.raises(RunFailure, match=r"my.txt changed while the run read it: put it back"):
            read()


@pytest.mark.slow
def test_a_large_text_trains_with_less_than_275_mib_of_memory_beside_torch_s_own(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """A text of more bytes than that; of 1 GB, which takes seconds to write, with the whole matrix."""
    size = 1_000_000_000 if WHOLE else 300_000_000
    path, block = tmp_path / "long.txt", (LONG * 4000).encode()
    with open(path, "wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
    words = ["data=text", f"data.path={path}", "model.depth=1", "model.width=16", "trainer.steps=20", "threads=1"]
    words += ["trainer.eval_batches=5", "quiet=true", f"outputs={tmp_path}"]
    code = """
        import sys
        from pathlib import Path
        import torch
        from normbench.cli import main

        def peak():
            # This program's own: a process takes getrusage's maximum over from the one that started it.
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

        libraries = peak()  # a build with CUDA takes 300 MiB more than one without
        status = main(["train", *sys.argv[1:]])
        print(status, libraries, peak())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-3:]
    status, libraries, most = map(int, printed)
    grown = (most - libraries) / 1024
    tell(f"{path.stat().st_size:,} bytes of text, {grown:,.0f} MiB of memory at most beside torch's own")
    assert status == 0 and grown < 275
