"""The GPU and NVIDIA's libraries."""
