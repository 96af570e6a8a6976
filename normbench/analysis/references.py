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

FILE = Path(__file__).parent / "references.bib"
ENTRY = re.compile(r"^@\w+\{(.+?),\n.*?^\}\n", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """One work.

    families: names of its authors. year: with a letter, where two works are called alike. bibtex: its entry.
    """

    key: str
    families: tuple[str, ...]
    year: str
    bibtex: str

    @property
    def words(self) -> str:
        """Name it in a text: `Ba et al. 2016`, `Wu & He 2018`."""
        first = self.families[0]
        authors = f"{first} et al." if len(self.families) > 2 else " & ".join(self.families)
        return f"{authors} {self.year}"

    @property
    def long_words(self) -> str:
        """Name it with all of its authors: `Ba, Kiros & Hinton 2016`."""
        *others, last = self.families
        return f"{', '.join(others)} & {last} {self.year}" if others else self.words


@cache
def references() -> dict[str, Reference]:
    """Return all works by what they are called in a text, the longest names first."""
    found: dict[str, Reference] = {}
    for entry in ENTRY.finditer(FILE.read_text("utf-8")):
        fields = dict(FIELD.findall(entry[0]))
        families = [author.partition(",")[0].strip("{}") for author in fields["author"].split(" and ")]
        one = Reference(entry[1], tuple(families), fields["year"] + fields.get("letter", ""), entry[0])
        found |= {one.words: one, one.long_words: one}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


@cache
def named() -> re.Pattern[str]:
    """Return the pattern of a work's name."""
    names = "|".join(map(re.escape, references()))
    return re.compile(rf"(?:{names})(?!\w)")


def works_in(text: str) -> list[Reference]:
    """Return the works that a text names, in its order, each once."""
    return list(dict.fromkeys(references()[name] for name in named().findall(text)))


def works_of(group: str, option: str) -> list[Reference]:
    """Return the works that an option of ours comes from; none of a person's own, of which only its name is known."""
    return works_in(options(group).get(option, ""))


def in_brackets(works: list[Reference]) -> str:
    """Cite works, such as ` (Ba et al. 2016; Wu & He 2018)`; nothing where there are none."""
    return f" ({'; '.join(work.words for work in works)})" if works else ""


def split_at_citations(text: str) -> Iterator[tuple[str, list[Reference]]]:
    """Yield the words up to each pair of brackets that holds works and nothing else, and those works; last the rest."""
    bracket = re.compile(rf"\s*\(({named().pattern}(?:; {named().pattern})*)\)")
    start = 0
    for found in bracket.finditer(text):
        yield text[start : found.start()], works_in(found[1])
        start = found.end()
    yield text[start:], []


def bibliography(keys: set[str]) -> str:
    """Return the entries of these keys, for BibTeX, sorted."""
    works = {work.key: work for work in references().values()}
    return "\n".join(works[key].bibtex for key in sorted(keys))
