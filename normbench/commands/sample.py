"""`normbench sample`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from normbench.commands.pages import columns, entries, paragraph
from normbench.commands.parser import Parser
from normbench.errors import UsageError
from normbench.glance import scalar
from normbench.keys import Key
from normbench.request import find_own_classes
from normbench.rundir import write_atomically

if TYPE_CHECKING:  # imports torch: behind every mistake that the words alone show
    from normbench.sampling import Classified
    from normbench.trained import Run
    from normbench.types import Data, Model

# Flags with a value: its default, and what it may be.
VALUES: dict[str, tuple[Any, Key]] = {
    "prompt": ("", Key("text to go on from; by default a line's start", (str,))),
    "tokens": (200, Key("how many tokens follow it", (int,), low=1, high=10**6)),
    "temperature": (0.8, Key("divides the logits; 0: always the likeliest token", (float,), low=0, high=100)),
    "top-k": (None, Key("draw from so many of the likeliest tokens", (int, NoneType), low=1, high=10**7)),
    "seed": (0, Key("seeds the draws", (int,), low=0, high=2**63 - 1)),
    "count": (None, Key("how many examples; by default 60 images or 20 texts", (int, NoneType), low=1, high=10**4)),
    "out": (None, Key("where the page of images goes; by default samples.png in RUN", (str, NoneType))),
    "which": ("last", Key("which checkpoint", (str,), choices=("last", "best"))),
    "device": ("auto", Key("auto, cpu, cuda, cuda:N or mps", (str,))),
}
EMA = "use the moving average of the weights (of a run with trainer.ema)"


def run(words: list[str]) -> int:
    """Show what a run's model has learned."""
    settings = parsed(words)
    find_own_classes()
    from normbench.trained import load_model, open_run

    run = open_run(settings.run)
    model = load_model(run, which=settings.which, ema=settings.ema, device=settings.device)
    data = run.data()
    if data.task.examples not in SHOWN:
        raise UsageError(
            f"{run.path} learned {data.kind}, of which there are no samples: give a run on {', '.join(SHOWN)}"
        )
    check_same(run, data)
    SHOWN[data.task.examples](run, model, data, settings)
    return 0


def check_same(run: Run, data: Data) -> None:
    """Refuse data that are no longer those of the run.

    Raises:
        UsageError: they ask something else of the model.
    """
    before, now = run.task().record(), data.task.record()
    changed = [f"{name} was {before.get(name)}, is {now[name]}" for name in now if before.get(name) != now[name]]
    if changed:
        raise UsageError(f"the data of {run.path} are not what they were ({'; '.join(changed)}): bring those back")


def parsed(words: list[str]) -> argparse.Namespace:
    """The words as settings, each checked.

    Raises:
        UsageError: an unknown flag, a value that is not allowed, or a prompt that is not UTF-8.
    """
    parser = Parser("sample")
    parser.add_argument("run", metavar="RUN")
    for name in VALUES:
        parser.add_argument(f"--{name}")
    parser.add_argument("--ema", action="store_true")
    settings = parser.parse_args(words)
    for name, (default, key) in VALUES.items():
        field = name.replace("-", "_")
        given = getattr(settings, field)
        plain = str in key.types and not key.choices  # a text that looks like a number stays a text
        value = default if given is None else given if plain else key.check(f"--{name}", scalar(given))
        setattr(settings, field, value)
    try:
        settings.prompt.encode()
    except UnicodeEncodeError as error:  # Python stands a surrogate in for a byte that the terminal should not send
        raise UsageError(f"--prompt={settings.prompt!r:.80} is not UTF-8: give text in that encoding") from error
    return settings


def help_text(words: list[str]) -> str:
    """The page of `normbench sample --help`."""
    flags = [
        (f"--{name} {name.upper().replace('-', '_')}", key.doc + ("" if default in (None, "") else f" [{default}]"))
        for name, (default, key) in VALUES.items()
    ]
    return "\n".join(
        [
            "usage: normbench sample RUN [FLAGS]",
            "",
            *paragraph(
                "Shows what the model of a run directory has learned: a language model writes text; a classifier "
                "classifies the validation data, its mistakes first (images: on a page, RUN/samples.png)."
            ),
            "",
            "flags:",
            *entries([*flags, ("--ema", EMA)]),
        ]
    )


# ---- a language model


def show_text(run: Run, model: Model, data: Data, settings: argparse.Namespace) -> None:
    """Print text that the model writes."""
    from normbench.sampling import Sampling, generate
    from normbench.types import LanguageModeling

    encode, decode = able(data, "encode"), able(data, "decode")
    start = prompt_tokens(settings.prompt, encode)
    if not len(start):
        start = line_start(data, encode)
    assert isinstance(data.task, LanguageModeling)
    sampling = Sampling(settings.tokens, settings.temperature, settings.top_k, settings.seed)
    tokens = generate(model, start, data.task.context, sampling)
    print(decode(tokens))


def prompt_tokens(prompt: str, encode: Callable[[str], Any]) -> Any:
    """The tokens of a prompt, so that the model goes on in the line in which it ends.

    Where lines end in a token, every text ends in it, the empty one too: behind an unfinished line it is left out.
    """
    tokens = encode(prompt)
    if not prompt or prompt.endswith("\n"):
        return tokens
    ending = encode("")
    ends_so = len(ending) and tokens[-len(ending) :].tolist() == ending.tolist()
    return tokens[: -len(ending)] if ends_so else tokens


def line_start(data: Data, encode: Callable[[str], Any]) -> Any:
    """The tokens of a line's end, behind which a line starts; without one, the first token of the validation text."""
    try:
        tokens = encode("\n")
    except UsageError:
        tokens = ()
    return tokens if len(tokens) else next(iter(data.eval_batches("val", 1))).inputs[0, :1]


def able(data: Data, method: str) -> Callable[..., Any]:
    """A method of the data that only samples need.

    Raises:
        UsageError: a class of the user's own does not have it.
    """
    found: Callable[..., Any] | None = getattr(data, method, None)
    if found is None:
        raise UsageError(f"{type(data).__name__} has no method {method}, which samples need: give it one")
    return found


# ---- classifiers


def show_images(run: Run, model: Model, data: Data, settings: argparse.Namespace) -> None:
    """Write a page of classified images."""
    from normbench.sampling import draw_page

    pixels, classes = able(data, "pixels"), class_names(data)
    examples, title = classified(run, model, data, settings.count or 60)
    page = draw_page(title, examples, [pixels(example.inputs[None])[0].numpy() for example in examples], classes)
    path = Path(os.path.expanduser(settings.out)) if settings.out else run.path / "samples.png"
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a file with --out, such as {path / 'samples.png'}")
    try:
        write_atomically(path, partial(page.save, format="PNG"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): give another file with --out") from error
    print(f"{title}\n{path}")


def show_texts(run: Run, model: Model, data: Data, settings: argparse.Namespace) -> None:
    """Print a table of classified texts."""
    decode, classes = able(data, "decode"), class_names(data)
    examples, title = classified(run, model, data, settings.count or 20)
    rows = [
        (
            "wrong" if example.wrong else "right",
            classes[example.label],
            classes[example.predicted],
            f"{example.probability:.0%}",
            " ".join(decode(example.inputs).split()),
        )
        for example in examples
    ]
    print(title)
    (show_table if sys.stdout.isatty() else print_lines)([("", "class", "predicted", "probability", "text"), *rows])


def classified(run: Run, model: Model, data: Data, count: int) -> tuple[list[Classified], str]:
    """The examples to show, mistakes first, and a line on all of them."""
    from normbench.sampling import classify

    examples, wrong, total = classify(model, data.eval_batches("val"), count)
    unit = data.task.unit
    return examples, f"{run.path.name}: {wrong / total:.2%} errors ({wrong:,} of {total:,} validation {unit})"


def class_names(data: Data) -> Sequence[str]:
    """The names of the classes; numbers, where the data have none."""
    names: Sequence[str] = getattr(data, "classes", ()) or [str(n) for n in range(data.task.num_classes)]
    return names


def print_lines(rows: list[tuple[str, ...]]) -> None:
    """A line for each row, as wide as it is."""
    print("\n".join(columns(rows)))


def show_table(rows: list[tuple[str, ...]]) -> None:
    """A table in the width of the terminal, mistakes in red."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading, *body = rows
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in heading:
        table.add_column(name, overflow="fold")
    for row in body:
        table.add_row(*map(Text, row), style="red" if row[0] == "wrong" else "")
    Console().print(table)


SHOWN: dict[str, Callable[[Run, Model, Data, argparse.Namespace], None]] = {
    "text": show_text,
    "images": show_images,
    "texts": show_texts,
}
