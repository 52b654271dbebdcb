"""Symbols in generated code that are not the user's, and their names."""

from ctypes import POINTER

from devito.ir import Call
from devito.ir.support import SymbolRegistry
from devito.types import CustomDimension, LocalObject
from devito.types.array import Array

from devitocomp_plugin.types.objects import Execution, Plan, Slot, foreign_struct

__all__ = ['Device', 'ExecutionPointer', 'Names', 'Pipeline', 'PipelinePointer',
           'SlotPointer', 'device', 'make_cell']


class Device(LocalObject):
    """What the runtime knows about one run of an Operator."""

    dtype = POINTER(foreign_struct('devitocomp_device'))


device = Device(name='device')
"""The only one in a generated source: begun and ended in the entry function."""


class PipelinePointer(LocalObject):
    """What compresses and decompresses the snapshots of one function."""

    dtype = POINTER(foreign_struct('devitocomp_pipeline'))


class Pipeline(Plan):
    """A pipeline that lives for one run of the Operator, and its plan."""

    dtype = PipelinePointer.dtype

    @property
    def _C_free(self):
        return Call('devitocomp_plan_destroy', [Call('devitocomp_end_snapshots', [self])])


class ExecutionPointer(LocalObject):
    """How a provider is to execute."""

    dtype = POINTER(Execution.dtype)


class SlotPointer(LocalObject):
    """The place of a snapshot in a store."""

    dtype = POINTER(Slot.dtype)


class Names(SymbolRegistry):

    """Makes names other than those in `taken`, which the user has given."""

    def __init__(self):
        super().__init__()
        self.taken = set()

    def make_name(self, *args, **kwargs):
        while (name := super().make_name(*args, **kwargs)) in self.taken:
            pass
        return name


def make_cell(name, dtype):
    """One value in the memory of the device."""
    d = CustomDimension(name='one', symbolic_min=0, symbolic_max=0, symbolic_size=1)
    return Array(name=name, dtype=dtype, dimensions=(d,), space='local')
