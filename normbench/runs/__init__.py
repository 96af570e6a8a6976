"""One run: `train` starts it, `plan` decides it in full, `session` builds, restores, trains and ends it.

`extension` is a run that goes on from a finished one, `stack` trains several seeds as one model, and `dry_run` only
says what a run would take. `notes`, `ledger` and `summary` are what it tells; `load` reads runs again.
"""
