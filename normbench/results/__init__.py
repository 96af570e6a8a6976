"""What is found of the evidence: effects, tests, verdicts and caveats, as values; no sentence, no file."""
