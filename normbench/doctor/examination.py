"""One examination: what is tried at the same time, in which order it is told, and what follows from it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from normbench import __version__
from normbench.doctor.findings import Problem, Section
from normbench.doctor.packages import TORCH, examine_packages, packages_of_normbench
from normbench.doctor.places import examine_places
from normbench.doctor.trials import Outcome, Trial
from normbench.folders import CACHE, DATA
from normbench.processes import count_cores, cpu_quota
from normbench.record.machine import commit, cpu_name
from normbench.scratch import make_dry_folder
from normbench.wording import duration, fixed, short

HUB = "https://huggingface.co"  # where HF_ENDPOINT names no other
FIRST = 30.0  # seconds for imports and the hub, which are tried first
WHOLE = 55.0  # seconds for everything
NVIDIA = Path("/proc/driver/nvidia/version")

# Variables that decide where things lie, what is asked of the network, and how many threads and instructions there are.
VARIABLES = (
    DATA, CACHE, "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE", "TORCH_HOME", "XDG_CACHE_HOME", "TMPDIR", "PYTHONPATH", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR",
    "CC", "CXX",
)  # fmt: skip
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
YES = {"1", "ON", "YES", "TRUE"}  # as the hub's client reads them


class Examination:
    """What is tried, in processes that are ended with it."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        begun = time.monotonic()
        self.first_end = begun + FIRST
        self.end = begun + WHOLE

    def start(self, name: str, given: Sequence[Any] = (), **variables: str) -> Trial:
        """Start a trial, which is ended with the examination if it still runs."""
        trial = Trial(name, given, **variables)
        self.stack.callback(trial.stop)
        return trial

    def import_in_turn(self, modules: Sequence[str]) -> Outcome:
        """Import modules until one cannot be."""
        return self.start("import_in_turn", [list(modules)]).wait(self.first_end)


def examine() -> Iterator[Section]:
    """Give what is found about this machine, section by section, within a minute."""
    with ExitStack() as stack:
        examination = Examination(stack)
        hub = None if is_offline() else examination.start("ask_hub")
        torch = examination.start("describe_torch")
        yield describe_system()
        yield examine_places()
        packages = examine_all_packages(examination)
        yield packages
        yield examine_hub(hub, examination.first_end)
        can_import_torch = not any(problem.what.startswith(f"{TORCH} ") for problem in packages.problems)
        is_blocked = any(problem.stops for problem in packages.problems)
        compiled, trained = start_work(examination, can_import_torch, is_blocked)
        if can_import_torch:
            yield examine_torch(torch.wait(examination.end))
        yield examine_work(examination, trained, compiled)


def is_offline() -> bool:
    """Tell whether the hub's client has been told not to ask the network."""
    return any(os.environ.get(name, "").upper() in YES for name in OFFLINE)


def describe_system() -> Section:
    """Return what this machine and this Python are."""
    section = Section("machine")
    bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    quota, period = cpu_quota()
    quota_shown = f"{short(round(quota / period, 2))} cores' time" if quota > 0 else "none"
    section.facts["normbench"] = f"{__version__}, {commit() or 'installed'}, in {Path(__file__).parent.parent}"
    section.facts["python"] = f"{platform.python_version()}, {sys.executable}"
    section.facts["system"] = platform.platform()
    section.facts["CPU"] = cpu_name()
    section.facts["cores"] = f"{count_cores()} usable: {os.cpu_count()} in all, {bound} allowed, quota {quota_shown}"
    with suppress(OSError):
        section.facts["load"] = f"{fixed(os.getloadavg()[0], 1)} in the last minute"
    with suppress(ValueError, OSError):
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
        section.facts["memory"] = f"{decimal(total)}, {decimal(free)} unused"
    driver = nvidia_driver()
    if driver:
        section.facts["NVIDIA driver"] = driver
    for name in VARIABLES:
        if name in os.environ:
            section.facts[name] = os.environ[name] or "(empty)"
    return section


def nvidia_driver() -> str:
    """Return the version of NVIDIA's driver; empty where there is none."""
    with suppress(OSError):
        match = re.search(r"Module.*?\s(\d+\.[\d.]+)", NVIDIA.read_text())
        return match[1] if match else "unknown"
    return ""


def examine_all_packages(examination: Examination) -> Section:
    """Return what is known of the packages that normbench uses."""
    try:
        packages = packages_of_normbench()
    except PackageNotFoundError:
        missing = Problem("normbench is not installed, so that nothing says what it needs", "pip install .")
        return Section("packages", problems=[missing])
    except ImportError as error:
        missing = Problem(f"{error.name} is not installed", f"pip install {error.name}", stops=True)
        return Section("packages", problems=[missing])
    return examine_packages(packages, examination.import_in_turn)


def examine_hub(trial: Trial | None, until: float) -> Section:
    """Return whether the hub answers by a time; where it need not, that it was not asked."""
    section = Section("network")
    address = os.environ.get("HF_ENDPOINT") or HUB
    if trial is None:
        section.facts["hub"] = "not asked, as HF_HUB_OFFLINE or a variable like it says"
        return section
    outcome = trial.wait(until)
    status = outcome.found[0] if outcome.found else 0
    if status and status < 400:
        section.facts["hub"] = f"{address} answers"
        return section
    reason = f"status {status}" if status else outcome.failure
    section.facts["hub"] = f"{address} does not answer as it should"
    cure = f"set {DATA} to a folder with copies of the data sets, HF_ENDPOINT to a mirror, or use data=pydocs or digits"
    section.problems.append(Problem(f"the hub {address} cannot be asked for data and weights ({reason})", cure))
    return section


def examine_torch(outcome: Outcome) -> Section:
    """Return what torch finds here, and what it cannot use."""
    section = Section("torch")
    for facts in outcome.found:
        section.facts |= facts
    against = section.facts.pop("reason against GPU", "")
    built = section.facts.get("torch is built for", "")
    if nvidia_driver() and built == "the CPU alone":
        what = "this machine has an NVIDIA GPU, and torch is built for the CPU alone"
        section.problems.append(Problem(what, "install torch for CUDA, by the command that pytorch.org shows"))
    elif against and nvidia_driver():
        cure = f"install a driver for {built}, or torch for the driver's CUDA, by the command that pytorch.org shows"
        section.problems.append(Problem(f"torch cannot use the GPU ({against})", cure))
    elif against:
        section.facts["GPU"] = f"none ({against})"
    if outcome.is_late:
        section.facts["the rest"] = f"is not known: {outcome.failure}"
    elif outcome.failure:
        what = f"what torch can do here could not be found out ({outcome.failure})"
        section.problems.append(Problem(what, "install torch again, by the command that pytorch.org shows"))
    return section


def start_work(examination: Examination, can_import_torch: bool, is_blocked: bool) -> tuple[Trial | None, Trial | None]:
    """Start to compile and to train, as far as these can work; return the two trials.

    Args:
        examination: of which they are a part.
        can_import_torch: whether torch can be imported.
        is_blocked: whether the training cannot work, for a reason that has been given.
    """
    compiled = None
    trained = None
    with suppress(OSError):  # that nothing temporary can be written has been said
        folder = examination.stack.enter_context(make_dry_folder())
        if can_import_torch:
            cache = str(folder / "compiled")  # a kernel made before would hide that the compiler is gone
            compiled = examination.start("compile_a_function", TORCHINDUCTOR_CACHE_DIR=cache)
        if not is_blocked:
            trained = examination.start("train_briefly", [str(folder / "outputs")])
    return compiled, trained


def examine_work(examination: Examination, trained: Trial | None, compiled: Trial | None) -> Section:
    """Return whether a tiny training and torch.compile work."""
    section = Section("work")
    section.facts["a tiny training"] = "not tried, since what it needs is missing"
    if trained:
        problem = problem_of_training(trained.wait(examination.end))
        section.facts["a tiny training"] = "does not work" if problem else "works"
        if problem:
            section.problems.append(problem)
    if compiled:
        note_compiler(section, compiled.wait(examination.end))
    return section


def problem_of_training(outcome: Outcome) -> Problem | None:
    """Return what keeps a tiny training from working, if something does."""
    what = "a tiny training does not work"
    if not outcome.found:
        cure = "try again when the machine is less busy, and if that does not help, report it with this page"
        return Problem(f"{what} ({outcome.failure})", cure, stops=True)
    refusal = str(outcome.found[0])
    if not refusal:
        return None
    complaint, _, cure = refusal.rpartition(": ")  # normbench's sentences end in their cure
    return Problem(f"{what} ({complaint or refusal})", cure if complaint else "report it with this page", stops=True)


def note_compiler(section: Section, outcome: Outcome) -> None:
    """Note whether torch.compile works."""
    if outcome.found:
        section.facts["torch.compile"] = f"works, in {duration(outcome.found[0], 2)}"
        return
    if outcome.is_late:
        section.facts["torch.compile"] = f"not known: {outcome.failure}"
        return
    section.facts["torch.compile"] = "does not work"
    compiler = os.environ.get("CXX") or "g++"
    cure = "leave trainer.compile=false"
    if not shutil.which(compiler):
        cure = f"install a C++ compiler, such as g++ ({compiler} is not in PATH), or {cure}"
    section.problems.append(Problem(f"torch.compile does not work ({outcome.failure})", cure))
