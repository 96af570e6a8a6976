"""One page of a report as it was when somebody last read it whole: golden_page.html has all but its figures.

Where a change of the page is wanted, `python tests/test_golden_page.py` writes it anew: read the difference in git.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from made_runs import make_report, make_run, plan

from normbench import __version__
from normbench.show.report import fill_pages

GOLDEN = Path(__file__).parent / "golden_page.html"
CONSTANT = {"constant": {"loss/val": 3.309}}
LUCK = [0.0, 0.04, -0.03, 0.01, 0.02]  # of the seeds, in every arm
NOISE = {
    "layernorm": [0.0, 0.0, 0.0, 0.0, 0.0],
    "rmsnorm": [0.004, -0.003, 0.002, -0.001, 0.003],
    "groupnorm": [0.001, 0.004, -0.002, 0.003, -0.001],
    "dyt": [0.0, 0.001, 0.002, 0.001, 0.0],
}
ENDS = {  # of the arms, by norm and warm-up
    ("layernorm", 0): 2.0,
    ("layernorm", 50): 1.95,
    ("rmsnorm", 0): 2.4,
    ("rmsnorm", 50): 2.0,
    ("groupnorm", 0): 2.001,
    ("groupnorm", 50): 1.951,
    ("dyt", 0): 3.3,
}


def make_golden_study(folder: Path) -> None:
    """Make runs of two crossed factors: one arm does not train, one loses runs, one has failed."""
    for (norm, warmup), end in ENDS.items():
        for seed, (luck, noise) in enumerate(zip(LUCK, NOISE[norm], strict=True)):
            is_lost = (norm, warmup) == ("groupnorm", 0) and seed > 3
            make_run(
                folder,
                norm=norm,
                seed=seed,
                final=end + (1 + warmup / 40) * noise + (0.0 if norm == "dyt" else luck),
                settings={"schedule.warmup": warmup},
                status="diverged" if is_lost else "finished",
                step_ms=10.0 + len(norm),
                data=CONSTANT,
                probed=20,
                stream=0.03 if norm == "dyt" else 1.0,
                gradient=1e-5 if norm == "dyt" else 0.1,
            )
    make_run(folder, norm="none", status="failed", settings={"schedule.warmup": 0}, data=CONSTANT)
    plan(folder, "norm=layernorm,rmsnorm,groupnorm,dyt,none", "schedule.warmup=0,50", "seed=range(0,5)", "name=golden")


def page_below(folder: Path) -> str:
    """Return the words and tables of the page, without its figures and what changes with place, time and version."""
    study = folder / "golden"
    make_golden_study(study)
    report = make_report([study], margin=0.01)
    page = fill_pages(report, figures=[], studies=[])["report.html"]
    shown = page[page.index("<header>") : page.index("</main>")]
    shown = re.sub(rf"\bnormbench {re.escape(__version__)}\b", "normbench VERSION", shown)
    return shown.replace(str(folder), "FOLDER").strip() + "\n"


def test_the_page_is_the_one_that_was_read(tmp_path: Path) -> None:
    page = page_below(tmp_path)
    if page != GOLDEN.read_text("utf-8"):
        was = GOLDEN.read_text("utf-8").splitlines()
        changed = [line for line in page.splitlines() if line not in was]
        lines = "\n".join(changed[:20])
        pytest.fail(f"the page has changed: if it should, python {Path(__file__).name} writes it anew\n{lines}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(page_below(Path(folder).resolve()), "utf-8")
