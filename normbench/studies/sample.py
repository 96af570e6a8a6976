"""What a trained model does: the text that a language model writes, or how a classifier judges validation data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.results import TrainedRun, Which, load_model
from normbench.rundir import write_atomically
from normbench.types import Batch, Model

Pixels = UInt8[np.ndarray, "channels height width"]

COLUMNS = 10  # of a page of images
SIDE = 104  # pixels of an image on the page, about
GAP = 10
LINE = 14  # height of a line of text
WHOLE = 1_000_000  # columns of a table that is read by no person: a line for each text
WRONG, RIGHT, INK = (200, 30, 30), (120, 120, 120), (20, 20, 20)


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    prompt: text to go on from; empty: a line's start. tokens: how many follow it. temperature: divides the logits; 0
    takes the likeliest token. top_k: only so many of the likeliest tokens are drawn from; None: all. seed: of the
    draws. count: how many examples; None: 60 images or 20 texts. out: where the page of images goes.
    """

    prompt: str = ""
    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0
    count: int | None = None
    out: str | None = None


def sample(
    path: str | os.PathLike[str], *, which: Which = "last", ema: bool = False, device: str = "auto", **wanted: Any
) -> int:
    """Show what a run's model has learned, as its task has it; return the exit status. wanted: fields of `Wanted`.

    Raises:
        UsageError: the run has no such model, its data have changed or are none that can be shown.
    """
    run = TrainedRun(path)
    model = load_model(run, which=which, ema=ema, device=device)
    data = run.data()
    if data.task.examples not in SHOWN:
        shown = ", ".join(SHOWN)
        raise UsageError(f"{run.path} learned {data.kind}, of which there are no samples: give a run on {shown}")
    if (before := run.task()) != data.task:
        raise UsageError(f"the data of {run.path} are not what they were ({before}; now {data.task}): bring those back")
    SHOWN[data.task.examples](run, model, data, Wanted(**wanted))
    return 0


# ---- a language model


def show_text(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print text that the model writes."""
    start = prompt_tokens(wanted.prompt, data.encode)
    if not len(start):
        try:
            start = data.encode("\n")
        except UsageError:  # no such character in the data
            start = next(iter(data.eval_batches("val", 1))).inputs[0, :1]
    print(data.decode(generate(model, start, data.task.context, wanted)))


def prompt_tokens(prompt: str, encode: Callable[[str], Any]) -> Any:
    """Return the tokens of a prompt, so that the model goes on in the line in which it ends.

    Where lines end in a token, every text ends in it, the empty one too: behind an unfinished line it is left out.
    """
    tokens = encode(prompt)
    if not prompt or prompt.endswith("\n"):
        return tokens
    ending = encode("")
    ends_so = len(ending) and tokens[-len(ending) :].tolist() == ending.tolist()
    return tokens[: -len(ending)] if ends_so else tokens


@torch.no_grad()
def generate(
    model: nn.Module, prompt: Int64[Tensor, " time"], context: int, wanted: Wanted
) -> Int64[Tensor, " longer"]:
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


# ---- a classifier


@dataclass(frozen=True)
class Judged:
    """An example with its class, the predicted one and that one's probability. index: in the order of the data."""

    index: int
    label: int
    predicted: int
    probability: float
    inputs: Tensor

    @property
    def wrong(self) -> bool:
        return self.label != self.predicted

    @property
    def order(self) -> tuple[bool, float]:
        """Mistakes first, the surest of them in front; then the right ones, the least sure in front."""
        return (not self.wrong, -self.probability if self.wrong else self.probability)


@torch.no_grad()
def classify(model: nn.Module, batches: Iterable[Batch], count: int) -> tuple[list[Judged], int, int]:
    """Return the `count` examples that come first by `Judged.order`, the number of mistakes, and that of all examples.

    model: in evaluation mode; what a batch holds to logits (batch, classes).
    """
    device = next(model.parameters()).device
    kept: list[Judged] = []
    total = wrong = 0
    for batch in batches:
        logits = model(*batch.map(lambda tensor: tensor.to(device)).arguments).float().cpu()
        probabilities, predicted = logits.softmax(dim=-1).max(dim=-1)
        rows = zip(batch.targets.tolist(), predicted.tolist(), probabilities.tolist(), strict=True)
        for row, found in enumerate(rows):
            inputs = batch.inputs[row].clone() if batch.mask is None else batch.inputs[row][batch.mask[row]]
            kept.append(Judged(total + row, *found, inputs))
        total += len(predicted)
        wrong += int((predicted != batch.targets.cpu()).sum())
        kept = sorted(kept, key=lambda example: example.order)[:count]
    return kept, wrong, total


def classified(run: TrainedRun, model: Model, data: Any, count: int) -> tuple[list[Judged], str, Sequence[str]]:
    """Return the examples to show, mistakes first, a line on all of them, and the names of the classes."""
    examples, wrong, total = classify(model, data.eval_batches("val"), count)
    classes = getattr(data, "classes", None) or [str(number) for number in range(data.task.num_classes)]
    share = f"{wrong / total:.2%} errors ({wrong:,} of {total:,} validation {data.task.unit})"
    return examples, f"{run.path.name}: {share}", classes


def show_texts(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Print a table of classified texts: on a terminal in its width, mistakes in red; else a line for each text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    examples, title, classes = classified(run, model, data, wanted.count or 20)
    table = Table("", "class", "predicted", "probability", "text", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for example in examples:
        judged, text = "wrong" if example.wrong else "right", " ".join(data.decode(example.inputs).split())
        row = judged, classes[example.label], classes[example.predicted], f"{example.probability:.0%}", text
        table.add_row(*map(Text, row), style="red" if example.wrong else "")
    print(title)
    Console(width=None if sys.stdout.isatty() else WHOLE).print(table)


def show_images(run: TrainedRun, model: Model, data: Any, wanted: Wanted) -> None:
    """Write a page of classified images."""
    examples, title, classes = classified(run, model, data, wanted.count or 60)
    page = draw_page(title, examples, [data.pixels(example.inputs[None])[0].numpy() for example in examples], classes)
    path = Path(os.path.expanduser(wanted.out)) if wanted.out else run.path / "samples.png"
    try:
        write_atomically(path, partial(page.save, format="PNG"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): give another file with --out") from error
    print(f"{title}\n{path}")


def draw_page(title: str, examples: Sequence[Judged], images: Sequence[Pixels], classes: Sequence[str]) -> Image.Image:
    """Draw images in rows, each with its class and what was predicted; mistakes have a red frame and red words."""
    columns = min(COLUMNS, len(examples))
    scale = max(1, SIDE // max(images[0].shape[1:]))
    height, width = (scale * side for side in images[0].shape[1:])
    cell_width, cell_height = max(width, SIDE) + GAP, height + 2 * LINE + GAP
    rows = -(-len(examples) // columns)
    heading, font = ImageFont.load_default(LINE + 2), ImageFont.load_default(LINE - 3)
    page_width = max(columns * cell_width + GAP, round(heading.getlength(title)) + 2 * GAP)
    page = Image.new("RGB", (page_width, rows * cell_height + 3 * LINE + GAP), "white")
    pen = ImageDraw.Draw(page)
    pen.text((GAP, GAP), title, INK, heading)
    for place, (example, pixels) in enumerate(zip(examples, images, strict=True)):
        row, column = divmod(place, columns)
        left, top = GAP + column * cell_width, 3 * LINE + row * cell_height
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).convert("RGB")
        page.paste(image.resize((width, height), Image.Resampling.NEAREST), (left, top))
        if example.wrong:
            pen.rectangle((left - 3, top - 3, left + width + 2, top + height + 2), outline=WRONG, width=3)
        guess = f"{classes[example.predicted]} ({example.probability:.0%})"
        lines = [f"is {classes[example.label]}", f"seen as {guess}"] if example.wrong else [guess]
        for number, line in enumerate(lines):
            corner, color = (left, top + height + 3 + number * LINE), WRONG if example.wrong else RIGHT
            while font.getlength(line) > cell_width - GAP:
                line = f"{line[:-2]}…"
            pen.text(corner, line, color, font)
    return page


SHOWN = {"text": show_text, "images": show_images, "texts": show_texts}
