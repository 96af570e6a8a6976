"""Where the runs of a sweep are started: processes of this machine, Slurm by submitit, or a Ray cluster.

Each class takes the settings of its YAML in `conf/launcher/`, says how many runs it makes at a time with how many
threads each, and starts them.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import logging
import multiprocessing
import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any, Literal, Protocol

from normbench.errors import RunFailure, UsageError
from normbench.processes import count_cores
from normbench.record.files import inside, make_folder
from normbench.scratch import scratch
from normbench.settings import Setting
from normbench.stopping import allow_stops
from normbench.sweep import local_job

# Makes one run where it is called, and returns the exit status of a process; can be pickled.
Task = Callable[[], int]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# What the server imports: first what ends it with the command, then all that a run imports sooner or later.
PRELOADED = [f"normbench.{part}" for part in ("sweep.server", "data", "models", "norms", "placements", "sweep.work")]


def start_server() -> None:
    """Start the server from which runs are forked, unless it is there; it loads torch while this process goes on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # else the server starts it, and it lets the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a signal to all must not end the server
    try:
        scratch()
        forkserver.ensure_running()
    except OSError as error:  # as where the path of its socket is too long
        what = f"the process that starts runs cannot make its files in {tempfile.gettempdir()} ({error})"
        raise UsageError(f"{what}: let TMPDIR name a folder with a short path, such as /tmp") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StartedJob(Protocol):
    """A task that was started, as a Future is."""

    def done(self) -> bool:
        """Tell whether it has ended."""

    def result(self) -> int:
        """Return the exit status of the task; raise where its process has died."""

    def cancel(self) -> object:
        """Let it write a checkpoint and end."""


class Launcher:
    """Starts tasks.

    Attributes:
        elsewhere: whether it starts them on machines or GPUs of which this process knows nothing; it is then given all
            tasks at once.
        where: what a person may not expect of the place, as the end of a sentence.
        jobs: how many runs there are at a time by default.
        threads: how many each has by default.
    """

    elsewhere = False
    where = ""
    jobs: int | None = None
    threads = 1

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[StartedJob]:
        """Start tasks, and return a job for each.

        Args:
            tasks: what each of the jobs is to call.
            jobs: how many run at a time.
            notes: a folder for what it writes.
        """
        raise NotImplementedError

    def allot(self, jobs: int, threads: int | None, gpus: int) -> tuple[int, int]:
        """Return how many runs there are at a time, and how many threads each has.

        By default there is one run for each GPU, or as many as the cores have room for.

        A run has one thread by default, however many there are at a time: the small models of these comparisons gain
        less from a second thread than a second run does (six runs of nano on two cores take 0.71 of the time that they
        take one after another with two threads), and threads change a run's numbers, which jobs must not.

        Args:
            jobs: how many runs were asked for; 0 where the person has not said.
            threads: how many threads were asked for; None where the person has not said.
            gpus: how many this machine has for the runs; 0 where they are on its CPU, or on another machine.
        """
        threads = threads or self.threads
        jobs = jobs or self.jobs or gpus or max(1, count_cores() // threads)
        return jobs, threads


class RunProcess(multiprocessing.get_context("forkserver").Process):  # type: ignore[misc]  # a class, made by a call
    """Makes a run; when the sweep ends, the run writes a checkpoint and ends too."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def run(self) -> None:
        """Make the run, in the new process."""
        gc.freeze()  # what the server has loaded
        gc.enable()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        threading.Thread(target=self.follow, daemon=True).start()
        os._exit(self.task())  # at once: nothing is left to do, and a second Ctrl-C finds nothing to disturb

    def follow(self) -> None:
        """Wait for the end of the sweep's process, then end this one."""
        multiprocessing.parent_process().join()  # type: ignore[union-attr]  # there is one
        os.kill(os.getpid(), signal.SIGTERM)

    def done(self) -> bool:
        return self.exitcode is not None

    def result(self) -> int:
        if self.exitcode < 0:
            raise RuntimeError(signal.Signals(-self.exitcode).name)
        return int(self.exitcode)

    cancel = multiprocessing.Process.terminate


class Processes(Launcher):
    """Makes runs side by side, each in a fresh process forked from a server in which torch is loaded already."""

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[StartedJob]:
        start_server()
        processes: list[RunProcess] = []
        try:
            for task in tasks:
                process = RunProcess(task)
                with allow_stops():  # since the first one waits until the server has loaded torch
                    process.start()
                processes.append(process)
        except KeyboardInterrupt:
            for process in processes:
                process.cancel()
            raise
        return processes


class Here(Launcher):
    """Makes one run after another in this process."""

    def allot(self, jobs: int, threads: int | None, gpus: int) -> tuple[int, int]:
        return 1, threads or count_cores()

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[StartedJob]:
        (task,) = tasks  # there is one at a time
        status = task()  # a signal that has ended the run is heard by the sweep, too
        job = Future[int]()
        job.set_result(status)
        return [job]


@dataclass(frozen=True)
class Job:
    """Makes a task as a job of submitit's, which is queued again if its time is over or another job preempts it.

    submitit's own handler of the signal for that would end the run wherever it is; here it writes a checkpoint first.
    """

    task: Task

    def __call__(self) -> int:
        from submitit import JobEnvironment

        received: list[int] = []

        def stop(number: int, frame: FrameType | None) -> None:
            received.append(number)
            signal.raise_signal(signal.SIGTERM)

        time_over = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        queue_again: Any = signal.getsignal(time_over)
        signal.signal(time_over, stop)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until training begins, which notes it
        status = self.task()
        if received and status >= 128:
            signal.signal(time_over, signal.SIG_IGN)
            queue_again(time_over, None)  # and ends this process
        return status

    def checkpoint(self) -> Any:
        """Return what submitit starts when it is the job's turn again: the run goes on from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class LocalJob:
    """A job of submitit's that is a process of this machine."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def done(self) -> bool:
        return bool(self.job.done())

    def result(self) -> int:
        if not self.job.paths.result_pickle.exists():  # submitit would wait for it, as for that of another machine
            lines = (self.job.stderr() or "").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else "no message")
        return int(self.job.result())

    def cancel(self) -> None:
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it has not ended."""
        if not self.done():
            os.kill(int(self.job.job_id), number)


@dataclass
class Submitit(Launcher):
    """Makes a job of a cluster for each run; `executor=local` starts the same jobs as processes of this machine."""

    executor: Annotated[
        Literal["auto", "slurm", "local"],
        Setting("where jobs are; local: processes of this machine; auto: Slurm where there is srun, else local"),
    ]
    timeout_min: Annotated[
        int,
        Setting(
            "time limit of a job; a run that needs longer is queued again and goes on", "minutes", low=1, high=10**6
        ),
    ]
    cpus_per_task: Annotated[int, Setting("cores of a run, and its threads", low=1, high=1024)]
    gpus_per_node: Annotated[int | None, Setting("GPUs of a run on Slurm; it uses one", low=0, high=1024)] = None
    mem_gb: Annotated[int | None, Setting("memory of a job", "GB", low=1, high=10**5)] = None
    partition: Annotated[str | None, Setting("where Slurm looks for a node; null: Slurm's default")] = None
    account: Annotated[str | None, Setting("the account that the time is charged to")] = None
    qos: Annotated[str | None, Setting("quality of service")] = None
    constraint: Annotated[str | None, Setting("features that a node must have")] = None
    array_parallelism: Annotated[int, Setting("most jobs that Slurm runs at a time", "jobs", low=1, high=10**5)] = 64
    max_num_timeout: Annotated[
        int, Setting("how often a job whose time is over is queued again", low=0, high=10**5)
    ] = 100
    setup: Annotated[list[str] | None, Setting("shell commands before the run, such as [module load cuda]")] = None
    additional_parameters: Annotated[
        Mapping[str, Any], Setting("other options of sbatch, such as {reservation: mine}")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.executor == "auto":
            if shutil.which("srun"):
                self.executor = "slurm"
            else:
                self.executor = "local"
                self.where = ", as processes of this machine, since there is no srun"
        self.elsewhere = self.executor == "slurm"
        self.threads = self.cpus_per_task
        self.jobs = self.array_parallelism if self.elsewhere else None
        self.locks: list[IO[bytes]] = []

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[StartedJob]:
        new = secrets.token_hex(4)  # since results in the folder are pickles, which run code
        folder = inside(notes.parent, notes.name, "submitit", new)
        submitted = [Job(task) for task in tasks]
        if self.elsewhere:
            return self.start_on_slurm(submitted, jobs, folder)
        return self.start_here(submitted, folder)

    def start_on_slurm(self, tasks: Sequence[Job], jobs: int, folder: Path) -> Sequence[StartedJob]:
        """Start tasks as jobs of Slurm, which go on even if the sweep is killed."""
        import submitit

        if not shutil.which("srun"):
            cure = "give this command on a login node, or launcher.executor=local to try it on this machine"
            raise RunFailure(f"launcher.executor=slurm needs Slurm's srun, which is not here: {cure}")
        executor = submitit.AutoExecutor(folder / "%j", "slurm", slurm_max_num_timeout=self.max_num_timeout)
        executor.update_parameters(
            name="normbench",
            timeout_min=self.timeout_min,
            cpus_per_task=self.cpus_per_task,
            gpus_per_node=self.gpus_per_node,
            mem_gb=self.mem_gb,
            slurm_partition=self.partition,
            slurm_account=self.account,
            slurm_qos=self.qos,
            slurm_constraint=self.constraint,
            slurm_array_parallelism=jobs,
            slurm_setup=self.setup,
            slurm_additional_parameters=dict(self.additional_parameters),
        )
        with executor.batch():
            return [executor.submit(task) for task in tasks]

    def start_here(self, tasks: Sequence[Job], folder: Path) -> Sequence[StartedJob]:
        """Start tasks as processes of this machine, which end with the sweep."""
        import submitit

        folder.mkdir(parents=True)
        lock = (folder / "lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.locks.append(lock)
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", local_job.ALL)
        python = shlex.join([sys.executable, "-u", "-m", local_job.__name__, lock.name, gpus])
        executor = submitit.LocalExecutor(folder / "%j", self.max_num_timeout, python=python)
        executor.update_parameters(timeout_min=self.timeout_min)
        from_terminal = {signal.SIGINT, signal.SIGHUP}  # which all its processes get: the sweep itself ends its jobs
        before = signal.pthread_sigmask(signal.SIG_BLOCK, from_terminal)
        try:
            return [LocalJob(executor.submit(task)) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def redirect_native_errors(log: Path) -> IO[str]:
    """Send what native code prints to stderr to a file, while Python's stderr stays where it was; return the file."""
    terminal = os.dup(2)
    file = log.open("a", buffering=1)
    os.dup2(file.fileno(), 2)
    sys.stderr = open(terminal, "w", buffering=1, errors="replace")  # noqa: SIM115 (open until the process ends)
    return file


@dataclass
class Ray(Launcher):
    """Makes a task of a Ray cluster for each run; without an address a cluster of this machine is started."""

    address: Annotated[str | None, Setting("address of a cluster, such as auto; null: one is started on this machine")]
    cpus_per_run: Annotated[float, Setting("cores of a run, and its threads", above=0, high=1024)]
    gpus_per_run: Annotated[float, Setting("GPUs of a run, or a fraction of one", low=0, high=1024)]

    def __post_init__(self) -> None:
        self.elsewhere = self.address is not None or self.gpus_per_run > 0
        self.threads = max(1, int(self.cpus_per_run))

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[StartedJob]:
        import ray

        if not ray.is_initialized():
            self.connect(jobs, notes)
        resources: dict[str, Any] = {"num_cpus": self.cpus_per_run, "num_gpus": self.gpus_per_run, "max_retries": 0}
        remote: Any = ray.remote(**resources)(lambda task: task())
        started = []
        for task in tasks:
            reference = remote.remote(task)
            job = reference.future()
            job.cancel = partial(ray.cancel, reference)  # the task, not only the waiting for it
            started.append(job)
        return started

    def connect(self, jobs: int, notes: Path) -> None:
        """Connect to the cluster, or start one with room for `jobs` runs; what Ray prints goes to a file."""
        import ray

        make_folder(notes.parent, notes.name)
        log = redirect_native_errors(inside(notes.parent, notes.name, "ray.log"))
        temporary = scratch()[0] / "ray"
        options: dict[str, Any] = {}
        if not self.address:
            options["num_cpus"] = jobs * self.cpus_per_run
            options["include_dashboard"] = False
            options["_temp_dir"] = str(temporary)
            # Ray lets its workers give way to all other processes: beside two busy ones on two cores a run stood still.
            options["_system_config"] = {"worker_niceness": 0}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it tells its makers of each cluster
        with redirect_stdout(log), redirect_stderr(log):
            ray.init(self.address, log_to_driver=False, configure_logging=False, **options)
        logging.getLogger("ray").handlers = [logging.StreamHandler(log)]

        def print_to_log(data: Any, *_: Any, **__: Any) -> None:
            print(*data["lines"], file=log)

        # What Ray prints about a worker that dies, for which it has no setting.
        ray._private.worker.print_to_stdstream = print_to_log
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        atexit.register(ray.shutdown)  # the last one that is registered comes first
