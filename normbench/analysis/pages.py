"""How a report looks: one page that opens offline, and a text for a pull request."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import DictLoader, Environment, StrictUndefined, select_autoescape
from markupsafe import Markup

from normbench import __version__
from normbench.analysis.comparisons import shortened
from normbench.analysis.fairness import shorter
from normbench.analysis.records import Run
from normbench.analysis.wording import count, decimals_of, duration, fixed

if TYPE_CHECKING:
    from normbench.analysis.figures import Figure
    from normbench.analysis.report import Report

TEMPLATES = ("report.html", "report.css", "report.md")
LARGEST_DRAWING = 1_000_000  # bytes of an SVG; above it the page has the PNG
MOST_ROWS = 200  # of the table of all runs, which the CSV has too
STATUSES = ("finished", "diverged", "out_of_memory", "failed", "interrupted", "running")

# What Markdown, or HTML in it, would take for its own.
MARKED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]#|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def html_page(report: Report, figures: Sequence[Figure], moment: datetime) -> str:
    """The page; all that is drawn is in it."""
    from normbench.analysis.figures import dark_rules

    return (
        environment()
        .get_template("report.html")
        .render(
            **said(report),
            figures=[(figure, drawing(figure)) for figure in figures],
            moment=moment,
            dark=Markup(dark_rules(".drawing")),
            runs=run_rows(report) if len(report.study.runs) <= MOST_ROWS else [],
        )
    )


def text_page(report: Report, figures: Sequence[Figure]) -> str:
    """The text, in GitHub's Markdown."""
    return environment().get_template("report.md").render(**said(report), figures=figures)


def environment() -> Environment:
    """Where the templates are; in the page every word is escaped, in the text by the filter `md`."""
    folder = files("normbench.analysis") / "templates"
    found = Environment(
        loader=DictLoader({name: (folder / name).read_text("utf-8") for name in TEMPLATES}),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["md"] = lambda text: " ".join(str(text).split()).translate(MARKED)
    return found


def said(report: Report) -> Mapping[str, Any]:
    """What both the page and the text have."""
    return {
        "report": report,
        "title": shortened([folder.resolve().name for folder in report.study.folders], 3),
        "lead": lead(report),
        "facts": facts(report),
        "titles": {table.key: table.title for table in report.tables},
        "version": __version__,
    }


def lead(report: Report) -> str:
    """One line on what there is."""
    study = report.study
    statuses = [run.status for run in study.runs]
    counts = [f"{statuses.count(status)} {status.replace('_', ' ')}" for status in STATUSES if status in statuses]
    if study.damaged:
        counts.append(f"{len(study.damaged)} damaged and left out")
    seeds = len({run.seed for run in study.runs})
    return (
        f"{count(len(study.arms), 'arm')}, {count(seeds, 'seed')}, {count(len(statuses), 'run')}: {', '.join(counts)}"
    )


def facts(report: Report) -> dict[str, str]:
    """What was compared, on what, and where."""
    runs = report.study.runs
    metric = report.by.primary
    against = report.baseline.name() if report.comparisons else ""
    entries = {
        "task": report.study.task.replace("_", " "),
        "data": every(runs, lambda run: run.choices.get("data")),
        "model": every(runs, lambda run: run.choices.get("model")),
        "optimizer": every(runs, lambda run: run.choices.get("optim")),
        "steps": every(runs, lambda run: f"{run.steps:,}" if run.steps else None),
        "what varies": ", ".join(report.study.varied) or "the seed alone",
        "baseline": against + (", each arm at its own best learning rate" if against and report.chosen else ""),
        "judged by": f"{metric.words} after the last step",
        "machine": every(runs, machine),
        "versions": every(runs, packages),
        "code": every(runs, lambda run: run.session.get("commit") and shorter(run.session["commit"])),
    }
    return {name: text for name, text in entries.items() if text}


def every(runs: Sequence[Run], read: Any) -> str:
    """All values that runs have, once each."""
    return shortened(list(dict.fromkeys(str(value) for run in runs if (value := read(run)) not in (None, ""))), 4)


def machine(run: Run) -> str | None:
    """The processor or accelerator, and how many threads."""
    session = run.session
    name = session.get("accelerator") or session.get("cpu")
    return f"{name}, {count(int(session.get('threads') or 0), 'thread')}" if name else None


def packages(run: Run) -> str | None:
    """The versions of what computes."""
    found = run.session.get("packages") or {}
    known = [f"{name} {found[name]}" for name in ("torch", "numpy") if found.get(name)]
    return ", ".join([*known, f"Python {run.session.get('python')}"]) if known else None


def drawing(figure: Figure) -> Markup:
    """A figure as it stands in the page: itself as SVG, or as an image where that is large."""
    if figure.svg.stat().st_size <= LARGEST_DRAWING:
        return Markup(figure.svg.read_text("utf-8"))  # made by us, its words escaped
    return Markup('<img class="image" alt="{}" src="{}">').format(figure.alt, data_address(figure.png))


def data_address(path: Path) -> str:
    """A PNG as an address that needs no file."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def run_rows(report: Report) -> list[tuple[str, ...]]:
    """The rows of the table of all runs."""
    metric = report.by.primary
    return [
        (
            one.run.name,
            name,
            str(one.run.seed),
            one.run.status.replace("_", " "),
            f"{one.run.step:,}",
            fixed(one.final(metric), decimals_of(metric)),
            duration(one.seconds),
        )
        for name, own in report.measures.items()
        for one in own
    ]
