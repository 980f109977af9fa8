"""The encoder block by JAX: one jitted function of the flat parameter vector."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant
from benchmarks.problems.attention import HEADS, Block, network
from benchmarks.problems.derivatives import repeated

jax.config.update("jax_platforms", "cpu")


def gradient_rows(block: Block, options: Options) -> list[Contestant]:
    layout = network("numpy").layout

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * weight + bias

    def loss(p: Any, x: Any, t: Any) -> Any:
        named = {entry.name: p[entry.start : entry.stop].reshape(entry.shape) for entry in layout}
        part = [
            {name.removeprefix(f"0.{k}.inner."): a for name, a in named.items() if name.startswith(f"0.{k}.")} for k in (0, 1)
        ]
        z = norm(x, part[0]["0.weight"], part[0]["0.bias"]) @ part[0]["1.in_weight"] + part[0]["1.in_bias"]
        q, k, v = (each.reshape(*x.shape[:2], HEADS, -1) for each in jnp.split(z, 3, -1))
        x = x + jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ part[0]["1.out_weight"] + part[0]["1.out_bias"]
        z = norm(x, part[1]["0.weight"], part[1]["0.bias"]) @ part[1]["1.weight"] + part[1]["1.bias"]
        y = x + jax.nn.relu(z) @ part[1]["2.weight"] + part[1]["2.bias"]
        return ((y - t) ** 2).mean()

    jitted, arrays = jax.jit(jax.value_and_grad(loss)), [jnp.asarray(each) for each in (block.p, block.x, block.t)]
    return [repeated("JAX, jit", lambda: jax.block_until_ready(jitted(*arrays))[1], 10)]
