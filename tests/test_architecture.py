"""The arrows of the house, read from the source: which part imports which; and how large parts and files may be."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "normbench"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Small words that every part may use.
LEAVES = {"errors", "settings", "types"}

# What else each part may import of ours, beside itself; and how many lines of code it may have.
PARTS: dict[str, tuple[set[str], int]] = {
    "errors": (set(), 35),
    "settings": ({"errors"}, 186),
    "types": (set(), 198),
    "rundir": (set(), 200),
    "translation": (set(), 126),
    "config": (set(), 495),
    "recording": ({"rundir"}, 240),
    "loggers": ({"recording"}, 68),
    "norms": (set(), 779),
    "placements": (set(), 74),
    "models": ({"translation"}, 825),
    "data": ({"translation"}, 1239),
    "probes": (set(), 234),
    "training": ({"config", "probes", "recording", "rundir"}, 1196),
    "build": ({"config", "models", "norms", "recording", "training"}, 223),
    "run": ({"build", "config", "probes", "recording", "rundir", "training"}, 643),
    "results": ({"build", "config", "rundir", "training"}, 103),
    "analysis": ({"config", "recording", "results", "rundir"}, 2500),
    "sweep": ({"build", "config", "run", "rundir"}, 967),
    "contract": ({"build", "config", "training", "translation"}, 675),
    "studies": (
        {"analysis", "build", "config", "contract", "norms", "probes", "recording", "results", "run", "rundir", "sweep"}
        | {"training"},
        2206,
    ),
    "commands": ({"analysis", "build", "config", "contract", "results", "rundir", "run", "studies", "sweep"}, 719),
    "cli": ({"commands", "config", "recording", "run", "studies", "sweep"}, 214),
    "__main__": ({"cli"}, 3),
    "__init__": ({"results"}, 28),
}  # fmt: skip

# Where Hydra may be imported, and of it only public names.
HYDRA = {"config", "build", "sweep"}


def part(path: Path) -> str:
    """The part of the house that a file belongs to: a folder, or a module at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str) -> Iterator[str]:
    """Every module that a source imports, wherever in the file, as dotted paths."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(source: str) -> set[str]:
    """The parts of normbench that a source imports; `from normbench import __version__` is none."""
    ours = (name.split(".") for name in imports(source) if name.split(".")[0] == "normbench")
    return {name[1] for name in ours if len(name) > 1 and name[1] in PARTS}


@cache
def lines_of_code(path: Path) -> int:
    """Lines with code: neither blank nor comment nor docstring."""
    source = path.read_text("utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = {line for token in tokens if token.type not in quiet for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_arrows_allow(path: Path) -> None:
    source, own = path.read_text("utf-8"), part(path)
    assert own in PARTS, f"{own} has no row in PARTS"
    assert parts_imported(source) - {own} <= LEAVES | PARTS[own][0]
    hydra = [name for name in imports(source) if name.partition(".")[0] in ("hydra", "hydra_plugins")]
    assert not hydra or own in HYDRA
    assert not [name for name in hydra if "._" in name or name.startswith("hydra_plugins")]


def test_the_arrows_have_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(PARTS):
        free = [name for name in PARTS if name not in order and PARTS[name][0] <= set(order)]
        assert free, f"a circle among {set(PARTS) - set(order)}"
        order += free


def test_imports_are_seen_in_every_form() -> None:
    source = "import normbench.data.text\nfrom normbench import run, __version__\nif x:\n from normbench.norms import X"
    assert parts_imported(source) == {"data", "run", "norms"}
    assert sum(len(parts_imported(path.read_text("utf-8"))) for path in MODULES) > 100


@pytest.mark.parametrize("name", PARTS)
def test_a_part_keeps_its_budget(name: str) -> None:
    assert sum(lines_of_code(path) for path in MODULES if part(path) == name) <= PARTS[name][1]


def test_the_house_stays_small() -> None:
    assert sum(map(lines_of_code, MODULES)) <= 14200
    assert len(MODULES) <= 130
    assert len(list(PACKAGE.glob("*.py"))) <= 12


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_are_short_and_say_what_they_are(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= 400
    tree = ast.parse(source)
    assert ast.get_docstring(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert not functions or "from __future__ import annotations" in source
    for function in functions:
        assert (function.end_lineno or 0) - function.lineno < 60, function.name
