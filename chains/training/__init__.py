"""Training: the loop, the steps it feeds, and the record that is left."""
