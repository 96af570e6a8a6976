"""What holds for all tests."""

from __future__ import annotations

import fcntl
import gc
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import groupby, islice
from pathlib import Path

import pytest

gc.disable()  # until all tests are collected: what is imported for them stays

# Small tensors gain nothing from a second thread, and tests run side by side: also in processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Else hypothesis imports trio for nothing, which lets Python's collector walk twice through all that was imported.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Import torch where tests are collected: a process that hands them to workers starts these sooner without it."""
    hands_out = config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ
    if not hands_out or config.getoption("collectonly"):
        import_module("torch_of_tests")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def unhurried() -> None:
    """No command says what it is at because this machine is slow: test_progress asks for it."""
    from normbench.record import console

    console.PATIENCE = math.inf


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in the processes that tests start, whatever torch has read of the environment."""
    import torch

    torch.set_num_threads(1)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return some workers more than there are cores: tests wait for processes that they have started, slow ones often.

    Each worker takes five seconds of a core before its first test.
    """
    few_wait = "not slow" in config.getoption("markexpr")
    return len(os.sched_getaffinity(0)) + (1 if few_wait else 2)


@pytest.hookimpl(wrapper=True, trylast=True)  # when warnings are errors already
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keep the files of tests as pytest rewrites them, also where PYTHONDONTWRITEBYTECODE is set.

    To rewrite a hundred of them takes a third of the time before the first test, in each worker. What is imported lives
    as long as the tests, so that Python's collector need not look for garbage in it meanwhile.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = False
    try:
        import_in_turn(session.config)
        return (yield)
    finally:
        sys.dont_write_bytecode = before
        gc.set_threshold(50_000, 20, 20)  # else it looks through what was imported too often, for a tenth of the time
        gc.enable()


def import_in_turn(config: pytest.Config) -> None:
    """Import all files of tests, of which each of several workers begins with others, before they are collected.

    After a file was imported for the first time all workers have it as pytest rewrites it, which takes a third of the
    time of a collection: so each of them rewrites its part.
    """
    if config.args != config.getini("testpaths") or "PYTEST_XDIST_WORKER" not in os.environ:
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    shared, files = [], []
    for file in sorted(Path(__file__).parent.glob("*.py")):
        group = files if file.name.startswith("test_") else shared
        if file.stem not in sys.modules:
            group.append(file.stem)
    pytest.register_assert_rewrite(*shared)  # some files name them as plugins, after others have imported them
    begin = number * len(files) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in (*files[begin:], *files[:begin]):
        with suppress(Exception, pytest.skip.Exception):  # pytest meets it again, and tells it, as it collects
            import_module(file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in an order that keeps all cores busy; those on the public data sets need the folder of NORMBENCH_DATA."""
    for item in items:
        if forks_runs(item):
            item.add_marker(pytest.mark.slow)
        if sees_tensors(item):
            item.add_marker(pytest.mark.tensors)
    items[:] = spread(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    if "NORMBENCH_DATA" not in os.environ:
        skip = pytest.mark.skip(reason="NORMBENCH_DATA names no folder with the public data sets")
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(skip)


def forks_runs(item: pytest.Item) -> bool:
    """Tell whether a test forks runs from a server, which takes a core for five seconds to start."""
    return "server" in getattr(item, "fixturenames", ())


def sees_tensors(item: pytest.Item) -> bool:
    """Tell whether a test's file has torch, whose numbers a CPU's instructions change, or compares runs to the bit."""
    names = vars(getattr(item, "module", None) or object)
    return not names.keys().isdisjoint(("torch", "nn", "assert_same", "assert_as"))


FORKING = 2  # workers, of several, that begin with tests that fork runs: each of them starts a server
WAITING = ("test_sweep_pool.py",)  # for a cluster and for runs to end, most of the time: at the end all would wait


def spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Slow tests first in each worker's share of the list, file by file, so that none is left for the end.

    Files with tests in a browser are one share's, which starts with them, and with one browser.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = (item for item in items if not item.get_closest_marker("slow"))
    forking, browsing, others = list[list[pytest.Item]](), list[list[pytest.Item]](), list[list[pytest.Item]]()
    for path, group in groupby(slow, lambda item: item.path):
        tests = list(group)
        if path.name in WAITING:
            forking.insert(0, tests)
        elif any(map(forks_runs, tests)):
            forking.append(tests)
        elif any(test.get_closest_marker("browser") for test in tests):
            browsing.append(tests)
        else:
            others.append(tests)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    few = FORKING if workers > FORKING else 0
    for number, tests in enumerate(forking):
        shares[number % (few or workers)] += tests
    for tests in browsing:
        shares[few] += tests
    for number, tests in enumerate(others, len(browsing)):
        shares[few + number % (workers - few)] += tests
    size = len(items) // workers + 1
    return [item for share in shares for item in (*share, *islice(fast, max(0, size - len(share))))]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Decode data sets into a cache of the tests' own, one for all workers."""
    os.environ.setdefault("NORMBENCH_CACHE", str(shared_folder(tmp_path_factory) / "cache"))


@pytest.fixture(scope="session", autouse=True)
def compositions(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let Hydra compose the same options once for all workers."""
    from composing import share_compositions

    share_compositions(composed_folder(tmp_path_factory))


@pytest.fixture(scope="session", autouse=True)
def our_claims() -> Iterator[None]:
    """Read each claim that comes with normbench once, where tests read claims: they are more than a hundred YAMLs.

    No test changes one of them; a person's own are read each time.
    """
    claim = sys.modules.get("normbench.claims.claim")
    if claim is None:  # no file of tests has imported it
        yield
        return
    ours = claim.config_directory() / claim.FOLDER
    read = claim.read_claim
    read_once = cache(read)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim, "read_claim", lambda path: read_once(path) if path.parent == ours else read(path))
        yield


def composed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the tests' processes leave what Hydra has composed for each other."""
    return shared_folder(tmp_path_factory) / "composed"


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder of all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def make_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of all workers, into which the first of them that asks for it has put what others find there.

    make: is given the folder, which is empty then.
    """
    folder = shared_folder(tmp_path_factory) / name
    whole = folder.with_name(f"{name}.whole")
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a worker has left that failed
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


@pytest.fixture
def pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process draw figures for pages alone, throughout a test."""
    draw_for_pages_alone(monkeypatch)


def draw_for_pages_alone(patch: pytest.MonkeyPatch) -> None:
    """Let this process draw figures for pages alone: as PDF they take some of a report's time."""
    patch.setattr("normbench.show.figures.figure.Figure.render", lambda self, suffix, **how: b"")


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says a measured figure behind all tests, whichever process had the test."""
    return lambda line: record_property(TOLD, line)


TOLD = "told"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have told."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    called = [report for report in reports if getattr(report, "when", "") == "call"]
    if lines := [str(line) for report in called for name, line in report.user_properties if name == TOLD]:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(lines))
