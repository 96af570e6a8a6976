"""A run's configuration: what there is to choose, what each key may hold, and how words become a checked configuration.

`compose` has `read`, which imports Hydra and takes a third of a second; the rest answers at once.
"""

GROUPS = {
    "norm": "the normalization",
    "placement": "where it stands in a block",
    "model": "the network",
    "data": "what it learns",
    "optim": "the optimizer",
    "schedule": "the learning rate over time",
    "init": "how weights start",
    "probes": "what is measured inside",
    "logger": "where numbers go beside metrics.jsonl; several as logger=[tensorboard,csv]",
    "experiment": "a study, for normbench sweep, or a whole setting with a published result",
}

# What only a sweep chooses.
SWEEP_GROUPS = {"launcher": "where the runs of a sweep are started"}
