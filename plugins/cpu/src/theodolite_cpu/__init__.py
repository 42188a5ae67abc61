"""Fast kernels for Linux CPUs."""

from theodolite_cpu.plugin import reason

__all__ = ["reason"]
