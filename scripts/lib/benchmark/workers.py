"""Measurements within a process: `workers.py NAME '{"settings": ...}'` prints JSON, one object a line."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kernels import floor, operations, profile_shares, record
from sources import SOURCES, WORDS
from torch import Tensor, nn
from torch.nn import functional as F

from normbench import build
from normbench.config.compose import read
from normbench.errors import UsageError
from normbench.record.recorder import Silent
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.studies.bench import last_level_cache
from normbench.studies.timing import do_nothing, forward_and_backward, seconds_of, time_in_turn
from normbench.training.estimate import estimate
from normbench.training.loop import Evaluation, Loop, due
from normbench.types import PADDING, LanguageModeling

Found = dict[str, Any]


def session_of(words: Sequence[str]) -> Session:
    """Return a run that is ready to train and records nothing."""
    session = Session(prepare(read([*words, "quiet=true"])))
    session.loop.recorder = Silent()
    session.loop.model.train()
    return session


def fastest(call: Callable[[], object], rounds: int) -> float:
    """Return the seconds of the fastest of some calls, each after one that warms up."""
    return min(seconds_of(call, prepare=call) for _ in range(rounds))


def peaks(quick: bool) -> Iterator[Found]:
    """Yield operations a second of the fastest matrix product, and bytes a second of a copy beyond the last cache."""
    rounds = 2 if quick else 7
    speeds = list[float]()
    for size in (1024, 1536, 2048):
        one, other = torch.randn(2, size, size)
        seconds = fastest(partial(torch.matmul, one, other), rounds)
        speeds.append(2 * size**3 / seconds)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    beyond_cache = max(2**28, 2 * last_level_cache(torch.device("cpu")))
    size = 2**26 if quick else min(beyond_cache, free // 4)
    source = torch.zeros(size // 4)
    target = torch.ones_like(source)
    seconds = fastest(partial(target.copy_, source), rounds)
    yield {"matrix": max(speeds), "copy": 2 * source.nbytes / seconds, "bytes": size}


# ---- where the time of a run goes


def account(words: Sequence[str], steps: int, evaluates: bool) -> Iterator[Found]:
    """Yield what a run takes, from some of its steps: seconds by class, its kernels alone, operations and bytes."""
    session = session_of(words)
    loop = session.loop
    trainer = loop.trainer
    whole = loop.steps
    found = dict[str, float]()
    session.make_directory()
    with closing(session.prepare()):
        for _ in range(steps):
            loop.train_step()
        step = statistics.median(loop.clock.read()) / 1e3
        saves = math.ceil(whole / trainer.checkpoint_every) * seconds_of(loop.save, 2)
        logs = whole / trainer.log_every * seconds_of(lambda: log(loop), 5)
        found["recording"] = logs + saves
        found["data"] = whole * seconds_of(lambda: loop.data.train_batch(loop.step), 10)
        for kind, share in profile_shares(loop.train_step, 3).items():
            found[kind] = whole * step * share
        first = partial(repeat_first_step, loop)
        kernels = record(first)
        flops = operations(first)
        alone = kernels.replay(steps // 6)
        # texts of other lengths are in the median step than in the one that is looked at
        like = step / seconds_of(first, 5) if session.run.data.pads else 1.0
        alone = {kind: like * seconds for kind, seconds in alone.items()}
        evaluation_floor = 0.0
        if evaluates:
            forward = floor(record_evaluation(loop).replay(5))
            batches = count_evaluated_batches(loop, last=False)
            last_batches = count_evaluated_batches(loop, last=True)
            with tempfile.TemporaryDirectory() as folder:
                seen = estimate(loop, Path(folder))
            found["evaluation"] = seen.evaluations(whole) * seen.evaluation + seen.last_evaluation
            evaluation_floor = forward * (seen.evaluations(whole) * batches + last_batches)
    yield {
        "seconds": found,
        "step": step,
        "run": whole * step + found["recording"] + found.get("evaluation", 0.0),
        "alone": floor(alone),
        "floor": whole * floor(alone) + evaluation_floor,
        "flops": like * flops,
        "bytes": like * kernels.bytes,
    }


def repeat_first_step(loop: Loop) -> None:
    """Take the first step of a run again."""
    loop.step = 1
    loop.train_step()


def log(loop: Loop) -> None:
    """Log as if a step had been taken since the last time."""
    loop.loss_count = max(1, loop.loss_count)
    loop.log()


def record_evaluation(loop: Loop) -> Any:
    """Return the operators of a validation batch."""
    batch = next(iter(loop.data.eval_batches("val", 1)))
    return record(lambda: loop.evaluate_one(Evaluation("val", loop.model, [batch])))


def count_evaluated_batches(loop: Loop, last: bool) -> int:
    """Return how many batches an evaluation takes; last: the one at the end of a run."""
    return sum(len(list(evaluation.batches)) for evaluation in loop.evaluations(last))


def recording(words: Sequence[str], rounds: int, steps: int) -> Iterator[Found]:
    """Yield the seconds of blocks of steps that take turns: bare, with recording, and with light probes as well."""
    lengths = [f"trainer.steps={(rounds + 1) * steps}", f"trainer.checkpoint_every={steps}"]
    probes = {"bare": "off", "recording": "off", "probes": "light"}
    sessions = dict[str, Session]()
    calls = list[Callable[[], object]]()
    for arm, option in probes.items():
        session = session_of([*words, *lengths, f"probes={option}", f"name={arm}"])
        sessions[arm] = session
        calls.append(partial(block, session, steps, arm != "bare"))
    recorders = [session for arm, session in sessions.items() if arm != "bare"]
    for session in recorders:
        session.make_directory()
        session.prepare()
    for number, seconds in enumerate(time_in_turn(calls, rounds + 1, prepare=do_nothing)):
        if number:  # the first warms up
            yield dict(zip(sessions, seconds, strict=True))
    for session in recorders:
        session.loop.recorder.close()


def block(session: Session, steps: int, records: bool) -> None:
    """Take some steps as `Loop.run` does, without evaluations."""
    loop = session.loop
    for _ in range(steps):
        loop.train_step()
        if records and due(loop.step, loop.trainer.log_every):
            loop.log()
            session.beat()
        if records and loop.step % loop.trainer.checkpoint_every == 0:
            loop.save()


def scaling(words: Sequence[str], larger: dict[str, str], rounds: int, steps: int) -> Iterator[Found]:
    """Yield, for each that is larger, the growth of a step's time over that of its operations."""
    base = session_of(words).loop
    loops = {name: session_of([*words, word]).loop for name, word in larger.items()}
    base_count = operations(base.train_step)
    counts = {name: operations(loop.train_step) for name, loop in loops.items()}
    seconds_of(base.train_step, 3)
    for loop in loops.values():
        loop.train_step()
    for _ in range(rounds):
        for name, loop in loops.items():
            small = seconds_of(base.train_step, steps)
            large = seconds_of(loop.train_step, max(1, steps // 4))
            yield {"name": name, "time": large / small, "flops": counts[name] / base_count, "step": large}


# ---- norms


def norms(rounds: int, rows: int, features: int) -> Iterator[Found]:
    """Yield the seconds of forward and backward of norms that take turns; first, what runs behind each name."""
    x, gradient = torch.randn(2, rows, features)
    made = {
        "layernorm": nn.LayerNorm(features),
        "dyt eager": PlainDyT(features),
        "rmsnorm": norm("rmsnorm", features),
        "dyt": norm("dyt", features),
    }
    try:
        made["rmsnorm compiled"] = norm("rmsnorm", features, "compile")
    except UsageError:  # which this version has no word for
        made["rmsnorm compiled"] = torch.compile(norm("rmsnorm", features, "eager"), dynamic=False, fullgraph=True)
    x.requires_grad_()
    calls = {name: forward_and_backward(each, x, gradient) for name, each in made.items()}
    failed = ""
    try:
        calls["rmsnorm compiled"]()
    except Exception as error:  # a compiler may raise anything
        failed = next(iter(str(error).splitlines()), type(error).__name__)
        del calls["rmsnorm compiled"]
    runs = {}
    for name, each in made.items():
        runs[name] = str(getattr(each, "implementation", type(each).__name__))
        if hasattr(each, "_orig_mod"):
            runs[name] = f"torch.compile of {runs[name]}"
    yield {"runs": runs, "failed": failed, "bytes": 5 * x.nbytes}
    for seconds in time_in_turn(list(calls.values()), rounds):
        yield dict(zip(calls, seconds, strict=True))


def newer(part: str, rounds: int, words: Sequence[str], texts: int) -> Iterator[Found]:
    """Yield the seconds of forward and backward of a language model, ours and with its source's modules, in turn.

    They are of the processor's time, which other work on the machine changes little, and so want a single thread.

    Args:
        part: the norm or the placement, in `sources`.
        rounds: how often.
        words: sizes of the model.
        texts: in a batch.

    Raises:
        AssertionError: with the same weights the two have other losses or gradients.
    """
    task = LanguageModeling(vocabulary_size=256, context=64)
    ours, _ = build.make_model(read([*WORDS[part], *words, "model=nano", "model.context=64"]).recipe, task, 0)
    batch = task.random_batch(texts, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in ours.parameters():  # away from starts at which parts do nothing
            parameter.add_(0.02 * torch.randn_like(parameter))
    try:
        theirs = SOURCES[part](ours)
    except (ImportError, RuntimeError) as error:  # a library that is not there, or does not fit torch
        yield {"failed": str(error)}
        return
    models = {"ours": ours, "theirs": theirs}

    def step(model: nn.Module) -> float:
        model.zero_grad()
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        return loss.item()

    losses = {who: step(model) for who, model in models.items()}
    torch.testing.assert_close(losses["theirs"], losses["ours"], rtol=1e-5, atol=0)
    sizes = [sum(each.grad.square().sum().item() for each in model.parameters() if each.grad is not None)
             for model in models.values()]  # fmt: skip
    torch.testing.assert_close(sizes[1], sizes[0], rtol=1e-3, atol=0)
    yield {"failed": ""}
    in_turn = list(models)
    for _ in range(rounds):
        seconds = dict[str, float]()
        for who in in_turn:
            step(models[who])  # warms up
            begun = time.process_time()
            step(models[who])
            seconds[who] = time.process_time() - begun
        yield seconds
        in_turn.reverse()


class PlainDyT(nn.Module):
    """DyT as its paper writes it: γ·tanh(αx) + β."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x) + self.bias


def norm(name: str, features: int, impl: str = "auto") -> nn.Module:
    """Return one of our norms.

    Raises:
        UsageError: there is no such implementation.
    """
    made: nn.Module = build.factory(read([f"norm={name}", f"norm.impl={impl}"]).recipe["norm"])(features)
    return made


# ---- translation


def speed(step: Callable[[int], int], steps: int) -> Iterator[Found]:
    """Yield how much of what a step returns is done a second, after the first steps."""
    warm = max(1, steps // 5)
    for number in range(warm):
        step(number)
    begun = time.perf_counter()
    done = sum(step(number) for number in range(warm, steps))
    yield {"speed": done / (time.perf_counter() - begun)}


def translator(words: Sequence[str], steps: int) -> Iterator[Found]:
    """Yield the tokens a second of our translator."""
    loop = session_of([*words, f"trainer.steps={steps}"]).loop

    def step(number: int) -> int:
        loop.train_step()
        return loop.stepper.predictions

    return speed(step, steps)


class Plain(nn.Module):
    """torch's own Transformer between one embedding and a linear layer with its weight."""

    def __init__(self, tree: Found, vocabulary: int) -> None:
        super().__init__()
        width = tree["width"]
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.head.weight = self.embedding.weight
        self.position = nn.Parameter(0.02 * torch.randn(tree["context"] + 1, width))
        self.transformer = nn.Transformer(
            width, tree["heads"], tree["depth"], tree["decoder_depth"], tree["hidden"], tree["dropout"],
            batch_first=True,
        )  # fmt: skip
        self.dropout = nn.Dropout(tree["dropout"])

    def embed(self, tokens: Tensor) -> Tensor:
        """Return tokens with their positions."""
        scaled = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.position[: tokens.shape[1]])

    def forward(self, source: Tensor, mask: Tensor, previous: Tensor, real: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(previous.shape[1], dtype=torch.bool)
        states = self.transformer(
            self.embed(source), self.embed(previous), tgt_mask=causal, src_key_padding_mask=~mask,
            tgt_key_padding_mask=~real, memory_key_padding_mask=~mask, tgt_is_causal=True,
        )  # fmt: skip
        return self.head(states)


def plain(words: Sequence[str], steps: int, shuffled: bool) -> Iterator[Found]:
    """Yield the tokens a second of a loop as a tutorial writes it, with torch's Transformer.

    shuffled: on sentences in any order, as a tutorial has them; else on our batches, of sentences of like length.
    """
    run = prepare(read([*words, f"trainer.steps={steps}"]))
    tree = run.config.tree
    task = run.data.task
    model = Plain(tree["model"], task.vocabulary_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tree["optim"]["lr"])
    data: Any = run.data
    order = torch.randperm(data.total, generator=torch.Generator().manual_seed(0)).split(data.batch_size)

    def step(number: int) -> int:
        batch = data.batch("train", order[number]) if shuffled else data.train_batch(number)
        logits = model(*batch.arguments).flatten(0, 1)
        smoothing = tree["data"]["label_smoothing"]
        loss = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=PADDING, label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return batch.predictions

    return speed(step, steps)


# ---- reports


def make_runs(folder: str, count: int) -> Iterator[Found]:
    """Make up run directories of 1,000 logged steps, as the tests make them."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
    from made_runs import make_run

    rates = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
    placements = ("pre", "post", "deep", "sandwich")
    made_norms = ("layernorm", "rmsnorm", "dyt", "groupnorm", "batchnorm")
    runs_of_seed = len(rates) * len(placements) * len(made_norms)
    seeds = range(math.ceil(count / runs_of_seed))
    runs = itertools.product(seeds, rates, placements, made_norms)
    for seed, lr, placement, norm in itertools.islice(runs, count):
        make_run(
            Path(folder), norm=norm, placement=placement, lr=lr, seed=seed, steps=10_000, eval_every=500, probed=1000,
            final=2 + lr * seed,
        )  # fmt: skip
    yield {"runs": count}


if __name__ == "__main__":
    for row in globals()[sys.argv[1]](**json.loads(sys.argv[2])):
        print(json.dumps(row), flush=True)
