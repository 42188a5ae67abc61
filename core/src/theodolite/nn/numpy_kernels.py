"""Kernels for a CPU without a compiler: products through the BLAS that NumPy ships.

MLX's wheel for Linux computes float32 products with a reference BLAS, ten times slower than the OpenBLAS in NumPy's
wheel. The arrays share memory, so nothing is copied on the way in.
"""

from __future__ import annotations

import sys

import mlx.core as mx
import numpy as np

from theodolite.hookspecs import hookimpl
from theodolite.nn import kernels as tables
from theodolite.nn.kernels import Kernels

PRIORITY = 10


@hookimpl
def kernels(device: str) -> Kernels | None:
    return Kernels(name="numpy", priority=PRIORITY, linear=linear) if usable(device) else None


def usable(device: str) -> bool:
    return device == "cpu" and sys.platform == "linux"


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None, act: str | None = None) -> mx.array:
    """`theodolite.nn.kernels.linear` for float32; other types go to MLX."""
    if x.dtype != mx.float32 or weight.dtype != mx.float32:
        return tables.linear(x, weight, bias, act)
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    product = rows @ np.asarray(weight).T
    if bias is not None:
        product += np.asarray(bias)
    y = mx.array(product).reshape(*x.shape[:-1], weight.shape[0])
    return tables.active.activation(y, act) if act else y
