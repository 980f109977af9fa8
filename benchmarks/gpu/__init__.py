"""The benchmark of the GPU backend: ``python -m benchmarks.gpu`` (see `__main__.py`)."""
