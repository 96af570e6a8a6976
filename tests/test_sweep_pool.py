"""Sweeps in parallel processes: killed with their group, stopped, and with a worker that takes its pool with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from killing import PATIENCE, Server
from run_records import assert_same
from tiny_sweeps import OWN_NORMS, finished, own_words, records, run_directories, sessions, statuses, sweep_words

pytest_plugins = ["run_fixtures"]


@dataclass(frozen=True)
class Sweep:
    """A sweep in a process group of its own."""

    process: subprocess.Popen[bytes]
    printed: Path

    @property
    def output(self) -> str:
        return self.printed.read_text()

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it has printed."""
        return self.process.wait(4 * PATIENCE), self.output

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not true():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.01)


Start = Callable[[Sequence[str], Path], Sweep]


@pytest.fixture
def start(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts `normbench`; nothing of it outlives the test."""
    folder, started = tmp_path_factory.mktemp("printed"), []

    def begin(words: Sequence[str], cwd: Path) -> Sweep:
        printed = folder / str(len(started))
        with open(printed, "w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "normbench", *words],
                cwd=cwd,
                env=server.environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.append(Sweep(process, printed))
        return started[-1]

    yield begin
    for sweep in started:
        with suppress(ProcessLookupError):
            sweep.signal_group(signal.SIGKILL)
        sweep.process.wait()


def logged_runs(folder: Path) -> int:
    """How many runs have logged something."""
    return len(list((folder / "outputs" / "sweep").glob("*/metrics.jsonl")))


EIGHT = sweep_words("placement=pre,post", launcher="joblib")


@pytest.mark.slow
def test_a_sweep_killed_twice_with_its_group_ends_as_undisturbed(
    server: Server, start: Start, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    finished(server, sweep_words("placement=pre,post"), whole)
    for runs in (2, 5):
        sweep = start(EIGHT, killed)
        sweep.wait_until(lambda runs=runs: logged_runs(killed) >= runs)  # type: ignore[misc]
        sweep.signal_group(signal.SIGKILL)
        assert sweep.process.wait() == -signal.SIGKILL
        tell(f"SIGKILL of the group with {logged_runs(killed)} of 8 runs begun")
    status, output = start(EIGHT, killed).ended()
    assert status == 0, output
    assert output.splitlines()[-1] == "8/8 runs in outputs/sweep"
    found, undisturbed = records(killed), records(whole)
    assert found.keys() == undisturbed.keys()
    for name, record in found.items():
        assert_same(record, undisturbed[name])

    begun = time.monotonic()
    assert start(EIGHT, killed).ended() == (0, "8/8 runs in outputs/sweep\n")
    tell(f"a finished sweep of 8 runs, started once more: {time.monotonic() - begun:.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_runs_behind_checkpoints(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    words = [*EIGHT, "trainer.steps=4000", "trainer.checkpoint_every=4000"]
    sweep = start(words, tmp_path)
    sweep.wait_until(lambda: logged_runs(tmp_path) >= 2)
    if number is signal.SIGINT:
        sweep.signal_group(number)  # as a terminal does
    else:
        sweep.process.send_signal(number)
    status, output = sweep.ended()
    assert status == 128 + number, output
    assert output.splitlines()[-1].startswith(f"stopped by {number.name}: 0 of 8 runs are over")
    assert "Traceback" not in output
    for path in run_directories(tmp_path).values():
        stands = json.loads((path / "status.json").read_text())
        assert (stands["status"], stands["message"]) == ("interrupted", number.name)
        assert (path / "checkpoint.pt").exists()


@pytest.mark.slow
def test_workers_end_when_the_sweep_itself_is_killed(start: Start, tmp_path: Path) -> None:
    sweep = start([*EIGHT, "trainer.steps=4000"], tmp_path)
    sweep.wait_until(lambda: logged_runs(tmp_path) >= 2)
    workers = {worker_of(path) for path in run_directories(tmp_path).values()}
    sweep.process.kill()
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    states = {json.loads((path / "status.json").read_text())["status"] for path in run_directories(tmp_path).values()}
    assert states == {"interrupted"}


def worker_of(path: Path) -> int:
    pid: int = json.loads((path / "status.json").read_text())["pid"]
    return pid


@pytest.mark.slow
def test_a_worker_that_dies_takes_no_other_run_with_it(server: Server, start: Start, tmp_path: Path) -> None:
    (tmp_path / "own_norms.py").write_text(OWN_NORMS)
    status, output = start(own_words("Killer", "Fine", launcher="joblib"), tmp_path).ended()
    assert status == 1, output
    assert statuses(tmp_path) == {"killer": "failed", "fine": "finished"}
    assert output.count("its process ended without a word, three times (SIGKILL)") == 1
    assert "Traceback" not in output
    assert output.count("normbench train norm._target_=own_norms.Killer") == 1
    assert all(len(sessions(path)) <= 3 for path in run_directories(tmp_path).values())

    (tmp_path / "mended").touch()
    finished(server, [*own_words("Killer", "Fine"), "sweep.retry_failed=true"], tmp_path)
    assert statuses(tmp_path) == {"killer": "finished", "fine": "finished"}
