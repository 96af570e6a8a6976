"""Runs that are stopped again and again, at places and moments drawn by lot: `python tests/kills.py 15 [WORD ...]`.

Each is begun again until it ends, and then it has left, to the bit, what an undisturbed one leaves.
WORD: part of a case's name.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import killing
from killing import Server, Trap
from run_records import Record, assert_same, read_record
from test_streaming import write_pages, write_photographs
from test_translation import write as write_pairs

# What is due at different steps, so that nothing hides behind something else.
LENGTHS = "threads=1 device=cpu probes.every=7 trainer.log_every=3 trainer.checkpoint_every=4"
LENGTHS += " trainer.eval_every=5 trainer.eval_batches=2 trainer.keep_checkpoint=best"

PAIRS = "data.hub_id=me/pairs data.vocabulary_size=300 data.batch_size=5 data.eval_batch_size=4 trainer.epochs=null"
PAIRS += " trainer.steps=14 trainer.ema=0.9"
PAGES = "model=nano model.depth=1 model.width=16 model.heads=2 model.context=8 data=fineweb_edu data.hub_id=me/pages"
PAGES += " data.config=null data.level=byte data.kept=5 data.buffer=12 data.batch_size=3 trainer.steps=70"
PHOTOGRAPHS = "model=cnn model.width=4 norm=batchnorm data=imagenet1k data.hub_id=me/photographs data.kept=9"
PHOTOGRAPHS += " data.buffer=12 data.batch_size=4 data.size=8 data.crop=1 data.val_split=validation trainer.steps=24"

CASES = {
    "rnnsearch": f"train model=rnnsearch model.width=16 model.embedding=16 {PAIRS}",
    "seq2seq": f"train model=seq2seq model.depth=1 model.decoder_depth=1 model.width=16 model.heads=2 {PAIRS}",
    "texts of a stream": f"train {PAGES}",
    "images of a stream": f"train {PHOTOGRAPHS}",
    "sweep": f"sweep model=rnnsearch model.width=8 model.embedding=8 {PAIRS} norm=none,layernorm seed=0,1"
    " launcher=local sweep.report=false",
    "rates": f"sweep model=rnnsearch model.width=8 model.embedding=8 {PAIRS} norm=none,layernorm seed=0 sweep.lr=auto"
    " sweep.lr_grid=[0.01,0.02,0.04] launcher=local sweep.report=false",
    "stack": f"sweep {PAGES} norm=rmsnorm seed=0,1 sweep.stack=2 launcher=local sweep.report=false",
    "given gpt2": "train model=hf model.name=gpt2 model.config.hidden_size=16 model.context=8"
    " model.config.num_hidden_layers=1 norm=dyt data=pydocs data.batch_size=4 data.eval_batch_size=64 trainer.steps=24",
    "given vit": "train model=timm model.name=vit_tiny_patch16_224 model.kwargs.embed_dim=12 model.kwargs.depth=1"
    " model.kwargs.drop_path_rate=0.2 model.kwargs.proj_drop_rate=0.1 norm=batchnorm data=digits data.batch_size=8"
    " trainer.steps=24 trainer.ema=0.9",
}
LINE = chr(0x2028)  # a text may have any character

HOW = {"SIGKILL": (signal.SIGKILL,), "SIGTERM": (signal.SIGTERM,), "SIGINT": (signal.SIGINT,)}
HOW["SIGINT, SIGINT"] = (signal.SIGINT, signal.SIGINT)
OUTSIDE = "SIGKILL from outside"  # at any moment, also within an operator of torch


def write_data(root: Path) -> Path:
    """Write pairs of sentences, long and short pages, and photographs, as a hub has them."""
    pages = [f"{number} says{LINE} " + "to be, or not to be. " * (number % 9) ** 3 for number in range(60)]
    return write_photographs(write_pages(write_pairs(root), pages))


def words(case: str, root: Path) -> list[str]:
    """Return the command line of a case."""
    found = [*CASES[case].split(), *LENGTHS.split()]
    if not case.startswith("given"):  # whose data need no file
        found.append(f"data.root={root}")
    return found


def left(folder: Path) -> dict[str, Record]:
    """Return what the runs in a folder have left, by their names."""
    return {path.parent.name: read_record(path.parent) for path in folder.glob("outputs/*/*/config.yaml")}


def brought_to_its_end(
    server: Server, command: list[str], folder: Path, known: Counter[str], draw: random.Random
) -> Iterator[str]:
    """Give a command again and again, and disturb it each time, until it ends; yield what it has died of.

    known: places, and how often a run passes them; it is added to.
    """
    while True:
        how = draw.choice([*HOW, OUTSIDE])
        place = draw.choice(sorted(known))
        nth = draw.randint(1, max(1, known[place] // 3))
        child = server.start(command, folder, Trap(place, nth, HOW[how]) if how in HOW else None)
        if how == OUTSIDE and child.wait_for(draw.choice(("building", "training", "evaluation"))):
            time.sleep(draw.uniform(0, 1))
            with suppress(ProcessLookupError):
                child.kill(signal.SIGKILL)
        status = child.wait()
        assert "Traceback" not in child.output, child.output
        assert status in (0, -signal.SIGKILL, -signal.SIGTERM, 130, 143), child.output
        if status == 0:
            return
        trapped = [line for line in child.places if line.startswith("trapped: ")] or child.places
        yield f"{how}: {trapped[-1]}"
        for place, times in Counter(child.places).items():
            known[place] = max(known[place], times)


def disturbed(case: str, server: Server, folder: Path, number: int) -> Iterator[str]:
    """Disturb a case so often; yield what it died of, each time that it came to its end as undisturbed.

    Raises:
        AssertionError: it did not.
    """
    root = write_data(folder / "data")
    command = words(case, root)
    whole = server.start(command, make(folder / "whole"))
    assert whole.wait() == 0, whole.output
    expected, known, died = left(folder / "whole"), Counter(whole.places), 0
    draw = random.Random(case)
    for attempt in count():
        again = make(folder / f"{attempt}")
        deaths = [*brought_to_its_end(server, command, again, known, draw)]
        found = left(again)
        assert found.keys() == expected.keys()
        for name, record in found.items():
            assert_same(record, expected[name])
        yield from deaths
        died += len(deaths)
        if died >= number:
            return


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    number, *chosen = sys.argv[1:]
    killing.PATIENCE = 600.0  # also where other programs are at work
    for case in CASES:
        if not chosen or any(word in case for word in chosen):
            with tempfile.TemporaryDirectory() as here:
                os.environ["NORMBENCH_CACHE"] = f"{here}/cache"
                for line in disturbed(case, Server(Path(here)), Path(here), int(number)):
                    print(f"{case}: {line}", flush=True)
                print(f"{case}: all ends are those of an undisturbed run")
