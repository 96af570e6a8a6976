"""Claims: published sentences about normalization, tested again with a rule that was registered before the runs.

`verdicts` judges the effects that the seeds of a claim have shown, `results` keeps them in claim.json.
"""
