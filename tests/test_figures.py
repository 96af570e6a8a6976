"""The figures of a report: the numbers behind them, what is left out, and their files."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run, make_study, read_study
from scipy import stats
from sketches import chosen, column, numbers, sketched

from normbench.evidence.measures import Metric
from normbench.evidence.run import Curve
from normbench.results.sensitivity import tried_levels
from normbench.show.figures.figure import Figure
from normbench.show.figures.finals import places_of, write_ranges
from normbench.show.figures.lines import POINTS, band_of
from normbench.show.figures.style import DARK

# ---- the numbers


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two norms × two placements × three seeds, probed; one run of post diverged."""
    folder = tmp_path_factory.mktemp("grid")
    for norm, placement, seed in itertools.product(("layernorm", "rmsnorm"), ("pre", "post"), range(3)):
        lost = (norm, placement, seed) == ("rmsnorm", "post", 2)
        final = 2 + 0.1 * (norm == "rmsnorm") + 0.01 * seed + 0.02 * (placement == "post") * seed
        ms = 12.0 if norm == "rmsnorm" else 10.0
        status = "diverged" if lost else "finished"
        make_run(folder, norm=norm, placement=placement, seed=seed, final=final, step_ms=ms, status=status, probed=20)
    return folder


@pytest.fixture(scope="module")
def figures(grid: Path) -> dict[str, Figure]:
    return sketched(grid)


WRITTEN = ("loss-val-steps", "interaction-norm-placement", "step-time-loss")  # of each kind one, rendered


def test_each_figure_has_its_words_and_its_files(figures: dict[str, Figure]) -> None:
    assert list(figures) == [
        "differences", "interaction-norm-placement", "loss-val-steps", "loss-train-steps", "loss-val-time",
        "step-time-loss", "stream-rms-depth", "norm-output-rms-depth", "gradient-norm-depth",
        "stream-rms-steps", "gradient-norm-steps", "gamma-steps",
    ]  # fmt: skip
    for figure in figures.values():
        assert figure.title and figure.caption.endswith(".") and figure.alt.endswith(".")


def test_subplots_of_a_figure_have_one_size_and_the_same_axes(figures: dict[str, Figure]) -> None:
    figure = figures["stream-rms-depth"]
    panes = figure.canvas.axes
    assert [pane.get_title("left") for pane in panes] == ["step 20", "step 60", "step 100"]
    assert "at the right end: layernorm · post 4; layernorm · pre 4; " in figure.alt
    sizes = np.array([pane.get_position().size for pane in panes])
    np.testing.assert_allclose(sizes, sizes[:1].repeat(3, axis=0), rtol=1e-6)
    assert len({pane.get_xlim() for pane in panes}) == 1
    assert len({pane.get_ylim() for pane in panes}) == 1


def test_few_blocks_have_no_figure_by_depth(tmp_path: Path) -> None:
    path = make_run(tmp_path, probed=20) / "metrics.jsonl"
    lines = []
    for text in path.read_text().splitlines():
        values = json.loads(text)
        kept = {tag: value for tag, value in values.items() if "block03" not in tag and "stream03" not in tag}
        lines.append(json.dumps(kept))
    path.write_text("\n".join(lines))
    figures = sketched(tmp_path)
    assert "stream-rms-steps" in figures and not [name for name in figures if name.endswith("depth")]


def test_figures_of_time_say_where_kernels_differ(tmp_path: Path) -> None:
    for folder, implementations in (("same", ("native", "native")), ("other", ("native", "fused"))):
        for norm, implementation in zip(("rmsnorm", "layernorm"), implementations, strict=True):
            for seed in range(2):
                make_run(tmp_path / folder, norm=norm, seed=seed, ledger={"implementation": implementation})
    of_time = ("loss-val-time", "step-time-loss")
    for folder, told in (("same", ""), ("other", "Kernels differ: times compare them, not norms.")):
        figures = sketched(tmp_path / folder)
        for name, figure in figures.items():
            assert figure.canvas.get_suptitle().replace("\n", " ") == (told if name in of_time else "")


def test_all_words_of_all_figures_have_one_size(figures: dict[str, Figure]) -> None:
    from matplotlib.text import Text

    for figure in figures.values():
        found = {word.get_fontsize() for word in figure.canvas.findobj(Text) if word.get_text()}
        assert found == {9.0}, figure.name


def test_files_have_the_width_of_a_column(figures: dict[str, Figure]) -> None:
    for name in WRITTEN:
        files = figures[name].files()
        assert list(files) == [f"{name}.{suffix}" for suffix in ("svg", "csv", "pdf")]
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", files[f"{name}.pdf"])
        assert float(width) == 252  # points, 3.5 inches: a column


def test_a_curve_is_the_mean_of_the_seeds_and_their_range(figures: dict[str, Figure]) -> None:
    rows = chosen(figures["loss-val-steps"], arm="layernorm · post", kind="mean")
    assert column(rows, "x") == [20, 40, 60, 80, 100]
    assert numbers(rows[-1], "runs", "mean", "low", "high") == pytest.approx([3, 2.03, 2, 2.06])
    words = "Evaluated on 20 batches on the way, and on all validation data at the last point."
    assert [name for name, figure in figures.items() if words in figure.caption] == ["loss-val-steps", "loss-val-time"]


def test_a_run_that_diverged_is_a_cross_and_in_no_mean(figures: dict[str, Figure]) -> None:
    (cross,) = chosen(figures["loss-val-steps"], kind="diverged")
    assert (cross["arm"], float(cross["x"])) == ("rmsnorm · post", 40)
    means = chosen(figures["loss-val-steps"], arm="rmsnorm · post", kind="mean")
    assert {row["runs"] for row in means} == {"2"}
    assert "×" in figures["loss-val-steps"].caption


def test_seeds_of_unlike_speed_are_joined_at_equal_times() -> None:
    """Two seeds whose loss is the same function of time, recorded at the same steps but other times."""
    steps = np.arange(10, 110, 10)
    lines = [Curve(steps * pace, 4 - 0.01 * steps * pace) for pace in (0.5, 1.0)]
    band = band_of(lines, between=True)
    assert (band["x"].min(), band["x"].max()) == (10, 50)
    for name in ("mean", "low", "high"):
        np.testing.assert_allclose(band[name], 4 - 0.01 * band["x"])
    assert band_of([lines[0], Curve(steps * 50.0, 0.0 * steps)], between=True).empty


def test_final_values_are_means_paired_differences_and_a_front(figures: dict[str, Figure]) -> None:
    (cell,) = chosen(figures["interaction-norm-placement"], arm="rmsnorm", placement="post")
    assert numbers(cell, "seeds", "mean") == pytest.approx([2, 2.115])
    means = chosen(figures["differences"], kind="mean", baseline="layernorm · pre")
    assert [row["arm"] for row in means] == ["layernorm · post", "rmsnorm · pre", "rmsnorm · post"]  # the best first
    seeds = column(chosen(figures["differences"], kind="seed", arm="layernorm · post"), "difference")
    assert seeds == pytest.approx([0, 0.02, 0.04])
    low, high = stats.t.interval(0.95, 2, np.mean(seeds), stats.sem(seeds))
    assert numbers(means[0], "difference", "low", "high") == pytest.approx([0.02, low, high])
    (fast,) = chosen(figures["step-time-loss"], on_front="yes")
    assert (fast["arm"], float(fast["step_ms"])) == ("layernorm · pre", 10)


def test_words_for_values_go_from_the_lowest_to_the_highest() -> None:
    metric = Metric("accuracy", "points", "%", 100.0, 1, (0.0, 100.0), lower_is_better=False)
    rows = [("layernorm", 10.2), ("layernorm", 9.5), ("rmsnorm", 8.0), ("rmsnorm", 8.01)]
    data = pd.DataFrame(rows, columns=["arm", "mean"])
    assert write_ranges(data, metric) == ["layernorm 9.5 to 10.2", "rmsnorm 8.0"]


def test_depth_has_every_block_at_the_first_the_middle_and_the_last_probed_step(figures: dict[str, Figure]) -> None:
    stream = figures["stream-rms-depth"]
    for step in (20, 60, 100):
        found = chosen(stream, arm="layernorm · pre", step=str(step))
        assert column(found, "block") == [0, 1, 2, 3]
        assert column(found, "mean") == [1, 2, 3, 4]
    assert len(chosen(stream, arm="layernorm · pre")) == 3 * 4
    gradient = chosen(figures["gradient-norm-depth"], arm="layernorm · pre", step="20")
    assert column(gradient, "mean") == pytest.approx([0.1, 0.05, 0.1 / 3, 0.025])
    # a run that diverged was probed at step 20 and 40 only, but two others stand for its arm
    assert chosen(stream, arm="rmsnorm · post", step="100")[0]["runs"] == "2"


def test_norms_of_the_parts_of_a_gradient_make_that_of_a_block(tmp_path: Path) -> None:
    with open(make_run(tmp_path) / "metrics.jsonl", "a") as file:
        for part, norm in (("attention", 0.4), ("mlp", 0.3)):
            line = {"step": 100.0}
            for block in range(4):
                line[f"grad/block{block:02}.{part}/norm"] = norm
            file.write(json.dumps(line) + "\n")
    found = chosen(sketched(tmp_path)["gradient-norm-depth"], step="100")
    assert column(found, "mean") == pytest.approx([0.5] * 4)


def test_each_arm_is_shown_over_its_rates_and_elsewhere_at_the_best(tmp_path: Path) -> None:
    """Which is not that of the lowest mean of what finished: at 0.1 one of two runs was lost."""
    for rate, norm, seed in itertools.product((1e-3, 1e-2, 1e-1), ("layernorm", "dyt"), range(2)):
        status = "diverged" if rate == 1e-1 and seed == 1 else "finished"
        final = {1e-3: 3.0, 1e-2: 2.0, 1e-1: 1.0}[rate]
        make_run(tmp_path, norm=norm, lr=rate, seed=seed, final=final, status=status)
    figures = sketched(tmp_path)
    found = chosen(figures["learning-rates"], arm="dyt")
    assert column(found, "learning_rate") == [1e-3, 1e-2, 1e-1]
    assert column(found, "mean") == [3, 2, 1]
    assert column(found, "diverged") == [0, 0, 1]
    assert [row["best"] for row in found] == ["no", "yes", "no"]
    assert {one.best for one in tried_levels(read_study([tmp_path]).arms)} == {1e-2}
    assert float(chosen(figures["loss-val-steps"], arm="dyt")[-1]["mean"]) == pytest.approx(2)
    assert "learning rate" in figures["loss-val-steps"].caption


# ---- what is left out, and what does not break


def test_long_curves_are_averaged_and_a_figure_without_data_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path, steps=500, log_every=1, eval_every=500)  # one arm, one seed, one validation, no probes
    figures = sketched(tmp_path)
    assert set(figures) == {"loss-train-steps", "loss-train-time", "gradient-norm-steps"}
    curve = read_study([tmp_path]).runs[0].curves["loss/train"].values
    found = column(chosen(figures["loss-train-steps"]), "mean")
    assert len(found) <= POINTS
    first, second, *_ = found
    assert first == pytest.approx(curve[:3].mean())
    assert second == pytest.approx(curve[3:6].mean())
    assert "mean of up to 3 records" in figures["loss-train-steps"].caption


def test_runs_that_diverged_or_are_under_way_do_not_break(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm", final=2.0, probed=20)
    make_run(tmp_path, norm="rmsnorm", status="running", probed=20)
    for seed in range(2):
        path = make_run(tmp_path, norm="dyt", seed=seed, status="diverged", probed=20)
        *others, last = (path / "metrics.jsonl").read_text().splitlines()
        nothing = dict.fromkeys(json.loads(last))  # is finite
        nothing["step"] = json.loads(last)["step"]
        lines = [*others, json.dumps(nothing), '{"step": 60, "lo']
        (path / "metrics.jsonl").write_text("\n".join(lines))
    make_run(tmp_path, norm="groupnorm", status="failed")
    figures = sketched(tmp_path)
    rows = chosen(figures["loss-train-steps"])
    assert {row["arm"] for row in rows} == {"layernorm", "rmsnorm", "dyt"}
    for row in rows:
        assert np.isfinite(numbers(row, "x", "mean", "low", "high")).all()
    assert "Not finished yet: rmsnorm. Not shown: groupnorm (no run" in figures["loss-train-steps"].caption


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    names = ["_own", "$x$ ^{", "<script>alert(1)</script> -->", "归一化", "n" * 90]
    for place, norm in enumerate(names):
        for seed in range(2):
            make_run(tmp_path, norm=norm, seed=seed, final=2 + place / 10, name=f"run{place}{seed}", probed=20)
    figures = sketched(tmp_path)
    for name in ("differences", "step-time-loss"):  # ticks and numbers, legends
        text = figures[name].svg
        ElementTree.fromstring(text)
        assert "<script" not in text and "<!--" not in text


def test_what_varies_need_not_be_a_norm(tmp_path: Path) -> None:
    for depth, seed in itertools.product((2, 4, 8), range(2)):
        make_run(tmp_path, seed=seed, final=2 + depth / 100, settings={"model.depth": depth})
    figures = sketched(tmp_path)
    assert "loss-val-steps" in figures and "interaction-norm-placement" not in figures
    colors = set(re.findall(r"stroke: (#[0-9a-f]{6})", figures["loss-val-steps"].svg)) & set(DARK)
    assert len(colors - {"#3b424a", "#c9ced4"}) == 3


def test_accuracy_is_judged_where_classes_are(tmp_path: Path) -> None:
    for norm, seed in itertools.product(("layernorm", "dyt"), range(3)):
        accuracy = 0.9 + 0.01 * seed - (0.05 + 0.001 * seed) * (norm == "dyt")
        make_run(tmp_path, norm=norm, seed=seed, accuracy=accuracy)
    figures = sketched(tmp_path)
    figure = figures["differences"]
    (mean,) = chosen(figure, kind="mean")
    assert (mean["arm"], float(mean["difference"])) == ("dyt", pytest.approx(-5.1))
    assert "percentage points" in figure.alt
    assert [row["on_front"] for row in chosen(figures["step-time-accuracy"])] == ["no", "yes"]
    assert "judged by the final validation accuracy" in figures["loss-val-steps"].caption


def test_a_figure_of_many_runs_is_no_larger_than_one_of_few(tmp_path: Path) -> None:
    """Runs are bands; a report's time and memory are those of scripts/benchmark report."""
    sizes = []
    for seeds in (3, 30):
        finals = [2 + 0.01 * seed for seed in range(seeds)]
        make_study(tmp_path / f"{seeds}", dict.fromkeys(("layernorm", "rmsnorm"), finals), steps=1_000, eval_every=100)
        sizes.append(len(sketched(tmp_path / f"{seeds}")["loss-val-steps"].svg))
    assert sizes[1] < 1.5 * sizes[0]


# ---- files


@pytest.mark.slow
def test_the_same_study_gives_the_same_bytes(figures: dict[str, Figure], grid: Path, tmp_path: Path) -> None:
    """In another process, with other hashes and a person's own settings of matplotlib."""
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nlines.linewidth: 9\nsvg.fonttype: none\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from sketches import sketched; "
        "assert 'matplotlib' not in sys.modules; figures = sketched(Path(sys.argv[2])); "
        "files = [figures[name].files() for name in sys.argv[3:]]; "
        "[Path(name).write_bytes(content) for own in files for name, content in own.items()]"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", code, Path(__file__).parent, grid, *WRITTEN]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for figure in WRITTEN:
        for name, content in figures[figure].files().items():
            assert (tmp_path / name).read_bytes() == content, name


def test_figures_can_stand_in_one_page(figures: dict[str, Figure]) -> None:
    seen: set[str] = set()
    for name in WRITTEN:
        text = figures[name].svg
        root = ElementTree.fromstring(text)
        ids = {str(element.get("id")) for element in root.iter() if element.get("id")}
        assert ids and not ids & seen
        seen |= ids
        assert ids.issuperset(re.findall(r'href="#([^"]+)"', text))
        assert ids.issuperset(re.findall(r"url\(#([^)]+)\)", text))
        assert root.get("aria-label") == figures[name].alt
        assert re.search(r"<style[^>]*>(@media|\.nb-figure)", text), "no rule reaches beyond the figure"


# ---- settings that are numbers


@pytest.mark.parametrize(
    ("levels", "places"),
    [
        (["pre", "post", "deep"], [0, 1, 2]),
        ([8, 32], [0, 1]),
        ([2, 8, 128], np.log2([2, 8, 128]) / 3),
        ([32, 2, 8], np.log2([32, 2, 8]) / 2),
        ([0, 0.1, 0.5], [0, 0.4, 2]),
        ([16, 32, 64], [4 / 6, 8 / 6, 16 / 6]),
    ],
)
def test_numbers_stand_by_size_and_over_a_wide_range_by_its_logarithm(
    levels: list[object], places: list[float]
) -> None:
    assert places_of(levels) == pytest.approx(places)


def test_runs_that_train_are_counted_at_each_level_in_its_order(tmp_path: Path) -> None:
    """Of post with 12 blocks one trains, one diverges and one ends at a constant predictor's loss; with 96 none."""
    fates = {("pre", 6): "ttt", ("pre", 12): "ttt", ("pre", 96): "ttt"}
    fates |= {("post", 6): "ttt", ("post", 12): "tdc", ("post", 96): "ddc"}
    data = {"constant": {"loss/val": 3.1}}
    for (placement, depth), fate in fates.items():
        for seed, one in enumerate(fate):
            ended: dict[str, Any] = {
                "status": "diverged" if one == "d" else "finished",
                "final": 3.1 if one == "c" else 2.0,
            }
            make_run(tmp_path, placement=placement, seed=seed, settings={"model.depth": depth}, data=data, **ended)
    figures = sketched(tmp_path, {"model.depth": 12})
    figure = figures["survival-placement-depth"]
    for (arm, depth), fate in fates.items():
        (row,) = chosen(figure, arm=arm, depth=str(depth))
        assert (row["train"], row["runs"]) == (str(fate.count("t")), "3")
    assert len(chosen(figure)) == len(fates)
    (third,) = chosen(figure, arm="post", depth="12")
    p, z = 1 / 3, stats.norm.ppf(0.975)
    middle = p + z**2 / 6
    reach = z * np.sqrt(p * (1 - p) / 3 + z**2 / 36)
    ends = np.array([middle - reach, middle + reach]) / (1 + z**2 / 3)
    assert numbers(third, "low", "high") == pytest.approx(100 * ends)
    assert "of 3 at each point" in figure.caption and "post at 96 0 of 3" in figure.alt
    assert [row["depth"] for row in chosen(figures["interaction-placement-depth"], arm="pre")] == ["6", "12", "96"]
    assert [tick.get_text() for tick in figure.canvas.axes[0].get_xticklabels()] == ["12", "6", "96"]


def test_over_levels_that_are_words_none_are_counted(grid: Path) -> None:
    assert not [name for name in sketched(grid) if name.startswith("survival")]
