"""Tables in the width of a terminal: no word is cut, no number is lost, and no line is longer than the terminal."""

from __future__ import annotations

import io
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from normbench.show.narrow import grids
from normbench.show.tables import Table

COSTS = pd.DataFrame(
    {
        "norm": ["layernorm"] * 2,
        "implementation": ["torch", "compile"],
        "code": ["torch.nn.functional.layer_norm", "torch.compile"],
        "time (µs)": ["30.8 [26.7, 61.8]", "71.3 [58.2, 1,149]"],
        "× torch.nn.LayerNorm": ["1.97 [1.54, 3.92]", "3.84 [3.36, 7.51]"],
        "peak memory (× input)": ["1.00", "3.00"],
    }
)


def drawn(table: Table, width: int) -> str:
    """What a terminal of a width shows of a table."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    for title, grid, below in grids(table, width):
        console.print(Text(title))
        console.print(grid)
        console.print(Text(below))
    return out.getvalue()


def test_what_fits_is_as_it_is() -> None:
    lines = drawn(Table("costs", "Costs", COSTS, heads=3), 200).splitlines()
    assert lines[0] == "Costs" and lines[-1] == "" and re.split(r"  +", lines[1].strip()) == [*COSTS.columns]
    assert [re.split(r"  +", line.strip()) for line in lines[3:-1]] == COSTS.to_numpy().tolist()


def test_what_is_the_same_everywhere_goes_into_the_title() -> None:
    shown = drawn(Table("costs", "Costs", COSTS, heads=3), 120)
    assert shown.startswith("Costs; norm = layernorm") and "torch.nn.functional.layer_norm" in shown


def test_numbers_are_whole_where_words_are_as_wide_as_the_terminal() -> None:
    shown = drawn(Table("costs", "Costs", COSTS, heads=3), 60)
    assert {"[26.7, 61.8]", "[58.2, 1,149]", "[3.36, 7.51]"} <= {*re.findall(r"\[.*?\]", shown.replace("\xa0", " "))}
    frame = pd.DataFrame([["/a/path/" + "x" * 90, "1.2345"]], columns=["setting", "value"])
    shown = drawn(Table("one", "One", frame), 40)
    assert "1.2345" in shown and max(map(len, shown.splitlines())) <= 40


def test_words_for_which_others_stand_in_several_rows_go_below() -> None:
    twice = pd.concat([COSTS, COSTS], ignore_index=True)
    twice.insert(3, "passes", ["forward", "forward", "both", "both"])
    shown = drawn(Table("costs", "Costs", twice, heads=4), 70)
    said = "code: torch.nn.functional.layer_norm (torch); torch.compile (compile)"
    assert said in " ".join(shown.split()) and "torch.compile" not in shown.split("code:")[0]


def test_no_column_is_lost() -> None:
    """Nor one of words that tells no rows apart, nor one of two with the same name, nor an empty one."""
    rows = [["norm", "q" * 70, "w" * 70, "", "1", "2"], ["placement", "x" * 70, "z" * 70, "", "1", "2"]]
    frame = pd.DataFrame(rows, columns=["setting", "first", "second", "", "95 % interval", "95 % interval"])
    shown = drawn(Table("settings", "What differs", frame, heads=4), 80)
    times = shown.count("setting")  # in how many parts the words are
    assert [shown.count(letter) for letter in "qxz"] == [70 * times] * 3
    assert shown.count("w") == shown.count("z")
    assert shown.split().count("1") == shown.split().count("2") == 2


@pytest.mark.parametrize("width", [80, 100])
def test_no_word_is_cut(width: int) -> None:
    shown = drawn(Table("costs", "Costs", COSTS, heads=3), width)
    words = {word for cell in (*COSTS.columns, *COSTS.to_numpy().ravel()) for word in cell.split()}
    assert {*shown.split()} - words <= {
        "Costs",
        "Costs;",
        "=",
        "(continued)",
        "layernorm",
        "─" * width,
        *re.findall("─+", shown),
    }
    assert max(map(len, shown.splitlines())) <= width


@given(
    st.integers(40, 90),
    st.integers(1, 3),
    st.lists(st.lists(st.integers(0, 10**9), min_size=6, max_size=6), min_size=1, max_size=4),
)
def test_every_number_is_shown_once(width: int, heads: int, numbers: list[list[int]]) -> None:
    """Beside words that name its row."""
    rows = [[*(f"w{row}x{column}" for column in range(heads)), *map(str, values)] for row, values in enumerate(numbers)]
    columns = [*(f"word{place}" for place in range(heads)), *(f"number {place}" for place in range(6))]
    shown = drawn(Table("some", "Some", pd.DataFrame(rows, columns=columns), heads=heads), width)
    lines = [line for line in shown.splitlines() if re.match(r"w\d", line)]
    found = sorted(int(word) for line in lines for word in line.split() if word.isdigit())
    assert found == sorted(number for values in numbers for number in values)
