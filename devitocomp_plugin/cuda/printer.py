"""Symbols to CUDA or HIP C++."""

from devito.passes.iet.languages.CXX import CXXPrinter

__all__ = ['DevicePrinter']


class DevicePrinter(CXXPrinter):
    """C++ for host and device, which both have the functions of <cmath> in `std`."""
