"""Data sets as arrays: readers of file formats, loaders that find the files, batches."""
