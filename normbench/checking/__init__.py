"""What `normbench check` does: the contract of one part, and that it trains with everything it can meet."""
