"""What several tests build with: small models of every kind, and the options of every group."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normbench.build import build_model
from normbench.cli import main
from normbench.config.groups import options, section_of
from normbench.config.recipe import Recipe
from normbench.contract.trials import IMAGES, TEXT, TEXTS, TRANSLATIONS  # noqa: F401 (for the tests)
from normbench.models import Xavier, initialize
from normbench.training import precision
from normbench.types import Batch, Model, Task

# Small sizes for each model that the matrix walks; every other setting is the YAML's own.
SMALL: dict[str, dict[str, Any]] = {
    "nano": {"depth": 2, "width": 16, "heads": 2, "context": 16},
    "cnn": {"width": 8},
    "resnet20": {"width": 8},
    "mlp": {"width": 16},
    "resnet18": {"width": 4, "blocks": [1, 1, 1, 1]},
    "resnet50": {"width": 4, "blocks": [1, 1, 1, 1]},
    "vit_tiny": {"depth": 2, "width": 12},
    "cnn_plain": {"width": 8},
    "vgg": {"width": 4, "stages": [1, 2, 4], "blocks": [1, 1, 2], "strides": [2, 2, 2]},
    "mlp_plain": {"width": 16},
    "rnnsearch": {"width": 12, "embedding": 16, "context": 8},
    "rnn_lm": {"width": 12, "context": 16},
    "seq2seq": {"depth": 1, "decoder_depth": 1, "width": 16, "hidden": 24, "heads": 2, "context": 8},
}

# The models of the matrix, with the task of each.
MATRIX = {
    "transformer LM": ("nano", TEXT),
    "transformer image": ("nano", IMAGES),
    "seq2seq": ("seq2seq", TRANSLATIONS),  # the third of the Transformers, which have a third of the norms each
    **{name: (name, IMAGES) for name in SMALL if name not in ("nano", "vit_tiny", "rnnsearch", "rnn_lm", "seq2seq")},
    "rnnsearch": ("rnnsearch", TRANSLATIONS),
    "rnn_lm": ("rnn_lm", TEXT),
}


def documented(group: str) -> list[str]:
    """Return the options of a group that the tables of README.md and docs/ name, in the order of `options`.

    An option that has just been added as a file and a YAML works and is tested before anybody writes about it.
    """
    pages = (REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"))
    listed: set[str] = set()
    for page in pages:
        for after_head in page.read_text("utf-8").split(f"| `{group}=` |")[1:]:
            table = after_head.split("\n\n")[0]
            for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE):
                listed.update(re.findall(r"`(\w+)`", cell))
    unknown = listed - set(options(group))
    assert not unknown, f"tables of `{group}=` name {unknown}, and there is no such option"
    return [name for name in options(group) if name in listed]


def section(group: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings that an option of a group sets, and more."""
    return section_of(group, name) | more


def build(
    norm: str = "layernorm",
    placement: str = "pre",
    model: str = "nano",
    task: Task = TEXT,
    seed: int = 0,
    init: Any = None,
    norm_settings: dict[str, Any] | None = None,
    placement_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Model, dict[str, nn.Module]]:
    """A small model with its starting weights, and its norms by site."""
    tree = {
        "norm": section("norm", norm, **(norm_settings or {})),
        "placement": section("placement", placement, **(placement_settings or {})),
        "model": section("model", model, **{**SMALL[model], **settings}),
    }
    made, norms = build_model(Recipe(tree), task, seed)
    initialize(made, init or Xavier(embedding_std=0.02, residual_scale=False), seed, norms.values())
    return made, norms


def random_batch(task: Task, size: int = 4, seed: int = 0) -> Batch:
    """Inputs and targets of a task's shape."""
    return task.random_batch(size, torch.Generator().manual_seed(seed))


NORMS = [name for name in options("norm") if name != "own"]  # which only models of other libraries take
OVER_POSITIONS = ["evonorm_b0", "frn", "instancenorm", "switchable"]  # in evaluation too
CAUSAL = [name for name in NORMS if name not in OVER_POSITIONS]  # which a language model may have
PLACEMENTS = [name for name in options("placement") if name != "own"]
EXPERIMENTS = list(options("experiment"))
REPOSITORY = Path(__file__).parent.parent
WHOLE = "NORMBENCH_WHOLE_MATRIX" in os.environ  # else a sample of what combines, which takes a fraction of the time


def write_few_pairs(folder: Path, pairs: int = 64) -> None:
    """Write below a folder some short pairs of each split of multi30k, in the hub's layout."""
    from pyarrow import compute, parquet

    name = "bentrevett/multi30k"
    whole = Path(os.environ["NORMBENCH_DATA"], name)
    (folder / name / "data").mkdir(parents=True, exist_ok=True)
    (folder / name / "README.md").write_bytes((whole / "README.md").read_bytes())
    for path in whole.glob("data/*.parquet"):
        table = parquet.read_table(path)
        for column in ("de", "en"):
            bytes_of_each = compute.binary_length(table[column])  # and it has no more tokens
            table = table.filter(compute.less(bytes_of_each, 60))
        parquet.write_table(table.slice(0, pairs), folder / name / "data" / path.name)


def reason_against_in_a_fork(dtype: torch.dtype) -> str:
    """Say why the CPU cannot compute in a number format, as a fork of this process finds, which need not import torch.

    test_precision has it tried as commands have it.
    """
    trial = multiprocessing.get_context("fork").Process(
        target=precision.try_precision, args=(torch.device("cpu"), dtype)
    )
    trial.start()
    trial.join(120.0)  # seconds, of which it takes less than one
    return f"its trial ended with {trial.exitcode}" if trial.exitcode else ""


def visible_files() -> list[Path]:
    """Return what is below the current directory, but for hidden folders, to which git and others write."""
    entries = [path for path in Path.cwd().glob("*") if not path.name.startswith(".")]
    return sorted(path for entry in entries for path in (entry, *entry.rglob("*")))


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which a command is refused; whatever was in the current directory is all that is in it."""
    before = visible_files()
    status = main(words)
    out, err = capsys.readouterr()
    assert status == 2, err
    assert [line for line in out.splitlines() if not line.startswith("decoding ")] == []
    assert visible_files() == before
    found = re.fullmatch(r"normbench: (.+: .*[^.\n])\n", err)  # behind the colon is what to do
    assert found, err
    assert len(found[1]) < 500
    return found[1]


Swap = Callable[..., str]  # `normbench swap` with these words; returns what it prints


def losses_in(told: str) -> dict[str, float]:
    """The losses that a swap has printed, by row."""
    found = {}
    for row in ("as they are", "γ and β kept", "fresh", "fitted", "exact"):
        for line in told.splitlines():
            if line.strip().startswith(row):
                found[row] = float(line.strip().removeprefix(row).split()[0])
    return found
