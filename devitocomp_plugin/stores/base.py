"""The store of compressed snapshots behind a function, seen from Python."""

import ctypes as ct
import threading
import weakref
from contextlib import contextmanager

import numpy as np
from devito import configuration

from devitocomp_plugin import abi
from devitocomp_plugin.exceptions import CompressionError, StoreError
from devitocomp_plugin.provider import current_provider
from devitocomp_plugin.stores.arrays import ArrayAccess

__all__ = ['SnapshotStore']


# What a failure of which is not the provider's
own_actions = ('store', 'load', 'clear', 'flush', 'open')


class SnapshotStore(ArrayAccess):

    """
    The compressed snapshots of one function. Where they are kept is up to subclasses,
    each of them registered with `layers.keeps`.

    Nothing is allocated, and no provider looked for, before the first access. From then
    on the store is bound to a provider, and other providers can use it only if they can
    decode its snapshots, or while it is empty.

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

    on_device = False
    """Whether payloads are in the memory of a device."""

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
        self.kind = 'host'  # in which the provider executes
        self.limits = None
        self._handle = None
        self._destroy = None
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
        raise NotImplementedError

    # The C object

    @property
    def is_open(self):
        """Whether it has been accessed."""
        return self._handle is not None

    def open(self, write, needed=True, kind=None):
        """
        Access the store for the first time; later calls have no effect. Under MPI all
        ranks have to call this at once, and all get the same result.

        Parameters
        ----------
        write : bool
            Whether snapshots are going to be written.
        needed : bool, optional
            False if no store is to be made in order to read from it.
        kind : str, optional
            The execution kind of what is going to access it, if that is known.

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
                self.kind = kind or self.kind
                handle = self._open(write, needed)
                if handle is not None:
                    self._attach(handle)
            return self.is_open

    def _open(self, write, needed):
        """The C object, or None if there is, and need be, none."""
        raise NotImplementedError

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
        raise NotImplementedError

    @property
    def nbytes_max_device(self):
        """The same of the memory of a device."""
        return 0

    @property
    def nbytes_transit(self):
        """The memory for one payload on its way between a device and the host."""
        limits = None if self.on_device else self.expected_limits
        return 0 if limits is None else limits.max_compressed_bytes

    @property
    def _held(self):
        """The record of what compressed the snapshots; None if there are none."""
        raise NotImplementedError

    def _accept(self, record):
        """Take note of what the snapshots to come are compressed by."""

    def bind(self, provider, kind='host'):
        """
        Let a provider, executing in some kind, read and write the snapshots of the store,
        which is open.

        Raises
        ------
        StoreError
            If there are snapshots that it cannot decode.
        """
        with self._lock:
            if provider is self.provider and kind == self.kind:
                return
            held, new = self._held, payload_record(provider, kind)
            if held is not None and payload_kind(held) != payload_kind(new):
                raise StoreError(
                    f"The snapshots of `{self.name}` were compressed by "
                    f"{payload_kind(held)}, and cannot be read or extended by "
                    f"{payload_kind(new)}; use a provider of the former, or drop them "
                    f"with `{self.name}.clear()`"
                )
            self._accept(new)
            if all(self.shape):
                # Else a rank without points: nothing will ever be compressed
                self._set_limits(self._find_limits(provider, kind), provider)
            self.provider, self.kind = provider, kind
            self.__dict__.pop('_plan', None)

    def _find_limits(self, provider, kind):
        """Those of all plans that may come to compress snapshots."""
        kinds = provider.decoders(kind) & {kind, 'host'} & provider.claims.execution_kinds
        first, *rest = (provider.check_tensor(self.dtype, self.shape,
                                              self.compression.options, kind=i)
                        for i in sorted(kinds | {kind}))
        for i in rest:
            first = first.join(i)
        return first

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
            provider = current_provider()
            self.bind(provider, self._choose_kind(provider))

    def _choose_kind(self, provider):
        """The execution kind for whoever has no preference, Python that is."""
        kinds = [i for i in preferred_kinds() if provider.supports(i)
                 and not (self.on_device and i == 'host')]
        held = self._held
        return next((i for i in kinds if held is None
                     or payload_kind(held) == payload_kind(payload_record(provider, i))),
                    kinds[0] if kinds else 'host')

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

    # Snapshots

    def is_stored(self, index):
        """True if a snapshot has been written."""
        if not self.open(write=False, needed=False):
            return False
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
        """What a pickle of the function needs to find the snapshots; None if nothing."""
        raise NotImplementedError

    def restore(self, dump):
        """
        Take over what `dump` returned, here or in another process. Whether that is
        possible turns out when a snapshot is first accessed.
        """
        raise NotImplementedError


def payload_record(provider, kind):
    """What there is to know of who compresses payloads, for them to be decompressed."""
    record = {'name': provider.name, 'version': provider.version,
              'payload_version': provider.payload_version}
    decoders = provider.decoders(kind)
    if 'host' not in decoders:
        record['kinds'] = sorted(decoders)
    return record


def payload_kind(record):
    """What has to be equal for payloads to be exchanged."""
    kinds = f", on {' or '.join(record['kinds'])}" if 'kinds' in record else ''
    return f"{record['name']}, payload version {record['payload_version']}{kinds}"


def preferred_kinds():
    """All execution kinds. A device is asked for only if the host won't do."""
    language = configuration['language']
    return sorted(abi.EXECUTION_KINDS.values(),
                  key=lambda i: (i != 'host', i != language))
