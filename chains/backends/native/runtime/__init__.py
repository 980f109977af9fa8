"""Machine code that all programs share: threads, loops over batches, and functions that Python calls."""
