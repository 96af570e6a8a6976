"""Which packages normbench uses, whether their versions fit each other, and whether they can be imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from normbench.companions import TORCHVISION, TRANSFORMERS
from normbench.doctor.findings import Problem, Section
from normbench.doctor.trials import Outcome

OURS = "normbench"
TESTS = ("test", "ci")  # the extras that only normbench's own tests use
TORCH = "torch"
HUB = "huggingface_hub"  # which datasets and transformers bring
EARLY = (TORCHVISION, "timm", TRANSFORMERS, HUB)  # tried after torch, with which they often do not fit

# Packages whose module has another name than dashes as underscores would give.
MODULES = {"hydra-core": "hydra", "scikit-learn": "sklearn", "pillow": "PIL", "mlflow-skinny": "mlflow"}

OF_ONE_INDEX = "install torch and torchvision at once from one index, by the command that pytorch.org shows"
Imports = Callable[[Sequence[str]], Outcome]  # tries modules in turn, as `import_in_turn`


@dataclass(frozen=True)
class Package:
    """What normbench uses.

    Attributes:
        name: as pip knows it.
        range: versions that are meant to work, such as `>=2.6`.
        extra: that installs it; empty: normbench always needs it.
    """

    name: str
    range: str = ""
    extra: str = ""

    @property
    def module(self) -> str:
        """Return the name under which it is imported."""
        return MODULES.get(self.name, self.name.replace("-", "_"))

    @property
    def needed(self) -> bool:
        """Tell whether the basic job needs it."""
        return not self.extra

    def command(self) -> str:
        """Return the command that installs it."""
        if self.name == TORCH:
            return f"pip install '{TORCH}{self.range}', from the index that pytorch.org names for this machine"
        if self.needed:
            return f"pip install '{self.name}{self.range}'"
        return f"pip install '{OURS}[{self.extra}]'"


def packages_of_normbench() -> list[Package]:
    """Return what normbench says that it needs, torch first, and then what its extras install, each once.

    Raises:
        PackageNotFoundError: normbench is not installed, but run from a folder.
        ImportError: what reads such lists is not installed.
    """
    from packaging.requirements import Requirement

    needed: dict[str, Package] = {}
    optional: dict[str, Package] = {}
    extras = metadata(OURS).get_all("Provides-Extra") or []
    for line in requires(OURS) or []:
        requirement = Requirement(line)
        name, wanted = requirement.name, str(requirement.specifier)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed[name] = Package(name, wanted)
            continue
        for extra in extras:
            if extra not in TESTS and name != OURS and requirement.marker.evaluate({"extra": extra}):
                optional.setdefault(name, Package(name, wanted, extra))
    optional.setdefault(HUB, Package(HUB, extra="hf"))
    in_order = [TORCH, *EARLY, *needed, *optional]
    every = optional | needed
    return [every[name] for name in dict.fromkeys(in_order) if name in every]


def installed_version(name: str) -> str:
    """Return the version of a package; empty where it is not installed, or its own record of it is broken."""
    with suppress(PackageNotFoundError):
        return str(version(name) or "")
    return ""


def examine_packages(packages: Sequence[Package], imports: Imports) -> Section:
    """Return versions of packages, and what keeps them from being used.

    Args:
        packages: that may be installed or not.
        imports: tries modules.
    """
    section = Section("packages")
    installed: dict[str, Package] = {}
    for package in packages:
        if installed_version(package.name):
            installed[package.name] = package
        elif package.needed:
            section.problems.append(Problem(f"{package.name} is not installed", package.command(), stops=True))
    failures, untried = try_imports(list(installed.values()), imports)
    for package in packages:
        if package.name not in installed:
            shown = "not installed" if package.needed else f"not installed ({package.command()})"
        else:
            shown = installed_version(package.name)
            if package.name in failures:
                section.problems.append(failures[package.name])
                shown += ", cannot be imported"
            elif package.name in untried:
                shown += f", {untried[package.name]}"
        section.facts[package.name] = shown
    section.problems += misfits(installed, failures)
    return section


def try_imports(packages: Sequence[Package], imports: Imports) -> tuple[dict[str, Problem], dict[str, str]]:
    """Return what is wrong with packages that cannot be imported, and why others have not been, by their names.

    After each that cannot be imported the rest is tried anew. What needs torch is not tried where torch itself cannot
    be imported.
    """
    failures: dict[str, Problem] = {}
    untried: dict[str, str] = {}
    rest = list(packages)
    while rest:
        outcome = imports([package.module for package in rest])
        works = sum(not result["reason"] for result in outcome.found)
        rest = rest[works:]
        if outcome.is_late:
            untried[rest[0].name] = f"whose import is not known to work: {outcome.failure}"
            for package in rest[1:]:
                untried[package.name] = "not imported, for want of time"
            break
        if not rest:
            break
        package = rest.pop(0)
        last = outcome.found[-1] if len(outcome.found) > works else {}
        is_of_torchvision = bool(last.get("is_torchvision"))
        failures[package.name] = problem_of_import(package, last.get("reason") or outcome.failure, is_of_torchvision)
        if package.name == TORCH:
            for other in rest:
                if needs_torch(other):
                    untried[other.name] = "not imported, since it needs torch"
            rest = [other for other in rest if other.name not in untried]
    return failures, untried


def problem_of_import(package: Package, reason: str, is_of_torchvision: bool) -> Problem:
    """Return what is wrong with a package that cannot be imported.

    Args:
        package: it.
        reason: what its import, or the process of it, ended with.
        is_of_torchvision: whether that comes from torchvision.
    """
    what = f"{package.name} {installed_version(package.name)} cannot be imported ({reason})"
    cure = f"install it again: pip install --force-reinstall '{package.name}{package.range}'"
    if is_of_torchvision:
        cure = OF_ONE_INDEX
        if package.name == TORCHVISION:
            cure += "; model=hf works without it, model=timm and model=torchvision do not"
    return Problem(what, cure, package.needed)


def needs_torch(package: Package) -> bool:
    """Tell whether a package cannot be imported without torch."""
    return package.name == TRANSFORMERS or any(name == TORCH for name, _ in requirements_of(package.name))


def misfits(packages: Mapping[str, Package], failures: Mapping[str, Problem]) -> Iterator[Problem]:
    """Give a problem for each package whose version is not one that normbench, or another package, asks for.

    Args:
        packages: that are installed, by name.
        failures: those that cannot be imported, for which a reason has been given.
    """
    for package in packages.values():
        installed = installed_version(package.name)
        if not fits(installed, package.range):
            what = f"{OURS} needs {package.name}{package.range}, and {installed} is installed"
            yield Problem(what, package.command(), package.needed and package.name in failures)
    for name in packages:
        for other, wanted in requirements_of(name):
            installed = installed_version(other)
            if installed and fits(installed, wanted):
                continue
            what = f"{name} {installed_version(name)} needs {other}{wanted}, "
            what += f"and {installed} is installed" if installed else "which is not installed"
            cure = OF_ONE_INDEX if {name, other} == {TORCHVISION, TORCH} else f"pip install '{other}{wanted}'"
            yield Problem(what, cure)


def requirements_of(name: str) -> Iterator[tuple[str, str]]:
    """Give the packages that a package needs without its extras, with their versions."""
    from packaging.requirements import InvalidRequirement, Requirement

    for line in requires(name) or []:
        with suppress(InvalidRequirement):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement.name, str(requirement.specifier)


def fits(installed: str, wanted: str) -> bool:
    """Tell whether a version is in a range; one that cannot be read is taken for right."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(wanted).contains(installed, prereleases=True)
    except InvalidVersion:
        return True
