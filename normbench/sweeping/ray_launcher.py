"""Hydra's launcher interface on Ray.

Hydra's own plugin for Ray pins cloudpickle below 3 and brings AWS's libraries and Ray's dashboard, for what is a loop
over `ray.remote`: so this loop is here, on `ray` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.hydra_joblib_launcher._core import execute_job
from omegaconf import DictConfig


class LostTasks(RuntimeError):
    """Tasks that ended without a result, as where their process was killed."""


class RayLauncher(Launcher):
    """A task of Ray's for each job; `address` None starts a cluster on this machine, which ends with the process."""

    def __init__(self, address: str | None, jobs: int, cpus: float, gpus: float) -> None:
        self.address, self.jobs, self.cpus, self.gpus = address, jobs, cpus, gpus

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs; raises LostTasks at the end if some were lost, the others being done."""
        import ray

        if not ray.is_initialized():
            cluster: dict[str, Any] = {"num_cpus": self.jobs * self.cpus, "include_dashboard": False}
            own = {} if self.address else cluster
            ray.init(address=self.address, log_to_driver=False, configure_logging=False, **own)
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(execute_job)
        shared = self.hydra_context, self.config, self.task_function, Singleton.get_state()
        futures = [
            task.remote(initial_job_idx + number, list(words), *shared) for number, words in enumerate(job_overrides)
        ]
        done, lost = [], []
        for future in futures:
            try:
                done.append(ray.get(future))
            except ray.exceptions.RayError as error:
                lost.append(str(error).splitlines()[0])
        if lost:
            raise LostTasks("; ".join(dict.fromkeys(lost)))
        return done
