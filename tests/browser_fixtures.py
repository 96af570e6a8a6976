"""A pytest plugin for the tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import CHROMEDRIVER, CHROMIUM

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--window-size=1600,1400",
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Selenium's driver of the one browser of this process, which keeps what the page tells its console."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the extra ci")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def browser(chromium: Any) -> Iterator[Any]:
    """The driver as it is after a start: an empty window of the usual size, and nothing in the logs."""
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chromium.implicitly_wait(0)
    for log in ("browser", "performance"):
        chromium.get_log(log)
    yield chromium
    chromium.get("about:blank")  # so that no page goes on
