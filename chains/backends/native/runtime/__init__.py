"""Machine code that is no program's: threads, loops over batches, and functions that Python calls."""
