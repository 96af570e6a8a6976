"""What an examination finds: facts in sections, and problems, each of which has a cure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """What is wrong.

    Attributes:
        what: is wrong, as the beginning of a sentence.
        cure: its end.
        stops: whether `normbench train` without further words cannot run, or is not known to.
    """

    what: str
    cure: str
    stops: bool = False

    def sentence(self) -> str:
        """Return it as one sentence."""
        return f"{self.what}: {self.cure}"


@dataclass
class Section:
    """What was found about one subject.

    Attributes:
        facts: by their names, as a person reads them.
    """

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
