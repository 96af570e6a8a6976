"""Several seeds of an arm trained as one model, whose weights have a leading axis of seeds (torch.func.vmap)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.linalg import vector_norm
from torch.nn.attention import SDPBackend, sdpa_kernel

from normbench.errors import UsageError
from normbench.training.devices import seed_generators
from normbench.training.evaluation import to_device
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.optimizer import plain_step
from normbench.training.parallel import Group
from normbench.types import Batch, stable_seed

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

ALIKE = 1e-3  # how far an optimizer's step may be from that of each seed alone, as a share of the largest


class Place(Group):
    """What a loop has in place of a group of processes: its states are copies of its part of the stack."""

    def gathered(self, state: Any) -> Any:
        if isinstance(state, Mapping):
            return {key: self.gathered(value) for key, value in state.items()}
        return state.clone() if isinstance(state, Tensor) else state  # torch.save would write the whole stack


class Stack:
    """Trains the loops of several seeds in step: one forward and backward pass and one optimizer for all of them.

    Weights and buffers of each loop's model are views of tensors (seeds, ...). Batches, statistics, clipping, probes,
    evaluations, checkpoints and the end are each seed's own, as in a single run. Numbers differ from a single run's by
    rounding, since batched kernels add in another order, and by the dropout masks, which are drawn for all seeds at
    once: a function of all `seeds` and the step. Probes ride on each single model beside the step. A step's time is
    that of the whole divided by the seeds that it trains. Each step waits for the device, since one seed's may be bad.

    Each of `seeds` keeps its place: that of a run which is over, and has no loop, is filled with another's weights and
    batches, and that of a seed that has diverged is computed for nothing, so that the others' masks and bits stay.
    """

    def __init__(self, loops: Mapping[int, Loop], seeds: Sequence[int], make: MakeOptimizer) -> None:
        """Take over the weights, buffers and optimizers of loops, given by seed, which stand at one step.

        Raises:
            UsageError: the optimizer that `make` makes does not treat weights one by one.
        """
        self.seeds, self.first = seeds, next(iter(loops.values()))
        self.places = [loops.get(seed, self.first) for seed in seeds]
        self.live = [(place, loops[seed]) for place, seed in enumerate(seeds) if seed in loops]
        self.kept = kept_of_each_weight(make, self.first.device)
        self.weights, self.flats, self.sizes = dict[str, Tensor](), list[Tensor](), list[list[int]]()
        names = {id(weight): name for name, weight in self.first.model.named_parameters()}
        for number in range(len(self.first.optimizer.param_groups)):
            group = trained(self.first, number)
            self.flats.append(stacked(trained(loop, number) for loop in self.places))
            self.sizes.append([weight.numel() for weight in group])
            for weight, part in zip(group, self.flats[-1].split(self.sizes[-1], dim=1), strict=True):
                self.weights[names[id(weight)]] = part.view(len(seeds), *weight.shape).detach().requires_grad_()
        known = [tensors(loop) for loop in self.places]
        self.others = {name: torch.stack([each[name].detach() for each in known])
                       for name in known[0] if name not in self.weights}  # fmt: skip
        for place, loop in self.live:
            for name, tensor in tensors(loop).items():
                tensor.data = (self.weights if name in self.weights else self.others)[name].detach()[place]
        self.take_over(make)
        self.losses = vmap(self.loss, randomness="different")

    def take_over(self, make: MakeOptimizer) -> None:
        """Make the optimizer, which goes on from the loops' states; theirs are asked of it for a checkpoint."""
        groups = zip(self.first.optimizer.param_groups, self.flats, strict=True)
        self.optimizer = make([{**group, "params": [flat]} for group, flat in groups])
        for number, flat in enumerate(self.flats):
            states = [[loop.optimizer.state.get(own, {}) for own in trained(loop, number)] for loop in self.places]
            for name, value in states[0][0].items():
                whole = stacked([state[name] for state in each] for each in states) if name in self.kept else value
                self.optimizer.state[flat][name] = whole
        for place, loop in self.live:
            loop.group = Place()
            loop.optimizer.register_state_dict_pre_hook(partial(self.hand_out, place, loop))

    def hand_out(self, place: int, loop: Loop, _: object) -> None:
        """Let a loop's optimizer have its part of the state, in a single run's form."""
        for number, (flat, sizes) in enumerate(zip(self.flats, self.sizes, strict=True)):
            for name, value in self.optimizer.state.get(flat, {}).items():
                parts = value[place].split(sizes) if name in self.kept else [value] * len(sizes)
                for own, part in zip(trained(loop, number), parts, strict=True):
                    loop.optimizer.state[own][name] = part.view_as(own) if name in self.kept else part

    def run(self, stop: Sequence[int], beat: Callable[[Loop], None], ended: Callable[[Loop, Diverged], None]) -> int:
        """Train to the end, as `Loop.run` does. ended: called for each loop that has diverged, and is left alone."""
        self.ended = ended
        for _, loop in self.live:
            loop.model.train()
        while self.live and self.live[0][1].step < self.first.steps:
            if stop:
                for _, loop in self.live:
                    loop.save()
                return stop[0]
            self.train_step()
            for _, loop in [*self.live]:
                with self.alive(loop):
                    loop.follow(partial(beat, loop))
        return 0

    @contextmanager
    def alive(self, loop: Loop) -> Iterator[None]:
        """Go on without a loop that diverges inside."""
        try:
            yield
        except Diverged as result:
            self.live = [(place, other) for place, other in self.live if other is not loop]
            for tensor in tensors(loop).values():
                tensor.data = tensor.data.clone()  # which the next steps leave alone
            self.ended(loop, result)

    def train_step(self) -> None:
        """Take one step with all seeds."""
        for _, loop in self.live:
            loop.begin_step()
        readings = {place: loop.look_beside() for place, loop in self.live}
        losses, norms = self.gradients(), self.clip()
        finite = [all(map(math.isfinite, each)) for each in torch.stack((losses, norms), dim=1).tolist()]
        for place, loop in [*self.live]:
            loop.grad_norm = norms[place]
            if not finite[place]:
                with self.alive(loop):
                    loop.diverge(loop.step)
        with ExitStack() as watching:
            for place, loop in self.live:
                if (reading := readings[place]) is not None and loop.probing.updates:
                    loop.read_noise(reading)
                watching.enter_context(loop.probes.watch_update(reading, loop.optimizer))
                for group, own in zip(self.optimizer.param_groups, loop.optimizer.param_groups, strict=True):
                    group["lr"] = own["lr"]  # the same for all
            plain_step(self.optimizer)
        for place, loop in self.live:
            loop.end_step(losses[place], readings[place], len(self.live))

    def gradients(self) -> Tensor:
        """Return the loss of each seed, with its gradients in the optimizer's weights.

        The batches of all seeds have one shape, and every step's as many predictions.
        """
        _, now = self.live[0]
        count, device, losses, sums = now.trainer.accumulate, now.device, list[Tensor](), list[Tensor]()
        for number in range(now.step * count, (now.step + 1) * count):
            batches = [loop.data.train_batch(number) for loop in self.places]
            whole = Batch(*(torch.stack(each) for each in zip(*batches, strict=True) if each[0] is not None))
            batch = to_device(whole, device)
            seed_generators(device, stable_seed("dropout", number, *self.seeds))
            # torch has no batched form of the other kernels for attention, or on a GPU none of their backward pass
            with sdpa_kernel(SDPBackend.MATH), now.precision.autocast():
                losses.append(self.losses(self.weights, self.others, batch.arguments, batch.targets) / count)
            found = torch.autograd.grad(losses[-1].sum(), [*self.weights.values()])
            sums = [*torch._foreach_add(sums, found)] if sums else [*found]
        rows = iter([each.reshape(len(self.seeds), -1) for each in sums])
        for flat, sizes in zip(self.flats, self.sizes, strict=True):
            flat.grad = torch.cat([next(rows) for _ in sizes], dim=1)
        for _, loop in self.live:
            loop.units = count * batches[0].predictions
        return torch.stack([each.detach() for each in losses]).sum(dim=0)

    def loss(self, weights: Any, others: Any, arguments: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Return the loss of one seed on its batch."""
        return self.first.data.task.loss(functional_call(self.first.model, (weights, others), arguments), targets)

    def clip(self) -> Tensor:
        """Clip the gradients of each seed by their own norm, and return the norms."""
        found = [flat.grad for flat in self.flats if flat.grad is not None]
        norms = vector_norm(torch.stack([vector_norm(each, dim=1) for each in found]), dim=0)
        if most := self.first.trainer.grad_clip:
            for each in found:
                each.mul_((most / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1))
        return norms


def trained(loop: Loop, number: int) -> list[Tensor]:
    """Return the weights in a group of a loop's optimizer."""
    group: list[Tensor] = loop.optimizer.param_groups[number]["params"]
    return group


def tensors(loop: Loop) -> dict[str, Tensor]:
    """Return the parameters and buffers of a loop's model."""
    return dict([*loop.model.named_parameters(), *loop.model.named_buffers()])


def stacked(rows: Iterable[Iterable[Tensor]]) -> Tensor:
    """Return the numbers of some tensors of each seed, as `(seeds, numbers)`."""
    return torch.stack([torch.cat([each.detach().flatten() for each in row]) for row in rows])


def kept_of_each_weight(make: MakeOptimizer, device: torch.device) -> set[str]:
    """Return the names of what an optimizer keeps of each weight, as it keeps momentum.

    Raises:
        UsageError: it does not treat weights one by one, so that seeds would meet in it.
    """
    random = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(2, 4, 3, generator=random).to(device) for _ in range(4))
    together, apart = 1e-3 * start.flatten(1), [*(1e-3 * start)]
    optimizers = [make([{"params": each}]) for each in ([together], apart)]
    for gradient in gradients:
        gradient[1] *= 10
        together.grad = gradient.flatten(1)
        for own, each in zip(apart, gradient, strict=True):
            own.grad = each.clone()
        for optimizer in optimizers:
            plain_step(optimizer)
    steps = together.view_as(start) - 1e-3 * start
    if (together.view_as(start) - torch.stack(apart)).abs().max() > ALIKE * steps.abs().max():
        name = type(optimizers[0]).__name__
        raise UsageError(f"sweep.stack: {name} does not treat each weight by itself: use another, or sweep.stack=1")
    state = optimizers[0].state[together]
    return {name for name in state if getattr(state[name], "shape", None) == together.shape}
