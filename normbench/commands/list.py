"""`normbench list`."""

from __future__ import annotations

from normbench.catalog import GROUPS, NOTES, options
from normbench.commands.pages import entries, paragraph
from normbench.config import nearest
from normbench.errors import UsageError

REFUSALS = "refusals"
SHOWN = ("norm", "placement", "model", "data", "experiment", REFUSALS)


def run(words: list[str]) -> int:
    """Print the options of the groups that people choose from, or of those named, and what is refused and why."""
    known = [*GROUPS, REFUSALS]
    for word in words:
        if word not in known:
            raise UsageError(f"list {word} is unknown: {nearest(word, known)}allowed are {', '.join(known)}")
    for group in words or SHOWN:
        print("\n".join([*(refusals() if group == REFUSALS else options_page(group)), ""]))
    if not words:
        more = ", ".join(group for group in GROUPS if group not in SHOWN)
        print(f"Also: normbench list GROUP, for {more}.")
    return 0


def options_page(group: str) -> list[str]:
    """A group's options, and a note where there is one."""
    note = paragraph(NOTES[group], indent=2) if group in NOTES else []
    return [f"{group}=  {GROUPS[group]}", *entries(options(group).items()), *note]


def refusals() -> list[str]:
    """What is refused, and why."""
    from normbench.compatibility import REFUSALS as rules

    lines = [f"{REFUSALS}  what does not go together, and why; everything else does"]
    for rule in rules:
        lines += [*paragraph(f"{rule.what}:", indent=2), *paragraph(f"{rule.reason}; {rule.instead}", indent=6)]
    return lines
