"""What the files of a run must hold at the least, whoever has written them. They may hold more, which is kept.

`Number` is a JSON number, or null where it was not finite. Values of other types are refused, true for 1 as well.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

from msgspec import Meta, ValidationError, convert

Form = TypeVar("Form")

CHOICE_FILE = "lr_choice.json"  # beside the runs of a sweep: the learning rate that it has chosen for each arm
DIGESTS = "digests"  # of a summary: what the files of the run were when it ended
EXTENDED = "extended"  # of a session: the runs that this one goes on with

Number = float | None

# Not `gt=0`, for which msgspec asks whether a number is below the smallest subnormal one: in a process that trains that
# one is 0, and nothing is below it but what is negative.
Positive = Annotated[float, Meta(ge=sys.float_info.min)]

# One command of ours and nothing after it: words, and in quotes what a shell would take for its own.
Command = Annotated[str, Meta(pattern=r"""(?a)\Anormbench( ([\w@%+=:,./-]|'[^']*'|"'")+)+\Z""")]


class Part(TypedDict):
    """A section of a configuration that has a class."""

    _target_: str


class Configuration(TypedDict):
    """What config.yaml holds."""

    seed: int
    norm: Part
    placement: Part
    model: Part
    data: Part


class TaskName(TypedDict):
    """What a session says of its task."""

    kind: str


class Stretch(TypedDict):
    """Where a run ended that another one goes on with, and on how many batches it was evaluated."""

    steps: int
    eval_batches: NotRequired[int | None]


class Session(TypedDict):
    """What environment.json holds of each process that has worked on a run."""

    choices: dict[str, str]
    command: Command
    data: dict[str, Any]
    packages: NotRequired[dict[str, Any] | None]
    task: TaskName
    step: NotRequired[int | None]
    extended: NotRequired[list[Stretch] | None]


class Environment(TypedDict):
    """What environment.json holds."""

    sessions: list[Session]


class Stands(TypedDict):
    """What status.json holds."""

    status: str
    step: int
    steps: int
    message: NotRequired[str | None]


class Counts(TypedDict):
    """How many parameters a model has."""

    total: int
    in_norms: NotRequired[int]
    outside_norms: NotRequired[int]
    trained: NotRequired[int]


class Ledger(TypedDict):
    """What a summary has of the model and of a step."""

    operators_a_step: NotRequired[Number]
    host_share_of_step: NotRequired[Number]
    batches_a_step: NotRequired[Number]
    parameters: NotRequired[Counts | None]


class Ramp(TypedDict):
    """How far a run came whose learning rate grew until it no longer learned."""

    largest_rate: NotRequired[Number]
    last_step: int
    bore_all: bool
    diverged: bool


class Summary(Stands):
    """What summary.json holds."""

    seed: int
    choices: dict[str, str]
    metrics: dict[str, Number]
    step_time: dict[str, Number]
    data: dict[str, Any]
    norm_facts: dict[str, Any]
    ledger: Ledger
    digests: NotRequired[dict[str, Any] | None]
    ramp: NotRequired[Ramp | None]


class PlannedWords(TypedDict):
    """What the plan of a sweep says of its command."""

    words: list[str]


class TriedRate(TypedDict):
    """The losses that an arm came to at a learning rate that a sweep has tried; null where a run was lost."""

    lr: Positive
    losses: list[Number]


class Choice(TypedDict):
    """The learning rate that a sweep has chosen for an arm, or for one seed of it; null: all diverged or failed."""

    arm: dict[str, str]
    lr: Number
    seed: NotRequired[int]
    length: NotRequired[Number]  # of the runs that chose, as a share of those that are reported


class RateChoices(TypedDict):
    """What lr_choice.json holds."""

    arms: list[Choice]


FORMS: dict[str, Any] = {
    "config.yaml": Configuration,
    "environment.json": Environment,
    "status.json": Stands,
    "summary.json": Summary,
    CHOICE_FILE: RateChoices,
}


def has_form(content: Any, form: Any) -> bool:
    """Tell whether content is of a type."""
    try:
        convert(content, form)
    except ValidationError:
        return False
    return True
