"""How figures look: colours, and what keeps them readable."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from color_vision import BLINDNESS, contrast, distance
from made_runs import make_run, make_study, read_study
from matplotlib.text import Text
from sketches import sketched

from normbench.config.groups import options
from normbench.evidence.arms import Arm
from normbench.show.figures import draw_all, fitting, plots, style
from normbench.show.figures.plots import near_range
from normbench.show.figures.style import DARK, FAINT, NORMS, OWN, colors_of
from normbench.wording import brief

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
    assert {colors[name] for name in names} == set(OWN)
    assert set(OWN).isdisjoint(NORMS.values())
    assert colors == colors_of("norm", ["layernorm", *reversed(names)])


def test_colours_stand_out_from_a_light_page_and_a_dark_one() -> None:
    for light, dark in DARK.items():
        if light != FAINT:
            assert contrast(light, PAGE) >= 3, light
            assert contrast(dark, DARK_PAGE) >= 3, dark
    assert set(NORMS.values()) <= set(DARK)


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_norms_can_be_told_apart(blindness: str) -> None:
    assert distance("#ffffff", "#000000", "none") == pytest.approx(100, abs=0.1)
    light = list(NORMS.values())
    dark = [DARK[color] for color in light]
    for colors in (light, dark):
        for one, other in itertools.combinations(colors, 2):
            assert distance(one, other, blindness) >= 11


# ---- what keeps them readable


def test_an_arm_far_off_does_not_squeeze_the_others(tmp_path: Path) -> None:
    assert near_range([2.0, 2.1, 2.05, 9.0]) == (2.0, 2.1)
    assert near_range([2.0, 2.1, 2.05, 2.2]) == (2.0, 2.2)
    assert near_range([2.0, 3.0]) == (2.0, 3.0) and near_range([2.0, 2.0, 5.0]) == (2.0, 5.0)
    assert near_range([90.0, 91.0, 90.5, 40.0], lower_is_better=False) == (90.0, 91.0)
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.05, 2.1], "dyt": [2.1, 2.0], "none": [9.0, 9.1]})
    drawing = sketched(tmp_path)["step-time-loss"]
    assert drawing.canvas.axes[0].get_ylim()[1] < 3
    assert drawing.caption.endswith(" Beyond the axis, with an arrow: none.")


def test_a_value_out_of_range_is_at_the_edge_with_an_arrow_and_never_among_others(tmp_path: Path) -> None:
    arms = {
        "layernorm": [2.5, 2.51, 2.49],
        "rmsnorm": [2.48, 2.489, 2.471],
        "dyt": [2.52, 2.532, 2.508],
        "none": [3.34, 3.35, 3.36],
    }
    make_study(tmp_path, arms)
    figures = sketched(tmp_path)
    (pane,) = figures["step-time-loss"].canvas.axes
    (arrow,) = [text for text in pane.texts if text.get_text().startswith("↑")]
    assert arrow.get_text() == "↑ 3.3500" and pane.get_ylim()[1] < 2.6  # where it would be is off the axis
    drawn = [line.get_ydata() for line in pane.lines if line.get_transform() == pane.transData]
    assert np.concatenate(drawn).max() == pytest.approx(3.35)
    close, whole = figures["differences"].canvas.axes
    assert close.get_xlim()[1] < 0.1 and whole.get_xlim()[1] > 0.85
    at_edge = [line.get_marker() for line in close.lines if line.get_transform() == close.get_yaxis_transform()]
    assert at_edge == [">"] and "arrows to what is beyond" in figures["differences"].caption


@pytest.mark.slow
def test_arms_can_be_told_apart_in_grey(tmp_path: Path) -> None:
    norms = ("layernorm", "rmsnorm", "dyt", "groupnorm", "batchnorm", "none")
    make_study(tmp_path / "norms", {norm: [2.0, 2.1] for norm in norms})
    for placement in ("pre", "post"):
        make_study(tmp_path / "crossed", {norm: [2.0, 2.1] for norm in norms[:3]}, placement=placement)
    for folder in ("norms", "crossed"):
        study = read_study([tmp_path / folder])
        (panel,) = style.panels_of(study.arms)
        looks = {(entry.dash, entry.marker) for entry in panel.entries}
        assert len(looks) == 6
        canvas = sketched(tmp_path / folder)["loss-val-steps"].canvas
        names = {entry.label for entry in panel.entries}
        labels = [text for text in canvas.findobj(Text) if text.get_text() in names]
        assert len(labels) == 6
        canvas.draw_without_rendering()
        places = [text.get_window_extent() for text in labels]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(places, 2))
        assert len(canvas.legends) == (folder == "crossed")  # short names stand at the ends of their lines


def test_a_loss_far_above_the_others_is_named_at_the_edge_of_its_figure(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.05, 2.1], "dyt": [2.1, 2.0], "none": [9.0, 9.1]})
    figure = sketched(tmp_path)["loss-val-steps"]
    (pane,) = figure.canvas.axes
    assert pane.get_ylim()[1] < 4.5 and "Above the axis, with an arrow: none." in figure.caption
    assert [text.get_text() for text in pane.texts if "↑" in text.get_text()] == ["no norm ↑"]


def test_a_norm_has_its_proper_name(tmp_path: Path) -> None:
    for norm, cls in (("layernorm", "LayerNorm"), ("dyt", "DyT"), ("mine", "RMSNorm"), ("prmsnorm", "PartialRMSNorm")):
        make_run(tmp_path, norm=norm, settings={"norm._target_": f"normbench.norms.{cls}"})
    (pane,) = sketched(tmp_path)["loss-val-steps"].canvas.axes
    assert {text.get_text() for text in pane.texts} == {"LayerNorm", "DyT", "mine", "pRMSNorm"}


@pytest.mark.parametrize("values", [(0.2, 0.9), (0.98, 1.02), (3e-4, 3e-2), (1e-6, 10.0), (4.0, 6.0)])
def test_a_logarithmic_axis_has_three_ticks(values: tuple[float, float]) -> None:
    with style.use_our_style():
        axes = plots.blank(2).subplots()
    axes.plot([0, 1], values)
    fitting.set_log(axes.yaxis, 1.5)
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3


def test_a_figure_is_as_wide_as_wanted(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.05, 2.1]})
    study = read_study([tmp_path])
    for figure in draw_all(study, {"norm": "layernorm"}, width=5.5):
        assert figure.canvas.get_figwidth() == 5.5


def test_nothing_is_cut_off(tmp_path: Path) -> None:
    for norm, placement, seed in itertools.product(("rmsnorm", "n" * 60), ("pre", "post", "deep"), range(2)):
        name = f"{norm[:9]}-{placement}-{seed}"
        final = 2.0 + 0.1 * seed if placement == "post" else 2.0
        make_run(tmp_path, norm=norm, placement=placement, seed=seed, name=name, final=final, probed=20)
    figures = sketched(tmp_path, {"placement": "pre"})
    for name in ("loss-val-steps", "interaction-norm-placement", "gradient-norm-depth", "differences"):
        canvas = figures[name].canvas
        canvas.draw_without_rendering()
        words, page = canvas.get_tightbbox(), canvas.bbox_inches
        assert words.x0 >= 0 and words.y0 >= 0 and words.x1 <= page.x1 and words.y1 <= page.y1, name


def test_a_long_name_of_what_differs_is_written_in_lines(tmp_path: Path) -> None:
    for norm, seed in itertools.product(("layernorm", "rmsnorm"), range(2)):
        make_run(tmp_path, norm=norm, seed=seed, accuracy=0.9 + 0.01 * seed)
    canvas = sketched(tmp_path)["differences"].canvas
    canvas.draw_without_rendering()
    (label,) = (text for text in canvas.findobj(Text) if "difference of the" in text.get_text())
    assert "accuracy (percentage points)" in label.get_text().replace("\n", " ")
    words, page = label.get_window_extent(), canvas.bbox
    assert words.x0 >= 0 and words.y0 >= 0 and words.x1 <= page.x1


def test_numbers_of_a_logarithmic_axis_are_short() -> None:
    numbers = (0.5, 0.001, 1e-4, 1.5e-5, 1e-12, 10_000, 100_000, 2e20)
    assert [brief(number) for number in numbers] == [
        "0.5", "0.001", "1e-4", "1.5e-5", "1e-12", "10000", "1e5", "2e20",
    ]  # fmt: skip


def test_ticks_of_many_decades_stand_apart() -> None:
    with style.use_our_style(7.0):
        axes = plots.blank(2.0).subplots()
    axes.plot([1e-4, 1e4], [1e-13, 1])
    fitting.set_log(axes.xaxis, 2.0)
    assert 3 <= len(axes.get_xticks()) <= 5


LONG = "mypackage.norms.AVeryLongNormalizationOf"
ARMS = {
    2: (["layernorm", f"{LONG}Mine"], ["pre"]),
    5: (["layernorm"], ["pre", "post", "post_inside", "sandwich", "parallel"]),
    12: (["layernorm", "rmsnorm", f"{LONG}Mine", f"{LONG}Yours"], ["pre", "post_inside", "sandwich"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", ARMS)
def test_no_words_stand_on_each_other(tmp_path: Path, number: int) -> None:
    """Of few and many arms with long names, in figures of each kind: ticks, labels, names and legends."""
    for place, (norm, placement) in enumerate(itertools.product(*ARMS[number])):
        for seed in range(2):
            final = 2 + 0.01 * place + 0.02 * seed * (place % 3)
            make_run(
                tmp_path, norm=norm, placement=placement, seed=seed, name=f"{place}-{seed}", final=final, probed=20
            )
    kinds = ("differences", "interaction", "loss-val-steps", "step-time", "gradient-norm-depth")
    for name, figure in sketched(tmp_path).items():
        places = words_of(figure.canvas) if name.startswith(kinds) else []
        for (one, own), (other, its) in itertools.combinations(places, 2):
            width, height = np.minimum(own.max, its.max) - np.maximum(own.min, its.min)
            assert width < 2 or height < 2, (name, one, other)


def words_of(canvas: Any) -> list[tuple[str, Any]]:
    """The words of a drawn figure and where they stand, in pixels; of ticks those within the axes."""
    canvas.draw_without_rendering()
    shown, aside = list[Text](), set[Text]()
    for pane in canvas.axes:
        for axis in (pane.xaxis, pane.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.majorTicks, *axis.minorTicks):
                aside |= {tick.label1, tick.label2}
            shown += [tick.label1 for tick in axis.majorTicks if low <= tick.get_loc() <= high]
    shown += [text for text in canvas.findobj(Text) if text not in aside]
    found = []
    for text in shown:
        if text.get_visible() and text.get_text().strip():
            found.append((text.get_text(), text.get_window_extent()))
    return found


def test_words_are_broken_where_there_is_no_room() -> None:
    with style.use_our_style():
        lines = fitting.wrap("GroupNorm · batch_size=2 · accumulate=16 − batchnorm", 1.5)
        assert all(fitting.breadth(line) <= 1.5 for line in lines)
        assert (
            " ".join(lines).replace("\N{NO-BREAK SPACE}", " ") == "GroupNorm · batch_size=2 · accumulate=16 − batchnorm"
        )
        assert fitting.breadth(fitting.fit("n" * 60, 1.0)) <= 1.0 < fitting.breadth("n" * 60)


def test_arms_whose_names_differ_in_the_middle_are_told_apart(tmp_path: Path) -> None:
    names = [f"package.of.somebody.with.norms.{word}.that.have.names.as.long.as.this.one" for word in ("mine", "yours")]
    for name in names:
        make_run(tmp_path, norm=name, name=name[29:34], settings={"norm._target_": name})
    figures = sketched(tmp_path, {"norm": names[0]})
    legend = figures["loss-train-steps"].canvas.legends[0]
    assert len({text.get_text() for text in legend.get_texts()}) == 2


def test_words_below_an_axis_do_not_stand_on_each_other(tmp_path: Path) -> None:
    placements = ["pre", "post", "post_inside", "sandwich", "parallel", "a_placement_of_mine", "plain"]
    for norm, placement in itertools.product(("layernorm", "rmsnorm"), placements):
        make_run(tmp_path, norm=norm, placement=placement)
    canvas = sketched(tmp_path)["interaction-norm-placement"].canvas
    canvas.draw_without_rendering()
    labels = canvas.axes[0].get_xticklabels()
    assert {label.get_text() for label in labels} >= {"post_inside", "sandwich", "parallel"}
    assert {label.get_rotation() for label in labels} == {40.0}
    words, page = canvas.get_tightbbox(), canvas.bbox_inches
    assert words.x0 >= 0 and words.y0 >= 0 and words.x1 <= page.x1 and words.y1 <= page.y1
    axis = canvas.axes[0].xaxis.label
    assert axis.get_text() == "placement"
    assert min(label.get_window_extent().y0 for label in labels) > axis.get_window_extent().y1


@pytest.mark.parametrize(("key", "group"), [("norm", "norm"), ("placement", "placement"), ("scheme", None)])
def test_no_two_arms_of_a_figure_look_alike(key: str, group: str | None) -> None:
    """However many there are, a colour comes again with other dashes and another marker, and a panel has few."""
    names = list(options(group)) if group else [f"scheme{number}" for number in range(40)]
    arms = [Arm({key: name}) for name in names]
    found = style.panels_of(arms)
    entries = [entry for panel in found for entry in panel.entries]
    assert [entry.arm for entry in entries] == arms
    assert len({entry.color for entry in entries}) > 8
    for look in ("dash", "marker"):
        assert len({(entry.color, getattr(entry, look)) for entry in entries}) == len(entries)
    assert all(2 < len(panel.entries) <= 8 for panel in found) and len({panel.title for panel in found}) == len(found)
    some = [arm.name for arm in arms[::9]]
    assert [entry for panel in style.panels_of(arms, some) for entry in panel.entries] == entries[::9]


def test_numbers_of_a_sequence_share_a_panel() -> None:
    arms = [Arm({"optim.lr": 10.0**power}) for power in range(-12, 0)]
    (panel,) = style.panels_of(arms)
    assert len({(entry.color, entry.marker) for entry in panel.entries}) == 12
