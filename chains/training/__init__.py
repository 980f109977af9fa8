"""Training: the loop, its steps, and the history of a run."""
