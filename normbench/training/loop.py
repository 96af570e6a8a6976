"""The training loop, and what judges a model in it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normbench.config.schema import ProbesConfig, TrainerConfig
from normbench.probes import Probes, Reading
from normbench.recording import Sink
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.clock import Clock
from normbench.training.guard import GRADIENT_NORM, Diverged, Runaway, first_nonfinite, make_guard
from normbench.training.optimizer import WeightAverage
from normbench.training.precision import Precision
from normbench.training.schedules import Schedule
from normbench.types import Batch, Data, Task, stable_seed

SAVED = ("step", "loss_count", "best_loss", "latest", "compile_seconds")  # what a checkpoint holds of the loop as it is


class Interrupted(Exception):
    """A signal asked the run to stop; the checkpoint holds everything up to here."""


@dataclass(frozen=True)
class Parts:
    """What a loop works with.

    average: of the weights, if one is kept. compiled: what runs in place of the model in training, if anything.
    """

    model: nn.Module
    data: Data
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    probes: Probes
    recorder: Sink
    checkpoints: Checkpoints
    device: torch.device
    precision: Precision
    average: WeightAverage | None = None
    compiled: Callable[..., Tensor] | None = None


class Loop:
    """Trains for `steps` optimizer steps; `step` counts those that are done.

    Everything random in a step is a function of (seed, step), so a checkpoint needs no generator's state, and the same
    step draws the same batch and dropout masks whatever the norm, the placement or the probes.
    """

    def __init__(self, parts: Parts, trainer: TrainerConfig, probes: ProbesConfig, steps: int, seed: int) -> None:
        self.parts, self.trainer, self.probes_config = parts, trainer, probes
        self.steps, self.seed = steps, seed
        self.step = 0
        self.latest: dict[str, float] = {}  # the newest value of each tag
        self.best_loss = math.inf
        self.clock = Clock(parts.device)
        self.guard = make_guard(parts.optimizer, parts.precision, parts.device)
        self.runaway = Runaway(trainer.divergence_factor, trainer.divergence_patience)
        self.base_lrs = [group["lr"] for group in parts.optimizer.param_groups]
        self.loss_sum = torch.zeros((), device=parts.device)
        self.loss_count = 0
        self.units = 0  # tokens, texts or images of the last step
        self.compile_seconds = 0.0  # what the first step took where torch.compile works in it
        self.grad_norm: Tensor = torch.zeros((), device=parts.device)

    # ---- the run

    def run(self, stop: Callable[[], bool], beat: Callable[[int], None]) -> None:
        """Train to the end.

        Args:
            stop: whether a signal has asked for a stop; asked before each step.
            beat: called with the step whenever something was logged.

        Raises:
            Diverged: the run has ended as a result.
            Interrupted: `stop` said so; a checkpoint was written.
        """
        self.parts.model.train()
        while self.step < self.steps:
            if stop():
                self.save()
                raise Interrupted
            self.train_step()
            if self.step % self.trainer.log_every == 0 or self.step in (1, self.steps):
                self.log()
                beat(self.step)
            if self.step % self.trainer.eval_every == 0 or self.step == self.steps:
                self.evaluate()
            if self.step % self.trainer.checkpoint_every == 0 or self.step == self.steps:
                self.save()

    def train_step(self) -> None:
        """Take one optimizer step, and probe on its way where that is due."""
        parts = self.parts
        self.clock.start()
        factor = parts.schedule.factor(self.step, self.steps)
        for group, lr in zip(parts.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor
        loss, reading = self.forward_backward()
        if not self.guard.admits(self.step, loss, self.grad_norm):
            self.diverge(self.step)
        with parts.probes.watch_update(reading):
            parts.precision.step(parts.optimizer, self.grad_norm)
        parts.optimizer.zero_grad(set_to_none=True)
        if parts.average is not None:
            parts.average.update()
        self.loss_sum += loss
        self.loss_count += 1
        self.step += 1
        self.clock.stop(counts=reading is None)
        if reading is not None:
            self.record_probes(reading)

    def forward_backward(self) -> tuple[Tensor, Reading | None]:
        """Return the loss, with its clipped gradients in the parameters, and what probes saw, if they were due.

        Probes ride on this very pass. A compiled model runs code of its own, which hooks cannot look into and must not
        change: there the uncompiled model runs the same batches beside it, and leaves no trace.
        """
        parts, compiled = self.parts, self.parts.compiled is not None  # torch's module has no truth value
        probing, histograms = self.probes_due()
        apart = self.probe_apart(histograms) if probing and compiled else None
        begun = time.perf_counter()
        with parts.probes.watch(histograms) if probing and not compiled else nullcontext(apart) as reading:
            loss = self.gradients(parts.model if parts.compiled is None else parts.compiled, parts.precision)
        self.grad_norm = self.clip()
        if compiled and not self.compile_seconds:
            loss.item()  # waits for the device
            self.compile_seconds = time.perf_counter() - begun
        return loss, reading

    def gradients(self, model: Callable[..., Tensor], precision: Precision) -> Tensor:
        """Return the mean loss over the step's batches, whose gradients add up in the parameters."""
        count = self.trainer.accumulate
        total = torch.zeros((), device=self.parts.device)
        self.units = 0
        for part in range(count):
            batch = self.seeded_batch(self.step * count + part)
            with precision.autocast():
                loss = self.parts.data.task.loss(model(*batch.arguments), batch.targets) / count
            precision.backward(loss)
            total += loss.detach()
            self.units += batch.targets.numel()
        precision.unscale(self.parts.optimizer)
        return total

    def probe_apart(self, histograms: bool) -> Reading:
        """Probe the uncompiled model on this step's batches and dropout masks, and put everything back as it was.

        It comes before the step itself, which moves the running statistics that probes compare a batch with.
        """
        parts = self.parts
        buffers = [(buffer, buffer.clone()) for buffer in parts.model.buffers()]
        with parts.probes.watch(histograms) as reading:
            self.gradients(parts.model, copy.deepcopy(parts.precision))
        parts.model.zero_grad(set_to_none=True)
        for buffer, before in buffers:
            buffer.copy_(before)
        return reading

    def seeded_batch(self, number: int) -> Batch:
        """Return a training batch (from 0) on the device, with the generators set to what its dropout draws from."""
        seed = stable_seed(self.seed, "dropout", number)
        if self.parts.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # as torch.manual_seed does there, in a hundredth of its time
        else:
            torch.manual_seed(seed)
        return to_device(self.parts.data.train_batch(number), self.parts.device)

    def clip(self) -> Tensor:
        """Scale the gradients down to the largest norm allowed; return the norm before."""
        parameters = [p for p in self.parts.model.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.trainer.grad_clip:
            nn.utils.clip_grads_with_norm_(parameters, self.trainer.grad_clip, norm)
        return norm

    def diverge(self, step: int) -> None:
        """End the run at a step (counted from 0) whose loss or gradient is not finite.

        Raises:
            Diverged: always.
        """
        self.parts.optimizer.zero_grad(set_to_none=True)
        for part in range(self.trainer.accumulate):
            batch = self.seeded_batch(step * self.trainer.accumulate + part)
            with self.parts.precision.autocast():
                where = first_nonfinite(self.parts.model, batch, self.parts.data.task)
            if where != GRADIENT_NORM:
                break
        raise Diverged(step + 1, f"not finite: {where}")

    def check_guard(self) -> None:
        """End the run if a bad step was let pass; asked before anything is recorded, evaluated or saved."""
        if (step := self.guard.tripped()) is not None:
            self.diverge(step)
        if self.parts.precision.lost():
            self.diverge(self.step - 1)

    # ---- what is recorded

    def record(self, values: dict[str, float]) -> None:
        """Record numbers of this step."""
        self.latest.update(values)
        self.parts.recorder.scalars(self.step, values)

    def log(self) -> None:
        """Record the training loss since the last log, gradient and weight norms, learning rate and speed."""
        self.check_guard()
        loss = self.loss_sum.item() / self.loss_count
        values = {
            "loss/train": loss,
            "optim/lr": self.parts.optimizer.param_groups[0]["lr"],
            "grad/norm": self.grad_norm.item(),
            "weight/norm": nn.utils.get_total_norm(list(self.parts.model.parameters())).item(),
        }
        step_ms = self.clock.recent()
        if step_ms is not None:
            values["time/step_ms"] = step_ms
            values[f"time/{self.parts.data.task.unit}_per_second"] = 1e3 * self.units / step_ms
        self.loss_sum.zero_()
        self.loss_count = 0
        self.record(values)
        self.parts.recorder.progress(self.step, self.latest)
        self.runaway.check(self.step, loss)

    def evaluate(self) -> None:
        """Record the validation loss; on the whole validation set at the last step."""
        self.check_guard()
        data = self.parts.data
        limit = None if self.step == self.steps else self.trainer.eval_batches
        values = self.tagged("val", data.eval_batches("val", limit))
        if self.parts.average is not None:
            values |= self.tagged("val_ema", data.eval_batches("val", limit), self.parts.average.model)
        if self.trainer.eval_train:
            values |= self.tagged("train_eval", data.eval_batches("train", self.trainer.eval_batches or 20))
        if data.has_test and self.step == self.steps:
            values |= self.tagged("test", data.eval_batches("test"))
        self.record(values)
        self.parts.recorder.progress(self.step, self.latest)
        self.keep_best(values["loss/val"])

    def keep_best(self, loss: float) -> None:
        """Keep the weights of the lowest validation loss where asked for; the same batches judge, also at the end."""
        if self.trainer.keep_checkpoint != "best":
            return
        if self.step == self.steps and self.trainer.eval_batches is not None:
            loss = self.tagged("val", self.parts.data.eval_batches("val", self.trainer.eval_batches))["loss/val"]
        if loss < self.best_loss:
            self.best_loss = loss
            self.parts.checkpoints.save_best({"step": self.step, "model": self.parts.model.state_dict()})

    def tagged(self, split: str, batches: Iterable[Batch], model: nn.Module | None = None) -> dict[str, float]:
        """Return what the batches of a split show of the model (or of another one), by tag."""
        with self.parts.precision.autocast():
            results = evaluate(model or self.parts.model, batches, self.parts.data.task, self.parts.device)
        return {f"{name}/{split}": value for name, value in results.items()}

    def probes_due(self) -> tuple[bool, bool]:
        """Tell whether probes, and histograms among them, are due at this step (counted from 1; the first one is)."""
        step, config = self.step + 1, self.probes_config
        histograms = due(step, config.histograms_every)
        return due(step, config.every) or histograms, histograms

    def record_probes(self, reading: Reading) -> None:
        """Record what a probed step has shown."""
        self.check_guard()
        self.record(reading.numbers())
        if reading.histograms:
            self.parts.recorder.histograms(self.step, reading.host_histograms())

    # ---- continuation

    def save(self) -> None:
        """Write a checkpoint; what was recorded up to here is on disk before it."""
        self.check_guard()
        self.parts.recorder.flush()
        self.parts.checkpoints.save(self.state())

    def state(self) -> State:
        """Return everything that an exact continuation needs."""
        return {
            **{name: getattr(self, name) for name in SAVED},
            "model": self.parts.model.state_dict(),
            "optimizer": self.parts.optimizer.state_dict(),
            "loss_sum": self.loss_sum,
            "first_loss": self.runaway.first,
            "runaway_since": self.runaway.since,
            "durations": self.clock.state(),
            "precision": self.parts.precision.state(),
            "average": None if self.parts.average is None else self.parts.average.state(),
        }

    def restore(self, state: State) -> None:
        """Go back to where `state` was taken."""
        for name in SAVED:
            setattr(self, name, state[name])
        self.parts.model.load_state_dict(state["model"])
        self.parts.optimizer.load_state_dict(state["optimizer"])
        self.loss_sum = state["loss_sum"].to(self.parts.device)
        self.runaway.first, self.runaway.since = state["first_loss"], state["runaway_since"]
        self.clock.restore(state["durations"])
        self.parts.precision.restore(state["precision"])
        if self.parts.average is not None:
            self.parts.average.restore(state["average"])


def due(step: int, every: int) -> bool:
    """Tell whether something done at the first step and then every so many (0: never) falls on this step."""
    return every > 0 and (step == 1 or step % every == 0)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on the device; copies to a GPU start from pinned memory, so that nothing waits for them."""
    if device.type == "cuda":
        batch = batch.map(Tensor.pin_memory)
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], task: Task, device: torch.device) -> dict[str, float]:
    """Return the task's metrics over all predictions.

    The device is waited for once, at the end.
    """
    training = model.training
    model.eval()
    # sums in place: small tensors kept from each batch would lie between the large ones and make the heap grow
    precise = torch.float32 if device.type == "mps" else torch.float64
    sums = torch.zeros(2, dtype=precise, device=device)
    count = 0
    for batch in batches:
        batch = to_device(batch, device)
        logits = model(*batch.arguments)
        loss, right = task.totals(logits, batch.targets)
        sums[0] += loss
        sums[1] += right
        count += batch.targets.numel()
    model.train(training)
    return task.metrics(*(sums / count).tolist())
