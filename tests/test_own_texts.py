"""One's own labelled texts: a table gives what stands in it, whatever its kind, and mistakes get a sentence."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from data_helpers import write_parquet, write_table
from pyarrow import parquet

from normbench.cli import main
from normbench.data import own_texts, text
from normbench.data.text import Texts
from normbench.errors import UsageError
from normbench.types import Split

OPTIONS: dict[str, Any] = {"context": 50, "batch_size": 2, "eval_batch_size": 7, "seed": 0, "level": "byte"}
CLASSES = ("007", "NA", "true")
PLAIN = {"text": [f"number {n} of {CLASSES[n % 3]}" for n in range(60)], "label": [*CLASSES] * 20}
ODD = ["NA", "007", "1e3", "null", '"quoted" at first', "ÜBER, with a comma ’", "12:30:00", "  blanks  ", "1970-01-01"]
WITH_BREAKS = ["two\nlines", 'a "quote"\r\nand a break', "line\u2028separator"]


def own(path: Path, **options: Any) -> Texts:
    return own_texts(path=str(path), **OPTIONS | options)


def stored(data: Texts, *splits: Split) -> list[tuple[str, str]]:
    """Return the texts of these splits, or of all, and the names of their classes."""
    rows = [
        row for split in splits or data.labels for row in zip(data.examples[split], data.labels[split], strict=True)
    ]
    return [(data.decode(text), data.classes[label]) for text, label in rows]


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write columns as others do: the standard library's `csv` and `json`, lines between tabs, Arrow's Parquet."""
    path.parent.mkdir(exist_ok=True)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        return write_table(path, columns)
    file = io.StringIO(newline="")
    if path.suffix == ".csv":
        writer = csv.DictWriter(file, [*columns], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    elif path.suffix == ".tsv":
        file.write("\n".join("\t".join(row) for row in [columns, *(row.values() for row in rows)]))
    elif path.suffix == ".json":
        json.dump(rows, file)
    else:
        file.write("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    path.write_text(file.getvalue(), encoding="utf-8", newline="")
    return path


# ---- what is read


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl", "json"])
def test_texts_and_labels_are_what_stands_there(tmp_path: Path, ending: str) -> None:
    """Also where they look like a number, a date or nothing, or hold the signs that divide the others."""
    texts = PLAIN["text"] + ODD + ([] if ending == "tsv" else WITH_BREAKS)
    labels = (["007", "NA", "true"] * len(texts))[: len(texts)]
    data = own(write(tmp_path / f"t.{ending}", {"id": ["x"] * len(texts), "text": texts, "label": labels}))
    assert sorted(stored(data)) == sorted(zip(texts, labels, strict=True))
    assert data.classes == CLASSES


def test_all_kinds_of_tables_are_the_same_data(tmp_path: Path) -> None:
    kinds = ("csv", "tsv", "parquet", "jsonl", "json", "ndjson")
    prints = {own(write(tmp_path / f"t.{kind}", PLAIN)).fingerprint for kind in kinds}
    write(tmp_path / "t.csv", PLAIN)
    content = (tmp_path / "t.csv").read_bytes()
    (tmp_path / "excel.CSV").write_bytes(b"\xef\xbb\xbf" + content)
    assert prints == {own(tmp_path / "excel.CSV").fingerprint}


def test_batches_are_padded_and_masked(tmp_path: Path) -> None:
    data = own(write(tmp_path / "t.csv", PLAIN))
    batch = next(data.eval_batches("val"))
    assert batch.mask is not None and batch.mask.sum(1).max() == batch.inputs.shape[1]
    rows = [data.decode(row[mask]) for row, mask in zip(batch.inputs, batch.mask, strict=True)]
    assert rows == [text for text, _ in stored(data, "val")] and len({*map(len, rows)}) > 1
    assert data.describe()["name"] == "texts" and str(tmp_path) not in json.dumps(data.describe())


@pytest.mark.parametrize(
    ("ending", "labels", "classes"),
    [
        ("csv", ["10", "2", "1"], ("1", "2", "10")),
        ("jsonl", [10, 2, 1], ("1", "2", "10")),
        ("jsonl", [True, False, True], ("False", "True")),
        ("tsv", ["01", "1", "10"], ("01", "1", "10")),
    ],
)
def test_labels_are_whole_numbers_by_size_or_names(
    tmp_path: Path, ending: str, labels: list[Any], classes: tuple[str, ...]
) -> None:
    data = own(write(tmp_path / f"t.{ending}", PLAIN | {"label": labels * 20}))
    assert data.classes == classes
    expected = dict(zip(PLAIN["text"], map(str, labels * 20), strict=True))
    assert dict(stored(data)) == expected


def test_what_datasets_writes_keeps_its_classes(tmp_path: Path) -> None:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["owl", "cat", "dog"])}
    file = write_parquet(tmp_path / "t", {"text": PLAIN["text"], "label": [0, 1] * 30}, features, "train")
    for path in (file, tmp_path / "t"):
        assert own(path).classes == ("owl", "cat", "dog")


def declare(path: Path, about: str, **columns: Any) -> Path:
    """Write a table with what stands where `datasets` names classes."""
    parquet.write_table(pa.table(PLAIN | columns).replace_schema_metadata({"huggingface": about}), path)
    return path


def test_two_tables_that_number_classes_in_two_ways_are_refused(tmp_path: Path) -> None:
    for name, names in (("train", ["owl", "cat"]), ("test", ["cat", "owl"])):
        about = json.dumps({"info": {"features": {"label": {"names": names}}}})
        declare(tmp_path / f"{name}.parquet", about, label=[0, 1] * 30)
    with pytest.raises(UsageError, match=r"test.parquet declares the classes .*'cat', 'owl'.*, and train.parquet"):
        own(tmp_path)


@pytest.mark.parametrize(
    "about", ["no JSON", "[1]", '{"info": null}', '{"info": {"features": {"label": {"names": 3}}}}']
)
def test_what_others_write_where_datasets_names_classes_names_none(tmp_path: Path, about: str) -> None:
    declare(tmp_path / "t.parquet", about)
    assert own(tmp_path / "t.parquet").classes == own(write(tmp_path / "t.csv", PLAIN)).classes


def test_a_text_of_megabytes_is_one_row(tmp_path: Path) -> None:
    long = "word " * 600_000
    table = write(tmp_path / "t.csv", {"text": [*PLAIN["text"], long], "label": [*PLAIN["label"], "NA"]})
    assert max(len(text) for text, _ in stored(own(table))) == len(long)


# ---- which train and which validate


def test_a_tenth_of_each_class_validates_by_the_hash_of_its_texts(tmp_path: Path) -> None:
    data = own(write(tmp_path / "t.csv", PLAIN))

    def rank(row: tuple[str, str]) -> bytes:
        return hashlib.sha256(row[0].encode()).digest()

    rows = [*zip(*PLAIN.values(), strict=True)]
    ranked = [sorted((row for row in rows if row[1] == name), key=rank) for name in CLASSES]
    for split, part in (("val", slice(2)), ("train", slice(2, None))):
        assert stored(data, split) == sorted((row for rows in ranked for row in rows[part]), key=rank)
    shuffled = {name: column[::-1] for name, column in PLAIN.items()}
    assert own(write(tmp_path / "u.csv", shuffled)).fingerprint == data.fingerprint, "the order of rows plays no part"


@pytest.mark.parametrize(
    "names", [("train", "test"), ("training", "valid"), ("train-00000-of-00001", "test_a"), ("train", "val", "test")]
)
def test_tables_in_a_folder_are_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    parts = [{key: column[part::3] for key, column in PLAIN.items()} for part in range(3)]
    for name, part in zip(names, parts, strict=False):
        mixed = {"text": part["text"], "label": [CLASSES[n % 3] for n in range(20)]}
        write(tmp_path / "my" / f"{name}.csv", mixed)
    (tmp_path / "my" / "notes.txt").write_text("no table")
    data = own(tmp_path / "my")
    splits: list[Split] = ["train", "val", "test"] if len(names) == 3 else ["train", "val"]
    assert list(data.labels) == splits and data.has_test == ("test" in splits)
    for split, part in zip(splits, parts, strict=False):
        assert sorted(text for text, _ in stored(data, split)) == sorted(part["text"])


def test_a_column_may_say_the_splits(tmp_path: Path) -> None:
    parts = [("train", "dev" if n % 7 else "val", "test")[n % 3] for n in range(60)]
    columns = PLAIN | {"text": PLAIN["text"][::-1], "part": ["val" if part == "dev" else part for part in parts]}
    labels = [CLASSES[n // 3 % 3] for n in range(60)]
    data = own(write(tmp_path / "t.jsonl", columns | {"label": labels}), split_column="part")
    assert [len(part) for part in data.labels.values()] == [20, 20, 20]
    assert sorted(text for text, _ in stored(data, "test")) == sorted(columns["text"][2::3])


def test_no_words_are_learned_from_texts_that_validate(tmp_path: Path) -> None:
    data = own(write(tmp_path / "t.csv", PLAIN), level="lowercase_word")
    words = {word for text, _ in stored(data, "train") for word in text.split()}
    assert words | {"<unk>"} == {*data.vocabulary.symbols} - {"<eos>"}
    assert all("<unk>" in text for text, _ in stored(data, "val"))


# ---- mistakes


def changed(**columns: Any) -> Callable[[Path], Path]:
    """Write a table with some columns changed, or left out."""
    kept = {name: column for name, column in (PLAIN | columns).items() if column is not None}
    return lambda folder: write(folder / "t.jsonl", kept)


def written(content: str | bytes, name: str = "t.csv") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return make


def two(*names: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for name in names:
            write(folder / "my" / name, PLAIN)
        return folder / "my"

    return make


MISTAKES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nowhere": (
        lambda folder: folder / "no.csv",
        "is neither a file nor a folder: give a CSV, TSV, Parquet or JSON lines file",
    ),
    "no such column": (changed(text=None, body=["x"] * 60), "no column text: set data.text_column to one of label, bo"),
    "neither column": (
        changed(text=None, label=None, body=["x"] * 60),
        "no column text and no column label: set data.text_column and data.label_column to one of body",
    ),
    "semicolons": (
        written("text;label\nx;y\n"),
        r"one of text;label \(the first line names .* with commas between them",
    ),
    "no labels": (changed(label=None), "has no column label: set data.label_column to one of text"),
    "one class": (changed(label=["x"] * 60), "all texts of .* have one class, x: give two classes, each with some"),
    "no two texts that differ": (changed(text=["same"] * 60), "has too few texts that differ: give two classes"),
    "one of a class": (changed(label=["x"] * 59 + ["y"]), "has too few texts of the class y: give two classes"),
    "no bytes": (written(""), r"cannot be read \(Empty CSV file\): give a CSV"),
    "no rows": (written("text,label\n"), "has too few texts: give two classes"),
    "a row without a text": (changed(text=[*PLAIN["text"][:7], None, *PLAIN["text"][8:]]), "row 7 of .* has no text: "),
    "a text of blanks": (changed(text=[*PLAIN["text"][:7], " \n", *PLAIN["text"][8:]]), r"row 7 of .* no text but ' "),
    "numbers for texts": (
        changed(text=[*range(60)]),
        "row 0 of .* has no text but 0: leave the row out, or set",
    ),
    "a row without a label": (changed(label=["a", "b", None] * 20), "row 2 of .* has no label: each row needs one"),
    "an empty label": (written("text,label\nx,a\ny,\n"), "row 1 of .* has no label"),
    "a ragged row": (
        written("text,label\nx,a\ny,b,c\n"),
        "cannot be read .*Expected 2 columns, got 3",
    ),
    "no UTF-8": (written("text,label\nnaïve,a\n".encode("latin-1")), "cannot be read .*invalid UTF8 data"),
    "no JSON": (
        written('{"text": "x", "label": 1}\n{"text": \n', "t.jsonl"),
        r"cannot be read \(line 2: ",
    ),
    "half of a character": (
        written('{"text": "x", "label": 1}\n{"text": "bad \\ud83d", "label": 2}\n', "t.jsonl"),
        r"row 1 of .* has half of a surrogate pair, such as \\ud83d alone: ",
    ),
    "no objects": (written("[1, 2]", "t.json"), r"cannot be read \(not all of its rows are objects\)"),
    "no objects at all": (written("[]", "t.json"), r"cannot be read \(it has no rows\)"),
    "no line": (written("", "t.jsonl"), r"cannot be read \(it has no rows\)"),
    "no table": (written("x" * 100, "t.txt"), "cannot be read .*: give a CSV, TSV, Parquet or JSON lines file"),
    "no training table": (two("test.csv", "notes.csv"), "holds no table named train, such as train.csv: give"),
    "tables of two kinds": (
        two("train.csv", "test.jsonl"),
        r"tables in \.csv and \.jsonl: keep those of one",
    ),
}


@pytest.mark.parametrize(("make", "complaint"), MISTAKES.values(), ids=list(MISTAKES))
def test_tables_that_cannot_be_trained_on(make: Callable[[Path], Path], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        own(make(tmp_path))
    assert "\n" not in str(caught.value)


# ---- the command


def test_a_run_on_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("my.csv"), {"review": PLAIN["text"], "stars": PLAIN["label"]})
    words = ["train", "data=texts", "data.path=my.csv", "data.batch_size=8", "model.depth=1", "model.width=16"]
    assert main([*words, "trainer.steps=2"]) == 2
    assert (
        "no column text and no column label: set data.text_column and data.label_column to one of review"
        in capsys.readouterr().err
    )
    assert main([*words, "data.text_column=review", "data.label_column=stars", "trainer.steps=2", "quiet=true"]) == 0
    summary = json.loads(next(Path("outputs/train").glob("*/summary.json")).read_text())
    assert summary["data"]["classes"] == [*CLASSES] and summary["data"]["val_texts"] == 6
    assert "accuracy/val" in summary["metrics"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_bytes_of_a_table_do_not_train_without_a_word(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / f"my.{ending}", PLAIN)
    words = ["data=text", "model.context=8", "model.depth=1", "model.width=16", f"outputs={tmp_path}"]
    assert main(["train", *words, f"data.path={table}", "--dry-run"]) == 0
    assert "warning: data=text learns the bytes of a table as they are" in capsys.readouterr().out
    table.rename(tmp_path / "my.txt")
    assert main(["train", *words, f"data.path={tmp_path}/my.txt", "--dry-run"]) == 0
    assert "data=texts" not in capsys.readouterr().out


def test_what_is_read_of_each_text_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what trains once for each split that judges; what the model reads of 2 of 4 is in what trains."""
    read = list[Any]()
    digest = text.digest_row

    def count(row: Any) -> bytes:
        read.append(row)
        return digest(row)

    monkeypatch.setattr(text, "digest_row", count)
    trained = ["one before", "and so on"] * 10
    judging = ["one at last", "and so forth", "new", "and so long"]
    rows = {"text": [*trained, *judging, *judging], "label": ["a", "b"] * 14}
    rows["split"] = ["train"] * len(trained) + ["val"] * len(judging) + ["test"] * len(judging)
    data = own(write(tmp_path / "t.csv", rows), split_column="split", context=6)
    assert data.seen == {"val": 2, "test": 2}
    assert len(read) == len(rows["text"])
