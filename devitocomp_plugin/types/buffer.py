"""The memory in which an Operator holds uncompressed snapshots."""

import mmap

import numpy as np
from devito.tools import ReducerMap
from devito.types import Function

__all__ = ['SnapshotBuffer']


class SnapshotBuffer(Function):

    """
    A compiler-generated Function standing for one or more snapshots of a compressed
    TimeFunction.

    Its memory is created when an Operator is applied, with the shape of the compressed
    function that is actually in use, and is gone afterwards. It is a DiscreteFunction,
    rather than an Array, so that halo exchanges work on it.

    Parameters
    ----------
    parent : CompressedTimeFunction
        The function whose snapshots the buffer holds.
    slots : Dimension, optional
        The Dimension stepping through the snapshots, if there is more than one.
    halo : tuple of 2-tuples
        The halo along the space Dimensions.
    """

    is_Input = False
    is_autopaddable = False

    __rkwargs__ = Function.__rkwargs__ + ('parent', 'slots')

    def __new__(cls, *args, **kwargs):
        parent = kwargs['parent']
        slots = kwargs.get('slots')
        if kwargs.get('dimensions') is None:
            dimensions = parent.dimensions[1:]
            shape = parent.shape_global[1:]
            if slots is not None:
                dimensions = (slots, *dimensions)
                shape = (slots.symbolic_size, *shape)
                kwargs['halo'] = ((0, 0), *kwargs['halo'])
            kwargs.update(dimensions=dimensions, shape=tuple(int(i) for i in shape),
                          grid=parent.grid, dtype=parent.dtype,
                          space_order=parent.space_order)
        return super().__new__(cls, *args, **kwargs)

    def __init_finalize__(self, *args, **kwargs):
        self._parent = kwargs.pop('parent')
        self._slots = kwargs.pop('slots', None)
        super().__init_finalize__(*args, **kwargs)

    @property
    def parent(self):
        return self._parent

    @property
    def slots(self):
        return self._slots

    def _arg_defaults(self, **kwargs):
        return ReducerMap()

    def _arg_values(self, **kwargs):
        return {}

    def _arg_check(self, *args, **kwargs):
        # Accesses are checked on `parent`
        return

    def _arg_finalize(self, args, alias=None):
        parent = function_of(args[self.parent.name])
        actual = self if parent is self.parent else self._for(parent)
        return {self.name: actual._C_make_dataobj(
            alias=self, **{self.name: zeros(actual.shape_allocated, self.dtype)}
        )}

    def _for(self, parent):
        halo = self.halo if self.slots is None else self.halo[1:]
        return SnapshotBuffer(name=self.name, parent=parent, slots=self.slots,
                              halo=tuple(halo))

    # Nothing worth pickling
    _pickle_rkwargs = __rkwargs__


def function_of(value):
    """The compressed function behind a run-time value, finalized or not."""
    return getattr(value, 'argument', value).function


def zeros(shape, dtype):
    """
    A page-aligned array of zeros. Pages come into being when first touched, by the
    threads of the generated code.
    """
    nbytes = int(np.prod(shape, dtype=np.int64))*np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, max(nbytes, 1))
    if hasattr(mmap, 'MADV_HUGEPAGE') and nbytes >= 2**22:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=dtype, count=nbytes // np.dtype(dtype).itemsize
                         ).reshape(shape)
