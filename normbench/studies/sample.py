"""What a trained model does: the text that a language model writes, or how a classifier judges validation data."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.record.files import write_atomically
from normbench.runs.load import TrainedRun, Which, load_model
from normbench.settings import printable
from normbench.types import Batch, Model

Pixels = UInt8[np.ndarray, "channels height width"]

COLUMNS = 10  # of a page of images
SIDE = 1.1  # inches of the page that the longer side of an image has; it is the unit of the axes


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    prompt: text to go on from, or to translate; empty: a line's start, or validation sentences. tokens: how many follow
    it. temperature: divides the logits; 0 takes the likeliest token. top_k: only so many of the likeliest tokens are
    drawn from; None: all. seed: of the draws. count: how many examples; None: 60 images, 20 texts or sentences. out:
    where the page of images goes.
    """

    prompt: str = ""
    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0
    count: int | None = None
    out: str | None = None


def sample(
    path: str | os.PathLike[str], *, which: Which = "last", ema: bool = False, device: str = "auto",
    trust: bool = False, **wanted: Any,
) -> int:  # fmt: skip
    """Show what a run's model has learned, as its task has it; return the exit status.

    trust: as `TrainedRun` has it. wanted: fields of `Wanted`.

    Raises:
        UsageError: the run has no such model, or its data have changed.
    """
    run = TrainedRun(path, trust)
    torch.set_num_threads(1)  # a token at a time is too little work for more, which would only wait for each other
    model = load_model(run, which=which, ema=ema, device=device)
    data = run.data()
    SHOWN[data.task.examples](run, model, data, Wanted(**wanted))
    return 0


# ---- a language model


def show_text(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print text that the model writes."""
    start = prompt_tokens(wanted.prompt, data.encode)
    if not len(start):
        start = data.encode("\n")
    print(printable(data.decode(generate(model, start, data.task.context, wanted))))


def prompt_tokens(prompt: str, encode: Callable[[str], Any]) -> Any:
    """Return the tokens of a prompt, so that the model goes on in the line in which it ends.

    Where lines end in a token, every text ends in it, the empty one too: behind an unfinished line it is left out.
    """
    tokens = encode(prompt)
    unfinished = prompt and not prompt.endswith("\n")
    return tokens[: len(tokens) - len(encode(""))] if unfinished else tokens


@torch.no_grad()
def generate(model: nn.Module, prompt: Int64[Tensor, " time"], context: int, wanted: Wanted) -> Int64[Tensor, " more"]:
    """Return the prompt and `wanted.tokens` more tokens, each drawn from what the model expects behind those before it.

    Args:
        model: in evaluation mode; token ids (batch, time) to logits (batch, time, vocabulary).
        prompt: at least one token.
        context: the longest sequence that the model takes; earlier tokens are forgotten.
    """
    generator = torch.Generator().manual_seed(wanted.seed)
    device = next(model.parameters()).device
    tokens = prompt
    for _ in range(wanted.tokens):
        logits = model(tokens[None, -context:].to(device))[0, -1].float().cpu()
        tokens = torch.cat([tokens, draw(logits, wanted, generator)])
    return tokens


def draw(logits: Float[Tensor, " vocabulary"], wanted: Wanted, generator: torch.Generator) -> Int64[Tensor, "1"]:
    """Return one token."""
    if wanted.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if wanted.top_k is not None and wanted.top_k < len(logits):
        least = logits.topk(wanted.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    # from 0 down and in double precision: no temperature is too low for that
    cooled = (logits - logits.max()).double() / wanted.temperature
    return torch.multinomial(cooled.softmax(dim=-1).float(), 1, generator=generator)


# ---- a translator


def show_sentences(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print the translation of a text, or validation sentences with their references and translations.

    Raises:
        UsageError: the text is longer than the model's context.
    """
    task, device = data.task, next(model.parameters()).device
    if wanted.prompt:
        source = data.encode(wanted.prompt)
        if len(source) >= task.context:
            given = f"the text has {len(source) + 1:,} tokens with its end"
            raise UsageError(f"{given}, and the model takes {task.context:,}: give it in parts")
        [(_, _, found)] = task.translations(model, [task.batch([source], [source[:0]])], data, device)
        print(printable(found))
        return
    count = wanted.count or 20
    rows = task.translations(model, data.eval_batches("val", -(-count // data.eval_batch_size)), data, device)
    for place in range(shown := min(count, len(rows))):
        print(printable("\n".join((*rows[place * len(rows) // shown], ""))))


# ---- a classifier


class Judged(NamedTuple):
    """An example with its class and the predicted one.

    surprise: the predicted class's probability, negative where it is right: the surest mistakes have most of it, and of
    the right ones the least sure.
    """

    label: int
    predicted: int
    surprise: float
    inputs: Tensor


@torch.no_grad()
def classify(model: nn.Module, batches: Iterable[Batch], count: int) -> tuple[list[Judged], int, int]:
    """Return the `count` most surprising examples, the number of mistakes, and that of all examples.

    model: in evaluation mode; what a batch holds to logits (batch, classes).
    """
    device = next(model.parameters()).device
    kept: list[Judged] = []
    total = mistakes = 0
    for batch in batches:
        logits = model(*batch.map(lambda tensor: tensor.to(device)).arguments).float().cpu()
        probabilities, predicted = logits.softmax(dim=-1).max(dim=-1)
        wrong = predicted != batch.targets.cpu()
        surprise = torch.where(wrong, probabilities, -probabilities)
        inputs = [row.clone() for row in batch.inputs]
        if batch.mask is not None:
            inputs = [row[real] for row, real in zip(inputs, batch.mask, strict=True)]
        kept += map(Judged, batch.targets.tolist(), predicted.tolist(), surprise.tolist(), inputs)
        kept = nlargest(count, kept, key=lambda example: example.surprise)
        total += len(predicted)
        mistakes += int(wrong.sum())
    return kept, mistakes, total


def classified(run: TrainedRun, model: Model, data: Any, count: int) -> tuple[list[Judged], str, Sequence[str]]:
    """Return the examples to show, mistakes first, a line on all of them, and the names of the classes."""
    examples, wrong, total = classify(model, data.eval_batches("val"), count)
    classes = getattr(data, "classes", None) or [str(number) for number in range(data.task.num_classes)]
    of_all = f"{wrong:,} of {total:,} validation {data.task.unit}"
    return examples, f"{run.path.name}: {wrong / total:.2%} errors ({of_all})", classes


def show_texts(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print a table of classified texts: on a terminal in its width, mistakes in red; else a line for each text."""
    examples, title, classes = classified(run, model, data, wanted.count or 20)
    table = Table("", "class", "predicted", "probability", "text", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for label, predicted, surprise, inputs in examples:
        wrong, text = surprise > 0, " ".join(data.decode(inputs).split())
        row = "wrong" if wrong else "right", classes[label], classes[predicted], f"{abs(surprise):.0%}", text
        table.add_row(*map(Text, row), style="red" if wrong else "")
    print(title)
    Console(width=None if sys.stdout.isatty() else 10**6).print(table)


def show_images(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Write a page of classified images."""
    examples, title, classes = classified(run, model, data, wanted.count or 60)
    page = draw_page(title, examples, [data.pixels(example.inputs[None])[0].numpy() for example in examples], classes)
    path = Path(os.path.expanduser(wanted.out)) if wanted.out else run.path / "samples.png"
    try:
        write_atomically(path, lambda file: page.savefig(file, format="png", bbox_inches="tight"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): give another file with --out") from error
    print(f"{title}\n{path}")


def draw_page(title: str, examples: Sequence[Judged], images: Sequence[Pixels], classes: Sequence[str]) -> Figure:
    """Draw images in rows, each with what was predicted; mistakes have a red frame, and their class in red words."""
    columns = min(COLUMNS, len(examples))
    high, wide = (side / max(images[0].shape[1:]) for side in images[0].shape[1:])
    captions = [  # whole names, as two may begin alike
        "\n".join(
            fill(line, 20)
            for line in (f"is {classes[label]}", f"{classes[guess]} ({abs(surprise):.0%})")[surprise <= 0 :]
        )
        for label, guess, surprise, _ in examples
    ]
    row = high + 0.15 + 0.12 * max(caption.count("\n") + 1 for caption in captions)
    width, height = 1.25 * columns, row * math.ceil(len(examples) / columns)
    page = Figure(figsize=(SIDE * width, SIDE * height))
    axes = page.add_axes((0, 0, 1, 1))
    for place, (example, pixels, caption) in enumerate(zip(examples, images, captions, strict=True)):
        left, top, color = 1.25 * (place % columns), row * (place // columns), "red" if example.surprise > 0 else "gray"
        axes.imshow(pixels.transpose(1, 2, 0), "gray", vmin=0, vmax=255, extent=(left, left + wide, top + high, top))
        axes.text(left, top + high + 0.04, caption, color=color, fontsize="x-small", va="top", parse_math=False)
        if example.surprise > 0:
            axes.add_patch(Rectangle((left, top), wide, high, fill=False, edgecolor=color, linewidth=3))
    axes.set(xlim=(-0.1, width), ylim=(height, -0.1))
    axes.set_title(title, loc="left", fontsize="medium", parse_math=False)
    axes.set_axis_off()
    return page


SHOWN = {"text": show_text, "images": show_images, "texts": show_texts, "sentences": show_sentences}
