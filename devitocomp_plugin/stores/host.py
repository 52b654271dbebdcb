"""Stores whose snapshots rest in host memory."""

import ctypes as ct

from devitocomp_plugin import abi
from devitocomp_plugin.exceptions import StoreError
from devitocomp_plugin.layers import Host, HostDevice, NoLayers, keeps
from devitocomp_plugin.stores.base import SnapshotStore, payload_record

__all__ = ['HostStore']


@keeps(NoLayers, Host, HostDevice)
class HostStore(SnapshotStore):

    """The compressed snapshots of one function, in host memory."""

    # Snapshots from a pickle, until a provider for them is known
    _dump = None

    def empty_like(self):
        return type(self)(self.name, self.nsnapshots, self.dtype, self.shape,
                          self.compression)

    def _open(self, write, needed):
        if not (write or needed or self._dump is not None):
            return None
        handle = self._create()
        if not handle:
            raise StoreError(f"Out of memory: no store for the {self.nsnapshots} "
                             f"snapshots of `{self.name}`")
        return handle

    def _create(self):
        return abi.runtime().devitocomp_store_create(ct.byref(self._config))

    @property
    def nbytes_max(self):
        limits = self.expected_limits
        if limits is None:
            return 0
        return self.nsnapshots * (limits.max_compressed_bytes + limits.sidecar_bytes)

    @property
    def _held(self):
        if self._dump is not None:
            return self._dump['provider']
        if self.provider is not None and self.usage.stored_bytes:
            return payload_record(self.provider, self.kind)
        return None

    def bind(self, provider, kind='host'):
        with self._lock:
            super().bind(provider, kind)
            self._put_dump()

    def is_stored(self, index):
        if self._dump is not None:
            self.open(write=False)
            self.settle()
        return super().is_stored(index)

    def clear(self):
        with self._lock:
            self._dump = None
            super().clear()

    # Pickling

    def dump(self):
        """The snapshots as plain Python objects."""
        if self._handle is None or self._dump is not None:
            return self._dump
        lib = abi.runtime()
        payload, sidecar, size = ct.c_void_p(), ct.c_void_p(), ct.c_size_t()
        snapshots = {}
        for i in range(self.nsnapshots):
            if lib.devitocomp_store_peek(self._handle, i, ct.byref(payload),
                                         ct.byref(size), ct.byref(sidecar)) == abi.OK:
                nside = self.info(i).sidecar_bytes
                snapshots[i] = (self._get_bytes(payload, size.value),
                                _bytes(sidecar, nside))
        if not snapshots:
            return None
        return {'provider': payload_record(self.provider, self.kind),
                'snapshots': snapshots}

    def _get_bytes(self, payload, size):
        return _bytes(payload, size)

    def restore(self, dump):
        self._dump = dump

    def _put_dump(self):
        if self._dump is None:
            return
        snapshots, self._dump = self._dump['snapshots'], None
        for i, (payload, sidecar) in snapshots.items():
            status = abi.runtime().devitocomp_store_put(self._handle, i, payload,
                                                        len(payload), sidecar or None)
            if status != abi.OK:
                raise StoreError(f"Snapshot {i} of `{self.name}` could not be restored: "
                                 f"{self.failure.message.decode(errors='replace')}")


def _bytes(pointer, size):
    return ct.string_at(pointer, size) if size else b''
