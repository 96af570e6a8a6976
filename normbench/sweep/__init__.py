"""Many runs: a grid of `train`'s words, resumable, shared between processes and machines."""
