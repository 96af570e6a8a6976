"""Data that are read while a run trains: the same batches whenever they are asked for, and none of what judges."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pyarrow
import pytest
import torch
from data_helpers import CLASSES, png
from hydra.utils import instantiate
from killing import Server, Trap
from pyarrow import parquet
from run_records import assert_same, read_record
from test_data import load_config
from test_runs import newest_run

from normbench.config.compose import read
from normbench.contract.checks import check
from normbench.contract.data import DataPart
from normbench.data import hub_images, hub_text, streaming
from normbench.data.streaming import StreamPlace
from normbench.errors import RunFailure, UsageError
from normbench.runs.plan import prepare

pytest_plugins = ["run_fixtures"]

STREAM: dict[str, Any] = {"streaming": True, "eval_batch_size": 4, "seed": 0}
TEXT: dict[str, Any] = {"level": "byte", "lines": True, "val_splits": None, "context": 4, "batch_size": 3}
ROWS = [chr(33 + number) * 15 for number in range(60)]  # any window shows which row it is of
PHOTOGRAPHS = {"train": range(40), "validation": range(40, 52)}  # each number is an image's shade, divided by four


def write_pages(root: Path, rows: list[str] = ROWS, files: int = 3, group: int = 4) -> Path:
    """Write a repository `me/pages` of several files of small row groups, without a card."""
    (root / "me/pages/data").mkdir(parents=True, exist_ok=True)
    for index, part in enumerate(np.array_split(np.array(rows, object), files)):
        table = datasets.Dataset.from_dict({"url": ["x"] * len(part), "text": [*part]}).with_format("arrow")[:]
        file = root / f"me/pages/data/train-{index:05}-of-{files:05}.parquet"
        parquet.write_table(table, file, row_group_size=group)
    return root


def pages(root: Path, **options: Any) -> Any:
    chosen = STREAM | TEXT | {"buffer": 11, "kept": 5}
    return hub_text(name="pages", hub_id="me/pages", root=str(root), **chosen | options)


def write_photographs(root: Path) -> Path:
    """Write a repository `me/photographs` of images that differ in size and are grey but for every seventh."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    (root / "me/photographs/data").mkdir(parents=True, exist_ok=True)
    for split, numbers in PHOTOGRAPHS.items():
        for index, part in enumerate(np.array_split(numbers, 2)):
            shapes = [(9 + number % 3, 8, *([] if number % 7 else [3])) for number in part]
            shades = [np.full(shape, 4 * number, np.uint8) for shape, number in zip(shapes, part, strict=True)]
            rows = {"image": [{"bytes": png(shade), "path": None} for shade in shades], "label": [n % 3 for n in part]}
            file = root / f"me/photographs/data/{split}-{index:05}-of-00002.parquet"
            datasets.Dataset.from_dict(rows, features=features).to_parquet(file, batch_size=3)
    return root


def photographs(root: Path, **options: Any) -> Any:
    chosen = {"buffer": 8, "kept": 9, "size": 6, "val_split": "validation", "scaling": "none", "batch_size": 2}
    return hub_images(name="photographs", hub_id="me/photographs", root=str(root), **STREAM | chosen | options)


def rows_in(batch: Any) -> list[int]:
    """Return which row each example of a batch shows."""
    if batch.inputs.ndim == 4:
        return [int(image.mean()) // 4 for image in batch.inputs]
    return [int(window[window != ord("\n")].mode().values) - 33 for window in batch.inputs]


def made(kind: str, root: Path, **options: Any) -> Any:
    return (pages if kind == "text" else photographs)(root, **options)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(write_pages(tmp_path_factory.mktemp("streams")))


KINDS = pytest.mark.parametrize("kind", ["text", "images"])


# ---- what a pass shows


@pytest.mark.parametrize(("files", "group"), [(1, 100), (1, 3), (3, 4), (7, 1)])
def test_each_pass_shows_every_row_once_but_those_that_judge(tmp_path: Path, files: int, group: int) -> None:
    """A block of 11 rows is 43 windows, of which the last does not fill a batch of 3."""
    data = pages(write_pages(tmp_path, files=files, group=group))
    assert rows_in(next(data.eval_batches("val", 1)))[0] == 0
    assert {row for batch in data.eval_batches("val") for row in rows_in(batch)} == {*range(5)}
    passes = [[rows_in(data.train_batch(70 * turn + step)) for step in range(70)] for turn in (0, 1)]
    for batches in passes:
        counts = Counter(chain.from_iterable(batches))
        assert {*counts} == {*range(5, 60)} and max(counts.values()) <= 5 and counts.total() == 5 * 42
        assert all(
            len({row for batch in batches[14 * block : 14 * block + 14] for row in batch}) <= 11 for block in range(5)
        )
    assert passes[0] != passes[1]


def test_blocks_of_long_rows_end_by_their_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass shows all rows all the same; one row that is longer than a block may be is a block."""
    ordinary = pages(root)
    first, _ = ordinary.stream.block(StreamPlace(), 0)
    assert len(first) == 11
    for bytes_each, most in ((100, 6), (1, 1)):
        monkeypatch.setattr(streaming, "MOST_BYTES", bytes_each)
        rows, place = list[str](), StreamPlace()
        while place.epoch == 0:
            found, place = ordinary.stream.block(place, 0)
            assert 0 < len(found) <= most
            rows += [row["text"] for row in found]
        assert [row["text"] for row in first] == rows[:11] and {*ROWS[5:]} <= {*rows}
        assert len(rows) <= 55 + most


@pytest.mark.slow
def test_few_rows_of_a_row_group_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is: here 100 times the same row, which the file itself has once."""
    stream = pages(write_pages(tmp_path, ["x" * 2**20] * 100, files=1, group=100)).stream
    monkeypatch.setattr(streaming, "MOST_BYTES", 3 * 2**20)
    before, place = pyarrow.total_allocated_bytes(), StreamPlace()
    for _ in range(4):
        rows, place = stream.block(place, 0)
        assert len(rows) == 3
        assert pyarrow.total_allocated_bytes() - before < 2 * streaming.TOGETHER * 2**20
    assert place == StreamPlace(row=5 + 4 * 3)


def test_a_checkpoint_of_other_blocks_is_refused(root: Path) -> None:
    """Of a version that bounded blocks in another way, say: its steps would be other batches, or empty ones."""
    first = pages(root)
    first.train_batch(30)
    state = first.state_dict()
    again = pages(root)
    again.load_state_dict({"starts": [(2 * step, place) for step, place in state["starts"]]})
    with pytest.raises(
        UsageError, match=r"is not the one that this run's checkpoint knows: start over with rerun=true"
    ):
        again.train_batch(30)


def test_a_block_longer_than_the_data_holds_no_row_twice(root: Path) -> None:
    rows, place = pages(root, buffer=300).stream.block(StreamPlace(), 0)
    assert len(rows) == 300 and place.epoch == 5
    assert len({*map(id, rows)}) == len({row["text"] for row in rows}) == 55


def test_images_come_with_their_own_labels_and_others_judge(root: Path) -> None:
    data = photographs(root)
    batches = [data.train_batch(step) for step in range(20)]
    shown = [row for batch in batches for row in rows_in(batch)]
    assert sorted(shown) == [*PHOTOGRAPHS["train"]] and shown != sorted(shown)
    assert all(batch.targets.tolist() == [row % 3 for row in rows_in(batch)] for batch in batches)
    assert {batch.inputs.shape for batch in batches} == {(2, 3, 6, 6)}, "colour, also where all of a batch are grey"
    assert [row for batch in data.eval_batches("val") for row in rows_in(batch)] == [*range(40, 49)]
    assert [row for batch in data.eval_batches("train") for row in rows_in(batch)] == [*range(9)]
    found = data.describe()
    assert (found["kept"], found["val_images"], found["steps_per_epoch"], found["files"]) == (9, 9, 0, 2)


def test_a_stream_has_no_share_to_train_on(root: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.train_share=0\.5 .*: set data\.streaming=false"):
        pages(root, train_share=0.5)


@pytest.mark.parametrize(("holdout", "held"), [(3, [5, 6, 7]), (0.2, [5, 6])])
def test_what_chooses_is_neither_trained_on_nor_what_judges(root: Path, holdout: float, held: list[int]) -> None:
    """A share is one of a block."""
    data = pages(root, holdout=holdout)
    assert sorted({row for batch in data.eval_batches("val") for row in rows_in(batch)}) == held
    shown = {row for step in range(70) for row in rows_in(data.train_batch(step))}
    assert shown == {*range(held[-1] + 1, 60)}
    assert data.fingerprint != pages(root).fingerprint


def test_byte_pairs_are_learned_of_rows_that_train(tmp_path: Path) -> None:
    rows = ["xyxyxyxy " * 9] * 5 + ["ababab cd " * 9] * 40
    data = pages(write_pages(tmp_path, rows), level="bpe", vocabulary_size=260)
    symbols = "".join(data.vocabulary.symbols[256:])
    assert "ab" in symbols and "xy" not in symbols
    assert set(data.decode(data.train_batch(0).inputs.flatten())) <= set("abcd \n")


# ---- seed and step alone


@KINDS
def test_streams_keep_the_contract_of_data(kind: str, root: Path) -> None:
    tree = {"_target_": f"normbench.data.hub_{'text' if kind == 'text' else kind}", "hub_id": "me/pages", "name": "a"}
    options = TEXT | {"buffer": 11, "kept": 5}
    if kind == "images":
        options = {"hub_id": "me/photographs", "buffer": 8, "kept": 9, "size": 6, "val_split": "validation"}
        options |= {"crop": 1, "flip": True, "batch_size": 4}
    given = {name: value for name, value in {**tree, **STREAM, **options}.items() if name != "seed"}
    rows = check(DataPart({"data": given | {"root": str(root)}}))
    assert {row.name: (row.result, row.measured) for row in rows if row.result not in ("passed", "yes")} == {}
    assert len(rows) == 8


@KINDS
@pytest.mark.parametrize("step", [0, 13, 14, 40])
def test_a_run_goes_on_where_it_was_and_reads_little_for_it(kind: str, step: int, root: Path) -> None:
    undisturbed = made(kind, root)
    expected = [undisturbed.train_batch(number) for number in range(60)]
    first = made(kind, root)
    for number in range(step + 1):
        first.train_batch(number)
    again = made(kind, root)
    again.load_state_dict(first.state_dict())
    again.stream.block = Mock(side_effect=again.stream.block)
    for number in range(step, 60):
        assert all(torch.equal(a, b) for a, b in zip(again.train_batch(number)[:2], expected[number][:2], strict=True))
        if number == step:
            again.ahead.result()
            assert again.stream.block.call_count == 2, "its own block, and the next one in advance"


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly(root: Path, tmp_path: Path, server: Server) -> None:
    words = "train model=nano model.depth=1 model.width=16 model.heads=2 model.context=4 data=fineweb_edu threads=1 "
    words += "data.hub_id=me/pages data.config=null data.level=byte data.kept=5 data.buffer=11 data.batch_size=3 "
    words += (
        "trainer.steps=40 trainer.log_every=5 trainer.eval_every=20 trainer.checkpoint_every=8 device=cpu probes=off"
    )
    runs = []
    for name, traps in (("whole", [None]), ("killed", [Trap("training > gradients", 27), None])):
        (tmp_path / name).mkdir()
        for trap in traps:
            child = server.start([*words.split(), f"data.root={root}"], tmp_path / name, trap)
            assert child.wait() == (-signal.SIGKILL if trap else 0), child.output
        assert ("going on from step 24" in child.output) == (name == "killed")
        runs.append(read_record(newest_run(tmp_path / name)))
    assert_same(*runs)


# ---- configurations


@pytest.mark.parametrize(("name", "like"), [("fineweb_edu", "pages"), ("imagenet1k", "photographs")])
def test_a_configuration_streams_what_the_hub_has(name: str, like: str, root: Path, tmp_path: Path) -> None:
    """The repository's layout is that of its card: fineweb-edu's sample is a folder of its own."""
    small = {"kept": 9, "buffer": 12, "batch_size": 4, "context": 8} if like == "pages" else {"kept": 9, "buffer": 12}
    config = load_config(
        name, root=str(tmp_path), **small, **({} if like == "pages" else {"batch_size": 4, "size": 32})
    )
    folder = "sample/10BT" if like == "pages" else "data"
    (tmp_path / config.hub_id / folder).mkdir(parents=True)
    for file in (root / f"me/{like}/data").iterdir():
        (tmp_path / config.hub_id / folder / file.name).symlink_to(file)
    card = "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    if like == "pages":
        (tmp_path / config.hub_id / "README.md").write_text(card)
    data = instantiate(config, seed=0)
    batch = data.train_batch(3)
    assert batch.inputs.shape == ((4, 8) if like == "pages" else (4, 3, 32, 32))
    assert sum(len(batch.targets) for batch in data.eval_batches("val")) >= 9


def test_what_is_not_streamed_has_the_same_names_as_before(root: Path) -> None:
    """The settings of streams are in no configuration that does not name them."""
    assert not {"streaming", "buffer", "kept"} & {*load_config("mnist"), *load_config("wikitext103")}
    data = photographs(root, streaming=False)
    assert data.describe()["train_images"] == 40 and data.steps_per_epoch == 20


# ---- mistakes and faults


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"level": "character"},
            "data.level=character needs all of a text, and a stream shows a part: use one of byte",
        ),
        (
            {"kept": 100},
            r"me/pages cannot be read \(it has 60 rows for data.holdout and data.kept, and none to train on",
        ),
        ({"val_splits": ["dev"]}, r"me/pages cannot be read \(it has no dev, but train"),
        ({"text_column": "body"}, r"me/pages cannot be read \(it has no body, but url, text"),
        ({"hub_id": "me/nothing"}, "me/nothing cannot be read"),
        ({"batch_size": 50}, "a block of pages has 43 examples, less than a batch: raise data.buffer=11 or lower"),
    ],
)
def test_mistakes_get_a_sentence(options: dict[str, Any], message: str, root: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        hub_text(
            **{
                "name": "pages",
                "hub_id": "me/pages",
                "root": str(root),
                "buffer": 11,
                "kept": 5,
                **STREAM,
                **TEXT,
                **options,
            }
        ).train_batch(0)
    assert "\n" not in str(caught.value)


def test_a_stream_has_no_length_to_take_epochs_of(root: Path) -> None:
    words = ["train", "data=fineweb_edu", f"data.root={root}", "data.hub_id=me/pages", "data.config=null"]
    words += ["data.kept=5", "data.level=byte", "model.context=4", "trainer.steps=null"]
    with pytest.raises(UsageError, match=r"has no length that trainer.epochs could be of: set trainer.steps=1000"):
        prepare(read(words[1:]))


def test_a_fault_in_the_middle_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    data = pages(write_pages(tmp_path))
    data.train_batch(0)
    data.ahead.result()
    data.stream.block = Mock(side_effect=ConnectionError("Connection reset by peer"))
    data.train_batch(14)
    with pytest.raises(RunFailure, match=r"reading pages failed \(Connection reset by peer\): the same command goes"):
        data.train_batch(28)
