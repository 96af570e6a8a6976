"""The ways in which normbench stops without a traceback."""


class UsageError(ValueError):
    """A user's mistake: one sentence with what was given, what is allowed and how to fix it (exit status 2)."""


class ContractError(UsageError):
    """A class of the user's own lacks something that every norm, placement, model or data set has."""


class CombinationRefused(UsageError):
    """What was chosen does not go together, each part being right; a sweep leaves it out."""


class RunFailure(RuntimeError):
    """A run that the machine ended, not the user: full disk, no memory, a run held elsewhere (exit status 1)."""


class HeldElsewhere(RunFailure):
    """Another process is at work on the run."""
