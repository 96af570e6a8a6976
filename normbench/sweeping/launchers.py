"""Where the runs of a sweep are started: our few settings for each of Hydra's launchers.

Each class takes the settings of its YAML in `conf/launcher/`, says how many runs it has at a time with how many threads
each, and makes the launcher of Hydra's that starts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hydra.plugins.launcher import Launcher

from normbench.errors import UsageError
from normbench.keys import Key


def setting(**bounds: Any) -> Any:
    """A launcher's setting and what it may hold; the type comes from the annotation."""
    default = {"default": bounds.pop("default")} if "default" in bounds else {}
    return field(**default, metadata={"bounds": bounds})


def checked(make: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A launcher's settings, each in its own type; those that are not known stay as they are.

    Raises:
        UsageError: a wrong type, or a value out of bounds.
    """
    found = dict(settings)
    hints = get_type_hints(make) if isinstance(make, type) else {}
    for item in fields(make) if is_dataclass(make) else ():
        if item.name in found and "bounds" in item.metadata:
            types = get_args(hints[item.name]) or (hints[item.name],)
            allowed = Key("", types=types, **item.metadata["bounds"])
            found[item.name] = allowed.check(f"launcher.{item.name}", found[item.name])
    return found


@dataclass(frozen=True)
class Share:
    """What runs get of a machine. jobs: runs at a time. threads: of each."""

    jobs: int
    threads: int


class Launching(ABC):
    """How runs are started.

    children: its processes end when the sweep does, and with one of them that dies.
    own_process: a run that dies does not take the sweep with it.
    """

    children = False
    own_process = True

    @property
    def elsewhere(self) -> bool:
        """Whether its machines are such that this one knows nothing of."""
        return False

    @property
    def gives_devices(self) -> bool:
        """Whether each run sees only the GPUs that are meant for it."""
        return self.elsewhere

    def check(self) -> None:  # noqa: B027 (most need nothing)
        """Refuse where something must be installed first.

        Raises:
            UsageError: what to install.
        """

    @abstractmethod
    def share(self, jobs: int | None, threads: int | None, gpus: int) -> Share:
        """What each run gets; jobs and threads as they were asked for. gpus: that are handed out, 0: none."""

    @abstractmethod
    def make(self, jobs: int, notes: Path) -> Launcher:
        """Hydra's launcher. jobs: runs at a time. notes: a folder for what it writes."""

    def most(self, jobs: int) -> int | None:
        """How many runs it may be given at once; None: any number."""
        return None


def cores() -> int:
    """CPU cores that this process may use."""
    from joblib import cpu_count

    found: int = cpu_count()  # knows a container's share as well as the process's
    return found


def fair(jobs: int | None, threads: int | None, gpus: int) -> Share:
    """Runs side by side: one for each GPU, or as many as have cores of their own.

    A run has one thread by default, however many there are at a time: the small models of these comparisons gain less
    from a second thread than a second run does (six runs of nano on two cores take 0.71 of the time that they take one
    after another with two threads), and threads change a run's numbers, which the number of jobs must not.
    """
    return Share(jobs or gpus or max(1, cores() // (threads or 1)), threads or 1)


class Here(Launching):
    """One run after another in this process."""

    own_process = False

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> Share:
        if jobs not in (None, 1):
            raise UsageError(f"sweep.jobs={jobs} is not for launcher=local, one run after another: use launcher=joblib")
        return Share(1, threads or cores())

    def make(self, jobs: int, notes: Path) -> Launcher:
        from hydra._internal.core_plugins.basic_launcher import BasicLauncher

        return BasicLauncher()


class Processes(Launching):
    """Runs side by side in processes of this machine, which stay warm from run to run."""

    children = True

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> Share:
        return fair(jobs, threads, gpus)

    def make(self, jobs: int, notes: Path) -> Launcher:
        from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher

        # With one job joblib would run it in this process, which must outlive it: then a second worker stands idle, and
        # runs are given to it one by one.
        return JoblibLauncher(n_jobs=max(2, jobs), batch_size=1, pre_dispatch=max(2, jobs))

    def most(self, jobs: int) -> int | None:
        return 1 if jobs == 1 else None


@dataclass
class Submitit(Launching):
    """A job of a cluster for each run; `executor=local` starts the same jobs as processes of this machine."""

    executor: str = setting(choices=("slurm", "local"))
    timeout_min: int = setting(low=1, high=10**6, unit="minutes")
    cpus_per_task: int = setting(low=1, high=1024)
    gpus_per_node: int | None = setting(default=None, low=0, high=1024)
    mem_gb: int | None = setting(default=None, low=1, high=10**5, unit="GB")
    partition: str | None = setting(default=None)
    account: str | None = setting(default=None)
    qos: str | None = setting(default=None)
    constraint: str | None = setting(default=None)
    array_parallelism: int = setting(default=64, low=1, high=10**5, unit="jobs")
    additional_parameters: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        installed("hydra_plugins.hydra_submitit_launcher", "submitit")

    @property
    def elsewhere(self) -> bool:
        return self.executor == "slurm"

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> Share:
        own = threads or self.cpus_per_task
        return Share(jobs or (self.array_parallelism if self.elsewhere else max(1, cores() // own)), own)

    def most(self, jobs: int) -> int | None:
        return None if self.elsewhere else jobs  # the local executor starts all that it is given

    def make(self, jobs: int, notes: Path) -> Launcher:
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import LocalLauncher, SlurmLauncher

        settings = {
            "submitit_folder": str(notes / "submitit" / "%j"),
            "name": "normbench",
            "timeout_min": self.timeout_min,
            "cpus_per_task": self.cpus_per_task,
            "gpus_per_node": self.gpus_per_node,
            "mem_gb": self.mem_gb,
        }
        if not self.elsewhere:
            return LocalLauncher(**{key: value for key, value in settings.items() if value is not None})
        slurm = {key: getattr(self, key) for key in ("partition", "account", "qos", "constraint")}
        slurm |= {"array_parallelism": jobs, "additional_parameters": dict(self.additional_parameters)}
        return SlurmLauncher(**{key: value for key, value in {**settings, **slurm}.items() if value is not None})


@dataclass
class Ray(Launching):
    """A task of a Ray cluster for each run; without an address a cluster of this machine is started."""

    address: str | None = setting()
    cpus_per_run: float = setting(above=0, high=1024)
    gpus_per_run: float = setting(low=0, high=1024)

    def check(self) -> None:
        installed("ray", "ray")

    @property
    def elsewhere(self) -> bool:
        return self.address is not None

    @property
    def gives_devices(self) -> bool:
        return self.elsewhere or self.gpus_per_run > 0

    def share(self, jobs: int | None, threads: int | None, gpus: int) -> Share:
        own = threads or max(1, int(self.cpus_per_run))
        return Share(jobs or max(1, cores() // own), own)

    def make(self, jobs: int, notes: Path) -> Launcher:
        from normbench.sweeping.ray_launcher import RayLauncher

        return RayLauncher(self.address, jobs, self.cpus_per_run, self.gpus_per_run)


def installed(module: str, extra: str) -> None:
    """Refuse where an extra is not installed.

    Raises:
        UsageError: it is not.
    """
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UsageError(f"launcher={extra} is not installed: pip install 'normbench[{extra}]'")
