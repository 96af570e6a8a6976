"""What norms, placements, models and data are held to; `normbench check` and the tests run the same checks."""
