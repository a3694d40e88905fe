"""Kernels in C++ for the CPU: compiled on first use, loaded by ctypes, called with raw pointers."""

from engine.kernels.build import KernelsUnavailable
from engine.kernels.library import Kernels, load_kernels

__all__ = ["Kernels", "KernelsUnavailable", "load_kernels"]
