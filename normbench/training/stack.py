"""Several seeds of an arm trained as one model, whose weights have a leading axis of seeds (torch.func.vmap)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.linalg import vector_norm
from torch.nn.attention import SDPBackend, sdpa_kernel

from normbench.errors import UsageError
from normbench.stopping import Stopped, allow_stops, check_stop, heed_stop, hold_stops
from normbench.training.devices import seed_generators
from normbench.training.evaluation import to_device
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.parallel import Group
from normbench.training.step import LocalBatch, Stepper
from normbench.types import Batch, stable_seed

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

ALIKE = 1e-3  # how far an optimizer's step may be from that of each seed alone, as a share of the largest


class StackGroup(Group):
    """What a loop of a stack has in place of a group of processes: its states are copies of its part of the stack."""

    def gather(self, state: Any) -> Any:
        if isinstance(state, Mapping):
            return {key: self.gather(value) for key, value in state.items()}
        if isinstance(state, Tensor):
            return state.clone()  # of a view torch.save would write the whole stack
        return state


class Live(NamedTuple):
    """A loop that still trains, and its place among the seeds."""

    place: int
    loop: Loop


class Stack(Stepper):
    """Trains the loops of several seeds in step: one forward and backward pass and one optimizer for all of them.

    Weights and buffers of each loop's model are views of tensors (seeds, ...). Batches, statistics, clipping, probes,
    evaluations, checkpoints and the end are each seed's own, as in a single run. Numbers differ from a single run's by
    rounding, since batched kernels add in another order, and by the dropout masks, which are drawn for all seeds at
    once: a function of all `seeds` and the step. Probes ride on each single model beside the step. A step's time is
    that of the whole divided by the seeds that it trains. Each step waits for the device, since one seed's may be bad.

    Each of `seeds` keeps its place: that of a run which is over, and has no loop, is filled with another's weights and
    batches, and a seed that has diverged is still computed, for no use of its own, so that the others keep their masks
    and bits.

    What is a number in `Stepper`, as the loss and the gradient's norm, is here one for each seed.

    Attributes:
        places: the loop of each seed, or, where its run is over, the one whose weights and batches fill its place.
        live: the loops that still train.
        kept: names of what the optimizer keeps of each weight.
        weights: by name, (seeds, ...), which are themselves parts of flats.
        flats: of each group of the optimizer, all its weights as (seeds, numbers).
        sizes: of each group, how many numbers each of its weights has.
        others: by name, (seeds, ...), all that the optimizer does not train.
    """

    def __init__(self, loops: Mapping[int, Loop], seeds: Sequence[int], make: MakeOptimizer) -> None:
        """Take over the weights, buffers and optimizers of loops, which stand at one step.

        Args:
            loops: by seed.
            seeds: all that the stack began with.
            make: makes the optimizer from its groups.

        Raises:
            UsageError: the optimizer does not treat weights one by one.
        """
        self.seeds = seeds
        self.first = next(iter(loops.values()))
        self.places = [loops.get(seed, self.first) for seed in seeds]
        self.live = list[Live]()
        for place, seed in enumerate(seeds):
            if seed in loops:
                self.live.append(Live(place, loops[seed]))
        self.kept = kept_of_each_weight(make, self.first.device)
        self.stack_tensors()
        alone = self.first.stepper
        super().__init__(
            model=alone.model,
            data=alone.data,
            optimizer=self.take_over_optimizers(make),
            schedule=alone.schedule,
            precision=alone.precision,
            device=alone.device,
            seed=alone.seed,
            steps=alone.steps,
            accumulate=alone.accumulate,
            grad_clip=alone.grad_clip,
            group=Group(),
        )
        self.base_lr = alone.base_lr
        self.base_lrs = alone.base_lrs  # the optimizers may be those of a later step
        self.losses = vmap(self.loss_of_seed, randomness="different")

    # ---- taking over

    def stack_tensors(self) -> None:
        """Make the loops' weights and buffers views of stacked ones."""
        self.stack_weights()
        self.stack_others()
        stacked = {**self.others, **self.weights}
        for live in self.live:
            for name, tensor in tensors_of(live.loop).items():
                tensor.data = stacked[name].detach()[live.place]

    def stack_weights(self) -> None:
        """Make `flats` of the weights that the optimizer trains, and `weights`, which are parts of these."""
        self.weights = dict[str, Tensor]()
        self.flats = list[Tensor]()
        self.sizes = list[list[int]]()
        names = {id(weight): name for name, weight in self.first.model.named_parameters()}
        for number in range(len(self.first.optimizer.param_groups)):
            group = weights_of_group(self.first, number)
            flat = stack_rows(weights_of_group(loop, number) for loop in self.places)
            sizes = [weight.numel() for weight in group]
            for weight, part in zip(group, flat.split(sizes, dim=1), strict=True):
                stacked = part.view(len(self.seeds), *weight.shape)
                self.weights[names[id(weight)]] = stacked.detach().requires_grad_()
            self.flats.append(flat)
            self.sizes.append(sizes)

    def stack_others(self) -> None:
        """Make `others` of all parameters and buffers but the weights."""
        self.others = dict[str, Tensor]()
        tensors_of_places = [tensors_of(loop) for loop in self.places]
        for name in tensors_of_places[0]:
            if name not in self.weights:
                values = [tensors[name].detach() for tensors in tensors_of_places]
                self.others[name] = torch.stack(values)

    def take_over_optimizers(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Return one optimizer, which goes on from the loops' states; theirs are asked of it for a checkpoint."""
        groups = []
        for group, flat in zip(self.first.optimizer.param_groups, self.flats, strict=True):
            groups.append({**group, "params": [flat]})
        optimizer = make(groups)
        for number, flat in enumerate(self.flats):
            first_weight = weights_of_group(self.first, number)[0]
            for name, value in self.first.optimizer.state.get(first_weight, {}).items():
                if name in self.kept:
                    value = stack_rows(kept_of_group(loop, number, name) for loop in self.places)
                optimizer.state[flat][name] = value
        for place, loop in self.live:
            loop.group = StackGroup()
            loop.optimizer.register_state_dict_pre_hook(partial(self.hand_out, place, loop))
        return optimizer

    def hand_out(self, place: int, loop: Loop, _: object) -> None:
        """Let a loop's optimizer have its part of the state, in a single run's form."""
        own_state = loop.optimizer.state
        for number, flat in enumerate(self.flats):
            weights = weights_of_group(loop, number)
            for name, value in self.optimizer.state.get(flat, {}).items():
                if name in self.kept:
                    parts = value[place].split(self.sizes[number])
                    for weight, part in zip(weights, parts, strict=True):
                        own_state[weight][name] = part.view_as(weight)
                else:
                    for weight in weights:
                        own_state[weight][name] = value

    # ---- the run

    def run(self, beat: Callable[[Loop], None], on_divergence: Callable[[Loop, Diverged], None]) -> int:
        """Train to the end, as `Loop.run` does; return the signal that has stopped it before, 0 for none.

        Args:
            beat: called for a loop whenever something of it was logged.
            on_divergence: called for each loop that has diverged, and is left alone then.

        Raises:
            Stopped: by a signal, in the first step of this process.
        """
        self.on_divergence = on_divergence
        number = 0
        for _, loop in self.live:
            loop.model.train()
        if any(loop.evaluation_is_due for _, loop in self.live):
            number = self.hold(self.evaluate_and_save)
        if self.is_at_work and not number:
            with allow_stops(nothing_to_lose=True):
                self.train_step()
            number = self.hold(partial(self.go_on, beat))
        return number

    def go_on(self, beat: Callable[[Loop], None]) -> None:
        """Train to the end after the first step of this process, as `Loop.go_on` does."""
        self.after_step(beat)
        while self.is_at_work:
            check_stop()
            self.train_step()
            self.after_step(beat)

    def after_step(self, beat: Callable[[Loop], None]) -> None:
        """Log all loops, then evaluate and save, so that a stop finds each of them logged."""
        for _, loop in list(self.live):
            with self.drop_diverged(loop):
                loop.log_step(partial(beat, loop))
        self.evaluate_and_save()

    def evaluate_and_save(self) -> None:
        """Evaluate and save each loop if due."""
        for _, loop in list(self.live):
            with self.drop_diverged(loop):
                loop.evaluate_and_save()

    def hold(self, work: Callable[[], None]) -> int:
        """Let signals wait for the pauses of a work; return the one that has stopped it, after checkpoints, or 0."""
        with hold_stops():
            try:
                work()
            except Stopped as stopped:
                heed_stop()
                for _, loop in list(self.live):
                    with self.drop_diverged(loop):
                        loop.save()
                return stopped.number
        return 0

    @property
    def is_at_work(self) -> bool:
        """Tell whether a loop has a step to take."""
        return bool(self.live) and self.steps_done < self.steps

    @property
    def steps_done(self) -> int:
        """Return how many steps the loops have done, which is the same for all."""
        return self.live[0].loop.step

    @contextmanager
    def drop_diverged(self, loop: Loop) -> Iterator[None]:
        """Go on without a loop that diverges inside."""
        try:
            yield
        except Diverged as result:
            self.live = [live for live in self.live if live.loop is not loop]
            for tensor in tensors_of(loop).values():
                tensor.data = tensor.data.clone()  # which the next steps leave alone
            with hold_stops(together=True):  # the others are in the middle of their step
                self.on_divergence(loop, result)

    def train_step(self) -> None:
        """Take one step with all seeds."""
        number = self.steps_done
        for _, loop in self.live:
            loop.begin_step()
        self.set_learning_rates(number)
        readings = {place: loop.probe_beside() for place, loop in self.live}
        losses = self.gradients(self.local_batches(number))
        finite = (losses.isfinite() & self.grad_norm.isfinite()).tolist()
        for place, loop in list(self.live):
            loop.stepper.grad_norm = self.grad_norm[place]
            loop.stepper.predictions = self.predictions
            if not finite[place]:
                with self.drop_diverged(loop):
                    loop.diverge(number)
        with ExitStack() as watching:
            for place, loop in self.live:
                reading = readings[place]
                loop.read_noise(reading)
                watching.enter_context(loop.probes.watch_update(reading, loop.optimizer))
            self.update()
        for place, loop in self.live:
            loop.end_step(losses[place], readings[place], seeds=len(self.live))

    # ---- what a step does for all seeds at once

    def make_guard(self) -> None:
        """Let no guard look at all seeds together: each has its own end."""

    def local_batch(self, batch_number: int) -> LocalBatch:
        """Return the batches of all seeds as one on the device; they have one shape and as many predictions."""
        batches = [loop.data.train_batch(batch_number) for loop in self.places]
        stacked: list[Any] = []
        for tensors in zip(*batches, strict=True):  # the inputs of all seeds, then the targets, and so on
            stacked.append(None if tensors[0] is None else torch.stack(tensors))
        ready = to_device(Batch(*stacked), self.device)
        seed_generators(self.device, stable_seed("dropout", batch_number, *self.seeds))
        predictions = batches[0].predictions
        return LocalBatch(ready, predictions, predictions)

    def loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """Return the loss of each seed on its batch."""
        # torch has no batched form of the other kernels for attention, or on a GPU none of their backward pass
        with sdpa_kernel(SDPBackend.MATH):
            return self.losses(self.weights, self.others, batch.arguments, batch.targets)

    def loss_of_seed(self, weights: Any, others: Any, arguments: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Return the loss of one seed on its batch."""
        return self.data.task.loss(functional_call(self.model, (weights, others), arguments), targets)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of each seed to those of the optimizer's weights."""
        weights = list(self.weights.values())
        gradients = torch.autograd.grad(loss.sum(), weights)
        rows = [gradient.reshape(len(self.seeds), -1) for gradient in gradients]
        start = 0
        for flat, sizes in zip(self.flats, self.sizes, strict=True):
            end = start + len(sizes)
            flat_gradient = torch.cat(rows[start:end], dim=1)
            flat.grad = flat_gradient if flat.grad is None else flat.grad + flat_gradient
            start = end

    def total_norm(self) -> Tensor:
        """Return the norm of the gradients of each seed."""
        norms_of_flats = [vector_norm(gradient, dim=1) for gradient in self.flat_gradients()]
        norms: Tensor = vector_norm(torch.stack(norms_of_flats), dim=0)
        return norms

    def clip(self) -> None:
        """Clip the gradients of each seed by their own norm."""
        if not self.grad_clip:
            return
        # 1e-6 as torch's clip_grads_with_norm_ has it, so that a stack clips as a single run does
        scales = (self.grad_clip / (self.grad_norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
        for gradient in self.flat_gradients():
            gradient.mul_(scales)

    def treat_weights(self) -> None:
        """Change the weights of each seed that a treatment changes after each step."""
        for _, loop in self.live:
            loop.stepper.treat_weights()

    def flat_gradients(self) -> list[Tensor]:
        """Return the gradients of the optimizer's weights, (seeds, numbers) each."""
        return [flat.grad for flat in self.flats if flat.grad is not None]


def weights_of_group(loop: Loop, number: int) -> list[Tensor]:
    """Return the weights in a group of a loop's optimizer."""
    group: list[Tensor] = loop.optimizer.param_groups[number]["params"]
    return group


def kept_of_group(loop: Loop, number: int, name: str) -> list[Tensor]:
    """Return what a loop's optimizer keeps under a name of each weight in one of its groups."""
    return [loop.optimizer.state[weight][name] for weight in weights_of_group(loop, number)]


def tensors_of(loop: Loop) -> dict[str, Tensor]:
    """Return the parameters and buffers of a loop's model."""
    tensors: dict[str, Tensor] = dict(loop.model.named_parameters())
    tensors.update(loop.model.named_buffers())
    return tensors


def stack_rows(rows: Iterable[Iterable[Tensor]]) -> Tensor:
    """Return the numbers of some tensors of each seed, as `(seeds, numbers)`."""
    stacked = list[Tensor]()
    for row in rows:
        numbers = [tensor.detach().flatten() for tensor in row]
        stacked.append(torch.cat(numbers))
    return torch.stack(stacked)


def kept_of_each_weight(make: MakeOptimizer, device: torch.device) -> set[str]:
    """Return the names of what an optimizer keeps of each weight, as it keeps momentum.

    Raises:
        UsageError: it does not treat weights one by one, so that seeds would meet in it.
    """
    random = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        """Return numbers of two seeds."""
        return torch.randn(2, 4, 3, generator=random).to(device)

    start = 1e-3 * draw()
    together = start.flatten(1).clone()  # as in a stack: a row for each seed
    apart = list(start.clone())
    stacked_optimizer = make([{"params": [together]}])
    plain_optimizer = make([{"params": apart}])
    for _ in range(3):
        gradient = draw()
        gradient[1] *= 10  # so that a step which depends on the size of the whole gradient differs from those apart
        together.grad = gradient.flatten(1)
        stacked_optimizer.step()
        for weight, gradient_of_seed in zip(apart, gradient, strict=True):
            weight.grad = gradient_of_seed.clone()
        plain_optimizer.step()
    reached = together.view_as(start)
    difference = (reached - torch.stack(apart)).abs().max()
    moved = (reached - start).abs().max()
    if difference > ALIKE * moved:
        name = type(stacked_optimizer).__name__
        raise UsageError(f"sweep.stack: {name} does not treat each weight by itself: use another, or sweep.stack=1")
    state = stacked_optimizer.state[together]
    kept = set[str]()
    for name, value in state.items():
        if getattr(value, "shape", None) == together.shape:
            kept.add(name)
    return kept
