"""The rates of an H200, as NVIDIA says them, without sparsity."""

MEMORY_RATE = 4.8e12  # bytes a second
CACHE_BYTES = 50 << 20
RATES = {"float32": 67e12, "tf32": 494.7e12, "bf16": 989.4e12}  # operations a second
SHARED_BYTES = 227 << 10  # that a block may have
