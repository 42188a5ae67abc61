"""Building blocks that families share. Each runs over the kernels chosen for the device (`theodolite.nn.kernels`)."""

from theodolite.nn.layers import Embedding, GatedMLP, LayerNorm, Linear, RMSNorm, attention, begin, gated, linears

__all__ = ["Embedding", "GatedMLP", "LayerNorm", "Linear", "RMSNorm", "attention", "begin", "gated", "linears"]
