"""What a norm's output depends on, measured in float64, and compared with the facts that it declares."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from normbench import assembly
from normbench.checking.norms import TOLERANCE, NormPart, error, run
from normbench.checking.outcomes import Check, Outcome, judged, measured
from normbench.checking.randomness import draws_of
from normbench.checking.samples import channel_dim

Change = Callable[[Tensor], Tensor]
LAST_SEEN = 3  # time steps before those that are changed

# What a stranger to the table of invariances may round to: ε is 0 where the norm has an `eps`.
INVARIANT = 1e-3


def behaviour(part: NormPart) -> Iterator[Check]:
    """What it depends on, in training and in evaluation."""
    yield Check("draws random numbers", partial(forward_draws, part))
    yield Check("evaluation differs from training", partial(evaluation_differs, part))
    yield Check("crosses samples in training", partial(crosses_samples, part, True))
    yield Check("crosses samples in evaluation", partial(crosses_samples, part, False))
    yield Check("sees later time steps", partial(sees_future, part))
    yield Check("centers: norm(x + c) = norm(x)", partial(centers, part))


def prepared(part: NormPart, layout: str, training: bool) -> nn.Module:
    """A norm in float64 whose running statistics, if any, have seen a few batches."""
    norm = part.lively(layout).double()
    for seed in range(3):
        run(norm.train(), part.input(layout, seed=10 + seed))
    return norm.train(training)


def deviation(norm: nn.Module, x: Tensor, changed: Tensor, kept: tuple[slice, ...] = ()) -> float:
    """How far a changed input moves the part of the output that is `kept`, as a share of the largest value."""
    y, z = (run(copy.deepcopy(norm), values) for values in (x, changed))
    return error(z[kept], y[kept])


def forward_draws(part: NormPart) -> Outcome:
    """Reported: its draws come before those of the dropout behind it, whose masks then differ from other norms'."""
    found = []
    for layout in part.layouts:
        norm, x = part.make(channel_dim(layout)), part.input(layout).float()
        found += [draws_of(partial(norm.train(training), x))[1] for training in (True, False)]
    kinds = sorted(set(filter(None, found)))
    note = f"{' and '.join(kinds)}: dropout behind it gets other masks than with other norms"
    return measured(bool(kinds), note if kinds else "")


def evaluation_differs(part: NormPart) -> Outcome:
    """The same input in the two modes, after a few batches of training."""
    differences = []
    for layout in part.layouts:
        norm, x = prepared(part, layout, training=False), part.input(layout)
        differences.append(error(run(norm, x), run(copy.deepcopy(norm).train(), x)))
    return measured(max(differences) > TOLERANCE, f"difference {max(differences):.1e}")


def crosses_samples(part: NormPart, training: bool) -> Outcome:
    """Change all samples but the first, and look at the first."""
    deviations = []
    for layout in part.layouts:
        x = part.input(layout)
        changed = torch.cat((x[:1], 3 * part.input(layout, seed=5)[1:] + 1))
        deviations.append(deviation(prepared(part, layout, training), x, changed, (slice(0, 1),)))
    found, figure = max(deviations) > TOLERANCE, f"deviation {max(deviations):.1e}"
    if not training or part.facts is None:
        return measured(found, figure)
    return declared(found, part.facts.crosses_samples, "crosses_samples", figure)


def declared(found: object, said: object, name: str, figure: str) -> Outcome:
    """Whether what was measured is what the facts say."""
    words = f"{'yes' if found is True else 'no' if found is False else found} ({figure})"
    return judged(found == said, f"{words}, facts.{name}={said}")


def sees_future(part: NormPart) -> Outcome:
    """Change the later time steps, and look at the earlier ones; `never`, in `training` alone, or `always`."""
    x = part.input("sequence")
    changed = torch.cat((x[:, :LAST_SEEN], 3 * part.input("sequence", seed=5)[:, LAST_SEEN:] + 1), dim=1)
    kept = (slice(None), slice(0, LAST_SEEN))
    norms = (prepared(part, "sequence", training) for training in (True, False))
    in_training, in_evaluation = (deviation(norm, x, changed, kept) for norm in norms)
    word = "always" if in_evaluation > TOLERANCE else "training" if in_training > TOLERANCE else "never"
    figure = f"deviation {in_training:.1e} in training, {in_evaluation:.1e} in evaluation"
    if part.facts is not None:
        return declared(word, part.facts.sees_future, "sees_future", figure)
    if word == "never":
        return measured(False, figure)
    return measured(True, f"{word} ({figure}): declare it as facts.sees_future, or train cannot warn of it")


def centers(part: NormPart) -> Outcome:
    """One number added to everything is gone with the mean."""
    layout = part.layouts[-1]
    norm, x = fresh(part, channel_dim(layout)), part.input(layout)
    moved = deviation(norm, x, x + 3)
    found, figure = moved < INVARIANT, f"deviation {moved:.1e}"
    return measured(found, figure) if part.facts is None else declared(found, part.facts.centers, "centers", figure)


# ---- invariances


def fresh(part: NormPart, channels: int = -1) -> nn.Module:
    """The norm as it starts, in float64, with ε = 0 if it has an `eps` that may be 0."""
    if "eps" in (assembly.accepted(part.tree, "norm") or ()):
        try:
            return part.make(channels, eps=0.0).double()
        except Exception:  # whatever its constructor says to an ε of 0
            pass
    return part.make(channels).double()


def invariances(part: NormPart) -> Iterator[Check]:
    """Of norm(Wx), before γ and β: table 1 of Ba et al. 2016 and of Zhang & Sennrich 2019."""
    generator = torch.Generator().manual_seed(0)
    w, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((part.width, 5), (6, 4, 5)))
    shift = torch.randn(5, generator=generator, dtype=torch.float64)
    one_vector, one_sample = torch.ones(part.width, 1, dtype=torch.float64), torch.ones(6, 1, 1, dtype=torch.float64)
    one_vector[2], one_sample[4] = 3, 3
    changes: dict[str, tuple[Tensor, Tensor]] = {
        "W × c": (3 * w, x),
        "W + 1·cᵀ": (w + shift, x),
        "one weight vector × c": (one_vector * w, x),
        "data × c": (w, 3 * x),
        "data + c": (w, x + 3),
        "one sample × c": (w, one_sample * x),
    }
    for name, (weight, data) in changes.items():
        yield Check(f"invariant: {name}", partial(invariance, part, x @ w.T, data @ weight.T))


def invariance(part: NormPart, h: Tensor, changed: Tensor) -> Outcome:
    """Input of (samples, time, features), in training."""
    moved = deviation(fresh(part), h, changed)
    return measured(moved < INVARIANT, f"deviation {moved:.1e}")
