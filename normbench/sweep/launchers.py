"""Where the runs of a sweep are started: processes of this machine, Slurm by submitit, a Ray cluster.

Each class takes the settings of its YAML in `conf/launcher/`, says how many runs it has at a time with how many threads
each, and starts them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from normbench.build import imported
from normbench.errors import UsageError
from normbench.settings import Setting

# Makes one run where it is called, and returns the exit status of a process; can be pickled.
Task = Callable[[], int]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


# All that a run imports sooner or later.
PRELOADED = ["torch._dynamo", "torch.utils.tensorboard", "normbench.sweep.work"]
PRELOADED += [f"normbench.{part}" for part in ("data", "models", "norms", "placements")]


class Job(Protocol):
    """A task that was started. `result` raises where its process has died; `cancel` ends it behind a checkpoint."""

    def done(self) -> bool: ...

    def result(self) -> Any: ...

    def cancel(self) -> Any: ...


class Launcher:
    """Starts tasks.

    elsewhere: on machines of which this one knows nothing. gives_devices: each sees only its own GPUs.
    in_this_process: one after another. queues: it may be given more than it has at a time.
    """

    elsewhere = False
    gives_devices = False
    in_this_process = False
    queues = False
    look_seconds = 0.05  # between two looks at what is done
    jobs: int | None = None  # by default
    threads = 1

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Job]:
        """Start tasks. jobs: how many are at work at a time. notes: a folder for what it writes."""
        raise NotImplementedError

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> tuple[int, int]:
        """Return how many runs there are at a time, one for each GPU or as many as have cores, and threads of each.

        A run has one thread by default, however many there are at a time: the small models of these comparisons gain
        less from a second thread than a second run does (six runs of nano on two cores take 0.71 of the time that they
        take one after another with two threads), and threads change a run's numbers, which jobs must not.

        Args:
            jobs, threads: as they were asked for.
            gpus: that are handed out; 0: none.
        """
        threads = threads or self.threads
        return jobs or self.jobs or gpus or max(1, cores() // threads), threads


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


class RunProcess(multiprocessing.get_context("forkserver").Process):  # type: ignore[misc]
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
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGTERM)

    def done(self) -> bool:
        return self.exitcode is not None

    def result(self) -> int:
        status: int = self.exitcode
        if status < 0:
            raise RuntimeError(signal.Signals(-status).name)
        return status

    def cancel(self) -> None:
        self.terminate()


class Processes(Launcher):
    """Runs side by side, each a fresh process that is forked from a server in which torch is loaded already."""

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Job]:
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a signal to all must not end the server
        ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        processes = [RunProcess(task) for task in tasks]
        for process in processes:
            process.start()
        return processes


class Here(Launcher):
    """One run after another in this process."""

    in_this_process = True

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> tuple[int, int]:
        if jobs not in (None, 1):
            raise UsageError(f"sweep.jobs={jobs} is not for launcher=local, one run after another: use launcher=joblib")
        return 1, threads or cores()

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Job]:
        done = [Future[int]() for _ in tasks]
        for job, task in zip(done, tasks, strict=True):
            job.set_result(task())
        return done


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
        self.jobs, self.threads = self.array_parallelism if self.elsewhere else None, self.cpus_per_task

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Job]:
        import submitit

        executor = submitit.AutoExecutor(folder=notes / "submitit" / "%j", cluster=self.executor)
        settings = {name: value for name, value in vars(self).items() if name in FOR_ALL and value is not None}
        if self.elsewhere:
            settings |= {f"slurm_{name}": value for name in FOR_SLURM if (value := getattr(self, name))}
            settings["slurm_array_parallelism"] = jobs
        executor.update_parameters(name="normbench", **settings)
        with executor.batch():
            started = [executor.submit(task) for task in tasks]
        return started


# Settings in submitit's own words: of any cluster, of Slurm's.
FOR_ALL = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")
FOR_SLURM = ("partition", "account", "qos", "constraint", "additional_parameters")


@dataclass(eq=False)
class RayJob:
    """A task of Ray's."""

    ray: Any
    reference: Any

    def done(self) -> bool:
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def result(self) -> Any:
        return self.ray.get(self.reference)

    def cancel(self) -> None:
        self.ray.cancel(self.reference)


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
        self.threads = max(1, int(self.cpus_per_run))

    def start(self, tasks: Sequence[Task], jobs: int, notes: Path) -> Sequence[Job]:
        import ray

        if not ray.is_initialized():
            here: dict[str, Any] = {"num_cpus": jobs * self.cpus_per_run, "include_dashboard": False}
            ray.init(self.address, log_to_driver=False, configure_logging=False, **({} if self.address else here))
        resources: dict[str, Any] = {"num_cpus": self.cpus_per_run, "num_gpus": self.gpus_per_run, "max_retries": 0}
        remote: Any = ray.remote(**resources)(lambda task: task())
        return [RayJob(ray, remote.remote(task)) for task in tasks]


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
        UsageError: it cannot be imported, is not installed, or is something else.
    """
    path, settings = section["_target_"], {name: value for name, value in section.items() if name != "_target_"}
    launcher = imported(path, f"launcher._target_={path}")(**settings)
    if not isinstance(launcher, Launcher):
        raise UsageError(f"launcher._target_={path} makes no Launcher: choose launcher=joblib, say")
    return launcher
