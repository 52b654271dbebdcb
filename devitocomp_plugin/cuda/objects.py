"""The symbols of the runtime in generated code."""

from ctypes import POINTER

from devito.symbolics.extended_dtypes import NoDeclStruct
from devito.types import CustomDimension, LocalObject
from devito.types.array import Array

__all__ = ['Device', 'device', 'make_cell']


class Device(LocalObject):
    """What the runtime knows about one run of an Operator."""

    dtype = POINTER(type('devitocomp_device', (NoDeclStruct,), {'_fields_': []}))


device = Device(name='device')
"""The only one in a generated source: begun and ended in the entry function."""


def make_cell(name, dtype):
    """One value in the memory of the device."""
    d = CustomDimension(name='one', symbolic_min=0, symbolic_max=0, symbolic_size=1)
    return Array(name=name, dtype=dtype, dimensions=(d,), space='local')
