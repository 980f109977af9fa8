"""Networks as object files, libraries and C source, which need no Python and no runtime. `export.export` is the way in."""
