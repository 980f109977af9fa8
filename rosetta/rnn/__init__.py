"""The recurrent network of `rosetta.problem` in each framework: `build`, `train` and `predict`, in this order."""
