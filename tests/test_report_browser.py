"""The report in a real browser: at the width of a desk and of a phone, light and dark, and printed."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import browser as browser  # a fixture
from browsing import needs_browser
from browsing import screenshots as screenshots  # a fixture
from made_runs import make_run

from normbench.analysis.report import write_report

pytestmark = needs_browser

SIZES = {"desk": (1280, 900), "phone": (360, 780)}

# The elements that stick out of the page, and are in no box that scrolls.
OUTSIDE = """
    const scrolls = element =>
        element && (getComputedStyle(element).overflowX === "auto" || scrolls(element.parentElement));
    return [...document.body.querySelectorAll('*')].filter(element => !scrolls(element)).filter(element => {
        const box = element.getBoundingClientRect();
        return box.width && (box.right > innerWidth + 1 || box.left < -1);
    }).map(element => element.tagName + ' ' + element.textContent.slice(0, 40));
"""
DRAWINGS = """
    return [...document.querySelectorAll('.drawing > svg, .drawing > img')].map(element => {
        const box = element.getBoundingClientRect();
        return [box.width, box.height, element.checkVisibility(), element.complete !== false];
    });
"""
CUT = """
    const boxes = [...document.querySelectorAll(".scroll, .drawing")];
    return boxes.filter(box => box.firstElementChild.getBoundingClientRect().right > innerWidth + 1).length;
"""
CONTRAST = """
    const luminance = colour => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(
            part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        const colour = element ? getComputedStyle(element).backgroundColor : 'rgb(255, 255, 255)';
        return /, 0\\)$/.test(colour) ? behind(element.parentElement) : colour;
    };
    return [...document.querySelectorAll('h1, h2, p, li, strong, span, td, th, a, dt, dd, figcaption')].map(element => {
        const [low, high] = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    });
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all of its parts: eight arms at three rates, long names, runs that were lost, findings."""
    folder = tmp_path_factory.mktemp("runs")
    for n, norm in enumerate(("layernorm", "rmsnorm", "batchnorm", "a_norm_with_quite_a_long_name")):
        for placement in ("pre", "post"):
            for lr in (1e-3, 1e-2):
                for seed in range(3):
                    lost = placement == "post" and lr == 1e-2 and seed == n
                    make_run(
                        folder, norm=norm, placement=placement, lr=lr, seed=seed, final=2 + 0.1 * n + 0.01 * seed,
                        status="diverged" if lost else "finished", message="not finite: " + "block00." * 12,
                        step_ms=10.0 + n, probed=20,
                    )  # fmt: skip
    return write_report([folder])


def opened(browser: Any, report: Path, size: str, scheme: str = "light") -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(report.as_uri())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_is_whole_at_each_width(browser: Any, report: Path, screenshots: Path, size: str, scheme: str) -> None:
    opened(browser, report, size, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    assert browser.execute_script(OUTSIDE) == []
    drawings = browser.execute_script(DRAWINGS)
    assert len(drawings) == len(list((report.parent / "figures").glob("*.svg")))
    assert all(width > 250 and height > 100 and visible and loaded for width, height, visible, loaded in drawings)
    assert min(browser.execute_script(CONTRAST)) >= 4.5  # of words against what is behind them (WCAG 2, AA)
    browser.execute_script("document.querySelector('details').open = true")
    assert browser.execute_script(OUTSIDE) == []
    whole = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    (screenshots / f"report-{size}-{scheme}.png").write_bytes(base64.b64decode(whole["data"]))


def test_it_prints(browser: Any, report: Path, screenshots: Path) -> None:
    opened(browser, report, "desk")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_cdp_cmd(  # as wide as the paper between its margins
        "Emulation.setDeviceMetricsOverride", {"width": 703, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )
    assert browser.execute_script(CUT) == 0
    whole = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    (screenshots / "report-print.png").write_bytes(base64.b64decode(whole["data"]))
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    pdf = base64.b64decode(printed["data"])
    (screenshots / "report.pdf").write_bytes(pdf)
    assert pdf.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf + b"".join(objects(pdf))))
    assert 3 <= pages <= 30


def objects(pdf: bytes) -> Iterator[bytes]:
    """The streams of a PDF that unpack."""
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        try:
            yield zlib.decompress(stream)
        except zlib.error:
            continue
