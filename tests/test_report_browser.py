"""The report in a real browser: at the width of a desk and of a phone, light and dark, and printed."""

from __future__ import annotations

import base64
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browsing import needs_browser
from conftest import draw_for_pages_alone, make_once
from made_runs import make_report, make_run
from support import WHOLE

from normbench.show.report import save

pytest_plugins = ["browser_fixtures"]
pytestmark = needs_browser

SIZES = {
    "desk": (1280, 900),
    "laptop": (1280, 800),
    "phone": (360, 780),
    "paper": (703, 1000),
}  # the paper between its margins

PAGE = (Path(__file__).parent / "report_page.js").read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all of its parts: eight arms at three rates, long names, runs that were lost, findings."""
    return make_once(tmp_path_factory, "report of many arms", write_report) / "report/report.html"


def write_report(folder: Path) -> None:
    """Write runs into a folder, and their report."""
    norms = enumerate(("layernorm", "rmsnorm", "batchnorm", "a_norm_with_quite_a_long_name"))
    for (n, norm), placement, lr, seed in product(norms, ("pre", "post"), (1e-3, 1e-2), range(3)):
        lost = placement == "post" and lr == 1e-2 and seed == n
        how = {"status": "diverged", "summary": {"message": "not finite: " + "block00." * 12}} if lost else {}
        final = 2 + 0.1 * n + 0.01 * seed
        make_run(
            folder, norm=norm, placement=placement, lr=lr, seed=seed, final=final, step_ms=10 + n, probed=20, **how
        )
    with pytest.MonkeyPatch.context() as patch:
        draw_for_pages_alone(patch)
        save(make_report([folder]), folder / "report")


def opened(browser: Any, report: Path, size: str, **media: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get("about:blank")  # else the same page, while it is loaded again, may pass for loaded
    browser.get(report.as_uri())
    WebDriverWait(browser, 60).until(lambda one: ask(one, "document.readyState") == "complete")


def ask(browser: Any, question: str) -> Any:
    return browser.execute_script(f"{PAGE}\nreturn {question}")


LIGHT_AND_DARK = [*product(("desk", "phone"), ("light", "dark"))] if WHOLE else [("desk", "light"), ("phone", "dark")]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), LIGHT_AND_DARK)
def test_the_page_is_whole_at_each_width(browser: Any, report: Path, size: str, scheme: str) -> None:
    opened(browser, report, size, features=[{"name": "prefers-color-scheme", "value": scheme}])
    assert browser.get_log("browser") == []
    assert ask(browser, "document.documentElement.scrollWidth") <= SIZES[size][0]
    assert ask(browser, "outside()") == []
    ask(browser, "unfold()")
    drawings = ask(browser, "drawings()")
    assert len(drawings) == len(list((report.parent / "figures").glob("*.svg")))
    assert all(width > 250 and height > 100 and shown for width, height, shown in drawings)
    assert ask(browser, "contrast()") >= 4.5  # AA
    assert all(width <= SIZES[size][0] for width, _, _ in drawings)
    assert ask(browser, "drawings().filter(([width]) => width > 336).length") == 0  # side by side on a desk
    assert ask(browser, "squeezed()") == []
    assert ask(browser, "outside()") == []


@pytest.mark.slow
def test_a_reader_sees_the_answer_without_scrolling_and_finds_the_rest_in_folds(browser: Any, report: Path) -> None:
    opened(browser, report, "laptop")
    assert ask(browser, "document.querySelector('.verdict li').getBoundingClientRect().bottom") < SIZES["laptop"][1]
    assert ask(browser, "words()") <= 1200 and ask(browser, "closed()") > 5
    sources = "[...document.querySelectorAll('.source')]"
    shown = "document.querySelector(location.hash).checkVisibility({contentVisibilityAuto: true})"
    for place in range(ask(browser, f"{sources}.length")):
        ask(browser, f"{sources}[{place}].click()")
        assert ask(browser, shown)


@pytest.mark.slow
def test_arms_are_switched_and_tables_sorted(browser: Any, report: Path) -> None:
    opened(browser, report, "desk")
    parts = "[...document.querySelectorAll('[data-arm]')]"
    shown = f"{parts}.filter(part => getComputedStyle(part).display !== 'none').length"
    before = ask(browser, shown)
    titles = "[...document.querySelectorAll('[data-arm] > title')].map(one => one.textContent)"
    assert any("rmsnorm · pre 2.1" in title for title in ask(browser, titles))
    ask(browser, "unfold()")
    switch = browser.find_element("css selector", ".switches button")
    looks = "getComputedStyle(document.querySelector('.switches button'), '::before').backgroundImage"
    assert switch.get_attribute("aria-pressed") == "true"
    on = ask(browser, looks)
    switch.send_keys(" ")
    assert switch.get_attribute("aria-pressed") == "false" and ask(browser, looks) != on
    assert 0 < ask(browser, shown) < before
    switch.send_keys("\ue007")  # Enter
    assert switch.get_attribute("aria-pressed") == "true" and ask(browser, looks) == on
    assert ask(browser, shown) == before
    column = "[...document.querySelectorAll('#arms tbody tr')].map(row => parseFloat(row.cells[2].textContent))"
    ask(browser, "document.querySelectorAll('#arms thead th')[2].click()")
    up = ask(browser, column)
    ask(browser, "document.querySelectorAll('#arms thead th')[2].click()")
    assert up == sorted(up) and ask(browser, column) == up[::-1]
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_it_prints(browser: Any, report: Path) -> None:
    opened(browser, report, "paper", media="print")
    assert ask(browser, "cut()") == 0
    assert ask(browser, "closed()") == 0
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
