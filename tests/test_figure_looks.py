"""How figures look: colours, and what keeps them readable."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study
from sketches import sketched

from normbench.analysis.figures.style import DARK, EMPTY, FAINT, NORMS, OWN, colors_of, near

PAGE, DARK_PAGE = "#ffffff", "#14171b"

# What is left of linear RGB without one kind of cone: Machado, Oliveira and Fernandes 2009, table 1, severity 1.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# From linear RGB to what cones see, and from the cube root of that to OKLab (Ottosson 2020).
TO_CONES = [[0.412221, 0.536333, 0.051446], [0.211903, 0.680700, 0.107397], [0.088302, 0.281719, 0.629979]]
TO_LAB = [[0.210454, 0.793618, -0.004072], [1.977998, -2.428592, 0.450594], [0.025904, 0.782772, -0.808676]]


def linear(color: str) -> np.ndarray:
    """Return `#rrggbb` as linear RGB (3,)."""
    value = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2)."""
    dark, light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (first, second))
    return (light + 0.05) / (dark + 0.05)


def seen(color: str, blindness: str) -> np.ndarray:
    """Return a colour in OKLab (3,), where equal distances look equal, as people with a colour blindness see it."""
    return TO_LAB @ np.cbrt(TO_CONES @ np.clip(np.array(BLINDNESS[blindness]) @ linear(color), 0, 1))


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
    for colors in (list(NORMS.values()), [DARK[color] for color in NORMS.values()]):
        places = [seen(color, blindness) for color in colors]
        assert (
            min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)) >= 0.045
        )  # twice what is just seen


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
    for norm, placement in itertools.product(("layernorm", "rmsnorm", "n" * 60), ("pre", "post", "deep")):
        make_run(tmp_path, norm=norm, placement=placement, name=f"{norm[:9]}-{placement}", probed=20)
    figures = sketched(tmp_path)
    for name in ("loss-val-steps", "norm-placement", "step-time-loss", "gradient-norm-depth"):
        canvas = figures[name].canvas
        canvas.draw_without_rendering()
        words, page = canvas.get_tightbbox(), canvas.bbox_inches
        assert words.x0 >= 0 and words.y0 >= 0 and words.x1 <= page.x1 and words.y1 <= page.y1, name
