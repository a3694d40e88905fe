"""Device code, run inside a step: Triton for GPUs, a file for each operation, and C++ for CPUs.

The C++ under `cpu/` is compiled on first use, loaded by ctypes and called with raw pointers.
"""

from engine.kernels.build import KernelsUnavailable
from engine.kernels.library import Kernels, load_kernels

__all__ = ["Kernels", "KernelsUnavailable", "load_kernels"]
