"""Tables, plots and pages of what was found, and the files that keep them."""
