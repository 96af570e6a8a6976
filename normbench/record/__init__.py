"""What a run leaves: its directory, its numbers here and with other loggers, its lines on the console."""
