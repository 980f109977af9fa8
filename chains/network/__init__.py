"""A network behind `Chain`: its architecture, what it records, the programs it keeps, and what it takes from callers."""
