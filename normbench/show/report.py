"""The report over the runs below some folders: a page, a text, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import pandas as pd

from normbench.evidence import facts
from normbench.evidence.arms import Baseline
from normbench.evidence.frame import runs_frame
from normbench.evidence.study import RecordedStudy
from normbench.processes import share
from normbench.record.files import inside, make_folder, read_form, remove_written, write_bytes, write_json
from normbench.results.examine import Examination, Request, examine, examine_all
from normbench.results.search import searches
from normbench.results.sensitivity import areas, failing_settings, tried_levels
from normbench.show import latex, tables
from normbench.show.drawings import draw_arms
from normbench.show.figures import plan_figures
from normbench.show.figures.figure import Figure
from normbench.show.figures.style import COLUMN, use_our_style
from normbench.show.pages import page_of, show_figure
from normbench.show.safe import to_csv
from normbench.show.shown import ShownFigure, say_once
from normbench.show.studied import SavedStudy, places_of_studies, studies_below
from normbench.show.tables import Table, warn_of_times
from normbench.tell.methods import write_methods
from normbench.tell.references import bibliography
from normbench.tell.sentences import Statement, say, say_details, say_next, say_question, say_why
from normbench.tell.setups import options_of
from normbench.wording import join_first

WRITTEN = ".written.json"  # beside a report: which files are its own
PAGES = ("report.tex", "appendix.tex", "report.md", "report.html")  # the last one links to all others


class Written(TypedDict):
    """What WRITTEN holds."""

    files: list[str]


@dataclass(frozen=True)
class Report(Examination):
    """What is found of a study, in words and tables.

    Attributes:
        runs: as `runs_frame` has them.
        tables: those that have rows.
        verdict: sentences, each with the key of the table behind it.
        details: what these rest on, such as p.
        why: what probes say of the cause.
        next: what to do now, and the commands for it.
    """

    runs: pd.DataFrame
    tables: list[Table]
    verdict: list[Statement]
    details: list[str]
    why: list[str]
    next: list[str]


def make_reports(
    folders: Sequence[Path], request: Request | None = None, missing: Mapping[str, str] | None = None
) -> list[Report]:
    """Find out what the runs below some folders say, task by task.

    missing: for each planned run without a directory why it failed, empty where that is not known.

    Raises:
        UsageError: a folder is not there, no run has ended, or the baseline is not an arm of some task.
    """
    with_runs = [folder for folder in folders if not holds_only_studies(folder)]
    if not with_runs:
        return []
    return [put_in_words(examination) for examination in examine_all(with_runs, request, missing)]


def holds_only_studies(folder: Path) -> bool:
    """Tell whether a folder holds studies but no runs: a study of untrained models has none."""
    return bool(places_of_studies([folder])) and not any(folder.rglob("status.json"))


def report_on(study: RecordedStudy, baseline: Baseline, request: Request) -> Report:
    """Return the report of a study."""
    return put_in_words(examine(study, baseline, request))


def put_in_words(found: Examination) -> Report:
    """Return an examination with its words and tables."""
    answer = found.answer
    runs = runs_frame(found.study, found.yardstick)
    verdict = say(answer)
    return Report(
        study=found.study,
        baseline=found.baseline,
        arms=found.arms,
        rates_chosen=found.rates_chosen,
        yardstick=found.yardstick,
        family=found.family,
        blocks=found.blocks,
        answer=answer,
        runs=runs,
        tables=[warn_of_times(table, answer.caveats) for table in all_tables(found, runs) if table.rows],
        verdict=verdict,
        details=say_details(verdict, answer),
        why=say_why(answer.causes),
        next=say_next(answer),
    )


def all_tables(found: Examination, runs: pd.DataFrame) -> Iterable[Table]:
    """Yield the tables of a report, also those that are empty. runs: as `runs_frame` has them."""
    study, yardstick, answer = found.study, found.yardstick, found.answer
    yield tables.results_table(runs, study, yardstick, answer.arms)
    if answer.differences:
        yield tables.differences_table(answer.differences)
    for metric in yardstick.metrics[1:]:
        differences = [difference for difference in answer.others if difference.metric == metric]
        if differences:
            yield tables.differences_table(differences, primary=False)
    yield tables.worth_table(answer.worth)
    yield tables.scaling_table(answer.scaling)
    yield tables.designs_table(answer.effects)
    for key in failing_settings(found.arms):
        yield tables.survival_table(found.arms, key)
    yield tables.areas_table(areas(study))
    yield tables.search_table(searches(study))
    yield tables.rates_table(tried_levels(study.arms))
    yield tables.costs_table(runs)
    yield tables.step_times_table(found.pairs)
    yield tables.noise_table(found.pairs)
    yield tables.activations_table(found.blocks)
    yield tables.lost_table(study)


# ---- the files


@dataclass(frozen=True)
class Part:
    """The report of one task, as the page that links to several shows it.

    Attributes:
        page: the path of its page, from the one that links to it.
        title: its task, in words.
        verdict: its sentences.
    """

    page: Path
    title: str
    verdict: Sequence[Statement]


def save_all(reports: Sequence[Report], folders: Sequence[Path], out: Path, width: float = COLUMN) -> Path:
    """Write reports and return the page to open: of several tasks, one that links to a page for each.

    Where there are no reports, as folders hold studies but no runs, the page shows the studies.
    """
    if len(reports) == 1:
        return save(reports[0], out, width)
    if not reports:
        out.mkdir(parents=True, exist_ok=True)
        studies = studies_below(folders, out)
        title = join_first([study.about.title for study in studies], 3)
        page_of_studies = page_of("study.html", title, studies=studies)
        write_bytes(out / "report.html", page_of_studies.encode())
        return out / "report.html"
    parts = []
    for report in reports:
        page = save(report, inside(out, report.study.task), width)
        title = report.study.task.replace("_", " ").capitalize()
        parts.append(Part(page.relative_to(out), title, report.verdict))
    page_of_parts = page_of("tasks.html", title_of(reports[0].study), parts=parts)
    write_bytes(out / "report.html", page_of_parts.encode())
    return out / "report.html"


def save(report: Report, out: Path, width: float = COLUMN) -> Path:
    """Draw the figures, width inches wide, and write everything; return the page.

    Files that an older report listed as its own and this one does not write are removed, and so are the half-written
    files of a report that was killed. All other files stay.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(out, "figures")
    baseline = dict(report.baseline.settings)
    plan = plan_figures(report.study, baseline, report.yardstick.metrics, width, report.family)
    shown = []
    files = dict[str, bytes]()
    with use_our_style(width):  # once for all of them
        drawn_in_turn = share([partial(draw_and_write, draw) for draw in plan])
    for drawn in drawn_in_turn:
        for figure, files_of_figure in drawn:
            shown.append(figure)
            for name, content in files_of_figure.items():
                files[f"figures/{name}"] = content
    files["answer.json"] = report.answer.to_json().encode()
    files["runs.csv"] = to_csv(report.runs)
    files["runs.parquet"] = report.runs.to_parquet(index=False)
    if len(report.blocks):
        files["activations.csv"] = to_csv(report.blocks)
    pages = fill_pages(report, shown, studies_below(report.study.folders, out))
    cited = latex.cited_in(pages["report.tex"] + pages["appendix.tex"])
    files["report.bib"] = bibliography(cited).encode()
    for name, page in pages.items():
        files[name] = page.encode()
    replace_files(out, files)
    return out / "report.html"


def draw_and_write(draw: Callable[[], list[Figure]]) -> list[tuple[ShownFigure, dict[str, bytes]]]:
    """Return figures as a page shows them, each with the content of its files by name."""
    drawn = []
    for figure in draw():
        files = figure.files()
        svg = files[f"{figure.name}.svg"].decode()
        drawn.append((show_figure(figure, svg), files))
    return drawn


def fill_pages(report: Report, figures: Sequence[ShownFigure], studies: Sequence[SavedStudy]) -> dict[str, str]:
    """Return the HTML page, the same in GitHub's Markdown, and the tables and figures for LaTeX, by file name."""
    study, answer = report.study, report.answer
    baseline = report.baseline.name if answer.differences else ""
    if baseline and report.rates_chosen:
        baseline += ", each arm at its own best learning rate"
    every_table = list(report.tables)
    for study_shown in studies:
        every_table += study_shown.tables
    about = {
        "report": report,
        "figures": figures,
        "figures_of_page": say_once(figures),
        "studies": studies,
        "latex": latex,
        "lead": facts.lead(study),
        "question": say_question(answer.question),
        "drawings": draw_arms(study),
        "caveats": answer.caveats,
        "serious": [caveat for caveat in answer.caveats if caveat.serious],
        "minor": [caveat for caveat in answer.caveats if not caveat.serious],
        "methods": write_methods(report),
        "command": answer.question.command,
        "facts": facts.facts(study, options_of(study), report.yardstick.primary.words, baseline),
        "titles": {table.key: table.title for table in report.tables},
        "tables": every_table,
        "summary": warn_of_times(tables.summary_table(answer), answer.caveats),
        "runs": warn_of_times(tables.runs_table(study, report.yardstick.primary), answer.caveats),
    }
    title = title_of(study)
    return {name: page_of(name, title, **about) for name in PAGES}


def replace_files(out: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a report, by their paths, in place of those of an older one."""
    for name in files:
        for left_over in (out / name).parent.glob(f".{Path(name).name}.*.tmp"):
            left_over.unlink()
    written_before = read_form(out / WRITTEN, Written)
    older = written_before["files"] if written_before else []
    write_json(out / WRITTEN, {"files": sorted({*older, *files})})  # first, in case writing is cut short
    for name, content in files.items():
        write_bytes(out / name, content)
    remove_written(out, {*older} - {*files})
    write_json(out / WRITTEN, {"files": sorted(files)})


def title_of(study: RecordedStudy) -> str:
    """Name a study by its folders."""
    return join_first([folder.resolve().name for folder in study.folders], 3)
