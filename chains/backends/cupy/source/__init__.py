"""CUDA C: formulas, indices, fused maps and sums as text."""
