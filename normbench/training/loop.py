"""The training loop."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from normbench.compiling import compiled
from normbench.config.schema import TrainConfig
from normbench.probes import Probes, Reading
from normbench.record.recorder import Recorder
from normbench.record.shapes import NUMBER, fits
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.clock import Clock
from normbench.training.devices import seed_generators
from normbench.training.evaluation import evaluate, to_device
from normbench.training.feed import Feed
from normbench.training.graph import StepGraph
from normbench.training.guard import GRADIENT_NORM, Diverged, Guard, buffers_kept, first_nonfinite
from normbench.training.launches import EarlySteps
from normbench.training.optimizer import WeightAverage, check_shapes
from normbench.training.parallel import Group, cut, whole
from normbench.training.precision import Precision
from normbench.training.recalibration import recalibrated
from normbench.training.schedules import Schedule
from normbench.types import Batch, Data, Model, stable_seed

MICRO_BATCHES = 4  # into which a batch is cut for the variance of its gradients
FEWEST = 2  # examples in one of them: statistics over a batch need two

# What a checkpoint holds of the loop as it is.
SAVED = {
    "step": int, "loss_count": int, "best_loss": NUMBER, "latest": {str: NUMBER}, "compile_seconds": NUMBER,
    "first_loss": NUMBER, "runaway_since": (int, NoneType),
}  # fmt: skip


@dataclass
class Loop:
    """Trains for `steps` optimizer steps; `step` counts those that are done.

    Everything random in a step is a function of (seed, step), so a checkpoint needs no generator's state, and the same
    step draws the same batch and dropout masks whatever the norm, the placement or the probes.

    recorder: to be set before it begins. latest: the newest value of each tag. loss_count: steps since the last log.
    first_loss: the first that was logged. runaway_since: the step from which on the logged loss is too large.
    compile_seconds: what the first step took where torch.compile works in it. units: tokens, texts or images of the
    last step, of all processes of the group.
    """

    model: Model
    data: Data
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    probes: Probes
    checkpoints: Checkpoints
    device: torch.device
    precision: Precision
    settings: TrainConfig
    steps: int
    group: Group = field(default_factory=Group)
    recorder: Recorder = field(init=False)
    step: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    best_loss: float = math.inf
    loss_count: int = 0
    first_loss: float | None = None
    runaway_since: int | None = None
    compile_seconds: float = 0.0
    units: int = 0

    def __post_init__(self) -> None:
        self.trainer, self.probing = self.settings.trainer, self.settings.probes
        self.eval_every = self.trainer.eval_every or math.ceil(self.steps / 10)
        self.clock, self.early = Clock(self.device), EarlySteps(self.device)
        self.parameters = [*self.model.parameters()]
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        # a scaled loss leaves out overflowing steps by itself, until its scale is lost
        latches = fused and self.device.type == "cuda" and not self.group.shards
        self.guard = None if self.precision.scales else Guard(self.optimizer, self.device, latches)
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.loss_sum, self.grad_norm = (torch.zeros((), device=self.device) for _ in range(2))
        self.average = None if self.trainer.ema is None else WeightAverage(self.model, self.trainer.ema)
        # compiled with eager mode's random numbers: its own would give other dropout masks
        options: Any = {"fallback_random": True, "triton.cudagraphs": self.trainer.compile == "cudagraphs"}
        self.shared = self.group.wrap(self.model)
        self.compiled = compiled(self.shared, options=options) if self.trainer.torch_compiles else None
        self.graph: StepGraph | None = None
        self.feed: Feed | None = None
        if self.trainer.compile == "graph":
            self.graph = StepGraph(self.model, self.optimizer, self.device)
            self.feed = Feed(self.data.train_batch, self.device, self.steps)

    # ---- the run

    def run(self, stop: Sequence[int], beat: Callable[[], None]) -> int:
        """Train to the end; return the signal that has stopped it before, 0 for none.

        Args:
            stop: signals that have asked for a stop; looked at before each step. A checkpoint is written then.
            beat: called whenever something was logged.

        Raises:
            Diverged: the run has ended as a result.
        """
        self.model.train()
        while self.step < self.steps:
            if number := self.group.stopped(stop):
                self.save()
                return number
            with self.look():
                self.train_step()
            self.follow(beat)
        return 0

    def look(self) -> AbstractContextManager[None]:
        """Look at the next step, if it is an early one that does nothing but train, by operators that can be seen."""
        if not self.clock.to_skip:  # it is none of the first steps, as nearly all
            return nullcontext()
        hidden = self.trainer.compile or any(getattr(module, "compiled", False) for module in self.model.modules())
        waits = self.precision.scales or self.group.size > 1
        if hidden or waits or self.probes_due:
            return nullcontext()
        return self.early.look(self.clock.to_skip)

    @property
    def probes_due(self) -> bool:
        """Say whether probes look at the next step."""
        return due(self.step + 1, self.probing.every) or due(self.step + 1, self.probing.histograms_every)

    def follow(self, beat: Callable[[], None]) -> None:
        """Do what is due behind a step: log, evaluate, save."""
        last = self.step == self.steps
        if last or due(self.step, self.trainer.log_every):
            self.log()
            beat()
        if last or self.step % self.eval_every == 0:
            self.evaluate()
        if last or self.step % self.trainer.checkpoint_every == 0:
            self.save()

    def train_step(self) -> None:
        """Take one optimizer step, and probe on its way where that is due."""
        self.begin_step()
        loss, reading = self.step_by_operators() if self.graph is None else self.step_by_graph(self.graph)
        self.end_step(loss, reading)

    def step_by_operators(self) -> tuple[Tensor, Reading | None]:
        """Move the weights; return the loss, and what probes saw, if due."""
        loss, reading = self.forward_backward()
        if self.guard and not self.guard.admits(self.step, loss, self.grad_norm):
            self.diverge(self.step)
        if reading is not None and self.probing.updates:
            self.read_noise(reading)
        with self.probes.watch_update(reading, self.optimizer):
            self.precision.step(self.optimizer, self.grad_norm)
        self.optimizer.zero_grad(set_to_none=True)
        return loss, reading

    def step_by_graph(self, graph: StepGraph) -> tuple[Tensor, Reading | None]:
        """Move the weights by a graph of the step; return the loss, and what probes saw beside it, if due."""
        reading = self.look_beside()
        if reading is not None and self.probing.updates:
            self.read_noise(reading)
        batch, _, self.units = self.seeded_batch(self.step)
        with self.probes.watch_update(reading, self.optimizer):
            loss, self.grad_norm = graph.take(self.step, partial(self.move, batch, graph.number))
        self.compile_seconds = self.compile_seconds or graph.seconds
        return loss, reading

    def move(self, batch: Batch, number: Tensor) -> tuple[Tensor, Tensor]:
        """Move the weights by a batch on the device; return the loss and the gradient's norm.

        This is what a graph records, so nothing here may wait for the device or set a generator.
        number: of the step, on the device; where the gradients are not finite the guard notes it.
        """
        loss = self.gradients(self.shared, self.precision, [(batch, batch.predictions, batch.predictions)])
        self.clip()
        if self.guard:
            self.guard.admits(number, loss, self.grad_norm)
        self.precision.step(self.optimizer, self.grad_norm)
        self.optimizer.zero_grad(set_to_none=True)
        return loss, self.grad_norm

    def begin_step(self) -> None:
        """Start the clock, and set the learning rates."""
        self.clock.start()
        factor = self.schedule.factor(self.step, self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor

    def end_step(self, loss: Tensor, reading: Reading | None, seeds: int = 1) -> None:
        """Take in what a step has given, once the weights have moved. seeds: that it has trained together."""
        if self.average is not None:
            self.average.update()
        self.loss_sum += loss
        self.loss_count += 1
        self.step += 1
        self.clock.stop(reading is None, seeds)
        if reading is not None:
            self.record(reading.numbers())
            if reading.histograms:
                self.recorder.histograms(self.step, reading.host_histograms())

    def forward_backward(self) -> tuple[Tensor, Reading | None]:
        """Return the loss, with its clipped gradients in the parameters, and what probes saw of this pass, if due.

        A compiled model runs code of its own, which hooks cannot look into and must not change.
        """
        compiled = self.compiled is not None  # torch's module has no truth value
        with nullcontext(self.look_beside()) if compiled else self.watched() as reading:
            begun = time.perf_counter()
            model = self.shared if self.compiled is None else self.compiled
            loss = self.gradients(model, self.precision, self.batches())
        self.clip()
        if compiled and not self.compile_seconds:
            loss.item()  # waits for the device
            self.compile_seconds = time.perf_counter() - begun
        return loss, reading

    def clip(self) -> None:
        """Take the norm of the gradients, and scale them down where it is too large."""
        self.grad_norm = whole(nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        clip = self.trainer.grad_clip
        # asking a GPU would wait for it; elsewhere gradients that are small enough are left alone
        if clip and (self.device.type != "cpu" or clip / (self.grad_norm + 1e-6) < 1):
            nn.utils.clip_grads_with_norm_(self.parameters, clip, self.grad_norm)

    def watched(self) -> AbstractContextManager[Reading | None]:
        """Let probes look at the step's forward and backward pass, if they are due."""
        histograms = due(self.step + 1, self.probing.histograms_every)
        return self.probes.watch(histograms) if self.probes_due else nullcontext()

    def look_beside(self) -> Reading | None:
        """Return what probes see, if they are due, where other code than the model's own makes the step.

        The model runs the same batches before it, while running statistics are as they were, and leaves no trace.
        """
        with self.watched() as reading:
            if reading is None:
                return None
            with buffers_kept(self.model):
                self.gradients(self.shared, copy.deepcopy(self.precision), self.batches())
        self.model.zero_grad(set_to_none=True)
        return reading

    def gradients(
        self, model: Callable[..., Tensor], precision: Precision, batches: Iterable[tuple[Batch, int, int]]
    ) -> Tensor:
        """Return the mean loss over the step's batches, whose gradients add up in the parameters.

        Each prediction counts alike, whichever batch or process has it.
        batches: each as `seeded_batch` returns it.
        """
        count, expected, self.units = self.trainer.accumulate, 0, 0
        total = torch.zeros((), device=self.device)
        for part, (batch, own, predictions) in enumerate(batches):
            expected = expected or count * predictions
            apart = getattr(model, "no_sync", nullcontext) if part < count - 1 else nullcontext
            with apart():
                with precision.autocast():
                    loss = self.data.task.loss(model(*batch.arguments), batch.targets)
                    loss = loss / (expected / (own * self.group.size))
                precision.scaler.scale(loss).backward()
            total += loss.detach()
            self.units += predictions
        if self.units != expected:  # parts that have not as many predictions as the first one
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], expected / self.units)
            total *= expected / self.units
        precision.scaler.unscale_(self.optimizer)
        return self.group.add(total) / self.group.size

    def read_noise(self, reading: Reading) -> None:
        """Let probes see the gradients of equal parts of the step's last batch, beside the step, which leave no trace.

        They are in training mode, with dropout masks of their own, and BatchNorm has the statistics of each part.
        """
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []), buffers_kept(self.model):
            batch, *_ = self.seeded_batch((self.step + 1) * self.trainer.accumulate - 1)
            size = max(len(batch.targets) // MICRO_BATCHES, FEWEST)
            if len(batch.targets) >= 2 * size:
                self.probes.read_noise(reading, self.part_gradients(batch, size), size)

    def part_gradients(self, batch: Batch, size: int) -> Iterator[Sequence[Tensor]]:
        """Yield the gradients of each part of a batch that has so many examples; those in the parameters stay."""
        scale = self.precision.scaler.scale(torch.ones((), device=self.device))
        for start in range(0, len(batch.targets) - size + 1, size):
            part = batch.map(itemgetter(slice(start, start + size)))
            with self.precision.autocast():
                loss = self.data.task.loss(self.model(*part.arguments), part.targets)
            found = torch.autograd.grad(scale * loss, self.probes.trained, materialize_grads=True)
            yield torch._foreach_div(found, scale)

    def batches(self) -> Iterator[tuple[Batch, int, int]]:
        """Yield the step's batches, each as `seeded_batch` returns it, when it is asked for."""
        count = self.trainer.accumulate
        return map(self.seeded_batch, range(self.step * count, (self.step + 1) * count))

    def seeded_batch(self, number: int) -> tuple[Batch, int, int]:
        """Return this process's share of a training batch (from 0) on the device, its predictions and the batch's.

        The generators are set to what its dropout draws from.
        """
        self.set_generators(number)
        if self.feed is not None:
            batch = self.feed.load(number)
            return batch, batch.predictions, batch.predictions
        whole = self.data.train_batch(number)
        if self.group.rank:  # other rows have other masks
            self.set_generators(number, self.group.rank)
        own = self.group.rows(whole)
        return to_device(own, self.device), own.predictions, whole.predictions

    def settle(self) -> None:
        """Let no thread be at work on the data, so that this one may ask them for batches, or for their state."""
        if self.feed is not None:
            self.feed.settle()

    def set_generators(self, *words: int) -> None:
        """Set the generators by a batch's number, and the rank of a process but the first."""
        seed_generators(self.device, stable_seed(self.settings.seed, "dropout", *words))

    def diverge(self, step: int) -> None:
        """End the run at a step (counted from 0) whose loss or gradient is not finite.

        Raises:
            Diverged: always.
        """
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(self.trainer.accumulate):
            batch, *_ = self.seeded_batch(step * self.trainer.accumulate + part)
            with self.precision.autocast():
                where = first_nonfinite(self.model, batch, self.data.task, self.group)
            if where != GRADIENT_NORM:
                break
        raise Diverged(step + 1, f"not finite: {where}")

    def check_guard(self) -> None:
        """End the run if a bad step was let pass; asked before anything is recorded or saved."""
        if self.guard and (step := self.guard.tripped()) >= 0:
            self.diverge(step)
        if self.precision.lost():
            self.diverge(self.step - 1)

    def check_runaway(self, loss: float) -> None:
        """End the run if its logged loss has stayed above `divergence_factor` × the first for `divergence_patience`.

        Raises:
            Diverged: it has.
        """
        factor, patience = self.trainer.divergence_factor, self.trainer.divergence_patience
        if self.first_loss is None:
            self.first_loss = loss
        if loss <= factor * self.first_loss:
            self.runaway_since = None
        elif self.runaway_since is None:
            self.runaway_since = self.step
        elif self.step - self.runaway_since >= patience:
            first = f"{factor:g} × its first value ({self.first_loss:.4g})"
            raise Diverged(self.runaway_since, f"the loss stayed above {first} for {patience} steps")

    # ---- what is recorded

    def record(self, values: dict[str, float]) -> None:
        """Record numbers of this step, unless a bad step has been let pass before."""
        self.check_guard()
        self.latest.update(values)
        self.recorder.scalars(self.step, values)

    def log(self) -> None:
        """Record the training loss since the last log, gradient and weight norms, learning rate and speed."""
        loss = self.loss_sum.item() / self.loss_count
        values = {
            "loss/train": loss,
            "optim/lr": self.optimizer.param_groups[0]["lr"],
            "grad/norm": self.grad_norm.item(),
            "weight/norm": whole(nn.utils.get_total_norm(self.parameters)).item(),
        }
        if (step_ms := self.clock.recent()) is not None:
            values["time/step_ms"] = step_ms
            values[f"time/{self.data.task.unit}_per_second"] = 1e3 * self.units / step_ms
        self.loss_sum.zero_()
        self.loss_count = 0
        self.record(values)
        self.check_runaway(loss)

    def evaluate(self) -> None:
        """Record the validation loss; on the whole validation set at the last step."""
        values, pages = dict[str, float](), dict[str, str]()
        for split, model, batches in self.judged(last=self.step == self.steps):
            found, page = self.tagged(split, model, batches)
            values |= found
            pages |= {f"{self.data.task.examples}/{split}": page} if page else {}
        self.record(values)
        self.recorder.texts(self.step, pages)
        if self.trainer.keep_checkpoint == "best":
            self.keep_best(values["loss/val"])

    def judged(self, last: bool) -> Iterator[tuple[str, nn.Module, Iterable[Batch]]]:
        """Yield what an evaluation judges: a name, a model and batches."""
        self.settle()
        data, limit = self.data, self.trainer.eval_batches
        yield "val", self.model, data.eval_batches("val", None if last else limit)
        if self.average is not None:
            yield "val_ema", self.average.model, data.eval_batches("val", None if last else limit)
        if self.trainer.eval_train:
            yield "train_eval", self.model, data.eval_batches("train", limit or 20)
        if last and data.has_test:
            yield "test", self.model, data.eval_batches("test")

    def keep_best(self, loss: float) -> None:
        """Keep the weights of the lowest validation loss; the same batches judge, also at the end."""
        if self.step == self.steps and self.trainer.eval_batches is not None:
            batches = self.data.eval_batches("val", self.trainer.eval_batches)
            with self.judging(self.model):
                loss = evaluate(self.model, batches, self.data.task, self.device, self.group)["loss"]
        if loss < self.best_loss:
            self.best_loss = loss
            self.checkpoints.save_best(self.group.gathered({"step": self.step, "model": self.model.state_dict()}))

    def tagged(self, split: str, model: nn.Module, batches: Iterable[Batch]) -> tuple[dict[str, float], str]:
        """Return what the batches of a split show of a model, by tag, and a page of examples."""
        task = self.data.task
        batches = [*batches] if task.judges else batches  # others may be too large to keep
        with self.judging(model):
            results = evaluate(model, batches, task, self.device, self.group)
            further, page = task.judge(model, batches, self.data, self.device) if task.judges else ({}, "")
        return {f"{name}/{split}": value for name, value in {**results, **further}.items()}, page

    @contextmanager
    def judging(self, model: nn.Module) -> Iterator[None]:
        """Give a model the running statistics with which it is evaluated."""
        self.group.spread(model.buffers())  # of a norm that is not synchronised
        done = self.step * self.trainer.accumulate
        with self.precision.autocast(), recalibrated(model, self.data, done, self.device):
            yield

    # ---- continuation

    def save(self) -> None:
        """Write a checkpoint; what was recorded up to here is on disk before it."""
        self.check_guard()
        self.recorder.flush()
        self.checkpoints.save(self.state())

    def stateful(self) -> dict[str, Any]:
        """Return what keeps a state of its own, by its name in a checkpoint."""
        parts = {"model": self.model, "optimizer": self.optimizer, "durations": self.clock, "precision": self.precision}
        return parts | {name: own for name in ("average", "data") if hasattr(own := getattr(self, name), "state_dict")}

    def state(self) -> State:
        """Return everything that an exact continuation needs."""
        self.settle()
        own = {name: getattr(self, name) for name in SAVED} | {"loss_sum": self.loss_sum}
        return self.group.gathered(own | {name: part.state_dict() for name, part in self.stateful().items()})

    def restore(self, state: State) -> None:
        """Go back to where `state` was taken.

        Raises:
            LookupError, ValueError, RuntimeError, TypeError, AttributeError: it is not of such a loop.
        """
        if not fits(state, SAVED) or state["loss_sum"].ndim:
            raise ValueError("the checkpoint holds something else")
        check_shapes(self.optimizer, state["optimizer"]["state"])
        for name in SAVED:
            setattr(self, name, state[name])
        self.loss_sum = state["loss_sum"].to(self.device)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state |= {"model": cut(state["model"], self.model.state_dict())}
        state["optimizer"] |= {"state": cut(state["optimizer"]["state"], dict(enumerate(parameters)))}
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])


def due(step: int, every: int) -> bool:
    """Tell whether something done at the first step and then every so many (0: never) falls on this step."""
    return every > 0 and (step == 1 or step % every == 0)
