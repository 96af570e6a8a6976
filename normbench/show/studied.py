"""Studies as their folders keep them: written with a page of their own, and read again for a report."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import pandas as pd

from normbench.errors import UsageError
from normbench.record.digests import find_altered, write_with_digests
from normbench.record.files import inside, make_folder, read_bytes, read_json, remove_written, write_bytes
from normbench.record.shapes import COMMAND, fits
from normbench.show.figures.figure import Figure, is_wide
from normbench.show.pages import FILES, page_of, show_figure
from normbench.show.shown import ShownFigure, image_of, say_once
from normbench.show.tables import Table
from normbench.wording import count

STUDY_FILE = "study.json"
NAME = re.compile(r"[\w.]+(-[\w.]+)*")  # no two hyphens in a row: they separate the names in an id
TABLE = {"key": NAME, "title": str, "frame": {"columns": [str], "data": [list]}, "notes": [str], "heads": int,
         "marked": [int]}  # fmt: skip
WORDS = {"name": NAME, "title": str, "caption": str}
FIGURE = WORDS | {"sentences": ([str], NoneType), "alt": (str, NoneType), "wide": (bool, NoneType),
                  "group": (dict, NoneType)}  # fmt: skip
SHAPE = {
    "study": NAME, "title": str, "question": str, "source": str, "command": COMMAND, "tables": [TABLE],
    "machine": {"cpu": str, "threads": int, "torch": str}, "figures": [FIGURE],
}  # fmt: skip


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
    about: Mapping[str, Any]
    tables: Sequence[Table]
    figures: Sequence[ShownFigure]

    @property
    def paragraphs(self) -> list[str]:
        """Return the paragraphs of its question."""
        return str(self.about["question"]).split("\n\n")

    @property
    def counted(self) -> str:
        """Return how much a page shows of it, in words."""
        return f"{count(len(self.tables), 'table')}, {count(len(self.figures), 'figure')}"

    @property
    def machine(self) -> str:
        """Return what it was measured on, in words."""
        machine = self.about["machine"]
        return f"{machine['cpu']}, {count(machine['threads'], 'thread')}, torch {machine['torch']}"


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
    found = dict(about)
    found["tables"] = [as_json(table) for table in tables]
    found["figures"] = [words_of(figure) for figure in figures]
    write_with_digests(folder / STUDY_FILE, found, [*files, STUDY_FILE])
    shown = say_once(show_figure(figure, figure.svg) for figure in figures)
    study = replace(read_study(folder, folder), figures=shown)
    page = page_of("study.html", about["title"], studies=[study])
    write_bytes(folder / "report.html", page.encode())
    remove_written(folder, before - written)


def files_before(folder: Path) -> set[str]:
    """Return the files of figures that the study wrote when it was last made."""
    older = read_json(folder / STUDY_FILE, {"figures": [{"name": str}]}) or {"figures": []}
    files = set()
    for figure in older["figures"]:
        for suffix in (*FILES.values(), "png"):  # which older versions wrote, too
            files.add(f"figures/{figure['name']}.{suffix}")
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
        found = read_json(folder / STUDY_FILE, SHAPE)
        if found is None or not NAME.fullmatch(folder.name):
            raise ValueError(f"{STUDY_FILE} is missing or not what a study writes")
        altered = find_altered(folder / STUDY_FILE)
        if altered:
            raise ValueError(f"{' and '.join(altered)} changed after the study had ended")
        nth = number if number > 1 else ""
        key = f"study{nth}--{folder.name}"
        place = os.path.relpath(folder / "figures", page)
        figures = say_once(read_figure(folder, one, place) for one in found.pop("figures"))
        tables = [read_table(one) for one in found.pop("tables")]
        check_apart([figure.name for figure in figures])
        check_apart([table.key for table in tables])
        for part in ("finding", "details"):  # which older studies do not have
            found[part] = [sentence for sentence in found.get(part, ()) if isinstance(sentence, str)]
        return SavedStudy(key, found, tables, figures)
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{folder} is damaged ({error}): give the study's command again") from error


def read_table(words: Mapping[str, Any]) -> Table:
    """Return the table of which `as_json` has made JSON."""
    frame = pd.DataFrame(**words["frame"])
    return Table(**{**words, "frame": frame})


def read_figure(folder: Path, words: Mapping[str, Any], place: str) -> ShownFigure:
    """Return what a page shows of a figure: an image, as anybody may have made it.

    Older studies have no sentences, and perhaps a group, of which the figure is a panel.

    words: as `words_of` has them. place: the folder of its files, from the page on.

    Raises:
        ValueError: it is damaged.
    """
    drawing = read_bytes(inside(folder, "figures", f"{words['name']}.svg"))
    title, sentences = words["title"], words.get("sentences") or [words["caption"]]
    group = words.get("group")
    if group:
        if not fits(group, WORDS):
            raise ValueError(f"a group of figures is not what {STUDY_FILE} has")
        title = f"{group['title']}: {title}"
        sentences = [group["caption"], *sentences]
    files = {}
    for label, suffix in FILES.items():
        if suffix != "svg":  # which may run scripts where it is opened by itself
            files[label] = f"{place}/{words['name']}.{suffix}"
    return ShownFigure(
        name=words["name"],
        title=title,
        sentences=sentences,
        drawing=image_of(drawing, words.get("alt") or title),
        files=files,
        wide=words.get("wide", False),
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
    found = list[SavedStudy]()
    seen = Counter[str]()
    for place in places_of_studies(folders):
        seen[place.name] += 1
        try:
            found.append(read_study(place, page.resolve(), seen[place.name]))
        except UsageError as error:
            logging.getLogger("normbench").warning("warning: %s", error)
    return found
