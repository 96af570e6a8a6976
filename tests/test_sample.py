"""`normbench sample`: text that a model writes, and what it makes of validation data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import refused
from torch import nn

import normbench
from normbench.cli import main
from normbench.data import digits
from normbench.data.vocabulary import BytePairs, Bytes, Characters, LowercaseWords, Vocabulary, Words
from normbench.errors import UsageError
from normbench.studies.sample import Judged, Wanted, classify, draw_page, generate, prompt_tokens
from normbench.types import Batch

pytest_plugins = ["trained_runs"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["sample", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# ---- text


class Successor(nn.Module):
    """Expects token t + 1 behind token t, and t + 2 with less confidence; it looks at the last `seen` tokens only."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.longest = size, 0
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.longest = max(self.longest, tokens.shape[1])
        one, two = (nn.functional.one_hot((tokens + n) % self.size, self.size) for n in (1, 2))
        return 9.0 * one + 8.0 * two


def test_the_likeliest_token_follows_where_the_temperature_is_0() -> None:
    model = Successor(7)
    tokens = generate(model, torch.tensor([3]), 4, Wanted(tokens=10, temperature=0))
    assert tokens.tolist() == [(3 + n) % 7 for n in range(11)]
    assert model.longest == 4  # the context
    for temperature in (1e-40, 5e-324):
        assert torch.equal(
            generate(model, torch.tensor([3]), 4, Wanted(tokens=10, temperature=temperature, top_k=3)), tokens
        )


def test_top_k_leaves_out_the_others_and_the_seed_repeats() -> None:
    drawn = [
        generate(Successor(50), torch.tensor([0]), 8, Wanted("", 200, 5.0, 2, seed)).tolist() for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    steps = {(after - before) % 50 for before, after in pairwise(drawn[0])}
    assert steps == {1, 2}
    free = generate(Successor(50), torch.tensor([0]), 8, Wanted("", 200, 5.0, None)).tolist()
    assert len({(after - before) % 50 for before, after in pairwise(free)}) > 10


def test_tokens_are_drawn_with_the_probabilities_of_the_softmax() -> None:
    """Of 1 and 2 steps on, the odds are exp((9 - 8) / temperature)."""
    tokens = generate(Successor(50), torch.tensor([0]), 8, Wanted("", 2000, 2.0, 2)).tolist()
    share = sum((after - before) % 50 == 1 for before, after in pairwise(tokens)) / 2000
    assert share == pytest.approx(1 / (1 + np.exp(-0.5)), abs=0.035)  # three standard errors


def test_a_language_model_goes_on_from_a_prompt(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["text"])
    text = printed(capsys, run, "--prompt", "The norm ", "--tokens", "30", "--temperature=1", "--top-k", "20")
    assert text.startswith("The norm ")
    assert text == printed(capsys, run, "--prompt=The norm ", "--tokens=3e1", "--temperature=1", "--top-k=20")
    assert text != printed(
        capsys, run, "--prompt=The norm ", "--tokens=30", "--temperature=1", "--top-k=20", "--seed=1"
    )
    assert printed(capsys, run, "--tokens=3").startswith("\n")
    for which in (["--ema"], ["--which", "best"]):
        assert len(printed(capsys, run, "--tokens=3", "--prompt=12", *which)) >= 3


def test_words_go_on_in_the_line_of_the_prompt() -> None:
    """The end of a line is a word, which an unfinished line does not have."""
    words = Words.learn(["the cat sat\n"])
    for prompt, expected in (
        ("the cat", ["the", "cat"]),
        ("the cat\n", ["the", "cat", "<eos>"]),
        ("the\ncat", ["the", "<eos>", "cat"]),
        ("the\n\n", ["the", "<eos>", "<eos>"]),
        ("", ["<eos>"]),  # a line's start
        (" ", []),
    ):
        assert [words.symbols[token] for token in prompt_tokens(prompt, words.encode)] == expected


@pytest.mark.parametrize(
    "vocabulary",
    [Characters.learn(["the cat\n"]), Bytes(), LowercaseWords.learn(["the cat"]), BytePairs.learn(["the cat"], 260)],
    ids=lambda vocabulary: vocabulary.level,
)
def test_other_prompts_keep_all_their_tokens(vocabulary: Vocabulary) -> None:
    for prompt in ("the cat", "the cat\n", "\n", ""):
        assert prompt_tokens(prompt, vocabulary.encode).tolist() == vocabulary.encode(prompt).tolist()


def test_a_character_without_a_token_is_said() -> None:
    with pytest.raises(UsageError, match="has the character 'x', which is not among the 3 that were learned"):
        Characters("abc").encode("bax")
    assert Characters("abc").encode("cab").tolist() == [2, 0, 1]
    with pytest.raises(UsageError, match="has the character 'é'"):
        Characters("abc").encode("é")


# ---- images


def test_the_page_of_an_image_classifier(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The share of errors is the summary's; the page is named, and is an image."""
    title, path = printed(capsys, str(runs["images"])).splitlines()
    accuracy = json.loads((runs["images"] / "summary.json").read_text())["metrics"]["accuracy/val"]
    wrong = round((1 - accuracy) * 297)
    assert title == f"{runs['images'].name}: {wrong / 297:.2%} errors ({wrong} of 297 validation images)"
    assert path == str(runs["images"] / "samples.png")
    with Image.open(path) as page:
        assert page.format == "PNG"
        few = page.size
    other = Path("other.png")
    printed(capsys, str(runs["images"]), "--count", "3", "--out", str(other))
    with Image.open(other) as page:
        assert page.size[1] < few[1]
    Path(path).unlink()


def test_mistakes_come_first_and_the_surest_of_them() -> None:
    """Against logits by hand: rows 1 and 3 are mistakes, row 3 the surer one."""
    logits = torch.tensor([[2.0, 0], [1.0, 0], [3.0, 0], [0, 4.0]])
    batch = Batch(torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 0]))

    class Fixed(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return logits[inputs[:, 0].long()]

    def batches() -> Iterator[Batch]:
        yield batch.map(lambda tensor: tensor[:3])
        yield batch.map(lambda tensor: tensor[3:])

    examples, wrong, total = classify(Fixed(1, 1), batches(), 4)
    assert (wrong, total) == (2, 4)
    assert [example.index for example in examples] == [3, 1, 0, 2]
    assert [example.predicted for example in examples] == [1, 0, 0, 0]
    assert examples[0].probability == pytest.approx(np.exp(4) / (1 + np.exp(4)))
    assert [example.index for example in classify(Fixed(1, 1), batches(), 1)[0]] == [3]


def test_a_mistake_has_a_red_frame_and_its_pixels_are_there() -> None:
    pixels = np.zeros((3, 4, 4), np.uint8)
    pixels[1] = 200  # green
    right, wrong = (Judged(0, label, 1, 0.9, torch.zeros(1)) for label in (1, 0))
    page = np.asarray(draw_page("title", [wrong, right], [pixels, pixels], ["no", "a very long name of a class"]))
    red = (page == (200, 30, 30)).all(axis=2)
    green = (page == (0, 200, 0)).all(axis=2)
    rows, columns = np.nonzero(green)
    middle = (columns.min() + columns.max()) // 2
    assert green.sum() == 2 * 104 * 104
    assert red[:, :middle].sum() > 4 * 3 * 104
    assert red[:, middle + 1 :].sum() == 0
    assert rows.max() < page.shape[0]


def test_inputs_turn_back_into_pixels() -> None:
    data = digits(batch_size=8, eval_batch_size=8, seed=0, scaling="standard")
    batch = next(data.eval_batches("val"))
    assert torch.equal(data.pixels(batch.inputs), data.splits["val"].images[: len(batch.inputs)])


# ---- texts


def test_the_table_of_a_text_classifier(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    title, heading, *lines = printed(capsys, str(runs["texts"])).splitlines()
    accuracy = json.loads((runs["texts"] / "summary.json").read_text())["metrics"]["accuracy/val"]
    wrong = round((1 - accuracy) * 12)
    assert title == f"{runs['texts'].name}: {wrong / 12:.2%} errors ({wrong} of 12 validation texts)"
    assert heading.split() == ["class", "predicted", "probability", "text"]
    assert [line.split()[0] for line in lines] == ["wrong"] * wrong + ["right"] * (12 - wrong)
    for line in lines:
        judged, label, predicted, _, *text = line.split()
        assert " ".join(text[:3]) == "where is my"
        assert text[3] == label  # the word that decides
        assert (label == predicted) == (judged == "right")
    assert len(printed(capsys, str(runs["texts"]), "--count=2").splitlines()) == 4


def test_on_a_terminal_it_is_a_table(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "─────" in printed(capsys, str(runs["texts"]))


# ---- mistakes


def test_mistakes_are_told_in_a_sentence(
    here: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    copy = Path(shutil.copytree(runs["images"], here / "copy"))
    (copy / "checkpoint.pt").unlink()
    gone = Path(shutil.copytree(runs["texts"], here / "gone"))
    (gone / "config.yaml").write_text((gone / "config.yaml").read_text().replace("/hub\n", "/nowhere\n"))
    text, images = str(runs["text"]), str(runs["images"])
    for words, sentence in (
        ([], "the following arguments are required: RUN: normbench sample --help"),
        (["nowhere"], "nowhere is not a directory: give the directory of a run"),
        (["."], ". holds no run (no config.yaml): give outputs/NAME/RUN"),
        ([str(copy)], "has no checkpoint: none was written yet"),
        ([str(gone)], "no copy of legacy-datasets/banking77 in data.root="),
        ([images, "--ema"], "has no averaged weights: they are kept by a run with trainer.ema"),
        ([images, "--which", "best"], "has no best checkpoint"),
        ([images, "--out", "no/page.png"], "no/page.png cannot be written (No such file or directory): give another"),
        ([images, "--count=3", "--out=."], ". is a folder: give a file with --out, such as samples.png"),
        ([text, "--tokens", "0"], "--tokens=0 is not allowed: use an integer from 1 to 1,000,000"),
        ([text, "--temperature", "hot"], "--temperature=hot is not allowed: use a number from 0 to 100"),
        ([text, "--which", "first"], "--which=first is not allowed: use last or best"),
        ([text, "--device", "gpu"], "device=gpu is unknown: use auto, cpu"),
        ([text, "--token", "3"], "unrecognized arguments: --token 3: normbench sample --help"),
        ([text, "--prompt", "caf\udce9"], "--prompt='caf\\udce9' is not UTF-8: give text in that encoding"),
        ([text, "--seed"], "argument --seed: expected one argument: normbench sample --help"),
    ):
        assert sentence in refused(["sample", *words], capsys)


def test_data_that_have_changed_are_refused(
    here: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(runs["texts"], here / "copy"))
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("level: lowercase_word", "level: character"))
    sentence = refused(["sample", "copy"], capsys)
    assert "the data of copy are not what they were (vocabulary_size was 16, is 25): bring those back" in sentence


def test_data_that_have_moved_are_found(
    here: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(runs["texts"], here / "copy"))
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("/hub\n", "/nowhere\n"))
    monkeypatch.setenv("NORMBENCH_DATA", str(runs["texts"].parents[2] / "hub"))
    assert "12 validation texts" in printed(capsys, "copy")


def test_a_loaded_model_is_what_is_sampled(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = normbench.load(runs["text"])
    tokens = generate(model, torch.tensor(list(b"A norm")), 16, Wanted(tokens=5, temperature=0))
    text = printed(capsys, str(runs["text"]), "--prompt=A norm", "--tokens=5", "--temperature=0", "--device=cpu")
    assert text == bytes(tokens.tolist()).decode(errors="replace") + "\n"
