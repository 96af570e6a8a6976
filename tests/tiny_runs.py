"""Two small runs that tests disturb."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from killing import Child, Server, Trap
from run_records import Record, assert_same, read_record

# What is due at different steps, so that nothing hides behind something else.
LENGTHS = ["trainer.steps=40", "trainer.log_every=5", "trainer.eval_every=10", "trainer.eval_batches=4"]
LENGTHS += ["trainer.checkpoint_every=8", "probes.every=7", "probes.histograms_every=9", "threads=1", "device=cpu"]

# A Transformer with dropout under AdamW, and a CNN with BatchNorm's running statistics under SGD with momentum, on
# images that are cropped, flipped and cut at random.
MODELS = {
    "transformer": "train model=nano model.depth=1 model.width=16 model.heads=2 model.context=16 model.dropout=0.1 "
    "data=pydocs data.eval_batch_size=512 probes=full",
    "cnn": "train model=cnn model.width=4 norm=batchnorm data=digits data.batch_size=16 optim=sgd "
    "data.crop=1 data.flip=true data.cutout=2 "
    "trainer.keep_checkpoint=best trainer.accumulate=2 trainer.ema=0.9",
}


def slow(*values: Any) -> list[Any]:
    """More of a test's parameters, for when there is time."""
    several = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*parameters, marks=pytest.mark.slow) for parameters in several]


def words(model: str, *more: str) -> list[str]:
    return [*MODELS[model].split(), *LENGTHS, *more]


def start(server: Server, model: str, folder: Path, trap: Trap | None = None) -> Child:
    return server.start(words(model), folder, trap)


def finish(server: Server, model: str, folder: Path, reference: dict[str, Record]) -> Child:
    """Give a run's command again; it ends like an undisturbed one."""
    child = start(server, model, folder)
    assert child.wait() == 0, child.output
    assert_same(read_record(run_directory(folder)), reference[model])
    return child


def run_directory(folder: Path) -> Path:
    """The only run under a folder's outputs."""
    (directory,) = (folder / "outputs" / "train").iterdir()
    return directory


def fill(disk: Path) -> Path:
    """A file that leaves no room."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert shutil.disk_usage(disk).free == 0
    return filler
