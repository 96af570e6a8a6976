"""What a run's configuration consists of: one row for each section and each group of options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """One section of a configuration, or a group that only chooses options of others.

    Attributes:
        name: its key, and its folder in `conf/` where it is a group.
        meaning: one line for help pages and lists; empty: it is not a group, and has no options to choose from.
        makes: the base of what its `_target_` makes, as package.module.Class; empty: it has no `_target_`.
        given: what that is called with besides its settings.
        trusted: where the classes are whose code may run though somebody else made the run.
        compared: whether a comparison is mostly about it: a class of a user's own names the run, and is checked alone.
        several: whether it holds any number of such sections, under names of their own.
        placed: whether another option of it may be chosen for some places of a model.
        absent: the class with which a configuration is without the section, as those of older runs are; empty: it is
            always there.
    """

    name: str
    meaning: str = ""
    makes: str = ""
    given: str = ""
    trusted: tuple[str, ...] = ()
    compared: bool = False
    several: bool = False
    placed: bool = False
    absent: str = ""


SECTIONS = (
    Section(
        "norm",
        "the normalization",
        makes="torch.nn.Module",
        given="(num_features, *, channel_dim=-1, site=None)",
        trusted=("normbench.norms.", "torch.nn."),
        compared=True,
        placed=True,
    ),
    Section(
        "placement",
        "where it stands in a block",
        makes="normbench.types.Placement",
        given="(branches, norm, site)",
        trusted=("normbench.placements.",),
        compared=True,
        placed=True,
    ),
    Section(
        "model",
        "the network",
        makes="normbench.types.Model",
        given="(task, norm, placement)",
        trusted=("normbench.models.", "normbench.hosts."),
        compared=True,
    ),
    Section(
        "data",
        "what it learns",
        makes="normbench.types.Data",
        given="(*, seed)",
        trusted=("normbench.data.",),
        compared=True,
    ),
    Section(
        "optim",
        "the optimizer",
        makes="torch.optim.Optimizer",
        given="(params)",
        trusted=("torch.optim.", "normbench.training.muon.", "normbench.training.hyperball."),
    ),
    Section(
        "schedule",
        "the learning rate over time",
        makes="normbench.training.schedules.Schedule",
        given="()",
        trusted=("normbench.training.schedules.",),
    ),
    Section(
        "init",
        "how weights start",
        makes="normbench.models.Initialization",
        given="()",
        trusted=("normbench.models.",),
    ),
    Section(
        "weights",
        "what the weights of branches are made of",
        makes="normbench.weights.Weights",
        given="()",
        trusted=("normbench.weights.",),
        placed=True,
        absent="normbench.weights.Plain",
    ),
    Section("trainer"),
    Section("probes", "what is measured inside"),
    Section(
        "logger",
        "where numbers go besides metrics.jsonl; several as logger=[tensorboard,csv]",
        makes="normbench.recording.Logger",
        given="(directory, step)",
        several=True,
    ),
    Section("scheme", "a published recipe: norm, placement, norms at places and what goes with them; your words win"),
    Section("experiment", "a study, for normbench sweep, or a whole setting with a published result"),
)
BY_NAME = {section.name: section for section in SECTIONS}

# The groups that `normbench train` chooses from, and what only a sweep chooses, with their meanings.
GROUPS = {section.name: section.meaning for section in SECTIONS if section.meaning}
LAUNCHER = "launcher"
SWEEP_GROUPS = {LAUNCHER: "where the runs of a sweep are started"}

# The sections that hold `_target_` and its arguments; `LOGGER` holds any number of those, under names of their own.
CLASS_SECTIONS = tuple(section.name for section in SECTIONS if section.makes and not section.several)
LOGGER = "logger"
COMPARED = tuple(section.name for section in SECTIONS if section.compared)

# The groups of which `norm@PLACE=OPTION` chooses another option for some places.
PLACED = tuple(section.name for section in SECTIONS if section.placed)
