"""Runs in processes of their own: killed, stopped, dying; and where clusters start them."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from killing import PATIENCE, Child, Server, poll
from run_records import read_json
from support import REPOSITORY
from tiny_sweeps import assert_as, finished, own_words, run_directories, sessions, statuses, sweep_words

from normbench.cli import main
from normbench.config.groups import options
from normbench.config.signatures import import_target
from normbench.errors import UsageError
from normbench.sweep import words
from normbench.sweep.launchers import Launcher
from normbench.sweep.words import read_settings

pytest_plugins = ["run_fixtures"]


Start = Callable[[list[str], Path], Child]


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    """Starts `normbench` in a process group of its own; nothing of it outlives the test."""
    started = list[Child]()

    def begin(words: list[str], cwd: Path) -> Child:
        cwd.mkdir(exist_ok=True)
        started.append(server.start(words, cwd, alone=True))
        return started[-1]

    yield begin
    for child in started:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def wait_for_runs(sweep: Child, folder: Path, number: int) -> None:
    """Return when so many runs have logged something."""
    runs = folder / "outputs" / "sweep"
    sweep.poll(lambda: sum(path.read_bytes().count(b"\n") > 1 for path in runs.glob("*/metrics.jsonl")) >= number)
    assert sweep.status is None


EXECUTOR = "launcher.executor=local"  # wherever the tests run
LONG = sweep_words("trainer.steps=4000", "trainer.checkpoint_every=4000", "sweep.jobs=2", launcher="processes")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_runs_end_with_the_sweep_behind_checkpoints(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    sweep = start(LONG, tmp_path)
    wait_for_runs(sweep, tmp_path, 2)
    processes = {path: read_json(path / "status.json")["pid"] for path in run_directories(tmp_path).values()}
    if number is signal.SIGINT:
        os.killpg(sweep.pid, number)  # as a terminal does
    else:
        sweep.kill(number)
    status, output = sweep.wait(), sweep.output
    assert "Traceback" not in output
    if number is not signal.SIGKILL:
        assert status == 128 + number, output
        assert output.splitlines()[-1].startswith(f"stopped by {number.name}; to go on, each run from its checkpoint: ")
    if number is signal.SIGTERM:  # Ctrl-C reaches the runs themselves, which may have ended before the sweep looks
        assert "stopping: waiting for 2 runs to write a checkpoint; Ctrl-C again kills what is left" in output
    for path, pid in processes.items():
        assert poll(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        stands = read_json(path / "status.json")
        assert (stands["status"], stands["message"][:3]) == ("interrupted", "SIG")
        assert (path / "checkpoint.pt").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("submitit") is None, reason="pip install 'normbench[submitit]'")
def test_a_job_of_this_machine_is_queued_again_and_ends_with_the_sweep(start: Start, tmp_path: Path) -> None:
    """Behind checkpoints: where its time is over, as submitit's signal says, and where the sweep is killed."""
    lengths = ["trainer.steps=40000", "trainer.checkpoint_every=40000"]
    sweep = start([*sweep_words(*lengths, "norm=rmsnorm", "seed=0", launcher="submitit"), EXECUTOR], tmp_path)
    wait_for_runs(sweep, tmp_path, 1)
    (path,) = run_directories(tmp_path).values()
    os.kill(read_json(path / "status.json")["pid"], signal.SIGUSR2)
    assert poll(lambda: len(sessions(path)) == 2)
    assert sessions(path)[1]["step"] > 0
    sweep.kill(signal.SIGKILL)
    sweep.wait()
    assert poll(lambda: not is_there(sweep.pid))
    assert read_json(path / "status.json")["status"] == "interrupted"
    assert (path / "checkpoint.pt").exists()


def is_there(group: int) -> bool:
    """Return whether a group has any process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_ctrl_c_stops_a_process_of_its_own_in_order(tmp_path: Path) -> None:
    """One that starts as a person's does, while its processes start; when runs are at work: above."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-m", "normbench", *LONG], cwd=tmp_path, env=environment, start_new_session=True,
        text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as sweep:  # fmt: skip
        try:
            assert next(line for line in sweep.stdout or () if "runs to do" in line)
            os.killpg(sweep.pid, signal.SIGINT)
            output, _ = sweep.communicate(timeout=4 * PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(sweep.pid, signal.SIGKILL)
    assert (sweep.returncode, "Traceback" in output) == (130, False), output


@pytest.mark.slow
def test_another_ctrl_c_kills_runs_that_hang(start: Start, tmp_path: Path) -> None:
    """Such as one that waits for ever between two steps: it writes no checkpoint."""
    words = [*own_words(tmp_path, "Hangs", launcher="processes"), "seed=0"]
    sweep = start(words, tmp_path)
    wait_for_runs(sweep, tmp_path, 1)
    (path,) = run_directories(tmp_path).values()
    pid = read_json(path / "status.json")["pid"]
    sweep.kill(signal.SIGINT)
    sweep.poll(lambda: "stopping: waiting for 1 run" in sweep.output)
    os.killpg(sweep.pid, signal.SIGINT)
    assert sweep.wait() == 130, sweep.output
    assert "Traceback" not in sweep.output
    assert poll(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_run_with_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes are forked from the tests' own server, which has begun already."""
    server.start(["list"], tmp_path).wait()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    words = own_words(tmp_path, "Killer", "Fine", launcher="processes")
    assert main(words) == 1
    output = capsys.readouterr().out
    assert statuses(tmp_path) == {"killer": "failed", "fine": "finished"}
    assert output.count("its process died twice without an error message (SIGKILL)") == 1
    assert "Traceback" not in output
    assert output.count("normbench train norm._target_=own_norms.Killer") == 1
    assert [len(sessions(path)) for path in run_directories(tmp_path).values()] == [1, 2]

    (tmp_path / "fixed").touch()
    assert main([*words, "sweep.retry_failed=true"]) == 0
    assert statuses(tmp_path) == {"killer": "finished", "fine": "finished"}


@pytest.mark.slow
def test_what_a_killed_sweep_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of one that is at work, nor of another program."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tell_and_wait = "start_server(); print(flush=True); sys.stdin.read()"
    script = f"import sys; from normbench.sweep.launchers import start_server; {tell_and_wait}"

    def begin() -> subprocess.Popen[bytes]:
        sweep = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert sweep.stdout is not None
        sweep.stdout.readline()
        return sweep

    (tmp_path / "pymp-other").mkdir()
    killed, at_work = begin(), begin()
    assert len([*tmp_path.glob("pymp-*/listener-*")]) == 2
    killed.kill()
    killed.communicate()
    third = begin()
    assert len([*tmp_path.iterdir()]) == 3
    for sweep in (at_work, third):
        sweep.communicate()
        assert sweep.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["pymp-other"]


def test_a_sweep_in_a_process_of_another_program_marks_no_folder_of_its() -> None:
    """When the sweep has ended the program still needs its folder, which a lock that is free would give away."""
    script = """
        import multiprocessing, multiprocessing.util, pathlib
        from normbench.scratch import MARK, scratch

        folder = pathlib.Path(multiprocessing.util.get_temp_dir())
        sweep = multiprocessing.get_context("fork").Process(target=scratch)
        sweep.start()
        sweep.join()
        assert sweep.exitcode == 0 and not (folder / MARK).exists()
        scratch()
        assert (folder / MARK).exists()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


# ---- launchers


def test_every_launcher_has_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "find_spec", lambda name: object())  # Ray may not be installed, and is not imported
    paths = [read_settings([f"launcher={name}"])[1]["_target_"] for name in options("launcher")]
    assert {import_target(path) for path in paths} == set(Launcher.__subclasses__())
    assert read_settings(["launcher=joblib"]) == read_settings([])  # its earlier name
    monkeypatch.setattr(words, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^launcher=ray is not installed: pip install 'normbench\[ray\]'$"):
        read_settings(["launcher=ray"])
    assert read_settings(["sweep.lr=auto"])[0].lr == "auto"


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
    settings = ["partition=gpu", "cpus_per_task=3", "timeout_min=30", "account=me", "array_parallelism=2", "mem_gb=16"]
    settings += ["gpus_per_node=1", "setup=[module load cuda/12.6]", "additional_parameters={requeue: true}"]
    assert main([*sweep_words(launcher="submitit"), *(f"launcher.{setting}" for setting in settings)]) == 1
    assert "the launcher has started nothing" in capsys.readouterr().err
    script = (tmp_path / "script").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", script, re.MULTILINE))
    expected = {"partition": "gpu", "cpus-per-task": "3", "time": "30", "job-name": "normbench", "account": "me"}
    expected |= {"mem": "16GB", "gpus-per-node": "1", "signal": "USR2@90", "array": "0-3%2"}
    assert expected.items() <= asked.items()
    lines = script.splitlines()
    assert "#SBATCH --requeue" in lines
    (run,) = (number for number, line in enumerate(lines) if "submitit.core._submit" in line)
    assert lines.index("module load cuda/12.6") < run


@pytest.mark.slow
@pytest.mark.parametrize("more", [["launcher=submitit", EXECUTOR], ["launcher=ray"]])
def test_runs_of_a_cluster_on_this_machine(server: Server, start: Start, tmp_path: Path, more: list[str]) -> None:
    """One of them dies, and takes no other with it."""
    if find_spec(more[0].partition("=")[2]) is None:
        pytest.skip(f"pip install 'normbench[{more[0].partition('=')[2]}]'")
    whole, there = tmp_path / "whole", tmp_path / "there"
    whole.mkdir()
    there.mkdir()
    finished(server, own_words(whole, "Fine"), whole)
    sweep = start([*own_words(there, "Killer", "Fine"), *more, "sweep.jobs=2"], there)
    assert sweep.wait() == 1, sweep.output
    output = sweep.output
    assert statuses(there) == {"killer": "failed", "fine": "finished"}
    assert output.count("its process died twice without an error message") == 1
    assert (there / "niceness").read_text() == str(os.nice(0))  # of a run: others of this machine do not come first
    for path in (path for name, path in run_directories(there).items() if name.startswith("killer")):
        (path / "config.yaml").unlink()
    assert_as(whole, there)
    if more == ["launcher=ray"]:
        assert not re.search(r"^.*(Ray cluster|raylet|core_worker|\.cc:).*$", output, re.MULTILINE)
        assert (there / "outputs/sweep/.sweep/ray.log").exists()
