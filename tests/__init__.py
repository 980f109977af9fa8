"""The tests, laid out like the package; `harness` holds the cases and the checks they share."""
