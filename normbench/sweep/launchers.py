"""Where the runs of a sweep are started: processes of this machine, Slurm by submitit, a Ray cluster.

Each class takes the settings of its YAML in `conf/launcher/`, says how many runs it has at a time with how many threads
each, and starts them.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Annotated, Any, Literal

from normbench.errors import UsageError
from normbench.settings import Setting

# Makes one run where it is called, and returns the exit status of a process; can be pickled.
Task = Callable[[], int]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# All that a run imports sooner or later.
PRELOADED = [f"normbench.{part}" for part in ("data", "models", "norms", "placements", "sweep.work")]


def start_server() -> None:
    """Start the server from which runs are forked, unless there is one; it loads torch while this process goes on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # else the server starts it, and it lets the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a signal to all must not end the server
    try:
        forkserver.ensure_running()
    except OSError as error:  # as where the path of its socket is too long
        where = f"the process that starts runs has no place in {tempfile.gettempdir()}"
        raise UsageError(f"{where} ({error}): let TMPDIR name a folder with a short path, such as /tmp") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Launcher:
    """Starts tasks.

    elsewhere: on machines or GPUs of which this process knows nothing; it is given all tasks at once. jobs, threads: at
    a time and of each, by default.
    """

    elsewhere = False
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
        from joblib import cpu_count  # knows a container's share as well as the process's

        threads = threads or self.threads
        return jobs or self.jobs or gpus or max(1, cpu_count() // threads), threads


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
        from joblib import cpu_count

        return 1, threads or cpu_count()

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        job = Future[int]()
        job.set_result(tasks[0]())  # there is one at a time
        if job.result() >= 128:
            signal.raise_signal(job.result() - 128)  # it has ended the run, and was for the sweep
        return [job]


@dataclass
class Submitit(Launcher):
    """A job of a cluster for each run; `executor=local` starts the same jobs as processes of this machine."""

    executor: Literal["slurm", "local"]
    timeout_min: Annotated[int, Setting(unit="minutes", low=1, high=10**6)]
    cpus_per_task: Annotated[int, Setting(low=1, high=1024)]
    gpus_per_node: Annotated[int | None, Setting(low=0, high=1024)] = None
    mem_gb: Annotated[int | None, Setting(unit="GB", low=1, high=10**5)] = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    array_parallelism: Annotated[int, Setting(unit="jobs", low=1, high=10**5)] = 64
    additional_parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.elsewhere, self.threads = self.executor == "slurm", self.cpus_per_task
        self.jobs = self.array_parallelism if self.elsewhere else None

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        import submitit

        settings = asdict(self) | {"array_parallelism": jobs}
        folder = notes / "submitit" / secrets.token_hex(4)  # new, since results in it are pickles, which run code
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=settings.pop("executor"))
        general = {name: settings.pop(name) for name in ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")}
        slurms = {f"slurm_{name}": value for name, value in settings.items()}
        executor.update_parameters(name="normbench", **general, **slurms)
        with executor.batch():
            return [executor.submit(task) for task in tasks]


@dataclass
class Ray(Launcher):
    """A task of a Ray cluster for each run; without an address a cluster of this machine is started."""

    address: str | None
    cpus_per_run: Annotated[float, Setting(above=0, high=1024)]
    gpus_per_run: Annotated[float, Setting(low=0, high=1024)]

    def __post_init__(self) -> None:
        self.elsewhere = self.address is not None or self.gpus_per_run > 0
        self.threads = max(1, int(self.cpus_per_run))

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Any]:
        import ray

        if not ray.is_initialized():
            here: dict[str, Any] = {"num_cpus": jobs * self.cpus_per_run, "include_dashboard": False}
            ray.init(self.address, log_to_driver=False, configure_logging=False, **({} if self.address else here))
        resources: dict[str, Any] = {"num_cpus": self.cpus_per_run, "num_gpus": self.gpus_per_run, "max_retries": 0}
        remote: Any = ray.remote(**resources)(lambda task: task())
        started = []
        for task in tasks:
            reference = remote.remote(task)
            started.append(reference.future())
            started[-1].cancel = partial(ray.cancel, reference)  # the task, not only the waiting for it
        return started
