"""What is computed: a module each, with `contests(options)`."""
