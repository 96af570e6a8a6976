"""How figures look: colours, and what keeps them readable."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from color_vision import BLINDNESS, contrast, distance
from made_runs import make_run, make_study
from sketches import sketched

from normbench.analysis.figures.style import DARK, EMPTY, FAINT, NORMS, OWN, colors_of, near

PAGE, DARK_PAGE = "#ffffff", "#14171b"


# ---- colours


def test_a_norm_has_one_colour_in_every_study(tmp_path: Path) -> None:
    make_study(tmp_path / "a", {"rmsnorm": [2.0, 2.1], "mine": [2.2, 2.3]})
    make_study(tmp_path / "b", {"layernorm": [2.0], "dyt": [2.0], "mine": [2.0], "none": [2.1], "rmsnorm": [2.2]})
    colors = colors_of("norm", ["rmsnorm", "mine"])
    for folder, name in (("a", "loss-val-steps"), ("b", "step-time-loss")):
        text = sketched(tmp_path / folder)[name].svg
        assert colors["rmsnorm"] in text and colors["mine"] in text


def test_a_persons_own_norms_share_no_colour_with_ours_or_each_other() -> None:
    names = [f"own{number}" for number in range(8)]
    colors = colors_of("norm", [*names, "layernorm"])
    assert {colors[name] for name in names} == set(OWN) and not set(OWN) & set(NORMS.values())
    assert colors == colors_of("norm", ["layernorm", *reversed(names)])


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


def test_an_arm_far_off_does_not_squeeze_the_others(tmp_path: Path) -> None:
    assert near([2.0, 2.1, 2.05, 9.0]) == (2.0, 2.1)
    assert near([2.0, 2.1, 2.05, 2.2]) == (2.0, 2.2)
    assert near([2.0, 3.0]) == (2.0, 3.0) and near([2.0, 2.0, 5.0]) == (2.0, 5.0)
    assert near([90.0, 91.0, 90.5, 40.0], lower_is_better=False) == (90.0, 91.0)
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.05, 2.1], "dyt": [2.1, 2.0], "none": [9.0, 9.1]})
    drawing = sketched(tmp_path)["step-time-loss"]
    assert drawing.canvas.axes[0].get_ylim()[1] < 3 and drawing.caption.endswith(" Beyond the axis: none.")


def test_nothing_is_cut_off(tmp_path: Path) -> None:
    for norm, placement, seed in itertools.product(("rmsnorm", "n" * 60), ("pre", "post", "deep"), range(2)):
        name, final = f"{norm[:9]}-{placement}-{seed}", 2 + 0.1 * seed * (placement == "post")
        make_run(tmp_path, norm=norm, placement=placement, seed=seed, name=name, final=final, probed=20)
    figures = sketched(tmp_path, {"placement": "pre"})
    for name in ("loss-val-steps", "norm-placement", "step-time-loss", "gradient-norm-depth", "differences"):
        canvas = figures[name].canvas
        canvas.draw_without_rendering()
        words, page = canvas.get_tightbbox(), canvas.bbox_inches
        assert words.x0 >= 0 and words.y0 >= 0 and words.x1 <= page.x1 and words.y1 <= page.y1, name
