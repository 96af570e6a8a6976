"""The atlas as tables: one with a row for each family, and one for each question, as docs/atlas.md has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.errors import UsageError
from normbench.record.files import read_json

Row = Mapping[str, Any]

LIBRARIES = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision"}
CAST_LAST = "γ in float32, cast last"
PACKAGE = Path(__file__).parent
PUBLISHED = "atlas.json"
MOST = 4  # places that a cell names


def read_published() -> dict[str, Any]:
    """Return what is published: `versions`, `families` and `not_built`, by the families' names.

    Raises:
        UsageError: it is not there, or damaged.
    """
    installed = PACKAGE / PUBLISHED
    path = installed if installed.is_file() else PACKAGE.parent.parent / "docs" / PUBLISHED
    content = read_json(path)
    if content is None:
        raise UsageError(f"{path} is missing or damaged: install normbench again")
    return content


@dataclass(frozen=True)
class Table:
    """A question and its answer.

    Attributes:
        title: the question.
        note: what is to be known of it, in sentences; may be empty.
        columns: their heads.
        rows: as many cells each.
    """

    title: str
    note: str
    columns: Sequence[str]
    rows: list[list[str]]


def say_versions(published: Row) -> str:
    """Return the libraries with their versions, in words."""
    return ", ".join(f"{name} {version}" for name, version in sorted(published["versions"].items()))


# ---- cells


def places(norm: Row) -> str:
    """Return where norms stand that do the same."""
    where = list(norm["where"])
    shown = ", ".join(where[:MOST])
    return shown if len(where) <= MOST else f"{shown}, …"


def say_eps(norm: Row) -> str:
    """Return ε, and its place where that is not inside the root."""
    if "eps" not in norm:
        return ""
    place = norm["eps_place"]
    return f"{norm['eps']:g}" if place == "inside the root" else f"{norm['eps']:g} ({place})"


def distinct(cells: Iterator[str] | Sequence[str]) -> str:
    """Return cells that are not empty, each once."""
    return "; ".join(dict.fromkeys(cell for cell in cells if cell))


def say_norms(row: Row) -> str:
    """Return the kinds of norms of a family, with ε."""
    return distinct([f"{norm['kind']} {say_eps(norm)}".strip() for norm in row["norms"]])


def say_gain(row: Row) -> str:
    """Return how γ enters and where it starts, of all norms of a family."""
    return distinct([f"{norm.get('gain', 'none')} = {', '.join(norm['start'])}" for norm in row["norms"]])


def say_casts(row: Row) -> str:
    """Return the orders of casts in a family."""
    return distinct([norm.get("order", "") for norm in row["norms"]])


def family_table(published: Row) -> Table:
    """Return the table with a row for each family."""
    rows = []
    for name, row in published["families"].items():
        heads = row.get("queries_keys", "")
        rows.append([name, say_norms(row), row["placement"] or "none", heads, say_casts(row), say_gain(row)])
    columns = ["family", "norms, with ε", "placement", "queries and keys", "casts", "γ at the start"]
    return Table("All families", "", columns, rows)


# ---- questions


def norms_where(published: Row, is_so: Any) -> Iterator[tuple[str, Row]]:
    """Give the norms for which something holds, with the name of their family."""
    for name, row in published["families"].items():
        for norm in row["norms"]:
            if is_so(norm):
                yield name, norm


def list_norms(title: str, note: str, column: str, chosen: Iterator[tuple[str, Row]], cell: Any) -> Table:
    """Return a table with a row for each kind of norms of which the same is said, and the families that have it."""
    families: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for name, norm in chosen:
        families[norm["kind"], cell(norm)][name] = None
    rows = []
    for (kind, said), names in sorted(families.items()):
        rows.append([kind, said, str(len(names)), ", ".join(names)])
    return Table(title, note, ["kind", column, "families", ""], rows)


def by_value(title: str, note: str, published: Row, key: str, column: str) -> Table:
    """Return a table with a row for each value that families have under a key, and these families."""
    families: dict[str, list[str]] = defaultdict(list)
    for name, row in published["families"].items():
        if row.get(key):
            families[str(row[key])].append(name)
    ordered = sorted(families.items(), key=lambda item: -len(item[1]))
    return Table(
        title, note, [column, "families", ""], [[value, str(len(names)), ", ".join(names)] for value, names in ordered]
    )


def kinds_table(published: Row) -> Table:
    """Return which families have which kind of norm."""
    families: dict[str, dict[str, None]] = defaultdict(dict)
    for name, norm in norms_where(published, lambda norm: True):
        families[norm["kind"]][name] = None
    ordered = sorted(families.items(), key=lambda item: -len(item[1]))
    rows = [[kind, str(len(names)), ", ".join(names)] for kind, names in ordered]
    return Table("Which norms are there?", "", ["kind", "families", ""], rows)


def config_tables(published: Row) -> Iterator[Table]:
    """Give the tables on settings of configurations that do not do what they say."""
    deaf: list[list[str]] = []
    apart: list[list[str]] = []
    switches: list[list[str]] = []
    for name, row in published["families"].items():
        for setting, said in row.get("settings", {}).items():
            if said.get("changes") is False:
                switches.append([name, f"{setting} = {str(said['value']).lower()}"])
            elif said.get("follow") == 0:
                deaf.append([name, f"{setting} = {said['value']:g}", distinct(said["others"])])
            elif said.get("others") and count_eps(row) == 1:
                apart.append([name, f"{setting} = {said['value']:g}", distinct(said["others"])])
    note = "Set to 3e-4, it is the ε of some norms; those in the last column keep their own."
    yield Table("Whose norms have another ε than the configuration says?", note, ["family", "setting", "others"], apart)
    note = "Set to 3e-4, it is the ε of none of the norms that run, at the default of all else."
    yield Table("Which settings of ε does no norm follow?", note, ["family", "setting", "norms"], deaf)
    note = (
        "Set to the other value, at the default of all else: the norms are the same, and so is the output of a model "
        "from the same seed, in evaluation."
    )
    yield Table("Which switches that speak of norms change nothing?", note, ["family", "setting"], switches)


def count_eps(row: Row) -> int:
    """Return how many settings of ε a family has."""
    return sum("follow" in said for said in row.get("settings", {}).values())


def fold_tables(published: Row) -> Iterator[Table]:
    """Give the tables on what folds."""
    rows = []
    for name, row in published["families"].items():
        folding = row.get("gain_folds", {})
        folds, kept = folding.get("folds", {}), folding.get("kept", {})
        if folds or kept:
            rows.append([name, say_counts(folds), say_counts(kept)])
    note = (
        "γ goes into the weights that read the norm, a router's and experts' too, also behind a mean over positions or "
        "a product with a number; BatchNorm goes into the map before it. What stands before attention's scores, a "
        "residual sum or an activation is kept. Each norm is tried."
    )
    yield Table("Whose γ fold into the next weights?", note, ["family", "folds", "stays"], rows)
    rows = []
    for name, row in published["families"].items():
        exact = row.get("exact_rms", {})
        if exact:
            done = f"{exact.get('become', 0)} of {exact['of']}"
            rows.append([name, done, distinct(list(exact.get("why", {})))])
    yield Table(
        "Whose LayerNorms could be RMSNorms without a change?", "", ["family", "LayerNorms", "why others not"], rows
    )


def say_counts(counts: Mapping[str, int]) -> str:
    """Return places with how many norms they have."""
    return ", ".join(f"{place} × {number}" if number > 1 else place for place, number in counts.items())


def questions(published: Row) -> Iterator[Table]:
    """Give the table of each question."""

    def find(is_so: Any) -> Iterator[tuple[str, Row]]:
        return norms_where(published, is_so)

    yield kinds_table(published)
    yield by_value("Where do norms stand?", "", published, "placement", "placement")
    yield by_value("Who has QK-norm?", "", published, "queries_keys", "norms of queries and keys")
    yield by_value("Who normalizes values?", "", published, "values", "norms of values")
    yield list_norms(
        "Who multiplies γ in bfloat16?",
        "The result is cast to bfloat16 before γ, or statistics are taken in bfloat16: the rounding is another than in "
        "the others, which multiply in float32 and cast last.",
        "order",
        find(lambda norm: "bfloat16" in norm.get("order", "") or norm.get("statistics") == "bfloat16"),
        lambda norm: norm["order"],
    )
    yield list_norms(
        "Whose order of casts is none of these?",
        "",
        "order",
        find(lambda norm: norm.get("statistics") == "unknown"),
        lambda norm: norm["order"],
    )
    yield list_norms(
        "Who gives float32 where input and weights differ?",
        "For an input in bfloat16 with γ in float32, as mixed precision with norms kept in float32 has it.",
        "output",
        find(lambda norm: norm.get("mixed") in ("float32", "refused")),
        lambda norm: norm["mixed"],
    )
    yield list_norms(
        "Who computes float64 in float32?",
        "",
        "precision",
        find(lambda norm: norm.get("double", "float64") != "float64"),
        lambda norm: norm["double"],
    )
    yield list_norms(
        "Who fails at 1,000 in float16?",
        "Rows of about 1,000, whose squares float16 does not have.",
        "output",
        find(lambda norm: norm.get("large", "right") != "right"),
        lambda norm: norm["large"],
    )
    yield list_norms(
        "Who stores γ − 1?",
        "",
        "γ",
        find(lambda norm: norm.get("gain") not in ("γ", None, "none")),
        lambda norm: norm["gain"],
    )
    yield list_norms(
        "Whose γ does not start at 1?",
        "",
        "start",
        find(lambda norm: norm.get("gain", "none") != "none" and set(norm["start"]) != {"1"}),
        lambda norm: say_counts(norm["start"]),
    )
    yield list_norms(
        "Whose ε is not inside the root?",
        "",
        "ε",
        find(lambda norm: norm.get("eps_place", "inside the root") != "inside the root"),
        lambda norm: say_eps(norm) or norm["eps_place"],
    )
    yield from config_tables(published)
    yield list_norms(
        "What becomes of a row of zeros?",
        "All norms that are not listed give zeros in float32 and float16.",
        "output",
        find(lambda norm: {norm.get("zero", "zeros"), norm.get("zero_half", "zeros")} != {"zeros"}),
        lambda norm: f"float32: {norm.get('zero')}, float16: {norm.get('zero_half')}",
    )
    yield by_value("Who normalizes the embedding, or what the stem gives?", "", published, "embedding", "norm")
    rows = [
        [name, row["placement"]] for name, row in published["families"].items() if row["norms"] and not row.get("final")
    ]
    yield Table("Who has no norm behind the last block?", "", ["family", "placement"], rows)
    yield list_norms(
        "Which norms serve several places?",
        "One module, with one γ: it is called several times a pass, or read by several branches.",
        "serves",
        find(lambda norm: "calls" in norm or "serves" in norm),
        lambda norm: ", ".join(norm.get("serves", [])) or f"{norm['calls']} calls",
    )
    rows = [[name, distinct(row["functions"])] for name, row in published["families"].items() if row.get("functions")]
    yield Table("Who normalizes by a function, outside of any norm?", "", ["family", "where"], rows)
    yield from fold_tables(published)
