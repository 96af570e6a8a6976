"""The report in a real browser: at the width of a desk and of a phone, light and dark, and printed."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from browsing import browser as browser  # a fixture
from browsing import needs_browser
from browsing import screenshots as screenshots  # a fixture
from made_runs import make_run

from normbench.analysis.report import make_report, save

pytestmark = needs_browser

SIZES = {"desk": (1280, 900), "phone": (360, 780)}

PAGE = (Path(__file__).parent / "report_page.js").read_text()


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
                        status="diverged" if lost else "finished", step_ms=10.0 + n, probed=20,
                        summary={"message": "not finite: " + "block00." * 12},
                    )  # fmt: skip
    return save(make_report([folder]), folder / "report")


def opened(browser: Any, report: Path, size: str, scheme: str = "light") -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(report.as_uri())


def ask(browser: Any, question: str) -> Any:
    return browser.execute_script(f"{PAGE}\nreturn {question}")


def screenshot(browser: Any, path: Path) -> None:
    whole = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(whole["data"]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_is_whole_at_each_width(browser: Any, report: Path, screenshots: Path, size: str, scheme: str) -> None:
    opened(browser, report, size, scheme)
    assert browser.get_log("browser") == []
    assert ask(browser, "document.documentElement.scrollWidth") <= SIZES[size][0]
    assert ask(browser, "outside()") == []
    drawings = ask(browser, "drawings()")
    assert len(drawings) == len(list((report.parent / "figures").glob("*.svg")))
    assert all(width > 250 and height > 100 and shown for width, height, shown in drawings)
    assert ask(browser, "contrast()") >= 4.5  # AA
    assert ask(browser, "(document.querySelector('details').open = true, outside())") == []
    screenshot(browser, screenshots / f"report-{size}-{scheme}.png")


def test_it_prints(browser: Any, report: Path, screenshots: Path) -> None:
    opened(browser, report, "desk")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_cdp_cmd(  # as wide as the paper between its margins
        "Emulation.setDeviceMetricsOverride", {"width": 703, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )
    assert ask(browser, "cut()") == 0
    screenshot(browser, screenshots / "report-print.png")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    pdf = base64.b64decode(printed["data"])
    (screenshots / "report.pdf").write_bytes(pdf)
    assert pdf.startswith(b"%PDF")
