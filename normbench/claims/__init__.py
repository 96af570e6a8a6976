"""Claims: published sentences about normalization, tested again with a rule that was registered before the runs.

`claim` reads and registers one, `run` makes its runs, `measuring` takes its effect from them, and `suite` has them all.
The rules of verdicts, and what claims have come to, are in `results`; their sentences are in `tell`.
"""
