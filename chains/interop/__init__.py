"""Bridges: networks from and to PyTorch, Keras and ONNX, and networks as functions of PyTorch, JAX, CasADi and Pyomo."""

from chains.interop.from_keras import from_keras
from chains.interop.from_onnx import from_onnx
from chains.interop.from_torch import from_torch
from chains.interop.jax_function import as_jax
from chains.interop.to_casadi import to_casadi
from chains.interop.to_onnx import to_onnx
from chains.interop.to_pyomo import to_pyomo
from chains.interop.to_torch import as_torch, to_torch

__all__ = ["as_jax", "as_torch", "from_keras", "from_onnx", "from_torch", "to_casadi", "to_onnx", "to_pyomo", "to_torch"]
