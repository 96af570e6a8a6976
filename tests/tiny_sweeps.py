"""Small sweeps that are planned only, or that tests disturb, and classes of a user's own that end badly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from killing import Server
from run_records import Record, assert_same, read_json, read_record

from normbench.sweep.plan import read_grid
from normbench.sweep.sweep import Sweep, plan_sweep

LENGTHS = ["trainer.steps=12", "trainer.log_every=2", "trainer.eval_every=6", "trainer.eval_batches=1", "device=cpu",
           "trainer.checkpoint_every=3", "probes.every=5", "probes.histograms_every=0", "threads=1"]  # fmt: skip
CNN = ["model=cnn", "model.width=4", "data=digits", "data.batch_size=16", "data.eval_batch_size=512"]
TINY = [*CNN, *LENGTHS, "sweep.report=false"]

# Norms that a user may have written, in a file beside the command.
OWN_NORMS = """
import os, signal, time
from pathlib import Path
from normbench.norms import RMSNorm

class Fine(RMSNorm):
    pass

class Counted(RMSNorm):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        if self.calls > 40 and not Path("fixed").exists():
            self.end()
        return super().forward(x)

    def end(self):
        raise self.error

class Boom(Counted):
    error = RuntimeError("boom,\\n  and over")

class Exits(Counted):
    error, calls = SystemExit(3), 40  # at once

class Interrupts(Counted):
    error = KeyboardInterrupt()

class Leaves(Counted):
    error = GeneratorExit()

class Hangs(Counted):
    def end(self):
        time.sleep(1000)

class Killer(Counted):
    def end(self):
        Path("niceness").write_text(str(os.nice(0)))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def varied(*words: str) -> list[dict[str, str]]:
    return [dict(point.varied) for point in read_grid(words)[0]]


def planned(*words: str) -> Sweep:
    return plan_sweep([*words, *CNN, "trainer.steps=4", "device=cpu", "threads=1"])


def own_study(folder: Path, content: str, *params: str) -> list[str]:
    """The words that choose a study that is written for one test. params: what it holds for the sweep."""
    (folder / "experiment").mkdir(exist_ok=True)
    sweeper = "hydra:\n  sweeper:\n    params:\n" + "".join(f"      {line}\n" for line in params) if params else ""
    (folder / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{content}\n{sweeper}")
    return ["experiment=mine", f"hydra.searchpath=['file://{folder}']"]


def sweep_words(*more: str, launcher: str = "local") -> list[str]:
    report = [] if "sweep.report=true" in more else ["sweep.report=false"]
    return ["sweep", "norm=rmsnorm,batchnorm", "seed=0,1", *CNN, *LENGTHS, f"launcher={launcher}", *report, *more]


def own_words(folder: Path, *classes: str, launcher: str = "local") -> list[str]:
    """A sweep over classes of OWN_NORMS, which are written into a folder."""
    (folder / "own_norms.py").write_text(OWN_NORMS)
    targets = ",".join(f"own_norms.{name}" for name in classes)
    return ["sweep", f"norm._target_={targets}", *TINY, f"launcher={launcher}"]


def run_directories(folder: Path, name: str = "sweep") -> dict[str, Path]:
    """The runs of a sweep by name."""
    return {path.parent.name: path.parent for path in sorted((folder / "outputs" / name).glob("*/config.yaml"))}


def records(folder: Path) -> dict[str, Record]:
    return {name: read_record(path) for name, path in run_directories(folder).items()}


def assert_as(undisturbed: Path, folder: Path) -> None:
    """Each run once, and with the bits of the undisturbed sweep."""
    expected, found = records(undisturbed), records(folder)
    assert found.keys() == expected.keys()
    for name, record in found.items():
        assert_same(record, expected[name])


def sessions(path: Path) -> list[dict[str, Any]]:
    """The processes that have worked on a run."""
    return read_json(path / "environment.json")["sessions"]


def statuses(folder: Path) -> dict[str, str]:
    """How the runs stand, by their first word."""
    found = run_directories(folder).items()
    return {name.partition("-")[0]: read_json(path / "status.json")["status"] for name, path in found}


def finished(server: Server, words: list[str], folder: Path) -> str:
    """The output of a command that ends well."""
    child = server.start(words, folder)
    assert child.wait() == 0, child.output
    return child.output
