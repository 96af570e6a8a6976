"""One run: `plan` decides it, `train` trains or measures it, `session` is the run at work."""
