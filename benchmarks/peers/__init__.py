"""Who computes it: a module for each library and kind of problem, LIBRARY_PROBLEM."""
