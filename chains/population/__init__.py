"""Models of populations: many subjects, each with random effects of its own."""
