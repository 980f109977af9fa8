"""Networks in optimisers: calls from C, building, and a controller's closed loop."""
