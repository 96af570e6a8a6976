"""`metrics.jsonl`: its lines read again, and cut where a run goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from normbench.record.files import keep_damaged, read_bytes, write_atomically

UNREADABLE = math.inf

NUMBERS = msgspec.json.Decoder(list[dict[str, float | None]])

EVALUATIONS = ("val", "val_ema", "val_swa", "train_eval", "test")  # what follows the metric in a tag of theirs


class LoggedLine(NamedTuple):
    """A line of a metrics.jsonl.

    Attributes:
        text: as it stands there.
        step: UNREADABLE, larger than all others, where the line cannot be read.
        numbers: by tag; NaN for those that are null.
    """

    text: bytes
    step: float
    numbers: dict[str, float]


def logged_lines(path: Path) -> list[LoggedLine]:
    """Return the lines of a metrics.jsonl; empty ones are left out.

    Raises:
        OSError: the file cannot be read.
    """
    texts = [text for text in read_bytes(path).splitlines() if text.strip()]
    return sound_lines(texts) or [read_line(text, parse_json(text)) for text in texts]


def sound_lines(texts: Sequence[bytes]) -> list[LoggedLine]:
    """Return lines that all have a step and numbers; else none. All at once take a fifth of the time of one by one."""
    with suppress(ValueError, RecursionError, KeyError, OverflowError, TypeError):
        objects = NUMBERS.decode(b"[%s]" % b",".join(texts))
        if len(objects) == len(texts):
            return [number_line(text, numbers) for text, numbers in zip(texts, objects, strict=True)]
    return []


def number_line(text: bytes, numbers: dict[str, Any]) -> LoggedLine:
    """Return a line whose text stands for numbers, some of which may be None.

    Raises:
        KeyError, OverflowError, ValueError, TypeError: it has no step, or one that is no number.
    """
    step = int(numbers.pop("step"))
    if None in numbers.values():
        return LoggedLine(text, step, {tag: math.nan if value is None else value for tag, value in numbers.items()})
    return LoggedLine(text, step, numbers)


def parse_json(text: bytes) -> Any:
    """Return what JSON says, or None where it is damaged."""
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(text)


def read_line(text: bytes, logged: Any) -> LoggedLine:
    """Return a line whose text stands for what is logged; UNREADABLE where that is not a step with numbers."""
    try:
        return number_line(text, {tag: value if value is None else float(value) for tag, value in logged.items()})
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return LoggedLine(text, UNREADABLE, {})


def is_of_evaluation(tag: str) -> bool:
    """Tell whether what stands under a tag comes of an evaluation."""
    _, _, name = tag.partition("/")
    return name in EVALUATIONS


def truncate_metrics(path: Path, last_step: int, evaluated: bool = True) -> str:
    """Drop what was logged after `last_step` (atomically), and a last line that a kill has left half written.

    Other lines that cannot be read are dropped too: then the file is kept beside it, and the sentence returned says so.

    Args:
        path: of the file.
        last_step: that is kept.
        evaluated: whether its evaluation is kept as well.
    """
    if not path.exists():
        return ""
    lines = logged_lines(path)
    if not lines:
        return ""
    damaged = ""
    if any(line.step == UNREADABLE for line in lines[:-1]):
        damaged = keep_damaged(path)
    kept: list[bytes] = []
    for line in lines:
        is_again = line.step == last_step and not evaluated and any(map(is_of_evaluation, line.numbers))
        if line.step <= last_step and not is_again:
            kept.append(line.text + b"\n")
    write_atomically(path, lambda file: file.writelines(kept))
    return damaged
