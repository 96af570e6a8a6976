"""A run's configuration: what there is to choose, what each key may hold, and how words become a checked configuration.

`compose` has `read`, which imports Hydra and takes a third of a second; the rest answers at once.
"""
