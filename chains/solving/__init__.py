"""Networks as solutions of differential equations: Adam, then a quasi-Newton method, on points drawn anew."""
