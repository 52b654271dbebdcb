"""An array-like view of compressed snapshots."""

import numpy as np
from devito.tools import is_integer
from numpy.lib.mixins import NDArrayOperatorsMixin

__all__ = ['SnapshotArray']


class SnapshotArray(NDArrayOperatorsMixin):

    """
    The snapshots of a compressed function, as a lazy array.

    Indexing decompresses the snapshots that are touched, assignment compresses them;
    in between nothing is held. Reductions and iteration go through one snapshot at a
    time; everything else NumPy does makes a dense array of it all first.

    Parameters
    ----------
    store : SnapshotStore
    shape : tuple of int
        The number of snapshots, then the shape of one.
    dtype : numpy.dtype
    writeable : bool, optional
    """

    def __init__(self, store, shape, dtype, writeable=True):
        self._store = store
        self.shape = tuple(int(i) for i in shape)
        self.dtype = np.dtype(dtype)
        self.writeable = writeable

    # Read by Devito's builtins
    _is_decomposed = False

    def __repr__(self):
        # Printing is no access, about which MPI ranks would have to agree
        stored = len(self._store.stored) if self._store.is_open else 0
        return (f"SnapshotArray(`{self._store.name}`, shape={self.shape}, "
                f"dtype={self.dtype}, {stored} of {len(self)} snapshots stored)")

    def __len__(self):
        return self.shape[0]

    @property
    def ndim(self):
        """The number of dimensions, that of time included."""
        return len(self.shape)

    @property
    def size(self):
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self):
        """The bytes that a dense array would occupy."""
        return self.size*self.dtype.itemsize

    def _split(self, key):
        """Split a key into the snapshots, and the key into (an array of) them."""
        key = key if isinstance(key, tuple) else (key,)
        if Ellipsis in [k for k in key if not isinstance(k, np.ndarray)]:
            n = [k is Ellipsis for k in key].index(True)
            used = sum(k is not Ellipsis and k is not None for k in key)
            fill = (slice(None),)*(self.ndim - used)
            key = (*key[:n], *fill, *key[n + 1:])
        first, rest = (key[0], key[1:]) if key else (slice(None), ())

        if is_integer(first):
            index = int(first) + (len(self) if first < 0 else 0)
            if not 0 <= index < len(self):
                raise IndexError(f"snapshot {first} is out of bounds for the "
                                 f"{len(self)} snapshots of `{self._store.name}`")
            return index, rest
        if isinstance(first, slice):
            return range(*first.indices(len(self))), rest
        first = np.asarray(first)
        if first.ndim == 1 and first.dtype != bool:
            return [self._split(int(i))[0] for i in first], rest
        if first.ndim == 1 and first.size == len(self):
            return np.flatnonzero(first).tolist(), rest
        raise IndexError("the snapshots of a compressed function are selected by an "
                         "integer, a slice, or a one-dimensional array of integers or "
                         f"booleans, not by {first!r}")

    def __getitem__(self, key):
        snapshots, rest = self._split(key)
        if is_integer(snapshots):
            return self._store.read(snapshots)[rest]
        if not len(snapshots):
            return np.empty((0, *self.shape[1:]), self.dtype)[(slice(None), *rest)]
        out = None
        for n, i in enumerate(snapshots):
            values = self._store.read(i)[rest]
            if out is None:
                out = np.empty((len(snapshots), *np.shape(values)), self.dtype)
            out[n] = values
        return out

    def __setitem__(self, key, values):
        self._check_writeable()
        # Before what is left of a snapshot is read: the first access is a write
        self._store.open(write=True)
        snapshots, rest = self._split(key)
        values = values if isinstance(values, SnapshotArray) else np.asarray(values)
        if is_integer(snapshots):
            self._assign(snapshots, rest, np.asarray(values))
            return

        target = (len(snapshots), *np.broadcast_to(np.False_, self.shape[1:])[rest].shape)
        while values.ndim > len(target) and values.shape[0] == 1:
            values = values[0]
        try:
            fits = np.broadcast_shapes(values.shape, target) == target
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"could not broadcast values of shape {values.shape} into "
                             f"{len(snapshots)} snapshots, that is, shape {target}")
        same = values.ndim < len(target) or values.shape[0] == 1
        for n, i in enumerate(snapshots):
            v = values[n] if not same else values[0] if values.ndim == len(target) \
                else values
            self._assign(i, rest, np.asarray(v))

    def _check_writeable(self):
        if not self.writeable:
            raise ValueError("assignment destination is read-only")

    def _assign(self, index, rest, values):
        rest = rest if isinstance(rest, tuple) else (rest,)
        if all(isinstance(i, slice) and i == slice(None) for i in rest):
            self._store.write(index, np.broadcast_to(values, self.shape[1:]))
            return
        snapshot = self._store.read(index)
        snapshot[rest] = values
        self._store.write(index, snapshot)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("compressed snapshots cannot become an array without a copy")
        out = np.empty(self.shape, self.dtype)
        for i in range(len(self)):
            out[i] = self._store.read(i)
        return out if dtype is None else out.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if any(isinstance(i, SnapshotArray) for i in kwargs.get('out', ())):
            return NotImplemented
        inputs = [np.asarray(i) if isinstance(i, SnapshotArray) else i for i in inputs]
        return getattr(ufunc, method)(*inputs, **kwargs)

    def _inplace(self, other, operation):
        # NDArrayOperatorsMixin would ask for the result to be put into an array
        self._check_writeable()
        other = np.broadcast_to(np.asarray(other), self.shape)
        for i in range(len(self)):
            self._store.write(i, operation(self._store.read(i), other[i]))
        return self

    def __iadd__(self, other):
        return self._inplace(other, np.add)

    def __isub__(self, other):
        return self._inplace(other, np.subtract)

    def __imul__(self, other):
        return self._inplace(other, np.multiply)

    def __itruediv__(self, other):
        return self._inplace(other, np.true_divide)

    def _reduce(self, function, axis, kwargs):
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        if axis is not None or kwargs:
            return function(np.asarray(self), axis=axis, **kwargs)
        return function([function(i) for i in self])

    def min(self, axis=None, **kwargs):
        """The minimum; over all snapshots without an `axis`."""
        return self._reduce(np.min, axis, kwargs)

    def max(self, axis=None, **kwargs):
        """The maximum; over all snapshots without an `axis`."""
        return self._reduce(np.max, axis, kwargs)

    def sum(self, axis=None, **kwargs):
        """The sum; over all snapshots without an `axis`."""
        return self._reduce(np.sum, axis, kwargs)

    def fill(self, value):
        """Set all values."""
        self[:] = value

    def copy(self):
        """A dense copy."""
        return np.asarray(self)

    def initialize(self, initializer):
        """
        Set the values from what Devito accepts as `initializer`: a callable that fills
        an array, or an array of the shape of the data, with or without a halo.
        """
        if callable(initializer):
            initializer(self)
            return
        values = np.asarray(initializer)
        if values.size == 0:
            return
        if values.shape != self.shape:
            raise ValueError(f"`initializer` has shape {values.shape}, while "
                             f"`{self._store.name}` has shape {self.shape}; the halo of "
                             "a compressed function is not stored")
        self[:] = values
