"""Every word and every number that a person reads of results; no file."""
