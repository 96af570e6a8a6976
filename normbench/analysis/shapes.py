"""The shape of a run's files, as far as analysis reads them; what has another shape is damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from normbench.rundir import Status

Kind = Callable[[Any], bool]


def whole(value: Any) -> bool:
    """A whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: Any) -> bool:
    """A number, perhaps not a finite one: Python reads 1e999 and NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def rate(value: Any) -> bool:
    """A number by which runs can stand along an axis."""
    return number(value) and math.isfinite(value)


def text(value: Any) -> bool:
    """Words."""
    return isinstance(value, str)


def anything(_: Any) -> bool:
    """Whatever it is, it is only shown or compared."""
    return True


def or_none(kind: Kind) -> Kind:
    """Such a value, or null."""
    return lambda value: value is None or kind(value)


def each(kind: Kind) -> Kind:
    """An object with such values."""
    return lambda value: isinstance(value, Mapping) and all(map(kind, value.values()))


def having(shape: Mapping[str, Kind]) -> Kind:
    """An object whose entries, as far as it has them, are of their kinds."""
    return lambda value: isinstance(value, Mapping) and misshapen(value, shape) is None


def status(value: Any) -> bool:
    """How a run can stand."""
    return value in get_args(Status)


STANDS: Mapping[str, Kind] = {
    "status": status,
    "step": or_none(whole),
    "steps": or_none(whole),
    "message": or_none(text),
}
DATA = having({"kind": text, "fingerprint": or_none(text)})
SUMMARY: Mapping[str, Kind] = {
    **STANDS,
    "choices": each(or_none(text)),
    "metrics": each(or_none(number)),
    "step_time": each(or_none(number)),
    "peak_memory_bytes": or_none(number),
    "data": DATA,
    "norm_facts": each(anything),
    "leak": or_none(text),
    "padding": or_none(text),
    "ledger": having({"parameters": each(or_none(number))}),
}
SESSION: Mapping[str, Kind] = {
    **dict.fromkeys(("command", "commit", "cpu", "device", "accelerator", "python"), or_none(text)),
    "threads": or_none(whole),
    "packages": each(or_none(text)),
    "choices": each(or_none(text)),
    "data": DATA,
    "task": having({"kind": text}),
}
CONFIG: Mapping[str, Kind] = {
    "seed": whole,
    "optim.lr": or_none(rate),
    "trainer.eval_batches": or_none(whole),
    "data.batch_size": or_none(whole),
    "data.eval_batch_size": or_none(whole),
}


def misshapen(content: Mapping[str, Any], shape: Mapping[str, Kind], all_of: tuple[str, ...] = ()) -> str | None:
    """The first entry that has another kind, or that is missing though it must be there; None where there is none."""
    for key, kind in shape.items():
        if not kind(content[key]) if key in content else key in all_of:
            return key
    return None


def check(name: str, content: Mapping[str, Any], shape: Mapping[str, Kind], all_of: tuple[str, ...] = ()) -> None:
    """Refuse the content of a file.

    Raises:
        ValueError: with the file's name and the entry that is not what it must be.
    """
    if (key := misshapen(content, shape, all_of)) is not None:
        raise ValueError(f"{name} is damaged ({key})")
