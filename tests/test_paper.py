"""What a report writes for a paper: works and their citations, methods as prose, and the search for learning rates."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import IMAGES as OF_IMAGES
from made_runs import make_report, make_run, make_study, read_study
from sketches import chosen, sketched
from support import (
    IMAGES,
    SMALL,
    TEXT,
    TEXTS,
    TRANSLATIONS,
    build,
    documented,
    random_batch,
    section,
)

from normbench.config.groups import options
from normbench.config.signatures import settings_of
from normbench.record.forms import CHOICE_FILE
from normbench.show.figures.lines import draw_lines
from normbench.show.figures.style import use_our_style
from normbench.show.latex import FIGURES_IN_TEXT, in_text, prose
from normbench.tell.methods import write_methods
from normbench.tell.references import FIELD, FILE, bibliography, references, split_at_citations, works_in, works_of
from normbench.tell.setups import JointFactor, factors
from normbench.types import Task
from normbench.wording import in_prose

# A work as sentences name it: families, and a year.
NAMED = re.compile(r"[A-Z][\w’-]+(?: et al\.|(?:, [A-Z]\w+)* & [A-Z]\w+)? (?:19|20)\d\d[a-z]?\b")
DOCUMENTED = ("norm", "placement", "model", "data")  # in tables of README.md and docs/
GROUPS = ("norm", "placement", "model", "data", "optim", "schedule", "init")

# ---- works


@pytest.mark.parametrize("group", GROUPS)
def test_every_work_that_an_option_names_has_an_entry(group: str) -> None:
    lines = options(group)
    for option in documented(group) if group in DOCUMENTED else lines:
        assert len(works_of(group, option)) == len({*NAMED.findall(lines[option])}), option


def test_every_norm_and_placement_has_an_entry() -> None:
    assert [name for name in documented("norm") if not works_of("norm", name)] == ["none"]  # which is no method
    assert all(works_of("placement", name) for name in documented("placement"))


def test_entries_say_who_wrote_what_when_and_where() -> None:
    works = {work.key: work for work in references().values()}
    keys = re.findall(r"^@\w+\{(.+),$", FILE.read_text("utf-8"), re.MULTILINE)
    assert sorted(works) == sorted(keys)  # a name that two works have would hide one of them
    assert (
        len({work.words for work in works.values()})
        == len(works)
        == len(re.findall(r"\n@", bibliography({*works}))) + 1
    )
    for work in works.values():
        fields = dict(FIELD.findall(work.bibtex))
        assert fields["title"] and fields["author"] and re.fullmatch(r"(19|20)\d\d", fields["year"])
        assert {"booktitle", "journal", "howpublished", "institution"} & {*fields}
        assert work.bibtex.count("{") == work.bibtex.count("}")


def test_works_are_told_apart_by_authors_and_letter() -> None:
    text = "Zhang, Titov & Sennrich 2019; Zhang & Sennrich 2019; He et al. 2016b, and He et al. 2016"
    assert [work.key for work in works_in(text)] == ["zhang2019ds", "zhang2019rms", "he2016b", "he2016"]


def test_brackets_of_works_alone_are_cited() -> None:
    text = "after Holm (Holm 1979), 5 % of them (Ba et al. 2016; Wu & He 2018), but (Holm 1979, page 3)."
    assert prose(text) == r"after Holm~\citep{holm1979}, 5 \% of them~\citep{ba2016,wu2018}, but (Holm 1979, page 3)."
    assert (
        "".join(words for words, _ in split_at_citations(text)) == "after Holm, 5 % of them, but (Holm 1979, page 3)."
    )


# ---- what varied


def test_settings_that_vary_together_are_told_together(tmp_path: Path) -> None:
    for norm, (size, number) in product(("batchnorm", "groupnorm"), ((2, 1), (2, 16), (32, 1))):
        make_run(tmp_path, norm=norm, settings={"data.batch_size": size, "trainer.accumulate": number})
    study = read_study([tmp_path])
    alone, together = factors(study)
    assert alone.keys == ("norm",) and together.keys == ("data.batch_size", "trainer.accumulate")
    assert together.levels == ((2, 1), (2, 16), (32, 1))
    assert "All else was held equal: for each seed, runs start from the same weights." in write_methods(
        make_report([tmp_path])
    )
    words = "in data.batch_size together with trainer.accumulate: 2 with 1, 2 with 16 and 32 with 1."
    assert words in write_methods(make_report([tmp_path]))


def test_a_setting_that_goes_along_with_another_is_told_with_it(tmp_path: Path) -> None:
    """As `sweep.tie=placement=pre,post;schedule.warmup=0,0.2`: what tells arms apart is the placement alone."""
    for placement, warmup in (("pre", 0.0), ("post", 0.2)):
        command = f"normbench train placement={placement} schedule.warmup={warmup}"
        make_run(tmp_path, placement=placement, settings={"schedule.warmup": warmup}, session={"command": command})
    study = read_study([tmp_path])
    assert study.varied == ("placement",)
    assert factors(study) == [JointFactor(("placement", "schedule.warmup"), (("post", 0.2), ("pre", 0.0)))]
    words = write_methods(make_report([tmp_path]))
    assert (
        "(Xiong et al. 2020; He et al. 2016b) with 0." in words
        and "Cosine (Loshchilov & Hutter 2017) with final" in words
    )


def test_combinations_that_were_not_trained_are_not_said_to_be(tmp_path: Path) -> None:
    for norm, size in (("batchnorm", 4), ("batchnorm", 8), ("groupnorm", 4)):
        make_run(tmp_path, norm=norm, settings={"data.batch_size": size})
    (one,) = factors(read_study([tmp_path]))
    assert one.levels == (("batchnorm", 4), ("batchnorm", 8), ("groupnorm", 4))
    assert "All of their combinations" not in write_methods(make_report([tmp_path]))


def test_what_varies_by_itself_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    for norm, placement in product(("layernorm", "rmsnorm"), ("pre", "post")):
        make_run(tmp_path, norm=norm, placement=placement)
    words = write_methods(make_report([tmp_path]))
    assert re.search(r"They differ in norm: [^:]+\. They also differ in placement: [^:]+\. All of", words)


# ---- what was held equal


@pytest.mark.parametrize("gains", [(1.0, 1.0), (1.0, 0.59)])
def test_weights_are_the_same_up_to_what_a_placement_scales(tmp_path: Path, gains: tuple[float, float]) -> None:
    for placement, gain in zip(("pre", "deep"), gains, strict=True):
        make_run(tmp_path, placement=placement, ledger={"branch_gain": gain})
    make_run(tmp_path, placement="pre", seed=1, status="interrupted")
    words = write_methods(make_report([tmp_path]))
    scaled = "the same weights (up to the scaling that the placement prescribes) and see" in words
    assert scaled is (gains[0] != gains[1]) and (scaled or "start from the same weights and see" in words)


@pytest.mark.parametrize("word", ["[text]", "[", "[" * 100_000])
def test_a_word_that_begins_like_a_list_is_told_as_it_is(word: str) -> None:
    assert in_prose(word) == word and in_prose("[1e-08, 2]") == "(1e-8, 2)"


def test_several_data_sets_stand_apart(tmp_path: Path) -> None:
    for width, print_ in ((8, "a" * 16), (16, "b" * 16)):
        make_run(tmp_path, settings={"model.width": width}, data={"fingerprint": print_})
    assert re.search(r"fingerprint a{8}; [^;]+, fingerprint b{8}\. Each run", write_methods(make_report([tmp_path])))


def test_tests_of_lost_runs_alone_name_their_correction(tmp_path: Path) -> None:
    """With no seed that finished in two arms there is no t test."""
    for norm, seed in product(("layernorm", "rmsnorm", "dyt"), range(5)):
        status = "finished" if norm == "layernorm" else "diverged"
        make_run(tmp_path, norm=norm, seed=seed, status=status)
    words = write_methods(make_report([tmp_path]))
    assert "Student" not in words and "Fisher" in words
    assert "these 2 tests were corrected after Holm (Holm 1979), and are called significant below 0.05." in words


def transformer(folder: Path, data: dict[str, Any] | None = None, **settings: Any) -> str:
    """The methods of a run of the model nano, of which some settings were changed; data: what it learns."""
    tree = {f"model.{name}": value for name, value in {**section("model", "nano"), **settings}.items()}
    make_run(folder, settings=tree, data=data or {}, accuracy=0.5 if data else None)
    return write_methods(make_report([folder]))


def test_a_preset_is_named_with_what_was_changed_of_it(tmp_path: Path) -> None:
    assert "(the preset nano);" in transformer(tmp_path / "as it is")
    words = transformer(tmp_path / "changed", depth=2, dropout=0.1)
    assert "depth 2, width 128, 4 heads, context 64, dropout 0.1," in words
    assert "(the preset nano but for depth and dropout);" in words
    off = transformer(tmp_path / "off", tied=False)
    assert "tied off" in off and "(the preset nano but for tied);" in off


def test_settings_that_play_no_part_are_not_told(tmp_path: Path) -> None:
    text = transformer(tmp_path / "text")
    assert "tied" in text and "context 64" in text and "patch" not in text and "pool" not in text
    images = transformer(tmp_path / "images", OF_IMAGES)
    assert "patch 4 and pool mean" in images and "tied" not in images and "context" not in images
    assert "embedding scale unit" in text and "embedding scale" not in images
    assert "preset nano)" in transformer(tmp_path / "idle", patch=2)  # of a text, whatever was set


OTHERS = {
    "embedding_scale": 1.0,
    "tied": False,
    "patch": 2,
    "pool": "class_token",
    "context": 32,
}  # another value of each such setting


@pytest.mark.parametrize("task", [TEXT, TEXTS, IMAGES, TRANSLATIONS], ids=lambda task: task.kind)
def test_what_is_said_to_play_a_part_is_measured(task: Task) -> None:
    """A model with another value computes something else, or the same."""
    model = "seq2seq" if task is TRANSLATIONS else "nano"
    known = settings_of(section("model", model)["_target_"]) or {}
    for name in sorted({*OTHERS} & {*known}):
        if name == "context" and known[name].plays_a_part(task.kind):
            continue  # it is the task's, which data make of it
        outputs = []
        for value in ({**section("model", model), **SMALL[model]}[name], OTHERS[name]):
            made, _ = build(model=model, task=task, **{name: value})
            torch.manual_seed(0)
            outputs.append(made.train()(*random_batch(task).arguments))
        usual = section("model", model).get(name)
        assert torch.equal(*outputs) is not known[name].plays_a_part(task.kind, usual), name


def test_settings_are_told_of_each_model(tmp_path: Path) -> None:
    """Sizes of a list as a list, numbers without needless zeros."""
    settings = {f"model.{name}": value for name, value in section("model", "cnn").items()}
    path = make_run(tmp_path, settings={**settings, "optim.eps": 1e-8}, accuracy=0.5)
    noted = json.loads((path / "environment.json").read_text())
    noted["sessions"][0]["choices"]["model"] = "cnn"
    (path / "environment.json").write_text(json.dumps(noted))
    words = write_methods(make_report([tmp_path]))
    assert (
        "ConvNet (He et al. 2016b) with depth 3, width 16, stages (1, 2, 2), strides (2, 2, 1) and norm order" in words
    )
    assert "eps 1e-8" in words


# ---- the search for learning rates


def searched(folder: Path) -> Path:
    """The folder of runs of two norms at rates that were chosen among three, and of one that trained at none."""
    rates = {"layernorm": 1e-2, "rmsnorm": 1e-1}
    for (norm, lr), seed in product(rates.items(), range(2)):
        make_run(folder, norm=norm, lr=lr, seed=seed, final=2.0 + seed / 10)
    curve = [
        {"lr": 1e-3, "losses": [3.0, 3.2]},
        {"lr": 1e-2, "losses": [2.5, 2.7]},
        {"lr": 1e-1, "losses": [2.4, None]},
    ]
    noted: list[dict[str, Any]] = [
        {"arm": {"norm": norm}, "lr": lr, "edge": None, "curve": curve} for norm, lr in rates.items()
    ]
    noted[1] |= {"edge": "highest", "curve": [*curve[:2], {"lr": 1e-1, "losses": [2.2, 2.4]}]}
    lost = [{"lr": lr, "losses": [None, None]} for lr in (1e-3, 1e-2, 1e-1)]
    noted.append({"arm": {"norm": "none"}, "lr": None, "edge": None, "curve": lost})
    (folder / CHOICE_FILE).write_text(json.dumps({"arms": noted}))
    return folder


def test_the_search_for_learning_rates_is_a_table(tmp_path: Path) -> None:
    report = make_report([searched(tmp_path)])
    (table,) = [table for table in report.tables if table.key == "search"]
    assert table.rows == [
        ("layernorm", "0.01", "3.1000", "2.6000", "1 lost", "–", "+0.500 at 0.001"),
        ("rmsnorm", "0.1", "3.1000", "2.6000", "2.3000", "highest", "+0.300 at 0.01"),
        ("none", "–", "2 lost", "2 lost", "2 lost", "–", "–"),
    ]
    assert r"\label{tab:search-short}" in in_text(report.tables)


def test_the_search_for_learning_rates_is_a_figure(tmp_path: Path) -> None:
    figure = sketched(searched(tmp_path))["learning-rate-search"]
    (best,) = chosen(figure, arm="layernorm", chosen="yes")
    assert [float(best[key]) for key in ("learning_rate", "mean", "low", "high")] == [0.01, 2.6, 2.5, 2.7]
    (lost,) = chosen(figure, arm="layernorm", learning_rate="0.1")
    assert (lost["lost"], lost["mean"]) == ("1", "")
    assert "rates at which a run was lost" in figure.caption


def test_an_arm_that_trained_at_no_rate_is_in_the_figure_where_other_settings_tell_the_others_apart(
    tmp_path: Path,
) -> None:
    searched(tmp_path / "first")
    make_run(tmp_path, norm="layernorm", lr=1e-2, settings={"model.depth": 8})
    figure = sketched(tmp_path)["learning-rate-search"]
    assert {"none", "rmsnorm · depth=4"} <= {*figure.data["arm"]}


def test_rates_that_were_swept_are_in_the_text_of_a_paper(tmp_path: Path) -> None:
    for norm, lr, seed in product(("layernorm", "rmsnorm"), (1e-3, 1e-2), range(2)):
        make_run(tmp_path, norm=norm, lr=lr, seed=seed, final=2.0 + lr + seed / 10)
    report = make_report([tmp_path])
    assert r"\label{tab:rates-short}" in in_text(report.tables) and "learning-rates" in FIGURES_IN_TEXT
    assert "lowest mean validation loss: layernorm 0.001; rmsnorm 0.001." in write_methods(report)


@pytest.mark.parametrize("curve", [None, 5, [{"lr": "a", "losses": []}], [{"lr": 1e-3, "losses": ["<b>"]}]])
def test_a_search_that_is_not_as_sweeps_note_it_is_not_told(tmp_path: Path, curve: Any) -> None:
    make_run(tmp_path, lr=1e-3)
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"arms": [{"arm": {}, "lr": 1e-3, "curve": curve}]}))
    report = make_report([tmp_path])
    assert report.study.fairly_chosen and "search" not in [table.key for table in report.tables]


# ---- every arm in every figure, or why not


def test_a_figure_names_the_arms_that_it_lacks_and_why(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.2, 2.0], "dyt": [2.1]}, probed=20)
    for seed in range(2):
        make_run(tmp_path, norm="none", seed=seed, status="diverged", final=9.0)
    make_run(tmp_path, norm="batchnorm", seed=0, status="failed")
    captions = {name: figure.caption for name, figure in sketched(tmp_path).items()}
    lost = "batchnorm (no run finished: 1 failed)"
    few = "dyt (fewer than two seeds finished in it and its baseline)"
    assert f"Not shown: {lost}; {few}; none (no run finished: 2 diverged)." in captions["differences"]
    assert f"Not shown: {lost}." in captions["loss-train-steps"]  # where runs that diverged are drawn
    assert "Not shown: batchnorm (no run finished: 1 failed); none" in captions["gamma-steps"]


def test_arms_that_have_results_and_no_such_values_are_named(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1]}, probed=20)
    make_study(tmp_path, {"rmsnorm": [2.0, 2.1]})
    figures = sketched(tmp_path)
    assert "Not shown: rmsnorm (nothing of the kind was recorded)." in figures["gamma-steps"].caption
    assert "Not shown" not in figures["loss-val-steps"].caption


def test_arms_for_which_there_is_no_room_are_named(tmp_path: Path) -> None:
    for norm, depth in product(("layernorm", "rmsnorm"), range(13)):
        make_run(tmp_path, norm=norm, settings={"model.depth": depth, "model.width": 32 + depth % 2})
    with use_our_style():
        (figure,) = draw_lines("loss-val-steps", read_study([tmp_path]).arms)
    assert len(figure.canvas.axes) == 12
    absent = "The first 12 of 13 panels. Not shown: layernorm · depth=12, rmsnorm · depth=12 (no room)."
    assert absent in figure.caption


def test_a_study_whose_near_runs_all_diverged_early_is_drawn(tmp_path: Path) -> None:
    """Those that went on end far above, and stand beyond the axis."""
    for seed in range(2):
        make_run(tmp_path, norm="layernorm", seed=seed, steps=1000, final=1e6)
        for final, norm in enumerate(("rmsnorm", "none", "dyt"), start=2):
            make_run(tmp_path, norm=norm, seed=seed, steps=20, log_every=1, status="diverged", final=final)
    assert "Above the axis" in sketched(tmp_path)["loss-train-steps"].caption


def test_two_metrics_have_no_interval_too_many_in_the_text(tmp_path: Path) -> None:
    """Accuracy and loss have an interval each, of one heading."""
    for norm, seed in product(("layernorm", "rmsnorm"), range(3)):
        make_run(tmp_path, norm=norm, seed=seed, accuracy=0.8 + seed / 100, final=2.0 + seed / 10)
    first, *_ = in_text(make_report([tmp_path]).tables).split(r"\bottomrule")
    assert r"\begin{tabular}{@{}lrrr@{}}" in first and first.count(" to ") == 2


def test_a_row_of_differences_names_what_its_baseline_has_otherwise(tmp_path: Path) -> None:
    for norm, size, seed in product(("batchnorm", "groupnorm"), (2, 32), range(2)):
        make_run(tmp_path, norm=norm, seed=seed, settings={"data.batch_size": size}, final=2.0 + seed * len(norm) / 100)
    alt = sketched(tmp_path, {"norm": "batchnorm"})["differences"].alt
    assert "groupnorm · batch_size=2 − batchnorm" in alt and "− batchnorm · batch_size" not in alt
