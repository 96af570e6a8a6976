"""What all studies share: words, subjects, continuation, findings, and their place in a report."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from studied import write
from support import REPOSITORY, refused

from normbench.cli import main
from normbench.commands.study import make as make_shown
from normbench.errors import UsageError
from normbench.evidence.labels import label_of
from normbench.evidence.measures import Metric
from normbench.results.rows import (
    Column,
    ResultTable,
    Stated,
    StudyResult,
    Value,
    arms_of,
    compare,
    compare_kinds,
    compare_with_baseline,
)
from normbench.runs.identity import source_digest
from normbench.settings import Setting, key_of
from normbench.show.figures.figure import Figure
from normbench.show.studied import read_study, studies_below
from normbench.show.tables import Table
from normbench.studies import STUDIES
from normbench.studies import study as making
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject, check_memory, make_study, study_class
from normbench.studies.saving import save
from normbench.sweep.sweep import plan_sweep
from normbench.tell.verdicts import say_value

TINY = ("model=nano", "model.depth=2", "model.width=16", "model.heads=2", "model.context=16")
SIZES = ("data.batch_size=4", "trainer.steps=3", "probes=off", "threads=1", "device=cpu")


class Stream(Study):
    """Measure the stream."""

    title = "The stream"
    source = "Nobody 2000"
    words = ("norm=layernorm,rmsnorm", "seed=0,1,2", *TINY, *SIZES)
    columns: ClassVar = {"layer": Column("layer"), "rms": Column("RMS", "", "log"), "weight": Column("weight")}
    measured: ClassVar[list[str]] = []
    stop_at: ClassVar[int | None] = None

    def __init__(self, *, factor: Annotated[float, Setting("on the input", above=0)] = 1.0) -> None:
        self.factor = factor

    def check(self, subject: Subject) -> None:
        if subject.settings["norm"] == "dyt":
            raise UsageError("norm=dyt is not measured: leave it out")

    def measure(self, subject: Subject) -> Iterator[Row]:
        if len(self.measured) == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(f"{subject.settings['norm']} {subject.seed}")
        model, _ = subject.build()
        assert not model.training
        found: list[float] = []
        for block in model.blocks:
            block.register_forward_hook(lambda *seen: found.append(float(seen[2].detach().square().mean().sqrt())))
        model(*subject.data.train_batch(0).arguments)
        weight = float(next(model.parameters()).detach().abs().sum())
        yield from ({"layer": layer, "rms": self.factor * rms, "weight": weight} for layer, rms in enumerate(found))

    def finding(self, rows: pd.DataFrame) -> list[Stated]:
        return [*compare_with_baseline(rows, "rms", self.baseline, "RMS", "m")]

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        return [compare(rows, values=["rms"], by=["layer"], columns=self.columns, baseline=self.baseline)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        return draw_curves("rms", rows, x="layer", y="rms", columns=self.columns, title="RMS", caption="RMS.", log="y")


class TrainedStream(Stream):
    """Measure the stream of trained runs."""

    trains = True


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, in which `study NAME` makes `Stream`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(making, "study_class", lambda name: Stream)
    monkeypatch.setattr(Stream, "measured", [])
    return tmp_path


def make(*words: str) -> pd.DataFrame:
    """The rows of a study."""
    folder = making.run_study("stream", words)
    assert folder is not None
    return pd.read_csv(folder / "rows.csv")


@pytest.mark.usefixtures("pages_alone")
def test_arms_that_leave_a_setting_as_it_is_are_told_apart(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "words", (*TINY, *SIZES))
    tie = "sweep.tie=norm=layernorm,batchnorm,batchnorm;norm.momentum=default,0.1,0.3"
    rows = make(tie, "seed=0")
    assert [*rows.columns[:3]] == ["norm", "norm.momentum", "seed"] and rows["norm.momentum"].iloc[0] == "default"
    (table,) = read_study(here / "outputs/stream/studies/stream", here).tables
    arms = ["LayerNorm", "BatchNorm · momentum=0.1", "BatchNorm · momentum=0.3"]
    assert table.frame["arm"].tolist()[:3] == arms


def test_a_study_leaves_rows_figures_findings_and_a_page(here: Path) -> None:
    rows = make()
    assert [*rows.columns] == ["norm", "seed", "layer", "rms", "weight"]
    assert len(rows) == 2 * 3 * 2
    folder = here / "outputs/stream/studies/stream"
    assert {path.name for path in (folder / "figures").iterdir()} == {f"rms.{end}" for end in ("svg", "pdf", "csv")}
    found = json.loads((folder / "study.json").read_text())
    assert found["command"] == "normbench study stream"
    page = (folder / "report.html").read_text()
    assert "Measure the stream." in page
    assert "Nobody 2000" in page
    assert len(re.findall(r'<svg [^>]*class="nb-figure"', page)) == 1
    assert len(list(folder.glob("arms/*/events.out.*"))) == 2


@pytest.mark.usefixtures("pages_alone")
def test_the_norms_that_a_given_model_has_by_itself_are_the_baseline(here: Path) -> None:
    rows = [
        {"norm": norm, "seed": seed, "layer": 0, "rms": 1.0 + seed + shift, "weight": 1.0}
        for norm, shift in (("layernorm", 1.0), ("own", 0.0), ("dyt", 3.0))
        for seed in (0, 1, 2)
    ]
    save(Stream(), "stream", pd.DataFrame(rows), here, "normbench study stream")
    answer = json.loads((here / "answer.json").read_text())
    assert answer["baseline"] == {"norm": "own"}
    differences = {one["settings"]["norm"]: one["difference"] for one in answer["measured"]}
    assert differences.pop("own") is None
    assert {norm: one["mean"] for norm, one in differences.items()} == {"layernorm": 1.0, "dyt": 3.0}
    alone = Stream()
    alone.choose_baseline(pd.DataFrame(rows[3:6]))
    assert alone.baseline == {"norm": "layernorm"}


@pytest.mark.usefixtures("pages_alone")
def test_what_a_page_says_is_there_as_values(here: Path) -> None:
    rows = make().set_index(["norm", "seed", "layer"])["rms"]
    folder = here / "outputs/stream/studies/stream"
    answer = json.loads((folder / "answer.json").read_text())
    assert answer["finding"] == json.loads((folder / "study.json").read_text())["finding"]
    assert answer["baseline"] == {"norm": "layernorm"} and len(answer["measured"]) == 2 * 2
    for one in answer["measured"]:
        own = rows[one["settings"]["norm"], :, one["at"]["layer"]]
        assert one["values"] == pytest.approx(own.tolist()) and one["mean"] == pytest.approx(own.mean())
        difference = one["difference"]
        assert (difference is None) == (one["arm"] == "LayerNorm")
        if difference:
            test = stats.ttest_rel(own, rows["layernorm", :, one["at"]["layer"]])
            ends = [difference["interval"]["lower"], difference["interval"]["upper"]]
            assert (difference["p"], ends) == (pytest.approx(test.pvalue), pytest.approx([*test.confidence_interval()]))
    tests = [*answer["differences"], *(one["difference"] for one in answer["measured"] if one["difference"])]
    assert {one["family"] for one in tests} == {3} and all(one["corrected"] >= one["p"] for one in tests)
    real = {one["verdict"] == "different" for one in tests if one["real"]}
    assert real <= {True}


@pytest.mark.usefixtures("pages_alone")
def test_words_of_a_person_replace_the_study_s_and_keep_what_goes_with_them(here: Path) -> None:
    rows = make("norm=dyt,none", "norm=none", "seed=7", "study.factor=2")
    assert {*rows["norm"]} == {"none"}
    assert {*rows["seed"]} == {7}
    doubled = rows["rms"]
    np.testing.assert_allclose(doubled, 2 * make("norm=none", "seed=7")["rms"])
    other = make("model=cnn", "norm=groupnorm", "name=images", "seed=0")  # model.depth=2 is nano's, and falls away
    assert len(other) > 2


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_study_that_was_stopped_goes_on_behind_what_it_has_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make("name=whole")
    Stream.measured.clear()
    monkeypatch.setattr(Stream, "stop_at", 3)
    with pytest.raises(KeyboardInterrupt):
        make()
    journal = here / "outputs/stream/studies/stream/rows.jsonl"
    with open(journal, "a") as file:
        file.write('{"key": "torn')  # as a kill leaves it
    monkeypatch.setattr(Stream, "stop_at", None)
    pd.testing.assert_frame_equal(make(), whole)
    assert len(Stream.measured) == len({*Stream.measured}) == 6
    make()
    assert len(Stream.measured) == 6
    make("study.factor=3")
    assert len(Stream.measured) == 12


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_trained_runs_are_made_first_and_then_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(making, "study_class", lambda name: TrainedStream)
    trained = make("seed=0,1", "quiet=true")
    weights = torch.load(next((here / "outputs/stream").glob("layernorm*s1*/checkpoint.pt")), weights_only=False)
    first = next(tensor for tensor in weights["model"].values() if tensor.is_floating_point() and tensor.ndim)
    own = trained[(trained["norm"] == "layernorm") & (trained["seed"] == 1)]
    measured = {round(value, 2) for value in own["weight"]}
    sums = {round(float(tensor.abs().sum()), 2) for tensor in weights["model"].values() if tensor.is_floating_point()}
    assert first.numel() and measured <= sums
    again = make("outputs/stream", "quiet=true")
    pd.testing.assert_frame_equal(again.sort_values([*again.columns[:3]], ignore_index=True),
                                  trained.sort_values([*trained.columns[:3]], ignore_index=True))  # fmt: skip
    with pytest.raises(UsageError, match="leave it out, or the folders"):
        make("outputs/stream", "seed=1")


def test_what_cannot_be_measured_is_refused_before_anything_is_made(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in {
        ("norm=dyt",): "norm=dyt is not measured",
        ("study.factor=0",): "study.factor=0 is not allowed: use a number above 0",
        ("study.facto=1",): "did you mean factor?",
        ("outputs",): "measures models as they start",
        ("norm=layernom",): "norm=layernom is unknown",
    }.items():
        assert said in refused(["study", "propagation", *words], capsys), words


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_what_is_left_out_is_told_with_the_reason(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "study_class", lambda name: TrainedStream)
    rows = make(
        "norm=dyt,none,layernorm",
        "optim=sgd",
        "optim.lr=1e-4,1e3",  # far from where rounding decides whether a run diverges
        "seed=0",
        "trainer.steps=40",
        "trainer.grad_clip=0",
        "quiet=true",
    )
    assert {*zip(rows["norm"], rows["optim.lr"], strict=True)} == {("none", 1e-4), ("layernorm", 1e-4)}
    left_out = read_study(here / "outputs/stream/studies/stream", here).tables[-1]
    assert {why for _, why in left_out.rows} == {"norm=dyt is not measured: leave it out", "diverged"}
    assert len([path for path in (here / "outputs/stream").iterdir() if path.name.startswith("dyt")]) == 0
    with pytest.raises(UsageError, match="no checkpoint"):
        make("seed=1", "trainer.keep_checkpoint=none", "quiet=true")


@pytest.mark.usefixtures("pages_alone")
def test_a_damaged_study_is_left_out_of_a_report(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    make()
    make("norm=none", "name=stream2")
    (here / "outputs/stream2/studies/stream/figures/rms.svg").unlink()
    assert len(studies_below([here / "outputs"], here)) == 1
    assert "damaged" in caplog.text


@pytest.mark.usefixtures("pages_alone")
def test_a_change_of_a_class_measures_anew(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    own = ("norm._target_=changing.Own", "seed=0")
    for sign in "+-":
        text = "from torch import nn\n\n\nclass Own(nn.Module):\n    def __init__(self, num_features):\n"
        text += f"        super().__init__()\n\n    def forward(self, x):\n        return {sign}x\n"
        (here / "changing.py").write_text(text)
        make("norm=none", *own)
        sys.modules.pop("changing")
        source_digest.cache_clear()
    assert len(Stream.measured) == 2


def test_lists_as_settings_are_told_as_words(here: Path) -> None:
    rows = make("optim.betas=[0.9,0.9],[0.9,0.8]", "seed=0", "norm=none")
    assert {*rows["optim.betas"]} == {"[0.9,0.9]", "[0.9,0.8]"}


@pytest.mark.usefixtures("pages_alone")
def test_a_report_shows_the_studies_of_its_folders(here: Path) -> None:
    make()
    assert main(["report", "outputs/stream"]) == 0
    page = (here / "outputs/stream/report/report.html").read_text()
    assert "The stream" in page
    assert main(["train", "name=stream", *TINY, *SIZES, "quiet=true"]) == 0
    assert main(["report", "outputs/stream"]) == 0
    page = (here / "outputs/stream/report/report.html").read_text()
    assert 'id="study--stream"' in page
    (link,) = re.findall(r'href="([^"]*figures/rms.pdf)"', page)
    assert (here / "outputs/stream/report" / link).is_file()
    assert "| LayerNorm | 0 |" in (here / "outputs/stream/report/report.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_report_keeps_the_runs_beside_a_folder_of_studies(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make()
    assert main(["train", "name=trained", *TINY, *SIZES, "quiet=true"]) == 0
    assert main(["report", "outputs/trained", "outputs/stream"]) == 0
    assert "did not train" in capsys.readouterr().out
    assert main(["report", "outputs/gone", "outputs/stream"]) == 2


def test_memory_is_asked_for_before_it_is_taken() -> None:
    check_memory(1e6, "a little")
    with pytest.raises(UsageError, match=r"much needs about 9.*free: use less"):
        check_memory(1e15, "much")


# ---- findings


def rows_of(values: dict[str, list[float]]) -> pd.DataFrame:
    return pd.DataFrame([{"norm": norm, "seed": seed, "depth": 2, "loss": loss}
                         for norm, own in values.items() for seed, loss in enumerate(own)])  # fmt: skip


def written(findings: ResultTable) -> Table:
    """A table of findings as the only one that a study states."""
    ((table,), _) = write([findings], [])
    return table


def test_differences_are_paired_by_seed() -> None:
    values = {"layernorm": [2.0, 2.5, 3.1, 2.2], "rmsnorm": [1.9, 2.35, 3.05, 2.1]}
    columns = {"loss": Column("loss", "nats")}
    table = written(compare(rows_of(values), values=["loss"], columns=columns, baseline={"norm": "layernorm"}))
    row = dict(zip(table.frame.columns, table.rows[1], strict=True))
    test = stats.ttest_rel(values["rmsnorm"], values["layernorm"])
    assert row["arm"] == "RMSNorm"
    assert row["loss (nats)"] == f"{np.mean(values['rmsnorm']):.3g}"
    assert float(row["p"]) == pytest.approx(test.pvalue, abs=5e-4)
    low, high = (float(end.replace("−", "-")) for end in row["its 95 % interval"].split(" to "))
    assert (low, high) == pytest.approx(tuple(test.confidence_interval()), rel=5e-3)


def test_one_seed_has_neither_interval_nor_difference() -> None:
    table = compare(rows_of({"layernorm": [2.0], "rmsnorm": [1.9]}), values=["loss"],
                     columns={"loss": Column("loss")}, baseline={"norm": "layernorm"})  # fmt: skip
    assert [*written(table).frame.columns] == ["arm", "loss"]
    cell = table.lines[0].cells["loss"]
    assert cell.number.summary == (2.0, None) and cell.difference is None


def test_an_arm_is_not_compared_with_itself() -> None:
    rows = rows_of({"layernorm": [2.0, 2.5, 2.1]})
    both = pd.concat([rows.assign(width=8), rows.assign(width=16)])[["norm", "width", "seed", "loss"]]
    table = written(compare(both, values=["loss"], columns={"loss": Column("loss")}, baseline={"norm": "layernorm"}))
    assert [*table.frame.columns] == ["arm", "loss", "95 % interval"]
    assert not table.notes


def test_arms_of_fewer_seeds_say_so_and_nothing_finite_is_no_figure() -> None:
    rows = rows_of({"layernorm": [2.0, 2.5], "rmsnorm": [np.nan, 2.4]})
    columns = {"loss": Column("loss"), "depth": Column("depth")}
    table = written(compare(rows, values=["loss"], columns=columns, baseline={"norm": "layernorm"}))
    assert table.frame["seeds"].tolist() == ["2", "1"]
    (figure,) = draw_curves(
        "loss", rows.assign(loss=np.inf), x="depth", y="loss", columns=columns, title="t", caption="c"
    )
    assert "Nothing was finite" in figure.caption
    assert figure.files()


def test_the_data_of_a_figure_are_means_and_ranges_over_seeds() -> None:
    rows = rows_of({"layernorm": [2.0, 3.0], "rmsnorm": [1.0, 5.0]})
    more = pd.concat([rows, rows.assign(depth=4, loss=2 * rows["loss"])])
    columns: Any = {"loss": Column("loss", "nats"), "depth": Column("depth")}
    (figure,) = draw_curves("loss", more, x="depth", y="loss", columns=columns, title="t", caption="c", log="xy")
    deep = figure.data[figure.data["depth"] == 4].set_index("norm")
    assert deep.loc["rmsnorm", ["mean", "low", "high"]].tolist() == [6.0, 2.0, 10.0]
    assert "2 seeds" in figure.caption


# ---- findings in words


@pytest.mark.usefixtures("pages_alone")
def test_a_finding_begins_the_page_and_what_the_terminal_shows(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_shown("stream", ("seed=0,1",), "auto", False) == 0
    told = capsys.readouterr().out
    folder = here / "outputs/stream/studies/stream"
    written = json.loads((folder / "study.json").read_text())
    (sentence,), (detail,) = written["finding"], written["details"]
    assert sentence.startswith("RMSNorm and LayerNorm: too few seeds to tell; ") and "2 seeds" in sentence
    assert "p = " in detail and "p = " not in sentence
    terminal = " ".join(told.split())
    assert terminal.index(f"• {sentence}") < terminal.index(detail)
    page = html.unescape((folder / "report.html").read_text())
    places = [page.index(words) for words in ("Measure the stream.", sentence, "<table", "<details", detail)]
    assert places == sorted(places)
    monkeypatch.setattr("normbench.commands.study.LONG", 3)
    assert make_shown("stream", ("seed=0,1",), "auto", False) == 0
    assert "on the page: " in (again := capsys.readouterr().out) and len(again) < len(told)


def test_differences_are_told_as_scipy_finds_them_and_corrected_as_one_family() -> None:
    values = {"layernorm": [2.0, 2.5, 2.1], "rmsnorm": [2.3, 2.83, 2.39], "dyt": [2.1, 2.3, 2.15]}
    rows = rows_of(values)
    differences = compare_with_baseline(rows, "loss", {"norm": "layernorm"}, "Loss", "nats")
    _, found = write([], differences)
    tests = [stats.ttest_rel(values[norm], values["layernorm"]) for norm in ("rmsnorm", "dyt")]
    for difference, test in zip(differences, tests, strict=True):  # in full precision, which sentences have not
        assert difference.interval == pytest.approx(test.confidence_interval(), rel=1e-9)
        assert difference.p == pytest.approx(test.pvalue, rel=1e-9)
    smaller, larger = sorted(test.pvalue for test in tests)
    for sentence, test in zip(found, tests, strict=True):
        p = 2 * smaller if test.pvalue == smaller else max(2 * smaller, larger)
        low, high = test.confidence_interval()
        if p < 0.05:
            assert sentence.text.startswith("RMSNorm is higher than LayerNorm in the Loss, by 0.307 nats (95 %: ")
            ends = [float(end) for end in re.findall(r"\+([\d.]+)", sentence.text)]
            assert ends == pytest.approx([low, high], abs=1e-3) and sentence.text.endswith("; 3 seeds).")
        else:
            most = re.findall(r"do not differ in the Loss by more than ([\d.]+) nats", sentence.text)
            assert float(most[0]) == pytest.approx(max(-low, high), rel=0.1)
        assert float(re.findall(r"([\d.]+\d) after Holm", sentence.detail)[0]) == pytest.approx(p, abs=6e-4)


def test_too_few_seeds_are_said_to_be_where_a_difference_could_be_as_large_as_all_that_was_measured() -> None:
    narrow = {"layernorm": [2.0, 2.5, 2.1], "rmsnorm": [2.01, 2.49, 2.1]}
    wide = {"layernorm": [2.0, 2.5, 2.1], "rmsnorm": [2.4, 2.0, 2.5]}
    for values, words in ((narrow, "do not differ in the Loss by more than"), (wide, "too few seeds to tell")):
        _, (sentence,) = write(
            [], compare_with_baseline(rows_of(values), "loss", {"norm": "layernorm"}, "Loss", "nats")
        )
        assert words in sentence.text


def test_a_finding_and_its_tables_correct_p_over_all_that_the_study_states() -> None:
    """Of two layers and a ratio, of which the finding tells the first layer: three tests, each of which counts once."""
    random = np.random.default_rng(0)
    means = {"layernorm": 0.0, "rmsnorm": 1.0}
    rows = pd.DataFrame([{"norm": norm, "seed": seed, "layer": layer, "share": random.normal(layer * means[norm])}
                         for norm in means for seed in range(6) for layer in (0, 1)])  # fmt: skip
    rows["gradient"] = np.exp(rows["share"])
    columns: Any = {"layer": Column("layer"), "share": Column("share"), "gradient": Column("gradient")}
    how: Any = {"columns": columns, "baseline": {"norm": "layernorm"}}
    tables = [
        compare(rows, values=["share"], by=["layer"], **how),
        compare(rows, values=["gradient"], ratio=True, **how),
    ]
    first = compare_with_baseline(rows[rows["layer"] == 0], "share", {"norm": "layernorm"}, "Share")
    (shares, gradients), (sentence,) = write(tables, first)

    def pairs(value: str, layer: int | None) -> tuple[pd.Series, pd.Series]:
        own = rows if layer is None else rows[rows["layer"] == layer]
        means = own.groupby(["norm", "seed"])[value].mean()
        return means["rmsnorm"], means["layernorm"]

    logs = rows.assign(gradient=np.log2(rows["gradient"])).groupby(["norm", "seed"])["gradient"].mean()
    tests = [stats.ttest_rel(*pairs("share", layer)) for layer in (0, 1)]
    tests.append(stats.ttest_rel(logs["rmsnorm"], logs["layernorm"]))
    order = np.argsort([test.pvalue for test in tests])
    expected = np.empty(3)
    expected[order] = np.maximum.accumulate(
        [tests[place].pvalue * left for place, left in zip(order, (3, 2, 1), strict=True)]
    )
    stated = [float(cell) for table in (shares, gradients) for cell in table.frame["p"] if cell != "–"]
    assert stated == pytest.approx([*expected.clip(max=1)], abs=6e-4)
    assert f"p = {shares.frame['p'][1]} after Holm" in sentence.detail
    assert all("for the 3 tests of this study" in " ".join(table.notes) for table in (shares, gradients))


def test_tests_with_equal_numbers_all_count() -> None:
    """Of ten levels, nine are the same in both arms: by hand, the tenth has the smallest of ten p."""
    gain = [1.0, 1.2, 0.8, 1.5, 0.3]
    rows = pd.DataFrame([{"norm": norm, "seed": seed, "level": level, "score": 64.0 + seed + gained}
                         for level in range(10) for norm in ("layernorm", "rmsnorm") for seed in range(5)
                         for gained in [gain[seed] if norm == "rmsnorm" and level == 0 else 0.0]])  # fmt: skip
    columns: Any = {"score": Column("score"), "level": Column("level")}
    table = compare(rows, values=["score"], by=["level"], columns=columns, baseline={"norm": "layernorm"})
    first = compare_with_baseline(rows[rows["level"] == 0], "score", {"norm": "layernorm"}, "Score")
    ((table,), (sentence,)) = write([table], first)
    p = stats.ttest_1samp(gain, 0).pvalue
    assert float(table.frame["p"][1]) == pytest.approx(10 * p, abs=6e-4) and p < 0.05 < 10 * p
    assert "for the 10 tests" in " ".join(table.notes)
    assert sentence.text.endswith("; not certain after correction for 10 tests: repeat it with new seeds.")
    assert sentence.detail.endswith(f"after correction for 10 tests p = {table.frame['p'][1]}.")
    about: dict[str, Any] = {"arm": "", "baseline": "", "metric": Metric("score"), "tried": 5}
    own = [StudyResult(tuple(gain), (0, 1, 2, 3, 4), what=what, **about) for what in ("one", "other")]
    _, told = write([], own)  # of somebody's study, told apart by their words
    assert all(f"p = {2 * p:.3f} after Holm" in sentence.detail for sentence in told)


@pytest.mark.parametrize("sd", [1.0, 400.0])
def test_a_factor_beyond_all_measure_is_not_write(sd: float) -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame([{"norm": norm, "seed": seed, "layer": layer, "gradient": 2.0 ** random.normal(0, sd)}
                         for norm in ("layernorm", "rmsnorm") for seed in range(2) for layer in range(6)])  # fmt: skip
    columns: Any = {"gradient": Column("gradient"), "layer": Column("layer")}
    how: Any = {"columns": columns, "baseline": {"norm": "layernorm"}, "ratio": True}
    ((table,), _) = write([compare(rows, values=["gradient"], by=["layer"], **how)], [])
    assert all(cell == "–" or float(cell) <= 1000 for cell in table.frame["detectable factor"])
    assert "more seeds make it smaller" in table.notes[-1]
    ((few,), _) = write([compare(rows[rows["layer"] < 0.5].assign(gradient=[1.0, 2.0, 1.1, 2.21]),
                                    values=["gradient"], by=["layer"], **how)], [])  # fmt: skip
    assert "more seeds" not in few.notes[-1] and float(few.frame["detectable factor"][1]) < 1000


@pytest.mark.parametrize(
    ("method", "gives", "said"),
    [("figures", [[]], "Stream.figures gives list within a list: let it return one flat list of Figure"),
     ("finding", "Nothing was found.",
      "Stream.finding gives str: let it return one flat list of str or Value or StudyResult")],
)  # fmt: skip
def test_what_a_study_gives_is_checked(
    here: Path, monkeypatch: pytest.MonkeyPatch, method: str, gives: Any, said: str
) -> None:
    monkeypatch.setattr(Stream, method, lambda self, rows: gives)
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        making.save(
            Stream(), "stream", pd.DataFrame({"norm": ["layernorm"], "seed": 0, "layer": 0, "rms": 1.0}), here, ""
        )


@pytest.mark.parametrize(
    ("values", "within", "without"),
    [((-0.2, -0.5, -0.8), ("−½", "0"), ()), ((-0.48, -0.5, -0.53), ("−½",), ("0",)),
     ((2.0, 2.1, 1.9), (), ("−½", "0"))],
)  # fmt: skip
def test_an_estimate_is_consistent_with_what_its_interval_holds(
    values: tuple[float, ...], within: tuple[str, ...], without: tuple[str, ...]
) -> None:
    references = {"−½": -0.5, "0": 0.0}
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert [low <= value <= high for value in references.values()] == [name in within for name in references]
    said = say_value(Value("Power:", dict(enumerate(values)), references=references))
    named, _, other = said.partition("not consistent" if not within else "not with")
    ends = [float(end.replace("−", "-")) for end in re.findall(r"95 %: (\S+) to (\S+);", said)[0]]
    assert ends == pytest.approx([low, high], abs=0.01) and "; 3 seeds)" in said
    assert all(f"with {name}" in named for name in within) and all(name in other for name in without)
    assert ("more seeds" in said) == (len(within) > 1)


def test_one_seed_is_no_finding() -> None:
    assert "one seed" in say_value(Value("Power:", {0: -0.5}, references={"−½": -0.5}))
    samples = compare_with_baseline(
        rows_of({"layernorm": [2.0], "rmsnorm": [1.9]}), "loss", {"norm": "layernorm"}, "Loss"
    )
    _, (sentence,) = write([], samples)
    assert (
        "one seed cannot tell" in sentence.text
        and "lower in the Loss, by 0.10." in sentence.text
        and not sentence.detail
    )


@pytest.mark.parametrize(
    ("losses", "better", "ratio", "said"),
    [
        ((3.0, 3.3, 2.9), "lower", False, "RMSNorm is worse than LayerNorm: its loss is 0.87 nats higher (95 %: "),
        ((3.0, 3.3, 2.9), "higher", False, "RMSNorm is better than LayerNorm: its loss is 0.87 nats higher (95 %: "),
        ((3.0, 3.3, 2.9), "", False, "RMSNorm is higher than LayerNorm in the loss, by 0.87 nats (95 %: "),
        ((3.0, 3.3, 2.9), "", True, "RMSNorm is higher than LayerNorm in the loss, by a factor of 1.4"),
        ((3.0, 3.3, 2.9), "lower", True, "RMSNorm is worse than LayerNorm: its loss is 1.4"),
        ((2.0, 2.5, 2.1), "", False, "RMSNorm and LayerNorm have the same loss in each of 3 seeds."),
        ((4.0, 5.0, 4.2), "", True, "RMSNorm and LayerNorm differ by the same factor of 2.0 in each of 3 seeds (RMS"),
        (
            (2.5, 2.4, 2.0),
            "",
            True,
            "RMSNorm and LayerNorm: too few seeds to tell; they may differ in the loss by up to a",
        ),
    ],
)
def test_a_comparison_of_a_study_begins_with_which_is_better_or_higher(
    losses: tuple[float, ...], better: str, ratio: bool, said: str
) -> None:
    rows = rows_of({"layernorm": [2.0, 2.5, 2.1], "rmsnorm": [*losses]})
    results = compare_with_baseline(rows, "loss", {"norm": "layernorm"}, "loss", "nats", ratio, better)
    _, (sentence,) = write([], results)
    assert sentence.text.startswith(said)


def test_two_kinds_of_what_was_measured_of_an_arm_are_compared_by_name() -> None:
    rows = rows_of({"rmsnorm": [2.0, 2.5, 2.1]}).assign(kind="first")
    rows = pd.concat([rows, rows.assign(kind="second", loss=[3.0, 3.3, 2.9])], ignore_index=True)
    first = rows["kind"] == "first"
    results = compare_kinds(rows, first, ~first, "loss", "loss", ("in the first", "in the second"), "nats")
    _, (sentence,) = write([], results)
    assert sentence.text.startswith("RMSNorm: the loss is lower in the first than in the second, by 0.87 nats (95 %: ")
    assert results[0].what == "Loss in the first, less that in the second, RMSNorm"


# ---- every study that there is


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_says_what_it_asks_and_has_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = study_class(name)
    assert kind.title
    assert kind.columns
    assert re.search(r"(19|20)\d\d", kind.source)
    command = ["bench"] if name == "bench" else ["study", name]
    assert main([*command, "--help"]) == 0
    page = capsys.readouterr().out
    assert kind.source.split()[0] in page
    assert all(f" {column} " in page for column in kind.columns)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", [path.stem for path in sorted(REPOSITORY.glob("docs/studies/*.md"))])
def test_the_commands_of_a_study_s_page_are_understood(name: str) -> None:
    page = (REPOSITORY / f"docs/studies/{name}.md").read_text("utf-8")
    lines = re.findall(rf"^normbench (?:study )?{name}( .*)?$", page, re.MULTILINE)
    assert lines
    for line in lines:
        words = [word for word in shlex.split(line) if word != "data.root=PATH"]
        own = [word for word in words if word.startswith("study.")]
        study = make_study(study_class(name), own)
        if all("=" in word for word in words):
            asked = [word for word in words if word not in own]
            if not any(key_of(word) == "seed" for word in asked):
                asked.append("seed=0")  # each seed more is composed as this one is
            plan = plan_sweep(making.grid_words(type(study), name, asked)).plan
            assert plan.runs


def test_words_of_schemes_take_the_place_of_a_studys_own() -> None:
    words = making.grid_words(study_class("propagation"), "propagation", ["scheme=gpt2,olmo2"])
    keys = [key_of(word) for word in words]
    assert "scheme=gpt2,olmo2" in words and "model.depth=2,4,8,16,32" in words
    assert {"norm", "placement", "model.mlp"}.isdisjoint(keys)
    words = making.grid_words(study_class("propagation"), "propagation", ["scheme=rezero", "norm@qk=none,rmsnorm"])
    assert "model.mlp=relu" in words and not [word for word in words if word.startswith(("norm=", "placement="))]


def test_an_arm_of_a_scheme_is_named_by_it() -> None:
    settings = {"norm": ["layernorm", "rmsnorm", "rmsnorm"], "scheme": ["gpt2", "olmo2", "llama"], "seed": [0, 0, 0]}
    assert [label_of(arm) for arm in arms_of(pd.DataFrame(settings))] == ["gpt2", "olmo2", "llama"]
    settings["scheme"] = ["gpt2", "olmo2", "olmo2"]
    settings["norm"] = ["layernorm", "layernorm", "rmsnorm"]
    labels = [label_of(arm) for arm in arms_of(pd.DataFrame(settings))]
    assert labels == ["LayerNorm · gpt2", "LayerNorm · olmo2", "RMSNorm · olmo2"]


def test_words_of_a_person_s_own_take_the_place_of_settings_that_vary_together() -> None:
    words = making.grid_words(study_class("padding"), "padding", ["norm=rmsnorm"])
    assert "norm=rmsnorm" in words and "data=banking77" in words
    assert not [word for word in words if word.startswith("sweep.tie")]
