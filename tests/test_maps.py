"""From where to where arms train: largest levels of any setting that is a number, and maps of two such settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from color_vision import BLINDNESS, distance
from made_runs import make_report, make_run, read_study

from normbench.results.result import EffectKind
from normbench.results.sensitivity import areas, tried_levels
from normbench.show.figures import draw_all
from normbench.show.figures.style import INK
from normbench.show.report import Report

CONSTANT = {"constant": {"loss/val": 3.3}}
FACTORS, RATES = (0.25, 1.0, 4.0), (1e-3, 1e-2, 1e-1)
DEPTHS = (6, 24, 100, 200)

Ends = Callable[[float, float, int], float]  # of factor, rate and seed: a final loss; above 3.3 a run diverges


def crossed(folder: Path, norms: Mapping[str, Ends], **more: float) -> Path:
    for norm, factor, rate, seed in product(norms, FACTORS, RATES, range(3)):
        end = norms[norm](factor, rate, seed)
        how = {"status": "diverged" if end > 3.3 else "finished", "data": CONSTANT}
        make_run(folder, norm=norm, lr=rate, seed=seed, final=end, settings={"init.factor": factor, **more}, **how)
    return folder


def wide(factor: float, rate: float, seed: int) -> float:
    """Trains everywhere."""
    return 2.0 + 0.1 * abs(np.log10(rate) + 2) + 0.05 * abs(np.log2(factor)) + 0.01 * seed


def narrow(factor: float, rate: float, seed: int) -> float:
    """Diverges at large weights and rates, stays where it starts at small ones; one seed learns in a cell more."""
    if factor * rate > 0.05:
        return 9.0
    return 3.29 if factor < 1 and (rate < 1e-1 or seed) else wide(factor, rate, seed)


def rows_of(report: Report, key: str) -> list[tuple[str, ...]]:
    """The cells of a report's table, row by row."""
    (table,) = [table for table in report.tables if table.key == key]
    return table.rows


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("maps")
    return make_report([crossed(folder, {"layernorm": wide, "dyt": narrow, "none": narrow})])


def test_the_share_of_the_grid_is_by_seed_and_has_an_interval(report: Report) -> None:
    mapped = {one.arm.name: one for one in areas(report.study)}
    assert mapped["layernorm"].shares == {0: 100.0, 1: 100.0, 2: 100.0}
    # of nine cells 1 × 0.1 and 4 × 0.1 diverge (4 × 0.01 does not), and 0.25 learns in one, with one seed
    assert mapped["dyt"].shares == pytest.approx({0: 500 / 9, 1: 400 / 9, 2: 400 / 9})
    rows = {row[0]: row[1:] for row in rows_of(report, "areas")}
    assert rows["layernorm"] == ("factor and lr", "3", "9", "100.0", "–")
    assert rows["dyt"][3] == "48.1"
    assert rows["dyt"][4] == "32.2 to 64.1"  # 400/9 + (0, 0, 100/9), t interval


def test_areas_are_compared_by_seed_and_stand_for_what_they_are_made_of(report: Report) -> None:
    effects = report.answer.effects
    assert [effect.arm for effect in effects] == ["dyt", "none"]
    for effect in effects:
        assert (effect.kind, effect.factor, effect.baseline) == (EffectKind.AREA, "factor and lr", "layernorm")
    dyt = effects[0]
    assert dyt.own == pytest.approx((500 / 9, 400 / 9, 400 / 9))
    assert dyt.other == (100, 100, 100)
    assert dyt.mean == pytest.approx(np.mean(dyt.own) - 100)
    assert dyt.metric.unit == "percentage points"
    assert [row[1] for row in rows_of(report, "designs")] == ["dyt", "none"]


def test_a_map_has_a_panel_for_each_arm_one_scale_and_marks(report: Report) -> None:
    figures = {one.name: one for one in draw_all(report.study, {"norm": "layernorm"}, report.yardstick.metrics)}
    figure = figures["map-factor-lr"]
    assert figure.title == "Final validation loss over factor and lr"
    *panes, _ = figure.canvas.axes  # the last one has the scale
    assert [pane.get_title("left") for pane in panes] == ["DyT", "LayerNorm", "no norm"]
    assert "layernorm 2.0100, at factor 1 and lr 0.01" in figure.caption
    assert len({pane.collections[0].get_clim() for pane in panes}) == 1
    words = [text.get_text() for text in panes[0].texts]  # row by row from the smallest factor
    assert words == ["–", "–", "–", "2.11", "2.01", "×", "2.21", "2.11", "×"]
    cells = figure.data.set_index(["arm", "factor", "lr"])
    assert cells.loc[("layernorm", 4.0, 1e-3), "mean"] == pytest.approx(wide(4.0, 1e-3, 1))
    assert cells.loc[("dyt", 4.0, 1e-1), "mean"] == pytest.approx(3.3)  # as a constant predictor
    assert dict(cells.loc[("dyt", 0.25, 1e-1)]) == pytest.approx(
        {"mean": (2.2 + 2 * 3.29) / 3, "runs": 3, "train": 1, "diverged": 0}
    )
    assert figure.svg.count("<path") > 27


def test_what_a_map_has_no_mean_for_is_left_out_or_seen_on_any_page(tmp_path: Path) -> None:
    for norm, factor, rate in product(("layernorm", "dyt"), FACTORS, RATES):
        status = "running" if norm == "dyt" or (factor, rate) == (4.0, 1e-3) else "finished"
        if (factor, rate) == (4.0, 1e-1):
            status = "diverged"  # on data of which nobody knows a constant predictor
        make_run(tmp_path, norm=norm, lr=rate, status=status, settings={"init.factor": factor})
    figures = {one.name: one for one in draw_all(read_study([tmp_path]), {"norm": "layernorm"})}
    figure = figures["map-factor-lr"]
    pane, _ = figure.canvas.axes
    assert pane.get_title("left") == "LayerNorm"
    words = {text.get_text(): text.get_color() for text in pane.texts[-3:]}
    assert list(words) == ["", "2.00", "×"] and words["×"] == INK
    assert "Not shown: dyt · " in figure.caption


def test_neighbouring_colours_of_a_map_can_be_told_apart() -> None:
    import matplotlib

    from normbench.show.figures.plots import MAP_COLORS

    shades = [matplotlib.colors.to_hex(matplotlib.colormaps[MAP_COLORS](place)) for place in np.linspace(0, 1, 7)]
    for blindness in BLINDNESS:
        assert min(distance(one, other, blindness) for one, other in pairwise(shades)) >= 6


def test_a_grid_with_holes_or_two_levels_is_no_map(tmp_path: Path) -> None:
    crossed(tmp_path, {"layernorm": wide, "dyt": narrow})
    study = read_study([tmp_path])
    assert [one.arm.name for one in areas(study)] == ["dyt", "layernorm"]
    hole = next(arm for arm in study.arms if arm.settings["norm"] == "dyt")
    for run in hole.runs:
        shutil.rmtree(run.path)
    assert [one.arm.name for one in areas(read_study([tmp_path]))] == ["layernorm"]
    few = tmp_path / "few"
    for norm, factor, rate in product(("layernorm", "dyt"), FACTORS[:2], RATES):
        make_run(few, norm=norm, lr=rate, final=2.0, settings={"init.factor": factor})
    assert not areas(read_study([few]))


# ---- the largest level


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("depth")
    upto = {
        ("deep", 0.0): [200] * 3,
        ("deep", 0.2): [200] * 3,
        ("post", 0.0): [6, 24, 6],
        ("post", 0.2): [100, 100, 24],
    }
    for (placement, warmup), depth, seed in product(upto, DEPTHS, range(3)):
        trains = depth <= upto[placement, warmup][seed]
        how = {"settings": {"model.depth": depth, "schedule.warmup": warmup}, "data": CONSTANT}
        final = 2.0 + 0.01 * seed if trains else 3.3
        make_run(folder, placement=placement, seed=seed, final=final, **how)
    return make_report([folder], baseline="placement=deep")


def test_the_largest_depth_that_trains_is_a_number_of_each_arm(deep: Report) -> None:
    tried = {one.arm.name: one for one in tried_levels(deep.study.arms, "model.depth")}
    logarithms = tried["post · warmup=0.0"].largest
    assert logarithms == pytest.approx({0: np.log2(6), 1: np.log2(24), 2: np.log2(6)})
    (table,) = [table for table in deep.tables if table.key == "survival-depth"]
    assert list(table.frame) == ["arm", "6", "24", "100", "200", "all train up to", "most train up to"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["post · warmup=0.0"] == ("3 of 3", "1 of 3", "0 of 3", "0 of 3", "6", "6")
    assert rows["post · warmup=0.2"] == ("3 of 3", "3 of 3", "2 of 3", "0 of 3", "24", "100")
    assert rows["deep · warmup=0.0"][-2:] == ("200", "200")


def test_the_largest_depth_is_compared_by_seed(deep: Report) -> None:
    largest = [effect for effect in deep.answer.effects if effect.kind == EffectKind.LARGEST]
    (post,) = [effect for effect in largest if effect.arm == "post · warmup=0.0"]
    assert (post.factor, post.baseline) == ("model.depth", "deep · warmup=0.0")
    assert post.levels == DEPTHS
    assert post.own == pytest.approx(np.log2([6, 24, 6]))
    assert post.other == pytest.approx(np.log2([200, 200, 200]))
    assert post.mean == pytest.approx(np.mean(np.log2([6 / 200, 24 / 200, 6 / 200])))


def test_where_all_train_nothing_is_said_of_the_largest(tmp_path: Path) -> None:
    for placement, depth, seed in product(("deep", "post"), DEPTHS, range(2)):
        make_run(tmp_path, placement=placement, seed=seed, settings={"model.depth": depth}, data=CONSTANT)
    report = make_report([tmp_path])
    assert not any(table.key.startswith("survival") for table in report.tables)
    assert EffectKind.LARGEST not in {effect.kind for effect in report.answer.effects}
