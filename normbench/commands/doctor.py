"""`normbench doctor`: what an examination finds, as a page or as JSON, without what is private."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence

from normbench.doctor import Problem, examine
from normbench.doctor.private import Private, private_here
from normbench.doctor.trials import BASIC_JOB
from normbench.settings import printable

WIDEST = 120  # letters of a line, as of help pages
JOB = " ".join(["normbench", *BASIC_JOB])


def tell(as_json: bool) -> int:
    """Print what an examination finds; return 0 if the basic job can run here, and 1 if not."""
    private = private_here()
    problems: list[Problem] = []
    facts: dict[str, dict[str, str]] = {}
    for section in examine():
        shown = {name: clean(fact, private) for name, fact in section.facts.items()}
        facts[section.title] = shown
        for problem in section.problems:
            problems.append(Problem(clean(problem.what, private), clean(problem.cure, private), problem.stops))
        if not as_json and shown:
            print_facts(section.title, shown)
    works = not any(problem.stops for problem in problems)
    if as_json:
        print_json(facts, problems, works)
    else:
        print_problems(problems, works)
    return 0 if works else 1


def clean(text: str, private: Private) -> str:
    """Return a text in one line, with nothing that is private or that a terminal takes for a command."""
    return printable(private.hide(" ".join(text.split())))


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print the facts of a section, a line each or, where they are long, several."""
    print(title)
    names = max(map(len, facts)) + 2
    for name, fact in facts.items():
        print_wrapped(f"  {name.ljust(names)}", fact)
    print(flush=True)


def print_problems(problems: Sequence[Problem], works: bool) -> None:
    """Print a sentence for each problem, those first that stop the basic job, and whether it can run."""
    in_order = sorted(problems, key=lambda problem: not problem.stops)
    if in_order:
        print("problems")
        for number, problem in enumerate(in_order, 1):
            print_wrapped(f"  {number}. ", problem.sentence())
        print()
    stops = sum(problem.stops for problem in in_order)
    if not works:
        them = "problem 1 does not let it" if stops == 1 else f"problems 1 to {stops} do not let it"
        print(f"{JOB} cannot run here: {them}.")
    elif problems:
        print(f"{JOB} can run here; it needs none of what has a problem.")
    else:
        print(f"{JOB} can run here, and no problem was found.")


def print_wrapped(head: str, text: str) -> None:
    """Print a text in the width of the terminal, its further lines below its beginning."""
    width = min(shutil.get_terminal_size((100, 24)).columns, WIDEST)
    indent = " " * len(head)
    filled = textwrap.fill(
        text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    print(filled or head.rstrip())


def print_json(facts: Mapping[str, Mapping[str, str]], problems: Sequence[Problem], works: bool) -> None:
    """Print everything as one JSON object."""
    listed_problems = []
    for problem in problems:
        listed_problems.append({"problem": problem.what, "cure": problem.cure, "stops_basic_job": problem.stops})
    everything = {"basic_job": JOB, "can_run": works, "facts": facts, "problems": listed_problems}
    print(json.dumps(everything, indent=2, ensure_ascii=False))
