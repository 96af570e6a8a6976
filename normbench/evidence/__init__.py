"""What runs have left: their records, arms and measures; no statistics, no sentence."""
