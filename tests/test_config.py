"""Keys: their types, bounds and documentation; every configuration in conf/ composes and is within them."""

from __future__ import annotations

import copy
import math
import re
from functools import cache
from types import NoneType
from typing import Any

import pytest

from normbench.catalog import GROUPS, NOTES, SWEEP_GROUPS, config_directory, options
from normbench.compose import compose
from normbench.config import COMMON_KEYS, KEYS, OPEN_KEYS, OPEN_SECTIONS, UNHASHED_KEYS, lookup, nearest, parse, typed
from normbench.errors import UsageError
from normbench.keys import Key, count, either, show

OPTIONS = [(group, option) for group in GROUPS for option in options(group)]
SWEEP_OPTIONS = [(group, option) for group in SWEEP_GROUPS for option in options(group)]

# Every option in some row: an option of each group at a time, and the experiments by themselves.
ROWS = [
    tuple(
        f"{group}={names[row % len(names)]}"
        for group in GROUPS
        if group != "experiment"
        for names in [[*options(group)]]
    )
    for row in range(max(len(options(group)) for group in GROUPS))
] + [(f"experiment={name}",) for name in options("experiment")]

NUMBERS = [path for path, key in KEYS.items() if {int, float} & {*key.types, *key.items}]


@cache
def composed(*words: str) -> dict[str, Any]:
    composition = compose("train", list(words))
    assert composition is not None
    return composition.tree


@pytest.fixture
def tree() -> dict[str, Any]:
    """The default configuration, free to be changed."""
    return copy.deepcopy(composed())


def with_value(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    section, _, name = path.rpartition(".")
    (tree[section] if section else tree)[name] = value
    return tree


def outside(key: Key) -> list[Any]:
    """Numbers that a key must refuse: not finite, beyond each bound, negative, and absurdly large."""
    wrong: list[Any] = [math.nan, math.inf, -math.inf, -1, 10**400]
    wrong += [key.low - 1] if key.low is not None else []
    wrong += [key.above] if key.above is not None else []
    wrong += [key.high * 1.01 + 1] if key.high is not None else []
    wrong += [key.below] if key.below is not None else []
    return wrong


# ---- one key


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (Key("", (int,), low=1, high=9), 9, 9),
        (Key("", (int,), low=1), 1e3, 1000),  # 1e3 is how people write a thousand
        (Key("", (float,)), 3, 3.0),
        (Key("", (float, NoneType)), None, None),
        (Key("", (str,)), 7, "7"),  # a folder may be named 7
        (Key("", (bool,)), True, True),
        (Key("", (int, str), low=1, choices=("auto",)), "auto", "auto"),
        (Key("", (list,), items=(float,), length=2), [0, 0.5], [0.0, 0.5]),
    ],
)
def test_a_value_takes_the_type_of_its_key(key: Key, value: Any, expected: Any) -> None:
    result = key.check("x", value)
    assert result == expected
    assert type(result) is type(expected)
    if isinstance(expected, list):
        assert [type(item) for item in result] == [type(item) for item in expected]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (Key("", (int,)), True),  # Python takes True for 1
        (Key("", (float,)), False),
        (Key("", (int,)), 1.5),
        (Key("", (int,)), "1"),
        (Key("", (int,)), None),
        (Key("", (int,)), [1]),
        (Key("", (int,)), {"a": 1}),
        (Key("", (bool,)), 1),
        (Key("", (bool,)), "yes"),
        (Key("", (str,), choices=("a", "b")), "c"),
        (Key("", (str,), choices=("1",)), 1),
        (Key("", (str,)), True),
        (Key("", (float,)), 10**400),  # no float holds it
        (Key("", (list,), items=(int,), low=1), []),
        (Key("", (list,), items=(int,), low=1), [1, 0]),
        (Key("", (list,), items=(int,)), [1, "a"]),
        (Key("", (list,), items=(int,)), 1),
        (Key("", (list,), items=(float,), length=2), [0.5]),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(key: Key, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^a\.b=.* is not allowed: use [^\n]+$"):
        key.check("a.b", value)


@pytest.mark.parametrize(
    ("bounds", "inside", "beyond"),
    [
        ({"low": 1, "high": 3}, [1, 3], [0, 4]),
        ({"above": 1, "below": 3}, [2], [1, 3]),
        ({"low": 0}, [0, 10**9], [-1]),
    ],
)
def test_bounds_are_inclusive_or_exclusive_as_declared(
    bounds: dict[str, float], inside: list[int], beyond: list[int]
) -> None:
    key = Key("", (int,), **bounds)  # type: ignore[arg-type]  # mypy cannot tell which keyword
    assert [key.check("x", value) for value in inside] == inside
    for value in beyond:
        with pytest.raises(UsageError):
            key.check("x", value)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (Key("", (int,), "steps", low=1, high=1000), "an integer from 1 to 1,000 (steps)"),
        (Key("", (int, NoneType), low=1), "an integer from 1, or null"),
        (Key("", (float,), low=0, below=1), "a number from 0 to below 1"),
        (Key("", (float,), above=0, high=1e3), "a number above 0 up to 1,000"),
        (Key("", (str,), choices=("a", "b", "c")), "a, b or c"),
        (Key("", (int, str), low=1, high=8, choices=("auto",)), "auto or an integer from 1 to 8"),
        (Key("", (list,), items=(float,), length=2, low=0, below=1), "a list of 2 numbers from 0 to below 1"),
        (Key("", (bool,)), "true or false"),
        (Key("", (str, NoneType)), "text or null"),
    ],
)
def test_what_is_allowed_is_said_in_words(key: Key, words: str) -> None:
    assert key.allowed == words


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (0, "0"), (1, "1"), (1e-5, "1e-05"), (2.0, "2"), ([1, None], "[1,null]"),
     ({"a": False}, "{a:false}"), ("", ""), (math.nan, "nan")],
)  # fmt: skip
def test_values_are_shown_as_one_types_them(value: Any, text: str) -> None:
    assert show(value) == text


def test_words_for_lists_and_numbers() -> None:
    assert [either("a"), either("ab"), either("abc")] == ["a", "a or b", "a, b or c"]
    assert either(["one a", "b"]) == "one a, or b"
    assert [count(10**6), count(1e6), count(0.05)] == ["1,000,000", "1,000,000", "0.05"]
    assert nearest("rmsnrm", ["rmsnorm", "dyt"]) == "did you mean rmsnorm? "
    assert nearest("xyz", ["rmsnorm"]) == ""


# ---- the table of keys


@pytest.mark.parametrize("path", KEYS)
def test_every_key_says_in_one_line_what_it_is(path: str) -> None:
    key = KEYS[path]
    assert re.fullmatch(r"\S.{3,90}\S", key.doc)
    assert key.types
    assert not {int, float} & set(key.types) or key.low is not None or key.above is not None
    assert not {int, float} & set(key.types) or key.high is not None or key.below is not None


def test_the_lists_of_keys_name_keys_that_exist() -> None:
    assert set(COMMON_KEYS) <= set(KEYS)
    assert set(UNHASHED_KEYS) <= set(KEYS)
    assert 20 <= len(COMMON_KEYS) == len(set(COMMON_KEYS)) <= 30
    assert {path.partition(".")[0] for path in OPEN_KEYS} <= set(OPEN_SECTIONS) <= set(GROUPS)
    assert set(NOTES) <= set(GROUPS)


@pytest.mark.parametrize("path", NUMBERS)
def test_every_number_has_bounds_that_hold(path: str, tree: dict[str, Any]) -> None:
    key = KEYS[path]
    for number in outside(key):
        value = [number] * (key.length or 1) if key.items else number
        with pytest.raises(UsageError, match=rf"^{re.escape(path)}=.* is not allowed: use "):
            typed(with_value(tree, path, value))


@pytest.mark.parametrize("path", KEYS)
def test_every_key_refuses_values_of_other_types(path: str, tree: dict[str, Any]) -> None:
    key = KEYS[path]
    wrong: list[Any] = [{"a": 1}, [{"a": 1}] if str in key.items else ["x"]]
    wrong += [] if NoneType in key.types else [None]
    wrong += [] if bool in key.types else [True]
    wrong += [] if str in key.types and not key.choices else ["abc"]
    wrong += [] if {int, float} & {*key.types, *key.items} or (str in key.types and not key.choices) else [3]
    for value in wrong:
        with pytest.raises(UsageError, match=rf"^{re.escape(path)}=.* is not allowed: use "):
            typed(with_value(tree, path, value))


# ---- a whole configuration


def test_typed_values_are_the_same_however_they_are_written(tree: dict[str, Any]) -> None:
    with_value(tree, "trainer.steps", 1e3)
    with_value(tree, "optim.lr", 1)
    before = copy.deepcopy(tree)
    result = typed(tree)
    assert (result["trainer"]["steps"], type(result["trainer"]["steps"])) == (1000, int)
    assert (result["optim"]["lr"], type(result["optim"]["lr"])) == (1.0, float)
    assert tree == before
    assert parse(tree) == parse(result)


def test_the_words_of_a_users_class_are_its_own(tree: dict[str, Any]) -> None:
    tree["model"] |= {"_target_": "mine.Model", "position": "alibi", "depth": 3}
    assert typed(tree)["model"]["position"] == "alibi"
    assert typed(with_value(tree, "model.depth", 0))["model"]["depth"] == 0
    with pytest.raises(UsageError, match=r"^optim\.lr=0 is not allowed"):
        typed(with_value(tree, "optim.lr", 0))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"trainer.steps": None, "trainer.epochs": None}, "trainer.steps and trainer.epochs are both null: set one"),
        ({"model.heads": 3}, "model.width=128 is not divisible by model.heads=3: set model.heads to 2 or 4"),
        ({"model.width": 130}, "model.width=130 is not divisible by model.heads=4: set model.heads to 2 or 5"),
        ({"norm.groups": 5}, "norm.groups=5 does not divide model.width=128: set norm.groups to 4 or 8"),
        ({"norm.groups": 256}, "norm.groups=256 does not divide model.width=128: set norm.groups to 128"),
        ({"data.context": 32}, "data.context=32 is not model.context=64: set model.context alone"),
        ({"device": "tpu"}, "device=tpu is unknown: use auto, cpu, cuda, cuda:N or mps"),
        ({"device": "cuda:x"}, "device=cuda:x is unknown"),
        ({"name": "a/b"}, "name=a/b cannot name a folder"),
        ({"name": ".."}, "name=.. cannot name a folder"),
        ({"name": "x" * 101}, "cannot name a folder"),
        ({"outputs": ""}, "outputs is empty: give a folder"),
        ({"norm": None}, "norm has no _target_"),
        ({"norm._target_": None}, "norm has no _target_"),
        ({"optim": 3}, "optim has no _target_"),
        ({"trainer": 3}, "trainer=3 is not allowed: it is a section, set its keys, such as trainer.steps"),
        ({"trainer.stepz": 3}, "trainer.stepz is unknown: did you mean steps?"),
        ({"foo": 3}, "foo is unknown: allowed are trainer, probes, name"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_together_is_refused(
    changes: dict[str, Any], complaint: str, tree: dict[str, Any]
) -> None:
    for path, value in changes.items():
        with_value(tree, path, value)
    with pytest.raises(UsageError, match=re.escape(complaint)):
        parse(tree)


def test_keys_of_a_users_class_are_its_own(tree: dict[str, Any]) -> None:
    """All but the learning rate, which the schedule multiplies."""
    tree["model"] = {"_target_": "own.Model", "blocks": 3, "width": [5, 7], "heads": 3, "context": "all"}
    tree["norm"] |= {"_target_": "own.Norm", "eps": -1, "groups": 0.5}
    tree["optim"] = {"_target_": "own.Optimizer", "betas": 3, "lr": 1}
    found = typed(tree)
    assert found["model"] == tree["model"] and found["norm"] == tree["norm"]
    assert type(found["optim"]["lr"]) is float
    parse(tree)
    tree["optim"]["lr"] = 0
    with pytest.raises(UsageError, match=r"^optim\.lr=0 is not allowed"):
        typed(tree)


def test_a_missing_key_is_named(tree: dict[str, Any]) -> None:
    del tree["trainer"]["steps"]
    with pytest.raises(UsageError, match=r"^trainer\.steps is missing"):
        parse(tree)


# ---- conf/


@pytest.mark.parametrize("words", ROWS, ids=" ".join)
def test_every_option_composes_within_the_bounds_and_sets_documented_keys_only(words: tuple[str, ...]) -> None:
    tree = composed(*words)
    parse(tree)
    for section in OPEN_SECTIONS:
        undocumented = [f"{section}.{name}" for name in tree[section] if f"{section}.{name}" not in KEYS]
        assert [path for path in undocumented if not path.endswith(("._target_", "._partial_"))] == []


def test_the_rows_hold_every_option() -> None:
    assert {word for words in ROWS for word in words} == {f"{group}={option}" for group, option in OPTIONS}


@pytest.mark.parametrize(("group", "option"), [*OPTIONS, *SWEEP_OPTIONS])
def test_every_option_is_described_in_one_line(group: str, option: str) -> None:
    assert re.fullmatch(r"\S.{5,150}\S", options(group)[option])


def test_every_folder_of_conf_is_a_group() -> None:
    assert {path.name for path in config_directory().iterdir() if path.is_dir()} == {*GROUPS, *SWEEP_GROUPS}
    assert all(options(group) for group in (*GROUPS, *SWEEP_GROUPS))


def test_every_setting_of_the_open_sections_occurs_in_an_option() -> None:
    """A documented key that nothing has any more is a key too many."""
    settings = {
        f"{section}.{name}" for words in ROWS for section in OPEN_SECTIONS for name in composed(*words)[section]
    }
    assert set(OPEN_KEYS) <= settings


def test_the_default_of_every_closed_key_is_in_the_root_configuration(tree: dict[str, Any]) -> None:
    for path in set(KEYS) - set(OPEN_KEYS):
        lookup(tree, path)
