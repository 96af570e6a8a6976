"""The report over the runs below some folders: a page, a text, tables and figures."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normbench.analysis.comparisons import (
    Baseline,
    Comparison,
    compare_all,
    contenders,
    given_baseline,
    usual_baseline,
)
from normbench.analysis.facts import Finding
from normbench.analysis.fairness import findings
from normbench.analysis.keeping import write_files
from normbench.analysis.measures import Measures, Yardstick, measured, yardstick
from normbench.analysis.records import Study, read_study
from normbench.analysis.sensitivity import tried_rates
from normbench.analysis.tabulated import (
    PRIMARY,
    Table,
    costs_table,
    differences_table,
    lost_table,
    rates_table,
    results_table,
    step_times_table,
)
from normbench.analysis.verdict import Sentence, verdict

if TYPE_CHECKING:
    import pandas as pd

    from normbench.analysis.figures import Figure

HTML, TEXT, CSV, PARQUET, FIGURES = "report.html", "report.md", "runs.csv", "runs.parquet", "figures"


@dataclass(frozen=True)
class Report:
    """All that a report says, before it is drawn.

    chosen: whether a learning rate was chosen for each arm. comparisons: in the primary metric.
    """

    study: Study
    baseline: Baseline
    by: Yardstick
    chosen: bool
    measures: dict[str, tuple[Measures, ...]]
    comparisons: tuple[Comparison, ...]
    verdict: tuple[Sentence, ...]
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Written:
    """Where the page is, and a line on each file of a person's that is kept beside it."""

    page: Path
    notes: tuple[str, ...]


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    baseline: str | None = None,
    target: float | None = None,
    margin: float | None = None,
) -> Path:
    """Write the report of the runs below some folders; returns its page.

    out: where it goes, by default `report` in the first folder. baseline: words of an arm, such as `norm=layernorm`.
    target: the loss (nats) whose time is asked. margin: a difference in the primary metric that does not matter.

    Raises:
        UsageError: a folder is not there, no run has ended, the tasks differ, or the baseline is no arm.
        OSError: it cannot be written.
    """
    report = make_report(folders, baseline=baseline, target=target, margin=margin)
    return save(report, out or folders[0] / "report").page


def make_report(
    folders: Sequence[Path],
    *,
    baseline: str | None = None,
    target: float | None = None,
    margin: float | None = None,
    missing: Mapping[str, str] | None = None,
) -> Report:
    """What the report says; see `write_report`.

    missing: runs that were planned and have no directory -> why, where they have failed.

    Raises:
        UsageError: as there.
    """
    study = read_study(folders)
    against = given_baseline(study, baseline) if baseline else usual_baseline(study)
    arms, chosen = contenders(study, against)
    by = yardstick(study, [arm for arm in arms if against.has(arm)], target)
    measures = measured(study, by)
    families = [compare_all(arms, against, metric) for metric in by.metrics]
    return Report(
        study=study,
        baseline=against,
        by=by,
        chosen=chosen,
        measures=measures,
        comparisons=families[0],
        verdict=verdict(study, families[0], margin),
        findings=findings(study, chosen and by.primary.tag.endswith("/val"), families[0], missing or {}),
        tables=tables(study, by, measures, families),
    )


def tables(
    study: Study, by: Yardstick, measures: dict[str, tuple[Measures, ...]], families: Sequence[Sequence[Comparison]]
) -> tuple[Table, ...]:
    """The tables that have rows."""
    found: list[Table | None] = []
    for place, (metric, comparisons) in enumerate(zip(by.metrics, families, strict=True)):
        key = f"{PRIMARY}-{metric.tag.partition('/')[0]}" if place else PRIMARY
        found.append(differences_table(comparisons, metric, key) if comparisons else None)
    if tried := tried_rates(study):
        found.append(rates_table(tried))
    every = [(name, one) for name, own in measures.items() for one in own]
    found += [costs_table(measures), step_times_table(families[0]), lost_table(every)]
    return (results_table(measures, by), *(table for table in found if table is not None))


# ---- the files


def save(report: Report, out: Path, drawing: Callable[[], object] = lambda: None) -> Written:
    """Draw the figures and write everything.

    drawing: called before the figures are drawn.

    Raises:
        OSError: it cannot be written.
    """
    from normbench.analysis.pages import html_page, text_page

    out.mkdir(parents=True, exist_ok=True)
    drawing()
    staging = Path(tempfile.mkdtemp(prefix=".figures-", dir=out))
    try:
        figures = draw(report, staging)
        moment = datetime.now(UTC)
        files = {f"{FIGURES}/{path.relative_to(staging)}": path.read_bytes() for path in drawn_files(figures)}
        files[HTML] = html_page(report, figures, moment).encode()
        files[TEXT] = text_page(report, figures).encode()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    frame = runs_frame(report)
    files[CSV] = frame.to_csv(index=False).encode()
    files[PARQUET] = parquet(frame)
    return Written(out / HTML, tuple(write_files(out, files)))


def draw(report: Report, folder: Path) -> list[Figure]:
    """All figures, in a folder."""
    from normbench.analysis.figures import draw_all

    return list(draw_all(report.study, folder, report.baseline))


def drawn_files(figures: Sequence[Figure]) -> list[Path]:
    """The files of the figures."""
    return [path for figure in figures for path in (figure.svg, figure.png, figure.data)]


def parquet(frame: pd.DataFrame) -> bytes:
    """A table of runs as Parquet."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def runs_frame(report: Report) -> pd.DataFrame:
    """A row for each run: what it is, and all that is measured of it."""
    import pandas as pd

    rows = [run_row(name, one, report) for name, own in report.measures.items() for one in own]
    for setting in report.study.varied:
        if len({type(row[setting]) for row in rows} - {type(None)}) > 1:  # a number here and a word there
            for row in rows:
                row[setting] = None if row[setting] is None else str(row[setting])
    return pd.DataFrame(rows)


def run_row(arm: str, one: Measures, report: Report) -> dict[str, Any]:
    """One run."""
    run, metrics = one.run, one.run.summary.get("metrics", {})
    return {
        "run": run.name,
        "arm": arm,
        **one.arm.settings,
        "seed": run.seed,
        "status": run.status,
        "step": run.step,
        "steps": run.steps,
        **{tag: value for tag, value in metrics.items() if tag.partition("/")[0] in ("loss", "accuracy")},
        "best": one.best[0],
        "best_step": one.best[1],
        "gap": one.gap,
        "training_seconds": one.seconds,
        "target": report.by.target,
        "target_seconds": one.target_seconds,
        f"{report.by.timed}_at_equal_time": one.timed_loss,
        "step_median_ms": one.step_time.get("median_ms"),
        "step_p90_ms": one.step_time.get("p90_ms"),
        "steps_timed": one.step_time.get("n"),
        "peak_memory_bytes": one.memory,
        "spikes": one.spikes,
        "message": run.message,
        "path": str(run.path),
    }
