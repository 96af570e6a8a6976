"""The arrows of the house, read from the source: which part imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "normbench"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Small words that every part may use.
LEAVES = {
    "companions", "compiling", "errors", "folders", "masks", "processes", "settings", "stopping", "types", "wording",
}  # fmt: skip

# What else each part may import of ours, beside itself.
PARTS: dict[str, set[str]] = {
    "companions": set(),
    "errors": set(),
    "stopping": set(),
    "processes": {"stopping"},
    "compiling": set(),
    "folders": set(),
    "masks": set(),
    "settings": {"errors"},
    "types": set(),
    "wording": set(),
    "hub": set(),
    "scratch": set(),
    "translation": set(),
    "config": set(),
    "record": set(),
    "recording": {"record"},
    "norms": set(),
    "placements": set(),
    "weights": set(),
    "models": {"translation"},
    "hosts": {"hub", "norms", "record"},
    "data": {"hub", "translation"},
    "probes": set(),
    "training": {"config", "probes", "record"},
    "build": {"config", "models", "norms", "record", "training", "weights"},
    "runs": {"build", "config", "models", "probes", "record", "scratch", "training"},
    "evidence": {"config", "record", "runs"},
    "results": {"config", "evidence", "record"},
    "tell": {"config", "evidence", "record", "results"},
    "show": {"config", "evidence", "record", "results", "tell"},
    "sweep": {"build", "config", "record", "runs", "scratch", "training"},
    "contract": {"build", "config", "models", "norms", "training", "translation"},
    "studies": {
        "build", "config", "contract", "evidence", "hosts", "norms", "probes", "record", "results", "runs", "show",
        "sweep", "tell", "training",
    },
    "claims": {"config", "evidence", "record", "results", "runs", "show", "studies", "sweep", "tell"},
    "atlas": {"hosts", "record", "training"},
    "swapping": {"build", "config", "hosts", "norms"},
    "doctor": {"config", "hub", "record", "runs", "scratch", "training"},
    "commands": {
        "atlas", "build", "claims", "config", "contract", "doctor", "evidence", "record", "results", "runs", "show",
        "studies", "sweep", "tell",
    },
    "cli": {"commands", "config", "record", "runs", "studies", "sweep"},
    "__main__": {"cli"},
    "__init__": {"evidence", "hosts", "results", "runs", "show", "swapping", "sweep"},
}  # fmt: skip

# Where Hydra may be imported, and of it only public names.
HYDRA = {"config", "build", "sweep"}


def part(path: Path) -> str:
    """The part of the house that a file belongs to: a folder, or a module at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    """The source of a module."""
    return ast.parse(path.read_text("utf-8"))


def imports(source: ast.Module) -> Iterator[str]:
    """Every module that a source imports, wherever in the file, as dotted paths."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(source: ast.Module) -> set[str]:
    """The parts of normbench that a source imports; `from normbench import __version__` is none."""
    ours = (name.split(".") for name in imports(source) if name.split(".")[0] == "normbench")
    return {name[1] for name in ours if len(name) > 1 and name[1] in PARTS}


@pytest.mark.parametrize("own", sorted({part(path) for path in MODULES}))
def test_modules_import_only_what_the_arrows_of_their_part_allow(own: str) -> None:
    assert own in PARTS, f"{own} has no row in PARTS"
    for path in MODULES:
        if part(path) != own:
            continue
        assert parts_imported(parsed(path)) - {own} <= LEAVES | PARTS[own], path
        hydra = [name for name in imports(parsed(path)) if name.partition(".")[0] in ("hydra", "hydra_plugins")]
        assert not hydra or own in HYDRA, path
        assert not [name for name in hydra if "._" in name or name.startswith("hydra_plugins")], path


def test_the_arrows_have_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(PARTS):
        free = [name for name in PARTS if name not in order and PARTS[name] <= set(order)]
        assert free, f"a circle among {set(PARTS) - set(order)}"
        order += free


def run_at_import(nodes: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, in their order; what only a type checker reads does not."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from run_at_import(node.orelse)
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        for block in ("body", "orelse", "finalbody"):
            yield from run_at_import(getattr(node, block, []))


def names_made(node: ast.stmt) -> set[str]:
    """The names that a statement gives its module."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}


class Imports:
    """Imports modules as Python does, the packages around each first, but does nothing else that they say.

    Attributes:
        sources: what each module does when it is imported, by its name.
        made: the names that each has by now, of those that were begun.
        unmade: what a module takes of another one that has not come to it, since it is being imported itself.
    """

    def __init__(self, sources: Mapping[str, Sequence[ast.stmt]]) -> None:
        self.sources = sources
        self.made: dict[str, set[str]] = {}
        self.unmade: list[str] = []

    def load(self, module: str) -> None:
        if module not in self.sources or module in self.made:
            return
        package = module.rpartition(".")[0]
        self.load(package)
        if module in self.made:  # the package has imported it
            return
        self.made[module] = set()
        for node in self.sources[module]:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.load(alias.name)
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module in self.sources:
                self.take(module, node.module, [alias.name for alias in node.names])
            self.made[module] |= names_made(node)

    def take(self, module: str, other: str, names: Sequence[str]) -> None:
        self.load(other)
        for name in names:
            inner = f"{other}.{name}"
            if name in self.made[other]:
                continue
            if inner in self.sources:
                self.load(inner)
            else:
                self.unmade.append(f"{module} takes {name} of {other}")


def first_imports(sources: Mapping[str, Sequence[ast.stmt]]) -> dict[str, list[str]]:
    """What fails when a module is the first that a session imports, for each with which something does."""
    failed = {}
    for module in sources:
        imported = Imports(sources)
        imported.load(module)
        if imported.unmade:
            failed[module] = imported.unmade
    return failed


def test_each_module_may_be_the_first_that_is_imported() -> None:
    sources = {}
    for path in MODULES:
        *around, last = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(around if last == "__init__" else [*around, last])
        sources[name] = list(run_at_import(parsed(path).body))
    assert first_imports(sources) == {}


def test_a_module_that_its_own_package_needs_first_is_seen() -> None:
    package = {"p": "from p.b import y", "p.a": "x = 1", "p.b": "from q import z\ny = 1"}
    written = {**package, "q": "from p.a import x\nz = 1"}  # importing q begins with p, which needs q
    sources = {name: ast.parse(text).body for name, text in written.items()}
    assert first_imports(sources) == {"q": ["p.b takes z of q"]}


def test_imports_are_seen_in_every_form() -> None:
    source = "import normbench.data.text\nfrom normbench import runs, __version__\nif x:\n from normbench import norms"
    assert parts_imported(ast.parse(source)) == {"data", "runs", "norms"}
    assert sum(len(parts_imported(parsed(path))) for path in MODULES) > 100


def test_each_file_says_what_it_is() -> None:
    assert [path for path in MODULES if not ast.get_docstring(parsed(path))] == []
