"""What every room stands on: checks, messages, files, memory, threads, progress."""
