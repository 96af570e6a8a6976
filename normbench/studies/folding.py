"""What folding norms into their neighbours changes and saves; and a run's folded weights as a file."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from scipy import stats
from torch.nn import functional as F

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.build import resolve_device
from normbench.config.groups import find_own_classes
from normbench.errors import UsageError
from normbench.record.console import show_table
from normbench.record.files import write_bytes
from normbench.runs.load import TrainedRun
from normbench.settings import Setting
from normbench.studies.findings import arms_of, by_seed, compared, curves, estimated, labelled, shown
from normbench.studies.fold import Folded, fold, run
from normbench.studies.frame import Row, Study, Subject
from normbench.training.evaluation import to_device
from normbench.training.precision import make_precision
from normbench.types import PADDING, Batch, Model

PRECISIONS = {53: "float64", 24: "float32", 8: "bfloat16"}  # by the bits of the significand


def changes(model: Model, folded: Model, batches: Sequence[Batch]) -> Iterator[Row]:
    """Yield how far logits and loss are apart, by the significand's bits: folded from not, and not from in float64."""
    known, exact = {53: torch.float64, 24: torch.float32}, copy.deepcopy(model).double()
    with suppress(UsageError):
        known[8] = make_precision("bf16", batches[0].inputs.device).dtype
    for bits, dtype in known.items():
        plain, other = (copy.deepcopy(one).to(dtype) for one in (model, folded))
        for name, pair in {"folding": (plain, other), "rounding": (exact, plain)}.items():
            found = []
            for batch in batches:
                first, second = (run(one, batch) for one in pair)
                targets = batch.targets[batch.targets != PADDING]
                losses = [float(F.cross_entropy(one, targets)) for one in (first, second)]
                found.append((float((second - first).abs().max()), losses[1] - losses[0]))
            change, loss = np.transpose(found)
            if change.any():  # in float64 there is no rounding
                yield {"of": name, "bits": bits, "change": float(change.max()), "loss": float(abs(loss.mean()))}


@torch.inference_mode()
def timed(plain: Model, other: Model, batch: Batch, pairs: int) -> Row:
    """Return the other model's time over the plain one's, in turns: the median of pairs, and its 95 % interval."""
    seconds = np.empty((pairs + 1, 2))
    for turn in range(pairs + 1):
        for place in (turn % 2, 1 - turn % 2):
            begun = time.perf_counter()
            (plain, other)[place](*batch.arguments).flatten()[0].item()
            seconds[turn, place] = time.perf_counter() - begun
    ratios = np.sort(seconds[1:, 1] / seconds[1:, 0])  # the first warms up
    rank = max(int(stats.binom.ppf(0.025, pairs, 0.5)), 1)
    return {"time": float(np.median(ratios)), "low": float(ratios[rank - 1]), "high": float(ratios[-rank])}


class Folding(Study):
    """Measure what folding norms into their neighbours for inference changes, and what it saves.

    γ, β and running statistics go into the linear layers and convolutions beside a norm, and the mean goes out of a
    stream that only LayerNorms read, so that they are RMSNorms. In exact arithmetic this changes nothing; what it
    changes in float64, float32 and bfloat16 stands beside what each of these changes by itself. Time is that of a
    validation batch in float32, folded and not in turns.
    """

    trains = True

    def __init__(self, *, pairs: Annotated[int, Setting("pairs of timed batches", low=9)] = 41) -> None:
        self.pairs = pairs

    def check(self, subject: Subject) -> None:
        self.folded(subject)

    def folded(self, subject: Subject) -> tuple[Model, Folded]:
        """Return a subject's model, and the same folded.

        Raises:
            UsageError: nothing of it can be folded.
        """
        model, norms = subject.build()
        batch = subject.task.random_batch(2, torch.Generator().manual_seed(0))
        folded = fold(model, norms, to_device(batch, subject.device))
        if not folded.done:
            why = "; ".join(dict.fromkeys(folded.refused.values())) or "it has no norm"
            raise UsageError(f"nothing of {subject.path or 'this model'} can be folded ({why}): try placement=pre")
        return model, folded

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, folded = self.folded(subject)
        batches = [to_device(one, subject.device) for one in subject.data.eval_batches("val", 4)]
        yield from changes(model, folded.model, batches)
        size, new_size = (sum(p.numel() for p in one.parameters()) for one in (model, folded.model))
        counts = {"folded": len(folded.done), "kept": len(folded.refused), "saved": 100 * (1 - new_size / size)}
        yield counts | timed(model, copy.deepcopy(folded.model).float(), batches[0], self.pairs)

    def finding(self, rows: pd.DataFrame) -> list[str]:
        saved = rows.dropna(subset="time")
        found = list[str]()
        for arm in arms_of(saved):
            times = estimated(by_seed(saved, arm.settings, "time"), {"1 (no time saved)": 1.0})
            found.append(f"{labelled(arm)}: time of a batch, folded over not: {times}.")
        return found

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        saved, changed = (rows.dropna(subset=key) for key in ("time", "change"))
        return [compared(saved, values=["folded", "kept", "saved", "time", "low", "high"], columns=self.columns,
                         key="saved", title="What was folded, and what it saves"),
                compared(changed, values=["change", "loss"], by=["of", "bits"], columns=self.columns,
                         title="Changes")]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        return curves("folding", rows.dropna(subset="change"), x="bits", y="change", panel="of",
                       columns=self.columns, **self.captions["folding"])  # fmt: skip


def fold_run(path: str, out: Path | None, device: str = "auto", trust: bool = False) -> int:
    """Write a run's folded weights as safetensors; print what was folded, what it changes and saves; return the status.

    Raises:
        UsageError: nothing can be folded.
    """
    if trust:
        find_own_classes()
    trained, study = TrainedRun(path, trust), Folding()
    torch.set_num_threads(trained.sessions()[-1].get("threads") or 1)  # as the run itself
    subject = Subject({}, trained.tree, resolve_device(device), trained.data, trained.path, trust)
    _, folded = study.folded(subject)
    tensors = {name: tensor.contiguous() for name, tensor in folded.model.float().state_dict().items()}
    notes = {"run": trained.path.name, "folded": json.dumps(folded.done), "kept": json.dumps(folded.refused)}
    out = out or trained.path / "folded.safetensors"
    write_bytes(out, safetensors.torch.save(tensors, {"format": "pt", **notes}))
    *changed, saved = study.measure(subject)
    show_table("site", folded.done | folded.refused)
    for key, what in (("change", "largest change of a logit, nats"), ("loss", "change of the loss, nats")):
        show_table(what, {f"by {one['of']} in {PRECISIONS[one['bits']]}": shown(one[key]) for one in changed})
    show_table("saved", {study.columns[name].label: shown(value) for name, value in saved.items()})
    print(out)
    return 0
