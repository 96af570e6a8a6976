"""Studies as their folders keep them: written with a page of their own, and read again for a report."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from msgspec import Meta, Struct

from normbench.errors import UsageError
from normbench.record.digests import find_altered, write_with_digests
from normbench.record.files import inside, make_folder, read_bytes, read_form, remove_written, write_bytes
from normbench.record.forms import Command
from normbench.show.figures.figure import Figure, is_wide
from normbench.show.pages import FILES, page_of, show_figure
from normbench.show.shown import ShownFigure, image_of, say_once
from normbench.show.tables import Table
from normbench.wording import count

STUDY_FILE = "study.json"
NAME = r"\A[\w.]+(-[\w.]+)*\Z"  # no two hyphens in a row: they separate the names in an id
Name = Annotated[str, Meta(pattern=NAME)]


class KeptFrame(Struct, frozen=True):
    """The cells of a table, as pandas splits them."""

    columns: list[str]
    data: list[list[Any]]


class KeptTable(Struct, frozen=True):
    """A table, as `as_json` writes it."""

    key: Name
    title: str
    frame: KeptFrame
    notes: list[str]
    heads: int
    marked: list[int]


class Panels(Struct, frozen=True):
    """What the figures of older studies had in common that were the panels of one."""

    name: Name
    title: str
    caption: str


class KeptFigure(Struct, frozen=True):
    """A figure, as `words_of` writes it; older studies have no sentences, and perhaps a group."""

    name: Name
    title: str
    caption: str
    sentences: list[str] | None = None
    alt: str | None = None
    wide: bool | None = None
    group: Panels | None = None


class Machine(Struct, frozen=True):
    """What a study was measured on."""

    cpu: str
    threads: int
    torch: str


class KeptStudy(Struct, frozen=True):
    """What study.json says of a study; older ones have no finding, or no details."""

    study: Name
    title: str
    question: str
    source: str
    command: Command
    machine: Machine
    tables: list[KeptTable]
    figures: list[KeptFigure]
    finding: list[str] = []
    details: list[str] = []


class KeptName(Struct, frozen=True):
    """The name of a figure, whatever else is said of it."""

    name: str


class KeptNames(Struct, frozen=True):
    """The figures of a study.json, whatever else is in it."""

    figures: list[KeptName]


@dataclass(frozen=True)
class SavedStudy:
    """A study as its folder keeps it.

    Attributes:
        key: its id in a page.
        about: its title, question, source, command and machine.
        tables: as the study wrote them.
        figures: as a page shows them.
    """

    key: str
    about: KeptStudy
    tables: Sequence[Table]
    figures: Sequence[ShownFigure]

    @property
    def paragraphs(self) -> list[str]:
        """Return the paragraphs of its question."""
        return self.about.question.split("\n\n")

    @property
    def counted(self) -> str:
        """Return how much a page shows of it, in words."""
        return f"{count(len(self.tables), 'table')}, {count(len(self.figures), 'figure')}"

    @property
    def machine(self) -> str:
        """Return what it was measured on, in words."""
        machine = self.about.machine
        return f"{machine.cpu}, {count(machine.threads, 'thread')}, torch {machine.torch}"


def save_study(
    folder: Path,
    about: Mapping[str, Any],
    tables: Sequence[Table],
    figures: Sequence[Figure],
    files: Sequence[str] = (),
) -> None:
    """Write what a study has found: `figures/`, `study.json` and `report.html`.

    files: names of what the study has written into the folder before, of which `study.json` notes the digests.

    Raises:
        OSError: it cannot be written.
    """
    drawings = make_folder(folder, "figures")
    before = files_before(folder)
    written = set[str]()
    for figure in figures:
        for name, content in figure.files().items():
            write_bytes(drawings / name, content)
            written.add(f"figures/{name}")
    content_of_study = dict(about)
    content_of_study["tables"] = [as_json(table) for table in tables]
    content_of_study["figures"] = [words_of(figure) for figure in figures]
    write_with_digests(folder / STUDY_FILE, content_of_study, [*files, STUDY_FILE])
    shown = say_once(show_figure(figure, figure.svg) for figure in figures)
    study = replace(read_study(folder, folder), figures=shown)
    page = page_of("study.html", about["title"], studies=[study])
    write_bytes(folder / "report.html", page.encode())
    remove_written(folder, before - written)


def files_before(folder: Path) -> set[str]:
    """Return the files of figures that the study wrote when it was last made."""
    older = read_form(folder / STUDY_FILE, KeptNames) or KeptNames([])
    files = set()
    for figure in older.figures:
        for suffix in (*FILES.values(), "png"):  # which older versions wrote, too
            files.add(f"figures/{figure.name}.{suffix}")
    return files


def words_of(figure: Figure) -> dict[str, Any]:
    """Return what JSON keeps of a figure; the drawing is in its files."""
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "sentences": list(figure.sentences),
        "alt": figure.alt,
        "wide": is_wide(figure),
    }


def as_json(table: Table) -> dict[str, Any]:
    """Return what JSON keeps of a table."""
    return {
        "key": table.key,
        "title": table.title,
        "frame": table.frame.to_dict("split"),
        "notes": table.notes,
        "heads": table.heads,
        "marked": list(table.marked),
    }


def read_study(folder: Path, page: Path, number: int = 1) -> SavedStudy:
    """Read what a study has found.

    page: the folder of the page that shows it. number: its place, from 1, among studies of its name in that page.

    Raises:
        UsageError: it is damaged.
    """
    try:
        kept = read_form(folder / STUDY_FILE, KeptStudy)
        if kept is None or not re.search(NAME, folder.name):
            raise ValueError(f"{STUDY_FILE} is missing or not what a study writes")
        altered = find_altered(folder / STUDY_FILE)
        if altered:
            raise ValueError(f"{' and '.join(altered)} changed after the study had ended")
        nth = number if number > 1 else ""
        key = f"study{nth}--{folder.name}"
        place = os.path.relpath(folder / "figures", page)
        figures = say_once(read_figure(folder, figure, place) for figure in kept.figures)
        tables = [read_table(table) for table in kept.tables]
        check_apart([figure.name for figure in figures])
        check_apart([table.key for table in tables])
        return SavedStudy(key, kept, tables, figures)
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} is damaged ({error}): give the study's command again") from error


def read_table(kept: KeptTable) -> Table:
    """Return the table of which `as_json` has made JSON."""
    frame = pd.DataFrame(kept.frame.data, columns=kept.frame.columns)
    return Table(kept.key, kept.title, frame, tuple(kept.notes), kept.heads, kept.marked)


def read_figure(folder: Path, kept: KeptFigure, place: str) -> ShownFigure:
    """Return what a page shows of a figure: an image, as anybody may have made it.

    place: the folder of its files, from the page on.

    Raises:
        ValueError: it is damaged.
    """
    drawing = read_bytes(inside(folder, "figures", f"{kept.name}.svg"))
    title = kept.title
    sentences = kept.sentences or [kept.caption]
    if kept.group:
        title = f"{kept.group.title}: {title}"
        sentences = [kept.group.caption, *sentences]
    files = {}
    for label, suffix in FILES.items():
        if suffix != "svg":  # which may run scripts where it is opened by itself
            files[label] = f"{place}/{kept.name}.{suffix}"
    return ShownFigure(
        name=kept.name,
        title=title,
        sentences=sentences,
        drawing=image_of(drawing, kept.alt or title),
        files=files,
        wide=bool(kept.wide),
    )


def check_apart(names: Sequence[str]) -> None:
    """Refuse names of which one is there twice, since ids are made of them.

    Raises:
        ValueError: one is; its message names it.
    """
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"{name} is there twice")


def places_of_studies(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of all studies below some folders."""
    places = set()
    for folder in folders:
        for path in folder.rglob(f"studies/*/{STUDY_FILE}"):
            place = path.resolve().parent
            if place.is_relative_to(folder.resolve()):  # which a link may not be
                places.add(place)
    return sorted(places)


def studies_below(folders: Sequence[Path], page: Path) -> list[SavedStudy]:
    """Read all studies below some folders; warn of damaged ones. page: the folder of the page that shows them."""
    studies = list[SavedStudy]()
    numbers = Counter[str]()
    for place in places_of_studies(folders):
        numbers[place.name] += 1
        try:
            studies.append(read_study(place, page.resolve(), numbers[place.name]))
        except UsageError as error:
            logging.getLogger("normbench").warning("warning: %s", error)
    return studies
