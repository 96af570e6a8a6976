"""One training step, which the loop, stacked seeds, replayed graphs, studies and checks all take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbench.training.devices import seed_generators
from normbench.training.evaluation import to_device
from normbench.training.feed import Feed
from normbench.training.guard import Guard
from normbench.training.optimizer import LR_FACTOR
from normbench.training.parallel import Group, unshard
from normbench.training.precision import Precision
from normbench.training.schedules import Schedule
from normbench.types import Batch, Data, Model, stable_seed


class LocalBatch(NamedTuple):
    """This process's rows of a training batch.

    Attributes:
        own_predictions: how many predictions these rows have.
        predictions: how many the whole batch has, over all processes.
    """

    batch: Batch
    own_predictions: int
    predictions: int


@dataclass
class Stepper:
    """Moves the weights of a model, one optimizer step at a time:

        stepper.set_learning_rates(number)
        loss = stepper.gradients(stepper.local_batches(number))  # forward and backward, over `accumulate` batches
        if stepper.admits(number, loss):                  # both are finite
            stepper.update()                              # clip, the optimizer's step, treatments of weights

    Everything random in a step is a function of (seed, number), so a checkpoint needs no generator's state, and the
    same step draws the same batch and dropout masks whatever the norm, the placement or the probes.

    The number of a step is counted from 0.

    Attributes:
        steps: how many there will be, which the schedule needs to know.
        accumulate: batches in a step.
        wrapped: the model, in what averages its gradients over the processes.
        forward: what computes the logits: `wrapped`, or the same compiled.
        feed: brings the batches, where a thread prepares them.
        learning_rate: of the step, for parameters without a factor of their own on it.
        treatments: what changes weights after each step of the optimizer, as weights=unit does; mostly none.
        grad_norm: of the last gradients, before they were clipped.
        predictions: those of the last step, of all processes.
    """

    model: Model
    data: Data
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    precision: Precision
    device: torch.device
    seed: int
    steps: int
    accumulate: int
    grad_clip: float
    group: Group
    forward: Callable[..., Tensor] = field(init=False)
    feed: Feed | None = None
    treatments: Sequence[Callable[[], None]] = ()
    predictions: int = 0
    learning_rate: float = 0.0

    def __post_init__(self) -> None:
        self.parameters = [*self.model.parameters()]
        self.base_lr: float = self.optimizer.param_groups[0]["lr"]
        self.base_lrs = [group["lr"] * group.get(LR_FACTOR, 1.0) for group in self.optimizer.param_groups]
        self.grad_norm = torch.zeros((), device=self.device)
        self.wrapped: nn.Module = self.group.wrap(self.model)
        self.forward = self.wrapped
        self.guard = self.make_guard()

    def make_guard(self) -> Guard | None:
        """Return what checks that losses and gradients are finite; None where the scaling of the loss does that."""
        if self.precision.scales:  # it leaves out steps that overflow by itself, until the scale is lost
            return None
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        can_skip = fused or getattr(self.optimizer, "can_skip", False)
        latches = can_skip and self.device.type == "cuda" and not self.group.shards
        return Guard(self.optimizer, self.device, latches)

    # ---- the step

    def set_learning_rates(self, number: int) -> None:
        """Set the learning rates of a step."""
        factor = self.schedule.factor(number, self.steps)
        self.learning_rate = self.base_lr * factor
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * factor

    def gradients(self, local_batches: Iterable[LocalBatch]) -> Tensor:
        """Return the mean loss over a step's batches, with its gradients in the parameters."""
        loss = self.forward_backward(self.forward, self.precision, local_batches)
        self.grad_norm = self.total_norm()
        return loss

    def admits(self, number: int | Tensor, loss: Tensor) -> bool:
        """Tell whether the weights may move: see `Guard.admits`."""
        return self.guard is None or self.guard.admits(number, loss, self.grad_norm)

    def first_bad_step(self) -> int | None:
        """Return the first step that was admitted and was not finite; waits for the device."""
        return None if self.guard is None else self.guard.first_bad_step()

    def update(self) -> None:
        """Move the weights by the clipped gradients, treat them, and set the gradients to None."""
        self.clip()
        self.precision.step(self.optimizer, self.grad_norm)
        self.treat_weights()
        self.optimizer.zero_grad(set_to_none=True)

    # ---- its parts

    def forward_backward(
        self, forward: Callable[..., Tensor], precision: Precision, local_batches: Iterable[LocalBatch]
    ) -> Tensor:
        """Return the mean loss over a step's batches, whose gradients add up in the parameters.

        Each prediction counts alike, whichever batch or process has it: the batches are expected to have as many as
        the first one, and if they do not, loss and gradients are scaled at the end.
        """
        wait_with_sync = getattr(forward, "no_sync", nullcontext)  # DistributedDataParallel's
        total = torch.zeros((), device=self.device)
        expected = 0
        self.predictions = 0
        for part, local in enumerate(local_batches, 1):
            if part == 1:
                expected = self.accumulate * local.predictions
            is_last = part == self.accumulate
            with nullcontext() if is_last else wait_with_sync():
                loss = self.loss_part(forward, precision, local, expected)
                scaled = precision.scaler.scale(loss)
                self.backward(scaled)
            total = total + loss.detach()
            self.predictions += local.predictions
        if self.predictions != expected:
            correction = expected / self.predictions
            torch._foreach_mul_(self.known_gradients(), correction)
            total = total * correction
        precision.scaler.unscale_(self.optimizer)
        return self.group.add(total) / self.group.size

    def loss_part(
        self, forward: Callable[..., Tensor], precision: Precision, local: LocalBatch, expected: int
    ) -> Tensor:
        """Return a local batch's part of a step's mean loss.

        The parts of a process add up to its sum, and the mean of the sums of all processes is the step's loss.

        Args:
            forward: computes the logits.
            precision: what it runs in.
            local: the local batch.
            expected: predictions of the whole step, of all processes.
        """
        with precision.autocast():
            loss = self.loss(forward, local.batch)
            return loss / (expected / (local.own_predictions * self.group.size))

    def loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """Return the mean loss over the predictions of a batch."""
        return self.data.task.loss(forward(*batch.arguments), batch.targets)

    def mean_loss(self, number: int) -> Tensor:
        """Return the mean loss of a step as a function of the weights; nothing is added to the gradients."""
        total = torch.zeros((), device=self.device)
        expected = 0
        predictions = 0
        for part, local in enumerate(self.local_batches(number), 1):
            if part == 1:
                expected = self.accumulate * local.predictions
            total = total + self.loss_part(self.forward, self.precision, local, expected)
            predictions += local.predictions
        return total * (expected / predictions)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those in the parameters."""
        loss.backward()

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together."""
        norm: Tensor = unshard(nn.utils.get_total_norm(self.known_gradients()))
        return norm

    def known_gradients(self) -> list[Tensor]:
        """Return the gradients, for all parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def clip(self) -> None:
        """Scale the gradients down to the norm `grad_clip` if theirs is larger; never if that is 0."""
        if not self.grad_clip:
            return
        # asking a GPU would wait for it; elsewhere gradients that are small enough are left alone,
        # by the same bound that torch clips with
        if self.device.type != "cpu" or self.grad_clip / (self.grad_norm + 1e-6) < 1:
            nn.utils.clip_grads_with_norm_(self.parameters, self.grad_clip, self.grad_norm)

    def treat_weights(self) -> None:
        """Change the weights that a treatment changes after each step."""
        for treat in self.treatments:
            treat()

    # ---- its batches

    def local_batches(self, number: int) -> Iterator[LocalBatch]:
        """Yield this process's rows of each batch of a step; a batch is loaded when it is asked for."""
        first = number * self.accumulate
        return map(self.local_batch, range(first, first + self.accumulate))

    def local_batch(self, batch_number: int) -> LocalBatch:
        """Return this process's rows of a training batch, whose number is counted from 0, on the device.

        The random generators are set for the batch as well: its dropout draws from them.
        """
        self.set_generators(batch_number)
        if self.feed is not None:
            batch = self.feed.load(batch_number)
            return LocalBatch(batch, batch.predictions, batch.predictions)
        batch = self.data.train_batch(batch_number)
        if self.group.rank:  # other rows have other masks
            self.set_generators(batch_number, self.group.rank)
        local_rows = self.group.rows(batch)
        return LocalBatch(to_device(local_rows, self.device), local_rows.predictions, batch.predictions)

    def set_generators(self, *words: int) -> None:
        """Seed the random generators with a batch's number, and with the rank of a process that is not the first."""
        seed_generators(self.device, stable_seed(self.seed, "dropout", *words))
