"""The checks, a module for each group of them."""
from devitocomp_plugin.conformance.groups import (
    arguments,
    capacity,
    concurrency,
    corruption,
    creation,
    determinism,
    durability,
    limits,
    loading,
    options,
    portability,
    resources,
    roundtrip,
    sidecars,
    strides,
    wavefields,
)

__all__ = ['GROUPS']

GROUPS = {i.__name__.rpartition('.')[2]: i for i in (
    loading, creation, options, limits, roundtrip, wavefields, capacity, arguments,
    strides, determinism, sidecars, durability, portability,
    corruption, concurrency, resources)}
"""In the order in which they run."""
