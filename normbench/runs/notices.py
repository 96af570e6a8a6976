"""What a person is told when a run starts, and what a reader of its numbers must know of its norm."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import nn

from normbench.build import untreated_weights
from normbench.config.groups import content, options
from normbench.models import unsafe_convolutions
from normbench.runs.ledger import count_kept_norms, parameter_counts
from normbench.runs.plan import Run
from normbench.training.loop import Loop
from normbench.training.optimizer import MovingAverage
from normbench.types import Model, Norm
from normbench.wording import count, short, whole


def announcement(run: Run, loop: Loop, norms: Mapping[str, nn.Module], memory: str, start_step: int) -> list[str]:
    """Return the lines that say what runs and where, and the notes and warnings on it.

    Args:
        run: the run.
        loop: its model, with all that trains it.
        norms: of the model, by site.
        memory: a line on the memory of a step, or nothing.
        start_step: the steps that are done already.
    """
    names = run.config.choices.groups
    counts = parameter_counts(loop.model, norms.values())
    size = count(counts["total"], "parameter")
    if "trained" in counts:
        size += f", {whole(counts['trained'])} trained"
    model = " ".join([names["model"], *name_of_model(run)])
    model += f" ({size})"
    length = f"{count(run.steps, 'step')} on {run.device}"
    what = " · ".join([names["norm"], names["placement"], model, names["data"], length])
    lines = [what, f"run directory: {run.directory.path}"]
    experiment = names["experiment"]
    if experiment in options("experiment") and "hydra" in content("experiment", experiment):
        lines.append(f"note: this is one run; normbench sweep experiment={experiment} makes all runs of the experiment")
    if start_step:
        lines.append(f"going on from step {whole(start_step)}")
    for caveat in caveats(run).values():
        if caveat:
            lines.append(f"warning: {caveat}")
    if run.device.type == "cpu":
        unsafe = unsafe_convolutions(loop.model)
        if unsafe:
            lines.append(f"warning: {unsafe}")
    cut = run.data.describe().get("cut")
    if cut:
        lines.append(f"note: {cut:,} texts are longer than model.context, and are cut")
    if memory:
        lines.append(memory)
    lines += length_notes(run, loop)
    lines += norm_notes(run, norms)
    lines += lone_feature_notes(norms)
    lines += [f"note: {sentence}" for sentence in loop.model.notes()]
    lines += weight_notes(run, loop.model, norms)
    lines += decay_notes(run, loop.stepper.optimizer)
    return lines


def name_of_model(run: Run) -> list[str]:
    """Return the name of a model among the many of a library, where there is one."""
    name = run.config.tree["model"].get("name")
    return [name] if isinstance(name, str) else []


def weight_notes(run: Run, model: Model, norms: Mapping[str, nn.Module]) -> list[str]:
    """Return a note where a treatment of weights leaves some in branches as they are, since it does not know them."""
    recipe = run.config.recipe
    if not recipe.treats_weights:
        return []
    untreated = untreated_weights(model, norms.values())
    if not untreated:
        return []
    given = recipe.in_words("weights")
    first, *others = untreated
    what = f"{first} and {len(others)} more" if others else first
    return [
        f"note: {given} leaves {what} alone: it treats linear maps and convolutions (nn.Linear, nn.Conv1d to Conv3d)"
    ]


def decay_notes(run: Run, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return a note where decay is asked for, and the optimizer keeps the norm of most of what would decay."""
    decay = run.config.recipe["optim"].settings.get("weight_decay", 0.0)
    if not decay or not count_kept_norms(optimizer):
        return []
    given = run.config.recipe.in_words("optim")
    what = f"{given} keeps the norm of each matrix of blocks, on which decay does nothing"
    return [f"note: {what}: optim.weight_decay={short(decay)} is of embeddings, stem and head alone"]


def norm_notes(run: Run, norms: Mapping[str, nn.Module]) -> list[str]:
    """Return a note for each norm that is another one throughout this run, such as batchrenorm before it corrects."""
    batches = run.steps * run.config.closed.trainer.accumulate
    samples = run.config.tree["data"].get("batch_size", 0)
    notes: dict[str, None] = {}
    for norm in norms.values():
        if isinstance(norm, Norm):
            reason = norm.is_another(batches, samples)
            if reason:
                notes[f"note: {reason}"] = None
    return [*notes]


def lone_feature_notes(norms: Mapping[str, nn.Module]) -> list[str]:
    """Return warnings of norms over features that have a single one, and so leave little or nothing of it."""
    by_what: dict[str, list[str]] = {}
    for site, norm in norms.items():
        what = what_is_lost(norm)
        if what:
            by_what.setdefault(what, []).append(site)
    lines = []
    for what, sites in by_what.items():
        first, *others = sites
        where = f"{first} and {len(others)} more" if others else first
        cure = "give it more features, or leave the norm out there (norm@PLACE=none)"
        lines.append(f"warning: the norm of {where} has 1 feature, of which it leaves {what}: {cure}")
    return lines


def what_is_lost(norm: nn.Module) -> str:
    """Say what is left of a single feature that a norm normalizes by itself; empty where that is more than a sign."""
    features = getattr(norm, "num_features", 0) if isinstance(norm, Norm) else 0
    features = features or math.prod(getattr(norm, "normalized_shape", (0,)))  # of torch's own
    if features != 1:
        return ""
    tried = copy.deepcopy(norm).cpu().float().eval()
    x = torch.tensor([[0.5, 1.5], [-0.5, -1.5]])  # of two positions in two samples
    shaped = x[:, None, None] if getattr(norm, "channel_dim", -1) == 1 else x[..., None]
    try:
        with torch.no_grad():
            y = tried(shaped).flatten()
    except Exception:  # a norm of any library, on a CPU: what it raises here is told by the run, if it comes up there
        return ""
    if y.isclose(y[0], atol=1e-3).all():
        return "nothing"
    keeps_sign_alone = y[0].isclose(y[1], atol=1e-3) and y[2].isclose(y[3], atol=1e-3)
    return "nothing but the sign" if keeps_sign_alone else ""


def length_notes(run: Run, loop: Loop) -> list[str]:
    """Return notes where a run is too short for its average of the weights, or for its warm-up."""
    steps = run.steps
    lines = []
    average = loop.average
    if isinstance(average, MovingAverage) and average.rise >= steps:
        full = f"trainer.ema={short(average.decay)}, which takes {whole(average.rise)}"
        never = f"within {count(steps, 'step')} the average never reaches {full}"
        lines.append(f"warning: {never}; until then it is over the last tenth of the steps or so")
    warmup = loop.stepper.schedule.warmup_steps(steps)
    if warmup >= steps:
        lines.append(f"note: the run ends within its warm-up of {count(warmup, 'step')} (schedule.warmup)")
    return lines


def caveats(run: Run) -> dict[str, str | None]:
    """Return a sentence on what a norm leaks of the future, and one on what it counts of padding; None: nothing."""
    norms = [part.option for part in run.config.recipe.parts_of("norm")]
    norm = norms[0] if len(norms) == 1 else f"one of the norms ({', '.join(norms)})"
    leak = None
    if run.data.task.leaks(run.facts) == "training":
        over_time = f"{norm} takes statistics over time, so in training each position is shown its future"
        leak = f"{over_time}; the training loss is not comparable"
    padding = None
    if run.data.pads and run.facts.counts_padding:
        padding = f"{norm} counts the padding of shorter texts in its statistics"
    return {"leak": leak, "padding": padding}
