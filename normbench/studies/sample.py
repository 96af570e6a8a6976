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
from normbench.wording import fixed, whole

Pixels = UInt8[np.ndarray, "channels height width"]

COLUMNS = 10  # of a page of images
SIDE = 1.1  # inches that the longer side of an image has on the page

# In longer sides of an image, the unit of the axes.
COLUMN_WIDTH = 1.25
ABOVE = 0.15  # each image
LINE = 0.12  # height of a line of a caption


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        prompt: text to go on from, or to translate; empty: a line's start, or validation sentences.
        tokens: how many follow it.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens are drawn from; None: all.
        seed: of the draws.
        count: how many examples; None: 60 images, or 20 texts or sentences.
        out: where the page of images goes.
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

    Args:
        path: the run's directory.
        which: of its checkpoints.
        ema: whether to take the moving average of its weights.
        device: where the model runs.
        trust: as `TrainedRun` has it.
        wanted: fields of `Wanted`.

    Raises:
        UsageError: the run has no such model, or its data have changed.
    """
    run = TrainedRun(path, trust)
    torch.set_num_threads(1)  # one token at a time is too little work for more: they would only wait for each other
    model = load_model(run, which=which, ema=ema, device=device)
    data = run.data()
    show = SHOWN[data.task.examples]
    show(run, model, data, Wanted(**wanted))
    return 0


# ---- a language model


def show_text(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print text that the model writes."""
    start = prompt_tokens(wanted.prompt, data.encode)
    if not len(start):
        start = data.encode("\n")
    tokens = generate(model, start, data.task.context, wanted)
    print(printable(data.decode(tokens)))


def prompt_tokens(prompt: str, encode: Callable[[str], Any]) -> Any:
    """Return the tokens of a prompt, so that the model goes on in the line in which it ends.

    Where lines end in a token, every text ends in it, the empty one too: after an unfinished line it is left out.
    """
    tokens = encode(prompt)
    is_unfinished = prompt and not prompt.endswith("\n")
    if not is_unfinished:
        return tokens
    return tokens[: len(tokens) - len(encode(""))]


@torch.no_grad()
def generate(model: nn.Module, prompt: Int64[Tensor, " time"], context: int, wanted: Wanted) -> Int64[Tensor, " more"]:
    """Return the prompt and `wanted.tokens` more tokens, each drawn from what the model expects after those before it.

    Args:
        model: in evaluation mode; token ids (batch, time) to logits (batch, time, vocabulary).
        prompt: at least one token.
        context: the longest sequence that the model takes; earlier tokens are forgotten.
    """
    generator = torch.Generator().manual_seed(wanted.seed)
    device = next(model.parameters()).device
    tokens = prompt
    for _ in range(wanted.tokens):
        window = tokens[None, -context:].to(device)
        logits = model(window)[0, -1].float().cpu()
        tokens = torch.cat([tokens, draw(logits, wanted, generator)])
    return tokens


def draw(logits: Float[Tensor, " vocabulary"], wanted: Wanted, generator: torch.Generator) -> Int64[Tensor, "1"]:
    """Return one token, drawn from what the logits expect, or the likeliest one at temperature 0."""
    if wanted.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if wanted.top_k is not None and wanted.top_k < len(logits):
        least = logits.topk(wanted.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    # the largest is 0 then, and in double precision no temperature is too low to divide by
    cooled = (logits - logits.max()).double() / wanted.temperature
    return torch.multinomial(cooled.softmax(dim=-1).float(), 1, generator=generator)


# ---- a translator


def show_sentences(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print the translation of a text, or validation sentences with their references and translations.

    Raises:
        UsageError: the text is longer than the model's context.
    """
    task = data.task
    device = next(model.parameters()).device
    if wanted.prompt:
        source = data.encode(wanted.prompt)
        if len(source) >= task.context:
            length_of_text = f"the text has {len(source) + 1:,} tokens with its end"
            raise UsageError(f"{length_of_text}, and the model takes {task.context:,}: give it in parts")
        batch = task.batch([source], [source[:0]])
        [(_, _, translation)] = task.translations(model, [batch], data, device)
        print(printable(translation))
        return
    count = wanted.count or 20
    batches = math.ceil(count / data.eval_batch_size)
    rows = task.translations(model, data.eval_batches("val", batches), data, device)
    shown_count = min(count, len(rows))
    for number in range(shown_count):
        sentences = rows[number * len(rows) // shown_count]  # spread evenly over all rows
        print(printable("\n".join((*sentences, ""))))


# ---- a classifier


class Judged(NamedTuple):
    """An example with its class and the predicted one.

    surprise: the probability of the predicted class, and its negative where that is right. So the surest mistakes
    are the most surprising, and of the examples that are right, the least sure.
    """

    label: int
    predicted: int
    surprise: float
    inputs: Tensor

    @property
    def is_wrong(self) -> bool:
        """Tell whether it is a mistake."""
        return self.surprise > 0


class Classified(NamedTuple):
    """What a model makes of examples: the most surprising ones, and how many mistakes there are among how many."""

    examples: list[Judged]
    mistakes: int
    total: int


@torch.no_grad()
def classify(model: nn.Module, batches: Iterable[Batch], count: int) -> Classified:
    """Classify examples, and keep the most surprising ones.

    Args:
        model: in evaluation mode; what a batch holds to logits (batch, classes).
        batches: the examples.
        count: how many of them are kept.
    """
    device = next(model.parameters()).device
    most_surprising: list[Judged] = []
    total = mistakes = 0
    for batch in batches:
        on_device = batch.map(lambda tensor: tensor.to(device))
        logits = model(*on_device.arguments).float().cpu()
        probabilities, predicted = logits.softmax(dim=-1).max(dim=-1)
        is_wrong = predicted != batch.targets.cpu()
        surprise = torch.where(is_wrong, probabilities, -probabilities)
        inputs = [row.clone() for row in batch.inputs]
        if batch.mask is not None:
            inputs = [row[real] for row, real in zip(inputs, batch.mask, strict=True)]
        most_surprising += map(Judged, batch.targets.tolist(), predicted.tolist(), surprise.tolist(), inputs)
        most_surprising = nlargest(count, most_surprising, key=lambda example: example.surprise)
        total += len(predicted)
        mistakes += int(is_wrong.sum())
    return Classified(most_surprising, mistakes, total)


def title_of(run: TrainedRun, found: Classified, data: Any) -> str:
    """Tell a run's errors in one line."""
    share = found.mistakes / found.total
    of_all = f"{whole(found.mistakes)} of {whole(found.total)} validation {data.task.unit}"
    return f"{run.path.name}: {fixed(100 * share, 2)} % errors ({of_all})"


def class_names(data: Any) -> Sequence[str]:
    """Return the names of the classes, their numbers where they have none."""
    names: Sequence[str] | None = getattr(data, "classes", None)
    return names or [str(number) for number in range(data.task.num_classes)]


def show_texts(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print a table of classified texts: on a terminal in its width, mistakes in red; else a line for each text."""
    classified = classify(model, data.eval_batches("val"), wanted.count or 20)
    classes = class_names(data)
    table = Table("", "class", "predicted", "probability", "text", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for example in classified.examples:
        words = data.decode(example.inputs).split()
        cells = (
            "wrong" if example.is_wrong else "right",
            classes[example.label],
            classes[example.predicted],
            f"{fixed(100 * abs(example.surprise), 0)} %",
            " ".join(words),
        )
        table.add_row(*map(Text, cells), style="red" if example.is_wrong else "")
    print(title_of(run, classified, data))
    width = None if sys.stdout.isatty() else 10**6
    Console(width=width).print(table)


def show_images(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Write a page of classified images."""
    classified = classify(model, data.eval_batches("val"), wanted.count or 60)
    title = title_of(run, classified, data)
    inputs = torch.stack([example.inputs for example in classified.examples])
    images = list(data.pixels(inputs).numpy())
    page = draw_page(title, classified.examples, images, class_names(data))
    path = Path(os.path.expanduser(wanted.out)) if wanted.out else run.path / "samples.png"
    try:
        write_atomically(path, lambda file: page.savefig(file, format="png", bbox_inches="tight"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): give another file with --out") from error
    print(f"{title}\n{path}")


def draw_page(title: str, examples: Sequence[Judged], images: Sequence[Pixels], classes: Sequence[str]) -> Figure:
    """Draw images in rows, each with what was predicted; mistakes have a red frame, and their class in red words."""
    captions = [caption_of(example, classes) for example in examples]
    lines = max(caption.count("\n") + 1 for caption in captions)
    pixels_high, pixels_wide = images[0].shape[1:]
    longer_side = max(pixels_high, pixels_wide)
    image_height = pixels_high / longer_side
    image_width = pixels_wide / longer_side
    row_height = image_height + ABOVE + LINE * lines
    columns = min(COLUMNS, len(examples))
    rows = math.ceil(len(examples) / columns)
    width = COLUMN_WIDTH * columns
    height = row_height * rows
    page = Figure(figsize=(SIDE * width, SIDE * height))
    axes = page.add_axes((0, 0, 1, 1))
    for number, (example, pixels, caption) in enumerate(zip(examples, images, captions, strict=True)):
        row, column = divmod(number, columns)
        left = COLUMN_WIDTH * column
        top = row_height * row
        bottom = top + image_height
        color = "red" if example.is_wrong else "gray"
        extent = (left, left + image_width, bottom, top)
        axes.imshow(pixels.transpose(1, 2, 0), "gray", vmin=0, vmax=255, extent=extent)
        axes.text(left, bottom + 0.04, caption, color=color, fontsize="x-small", va="top", parse_math=False)
        if example.is_wrong:
            frame = Rectangle((left, top), image_width, image_height, fill=False, edgecolor=color, linewidth=3)
            axes.add_patch(frame)
    axes.set(xlim=(-0.1, width), ylim=(height, -0.1))
    axes.set_title(title, loc="left", fontsize="medium", parse_math=False)
    axes.set_axis_off()
    return page


def caption_of(one: Judged, classes: Sequence[str]) -> str:
    """Return the predicted class with its probability, and above it, for a mistake, the right class."""
    lines = [f"{classes[one.predicted]} ({fixed(100 * abs(one.surprise), 0)} %)"]
    if one.is_wrong:
        lines.insert(0, f"is {classes[one.label]}")
    return "\n".join(fill(line, 20) for line in lines)


SHOWN = {"text": show_text, "images": show_images, "texts": show_texts, "sentences": show_sentences}
