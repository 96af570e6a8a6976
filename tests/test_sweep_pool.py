"""Runs in processes of their own: killed, stopped, dying; and where clusters start them."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from killing import PATIENCE, Server
from tiny_sweeps import (
    OWN_NORMS,
    assert_as,
    finished,
    own_words,
    records,
    run_directories,
    sessions,
    statuses,
    sweep_words,
)

from normbench.build import imported
from normbench.cli import main
from normbench.config.groups import options
from normbench.errors import UsageError
from normbench.sweep import words
from normbench.sweep.launchers import Launcher
from normbench.sweep.words import read_settings

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

    def wait_for_runs(self, folder: Path, number: int) -> None:
        """Return when so many runs have logged something."""
        deadline = time.monotonic() + 2 * PATIENCE
        while len(list((folder / "outputs" / "sweep").glob("*/metrics.jsonl"))) < number:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.01)


Start = Callable[[Sequence[str], Path], Sweep]


@pytest.fixture
def start(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts `normbench`; nothing of it outlives the test."""
    folder, started = tmp_path_factory.mktemp("printed"), list[Sweep]()

    def begin(words: Sequence[str], cwd: Path) -> Sweep:
        cwd.mkdir(exist_ok=True)
        with open(folder / str(len(started)), "w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "normbench", *words], cwd=cwd, env=server.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        started.append(Sweep(process, Path(output.name)))
        return started[-1]

    yield begin
    for sweep in started:
        with suppress(ProcessLookupError):
            os.killpg(sweep.process.pid, signal.SIGKILL)
        sweep.process.wait()


FOUR = sweep_words(launcher="joblib")
LONG = [*FOUR, "trainer.steps=4000", "trainer.checkpoint_every=4000"]


@pytest.mark.slow
def test_a_sweep_killed_with_its_group_ends_as_undisturbed(server: Server, start: Start, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    finished(server, sweep_words(), whole)
    sweep = start(FOUR, killed)
    sweep.wait_for_runs(killed, 3)
    os.killpg(sweep.process.pid, signal.SIGKILL)
    status, output = start(FOUR, killed).ended()
    assert status == 0, output
    assert output.splitlines()[-1] == "4/4 runs in outputs/sweep"
    assert_as(records(whole), killed)
    assert start(FOUR, killed).ended() == (0, "4/4 runs in outputs/sweep\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_runs_end_with_the_sweep_behind_checkpoints(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    sweep = start(LONG, tmp_path)
    sweep.wait_for_runs(tmp_path, 2)
    processes = {
        path: json.loads((path / "status.json").read_text())["pid"] for path in run_directories(tmp_path).values()
    }
    if number is signal.SIGINT:
        os.killpg(sweep.process.pid, number)  # as a terminal does
    else:
        sweep.process.send_signal(number)
    status, output = sweep.ended()
    assert "Traceback" not in output
    if number is not signal.SIGKILL:
        assert status == 128 + number, output
        assert output.splitlines()[-1].startswith(f"stopped by {number.name}: the same command goes on")
    deadline = time.monotonic() + PATIENCE
    for path, pid in processes.items():
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        stands = json.loads((path / "status.json").read_text())
        assert (stands["status"], stands["message"][:3]) == ("interrupted", "SIG")
        assert (path / "checkpoint.pt").exists()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(start: Start, tmp_path: Path) -> None:
    sweep = start([*LONG, "data.eval_batch_size=4", "trainer.eval_batches=null", "trainer.eval_every=1"], tmp_path)
    sweep.wait_for_runs(tmp_path, 2)
    for _ in range(2):
        os.killpg(sweep.process.pid, signal.SIGINT)
        time.sleep(0.2)
    assert sweep.ended()[0] == 130
    assert "Traceback" not in sweep.output


def test_a_process_that_dies_takes_no_other_run_with_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes are forked from the tests' own server, which has begun already."""
    server.start(["list"], tmp_path).wait()
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "own_norms.py").write_text(OWN_NORMS)
    monkeypatch.chdir(tmp_path)
    assert main(own_words("Killer", "Fine", launcher="joblib")) == 1
    output = capsys.readouterr().out
    assert statuses(tmp_path) == {"killer": "failed", "fine": "finished"}
    assert output.count("its process ended without a word, twice (SIGKILL)") == 1
    assert "Traceback" not in output
    assert output.count("normbench train norm._target_=own_norms.Killer") == 1
    assert [len(sessions(path)) for path in run_directories(tmp_path).values()] == [1, 2]

    (tmp_path / "mended").touch()
    assert main([*own_words("Killer", "Fine", launcher="joblib"), "sweep.retry_failed=true"]) == 0
    assert statuses(tmp_path) == {"killer": "finished", "fine": "finished"}


# ---- launchers


def test_every_launcher_has_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [read_settings([f"launcher={name}"])[1]["_target_"] for name in options("launcher")]
    assert {imported(path) for path in paths} == set(Launcher.__subclasses__())
    monkeypatch.setattr(words, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"launcher=ray is not installed: pip install 'normbench\[ray\]'"):
        read_settings(["launcher=ray"])


SBATCH = """#!/bin/sh
for last; do :; done
cp "$last" "$(dirname "$0")/script"
echo "no cluster here" >&2
exit 1
"""


def test_the_script_for_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text(SBATCH)
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    settings = ["partition=gpu", "cpus_per_task=3", "timeout_min=30", "account=me", "array_parallelism=2"]
    assert main([*sweep_words(launcher="submitit"), *(f"launcher.{setting}" for setting in settings)]) == 1
    assert "the launcher has started nothing" in capsys.readouterr().err
    script = (tmp_path / "script").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", script, re.MULTILINE))
    expected = {"partition": "gpu", "cpus-per-task": "3", "time": "30", "job-name": "normbench", "account": "me"}
    assert expected.items() <= asked.items()
    assert asked["array"] == "0-3%2"
    assert asked["output"].startswith(str(tmp_path / "outputs" / "sweep" / ".sweep" / "submitit"))
    assert "submitit.core._submit" in script


@pytest.mark.slow
@pytest.mark.parametrize("more", [["launcher=submitit", "launcher.executor=local"], ["launcher=ray"]])
def test_runs_of_a_cluster_on_this_machine(server: Server, start: Start, tmp_path: Path, more: list[str]) -> None:
    """One of them dies, and takes no other with it."""
    if find_spec(more[0].partition("=")[2]) is None:
        pytest.skip(f"pip install 'normbench[{more[0].partition('=')[2]}]'")
    whole, there = tmp_path / "whole", tmp_path / "there"
    for folder in (whole, there):
        folder.mkdir()
        (folder / "own_norms.py").write_text(OWN_NORMS)
    finished(server, own_words("Fine"), whole)
    sweep = start([*own_words("Killer", "Fine"), *more, "sweep.jobs=2"], there)
    status, output = sweep.ended()
    assert status == 1, output
    assert statuses(there) == {"killer": "failed", "fine": "finished"}
    assert output.count("its process ended without a word, twice") == 1
    for path in (path for name, path in run_directories(there).items() if name.startswith("killer")):
        (path / "config.yaml").unlink()
    assert_as(records(whole), there)
