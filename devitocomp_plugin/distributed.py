"""Compressed snapshots that are distributed over MPI ranks, as an array."""

import numpy as np
from devito import Dimension, Function
from devito.tools import is_integer

from devitocomp_plugin.data import SnapshotArray

__all__ = ['DistributedSnapshotArray']


class DistributedSnapshotArray(SnapshotArray):

    """
    A SnapshotArray of which each MPI rank has its part of every snapshot.

    Follows Devito's rules for distributed data: `shape` is that of the rank's part;
    indices, and arrays that are assigned, are global; a rank reads and writes what of
    them lies in its part. All ranks have to take part in an access that moves data
    between them, such as the assignment of other distributed data.

    Parameters
    ----------
    function : CompressedTimeFunction
    writeable : bool, optional
    """

    _is_decomposed = True

    def __init__(self, function, writeable=True):
        super().__init__(function._store, function.shape, function.dtype, writeable)
        self._function = function

    def _load(self, indices):
        """A dense Function of some snapshots."""
        dense = self._allocate(len(indices))
        for n, i in enumerate(indices):
            local_part(dense)[n] = self._store.read(i)
        return dense

    def _allocate(self, count):
        f = self._function
        return Function(name=f.name, grid=f.grid, dtype=f.dtype, space_order=0,
                        dimensions=(Dimension('snapshot'), *f.dimensions[1:]),
                        shape=(count, *f.shape_global[1:]))

    def __getitem__(self, key):
        snapshots, rest = self._split(key)
        if is_integer(snapshots):
            values = self._load([snapshots]).data[(0, *rest)]
        else:
            values = self._load(list(snapshots)).data[(slice(None), *rest)]
        # The memory is that of the dense Function
        return values.copy() if isinstance(values, np.ndarray) else values

    def __setitem__(self, key, values):
        self._check_writeable()
        # Before what is left of a snapshot is read: the first access is a write
        self._store.open(write=True)
        snapshots, rest = self._split(key)
        if is_integer(snapshots):
            self._assign(snapshots, rest, values)
            return
        ndim = 1 + np.broadcast_to(np.False_, self._function.shape_global[1:])[rest].ndim
        several = np.ndim(values) >= ndim and len(values) != 1
        if several and len(values) != len(snapshots):
            raise ValueError(f"could not broadcast values of shape {np.shape(values)} "
                             f"into {len(snapshots)} snapshots of `{self._store.name}`")
        for n, i in enumerate(snapshots):
            v = values[n] if several else values[0] if np.ndim(values) >= ndim else values
            self._assign(i, rest, v)

    def _assign(self, index, rest, values):
        dense = self._load([index]) if rest else self._allocate(1)
        dense.data[(0, *rest)] = values
        self._store.write(index, local_part(dense)[0])


def local_part(function):
    """What a rank has of a Function, as a plain array."""
    return np.asarray(function._data_allocated).view(np.ndarray)
