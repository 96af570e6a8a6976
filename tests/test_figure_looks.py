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

from normbench.analysis.figures.finals import cell_colors
from normbench.analysis.figures.panels import near
from normbench.analysis.figures.style import DARK, EMPTY, FAINT, NORMS, OWN, colors_of

PAGE, DARK_PAGE = "#ffffff", "#14171b"


# ---- colours


def test_a_norm_has_one_colour_in_every_study(tmp_path: Path) -> None:
    make_study(tmp_path / "a", {"rmsnorm": [2.0, 2.1], "mine": [2.2, 2.3]})
    make_study(tmp_path / "b", {"layernorm": [2.0], "dyt": [2.0], "mine": [2.0], "none": [2.1], "rmsnorm": [2.2]})
    for folder in ("a", "b"):
        for name in ("loss-val-steps", "step-time-loss"):
            text = rendered(sketched(tmp_path / folder)[name])
            colors = colors_of("norm", ["rmsnorm", "mine"])
            assert colors["rmsnorm"] in text and colors["mine"] in text


def test_a_persons_own_norms_share_no_colour_with_ours_or_each_other() -> None:
    names = [f"own{number}" for number in range(8)]
    colors = colors_of("norm", [*names, "layernorm"])
    assert {colors[name] for name in names} == set(OWN) and not set(OWN) & set(NORMS.values())
    assert colors == colors_of("norm", ["layernorm", *reversed(names)])
    many = colors_of("norm", [f"own{number}" for number in range(20)])
    assert set(many.values()) == {*OWN, *NORMS.values()}


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


def test_the_better_cell_is_the_darker_one() -> None:
    fills = [cell_colors(badness, 2.0, 3.0) for badness in (2.0, 2.5, 3.0, 9.0)]
    contrasts = [contrast(fill, PAGE) for fill, _ in fills]
    assert contrasts[0] > contrasts[1] > contrasts[2] == contrasts[3]
    assert all(contrast(*colors) >= 4 for colors in fills)


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
