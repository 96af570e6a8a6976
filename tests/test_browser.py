"""The real TensorBoard on several runs, in a real browser: every tab shows what it is there for."""

from __future__ import annotations

import io
import json
import time
import urllib.request
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import needs_browser
from PIL import Image
from tensorboard import program

from normbench.cli import main
from normbench.commands.hparams import make_plugins
from normbench.commands.tensorboard import start_page

pytest_plugins = ["browser_fixtures"]
pytestmark = [*needs_browser, pytest.mark.filterwarnings("ignore")]  # of TensorBoard, here in this process

PATIENCE = 60.0  # seconds, for a machine that is busy with other tests
CURVE = "path.line[d]:not([d=''])"


# ---- what is looked at

BLOCKS, STEPS = 2, 12
TINY = [f"model.depth={BLOCKS}", "model.width=16", "model.heads=2", "model.context=16", f"trainer.steps={STEPS}"]
TINY += ["trainer.eval_every=4", "trainer.eval_batches=2", "probes.every=2", "probes.histograms_every=2"]
TINY += ["threads=1", "device=cpu", "quiet=true"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of four small models' runs, two seeds of each of two arms, by their names in TensorBoard."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for norm, seed in product(("layernorm", "rmsnorm"), (0, 1)):
            assert main(["train", f"norm={norm}", f"seed={seed}", *TINY]) == 0
    return {path.name: path for path in sorted((folder / "outputs/train").iterdir())}


@pytest.fixture(scope="module")
def tensorboard(runs: dict[str, Path]) -> str:
    """The address of a TensorBoard that has read the runs."""
    server = program.TensorBoard(make_plugins())
    server.configure(logdir=str(next(iter(runs.values())).parent), host="127.0.0.1", port=0)
    address = server.launch()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def known() -> set[str]:
        with opener.open(f"{address}data/plugin/text/tags", timeout=PATIENCE) as answer:
            return set(json.load(answer))

    until(lambda: known() == set(runs), "the runs")
    return address


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.3)


# ---- how it is looked at


class Page:
    """A tab of TensorBoard, through all of its shadow roots."""

    SCRIPT = """
        const walk = root => [...root.querySelectorAll('*')].flatMap(
            element => [element, ...(element.shadowRoot ? walk(element.shadowRoot) : [])]);
        const own = element => [...element.childNodes].filter(node => node.nodeType === 3).map(
            node => node.textContent).join('');
        const all = walk(document).filter(element => element.checkVisibility());
    """

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, address: str) -> None:
        self.driver.get("about:blank")  # as a change of the fragment alone would load nothing
        self.driver.get(address)

    @property
    def text(self) -> str:
        return self.driver.execute_script(f"{self.SCRIPT} return all.map(own).join('')")

    def elements(self, selector: str) -> list[Any]:
        return self.driver.execute_script(f"{self.SCRIPT} return all.filter(e => e.matches(arguments[0]))", selector)

    def shows(self, *words: str) -> None:
        until(lambda: all(word in self.text for word in words), f"{words} in the page")

    def has(self, count: int, selector: str) -> None:
        script = f"{self.SCRIPT} return all.filter(e => e.matches(arguments[0])).length"
        until(lambda: self.driver.execute_script(script, selector) >= count, f"{count} {selector}")


@pytest.fixture(scope="module")
def page(tensorboard: str, browser: Any) -> Page:
    return Page(browser, tensorboard)


def coloured(element: Any) -> int:
    """Number of an element's pixels that are neither black, gray nor white."""
    pixels = np.asarray(Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")).astype(int)
    return int((np.ptp(pixels, axis=2) > 60).sum())


# ---- what is seen


@pytest.mark.slow
def test_time_series_opens_on_the_losses_of_all_runs(page: Page, runs: dict[str, Path]) -> None:
    page.open(start_page(page.address))
    page.shows(*runs, "loss/val", "loss/train")
    page.has(2, "metrics-pinned-view line-chart canvas")
    until(lambda: coloured(page.elements("metrics-pinned-view line-chart")[0]) > 200, "curves")
    first, again, other, other_again = (
        swatch.get_attribute("style") for swatch in page.elements("runs-data-table .run-color-swatch")
    )
    assert first == again != other == other_again  # the seeds of an arm share a color


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tab", "words", "count", "selector"),
    [
        ("histograms", ["act/block00.mlp/in"], 12 * STEPS // 2, "path.outline"),  # of a page's 12 cards, at each probe
        ("text", ["normbench.norms.LayerNorm", "normbench.norms.RMSNorm"], 0, "*"),
        ("custom_scalars", ["residual stream RMS by depth", "step time"], 4 * 4 * BLOCKS, CURVE),  # 4 charts by block
    ],
)
def test_a_tab_shows_each_run(
    page: Page, runs: dict[str, Path], tab: str, words: list[str], count: int, selector: str
) -> None:
    page.open(f"{page.address}#{tab}")
    page.shows(*runs, *words)
    page.has(count, selector)


@pytest.mark.slow
def test_hparams_shows_a_row_of_each_run(page: Page, runs: dict[str, Path]) -> None:
    page.open(f"{page.address}#hparams")
    page.shows(*runs, "layernorm", "rmsnorm", "loss/val")
    page.has(1, "vaadin-grid.session-group-table")
    cells = [cell for element in page.elements("vaadin-grid-cell-content") if (cell := element.text.strip())]
    for name, run in runs.items():
        summary = json.loads((run / "summary.json").read_text())
        row = cells[cells.index(name) + 1 :]
        norm, _, seed, *_ = name.split("-")
        assert row[0] == norm and float(row[1]) == float(seed.removeprefix("s"))
        metrics = row[5 - (norm == "rmsnorm") :]  # which lacks norm.bias, LayerNorm's
        assert float(metrics[0]) == pytest.approx(summary["metrics"]["loss/val"], rel=1e-4)
