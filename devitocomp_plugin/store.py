"""The store of compressed snapshots behind a function, seen from Python."""

import ctypes as ct
import threading
import weakref
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.exceptions import CompressionError, StoreError
from devitocomp_plugin.layers import Host, NoLayers, keeps
from devitocomp_plugin.provider import current_provider

__all__ = ['SnapshotStore']


# What a failure of which is not the provider's
own_actions = ('store', 'load', 'clear', 'flush', 'open')


@keeps(NoLayers, Host)
class SnapshotStore:

    """
    The compressed snapshots of one function, in host memory.

    Nothing is allocated, and no provider looked for, before the first access. From then
    on the store is bound to a provider, and other providers can use it only if they can
    decode its snapshots, or while it is empty.

    Stores of other layers are subclasses, registered with `layers.keeps`.

    Parameters
    ----------
    name : str
        The function's name, for messages.
    nsnapshots : int
        The number of snapshots.
    dtype : numpy.dtype
    shape : tuple of int
        Of one snapshot (under MPI: of the rank's part of it).
    compression : DevitoComp
    """

    path = None
    """Where the store lies: a directory, or None if it is in memory or undecided yet."""

    files = ()
    """The files that the store consists of, on this rank."""

    def __init__(self, name, nsnapshots, dtype, shape, compression):
        self.name = name
        self.nsnapshots = int(nsnapshots)
        self.dtype = np.dtype(dtype)
        self.shape = tuple(int(i) for i in shape)
        self.compression = compression

        self.provider = None
        self.limits = None
        self._handle = None
        self._destroy = None
        self._dump = None
        self._lock = threading.RLock()

        # Whether pickles of the function are to contain the snapshots
        self.pickled = True

    @classmethod
    def of(cls, function):
        """The store of a compressed function, which is new."""
        return cls(function.name, function.save, function.dtype, function.shape[1:],
                   function.compression)

    def __len__(self):
        return self.nsnapshots

    def empty_like(self):
        """An empty store for the same snapshots, which vanishes with its last user."""
        return SnapshotStore(self.name, self.nsnapshots, self.dtype, self.shape,
                             self.compression)

    # The C object

    @property
    def is_open(self):
        """Whether it has been accessed."""
        return self._handle is not None

    def open(self, write, needed=True):
        """
        Access the store for the first time; later calls have no effect. Under MPI all
        ranks have to call this at once, and all get the same result.

        Parameters
        ----------
        write : bool
            Whether snapshots are going to be written.
        needed : bool, optional
            False if no store is to be made in order to read from it.

        Returns
        -------
        bool
            Whether there is a store now.

        Raises
        ------
        StoreError
            If there is no access to it.
        """
        with self._lock:
            if self._handle is None:
                handle = self._open(write, needed)
                if handle is not None:
                    self._attach(handle)
            return self.is_open

    def _open(self, write, needed):
        """The C object, or None if there is, and need be, none."""
        if not (write or needed or self._dump is not None):
            return None
        handle = abi.runtime().devitocomp_store_create(ct.byref(self._config))
        if not handle:
            raise StoreError(f"Out of memory: no store for the {self.nsnapshots} "
                             f"snapshots of `{self.name}`")
        return handle

    @property
    def _config(self):
        config = abi.Config(self.name.encode(), self.nsnapshots,
                            abi.dtype_code(self.dtype), len(self.shape))
        config.dims[:len(self.shape)] = self.shape
        return config

    def _attach(self, handle):
        if self._destroy is not None:
            self._destroy()
        self._handle = handle
        self._destroy = weakref.finalize(self, abi.runtime().devitocomp_store_destroy,
                                         handle)

    def pointer(self, ctype):
        """The store, open and in a run, as an argument of generated code."""
        return ct.cast(self._handle, ctype)

    # The provider

    @property
    def expected_limits(self):
        """
        The limits that payloads obey, or would obey with the provider in use now; None
        if there is nothing to compress, or not on the host.
        """
        if self.limits is None and all(self.shape):
            return current_provider().check_tensor(self.dtype, self.shape,
                                                   self.compression.options)
        return self.limits

    @property
    def nbytes_max(self):
        """The most host memory that snapshots may take, in bytes."""
        limits = self.expected_limits
        if limits is None:
            return 0
        return self.nsnapshots * (limits.max_compressed_bytes + limits.sidecar_bytes)

    @property
    def _held(self):
        """What the snapshots were compressed by; None if there are none."""
        if self._dump is not None:
            return self._dump['provider']
        if self.provider is not None and self.usage.stored_bytes:
            return payload_kind(self.provider)
        return None

    def _accept(self, provider):
        """Take note of the provider of the snapshots to come."""

    def bind(self, provider):
        """
        Let a provider read and write the snapshots of the store, which is open.

        Raises
        ------
        StoreError
            If there are snapshots that it cannot decode.
        """
        with self._lock:
            if provider is self.provider:
                return
            held = self._held
            if held is not None and held != payload_kind(provider):
                raise StoreError(
                    f"The snapshots of `{self.name}` were compressed by {held}, and "
                    f"cannot be read or extended by {payload_kind(provider)}; use a "
                    f"provider of the former, or drop them with `{self.name}.clear()`"
                )
            self._accept(provider)
            if all(self.shape):
                # Else a rank without points: nothing will ever be compressed
                limits = provider.check_tensor(self.dtype, self.shape,
                                               self.compression.options)
                self._set_limits(limits, provider)
            self.provider = provider
            self.__dict__.pop('_plan', None)
            self._put_dump()

    def _set_limits(self, limits, provider):
        status = abi.runtime().devitocomp_store_bind(self._handle,
                                                     ct.byref(limits.struct))
        if status != abi.OK:
            raise StoreError(f"The limits of provider {provider} do not fit the "
                             f"snapshots of `{self.name}`: "
                             f"{self.failure.message.decode(errors='replace')}")
        self.limits = limits

    def settle(self):
        """Find a provider, if there is none yet."""
        if self.provider is None:
            self.bind(current_provider())

    # Runs of generated code

    def begin(self, num_threads, write=True):
        """
        Begin a run: until `end`, the store belongs to generated code.

        Parameters
        ----------
        num_threads : int
            For the store's own copies.
        write : bool, optional
            Whether snapshots are going to be written.

        Raises
        ------
        StoreError
            If another run uses the store, or if it cannot be written to.
        """
        status = abi.runtime().devitocomp_store_begin(self._handle, num_threads)
        if status != abi.OK:
            raise StoreError(f"`{self.name}` is in use: its snapshots are being read or "
                             "written by another run, in another thread or as another "
                             "argument of this one")

    def end(self):
        """End a run."""
        abi.runtime().devitocomp_store_end(self._handle)

    @property
    def error(self):
        """What went wrong in the latest run: a CompressionError, or None."""
        failure = self.failure
        if failure.status == abi.OK:
            return None
        action = failure.action.decode(errors='replace')
        provider = None if action in own_actions else str(self.provider)
        return CompressionError(
            failure.message.decode(errors='replace'), status=failure.status,
            action=action, function=self.name, snapshot=failure.index, provider=provider
        )

    @property
    def failure(self):
        failure = abi.Failure()
        abi.runtime().devitocomp_store_failure(self._handle, ct.byref(failure))
        return failure

    @contextmanager
    def _run(self, write):
        with self._lock:
            self.open(write)
            self.settle()
            self.begin(0, write)
            try:
                yield
            finally:
                self.end()
            if self.error is not None:
                raise self.error

    # Access from Python

    @cached_property
    def _plan(self):
        return self.provider.plan(self.dtype, self.shape,
                                  options=self.compression.options)

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

    def is_stored(self, index):
        """True if a snapshot has been written."""
        if not self.open(write=False, needed=False):
            return False
        if self._dump is not None:
            self.settle()
        return bool(self.info(index).stored)

    @property
    def stored(self):
        """The indices of the snapshots that have been written."""
        if not self.open(write=False, needed=False):
            return []
        return [i for i in range(self.nsnapshots) if self.is_stored(i)]

    def clear(self):
        """Drop all snapshots."""
        with self._lock:
            self._dump = None
            if self.open(write=False, needed=False):
                self.begin(0)
                self.end()
                abi.runtime().devitocomp_store_clear(self._handle)
                if self.error is not None:
                    raise self.error

    # Accounting

    def info(self, index):
        """What is known about a snapshot, as a `devitocomp_snapshot_info_t`."""
        info = abi.Info()
        status = abi.runtime().devitocomp_store_info(self._handle, index, ct.byref(info))
        if status != abi.OK:
            raise IndexError(f"`{self.name}` has no snapshot {index}, only "
                             f"0 to {self.nsnapshots - 1}")
        return info

    @property
    def usage(self):
        """What the store occupies, as a `devitocomp_usage_t`."""
        usage = abi.Usage()
        if self._handle is not None:
            abi.runtime().devitocomp_store_usage(self._handle, ct.byref(usage))
        return usage

    # Pickling

    def dump(self):
        """The snapshots as plain Python objects; None if there are none."""
        if self._handle is None or self._dump is not None:
            return self._dump
        lib = abi.runtime()
        payload, sidecar, size = ct.c_void_p(), ct.c_void_p(), ct.c_size_t()
        snapshots = {}
        for i in range(self.nsnapshots):
            if lib.devitocomp_store_peek(self._handle, i, ct.byref(payload),
                                         ct.byref(size), ct.byref(sidecar)) == abi.OK:
                nside = self.info(i).sidecar_bytes
                snapshots[i] = (_bytes(payload, size.value), _bytes(sidecar, nside))
        if not snapshots:
            return None
        return {'provider': payload_kind(self.provider), 'snapshots': snapshots}

    def restore(self, dump):
        """
        Take over what `dump` returned, here or in another process. Whether there is a
        provider for it turns out when a snapshot is first accessed.
        """
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


def payload_kind(provider):
    """What has to be equal for payloads to be exchanged."""
    return f"{provider.name}, payload version {provider.payload_version}"


def _outcome(error):
    if error is None:
        return abi.OK, b''
    status = error.status if error.status is not None else abi.PROVIDER_ERROR
    return status, error.message.encode()


def _bytes(pointer, size):
    return ct.string_at(pointer, size) if size else b''
