"""The report over the runs below some folders: a page, a text, tables and figures."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from normbench import __version__
from normbench.analysis import beside, latex, tables
from normbench.analysis.answers import answer
from normbench.analysis.causes import next_steps, why
from normbench.analysis.comparisons import (
    Comparison,
    Survival,
    compare_all,
    contenders,
    given_baseline,
    partner,
    usual_baseline,
)
from normbench.analysis.designs import said
from normbench.analysis.fairness import Finding, findings
from normbench.analysis.figures import draw_all
from normbench.analysis.figures.style import COLUMN, dark_rules, is_wide
from normbench.analysis.measures import Yardstick, activations_frame, runs_frame, yardstick
from normbench.analysis.methods import methods, options_of
from normbench.analysis.records import Arm, Study, read_studies, shortened
from normbench.analysis.references import bibliography
from normbench.analysis.safe import to_csv
from normbench.analysis.sensitivity import areas, failing, searches, tried_levels
from normbench.analysis.studied import places_of_studies, studies_below
from normbench.analysis.tables import Table
from normbench.analysis.wording import TEMPLATES, environment, paragraphs, verdict
from normbench.record.files import inside, read_json, remove_written, write_bytes, write_json

WRITTEN = ".written.json"  # beside a report: which files are its own
PAGES = ("report.tex", "appendix.tex", "report.md", "report.html")  # the last one links to all others
MOST_ROWS = 200  # of the table of all runs, which the CSV has too


@dataclass(frozen=True)
class Report:
    """All that a report says, before it is drawn.

    baseline: its settings, without runs. chosen: whether a learning rate was chosen for each arm. runs, blocks: of
    `runs_frame` and `activations_frame`. comparisons: in the primary metric. survivals: of how many runs were lost.
    verdict: sentences, each with the key of the table behind it. why: what probes say of the cause. next: what to do
    now, and the commands for it. missing: how many runs were planned that have no directory.
    """

    study: Study
    baseline: Arm
    by: Yardstick
    chosen: bool
    runs: pd.DataFrame
    blocks: pd.DataFrame
    comparisons: tuple[Comparison, ...]
    survivals: tuple[Survival, ...]
    verdict: list[tuple[str, str]]
    why: list[str]
    next: list[str]
    findings: tuple[Finding, ...]
    tables: list[Table]
    missing: int = 0


def make_reports(folders: Sequence[Path], *, baseline: str | None = None, **how: Any) -> list[Report]:
    """Find out what the runs below some folders say, task by task.

    baseline: words of an arm, such as `norm=layernorm`. how: as `examine` has it.

    Raises:
        UsageError: a folder is not there, no run has ended, or the baseline is no arm of some task.
    """
    # a study of models as they start has no runs
    having = [one for one in folders if not places_of_studies([one]) or any(one.rglob("status.json"))]
    found = read_studies(having) if having else []
    return [examine(one, given_baseline(one, baseline) if baseline else usual_baseline(one), **how) for one in found]


def examine(
    study: Study,
    baseline: dict[str, Any],
    *,
    target: float | None = None,
    metric: str | None = None,
    margin: float | None = None,
    missing: Mapping[str, str] | None = None,
) -> Report:
    """Find out what a study says.

    target: the loss (nats) whose time is asked. metric: the tag by which arms are judged first. margin: a difference in
    it that does not matter.
    missing: runs that were planned and have no directory -> why, where they have failed.
    """
    arms, chosen = contenders(study, baseline)
    partners = {arm.name: other for arm in study.arms if (other := partner(arm, arms, baseline))}
    by = yardstick(study, partners, target, metric)
    stated = answer(study, arms, baseline, by.primary)
    ours, crossed = stated.comparisons, stated.contrasts
    others = [compare_all(arms, baseline, metric) for metric in by.metrics[1:]]
    runs, blocks, compared_blocks = runs_frame(study, by), activations_frame(study.arms), activations_frame(arms)
    found = [
        tables.results_table(runs, study, by),
        *(tables.differences_table(family, primary=family is ours) for family in (ours, *others) if family),
        tables.designs_table(crossed),
        *(tables.survival_table(arms, key) for key in failing(arms)),
        tables.areas_table(areas(study)),
        tables.search_table(searches(study)),
        tables.rates_table(tried_levels(study.arms)),
        tables.costs_table(runs),
        tables.step_times_table(ours),
        tables.noise_table(ours),
        tables.activations_table(blocks),
        tables.lost_table(study),
    ]
    sentences = verdict(study, ours, margin, said(crossed), stated.survivals)
    reasons = why(arms, compared_blocks, ours)
    steps = next_steps(study, arms, compared_blocks, ours, margin)
    caveats = findings(study, chosen and not by.primary.tag.endswith("/test"), ours, missing)
    shown = [table for table in found if table.rows]
    lacking = len(missing or {})
    said_of_all = ours, stated.survivals, sentences, reasons, steps, caveats, shown, lacking
    return Report(study, Arm(baseline), by, chosen, runs, blocks, *said_of_all)


# ---- the files


def save_all(reports: Sequence[Report], folders: Sequence[Path], out: Path, width: float = COLUMN) -> Path:
    """Write reports, of several tasks each in a folder of its own below a page that leads to them; return the page.

    Where folders hold studies alone, the page shows these.
    """
    if len(reports) == 1:
        return save(reports[0], out, width)
    if not reports:
        out.mkdir(parents=True, exist_ok=True)
        studies = studies_below(folders, out)
        title = shortened([study.about["title"] for study in studies], 3)
        write_bytes(out / "report.html", page_of("study.html", title, studies=studies).encode())
        return out / "report.html"
    parts = [(save(report, inside(out, report.study.task), width).relative_to(out), report) for report in reports]
    write_bytes(out / "report.html", page_of("parts.html", title_of(reports[0].study), parts=parts).encode())
    return out / "report.html"


def save(report: Report, out: Path, width: float = COLUMN) -> Path:
    """Draw the figures, width inches wide, and write everything; return the page.

    Files that an older report has noted as its own and this one has not are removed, and what a killed one left half
    written. All else is another's and stays.

    Raises:
        OSError: it cannot be written.
    """
    inside(out, "figures").mkdir(parents=True, exist_ok=True)
    figures = draw_all(report.study, dict(report.baseline.settings), report.by.metrics, width, report.comparisons)
    others = beside(lambda: [figure.files() for figure in figures[1::2]])  # at the same time
    drawn = [*(figure.files() for figure in figures[::2]), *others()]
    files = {f"figures/{name}": content for own in drawn for name, content in own.items()}
    shown = [
        {**vars(one), "svg": files[f"figures/{one.name}.svg"].decode(), "place": "figures", "wide": is_wide(one)}
        for one in figures
    ]
    files["runs.csv"] = to_csv(report.runs)
    files["runs.parquet"] = report.runs.to_parquet(index=False)
    if len(report.blocks):
        files["activations.csv"] = to_csv(report.blocks)
    words = words_of(report) | {"studies": studies_below(report.study.folders, out)}
    about = {"report": report, "figures": shown, "latex": latex, **words}
    pages = {name: page_of(name, title_of(report.study), **about) for name in PAGES}
    files["report.bib"] = bibliography(latex.cited_in(pages["report.tex"] + pages["appendix.tex"])).encode()
    files |= {name: page.encode() for name, page in pages.items()}
    torn = [path for name in files for path in (out / name).parent.glob(f".{Path(name).name}.*.tmp")]
    for path in torn:
        path.unlink()
    older = (read_json(out / WRITTEN, {"files": [str]}) or {"files": []})["files"]
    write_json(out / WRITTEN, {"files": sorted({*older, *files})})  # before they are there, should this be cut short
    for name, content in files.items():
        write_bytes(out / name, content)
    remove_written(out, {*older} - {*files})
    write_json(out / WRITTEN, {"files": sorted(files)})
    return out / "report.html"


def words_of(report: Report) -> dict[str, Any]:
    """Return what stands in the page, the text, in GitHub's Markdown, and the tables for LaTeX."""
    facts = (fact.partition(": ") for fact in paragraphs("facts.jinja", "facts", report, options_of(report.study)))
    return {
        "lead": "".join(paragraphs("facts.jinja", "lead", report.study)),
        "question": paragraphs("facts.jinja", "question", report),
        "methods": methods(report),
        "command": report.study.command(),
        "facts": {name: text for name, _, text in facts if text},
        "titles": {table.key: table.title for table in report.tables},
        "runs": report.runs.to_dict("records") if len(report.runs) <= MOST_ROWS else [],
    }


def title_of(study: Study) -> str:
    """Name a study by its folders."""
    return shortened([folder.resolve().name for folder in study.folders], 3)


def page_of(template: str, title: str, **about: Any) -> str:
    """Return a template, filled. Of scripts, the page allows the one that it has, by its hash."""
    script = (TEMPLATES / "report.js").read_text("utf-8")
    hashed = b64encode(sha256(script.encode()).digest()).decode()
    made = {"version": __version__, "moment": datetime.now(UTC), "dark": dark_rules(".drawing")}
    return environment().get_template(template).render(title=title, script=script, hash=hashed, **made, **about)
