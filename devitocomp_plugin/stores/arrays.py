"""Moving snapshots between stores and NumPy arrays."""

import ctypes as ct
from functools import cached_property

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.device import DevicePlan
from devitocomp_plugin.exceptions import CompressionError

__all__ = ['ArrayAccess']


class ArrayAccess:

    """
    Adds to a store what does, for arrays, what generated code does for the memory of an
    Operator.
    """

    @cached_property
    def _plan(self):
        kind = self._choose_kind(self.provider)
        options = self.compression.options
        if kind == 'host':
            return self.provider.plan(self.dtype, self.shape, options=options)
        return DevicePlan(self.provider, self.dtype, self.shape, options, kind,
                          self.on_device)

    def read(self, index):
        """
        Decompress a snapshot.

        Parameters
        ----------
        index : int
            From 0 to the number of snapshots less one.

        Returns
        -------
        numpy.ndarray
            Of the shape of one snapshot; zeros if it was never written.
        """
        out = np.zeros(self.shape, self.dtype)
        if not self.is_stored(index) or out.size == 0:
            return out
        lib = abi.runtime()
        with self._run(write=False):
            slot = lib.devitocomp_store_acquire(self._handle, index, self._view(out),
                                                abi.WILL_MODIFY)
            if slot.ready:
                error = None
                try:
                    self._plan.decompress(slot.payload, slot.payload_bytes, slot.sidecar,
                                          out)
                except CompressionError as e:
                    error = e
                lib.devitocomp_store_release(self._handle, ct.byref(slot),
                                             *_outcome(error))
        return out

    def write(self, index, values):
        """
        Compress a snapshot.

        Parameters
        ----------
        index : int
            From 0 to the number of snapshots less one.
        values : numpy.ndarray
            Of the shape of one snapshot.
        """
        values = np.require(values, self.dtype, ['C', 'ALIGNED'])
        if values.shape != self.shape:
            values = np.ascontiguousarray(np.broadcast_to(values, self.shape))
        lib = abi.runtime()
        with self._run(write=True):
            slot = lib.devitocomp_store_reserve(self._handle, index, self._view(values))
            if slot.ready:
                error = None
                try:
                    slot.payload_bytes = self._plan.compress(
                        values, slot.payload, slot.capacity, slot.sidecar
                    )
                except CompressionError as e:
                    error = e
                lib.devitocomp_store_commit(self._handle, ct.byref(slot),
                                            *_outcome(error))

    def _view(self, array):
        view = abi.View(array.ctypes.data, 0, array.ndim, abi.HOST)
        view.dims[:array.ndim] = array.shape
        view.strides[:array.ndim] = abi.contiguous_strides(array.shape)
        return view


def _outcome(error):
    if error is None:
        return abi.OK, b''
    status = error.status if error.status is not None else abi.PROVIDER_ERROR
    return status, error.message.encode()
