"""Where the runs of a sweep are started: processes of this machine, Slurm by submitit, a Ray cluster.

Each class takes the settings of its YAML in `conf/launcher/`, says how many runs it has at a time with how many threads
each, and starts them.
"""

from __future__ import annotations

import atexit
import fcntl
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
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any, Literal

from normbench.errors import RunFailure, UsageError
from normbench.processes import cores
from normbench.scratch import scratch
from normbench.settings import Setting
from normbench.sweep import local_job

# Makes one run where it is called, and returns the exit status of a process; can be pickled.
Task = Callable[[], int]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# What ends the server with the command, and all that a run imports sooner or later.
PRELOADED = [f"normbench.{part}" for part in ("sweep.server", "data", "models", "norms", "placements", "sweep.work")]


def start_server() -> None:
    """Start the server from which runs are forked, unless there is one; it loads torch while this process goes on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # else the server starts it, and it lets the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a signal to all must not end the server
    try:
        scratch()
        forkserver.ensure_running()
    except OSError as error:  # as where the path of its socket is too long
        where = f"the process that starts runs has no place in {tempfile.gettempdir()}"
        raise UsageError(f"{where} ({error}): let TMPDIR name a folder with a short path, such as /tmp") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Launcher:
    """Starts tasks.

    elsewhere: on machines or GPUs of which this process knows nothing; it is given all tasks at once. where: what a
    person may not expect of that. jobs, threads: at a time and of each, by default.
    """

    elsewhere = False
    where = ""
    jobs: int | None = None
    threads = 1

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        """Start tasks, and return for each what has `done`, `result` and `cancel`, as a Future has.

        `result` raises where the process has died; `cancel` ends it behind a checkpoint.

        Args:
            jobs: how many are at work at a time.
            notes: a folder for what it writes.
        """
        raise NotImplementedError

    def share(self, jobs: int, threads: int | None, gpus: int) -> tuple[int, int]:
        """Return how many runs there are at a time, one for each GPU or as many as have cores, and threads of each.

        A run has one thread by default, however many there are at a time: the small models of these comparisons gain
        less from a second thread than a second run does (six runs of nano on two cores take 0.71 of the time that they
        take one after another with two threads), and threads change a run's numbers, which jobs must not.

        Args:
            jobs, threads: as they were asked for; 0 and None: they were not.
            gpus: of this machine; 0: the runs are the CPU's, or another machine's.
        """
        threads = threads or self.threads
        return jobs or self.jobs or gpus or max(1, cores() // threads), threads


class RunProcess(multiprocessing.get_context("forkserver").Process):  # type: ignore[misc]  # a class, made by a call
    """Makes a run, which ends behind a checkpoint when the sweep does."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def run(self) -> None:
        """Make the run, in the new process."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        threading.Thread(target=self.follow, daemon=True).start()
        os._exit(self.task())  # at once: nothing is left to do, and a second Ctrl-C finds nothing to disturb

    def follow(self) -> None:
        """Wait for the end of the sweep's process, and end too."""
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
    """Runs side by side, each a fresh process that is forked from a server in which torch is loaded already."""

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        start_server()
        processes = [RunProcess(task) for task in tasks]
        for process in processes:
            process.start()
        return processes


class Here(Launcher):
    """One run after another in this process."""

    def share(self, jobs: int, threads: int | None, gpus: int) -> tuple[int, int]:
        return 1, threads or cores()

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        job = Future[int]()
        job.set_result(tasks[0]())  # there is one at a time
        if job.result() >= 128:
            signal.raise_signal(job.result() - 128)  # it has ended the run, and was for the sweep
        return [job]


@dataclass(frozen=True)
class Job:
    """Makes a task as a job of submitit's, which is queued again where its time is over or others come first.

    submitit's own answer to that signal would end the run wherever it is; here it writes a checkpoint first.
    """

    task: Task

    def __call__(self) -> int:
        from submitit import JobEnvironment

        came = list[int]()

        def stop(number: int, frame: FrameType | None) -> None:
            came.append(number)
            signal.raise_signal(signal.SIGTERM)

        over = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        queue_again: Any = signal.getsignal(over)
        signal.signal(over, stop)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until training begins, which notes it
        status = self.task()
        if came and status >= 128:
            signal.signal(over, signal.SIG_IGN)
            queue_again(over, None)  # and ends this process
        return status

    def checkpoint(self) -> Any:
        """Return what submitit makes when the job's turn comes again: the run goes on from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class LocalJob:
    """A job of submitit's that is a process of this machine."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.kill = partial(self.end, signal.SIGKILL)

    def done(self) -> bool:
        return bool(self.job.done())

    def result(self) -> int:
        if not self.job.paths.result_pickle.exists():  # for which submitit would wait, as of another machine
            raise RuntimeError(((self.job.stderr() or "").strip().splitlines() or ["no message"])[-1])
        return int(self.job.result())

    def cancel(self) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: int) -> None:
        if not self.done():
            os.kill(int(self.job.job_id), number)


@dataclass
class Submitit(Launcher):
    """A job of a cluster for each run; `executor=local` starts the same jobs as processes of this machine."""

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
    array_parallelism: Annotated[
        int, Setting("how many jobs Slurm runs at a time, at the most", "jobs", low=1, high=10**5)
    ] = 64
    max_num_timeout: Annotated[int, Setting("jobs that may follow one whose time is over", low=0, high=10**5)] = 100
    setup: Annotated[list[str] | None, Setting("shell commands before the run, such as [module load cuda]")] = None
    additional_parameters: Annotated[
        Mapping[str, Any], Setting("other options of sbatch, such as {reservation: mine}")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.executor == "auto":
            self.executor = "slurm" if shutil.which("srun") else "local"
            self.where = ", as processes of this machine, since there is no srun" * (self.executor == "local")
        self.elsewhere, self.threads = self.executor == "slurm", self.cpus_per_task
        self.jobs = self.array_parallelism if self.elsewhere else None
        self.locks = list[IO[bytes]]()

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        folder = notes / "submitit" / secrets.token_hex(4)  # new, since results in it are pickles, which run code
        start = self.start_on_slurm if self.elsewhere else self.start_here
        return start([Job(task) for task in tasks], jobs, folder)

    def start_on_slurm(self, tasks: Sequence[Job], jobs: int, folder: Path) -> Sequence[Any]:
        """Start tasks as jobs of Slurm, which go on where the sweep is killed."""
        import submitit

        if not shutil.which("srun"):
            cure = "give this command on a login node, or launcher.executor=local to try it on this machine"
            raise RunFailure(f"launcher.executor=slurm needs Slurm's srun, which is not here: {cure}")
        slurms = asdict(self) | {"array_parallelism": jobs}
        for name in ("executor", "max_num_timeout"):
            del slurms[name]
        general = {name: slurms.pop(name) for name in ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")}
        more = {f"slurm_{name}": value for name, value in slurms.items()}
        executor = submitit.AutoExecutor(folder / "%j", "slurm", slurm_max_num_timeout=self.max_num_timeout)
        executor.update_parameters(name="normbench", **general, **more)
        with executor.batch():
            return [executor.submit(task) for task in tasks]

    def start_here(self, tasks: Sequence[Job], jobs: int, folder: Path) -> Sequence[Any]:
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
        ours = {signal.SIGINT, signal.SIGHUP}  # of the terminal, to all: the sweep ends its jobs
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
        try:
            return [LocalJob(executor.submit(task)) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_apart(log: Path) -> IO[str]:
    """Let a file have what C++ code prints as errors; Python's own stay where they were. Returns the file."""
    terminal = os.dup(2)
    file = log.open("a", buffering=1)
    os.dup2(file.fileno(), 2)
    sys.stderr = open(terminal, "w", buffering=1, errors="replace")  # noqa: SIM115 (open until the process ends)
    return file


@dataclass
class Ray(Launcher):
    """A task of a Ray cluster for each run; without an address a cluster of this machine is started."""

    address: Annotated[str | None, Setting("of a cluster, such as auto; null: one is started on this machine")]
    cpus_per_run: Annotated[float, Setting("cores of a run, and its threads", above=0, high=1024)]
    gpus_per_run: Annotated[float, Setting("GPUs of a run, or a share of one", low=0, high=1024)]

    def __post_init__(self) -> None:
        self.elsewhere = self.address is not None or self.gpus_per_run > 0
        self.threads = max(1, int(self.cpus_per_run))

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        import ray

        if not ray.is_initialized():
            notes.mkdir(parents=True, exist_ok=True)
            log = keep_apart(notes / "ray.log")
            temporary = scratch()[0] / "ray"
            here: dict[str, Any] = {"num_cpus": jobs * self.cpus_per_run, "include_dashboard": False}
            here["_temp_dir"] = str(temporary)
            with redirect_stdout(log), redirect_stderr(log):
                ray.init(self.address, log_to_driver=False, configure_logging=False, **({} if self.address else here))
            logging.getLogger("ray").handlers = [logging.StreamHandler(log)]
            # what it prints of a worker that dies, for which it has no setting
            ray._private.worker.print_to_stdstream = lambda data, *_, **__: print(*data["lines"], file=log)
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            atexit.register(ray.shutdown)  # first: the last one that is registered
        resources: dict[str, Any] = {"num_cpus": self.cpus_per_run, "num_gpus": self.gpus_per_run, "max_retries": 0}
        remote: Any = ray.remote(**resources)(lambda task: task())
        started = []
        for task in tasks:
            reference = remote.remote(task)
            started.append(reference.future())
            started[-1].cancel = partial(ray.cancel, reference)  # the task, not only the waiting for it
        return started
