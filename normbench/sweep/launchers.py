"""Where the runs of a sweep are started: processes of this machine, Slurm by submitit, a Ray cluster.

Each class takes the settings of its YAML in `conf/launcher/`, says how many runs it has at a time with how many threads
each, and starts them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, Literal

from normbench.build import imported
from normbench.errors import UsageError
from normbench.settings import Setting

# Makes one run where it is called, and returns the exit status of a process; can be pickled.
Task = Callable[[], int]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Imported by the server from which runs are forked: all that a run imports sooner or later.
PRELOADED = ["torch._dynamo", "normbench.run.train", "normbench.sweep.work", "normbench.recording"]


@dataclass(frozen=True)
class Job:
    """A task that was started.

    done: whether it has ended, in whatever way. result: what the task has returned; raises something that says how its
    process has ended, where that was without a word. stop: end it behind a checkpoint, or, given True, at once.
    """

    done: Callable[[], bool]
    result: Callable[[], int]
    stop: Callable[[bool], object]


class Launcher(ABC):
    """Starts tasks.

    elsewhere: on machines of which this one knows nothing. gives_devices: each sees only its own GPUs.
    in_this_process: one after another. queues: it may be given more than it has at a time.
    """

    elsewhere = False
    gives_devices = False
    in_this_process = False
    queues = False
    look_seconds = 0.05  # between two looks at what is done

    @abstractmethod
    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> list[Job]:
        """Start tasks. jobs: how many are at work at a time. notes: a folder for what it writes."""

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> tuple[int, int]:
        """Return how many runs there are at a time, one for each GPU or as many as have cores, and threads of each.

        A run has one thread by default, however many there are at a time: the small models of these comparisons gain
        less from a second thread than a second run does (six runs of nano on two cores take 0.71 of the time that they
        take one after another with two threads), and threads change a run's numbers, which jobs must not.

        Args:
            jobs, threads: as they were asked for.
            gpus: that are handed out; 0: none.
        """
        threads = threads or 1
        return jobs or gpus or max(1, cores() // threads), threads


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    from joblib import cpu_count

    found: int = cpu_count()  # knows a container's share as well as the process's
    return found


def devices_to_hand_out(device: str, gpus: int, jobs: int | None = None) -> tuple[str, ...]:
    """Return the devices that runs take turns on; none where each run takes the one that is set.

    A single GPU is shared by as many runs as are asked for, and by default has one at a time.

    Args:
        device: that a run takes: cpu, cuda, cuda:N or mps.
        gpus: CUDA devices of this machine.
        jobs: runs at a time, as they were asked for.
    """
    found = tuple(f"cuda:{number}" for number in range(gpus)) if device == "cuda" else (device,)
    return found if device != "cpu" and (len(found) > 1 or jobs in (None, 1)) else ()


class Processes(Launcher):
    """Runs side by side, each a fresh process that is forked from a server in which torch is loaded already."""

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> list[Job]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a signal to all must not end the server
        ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        processes = [context.Process(target=in_fresh_process, args=(task,)) for task in tasks]
        for process in processes:
            process.start()
        return [process_job(process) for process in processes]


def in_fresh_process(task: Task) -> None:
    """Make a run, which ends behind a checkpoint when the sweep does."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def follow(parent: Any) -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, args=(multiprocessing.parent_process(),), daemon=True).start()
    os._exit(task())  # at once: nothing is left to do, and a second Ctrl-C finds nothing to disturb


def process_job(process: BaseProcess) -> Job:
    """Return a run in a process as a job."""

    def result() -> int:
        if (status := process.exitcode or 0) < 0:
            raise RuntimeError(signal.Signals(-status).name)
        return status

    stop = {False: process.terminate, True: process.kill}
    return Job(lambda: process.exitcode is not None, result, lambda at_once: stop[at_once]())


class Here(Launcher):
    """One run after another in this process."""

    in_this_process = True

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> tuple[int, int]:
        if jobs not in (None, 1):
            raise UsageError(f"sweep.jobs={jobs} is not for launcher=local, one run after another: use launcher=joblib")
        return 1, threads or cores()

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> list[Job]:
        return [Job(lambda: True, partial(int, task()), bool) for task in tasks]


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

    look_seconds = 1.0

    def __post_init__(self) -> None:
        check_installed("submitit")
        self.elsewhere = self.gives_devices = self.queues = self.executor == "slurm"

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> tuple[int, int]:
        jobs = jobs or (self.array_parallelism if self.elsewhere else None)
        return super().share(jobs, threads or self.cpus_per_task, gpus)

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> list[Job]:
        import submitit

        executor = submitit.AutoExecutor(folder=notes / "submitit" / "%j", cluster=self.executor)
        settings = {name: value for name, value in vars(self).items() if value is not None and name in FOR_ALL}
        if self.elsewhere:
            slurm = ("partition", "account", "qos", "constraint", "additional_parameters")
            settings |= {f"slurm_{name}": value for name in slurm if (value := getattr(self, name))}
            settings["slurm_array_parallelism"] = jobs
        executor.update_parameters(name="normbench", **settings)
        with executor.batch():
            started = [executor.submit(task) for task in tasks]

        def as_job(job: Any) -> Job:
            return Job(job.done, job.result, lambda at_once: job.cancel(check=False))

        return [as_job(job) for job in started]


FOR_ALL = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")  # submitit's own words, whatever the cluster


@dataclass
class Ray(Launcher):
    """A task of a Ray cluster for each run; without an address a cluster of this machine is started."""

    address: str | None
    cpus_per_run: Annotated[float, Setting(above=0, high=1024)]
    gpus_per_run: Annotated[float, Setting(low=0, high=1024)]

    queues = True

    def __post_init__(self) -> None:
        check_installed("ray")
        self.elsewhere = self.address is not None
        self.gives_devices = self.elsewhere or self.gpus_per_run > 0

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> tuple[int, int]:
        return super().share(jobs, threads or max(1, int(self.cpus_per_run)), gpus)

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> list[Job]:
        import ray

        if not ray.is_initialized():
            here: dict[str, Any] = {"num_cpus": jobs * self.cpus_per_run, "include_dashboard": False}
            ray.init(self.address, log_to_driver=False, configure_logging=False, **({} if self.address else here))
        resources: dict[str, Any] = {"num_cpus": self.cpus_per_run, "num_gpus": self.gpus_per_run, "max_retries": 0}
        remote: Any = ray.remote(**resources)(lambda task: task())

        def as_job(reference: Any) -> Job:
            return Job(
                lambda: bool(ray.wait([reference], timeout=0)[0]),
                lambda: ray.get(reference),
                lambda at_once: ray.cancel(reference, force=at_once),
            )

        return [as_job(remote.remote(task)) for task in tasks]


def check_installed(name: str) -> None:
    """Refuse a launcher whose library is not installed.

    Raises:
        UsageError: what to install.
    """
    if find_spec(name) is None:
        raise UsageError(f"launcher={name} is not installed: pip install 'normbench[{name}]'")


def make_launcher(section: Mapping[str, Any]) -> Launcher:
    """Make what starts the runs.

    Raises:
        UsageError: it cannot be imported, is not installed, or does not take a setting.
    """
    path, settings = section["_target_"], {name: value for name, value in section.items() if name != "_target_"}
    launcher = imported(path, f"launcher._target_={path}")(**settings)
    if not isinstance(launcher, Launcher):
        raise UsageError(f"launcher._target_={path} makes no Launcher: choose launcher=joblib, say")
    return launcher
