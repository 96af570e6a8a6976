"""One file a command: what it does with the words behind its name."""
