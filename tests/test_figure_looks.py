"""How figures look: colours, and what keeps them readable."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from color_vision import BLINDNESS, contrast, distance
from made_runs import make_run, make_study
from matplotlib.collections import LineCollection
from matplotlib.transforms import Bbox
from sketches import rendered, sketched

from normbench.analysis.figures.canvas import near
from normbench.analysis.figures.forest import STACK, stacked
from normbench.analysis.figures.heatmap import painter
from normbench.analysis.figures.palette import DARK, EMPTY, FAINT, NORMS, OWN, norm_color

PAGE, DARK_PAGE = "#ffffff", "#14171b"


# ---- colours


def test_a_norm_has_one_colour_in_every_study(tmp_path: Path) -> None:
    make_study(tmp_path / "a", {"rmsnorm": [2.0, 2.1], "mine": [2.2, 2.3]})
    make_study(tmp_path / "b", {"layernorm": [2.0], "dyt": [2.0], "mine": [2.0], "none": [2.1], "rmsnorm": [2.2]})
    for folder in ("a", "b"):
        for name in ("loss-val-steps", "step-time-loss"):
            text = rendered(sketched(tmp_path / folder)[name])
            assert norm_color("rmsnorm") in text and norm_color("mine") in text


def test_a_persons_own_norm_has_no_colour_of_ours() -> None:
    assert not {norm_color(f"own{number}") for number in range(50)} & set(NORMS.values())


def test_a_persons_own_norms_share_no_colour_in_a_study() -> None:
    names = [f"own{number}" for number in range(8)]
    colors = {name: norm_color(name, {*names, "layernorm"}) for name in names}
    assert len(set(colors.values())) == len(names)
    assert colors == {name: norm_color(name, {"layernorm", *reversed(names)}) for name in names}
    many = {f"own{number}" for number in range(20)}
    assert {norm_color(name, many) for name in many} == set(OWN)


def test_colours_stand_out_from_a_light_page_and_a_dark_one() -> None:
    for light, dark in DARK.items():
        if light not in (FAINT, EMPTY):
            assert contrast(light, PAGE) >= 3, light
            assert contrast(dark, DARK_PAGE) >= 3, dark
    assert set(NORMS.values()) <= set(DARK)


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_norms_can_be_told_apart(blindness: str) -> None:
    assert distance("#ffffff", "#000000", "none") == pytest.approx(100, abs=0.1)
    for colors in (list(NORMS.values()), [DARK[color] for color in NORMS.values()]):
        assert min(distance(a, b, blindness) for a, b in itertools.combinations(colors, 2)) >= 11


# ---- what keeps them readable


def test_dots_of_equal_seeds_stand_below_each_other() -> None:
    assert stacked([0.0, 1.0, 0.0, 0.05, 3.0], 0.1) == pytest.approx([0, 0, 0.13, 0.26, 0])
    assert max(stacked([0.0] * 20, 0.1)) == pytest.approx(STACK)


@pytest.mark.parametrize(("worse", "best"), [(1, 2.0), (-1, 3.0)])
def test_the_better_cell_is_the_darker_one(worse: int, best: float) -> None:
    paint = painter([2.0, 2.5, 3.0], worse)
    cells = {value: contrast(paint(value)[0], PAGE) for value in (2.0, 2.5, 3.0)}
    assert max(cells, key=lambda value: cells[value]) == best
    assert all(contrast(*paint(value)) >= 4.5 for value in cells)


def test_an_arm_far_off_does_not_squeeze_the_others() -> None:
    assert near([2.0, 2.1, 2.05, 9.0]) == (2.0, 2.1)
    assert near([2.0, 2.1, 2.05, 2.2]) == (2.0, 2.2)
    assert near([2.0, 3.0]) == (2.0, 3.0) and near([2.0, 2.0, 5.0]) == (2.0, 5.0)


def test_names_beside_markers_cover_no_line_and_tell_what_the_axis_does_not(tmp_path: Path) -> None:
    for place, norm in enumerate(("layernorm", "rmsnorm", "dyt", "none")):
        for seed in range(3):
            final = 9.0 if norm == "none" else 2 + 0.02 * place + 0.02 * seed
            make_run(tmp_path, norm=norm, seed=seed, final=final, step_ms=10 + 0.3 * place + 0.4 * seed)
    drawing = sketched(tmp_path)["step-time-loss"]
    (axes,) = drawing.canvas.axes
    drawing.canvas.draw_without_rendering()
    assert {text.get_text() for text in axes.texts} >= {"layernorm", "none ↑ 9"}
    segments = [
        part for lines in axes.collections if isinstance(lines, LineCollection) for part in lines.get_segments()
    ]
    assert len(segments) == 8
    for text, segment in itertools.product(axes.texts, segments):
        (left, low), (right, high) = axes.transData.transform(segment)
        assert not text.get_window_extent().overlaps(Bbox.from_extents(left, low, right, high)), text
    assert axes.get_ylim()[1] < 3 and "beyond the axis" in drawing.caption


def test_arms_that_have_not_finished_are_named(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    make_run(tmp_path, norm="rmsnorm", status="running")
    assert sketched(tmp_path)["loss-train-steps"].caption.endswith("Not finished yet: rmsnorm.")
