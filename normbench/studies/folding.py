"""What folding norms into their neighbours changes and saves; and a run's folded weights as a file."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

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
from normbench.results import TrainedRun
from normbench.rundir import write_bytes
from normbench.settings import Setting
from normbench.studies.findings import arms_of, curves, is_arm, labelled, number, plain_table
from normbench.studies.fold import Folded, fold, run
from normbench.studies.frame import Column, Row, Study, Subject
from normbench.training.loop import to_device
from normbench.training.precision import make_precision
from normbench.types import Batch, Model


def changes(model: Model, folded: Model, batches: Sequence[Batch]) -> Iterator[Row]:
    """Yield how far logits and loss are apart, by the significand's bits: folded from not, and not from in float64."""
    known = {53: torch.float64, 24: torch.float32}
    with suppress(UsageError):
        known[8] = make_precision("bf16", batches[0].inputs.device).dtype
    exact = copy.deepcopy(model).double()
    for bits, dtype in known.items():
        plain, other = (copy.deepcopy(one).to(dtype) for one in (model, folded))
        for name, pair in {"folding": (plain, other), "rounding": (exact, plain)}.items():
            largest, losses, count = 0.0, np.zeros(2), 0
            for batch in batches if pair != (exact, plain) or bits < 53 else ():
                logits = [run(one, batch) for one in pair]
                largest = max(largest, float((logits[1] - logits[0]).abs().max()))
                flat = [(one.flatten(0, -2), batch.targets.flatten()) for one in logits]
                losses += [float(F.cross_entropy(*one, reduction="sum")) for one in flat]
                count += batch.targets.numel()
            if count:
                yield {"of": name, "bits": bits, "change": largest, "loss": abs(losses[1] - losses[0]) / count}


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


TIME = "time over the unfolded model's"
NOTE = "Time: the mean over seeds of the median ratio; in brackets the ends of all seeds' 95 % intervals."


class Folding(Study):
    """Measure what folding norms into their neighbours for inference changes, and what it saves.

    γ, β and running statistics go into the linear layers and convolutions beside a norm, and the mean goes out of a
    stream that only LayerNorms read, so that they are RMSNorms. In exact arithmetic this changes nothing; what it
    changes in float64, float32 and bfloat16 stands beside what each of these changes by itself. Time is that of a
    validation batch in float32, folded and not in turns.
    """

    title = "Norms folded into their neighbours"
    source = "FlashNorm, Graef et al. 2024; SliceGPT, Ashkboos et al. 2024, §3.1; BatchNorm: Jacob et al. 2018, §3.2"
    words = ("norm=layernorm,rmsnorm,dyt,batchnorm", "model.tied=false", "model.bias=true", "model.depth=2",
             "trainer.steps=100", "trainer.eval_every=100", "seed=0,1")  # fmt: skip
    trains = True
    columns: ClassVar[Mapping[str, Column]] = {
        "of": Column("change by"),
        "bits": Column("bits of the significand"),
        "change": Column("largest change of a logit", "nats", "log"),
        "loss": Column("change of the loss", "nats", "log"),
        "folded": Column("norms folded"),
        "kept": Column("norms or means kept"),
        "saved": Column("parameters saved"),
        "time": Column(TIME),
        "low": Column("lower end of the time's 95 % interval"),
        "high": Column("upper end of the time's 95 % interval"),
    }

    def __init__(
        self,
        *,
        batches: Annotated[int, Setting("batches of validation data", low=1)] = 4,
        pairs: Annotated[int, Setting("pairs of timed batches", low=9)] = 41,
    ) -> None:
        self.batches, self.pairs = batches, pairs

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
            cure = "placement=pre has norms before linear layers, and batchnorm can go into a layer before it"
            raise UsageError(f"nothing of {subject.path or 'this model'} can be folded ({why}): {cure}")
        return model, folded

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, folded = self.folded(subject)
        batches = [to_device(one, subject.device) for one in subject.data.eval_batches("val", self.batches)]
        yield from changes(model, folded.model, batches)
        size, new_size = (sum(p.numel() for p in one.parameters()) for one in (model, folded.model))
        counts = {"folded": len(folded.done), "kept": len(folded.refused), "saved": size - new_size}
        yield counts | timed(model, copy.deepcopy(folded.model).float(), batches[0], self.pairs)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        changed, saved = list[dict[str, str]](), list[dict[str, str]]()
        for arm in arms_of(rows):
            own = rows[is_arm(rows, arm.settings)]
            for bits, part in own.dropna(subset="bits").groupby("bits", sort=False):
                found = part.groupby("of", sort=False)[["change", "loss"]].max()
                cells = {f"{self.columns[value].label} by {of}": number(found[value].get(of, np.nan))
                         for value in found for of in ("folding", "rounding")}  # fmt: skip
                changed.append({"arm": labelled(arm), "bits": f"{bits:.0f}"} | cells)
            last = own.dropna(subset="time")
            time = f"{last['time'].mean():.2f} ({last['low'].min():.2f} to {last['high'].max():.2f})"
            whole = {key: f"{last[key].iloc[0]:,.0f}" for key in ("folded", "kept", "saved")}
            saved.append({"arm": labelled(arm)} | {self.columns[key].words: whole[key] for key in whole} | {TIME: time})
        return [plain_table("saved", "What was folded, and what it saves", saved, 1, NOTE),
                plain_table("changes", "The largest changes", changed, 2)]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        rows = rows[rows["of"].notna()]
        caption = "Largest change of a logit: folded against not in the same precision, and not folded against float64."
        return [curves("folding", rows, x="bits", y="change", panel="of", log="y", columns=self.columns,
                       title=self.title, caption=caption)]  # fmt: skip


def fold_run(path: str, out: Path | None, device: str = "auto", trust: bool = False) -> int:
    """Write a run's folded weights as safetensors; print what was folded, what it changes and saves; return the status.

    Raises:
        UsageError: nothing can be folded.
    """
    if trust:
        find_own_classes()
    trained, study = TrainedRun(path, trust), Folding()
    subject = Subject({}, trained.tree, resolve_device(device), trained.data, trained.path, trust)
    _, folded = study.folded(subject)
    tensors = {name: tensor.contiguous() for name, tensor in folded.model.float().state_dict().items()}
    notes = {"run": trained.path.name, "folded": json.dumps(folded.done), "kept": json.dumps(folded.refused)}
    out = out or trained.path / "folded.safetensors"
    write_bytes(out, safetensors.torch.save(tensors, {"format": "pt", **notes}))
    for title, sites in (("folded", folded.done), ("kept", folded.refused)):
        for site, what in sites.items():
            print(f"{title}  {site}: {what}")
    rows = pd.DataFrame([{"norm": trained.path.name, "seed": 0, **row} for row in study.measure(subject)])
    for table in study.tables(rows):
        for cells in table.frame.drop(columns="arm").to_dict("records"):
            print("; ".join(f"{name}: {cell}" for name, cell in cells.items() if cell == cell))
    print(out)
    return 0
