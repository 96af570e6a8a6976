"""Where runs are started: shares of a machine, Slurm's script, jobs of submitit and tasks of Ray for real."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from killing import Server
from run_records import assert_same, read_record
from test_sweep_pool import Start
from test_sweep_pool import start as start  # a fixture
from tiny_sweeps import CNN, LENGTHS, OWN_NORMS, finished, own_words, records, run_directories, statuses

from normbench.catalog import options
from normbench.errors import UsageError
from normbench.sweeping import execution, launchers
from normbench.sweeping.conduct import make_launching, understand
from normbench.sweeping.execution import Execution
from normbench.sweeping.folder import SweepFolder
from normbench.sweeping.launchers import Here, Launching, Processes, Ray, Share, Submitit
from normbench.sweeping.plan import PlannedRun

pytest_plugins = ["run_fixtures"]


def test_runs_side_by_side_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "cores", lambda: 8)
    joblib = Processes()
    assert joblib.share(None, None, 0) == Share(8, 1)
    assert joblib.share(2, None, 0) == Share(2, 1)  # threads are in a run's name, and jobs must not change it
    assert joblib.share(None, 4, 0) == Share(2, 4)
    assert joblib.share(None, 16, 0) == Share(1, 16)
    assert joblib.share(3, 2, 0) == Share(3, 2)
    assert joblib.share(None, None, 2) == Share(2, 1)  # a run for each GPU
    assert joblib.share(16, None, 0) == Share(16, 1)
    assert Here().share(None, None, 0) == Share(1, 8)
    assert Ray(None, 2, 0).share(None, None, 0) == Share(4, 2)
    assert Submitit("slurm", 60, 4).share(None, None, 0) == Share(64, 4)


def test_one_gpu_has_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default; an own cluster gives each of its runs what it is to see."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda number=number: number)
        sweep = understand(["seed=0,1", *CNN, *LENGTHS, "device=auto"])
        assert (sweep.devices, sweep.share.jobs) == (("cuda:0", "cuda:1")[:number], number)
    assert Ray(None, 1, 1).gives_devices
    assert not Ray(None, 1, 0).gives_devices


DIE = """
import os, sys
from pathlib import Path
from normbench.sweeping.claims import Claims
assert Claims(Path(sys.argv[1]), sys.argv[2]).take(sys.argv[3])
print("taken", flush=True)
sys.stdin.read()
os._exit(9)
"""


def claimed_by_a_process(folder: SweepFolder, run: str) -> subprocess.Popen[str]:
    """A process that holds a run until its standard input ends, and then dies without a word."""
    words = [sys.executable, "-c", DIE, str(folder.claims.folder), folder.claims.sweep, run]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


def die(folder: SweepFolder, run: str) -> None:
    claimed_by_a_process(folder, run).communicate("")


def test_what_is_started_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = understand(["norm=rmsnorm,batchnorm", "seed=0,1", *CNN, *LENGTHS]).plan.runs
    folder = SweepFolder(runs[0].path.parent, "mine")

    def started(launching: Launching, jobs: int) -> list[int]:
        own = Execution(launching, Share(jobs, 1), (), "mine")
        return [runs.index(run) for run in own.next_batch(folder, runs)]

    assert started(Processes(), 2) == [0, 1, 2, 3]
    assert started(Processes(), 1) == [0]  # a pool of one worker would be this process
    assert started(Here(), 1) == [0, 1, 2, 3]
    for run in runs[:2]:
        die(folder, run.name)
    assert started(Processes(), 2) == started(Ray(None, 1, 0), 2) == [2, 3]  # whose process has died comes last, ...
    with held(folder, runs[2:]):
        assert started(Processes(), 2) == started(Ray(None, 1, 0), 2) == [0, 1]
        for run in runs[:2]:
            die(folder, run.name)
        assert started(Processes(), 2) == [0]  # ... and then alone, where one takes others with it
        assert folder.claims.take(runs[0].name) is not None
        assert started(Processes(), 2) == [1]
    assert folder.failures.of(runs[1].name) is None
    assert started(Ray(None, 1, 0), 2) == [2, 3]
    assert folder.failures.of(runs[1].name) is not None


@contextmanager
def held(folder: SweepFolder, runs: Sequence[PlannedRun]) -> Iterator[None]:
    """While this lasts, processes hold these runs; then they die."""
    processes = [claimed_by_a_process(folder, run.name) for run in runs]
    try:
        yield
    finally:
        for process in processes:
            process.communicate("")


def test_a_launcher_may_know_of_a_death_before_the_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray's, which hears of it from a connection."""
    monkeypatch.chdir(tmp_path)
    [run] = understand(["norm=rmsnorm", "seed=0", *CNN, *LENGTHS]).plan.runs
    folder, started, ends = SweepFolder(run.path.parent, "mine"), [], []

    def launch(*anything: object) -> list[object]:
        process = claimed_by_a_process(folder, run.name)
        started.append(process)
        ends.append(threading.Timer(0.2, process.communicate, [""]))
        ends[-1].start()
        raise RuntimeError("a task was lost: SIGKILL")

    monkeypatch.setattr(execution, "launch", launch)
    monkeypatch.setattr(execution, "LOOK_SECONDS", 0.05)
    Execution(Ray(None, 1, 0), Share(1, 1), (), "mine").finish([run])
    for end in ends:
        end.join()
    assert len(started) == 2
    failure = folder.failures.of(run.name)
    assert failure is not None
    assert failure.cause.startswith("its process ended without a word, twice (SIGKILL)")


def test_a_launcher_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"launcher=ray is not installed: pip install 'normbench\[ray\]'"):
        make_launching({"_target_": "normbench.sweeping.launchers.Ray", "address": None, "cpus_per_run": 1,
                        "gpus_per_run": 0})  # fmt: skip
    with pytest.raises(UsageError, match="makes no Launching"):
        make_launching({"_target_": "builtins.dict"})
    with pytest.raises(UsageError, match="does not take these settings"):
        make_launching({"_target_": "normbench.sweeping.launchers.Here", "colour": "red"})


def test_every_launcher_has_a_class() -> None:
    classes = {launcher.__name__ for launcher in Launching.__subclasses__()}
    assert classes == {"Here", "Processes", "Submitit", "Ray"}
    assert set(options("launcher")) == {"local", "joblib", "submitit", "ray"}


# ---- submitit

SBATCH = """#!/bin/sh
for last; do :; done
cp "$last" "$(dirname "$0")/script"
echo "no cluster here" >&2
exit 1
"""


def test_the_script_for_slurm(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(SBATCH)
        (programs / name).chmod(stat.S_IRWXU)
    script = slurm_script(server, tmp_path, programs)
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", script, re.MULTILINE))
    expected = {"partition": "gpu", "cpus-per-task": "3", "time": "30", "job-name": "normbench", "account": "me"}
    assert expected.items() <= asked.items()
    assert asked["array"] == "0-3%2"
    assert asked["output"].startswith(str(tmp_path / "outputs" / "sweep" / ".sweep" / "submitit"))
    assert "submitit.core._submit" in script


def slurm_script(server: Server, folder: Path, programs: Path) -> str:
    """What sbatch is given; the sweep says that it has started nothing."""
    words = ["sweep", "norm=rmsnorm,batchnorm", "seed=0,1", *CNN, *(w for w in LENGTHS if "threads" not in w)]
    words += ["launcher=submitit", "launcher.partition=gpu", "launcher.cpus_per_task=3", "launcher.timeout_min=30"]
    words += ["launcher.account=me", "launcher.array_parallelism=2"]
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "normbench", *words],
        cwd=folder, env={**server.environment, **path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "the launcher has started nothing" in done.stderr
    assert "Traceback" not in done.stderr
    return (programs / "script").read_text()


@pytest.mark.slow
def test_jobs_of_submitit_on_this_machine(server: Server, start: Start, tmp_path: Path) -> None:
    whole, there = tmp_path / "whole", tmp_path / "there"
    whole.mkdir()
    there.mkdir()
    words = ["norm=rmsnorm", "seed=0,1", *CNN, *LENGTHS, "sweep.report=false"]
    finished(server, ["sweep", *words, "launcher=local"], whole)
    status, output = start(["sweep", *words, "launcher=submitit", "launcher.executor=local"], there).ended()
    assert status == 0, output
    assert output.splitlines()[-1] == "2/2 runs in outputs/sweep"
    found, expected = records(there), records(whole)
    assert found.keys() == expected.keys()
    for name, record in found.items():
        assert_same(record, expected[name])


# ---- Ray

ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'normbench[ray]'")


@ray
@pytest.mark.slow
def test_tasks_of_a_ray_cluster_of_one_node(server: Server, start: Start, tmp_path: Path) -> None:
    """One of them dies, and takes no other with it."""
    whole, there = tmp_path / "whole", tmp_path / "there"
    for folder in (whole, there):
        folder.mkdir()
        (folder / "own_norms.py").write_text(OWN_NORMS)
    finished(server, own_words("Fine"), whole)
    status, output = start([*own_words("Killer", "Fine", launcher="ray"), "sweep.jobs=2"], there).ended()
    assert status == 1, output
    assert statuses(there) == {"killer": "failed", "fine": "finished"}
    assert output.count("its process ended without a word, twice") == 1
    for name, record in records(whole).items():
        assert_same(read_record(run_directories(there)[name]), record)
