"""Tools that every room uses: checks, messages, files, memory, threads, progress."""
