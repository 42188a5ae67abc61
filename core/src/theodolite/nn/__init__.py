"""Building blocks that families share. Each runs over the kernels chosen for the device (`theodolite.nn.kernels`)."""

from theodolite.nn.layers import Embedding, LayerNorm, Linear, RMSNorm, activation, attention, begin, linears

__all__ = ["Embedding", "LayerNorm", "Linear", "RMSNorm", "activation", "attention", "begin", "linears"]
