"""Rows that people label and divide: one order of classes whatever holds them, equal rows on one side, older runs."""

from __future__ import annotations

import csv
import json
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from data_helpers import (
    CLASSES,
    IMAGES,
    LABELS,
    SMALL,
    pets,
    pixels,
    rows_of,
    write_folder,
    write_image,
    write_images,
    write_table,
)

from normbench import build
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe, resolve
from normbench.data import own_images, own_texts
from normbench.data.arranging import choose_val
from normbench.data.images import Images
from normbench.data.text import Texts
from normbench.errors import UsageError
from normbench.hosts.classes import read_classes
from normbench.runs.load import TrainedRun
from normbench.runs.plan import compare_classes, prepare
from normbench.training import checkpoint
from normbench.types import Data

WORDS = [f"number {n}" for n in range(60)]
KINDS = ("csv", "tsv", "jsonl", "json", "parquet")


def texts(path: Path, **options: Any) -> Texts:
    given: dict[str, Any] = {"context": 50, "batch_size": 2, "eval_batch_size": 7, "seed": 0, "level": "byte"}
    return own_texts(path=str(path), **given | options)


def images(path: Path, **options: Any) -> Images:
    return own_images(path=str(path), scaling="none", **IMAGES | options)


def write_rows(path: Path, written: list[str], labels: list[Any]) -> Path:
    """Write texts and labels as others do."""
    path.parent.mkdir(exist_ok=True)
    rows = [{"text": text, "label": label} for text, label in zip(written, labels, strict=True)]
    if path.suffix == ".parquet":
        return write_table(path, {"text": written, "label": labels})
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"], delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    return path


def split_texts(data: Texts) -> dict[str, list[str]]:
    return {split: [data.decode(text) for text in some] for split, some in data.examples.items()}


# ---- classes


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([*range(12)], [*map(str, range(12))]),
        ([*map(str, range(12))], [*map(str, range(12))]),
        ([*range(-2, 3)], ["-2", "-1", "0", "1", "2"]),
        ([0.5, 10.0, 2.0, -1.5], ["-1.5", "0.5", "2.0", "10.0"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        (["010", "9"], ["010", "9"]),
        ([True, False], ["False", "True"]),
    ],
    ids=["whole", "as text", "negative", "decimal", "mixed", "leading zero", "bool"],
)
def test_classes_have_one_order_in_all_tables(
    kind: str, folder: bool, labels: list[Any], classes: list[str], tmp_path: Path
) -> None:
    own = [labels[n % len(labels)] for n in range(60)]
    if folder:
        for number, split in enumerate(("train", "test")):
            write_rows(tmp_path / "my" / f"{split}.{kind}", WORDS[30 * number :][:30], own[30 * number :][:30])
        data = texts(tmp_path / "my")
    else:
        data = texts(write_rows(tmp_path / f"t.{kind}", WORDS, own))
    assert data.classes == tuple(classes)
    for split, some in split_texts(data).items():
        for text, label in zip(some, data.labels[split].tolist(), strict=True):  # type: ignore[index]
            assert data.classes[label] == str(own[WORDS.index(text)])


@pytest.mark.parametrize("names", [range(12), range(-2, 3)])
def test_folders_of_images_have_the_classes_of_tables_of_them(names: range, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my", 3, tuple(map(str, names)))
    rows = rows_of(folder)
    tables = [
        write_table(folder / "t.csv", rows),
        write_table(folder / "text.parquet", rows),
        write_table(folder / "t.parquet", {**rows, "label": [*map(int, rows["label"])]}),
    ]
    data = images(folder)
    assert data.classes == tuple(map(str, names))
    assert {data.fingerprint} == {images(table).fingerprint for table in tables}


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize(
    ("label", "what"),
    [
        ([1, 2], r"has a list in its column label \(\[1, 2\]\), which is no label"),
        ({"a": 1}, r"has a dict in its column label \(\{'a': 1\}\), which is no label"),
        (None, "has no label"),
        (float("nan"), "has no label"),
    ],
    ids=["list", "object", "nothing", "NaN"],
)
def test_a_label_that_is_none_is_named_with_row_and_column(kind: str, label: Any, what: str, tmp_path: Path) -> None:
    usual: Any = label if isinstance(label, list | dict) else 1.5
    labels = [usual] * 7 + [label] + [usual] * 52
    row = 0 if usual is label else 7
    for load in (texts, images):
        columns = {"text": WORDS, "image": WORDS, "label": labels}
        path = tmp_path / f"t.{kind}"
        if kind == "parquet":
            write_table(path, columns)
        else:
            write_rows(path, WORDS, labels)
            if load is images:  # which no JSON names
                continue
        with pytest.raises(UsageError, match=f"row {row} of .*{what}: "):
            load(path)


def test_hidden_labels_are_said_to_be(tmp_path: Path) -> None:
    for part, labels in (("train", [0, 1] * 10), ("val", [0, 1] * 10), ("test", [-1] * 20)):
        write_rows(tmp_path / "my" / f"{part}.csv", WORDS[:20], labels)
    with pytest.raises(UsageError, match=r"rows with the label -1, .* hidden: leave these rows out"):
        texts(tmp_path / "my")
    with pytest.raises(UsageError, match=r"row 0 of test of me/pets has the label -1, .* hidden: choose a split"):
        pets(write_images(tmp_path, SMALL, LABELS | {"test": [-1] * 7}))
    for label in (-1, "-1.0"):
        with pytest.raises(UsageError, match=f"rows with the label {label}, and there is no other label, .* hidden"):
            texts(write_rows(tmp_path / "all.csv", WORDS, [label] * 60))
    both = write_rows(tmp_path / "both.csv", WORDS, [-1, 1] * 30)
    assert texts(both).classes == ("-1", "1"), "where they train they are a class"


ALIKE = {
    "numbers": (["1", "1.0", "2"], "'1' and '1.0' are 2 classes of texts"),
    "leading zeros": (["7", "007", "8"], "'007' and '7'"),
    "signs": (["+1", "1", "-1"], "'+1' and '1'"),
    "blanks": (["pos", "pos ", "neg"], "'pos' and 'pos '"),
    "capitals": (["Pos", "pos", "neg"], "'Pos' and 'pos'"),
    "accents": (["caf\u00e9", "cafe\u0301", "tea"], r"'cafe\u0301' and 'caf\u00e9'".replace(r"\u00e9", "\u00e9")),
}


@pytest.mark.parametrize("name", ALIKE)
def test_classes_that_differ_in_writing_alone_are_told(name: str, tmp_path: Path) -> None:
    labels, said = ALIKE[name]
    data = texts(write_rows(tmp_path / "t.csv", WORDS, labels * 20))
    (warning,) = data.notes()
    assert warning.startswith("warning: ") and said in warning and len(data.classes) == 3


@pytest.mark.parametrize(("trained", "judging"), [([0, 1], [0.0, 1.0]), (["pos", "neg"], ["pos", "Neg"])])
def test_classes_that_are_written_otherwise_in_another_split_are_told(
    trained: list[Any], judging: list[Any], tmp_path: Path
) -> None:
    write_rows(tmp_path / "my" / "train.csv", WORDS[:20], trained * 10)
    write_rows(tmp_path / "my" / "test.csv", WORDS[20:40], judging * 10)
    with pytest.raises(UsageError, match=r"the class '.*' to judge and '.*' to train on, .* how they are written: "):
        texts(tmp_path / "my")


@pytest.mark.parametrize("labels", [["a", "A"], ["1", "10"], ["new york", "newyork"], [-1, 1]])
def test_classes_that_differ_are_not_told(labels: list[Any], tmp_path: Path) -> None:
    assert not texts(write_rows(tmp_path / "t.csv", WORDS, labels * 30)).notes()


def test_bytes_are_the_names_that_they_write(tmp_path: Path) -> None:
    as_bytes = texts(write_table(tmp_path / "bytes.parquet", {"text": WORDS, "label": [b"b", "\u00e9".encode()] * 30}))
    as_text = texts(write_table(tmp_path / "text.parquet", {"text": WORDS, "label": ["b", "\u00e9"] * 30}))
    assert as_bytes.classes == as_text.classes == ("b", "\u00e9") and as_bytes.fingerprint == as_text.fingerprint
    with pytest.raises(UsageError, match="cannot be read"):
        texts(write_table(tmp_path / "t.parquet", {"text": WORDS, "label": [b"\xff", b"b"] * 30}))


# ---- equal rows


@pytest.mark.parametrize("holdout", [0, 0.3, 7])
def test_equal_texts_are_on_one_side(holdout: float, tmp_path: Path) -> None:
    """Whatever their labels; the share of what validates stays near a tenth of each class."""
    draw = random.Random(0)
    written = [draw.choice(WORDS) for _ in range(200)]
    labels = [draw.choice("ab") for _ in written]
    data = texts(write_rows(tmp_path / "t.csv", written, labels), holdout=holdout)
    parts = {split: set(some) for split, some in split_texts(data).items()}
    assert not parts["train"] & parts["val"]
    sizes = {split: len(some) for split, some in data.examples.items()}
    if not holdout:
        assert sum(sizes.values()) == 200
        assert sorted(text for some in split_texts(data).values() for text in some) == sorted(written)
        for label in (0, 1):
            assert 0.05 < (data.labels["val"] == label).sum() / labels.count("ab"[label]) <= 0.11
        repeats = len(written) - len(set(written))
        assert data.describe()["repeated_texts"] == repeats
        assert [line.startswith(f"note: {repeats} of the 200 texts") for line in data.notes()] == [True, False]
    else:
        wanted = holdout if holdout >= 1 else holdout * (sizes["train"] + sizes["val"])
        assert abs(sizes["val"] - wanted) <= max(Counter(written).values())


@pytest.mark.parametrize(
    ("level", "are_one"), [("lowercase_word", True), ("word", False), ("byte", False), ("character", False)]
)
@pytest.mark.parametrize("holdout", [0, 0.3])
def test_texts_of_equal_tokens_are_on_one_side(level: str, are_one: bool, holdout: float, tmp_path: Path) -> None:
    """In capitals, and with other blanks, which some levels do not see."""
    draw = random.Random(0)
    changes = (str.upper, str.title, lambda text: f" {text.replace(' ', '  ')} ")
    written = [draw.choice(changes)(draw.choice(WORDS)) for _ in range(120)]
    labels = [draw.choice("ab") for _ in written]
    data = texts(write_rows(tmp_path / "t.csv", written, labels), level=level, holdout=holdout)
    tokens = {split: {tuple(text.tolist()) for text in some} for split, some in data.examples.items()}
    assert not tokens["train"] & tokens["val"]
    if not holdout:
        identities = {text.lower().split()[-1] if are_one else text for text in written}
        blanks = level == "word"
        assert data.describe()["repeated_texts"] == 120 - len(
            {" ".join(t.split()) if blanks else t for t in identities}
        )


@pytest.mark.parametrize("word", ["dev", "Development", " validation "])
def test_what_validates_has_the_names_that_people_give_it(word: str, tmp_path: Path) -> None:
    """Else the table would be left out, and its test data would validate; or the folder would be a class."""
    splits = ["train"] * 30 + [word] * 20 + ["test"] * 10
    table = write_table(tmp_path / "t.csv", {"text": WORDS, "label": ["a", "b"] * 30, "split": splits})
    sizes = [len(some) for some in texts(table, split_column="split").examples.values()]
    assert sizes == [30, 20, 10]
    if word.strip() == word:
        for split in dict.fromkeys(splits):
            some = [text for text, own in zip(WORDS, splits, strict=True) if own == split]
            write_rows(tmp_path / "my" / f"{split}.csv", some, ["a", "b"] * (len(some) // 2))
            write_folder(tmp_path / "images" / split, 3)
        assert [len(some) for some in texts(tmp_path / "my").examples.values()] == sizes
        assert images(tmp_path / "images").classes == CLASSES


@pytest.mark.parametrize("share", [0.25, 0.5, 1])
@pytest.mark.parametrize("holdout", [0, 0.3])
def test_repeats_are_those_of_the_examples_that_are_used(share: float, holdout: float, tmp_path: Path) -> None:
    draw = random.Random(0)
    labels = [draw.choice("ab") for _ in range(120)]
    data = texts(write_rows(tmp_path / "t.csv", draw.choices(WORDS, k=120), labels), train_share=share, holdout=holdout)
    used = [text for some in split_texts(data).values() for text in some]
    repeats = len(used) - len({*used})
    assert data.describe()["repeated_texts"] == repeats
    labels_of_text: dict[str, list[int]] = {}
    assert data.labels is not None
    for split, some in split_texts(data).items():
        for text, label in zip(some, data.labels[split].tolist(), strict=True):
            labels_of_text.setdefault(text, []).append(label)
    contradicted = sum(len(labels) for labels in labels_of_text.values() if len({*labels}) > 1)
    assert data.describe()["texts_with_other_labels"] == contradicted > 0
    note, warning = data.notes()
    assert note.startswith(f"note: {repeats} of the {len(used)} texts of texts repeat another; ")
    assert warning.startswith(
        f"warning: {contradicted} of the {len(used)} texts of texts are equal to one with another"
    )


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("{stem} common end{number}", {"context": 2}),  # of which the end is cut
        ("{stem} common end{number}", {"vocabulary_size": 7}),  # or is a word of no vocabulary
    ],
)
def test_texts_that_a_model_cannot_tell_apart_are_told_of(
    written: str, options: dict[str, Any], tmp_path: Path
) -> None:
    rows = [written.format(stem=WORDS[number % 4], number=number) for number in range(80)]
    write_rows(tmp_path / "my.csv", rows, [number % 2 for number in range(80)])
    data = texts(tmp_path / "my.csv", level="lowercase_word", **options)
    judging = len(data.examples["val"])
    assert data.describe()["val_texts_seen_in_training"] == judging
    warning, note = data.notes()
    assert warning.startswith(f"warning: {judging} of the {judging} texts of val are equal to some that train")
    assert note.startswith(f"note: {judging} of these {judging} texts of val differ from those that train behind")
    assert "val_texts_seen_in_training" not in texts(tmp_path / "my.csv", level="lowercase_word").describe()


@pytest.mark.parametrize("share", [0.1, 0.5, 1])
@pytest.mark.parametrize("holdout", [0, 0.4])
def test_what_was_seen_is_among_the_examples_that_are_used(share: float, holdout: float, tmp_path: Path) -> None:
    """Of splits that the data bring, in which equal rows stay where they are, those of training in one piece."""
    draw = random.Random(0)
    for part, count in (("train", 60), ("val", 40), ("test", 30)):
        labels = [draw.choice("ab") for _ in range(count)]
        write_rows(tmp_path / "my" / f"{part}.csv", draw.choices(WORDS, k=count), labels)
    data = texts(tmp_path / "my", train_share=share, holdout=holdout)
    parts = split_texts(data)
    told = data.describe()
    for split in ("val", "test"):
        count = sum(text in parts["train"] for text in parts[split])
        assert told.get(f"{split}_texts_seen_in_training", 0) == count
        assert any(
            line.startswith(f"warning: {count} of the {len(parts[split])} texts of {split}") for line in data.notes()
        ) == (count > 0)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("holdout", [0, 0.4])
def test_equal_images_are_on_one_side_whatever_their_names(table: bool, holdout: float, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my", 12)
    for number in range(12):
        write_image(folder / "cat" / f"copy{number}.png", pixels(number))
        write_image(folder / "owl" / f"cat{number}.png", pixels(number), compress_level=0)
    path = write_table(folder / "t.csv", rows_of(folder)) if table else folder
    data = images(path, holdout=holdout)
    parts = {split: {image.numpy().tobytes() for image in some} for split, some in data.examples.items()}
    assert not parts["train"] & parts["val"] and parts["val"]
    if not holdout:
        assert data.describe()["repeated_images"] == 24 and sum(map(len, data.examples.values())) == 60
        assert data.describe()["images_with_other_labels"] == 36
        for number, name in enumerate(data.classes):
            for split in ("train", "val"):
                assert (data.labels[split] == number).any(), f"{name} is in {split}"  # type: ignore[index]


def test_a_tenth_validates_in_whole_groups() -> None:
    classes = torch.tensor([0] * 20 + [1] * 20).numpy()
    alone = choose_val(classes, torch.arange(40).numpy())
    assert alone.nonzero()[0].tolist() == [0, 1, 20, 21], "the first of each class, as without equal rows"
    kinds = torch.tensor([0] * 3 + [*range(3, 20)] + [40 + n // 4 for n in range(20)]).numpy()
    chosen = choose_val(classes, kinds)
    assert chosen.nonzero()[0].tolist() == [3, 4, 20, 21, 22, 23], "one that is too large is passed by; the smallest"
    one = choose_val(classes, torch.tensor([*range(20), *[20] * 20]).numpy())
    assert not one[20:].any(), "a class of equal rows trains"


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rows_in_splits_that_are_given_stay_and_are_counted(kind: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "my" / f"train.{kind}", WORDS[:40], ["a", "b"] * 20)
    write_rows(tmp_path / "my" / f"val.{kind}", [*WORDS[40:50], *WORDS[:3]], ["a", "b"] * 6 + ["a"])
    write_rows(tmp_path / "my" / f"test.{kind}", [*WORDS[50:], *WORDS[:2]], ["a", "b"] * 6)
    data = texts(tmp_path / "my")
    told = data.describe()
    assert (told["val_texts_seen_in_training"], told["test_texts_seen_in_training"]) == (3, 2)
    assert [len(some) for some in data.examples.values()] == [40, 13, 12]
    warnings = [line for line in data.notes() if line.startswith("warning: ")]
    assert [line.split(" are equal")[0] for line in warnings] == [
        "warning: 3 of the 13 texts of val",
        "warning: 2 of the 12 texts of test",
    ]
    held = texts(tmp_path / "my", holdout=5)  # what validates is now of those that train
    assert "val_texts_seen_in_training" not in held.describe()


def test_equal_images_of_the_hub_are_counted(tmp_path: Path) -> None:
    made = SMALL | {"test": [*SMALL["test"][:5], *SMALL["train"][:2]]}
    data = pets(write_images(tmp_path / "a", made, LABELS))
    assert data.describe()["val_images_seen_in_training"] == 2
    made = {"train": [*SMALL["train"][:15], *SMALL["train"][:5]], "test": SMALL["test"]}
    for holdout, count in ((5, 5), (3, 3), (16, 4)):
        held = pets(write_images(tmp_path / "c", made, LABELS), holdout=holdout, batch_size=2)
        assert held.describe()["val_images_seen_in_training"] == count
        assert held.notes()[0].startswith(f"warning: {count} of the {holdout} images of val")
    alone = pets(write_images(tmp_path / "b", SMALL, LABELS))
    assert not alone.notes() and not any("seen" in key or "repeated" in key for key in alone.describe())


# ---- what older versions made


OLD = {  # fingerprints that versions had in which folders sorted words, and equal rows were divided
    "cats": "9b045be5ce5c",
    "numbers": "9ce9bff9b4db",
    "negative.csv": "946a51e6968d",
    "repeated.csv": "3c27ff038941",
}


def make_old(name: str, root: Path) -> Images | Texts:
    if name == "numbers":
        return images(write_folder(root / name, 5, tuple(map(str, range(12)))))
    if name == "cats":
        folder = write_folder(root / name, 10)
        for number in range(4):
            write_image(folder / "cat" / f"copy{number}.png", pixels(number))
            write_image(folder / "dog" / f"copy{number}.png", pixels(1000))
        return images(folder)
    written = [f"number {n} of" for n in range(60)]
    if name == "negative.csv":
        return texts(write_rows(root / name, written, [n % 5 - 2 for n in range(60)]))
    return texts(write_rows(root / name, written + written[:20], [n % 3 for n in range(80)]))


@pytest.mark.parametrize("name", OLD)
def test_what_older_versions_made_can_be_made_again(name: str, tmp_path: Path) -> None:
    data = make_old(name, tmp_path)
    assert data.earlier.startswith(OLD[name]) and data.earlier != data.fingerprint
    old = data.as_of(data.earlier)
    assert old.fingerprint == data.earlier and old.as_of(old.fingerprint) is old
    assert data.as_of("") is data and data.as_of(data.fingerprint) is data
    assert data.as_of(data.earlier) is old, "it is made once"
    if name == "numbers":
        assert isinstance(old, Images) and old.classes == tuple(sorted(map(str, range(12))))


@pytest.fixture
def old_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Runs are made as by an older version; until it is undone."""
    make_data = build.make_data

    def make(recipe: Recipe, seed: int) -> Data:
        data = make_data(recipe, seed)
        old = data.as_of(data.earlier)
        old.earlier = ""  # what such a version knows nothing of
        return old

    with monkeypatch.context() as patched:
        patched.setattr(build, "make_data", make)
        yield patched


def test_old_runs_go_on_with_their_order_and_so_do_those_beside_them(
    old_version: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "my", 4, tuple(map(str, range(12))))
    words = ["train", "data=images", f"data.path={folder}", "model=cnn", "model.width=4", "model.depth=3"]
    words += ["data.batch_size=4", "trainer.steps=2", f"outputs={tmp_path}/out", "threads=1", "device=cpu"]
    assert main([*words, "norm=batchnorm"]) == 0
    (old,) = (tmp_path / "out/train").iterdir()
    old_version.undo()
    capsys.readouterr()
    assert main([*words, "norm=batchnorm"]) == 0, "the run is known"
    assert main([*words, "norm=groupnorm"]) == 0
    assert "with the classes in another order" in " ".join(capsys.readouterr().out.split())
    runs = [path for path in (tmp_path / "out/train").iterdir() if path.is_dir()]
    in_old_order = sorted(map(str, range(12)))
    assert len(runs) == 2 and old in runs
    for run in runs:
        data = TrainedRun(run).data()
        assert isinstance(data, Images) and [*data.classes] == in_old_order
        assert checkpoint.read(run / "checkpoint.pt")["classes"] == in_old_order
    run = prepare(read([*words[1:], "norm=batchnorm"]))
    there = pickle.loads(pickle.dumps(run))  # as another process gets it, which reads the data itself
    assert run.directory.path == old and there.data.fingerprint == run.fingerprint
    assert main([*words, "norm=batchnorm", "name=new"]) == 0
    (new,) = (tmp_path / "out/new").iterdir()
    assert checkpoint.read(new / "checkpoint.pt")["classes"] == [*map(str, range(12))]
    more = ["train", f"extend={old}", "trainer.steps=3", "name=more", f"outputs={tmp_path}/out"]
    assert main(more) == 0
    (longer,) = (tmp_path / "out/more").iterdir()
    assert checkpoint.read(longer / "checkpoint.pt")["classes"] == in_old_order


# ---- classes of weights


def test_classes_stand_with_weights(tmp_path: Path) -> None:
    names = ["cat", "owl", "dog"]
    torch.save({"model": {}, "classes": names}, tmp_path / "last.pt")
    assert read_classes(str(tmp_path / "last.pt")) == names
    assert read_classes(f"{tmp_path}/last.pt:model") == names
    session = {"choices": {}, "command": "normbench train", "task": {"kind": ""}, "data": {"classes": names[::-1]}}
    (tmp_path / "environment.json").write_text(json.dumps({"sessions": [session]}))
    torch.save({}, tmp_path / "bare.pth")
    assert read_classes(str(tmp_path / "bare.pth")) == names[::-1]
    (tmp_path / "environment.json").unlink()
    assert read_classes(str(tmp_path / "bare.pth")) is None
    for about, known in (
        ({"id2label": {"10": "c", "2": "b", "0": "a"}}, ["a", "b", "c"]),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, None),
        ({"label_names": ["a", "b"]}, ["a", "b"]),
        ({"pretrained_cfg": {"label_names": ["b", "a"]}}, ["b", "a"]),
        ({"id2label": "odd"}, None),
        (["odd"], None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(about))
        assert read_classes(str(tmp_path)) == known


def test_a_run_from_weights_with_other_classes_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("transformers")
    table = write_rows(tmp_path / "t.csv", WORDS, [n % 12 for n in range(60)])
    by_letters = dict(enumerate(sorted(map(str, range(12)))))
    about = {"model_type": "bert", "id2label": by_letters}
    (tmp_path / "config.json").write_text(json.dumps(about))
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    words = ["data=texts", f"data.path={table}", "model=hf", "model.name=bert", "norm=own", f"model.weights={tmp_path}"]
    with caplog.at_level("INFO", "normbench"):
        prepare(read([*words, "trainer.steps=1"]))
    (told,) = [line for line in caplog.messages if "in another order" in line]
    assert told.startswith(f"warning: model.weights={tmp_path} was trained on the classes of the data in another order")


def test_weights_with_other_classes_are_told(tmp_path: Path) -> None:
    data = images(write_folder(tmp_path / "my", 3, tuple(map(str, range(12)))))
    weights = tmp_path / "weights.pt"
    model = resolve("model", {"_target_": "normbench.hosts.hosted.TransformersModel", "weights": str(weights)})
    said = {}
    for key, names in {
        "order": sorted(data.classes),
        "same": [*data.classes],
        "names": ["\x1b[1ma", *"bcdefghijkl"],
        "number": ["a", "b"],
    }.items():
        torch.save({"classes": names}, weights)
        said[key] = compare_classes(model, data)
    assert (
        "the classes of the data in another order: its output 2 stood for 10, and here it stands for 2" in said["order"]
    )
    assert (
        "on other classes: its output 0 stood for \N{REPLACEMENT CHARACTER}[1ma, and here it stands for 0"
        in said["names"]
    )
    assert said["same"] == said["number"] == ""
