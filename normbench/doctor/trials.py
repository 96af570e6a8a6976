"""What is tried in a process of its own, which may die or hang, and how that process is started and answers.

A trial is a generator function: what it gives has been found by then, whatever happens afterwards. Only the process
that tries imports torch and other libraries.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.filesize import decimal

from normbench import hub
from normbench.companions import TRANSFORMERS, import_module_beside
from normbench.errors import RunFailure, UsageError, comes_from_torchvision, explain

CHILD = """
from normbench.processes import begin_trial
begin_trial({parent})
from normbench.doctor import trials
trials.answer({name!r}, {given!r})
"""
LEAST = 0.5  # seconds for reading what a process has found that has ended long before it is waited for
BASIC_JOB = ("train", "norm=rmsnorm", "placement=pre")
TINY = (
    "model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2",
    "data.eval_batch_size=512", "trainer.steps=2", "trainer.eval_batches=1", "quiet=true",
)  # fmt: skip


# ---- the process that waits


@dataclass(frozen=True)
class Outcome:
    """How a trial went.

    Attributes:
        found: what it gave, in turn.
        failure: why it did not end as it should; empty: it did.
        is_late: whether it was ended, since there was no more time for it.
    """

    found: list[Any]
    failure: str = ""
    is_late: bool = False


class Trial:
    """A function of this module in a process of its own.

    Args:
        name: of the function.
        given: its arguments.
        variables: of the environment, beside those of this process.
    """

    def __init__(self, name: str, given: Sequence[Any] = (), **variables: str) -> None:
        self.begun = time.monotonic()
        code = CHILD.format(parent=os.getpid(), name=name, given=list(given))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],  # -P: no file in the current directory hides a module
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    def wait(self, until: float) -> Outcome:
        """Return how it went; it is ended where it has not by a time of `time.monotonic`, which may be over."""
        failure = ""
        is_late = False
        try:
            written, _ = self.process.communicate(timeout=max(LEAST, until - time.monotonic()))
        except subprocess.TimeoutExpired as late:
            is_late = True
            seconds = time.monotonic() - self.begun
            failure = f"it did not end within {seconds:.0f} s"
            written = late.output or b""
        self.stop()
        findings = []
        last: dict[str, Any] = {}
        for line in written.split(b"\n")[:-1]:  # of the last nothing or only a part has come
            last = json.loads(line)
            if "found" in last:
                findings.append(last["found"])
        if not failure and "failed" in last:
            failure = last["failed"]
        elif not failure and "ended" not in last:
            code = self.process.returncode
            failure = f"its process died of {signal.Signals(-code).name}" if code < 0 else "its process ended early"
        return Outcome(findings, failure, is_late)

    def stop(self) -> None:
        """End it, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


# ---- the process that tries


def answer(name: str, given: Sequence[Any]) -> None:
    """Make a trial, write what it finds to standard output, a line each, and end this process.

    What libraries print goes elsewhere.
    """
    out = os.dup(1)
    os.dup2(2, 1)

    def write(**said: Any) -> None:
        os.write(out, json.dumps(said).encode() + b"\n")

    try:
        for finding in globals()[name](*given):
            write(found=finding)
        write(ended=True)
    except BaseException as error:  # also SystemExit of a library
        write(failed=explain(error))
    os._exit(0)  # what libraries do at the end of a process may take long


def import_in_turn(modules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Import modules until one cannot be; give for each what was wrong, and whether that is torchvision's fault.

    What follows is another process's: an import that failed half-way may spoil those after it.
    """
    for module in modules:
        whole = f"{TRANSFORMERS}.modeling_utils" if module == TRANSFORMERS else module  # itself it imports nothing
        try:
            import_module_beside(whole)
        except BaseException as error:  # a module may raise anything, or end the process
            yield {"reason": explain(error), "is_torchvision": comes_from_torchvision(error)}
            return
        yield {"reason": "", "is_torchvision": False}


def describe_torch() -> Iterator[dict[str, str]]:
    """Give what torch was built for, what it can use, and why a device cannot compute in a number format."""
    import torch

    from normbench.training.precision import DTYPES, reason_against

    built = "the CPU alone"
    if torch.version.cuda:
        built = f"CUDA {torch.version.cuda}"
    elif getattr(torch.version, "hip", None):
        built = f"ROCm {torch.version.hip}"
    yield {"torch is built for": built}
    yield {"vector instructions": torch.backends.cpu.get_cpu_capability(), "threads": str(torch.get_num_threads())}
    devices = [torch.device("cpu")]
    if built != "the CPU alone":
        try:
            torch.cuda.init()
        except Exception as error:  # of the driver, or where there is none
            yield {"reason against GPU": explain(error)}
        else:
            for number in range(torch.cuda.device_count()):
                yield {f"GPU {number}": describe_gpu(torch, number)}
            devices.append(torch.device("cuda"))
    elif torch.backends.mps.is_available():
        yield {"GPU": "Apple's, by mps"}
        devices.append(torch.device("mps"))
    for device in devices:
        where = "CPU" if device.type == "cpu" else "GPU"
        for name, dtype in DTYPES.items():
            if dtype != torch.float32:
                reason = reason_against(device, dtype)
                yield {f"{name} on the {where}": f"no: {reason}" if reason else "yes"}


def describe_gpu(torch: Any, number: int) -> str:
    """Return name, capability and memory of a GPU."""
    about = torch.cuda.get_device_properties(number)
    free, total = torch.cuda.mem_get_info(number)
    return f"{about.name}, capability {about.major}.{about.minor}, {decimal(free)} of {decimal(total)} free"


def compile_a_function() -> Iterator[float]:
    """Compile a function for the GPU or CPU, and give the seconds that it took.

    Raises:
        RuntimeError: it computes something else than the function.
    """
    import torch

    from normbench.compiling import compiled

    def normalize(x: Any) -> Any:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    x = torch.linspace(-1, 1, 128, device="cuda" if torch.cuda.is_available() else "cpu").view(4, 32)
    begun = time.monotonic()
    output = compiled(normalize)(x)
    if not torch.allclose(output, normalize(x), atol=1e-5):
        raise RuntimeError("compiled code computes something else")
    yield time.monotonic() - begun


def ask_hub() -> Iterator[int]:
    """Give the status with which the Hugging Face hub answers those who ask it for data.

    Raises:
        RunFailure: it does not answer.
    """
    try:
        yield hub.ask_hub()
    except Exception as error:  # of any kind: the network, or a client that cannot be made
        raise RunFailure(hub.explain_failure(error)) from error


def train_briefly(folder: str) -> Iterator[str]:
    """Train a tiny model as the basic job does, and give the sentence with which it is refused, empty for none."""
    from normbench.config.compose import read
    from normbench.runs.train import start

    try:
        status = start(read([*BASIC_JOB[1:], *TINY, f"outputs={folder}"]), False, False)
    except (UsageError, RunFailure) as error:
        yield explain(error)
    else:
        yield f"it ended with exit status {status}" if status else ""
