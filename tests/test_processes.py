"""Processes that a command starts for itself end with it, even where it is killed."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from killing import poll
from support import REPOSITORY

from normbench import processes
from normbench.processes import count_cores, run_beside, share

# Each starts a process, which would never end by itself, and does not return. Torch is imported where it is needed.
BESIDE = "from normbench.processes import run_beside"
WAITING = {
    "beside, at work": f"{BESIDE}; kept = run_beside(lambda: time.sleep(600)); time.sleep(600)",
    "beside, writing more than a pipe holds": f"{BESIDE}; "
    "kept = run_beside(lambda: b'x' * 10_000_000); time.sleep(600)",
    "trial of a precision": "import torch; from normbench.training import precision; "
    "precision.TRIAL = 'import time; time.sleep(600)'; precision.make_precision('bf16', torch.device('cpu'))",
    "server of runs, loading": "from normbench.sweep.launchers import start_server; start_server(); time.sleep(600)",
    "worker of torchrun, in a session of its own": "subprocess.Popen([sys.executable, WORKER, 'train', 'model=nano', "
    "'data=pydocs', 'trainer.steps=1000000', 'device=cpu', 'threads=1'], start_new_session=True); time.sleep(600)",
    "norm in bfloat16": "from normbench.contract.norms import NormPart, bfloat16_is_close; "
    "bfloat16_is_close(NormPart({'norm': {'_target_': 'bad_parts.Hanging'}}))",
}
IMPORTS = f"""
import os
import subprocess
import sys
import time
os.sched_getaffinity = lambda process: {{0, 1}}  # on one core nothing is done beside
WORKER = {str(REPOSITORY / "scripts/lib/gpu_check/worker.py")!r}
"""
MARK = "NORMBENCH_TEST_MARK"
PATHS = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests/example_package")]


def marked(mark: str) -> list[str]:
    """Return the command lines of all processes with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if f"{MARK}={mark}".encode() in environment.split(b"\0") and state != "Z":
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has ended meanwhile
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process of its parent's end")
@pytest.mark.parametrize("case", WAITING)
def test_a_process_ends_with_the_one_that_is_killed(case: str, tmp_path: Path) -> None:
    environment = {**os.environ, MARK: str(tmp_path), "PYTHONPATH": os.pathsep.join(PATHS)}
    command = [sys.executable, "-c", IMPORTS + WAITING[case]]
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as parent:
        assert poll(lambda: len(marked(str(tmp_path))) >= 2)
        time.sleep(1)  # until it is where it stays
        assert parent.poll() is None and len(marked(str(tmp_path))) >= 2
        parent.kill()
    assert poll(lambda: not marked(str(tmp_path)))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is done beside")
def test_what_is_killed_beside_the_rest_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where half of its result has come: it is more than a pipe holds."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    done = tmp_path / "done"

    def work() -> bytes:
        done.touch()
        return b"x" * 10_000_000

    before = multiprocessing.active_children()
    result = run_beside(work)
    (child,) = [process for process in multiprocessing.active_children() if process not in before]
    assert poll(lambda: done.exists() and "State:\tS" in Path(f"/proc/{child.pid}/status").read_text())
    child.kill()
    child.join()
    assert result() == b"x" * 10_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is done beside")
def test_what_takes_too_long_beside_the_rest_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(processes, "PATIENCE", 0.1)
    here = os.getpid()

    def work() -> str:
        if os.getpid() != here:
            time.sleep(600)
        return "done"

    assert run_beside(work)() == "done"


@pytest.mark.parametrize("cores", [{0}, {0, 1}])
def test_shared_jobs_are_each_done_once_and_their_results_stand_in_their_order(
    cores: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    monkeypatch.setattr(threading, "active_count", lambda: 1)

    def job(number: int) -> tuple[int, int]:
        (tmp_path / f"{number}-{os.getpid()}").touch()
        if number in (0, 9) and len(cores) > 1:  # whoever has one of them waits for the other process to have the other
            assert poll(lambda: [*tmp_path.glob("0-*")] and [*tmp_path.glob("9-*")])
        return number, os.getpid()

    found = share([partial(job, number) for number in range(10)])
    assert [number for number, _ in found] == [*range(10)]
    assert len({process for _, process in found}) == len(cores)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{one}-{process}" for one, process in found)
    assert share([]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is done beside")
def test_shared_jobs_of_a_process_that_dies_are_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    here = os.getpid()

    def job(number: int) -> int:
        if os.getpid() != here:
            os._exit(1)
        return number

    assert share([partial(job, number) for number in range(4)]) == [0, 1, 2, 3]


def test_cores_are_those_that_a_process_is_bound_to_or_its_containers_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4, 6})
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr("normbench.processes.CPU_QUOTA", quota)
    monkeypatch.setattr("normbench.processes.OLD_CPU_QUOTA", tmp_path / "cpu")
    assert count_cores() == 4
    for text, expected in {"max 100000\n": 4, "150000 100000\n": 2, "50000 100000\n": 1, "900000 100000\n": 4}.items():
        quota.write_text(text)
        assert count_cores() == expected


def test_cores_are_the_share_of_a_container_of_cgroup_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4, 6})
    monkeypatch.setattr("normbench.processes.CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("normbench.processes.OLD_CPU_QUOTA", tmp_path)
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    for text, expected in {"-1\n": 4, "0\n": 4, "150000\n": 2, "50000\n": 1, "900000\n": 4}.items():
        (tmp_path / "cpu.cfs_quota_us").write_text(text)
        assert count_cores() == expected
