"""Parts of a user's own with one fault each, and unusual ones without a fault."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from mypkg.parts import Stripes, TwoLayers
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.models import Transformer
from normbench.placements import Parallel, Pre
from normbench.types import Batch, Data, LanguageModeling, Model, Norm, NormFacts, Placement, Split, TextClassification

# ---- norms


class Rms(nn.Module):
    """x / √(ms(x) + ε), in the input's precision: what most of these are a change of."""

    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__()
        self.num_features, self.channel_dim = num_features, channel_dim
        self.make_parameters()

    def make_parameters(self) -> None:
        pass

    def factor(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x.square().mean(self.channel_dim, keepdim=True) + 1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor(x)


def norm(forward: Callable[[Any, Tensor], Tensor]) -> type[Rms]:
    """Make a norm with this forward."""
    return type("Changed", (Rms,), {"forward": forward})


def die(self: Any, x: Tensor) -> Tensor:
    """Die as a process does on a CPU without bfloat16."""
    if x.dtype == torch.bfloat16:
        faulthandler.disable()  # a fork of the tests has it on, and would write where it was among their results
        os.kill(os.getpid(), signal.SIGILL)
    return Rms.forward(self, x)


def hang(self: Any, x: Tensor) -> Tensor:
    """Never end in bfloat16."""
    if x.dtype == torch.bfloat16:
        time.sleep(600)
    return Rms.forward(self, x)


Hanging = norm(hang)
Single = norm(lambda self, x: Rms.forward(self, x.float()))
Half = norm(lambda self, x: x.half())
Wider = norm(lambda self, x: x.mean(-1))
Detached = norm(lambda self, x: x * self.factor(x).detach())
GradMatters = norm(lambda self, x: Rms.forward(self, x) * (1 if torch.is_grad_enabled() else 2))
Raising = norm(lambda self, x: x.no_such_thing())  # type: ignore[attr-defined]  # on purpose
NoNumber = norm(lambda self, x: x * float("nan") if x.ndim == 4 and x.dtype == torch.float32 else Rms.forward(self, x))
Noisy = norm(lambda self, x: Rms.forward(self, x) * (1 + 0.1 * torch.rand(()).item() if self.training else 1))
Centering = norm(lambda self, x: Rms.forward(self, x - x.mean(self.channel_dim, keepdim=True)))
Exploding = norm(lambda self, x: Rms.forward(self, x) * 1e30)
Dying = norm(die)
Squashing = norm(lambda self, x: torch.tanh(x.float()).to(x.dtype))  # autograd keeps what tanh returns
Passing = norm(lambda self, x: x.to(x.dtype))


class Idle(Rms):
    def make_parameters(self) -> None:
        self.weight = nn.Parameter(torch.ones(self.num_features))


class Drawn(Rms):
    def make_parameters(self) -> None:
        self.shift = nn.Parameter(0.1 * torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift.to(x.dtype)


class Unseeded(Drawn):
    def make_parameters(self) -> None:
        self.shift = nn.Parameter(torch.tensor(random.gauss()))


class Forgetful(Rms):
    """Evaluates with a running mean square that no state_dict has."""

    running = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x / self.running**0.5
        self.running = 0.9 * self.running + 0.1 * x.detach().square().mean().item()
        return super().forward(x)


class Growing(Rms):
    """Larger each time that it is called."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * 3.0**self.calls


class Lying(Rms, Norm):
    facts = NormFacts("features of one position", centers=True)
    eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean() + 1e-5)


class Honest(Lying):
    facts = NormFacts("the batch", centers=False, crosses_samples=True, sees_future="always")


class Unfinished(Norm):
    eps = None


# ---- placements


def placement(base: type = Pre, **members: Any) -> type[Placement]:
    """Make a placement with other members."""
    return type("Changed", (base,), members)


def draw(self: Any, x: Tensor, f: Any, norms: Any, context: dict[str, Any]) -> Tensor:
    """Skip a branch at random (stochastic depth), by the global random numbers."""
    return Pre.join(self, x, f, norms, context) + 0 * torch.rand(())


Halfway = placement(join=lambda self, x, f, norms, context: 0.5 * f.shortcut(x) + f(norms["in"](x), **context))
Deaf = placement(join=lambda self, x, f, norms, context: f.shortcut(x) + f(norms["in"](x)))
Shortcutless = placement(join=lambda self, x, f, norms, context: x + f(norms["in"](x), **context))
Cut = placement(forward=lambda self, x, **context: Pre.forward(self, x, **context)[..., :1])
Normless = placement(join=lambda self, x, f, norms, context: f.shortcut(x) + f(x, **context))
Drawing = placement(join=draw)
Negative = placement(branch_gain=-1.0)
Boundless = placement(branch_gain=float("inf"))
Doubled = placement(branch_norms=lambda self, *args: [Pre.branch_norms(self, *args) for _ in range(2)][-1])
# Nothing is wrong with it: both branches beside one skip that has a gain.
Strong = placement(Parallel, residual_gain=2.0, forward=lambda self, x, **more: Parallel.forward(self, x, **more) + x)


class Siteless(Pre):
    """Makes its norms without saying where they stand."""

    def __init__(self, branches: Any, norm: Any, site: Any) -> None:
        super().__init__(branches, lambda *args, site, **options: norm(*args, **options), site)


class Hidden(Pre):
    """Keeps its norms in a list."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.hidden = dict(self.norms.items())
        self.norms = nn.ModuleDict()

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role, branch in self.branches.items():
            x = self.join(x, branch, self.hidden[role], context)  # type: ignore[arg-type]  # ModuleDict holds Modules
        return x


# ---- models


def model(forward: Callable[[Any, Tensor], Tensor], **members: Any) -> type[Model]:
    """Make a model of images with another forward."""
    return type("Changed", (TwoLayers,), {"forward": forward, **members})


def peek(self: Any, inputs: Tensor, mask: Any = None) -> Tensor:
    """Mix what later tokens have given into earlier logits."""
    logits = Transformer.forward(self, inputs)
    return logits + 0.1 * logits.mean(dim=1, keepdim=True)


Restless = model(lambda self, inputs: TwoLayers.forward(self, inputs) + torch.rand(()))
OtherRoles = model(TwoLayers.forward, roles=("layer", "mlp"))
Peeking = type("Changed", (Transformer,), {"kinds": frozenset({"language_model"}), "forward": peek})
ReadingPadding = type("Changed", (Transformer,), {
    "kinds": frozenset({"text_classification"}),
    "forward": lambda self, inputs, mask=None: Transformer.forward(self, inputs),
})  # fmt: skip


class Short(TwoLayers):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[:, :-1]


class OwnDraws(TwoLayers):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.shift = nn.Parameter(torch.tensor([random.gauss() for _ in range(12)]))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.shift.sum()


class OwnGenerator(TwoLayers):
    """Draws from a generator that nobody seeds."""

    generator = torch.Generator()

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.shift = nn.Parameter(torch.randn(12, generator=self.generator))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.shift.sum()


class Mixed(TwoLayers):
    """Nothing is wrong with it: layers and a parameter that initialisation does not know, drawn behind its norms."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.convolution = nn.Conv1d(3, 4, 3)
        self.attention = nn.MultiheadAttention(12, 2)
        self.shift = nn.Parameter(torch.randn(12))


class Strided(TwoLayers):
    """Has a convolution whose gradients are not safe on the CPU, and one that is."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.skip = nn.Conv2d(4, 8, 1, stride=2)
        self.wide = nn.Conv2d(16, 8, 1, stride=2)


# ---- data


class NoKind(Data):
    pass


class Words(Data):
    """Nothing is wrong with it: texts of four words in two classes, three of them padded."""

    kind = "text_classification"
    pads = True
    fingerprint = "words"
    steps_per_epoch = 1

    def __init__(self, *, seed: int) -> None:
        self.task: Any = TextClassification(2, vocabulary_size=5, context=4)

    def train_batch(self, step: int) -> Batch:
        tokens = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 0], [1, 2, 0, 0], [3, 0, 0, 0]])
        return Batch(tokens, torch.tensor([0, 1, 0, 1]), torch.arange(4) < torch.tensor([4, 3, 2, 1])[:, None])

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        yield self.train_batch(0)

    def describe(self) -> dict[str, Any]:
        return {"name": "words"}


def stripes(batch: Callable[[Batch], Batch] = lambda batch: batch, **members: Any) -> type[Stripes]:
    """Make data with other batches or members."""
    return type("Changed", (Stripes,), {"batch": lambda self, i: batch(Stripes.batch(self, i)), **members})


def filled_up(self: Any, split: Split, limit: int | None = None) -> Iterator[Batch]:
    """Fill the last batch from the start."""
    return (self.batch(torch.arange(first, first + 20) % 64) for first in list(range(0, 64, 20))[:limit])


def sampled(self: Any, split: Split, limit: int | None = None) -> Iterator[Batch]:
    order = torch.randperm(64, generator=torch.Generator().manual_seed(self.seed))
    return map(self.batch, order.split(16)[:limit])


FromOne = stripes(lambda batch: batch._replace(targets=batch.targets + 1))
Impure = stripes(train_batch=lambda self, step: self.batch(torch.randint(64, (8,))))
Wrapped = stripes(eval_batches=filled_up)
Sampled = stripes(eval_batches=sampled)
Unlimited = stripes(eval_batches=lambda self, split, limit=None: Stripes.eval_batches(self, split))
NoTest = stripes(has_test=True, eval_batches=lambda self, split, limit=None: Stripes.eval_batches(self, split, limit)
                 if split != "test" else iter(()))  # fmt: skip


class Taskless(Stripes):
    def __init__(self, *, seed: int) -> None:
        pass


class Tuples(Stripes):
    def train_batch(self, step: int) -> Any:
        return tuple(super().train_batch(step))


Sourceless = type("Sourceless", (Stripes,), {"__module__": "nowhere"})


class OneHot(Stripes):
    def batch(self, indices: Tensor) -> Batch:
        return super().batch(indices)._replace(targets=F.one_hot(self.labels[indices], 2))


class NamedBySeed(Stripes):
    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.fingerprint = f"stripes-{seed}"


class PaddedInFront(Words):
    def train_batch(self, step: int) -> Batch:
        batch = super().train_batch(step)
        return batch._replace(mask=batch.mask.flip(1))  # type: ignore[union-attr]  # Words has one


class PaddedText(Words):
    kind = "language_model"

    def __init__(self, *, seed: int) -> None:
        self.task = LanguageModeling(vocabulary_size=5, context=4)

    def train_batch(self, step: int) -> Batch:
        batch = super().train_batch(step)
        return batch._replace(targets=batch.inputs)
