"""`normbench atlas`: norms of models of other libraries in a table, of one family, and as they are installed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid
from rich.text import Text

from normbench.atlas.page import Table, family_table, questions, read_published, say_versions
from normbench.commands.report import console
from normbench.errors import UsageError
from normbench.record.files import write_bytes
from normbench.settings import nearest
from normbench.show.templating import environment
from normbench.wording import count, list_words

if TYPE_CHECKING:  # imports torch
    from normbench.atlas.families import Family

FORM = 1  # of the file

# What is measured, in words, where its key says too little.
WORDS = {
    "eps": "ε",
    "eps_place": "place of ε",
    "gain": "γ",
    "shift": "β",
    "start": "γ at the start",
    "statistics": "statistics of bfloat16",
    "order": "casts of bfloat16",
    "mixed": "output of bfloat16 with γ in float32",
    "double": "float64 is computed in",
    "large": "values of 1,000 in float16 come out",
    "zero": "a row of zeros comes out as",
    "zero_half": "a row of zeros in float16",
    "slope": "largest derivative at zeros",
    "calls": "calls in a pass",
    "left": "why it is not swapped",
    "functions": "outside of norms",
    "gain_folds": "γ in the next weights",
    "exact_rms": "LayerNorms as RMSNorms",
}


def atlas(name: str | None, check: bool, markdown: bool, out: Path | None) -> int:
    """Print the atlas, a family of it, or what the installed versions changed; return the exit status.

    Args:
        name: of a family, such as `hf/llama`, or without the library, where that is clear.
        check: measure again, and compare with what is published.
        markdown: print docs/atlas.md.
        out: measure all families that are installed, and write what is measured there.

    Raises:
        UsageError: there is no such family, or none is installed.
    """
    given = [flag for flag, is_given in (("FAMILY", name), ("--check", check), ("--markdown", markdown)) if is_given]
    if out is not None:
        given.append("--out")
    if len(given) > 1 and given != ["FAMILY", "--check"]:
        raise UsageError(f"{list_words(given)} do not go together: give one of them, or FAMILY with --check")
    if out is not None:
        return write_measured(out)
    published = read_published()
    if markdown:
        print(write_markdown(published), end="")
        return 0
    key = find_family(name, published) if name else ""
    if check:
        return check_published(published, key)
    if key:
        show_family(published, key)
    else:
        show_table(family_table(published))
        console().print(
            Text(f"Measured with {say_versions(published)}; normbench atlas NAME tells more of one family.")
        )
    return 0


def find_family(name: str, published: Mapping[str, Any]) -> str:
    """Return the key of a family by its name, with or without its library.

    Raises:
        UsageError: none or several have it.
    """
    known = [*published["families"], *published["not_built"]]
    if name in known:
        return name
    alike = [key for key in known if key.partition("/")[2] == name]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise UsageError(f"several libraries have {name}: give {' or '.join(alike)}")
    raise UsageError(f"{name} is not a family of the atlas: {nearest(name, known)}normbench atlas lists them")


# ---- what is shown


def write_markdown(published: Mapping[str, Any]) -> str:
    """Return docs/atlas.md."""
    not_built = Table("", "", ["family", "reason"], [[name, why] for name, why in published["not_built"].items()])
    return (
        environment()
        .get_template("atlas.jinja")
        .render(
            versions=say_versions(published),
            questions=list(questions(published)),
            families=family_table(published),
            not_built=not_built,
        )
    )


def show_table(table: Table) -> None:
    """Print a table in the width of the terminal."""
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        grid.add_column(Text(column), overflow="fold")
    for row in table.rows:
        grid.add_row(*[Text(cell) for cell in row])
    console().print(grid)


def show_family(published: Mapping[str, Any], key: str) -> None:
    """Print all that was measured of a family."""
    if key in published["not_built"]:
        console().print(Text(f"{key} was not measured: {published['not_built'][key]}"))
        return
    row = published["families"][key]
    for norm in row["norms"]:
        facts = {name: value for name, value in norm.items() if name != "class"}
        show_facts(f"{norm['class']}", facts)
    show_facts(key, {name: value for name, value in row.items() if name != "norms"})


def show_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print names and values, in the order in which they are."""
    lines = [[WORDS.get(name, name.replace("_", " ")), as_words(value)] for name, value in facts.items()]
    show_table(Table("", "", [title, ""], lines))


def as_words(value: Any) -> str:
    """Return a value of the atlas in words: of several, a line each."""
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {as_words(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "\n".join(as_words(inner) for inner in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- what is measured


def measure(
    families: Sequence[Family], unusable: Mapping[str, str], known: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the row of each family with its key as soon as it is measured, and say how far it is.

    Args:
        families: of them.
        unusable: why libraries cannot be used, by their words.
        known: rows by their names.

    Raises:
        UsageError: there are no families.
    """
    from normbench.atlas.atlas import measure_families  # imports torch

    if not families:
        raise UsageError("; ".join(unusable.values()) or "no published family is in the versions installed here")
    for number, (key, row) in enumerate(measure_families(families, known), 1):
        yield key, row
        if number % 10 == 0 or number == len(families):
            console().print(Text(f"{number} of {len(families)} families measured"))


def write_measured(out: Path) -> int:
    """Measure all families, and write them as JSON, a line each."""
    from normbench.atlas.atlas import families_here, versions

    rows = dict(measure(*families_here(), {}))
    write_bytes(out, as_json(rows, versions()).encode())
    return 0


def as_json(rows: Mapping[str, Mapping[str, Any]], of_what: Mapping[str, str]) -> str:
    """Return the atlas as JSON, a line for each family, so that a change shows line by line."""
    measured = {key: row for key, row in sorted(rows.items()) if "reason" not in row}
    not_built = {key: row["reason"] for key, row in sorted(rows.items()) if "reason" in row}
    lines = [f'  "{key}": {json.dumps(row, ensure_ascii=False)}' for key, row in measured.items()]
    parts = [
        f'"form": {FORM}',
        f'"versions": {json.dumps(of_what)}',
        '"families": {\n' + ",\n".join(lines) + "\n}",
        f'"not_built": {json.dumps(not_built, ensure_ascii=False, indent=1)}',
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def check_published(published: Mapping[str, Any], key: str) -> int:
    """Print what is measured here otherwise than it is published; return 1 where something is."""
    from normbench.atlas.atlas import compare_rows, differences, families_here, versions

    changed = differences(dict(published["versions"]), versions())
    console().print(Text("; ".join(changed) or "The installed versions are those that were measured."))
    reasons = {name: {"reason": why} for name, why in published["not_built"].items()}
    rows_there = {**published["families"], **reasons}
    families, unusable = families_here()
    here = {family.key: family for family in families}
    wanted = [key] if key else list(rows_there)
    to_measure = [name for name in wanted if name in here]
    if key and not to_measure:
        library = key.partition("/")[0]
        raise UsageError(unusable.get(library, f"{key} is not in the version that is installed here"))
    differing = 0
    for name, row in measure([here[name] for name in to_measure], unusable, rows_there):
        found = compare_rows(rows_there[name], row)
        differing += bool(found)
        for phrase in found:
            console().print(Text(f"{name} {phrase}"))
    if not key:
        for library, reason in unusable.items():
            lost = sum(name.startswith(f"{library}/") for name in wanted)
            console().print(Text(f"Not measured: {count(lost, 'family')} of {library}, since {reason}"))
        usable = [name for name in wanted if name.partition("/")[0] not in unusable]
        for words, names in (
            ("not in the installed version", [name for name in usable if name not in here]),
            ("here, and not published", [name for name in here if name not in rows_there]),
        ):
            if names:
                console().print(Text(f"{words}: {', '.join(names)}"))
    console().print(Text(f"{differing} of {len(to_measure)} families differ from what is published."))
    return 1 if differing else 0
