"""The works that a report cites: in words, such as `(Holm 1979)`, for LaTeX as `\\citep{holm1979}`, and for BibTeX.

references.bib has them. What an option comes from stands in the first comment of its YAML, so a report knows what to
cite by the options that its runs have taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from normbench.config.groups import options
from normbench.config.rules import group_of

FILE = Path(__file__).parent / "references.bib"
ENTRY = re.compile(r"^@\w+\{(.+?),\n.*?^\}\n", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """One work.

    families: the family names of its authors. year: with a letter where two works would have the same name.
    bibtex: its entry.
    """

    key: str
    families: tuple[str, ...]
    year: str
    bibtex: str

    @property
    def words(self) -> str:
        """Name it in a text: `Ba et al. 2016`, `Wu & He 2018`."""
        authors = " & ".join(self.families)
        if len(self.families) > 2:
            authors = f"{self.families[0]} et al."
        return f"{authors} {self.year}"

    @property
    def long_words(self) -> str:
        """Name it with all of its authors: `Ba, Kiros & Hinton 2016`."""
        *others, last = self.families
        if not others:
            return self.words
        return f"{', '.join(others)} & {last} {self.year}"


@cache
def references() -> dict[str, Reference]:
    """Return all works by the names that a text may give them, the longest names first."""
    works: dict[str, Reference] = {}
    for entry in ENTRY.finditer(FILE.read_text("utf-8")):
        work = read_entry(entry[1], entry[0])
        works[work.words] = work
        works[work.long_words] = work
    longest_first = sorted(works, key=len, reverse=True)
    return {name: works[name] for name in longest_first}


def read_entry(key: str, bibtex: str) -> Reference:
    """Return the work of an entry in BibTeX."""
    fields = dict(FIELD.findall(bibtex))
    families = []
    for author in fields["author"].split(" and "):
        family = author.partition(",")[0]
        families.append(family.strip("{}"))
    year = fields["year"] + fields.get("letter", "")
    return Reference(key, tuple(families), year, bibtex)


@cache
def name_pattern() -> re.Pattern[str]:
    """Return the pattern of a work's name."""
    names = "|".join(map(re.escape, references()))
    return re.compile(rf"(?:{names})(?!\w)")


def works_in(text: str) -> list[Reference]:
    """Return the works that a text names, in its order, each once."""
    names = name_pattern().findall(text)
    works = [references()[name] for name in names]
    return list(dict.fromkeys(works))


def works_of(group: str, option: str) -> list[Reference]:
    """Return the works that an option of ours comes from; none for a person's own option."""
    meanings = options(group_of(group))
    return works_in(meanings.get(option, ""))


def in_brackets(works: list[Reference]) -> str:
    """Cite works, such as ` (Ba et al. 2016; Wu & He 2018)`; nothing where there are none."""
    names = [work.words for work in works]
    return f" ({'; '.join(names)})" if names else ""


def split_at_citations(text: str) -> Iterator[tuple[str, list[Reference]]]:
    """Yield the words up to each pair of brackets that holds works and nothing else, and those works; last the rest."""
    work = name_pattern().pattern
    bracket = re.compile(rf"\s*\(({work}(?:; {work})*)\)")
    start = 0
    for citation in bracket.finditer(text):
        yield text[start : citation.start()], works_in(citation[1])
        start = citation.end()
    yield text[start:], []


def bibliography(keys: set[str]) -> str:
    """Return the entries of these keys, for BibTeX, sorted."""
    entries = {work.key: work.bibtex for work in references().values()}
    return "\n".join(entries[key] for key in sorted(keys))
