"""`normbench sample`: text that a model writes, and what it makes of validation data."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import seal
from PIL import Image
from support import refused
from torch import nn

from normbench.cli import main
from normbench.data.vocabulary import Bytes, Words
from normbench.studies.sample import Judged, Wanted, classify, draw_page, generate, prompt_tokens
from normbench.types import Batch

pytest_plugins = ["trained_runs"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["sample", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def errors_line(run: Path, count: int, unit: str) -> tuple[str, int]:
    """The line on a classifier's errors, as its summary has it, and their number."""
    accuracy = json.loads((run / "summary.json").read_text())["metrics"]["accuracy/val"]
    wrong = round((1 - accuracy) * count)
    return f"{run.name}: {100 * wrong / count:.2f} % errors ({wrong} of {count} validation {unit})", wrong


# ---- text


class Successor(nn.Module):
    """Expects token t + 1 behind token t, and t + 2 with less confidence."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.longest = size, 0
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.longest = max(self.longest, tokens.shape[1])
        one, two = (nn.functional.one_hot((tokens + n) % self.size, self.size) for n in (1, 2))
        return 9.0 * one + 8.0 * two


def drawn_steps(wanted: Wanted) -> list[int]:
    tokens = generate(Successor(50), torch.tensor([0]), 8, wanted).tolist()
    return [(after - before) % 50 for before, after in pairwise(tokens)]


def test_the_likeliest_token_follows_where_the_temperature_is_0() -> None:
    model = Successor(7)
    for wanted in (Wanted(tokens=10, temperature=0), Wanted(tokens=10, temperature=5e-324, top_k=3)):
        assert generate(model, torch.tensor([3]), 4, wanted).tolist() == [(3 + n) % 7 for n in range(11)]
    assert model.longest == 4  # the context


def test_tokens_are_drawn_as_their_seed_top_k_and_the_softmax_say() -> None:
    """Of 1 and 2 steps on, the odds are exp((9 - 8) / temperature)."""
    first, again, other = (drawn_steps(Wanted(tokens=200, temperature=5.0, top_k=2, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other and set(first) == {1, 2}
    share = drawn_steps(Wanted(tokens=2000, temperature=2.0, top_k=2)).count(1) / 2000
    assert share == pytest.approx(1 / (1 + np.exp(-0.5)), abs=0.035)  # three standard errors


def test_a_language_model_goes_on_from_a_prompt(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["text"])
    asked = [run, "--prompt=The norm ", "--temperature=1", "--top-k=20"]
    text = printed(capsys, *asked, "--tokens=30")
    assert text.startswith("The norm ")
    assert text == printed(capsys, *asked, "--tokens=30") != printed(capsys, *asked, "--tokens=30", "--seed=1")
    assert printed(capsys, run, "--tokens=3", "--ema").startswith("\n")


def test_words_go_on_in_the_line_of_the_prompt() -> None:
    """The end of a line is a word, which an unfinished line does not have; other vocabularies keep all tokens."""
    words = Words.learn(["the cat sat\n"])
    for prompt, expected in (("the cat", "the cat"), ("the cat\n", "the cat <eos>"), ("", "<eos>"), (" ", "")):
        assert " ".join(words.symbols[token] for token in prompt_tokens(prompt, words.encode)) == expected
    assert prompt_tokens("the cat", Bytes().encode).tolist() == Bytes().encode("the cat").tolist()


# ---- classifiers


def test_the_page_of_an_image_classifier(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    title, path = printed(capsys, str(runs["images"]), "--count=4").splitlines()
    expected, wrong = errors_line(runs["images"], 297, "images")
    assert title == expected
    assert path == str(runs["images"] / "samples.png")
    with Image.open(path) as page:
        red = (np.asarray(page.convert("RGB")) == (255, 0, 0)).all(2)
    assert red.any() == (wrong > 0)  # a mistake has a red frame
    Path(path).unlink()


def test_a_page_keeps_the_shape_of_images_and_whole_names() -> None:
    """Also names with dollar signs, which are no mathematics."""
    names = ["a_long_name_that_ends_in_one", "a_long_name_that_ends_in_two", "$x_$ and $"]
    examples = [Judged(label, label, -0.5, torch.zeros(1)) for label in range(3)]
    page = draw_page("run_$x_$: 0 errors", examples, [np.zeros((1, 20, 60), np.uint8)] * 3, names)
    page.savefig(io.BytesIO(), format="png")
    (axes,) = page.axes
    assert [text.get_text().replace("\n", "").partition("(")[0].strip() for text in axes.texts] == names
    assert [image.get_extent()[1] - image.get_extent()[0] for image in axes.images] == pytest.approx([1, 1, 1])
    assert [image.get_extent()[2] - image.get_extent()[3] for image in axes.images] == pytest.approx([1 / 3] * 3)


def test_the_table_of_a_text_classifier(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    title, heading, *lines = printed(capsys, str(runs["texts"])).splitlines()
    expected, wrong = errors_line(runs["texts"], 12, "texts")
    assert (title, heading.split()) == (expected, ["class", "predicted", "probability", "text"])
    assert [line.split()[0] for line in lines] == ["wrong"] * wrong + ["right"] * (12 - wrong)
    for line in lines:
        judged, label, predicted, _, _, *text = line.split()
        assert text[:4] == ["where", "is", "my", label]  # the word that decides
        assert (label == predicted) == (judged == "right")
    assert len(printed(capsys, str(runs["texts"]), "--count=2").splitlines()) == 4


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
    assert [(int(example.inputs), example.predicted) for example in examples] == [(3, 1), (1, 0), (0, 0), (2, 0)]
    assert examples[0].surprise == pytest.approx(np.exp(4) / (1 + np.exp(4)))
    assert [int(example.inputs) for example in classify(Fixed(1, 1), batches(), 1)[0]] == [3]


def test_data_that_have_changed_and_pages_that_cannot_be_written_are_refused(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(shutil.copytree(runs["texts"], "copy")) / "config.yaml"
    config.write_text(config.read_text().replace("level: lowercase_word", "level: character"))
    seal(Path("copy"))
    assert "was trained on other data or another vocabulary" in refused(["sample", "copy"], capsys)
    for key, words in (
        ("vocabulary", ["sample", "other"]),
        ("fingerprint", ["train", "extend=other", "trainer.steps=99"]),
    ):
        record = Path(shutil.copytree(runs["texts"], "other", dirs_exist_ok=True)) / "environment.json"
        known = json.loads(record.read_text())
        known["sessions"][-1]["data"][key] = "01234567"  # of as many words, or texts
        record.write_text(json.dumps(known))
        seal(Path("other"))
        assert "was trained on other data" in refused(words, capsys)
    sentence = "no/page.png cannot be written (No such file or directory): give another"
    assert sentence in refused(["sample", str(runs["images"]), "--count=1", "--out", "no/page.png"], capsys)
