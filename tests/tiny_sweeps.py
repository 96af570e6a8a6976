"""A small sweep that tests disturb, and classes of a user's own that end badly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from killing import Server
from run_records import Record, read_record

LENGTHS = ["trainer.steps=12", "trainer.log_every=2", "trainer.eval_every=6", "trainer.eval_batches=1", "device=cpu",
           "trainer.checkpoint_every=3", "probes.every=5", "probes.histograms_every=0", "threads=1"]  # fmt: skip
CNN = ["model=cnn", "model.width=4", "data=digits", "data.batch_size=16", "data.eval_batch_size=512"]

# Norms that a user may have written, in a file beside the command.
OWN_NORMS = """
import os, signal
from pathlib import Path
from normbench.norms import RMSNorm

class Fine(RMSNorm):
    pass

class Counted(RMSNorm):
    calls = 0

    def forward(self, x):
        Counted.calls += 1
        if Counted.calls > 40 and not Path("mended").exists():
            self.end()
        return super().forward(x)

class Boom(Counted):
    def end(self):
        raise RuntimeError("boom,\\n  and over")

class Killer(Counted):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def sweep_words(*more: str, launcher: str = "local") -> list[str]:
    words = ["sweep", "norm=rmsnorm,batchnorm", "seed=0,1", *CNN, *LENGTHS, f"launcher={launcher}"]
    return [*words, *([] if "sweep.report=true" in more else ["sweep.report=false"]), *more]


def own_words(*classes: str, launcher: str = "local") -> list[str]:
    """A sweep over classes of OWN_NORMS."""
    targets = ",".join(f"own_norms.{name}" for name in classes)
    return ["sweep", f"norm._target_={targets}", *CNN, *LENGTHS, f"launcher={launcher}", "sweep.report=false"]


def run_directories(folder: Path, name: str = "sweep") -> dict[str, Path]:
    """The runs of a sweep by name."""
    return {
        path.name: path for path in sorted((folder / "outputs" / name).iterdir()) if (path / "config.yaml").exists()
    }


def records(folder: Path) -> dict[str, Record]:
    return {name: read_record(path) for name, path in run_directories(folder).items()}


def sessions(path: Path) -> list[dict[str, Any]]:
    """The processes that have worked on a run."""
    found: list[dict[str, Any]] = json.loads((path / "environment.json").read_text())["sessions"]
    return found


def statuses(folder: Path) -> dict[str, str]:
    """How the runs stand, by their first word."""
    return {
        re.split("-", name)[0]: json.loads((path / "status.json").read_text())["status"]
        for name, path in run_directories(folder).items()
    }


def finished(server: Server, words: list[str], folder: Path) -> str:
    """The output of a command that ends well."""
    child = server.start(words, folder)
    assert child.wait() == 0, child.output
    return child.output
