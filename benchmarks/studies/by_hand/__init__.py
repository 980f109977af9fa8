"""Programs written by hand in C for fixed networks, against chains."""
