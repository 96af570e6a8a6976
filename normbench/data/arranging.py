"""Rows that people label and divide: the order of their classes, and equal rows, which are on one side of a split.

Earlier versions of normbench numbered some classes in another order, and cut between equal rows. What they made of a
data set can still be made, so that runs that began with it go on with it.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer

from normbench.data.cache import KINDS, SPLITS, Decoded, fingerprint_arrays
from normbench.data.hub import labels_of
from normbench.errors import UsageError

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
ANY_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,6})?", re.ASCII)  # in lower case

Kinds = Integer[np.ndarray, " rows"]  # a number for each row: the same one where rows are equal
Places = Int64[np.ndarray, " rows"]  # of rows in a split


# ---- classes


class Labels(NamedTuple):
    """The labels of rows.

    Attributes:
        numbers: of the class of each row.
        classes: their names, in the order of the numbers.
    """

    numbers: Int64[np.ndarray, " rows"]
    classes: list[str]


def check_labels(labels: Iterable[Any], where: str, column: str) -> None:
    """Refuse rows without a label, or with one that is no single value.

    Args:
        labels: as they are read; None where there is none.
        where: they stand.
        column: of the labels.

    Raises:
        UsageError: with the first such row.
    """
    for row, label in enumerate(labels):
        if label is None or label != label:  # which is how NaN shows itself
            raise UsageError(f"row {row} of {where} has no label: each row needs one")
        if not isinstance(label, Hashable) or isinstance(label, tuple):
            what = f"has a {type(label).__name__} in its column {column:.80} ({label!r:.60})"
            cure = "set data.label_column to a column with one name or number in each row"
            raise UsageError(f"row {row} of {where} {what}, which is no label: {cure}")


def number_rows(rows: Any, declared: Sequence[str] | None, where: str) -> tuple[Any, Labels, Labels | None]:
    """Return rows with the columns `class` and `old_class`, the labels, and these as earlier versions numbered them.

    Args:
        rows: with the column `label`.
        declared: the names of the classes, where the file declares them.

    Raises:
        UsageError: a label is not declared.
        UnicodeError: the name of a class is not UTF-8.
    """
    written = rows["label"].tolist()
    if declared:
        labels = Labels(*labels_of(written, declared, where))
        earlier: Labels | None = labels
    else:
        labels = number_classes(written)
        earlier = number_as_earlier(written)
    rows["class"] = labels.numbers
    rows["old_class"] = labels.numbers if earlier is None else earlier.numbers
    return rows, labels, earlier


def number_classes(labels: Sequence[Any]) -> Labels:
    """Return labels by the number of their class: classes are what `name_of` gives, in the order of `sort_names`.

    Raises:
        UnicodeError: a name is not UTF-8.
    """
    names = list(map(name_of, labels))
    return number_in_order(names, sort_names(set(names)))


def name_of(label: Any) -> str:
    """Return the name of the class that a label says.

    Raises:
        UnicodeError: it is of bytes that are not UTF-8.
    """
    return label.decode() if isinstance(label, bytes) else str(label)


def find_alike(names: Iterable[str]) -> list[list[str]]:
    """Return the names that a reader takes for one: of one number, or of one word but for blanks and capitals.

    Letters alone may differ in capitals, as those of handwriting do.
    """
    alike: dict[Any, list[str]] = {}
    for name in names:
        whole = " ".join(unicodedata.normalize("NFKC", name).split())
        word = whole.casefold() if len(whole) > 1 else whole
        meant = Decimal(word) if ANY_NUMBER.fullmatch(word) else word
        alike.setdefault(meant, []).append(name)
    return [group for group in alike.values() if len(group) > 1]


def tell_apart(name: str) -> str:
    """Return a name in quotes, with the numbers of those characters that look like others."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the names of classes in their order: by size where all are numbers, as −2, 1.5 and 10, else by letters."""
    listed = list(names)
    for name in listed:
        name.encode()
    if all(map(NUMBER.fullmatch, listed)):
        return sorted(listed, key=lambda name: (Decimal(name), name))
    return sorted(listed)


def number_as_earlier(labels: Sequence[Any]) -> Labels | None:
    """Return labels by the number that earlier versions gave their class; None where these refused them.

    They sorted labels as they were read: numbers by size, and words by letters, also where these were numbers.
    """
    try:
        ordered = sorted(set(labels))
    except TypeError:
        return None
    classes = list(map(str, ordered))
    names = list(map(str, labels))
    return number_in_order(names, classes) if set(names) == set(classes) else None


def number_in_order(names: Sequence[str], classes: list[str]) -> Labels:
    """Return the place of each name among those of the classes."""
    places = {name: place for place, name in enumerate(classes)}
    return Labels(np.array([places[name] for name in names], dtype=np.int64), classes)


# ---- equal rows


def find_kinds(rows: Iterable[Any]) -> Kinds:
    """Return which rows are equal, byte by byte. rows: of bytes, or arrays that lie in one piece."""
    known: dict[bytes, int] = {}
    kinds = [known.setdefault(digest_row(row), len(known)) for row in rows]
    return np.array(kinds, dtype=np.int64)


def digest_row(row: Any) -> bytes:
    """Return what is the same for equal rows alone, in 16 bytes. row: of bytes, or an array that lies in one piece."""
    return hashlib.blake2b(row, digest_size=16).digest()


def has_equal(kinds: Kinds) -> bool:
    """Tell whether any two rows are equal."""
    return len(np.unique(kinds)) < len(kinds)


def add_kinds(arrays: Mapping[str, Any], kinds: Kinds, counts: Mapping[Any, int]) -> dict[str, Any]:
    """Return arrays with those that say which rows are equal, where any rows of all are.

    They have 0 for a row that is equal to no other, and else one number for all that are equal.

    Args:
        arrays: of rows of which examples are made one by one.
        kinds: of all rows, split by split.
        counts: how many rows each split has.
    """
    _, places, sizes = np.unique(kinds, return_inverse=True, return_counts=True)
    is_shared = sizes > 1
    if not is_shared.any():
        return dict(arrays)
    numbers = np.where(is_shared, np.cumsum(is_shared), 0)
    of_rows = numbers.astype(np.min_scalar_type(numbers.max()))[places]
    ends = np.cumsum([*counts.values()])[:-1]
    added = {}
    for split, part in zip(counts, np.split(of_rows, ends), strict=True):
        added[f"{split}_{KINDS}"] = part
    return {**arrays, **added}


def count_repeats(kinds: Iterable[Kinds]) -> int:
    """Return how many examples are equal to another before them. kinds: of examples, as in `add_kinds`."""
    numbers = np.concatenate([*kinds])
    shared = numbers[numbers > 0]
    return len(shared) - len(np.unique(shared))


def count_contradicted(kinds: Iterable[Kinds], labels: Iterable[Any]) -> int:
    """Return how many examples are equal to one with another label. kinds, labels: of examples, part by part."""
    pairs = np.stack([np.concatenate([*kinds]).astype(np.int64), np.concatenate([*labels]).astype(np.int64)])
    numbers, times = np.unique(pairs[:, pairs[0] > 0], axis=1, return_counts=True)
    kinds_of_pairs, labels_of_kinds = np.unique(numbers[0], return_counts=True)
    is_contradicted = np.isin(numbers[0], kinds_of_pairs[labels_of_kinds > 1])
    return int(times[is_contradicted].sum())


def find_seen(trained: Kinds, judging: Kinds) -> Bool[np.ndarray, " rows"]:
    """Return which examples that judge are equal to one that trains; of both the kinds, as in `add_kinds`."""
    return np.isin(judging, trained[trained > 0])


def choose_val(classes: Int64[np.ndarray, " rows"], kinds: Kinds) -> Bool[np.ndarray, " rows"]:
    """Return which rows validate: about a tenth of each class, and of equal rows all or none.

    Equal rows are taken together, one such group after the other as their first rows stand, where no class gets more
    than its tenth by it. A class of which no group is that small gives its smallest, if others of it are left.

    Args:
        classes: of the rows.
        kinds: which of them are equal.
    """
    members: dict[int, Counter[int]] = {}  # of each kind, by class
    for number, kind in zip(classes.tolist(), kinds.tolist(), strict=True):
        members.setdefault(kind, Counter())[number] += 1
    sizes = Counter(classes.tolist())
    room = {number: max(1, round(size / 10)) for number, size in sizes.items()}
    left = Counter(sizes)  # which train
    taken = set[int]()

    def take(kind: int) -> None:
        taken.add(kind)
        for number, count in members[kind].items():
            room[number] -= count
            left[number] -= count

    for kind, counts in members.items():
        if all(count <= room[number] for number, count in counts.items()):
            take(kind)
    for number, size in sizes.items():
        if left[number] < size:
            continue
        of_class = [kind for kind, counts in members.items() if number in counts]
        smallest_first = sorted(of_class, key=lambda kind: members[kind].total())
        for kind in smallest_first:
            if all(count < left[other] for other, count in members[kind].items()):
                take(kind)
                break
    return np.isin(kinds, list(taken))


def keep_together(rows: Any, kinds: Kinds, cuts: bool) -> Any:
    """Return rows in an order in which equal ones of a split follow each other; of a cut they are on one side.

    Args:
        rows: split by split, with the columns `rank`, `class` and `split`.
        kinds: which of them are equal.
        cuts: whether the splits are ours to make.
    """
    import pandas as pd

    rows = rows.assign(kind=kinds).sort_values("rank", kind="stable")
    if cuts:
        is_val = choose_val(rows["class"].to_numpy(), rows["kind"].to_numpy())
        rows["split"] = pd.Categorical(np.where(is_val, "val", "train"), SPLITS)
    rows["place"] = np.arange(len(rows))
    rows["first"] = rows.groupby(["split", "kind"], observed=True)["place"].transform("min")
    return rows.sort_values(["split", "first", "place"])


def mark_equal(kinds: Kinds) -> Bool[np.ndarray, " rows"]:
    """Return which rows are equal to the one before them."""
    marks = np.zeros(len(kinds), dtype=bool)
    marks[1:] = kinds[1:] == kinds[:-1]
    return marks


def add_equal(arrays: Mapping[str, Any], kinds: Kinds, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return arrays with which training rows are equal to the one before them, where any rows of all are equal.

    Args:
        arrays: of the rows.
        kinds: which of all rows are equal, split by split.
        counts: how many rows each split has.
    """
    if not has_equal(kinds):
        return dict(arrays)
    return {**arrays, "train_equal": mark_equal(kinds[: counts["train"]])}


def note_earlier(arrays: Mapping[str, Any], facts: Mapping[str, Any], before: Decoded | None) -> Decoded:
    """Return what was decoded, with the fingerprint of what earlier versions decoded, where that is another one."""
    if before is None:
        return arrays, facts
    fingerprint = fingerprint_arrays(before[0])
    if fingerprint == fingerprint_arrays(arrays):
        return arrays, facts
    return arrays, {**facts, "earlier": fingerprint}
