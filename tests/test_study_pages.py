"""The page of each study in a real browser, of two arms and two seeds: no error, buttons, tables that are sorted."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from browsing import browser as browser  # a fixture
from browsing import needs_browser
from data_helpers import write_questions
from studied import measured, subject

from normbench.analysis.figures.style import Figure
from normbench.analysis.report import page_of
from normbench.analysis.studied import read_study, studies_below
from normbench.studies import STUDIES
from normbench.studies.conduct import save
from normbench.studies.frame import Study, Subject, make_study, study_class

pytestmark = needs_browser

PAGE = (Path(__file__).parent / "report_page.js").read_text()
TEXT = ("model.depth=2", "model.width=16", "model.heads=2", "model.context=16", "data.batch_size=4",
        "data.eval_batch_size=8", "trainer.steps=4")  # fmt: skip
IMAGES = ("data=digits", "data.batch_size=8", "trainer.steps=4")
SMOOTH = (*IMAGES, "model=cnn_plain", "model.width=4", "optim=sgd", "schedule=constant", "trainer.grad_clip=0")
SIGMOIDS = (*IMAGES, "model=mlp_plain", "model.width=16", "model.activation=sigmoid", "optim=sgd")

# The words of each study's models, of its two arms, and of the study itself; models of trained runs are measured as
# they start.
MADE: Mapping[str, tuple[tuple[str, ...], str, tuple[str, str], tuple[str, ...]]] = {
    "bench": (TEXT, "norm", ("layernorm", "rmsnorm"), (
        "rows=8,16", "features=16", "dtypes=float32", "implementations=eager", "rounds=2", "steps=2")),
    "invariance": ((*TEXT[:-3], *IMAGES, "model.patch=2"), "norm", ("layernorm", "dyt"), ()),
    "propagation": (TEXT, "placement", ("pre", "post"), ()),
    "smoothness": (SMOOTH, "norm", ("none", "batchnorm"), ("every=2", "rates=null")),
    "saturation": (SIGMOIDS, "norm", ("none", "batchnorm"), ("every=2",)),
    "mapping": (TEXT, "norm", ("layernorm", "rmsnorm"), ("drawn=4",)),
    "position": (TEXT, "norm", ("none", "layernorm"), ()),
    "depth": (TEXT, "placement", ("pre", "post"), ()),
    "folding": ((*TEXT, "model.tied=false"), "norm", ("layernorm", "rmsnorm"), ("pairs=9",)),
    "padding": (("data=banking77", "data.batch_size=8", *TEXT[:4]), "norm", ("layernorm", "batchnorm"), (
        "shares=0,0.5", "lengths=3,6")),
    "robustness": (TEXT, "norm", ("none", "layernorm"), ("batches=1",)),
    "statistics": ((*IMAGES, "model=cnn", "model.width=4"), "norm", ("batchnorm", "instancenorm"), ("batches=2",)),
}  # fmt: skip


def subjects_of(name: str, questions: Path) -> list[Subject]:
    """Two arms by two seeds; where a study draws against a setting, by two of its values.

    questions: labelled texts, for the study that needs some.
    """
    words, key, values, _ = MADE[name]
    if name == "padding":
        words = (*words, f"data.root={questions}")
    more = {"propagation": ("model.depth", (2, 4)), "saturation": ("data.scaling", ("unit", "standard"))}
    more["statistics"] = ("data.batch_size", (4, 8))
    third, levels = more.get(name, ("seed", (0,)))
    found = []
    for value, level, seed in product(values, levels, (0, 1)):
        tracked = ("norm.track_running_stats=true",) if value == "instancenorm" else ()
        settings = {key: value} | ({third: level} if third != "seed" else {})
        found.append(subject(*words, f"{third}={level}", f"{key}={value}", f"seed={seed}", *tracked, **settings))
    return found


def rows_of(study: Study, subjects: list[Subject]) -> pd.DataFrame:
    if not study.together:
        return measured(study, *subjects)
    return pd.DataFrame([{**one.settings, "seed": one.seed, **row} for one, row in study.measure_together(subjects)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every study has written, but for pictures as PDF and PNG."""
    place, questions = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("questions")
    write_questions(questions)
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "drawn", lambda self, suffix, **how: b"")
        patch.setattr("normbench.studies.conduct.TensorBoard.images", lambda self, images: None)
        patch.setattr("normbench.studies.bench.last_level_cache", lambda device: 2**16)
        for name in MADE:
            study = make_study(study_class(name), [f"study.{word}" for word in MADE[name][-1]])
            own = place / "studies" / name
            own.mkdir(parents=True)
            save(study, name, rows_of(study, subjects_of(name, questions)), own, f"normbench study {name}")
    return place


def ids_in(page: str) -> list[str]:
    return re.findall(r'\bid="([^"]*)"', page)


def test_every_study_is_here() -> None:
    assert {*MADE} == {*STUDIES}


def test_ids_are_a_page_s_own_and_all_links_in_it_lead_somewhere(folder: Path) -> None:
    both = [*studies_below([folder], folder), read_study(folder / "studies" / "depth", folder, number=2)]
    pages = {name: (folder / "studies" / name / "report.html").read_text() for name in MADE}
    pages["all"] = page_of("study.html", "All", studies=both)
    for name, page in pages.items():
        ids = Counter(ids_in(page))
        assert max(ids.values()) == 1, (name, ids.most_common(3))
        assert not [one for one in ids if re.search(r"\s", one)], name
        assert {*re.findall(r'(?:href="|url\()#([^")]+)', page)} <= {*ids}, name


@pytest.mark.parametrize("name", MADE)
def test_a_page_begins_with_a_finding_in_words_and_numbers(folder: Path, name: str) -> None:
    own = folder / "studies" / name
    finding = json.loads((own / "study.json").read_text())["finding"]
    page = html.unescape((own / "report.html").read_text())
    assert finding and all(
        re.search(r"\d (seeds|rounds)|none of|invariant to|in any seed", sentence) for sentence in finding
    )
    assert page.index("<main>") < page.index(finding[0]) < page.index('class="words"')
    assert not [sentence for sentence in finding if "nan" in sentence]


@pytest.mark.parametrize("name", MADE)
def test_the_page_of_a_study_copies_sorts_and_switches_without_an_error(browser: Any, folder: Path, name: str) -> None:
    for width in (1280, 360):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get((folder / "studies" / name / "report.html").as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(f"{PAGE}\nreturn [...outside(), ...squeezed()]") == []
        assert browser.execute_script(f"{PAGE}\nreturn drawings().filter(([across]) => across > 336)") == []
    found = browser.execute_script(f"{PAGE}\nreturn handled()")
    assert browser.get_log("browser") == []
    assert found["copies"] == found["copied"] > 0
    assert found["sorted"] == found["tables"] > 0
    assert found["switches"] == 0 or 0 < found["shown"] < found["drawn"]
