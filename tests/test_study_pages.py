"""The page of each study in a real browser, of two arms and two seeds: no error, buttons, tables that are sorted."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import needs_browser
from conftest import draw_for_pages_alone, make_once
from data_helpers import write_questions
from support import reason_against_in_a_fork

from normbench.show.pages import page_of
from normbench.show.studied import read_study, studies_below
from normbench.studies import STUDIES
from normbench.studies.frame import Study, Subject, make_study, study_class
from normbench.studies.saving import save
from normbench.studies.study import measure_all, points_of
from normbench.sweep.sweep import plan_sweep
from normbench.training import precision

pytest_plugins = ["browser_fixtures"]
pytestmark = needs_browser

PAGE = (Path(__file__).parent / "report_page.js").read_text()


def subjects_of(kind: type[Study], questions: Path) -> list[Subject]:
    """The points of a study's miniature by two seeds; models of trained runs are measured as they start.

    questions: labelled texts, for studies that need some.
    """
    words = [word for word in kind.miniature if not word.startswith("study.")]
    if "data=banking77" in words:
        words.append(f"data.root={questions}")
    sweep = plan_sweep([f"name={kind.name}", "sweep.report=false", "sweep.jobs=1", "device=cpu", *words, "seed=0,1"])
    return points_of(sweep.plan)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every study has written, but for pictures as PDF."""
    questions = tmp_path_factory.mktemp("questions")
    write_questions(questions)
    return make_once(tmp_path_factory, "studies", lambda place: make_studies(place, questions))


def make_studies(place: Path, questions: Path) -> None:
    """Make the miniature of every study in a folder; questions: labelled texts."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        draw_for_pages_alone(patch)
        patch.setattr("normbench.studies.saving.TensorBoard.images", lambda self, images: None)
        patch.setattr("normbench.studies.bench.last_level_cache", lambda device: 2**16)
        patch.setattr(precision, "reason_against_on_cpu", reason_against_in_a_fork)
        patch.chdir(place)
        for name in STUDIES:
            kind = study_class(name)
            study = make_study(kind, [word for word in kind.miniature if word.startswith("study.")])
            own = place / "studies" / name
            own.mkdir(parents=True)
            rows = measure_all(study, subjects_of(kind, questions), own / "rows.jsonl", quiet=True)
            save(study, name, rows, own, f"normbench study {name}")


def ids_in(page: str) -> list[str]:
    return re.findall(r'\bid="([^"]*)"', page)


def test_ids_are_a_page_s_own_and_all_links_in_it_lead_somewhere(folder: Path) -> None:
    both = [*studies_below([folder], folder), read_study(folder / "studies" / "depth", folder, number=2)]
    pages = {name: (folder / "studies" / name / "report.html").read_text() for name in STUDIES}
    pages["all"] = page_of("study.html", "All", studies=both)
    for name, page in pages.items():
        ids = Counter(ids_in(page))
        assert max(ids.values()) == 1, (name, ids.most_common(3))
        assert not [one for one in ids if re.search(r"\s", one)], name
        assert {*re.findall(r'(?:href="|url\()#([^")]+)', page)} <= {*ids}, name


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_begins_with_a_finding_in_words_and_numbers(folder: Path, name: str) -> None:
    own = folder / "studies" / name
    finding = json.loads((own / "study.json").read_text())["finding"]
    page = html.unescape((own / "report.html").read_text())
    assert finding and all(
        re.search(r"\d (seeds|rounds)|none of|invariant to|in any seed|the last block", sentence)
        for sentence in finding
    )
    assert page.index("<main>") < page.index(finding[0]) < page.index('class="words"')
    assert not [sentence for sentence in finding if "nan" in sentence]


@pytest.mark.parametrize("name", STUDIES)
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
