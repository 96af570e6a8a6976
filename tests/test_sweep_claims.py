"""Claims on runs: one process at a time, dead owners are succeeded by one heir, and the failures beside them."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from normbench.sweeping import claims
from normbench.sweeping.claims import Claim, Claims, Owner, started, this_machine
from normbench.sweeping.failures import Failures
from normbench.sweeping.gpus import devices_to_hand_out, handed_out


def put(folder: Path, owner: Owner, age: float = 0.0, number: int = 1) -> None:
    """A claim on the run `a` as another process has left it."""
    (folder / "a").mkdir(parents=True, exist_ok=True)
    path = folder / "a" / f"{number}.json"
    path.write_text(json.dumps(asdict(owner)))
    os.utime(path, (time.time() - age, time.time() - age))


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


HERE = Owner(this_machine(), "here", os.getpid(), started(os.getpid()), "other", "t1")
GONE = replace(HERE, pid=2**22 + 1, started="1")
FAR = replace(HERE, machine="far")


def test_a_claim_excludes_others_until_it_is_released(tmp_path: Path) -> None:
    mine, others = Claims(tmp_path, "s1"), Claims(tmp_path, "s2")
    claim = mine.take("a")
    assert claim is not None
    assert others.take("a") is None
    assert mine.take("a") is None
    assert others.take("b") is not None
    assert (holder := others.at_work("a")) is not None
    assert (holder.sweep, holder.pid) == ("s1", os.getpid())
    claim.release()
    assert others.at_work("a") is None
    assert others.take("a") is not None
    assert claim.lost


@pytest.mark.parametrize(
    ("owner", "age", "free"),
    [
        (HERE, 0, False),
        (HERE, 3600, False),  # suspended, say: the process is there and holds the run
        (GONE, 0, True),
        (replace(HERE, started="1"), 0, True),  # another process has its number now
        (replace(HERE, released=True), 0, True),
        (FAR, 0, False),
        (FAR, 30, False),
        (FAR, 90, True),
    ],
)
def test_who_is_dead(tmp_path: Path, owner: Owner, age: float, free: bool) -> None:
    put(tmp_path, owner, age)
    mine = Claims(tmp_path, "mine")
    assert (mine.at_work("a") is None) == free
    assert (mine.take("a") is not None) == free


def test_deaths_are_the_claims_that_a_sweep_never_let_go_of(tmp_path: Path) -> None:
    ends = [GONE, replace(GONE, released=True), replace(GONE, sweep="mine"), FAR, replace(FAR, sweep="mine")]
    for number, owner in enumerate(ends, start=1):
        put(tmp_path, owner, age=90, number=number)
    assert Claims(tmp_path, "mine").deaths("a") == 2
    assert Claims(tmp_path, "other").deaths("a") == 2
    assert Claims(tmp_path, "new").deaths("a") == 0
    assert Claims(tmp_path, "mine").deaths("b") == 0


def test_a_process_that_has_ended_is_not_there() -> None:
    assert started(dead_process()) == ""
    process = subprocess.Popen(["sleep", "60"])
    assert started(process.pid)
    process.kill()
    time.sleep(0.05)  # not waited for: a zombie
    assert started(process.pid) == ""
    process.wait()


def test_a_damaged_claim_counts_until_it_is_old(tmp_path: Path) -> None:
    put(tmp_path, FAR)
    (tmp_path / "a" / "1.json").write_text("{")
    assert Claims(tmp_path, "mine").take("a") is None
    os.utime(tmp_path / "a" / "1.json", (0, 0))
    assert Claims(tmp_path, "mine").take("a") is not None


@pytest.mark.parametrize("left", [None, GONE])
def test_one_of_many_threads_wins(tmp_path: Path, left: Owner | None) -> None:
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        if left is not None:
            put(folder, left)
        barrier = threading.Barrier(8)

        def contend(number: int, folder: Path = folder, barrier: threading.Barrier = barrier) -> Claim | None:
            barrier.wait()
            return Claims(folder, str(number)).take("a")

        with ThreadPoolExecutor(8) as pool:
            won = [claim for claim in pool.map(contend, range(8)) if claim is not None]
        assert len(won) == 1
        assert not won[0].lost
        assert not list(folder.glob("a/.*"))


def contend_often(folder: Path, barrier: Barrier, number: int) -> None:
    """Take what is free and let go of it; nobody else may be inside meanwhile."""
    own = Claims(folder, str(number))
    barrier.wait()
    for _ in range(60):
        if claim := own.take("a"):
            descriptor = os.open(folder / "inside", os.O_CREAT | os.O_EXCL)
            os.close(descriptor)
            os.unlink(folder / "inside")
            claim.release()


def test_no_two_processes_are_inside_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    processes = [context.Process(target=contend_often, args=(tmp_path, barrier, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4


def test_an_owner_gives_signs_of_life_and_hears_what_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.02)
    claim = Claims(tmp_path, "mine").take("a")
    assert claim is not None
    os.utime(claim.path, (0, 0))
    ended, stopped = threading.Event(), threading.Event()
    with claim.kept(ended.is_set, stopped.set):
        time.sleep(0.2)
        assert time.time() - claim.path.stat().st_mtime < 10
        assert not stopped.is_set()
        ended.set()
        assert stopped.wait(10)
    assert Claims(tmp_path, "other").at_work("a") is None


def test_an_owner_that_was_succeeded_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.01)
    claim = Claims(tmp_path, "mine").take("a")
    assert claim is not None
    stopped = threading.Event()
    with claim.kept(lambda: False, stopped.set):
        (tmp_path / "a" / "2.json").write_text(json.dumps(asdict(FAR)))
        assert stopped.wait(10)


def test_failures_are_noted_in_one_line(tmp_path: Path) -> None:
    failures = Failures(tmp_path / "failures")
    assert failures.of("a") is None
    failures.note("a", "it\n went  wrong", "normbench train", "Traceback")
    noted = failures.of("a")
    assert noted is not None
    assert (noted.cause, noted.command, noted.details) == ("it went wrong", "normbench train", "Traceback")
    failures.path("b").write_text("{")
    assert failures.of("b") is None
    failures.forget("a")
    assert failures.of("a") is None


# ---- GPUs


def test_devices_are_handed_out_one_a_run() -> None:
    assert devices_to_hand_out("cuda", 2) == ("cuda:0", "cuda:1")
    assert devices_to_hand_out("cuda", 3, jobs=8) == ("cuda:0", "cuda:1", "cuda:2")
    assert devices_to_hand_out("cuda", 1) == devices_to_hand_out("cuda", 1, jobs=1) == ("cuda:0",)
    assert devices_to_hand_out("cuda:1", 4) == ("cuda:1",)
    assert devices_to_hand_out("mps", 0) == ("mps",)
    assert devices_to_hand_out("cuda", 1, jobs=4) == ()  # they share it, as was asked for
    assert devices_to_hand_out("cpu", 4) == ()


def test_a_device_is_held_by_one_run_at_a_time(tmp_path: Path) -> None:
    devices = ("cuda:0", "cuda:1")
    with handed_out((), tmp_path) as none:
        assert none is None
    with handed_out(devices, tmp_path) as first, handed_out(devices, tmp_path) as second:
        assert {first, second} == set(devices)
        got: list[str | None] = []

        def wait() -> None:
            with handed_out(devices, tmp_path) as device:
                got.append(device)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        assert got == []
    thread.join(30)
    assert len(got) == 1
