"""A run's configuration: what there is to choose, what each key may hold, and how words become a checked configuration.

`sections` and `groups` are what there is to choose, `schema` and `signatures` what each key may hold, `refusals` and
`trust` what is refused. `compose` has `read`, which imports Hydra and takes a third of a second; the rest answers at
once.
"""
