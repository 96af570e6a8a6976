"""The house's arrows: which part imports which, read from the source; and how long files and functions are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "normbench"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Small words that every part may use.
LEAVES = {"errors", "faults", "files", "keys", "seeds"}

# What else each part may import of ours, beside itself.
ARROWS: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "types": set(),
    "config": set(),
    "catalog": set(),
    "limits": set(),
    "memory": set(),
    "rundir": set(),
    "environment": set(),
    "recording": set(),
    "norms": {"types"},
    "placements": {"types"},
    "models": {"types"},
    "data": {"types"},
    "probes": {"types"},
    "ledger": {"types"},
    "rehearsal": {"types"},
    "compatibility": {"types"},
    "training": {"types", "config", "data", "probes", "recording", "rundir", "environment"},
    "complaints": {"catalog", "config"},
    "glance": {"catalog", "config", "complaints"},
    "origins": {"catalog", "complaints"},
    "compose": {"catalog", "complaints", "config", "glance", "origins"},
    "request": {"catalog", "compose", "config", "assembly"},
    "contracts": {"types"},
    "targets": {"types", "config", "models", "training", "contracts"},
    "assembly": {"types", "config", "models", "training", "compatibility", "targets"},
    "plan": {"types", "catalog", "config", "rundir", "training", "assembly"},
    "summary": {"types", "memory", "recording", "rundir", "training", "ledger", "plan"},
    "session": {
        "types", "config", "probes", "recording", "rundir", "environment", "training", "limits", "memory", "ledger",
        "plan", "summary",
    },
    "run": {
        "catalog", "config", "recording", "rundir", "training", "limits", "assembly", "plan", "rehearsal", "session",
        "summary",
    },
    "estimate": {"types", "memory", "recording", "training"},
    "dryrun": {
        "catalog", "config", "recording", "rundir", "training", "limits", "ledger", "plan", "session", "run",
        "estimate",
    },
    "sweeping": {
        "types", "catalog", "complaints", "compose", "config", "glance", "recording", "rundir", "training", "limits",
        "targets", "assembly", "plan", "run", "request", "estimate", "dryrun",
    },
    "trained": {"types", "config", "rundir", "training", "assembly"},
    "tables": {"catalog", "rundir"},
    "analysis": {"catalog", "config", "rundir", "tables"},
    "sampling": {"types"},
    "checking": {
        "types", "catalog", "compose", "config", "training", "contracts", "targets", "assembly", "compatibility",
        "rehearsal",
    },
    "commands": {
        "types", "catalog", "glance", "complaints", "compose", "config", "compatibility", "recording", "request",
        "rundir", "targets", "assembly", "run", "dryrun", "trained", "sampling", "checking", "sweeping", "analysis",
    },
    "cli": {"commands", "config"},
    "__main__": {"cli"},
    "__init__": {"types", "trained", "tables"},
}  # fmt: skip

# Where these may be imported at all.
OUTSIDE: dict[str, set[str]] = {
    "hydra": {
        "compose.py", "origins.py", "assembly.py",
        "sweeping/grid.py",  # its sweep grammar
        "sweeping/launchers.py", "sweeping/launching.py", "sweeping/ray_launcher.py",  # its launchers
    },
    "hydra_plugins": {"sweeping/launchers.py", "sweeping/ray_launcher.py"},
    "omegaconf": {"compose.py", "origins.py", "sweeping/job.py", "sweeping/launching.py", "sweeping/ray_launcher.py"},
}  # fmt: skip


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
    return {name[1] for name in ours if len(name) > 1 and name[1] in ARROWS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_part_imports_only_what_its_arrows_allow(path: Path) -> None:
    source, own = path.read_text("utf-8"), part(path)
    assert own in ARROWS, f"{own} has no row in ARROWS"
    assert parts_imported(source) - {own} <= LEAVES | ARROWS[own]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_hydra_stays_where_it_is_at_home(path: Path) -> None:
    for library in {name.split(".")[0] for name in imports(path.read_text("utf-8"))} & set(OUTSIDE):
        assert str(path.relative_to(PACKAGE)) in OUTSIDE[library]


def test_the_arrows_have_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(ARROWS):
        free = [name for name in ARROWS if name not in order and ARROWS[name] <= set(order)]
        assert free, f"a circle among {set(ARROWS) - set(order)}"
        order += free


def test_imports_are_seen_in_every_form() -> None:
    source = "import normbench.data.text\nfrom normbench import run, __version__\nif x:\n from normbench.norms import X"
    assert parts_imported(source) == {"data", "run", "norms"}
    assert sum(len(parts_imported(path.read_text("utf-8"))) for path in MODULES) > 100


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_are_short(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= 400
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, node.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree)
    has_functions = any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))
    assert not has_functions or "from __future__ import annotations" in path.read_text("utf-8")
