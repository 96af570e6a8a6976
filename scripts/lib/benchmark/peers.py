"""The programs of others: copies of their checkouts, with the data that they would download made from ours."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from commands import Bench, Failed
from PIL import Image

NANOGPT = "karpathy/nanoGPT"
EXAMPLES = "pytorch/examples"

# nanoGPT's README, on a CPU, with as many evaluations as the experiment nanogpt_cpu has.
NANOGPT_WORDS = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters={steps} --lr_decay_iters={steps} --dropout=0.0"
)


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, with `+changes` after it where it differs."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "commit not known"


def nanogpt_command(steps: int, *more: str) -> list[str]:
    """Return the command of nanoGPT's example with so many steps."""
    return [sys.executable, "train.py", *NANOGPT_WORDS.format(steps=steps).split(), *more]


def nanogpt_copy(bench: Bench) -> Path:
    """Return a copy of nanoGPT with its data, made once: characters in order, a tenth for validation."""
    copy = bench.folder / "nanoGPT"
    if copy.exists():
        return copy
    assert bench.nanogpt
    shutil.copytree(bench.nanogpt, copy, ignore=shutil.ignore_patterns(".git", "out*", "*.bin", "meta.pkl"))
    folder = Path(os.environ["NORMBENCH_DATA"]) / "karpathy/tiny_shakespeare/data"
    texts = list[str]()
    for split in ("train", "validation", "test"):
        texts += column(folder, split, "text")
    text = "".join(texts)
    characters = sorted(set(text))
    ids = {character: number for number, character in enumerate(characters)}
    tokens = np.array([ids[character] for character in text], dtype=np.uint16)
    data = copy / "data/shakespeare_char"
    cut = int(0.9 * len(tokens))
    tokens[:cut].tofile(data / "train.bin")
    tokens[cut:].tofile(data / "val.bin")
    meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": ids}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    return copy


def column(folder: Path, split: str, name: str) -> list[Any]:
    """Return a column of the parquet files of a split."""
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise Failed(
            f"failed: {folder} has no parquet file of {split}: NORMBENCH_DATA must name the folder of the data sets"
        )
    values = list[Any]()
    for file in files:
        values += parquet.read_table(file, columns=[name])[name].to_pylist()
    return values


def mnist_copy(bench: Bench) -> Path:
    """Return a copy of the MNIST example, beside data in the files that torchvision expects."""
    copy = bench.folder / "examples/mnist"
    if copy.exists():
        return copy
    assert bench.examples
    shutil.copytree(bench.examples / "mnist", copy)
    folder = Path(os.environ["NORMBENCH_DATA"]) / "ylecun/mnist/mnist"
    raw = copy.parent / "data/MNIST/raw"
    raw.mkdir(parents=True)
    for split, word in {"train": "train", "test": "t10k"}.items():
        images = [np.asarray(Image.open(io.BytesIO(each["bytes"]))) for each in column(folder, split, "image")]
        write_idx(raw / f"{word}-images-idx3-ubyte", np.stack(images))
        write_idx(raw / f"{word}-labels-idx1-ubyte", np.array(column(folder, split, "label"), dtype=np.uint8))
    return copy


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write bytes in MNIST's own format: type and number of axes, their lengths, the values."""
    head = np.array([0x800 + values.ndim, *values.shape], dtype=">u4")
    path.write_bytes(head.tobytes() + values.astype(np.uint8).tobytes())
