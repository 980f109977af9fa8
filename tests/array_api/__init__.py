"""The backend for array libraries."""
