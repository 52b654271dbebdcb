"""Stores whose snapshots rest on disk."""

import ctypes as ct
import os
import tempfile
import weakref
from contextlib import suppress
from functools import cache, cached_property

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.exceptions import DevitoCompError, StoreError
from devitocomp_plugin.layers import (
    Disk,
    DiskDevice,
    DiskHost,
    DiskHostDevice,
    keeps,
)
from devitocomp_plugin.parallel import (
    find_comm,
    on_any_rank,
    on_first_rank,
    raise_together,
)
from devitocomp_plugin.stores import directories, manifest
from devitocomp_plugin.stores.base import SnapshotStore
from devitocomp_plugin.stores.resources import check_free_space, room_bytes, staging_cap

__all__ = ['DiskStore']

FILES = (manifest.MANIFEST, 'snapshots.index', 'snapshots.data')

sweep_once = cache(directories.sweep)

# Who in this process writes into which directory
writers = weakref.WeakValueDictionary()


@keeps(Disk, DiskHost, DiskDevice, DiskHostDevice)
class DiskStore(SnapshotStore):

    """
    The compressed snapshots of one function, on disk. docs/store-format.md describes the
    files.

    Where they lie is decided by the first access, which all MPI ranks make together.

    Parameters
    ----------
    name, nsnapshots, dtype, shape, compression
        As for SnapshotStore.
    layers : Layers
        With a host layer, snapshots stay in memory as long as there is room.
    serialization : str or None
        The directory of a store, or that in which to make and look for stores. None for
        a temporary directory.
    description : dict
        What a store has to be of in order to be opened; see `manifest.describe`.
    distributor : Distributor or None
    comm : MPI.Comm or None
    raw_bytes : int
        Of all snapshots, on all ranks, uncompressed.
    """

    def __init__(self, name, nsnapshots, dtype, shape, compression, *, layers,
                 serialization, description, distributor, comm, raw_bytes):
        super().__init__(name, nsnapshots, dtype, shape, compression)
        self.layers = layers
        self._serialization = serialization
        self._description = description
        self._distributor = distributor
        self._comm = comm
        self._raw_bytes = raw_bytes

        self.path = None
        self._is_reference = False  # whether only the store in `path` will do
        self._manifest = None
        self._writer = None

    @classmethod
    def of(cls, function):
        serialization = function.serialization
        if serialization is not None:
            serialization = os.path.abspath(os.path.expanduser(serialization))
        return cls(function.name, function.save, function.dtype, function.shape[1:],
                   function.compression, layers=function.layers,
                   serialization=serialization, description=manifest.describe(function),
                   distributor=function._distributor, comm=find_comm([function]),
                   raw_bytes=int(np.prod(function.shape_global, dtype=np.int64)) *
                   np.dtype(function.dtype).itemsize)

    def empty_like(self):
        return DiskStore(self.name, self.nsnapshots, self.dtype, self.shape,
                         self.compression, layers=self.layers, serialization=None,
                         description=self._description, distributor=self._distributor,
                         comm=self._comm, raw_bytes=self._raw_bytes)

    @property
    def _is_temporary(self):
        return self._serialization is None and not self._is_reference

    @property
    def _directory(self):
        return directories.of_rank(self.path, self._description['mpi']['rank'])

    @property
    def files(self):
        if self.path is None:
            return ()
        return tuple(os.path.join(self._directory, i) for i in FILES)

    # Memory

    @cached_property
    def _staging_cap(self):
        return staging_cap(1 if self._comm is None else self._distributor.nprocs_local)

    @property
    def nbytes_max(self):
        limits = self.expected_limits
        if limits is None:
            return 0
        room = room_bytes(limits)
        if 'host' not in self.layers.names:
            return room
        # One more than all, as memory is reserved before the size is known
        return max(room, min(self._staging_cap, (self.nsnapshots + 1)*room))

    # Where the store is

    def _locate(self, write, needed):
        """The directory to use, and whether it is new; None if there is none."""
        if self._is_reference:
            if not directories.is_store(self.path):
                raise StoreError(
                    f"The snapshots of `{self.name}` were in {self.path}, where there is "
                    "no store any more. Temporary ones vanish with the function, or the "
                    "process, that made them: name a directory with `serialization`"
                )
            return self.path, False
        if self._serialization is not None:
            return directories.locate(self._serialization, self.name, write, needed)
        if not (write or needed):
            return None
        return directories.make_directory(tempfile.gettempdir(), self.name,
                                          temporary=True), True

    # Opening

    def _open(self, write, needed):
        write = on_any_rank(self._comm, write)
        place = on_first_rank(self._comm, self._locate, write, needed)
        if place is None:
            return None
        before, (self.path, fresh) = self.path, place
        handle = error = None
        try:
            handle = self._enter(fresh, write)
        except Exception as e:
            # Whatever it is, the other ranks are waiting
            error = e
        try:
            raise_together(error, self._comm)
            if fresh:
                # With this one there is a store
                on_first_rank(self._comm, self._publish)
        except Exception:
            if handle is not None:
                abi.runtime().devitocomp_store_destroy(handle)
            self._leave(fresh)
            self.path = before
            raise
        if fresh and self._is_temporary:
            weakref.finalize(self, directories.remove, self._directory, os.getpid())
        return handle

    def _enter(self, fresh, write):
        """Open this rank's part, or make it."""
        if fresh and self._is_temporary:
            sweep_once()
        if fresh:
            directories.make_part(self._directory, self.name)
            self._manifest = manifest.new(self.name, self._description)
        else:
            self._read_manifest()
        if fresh or write:
            self._take_lock()
        handle = self._open_files()
        if fresh and self._description['mpi']['rank'] > 0:
            self._publish()
        return handle

    def _read_manifest(self):
        found = manifest.read(self._directory, self.name)
        manifest.check(found, self._description, self._directory, self.name)
        self._manifest = found

    def _publish(self):
        manifest.write(self._directory, self._manifest)
        if self._description['mpi']['rank'] == 0:
            limits = self.expected_limits
            check_free_space(self.path, self.name, self._raw_bytes,
                             limits is None or limits.lossless)

    def _leave(self, fresh):
        self._manifest = None
        self._release_lock()
        if fresh:
            directories.remove(self._directory, os.getpid())

    def _take_lock(self):
        holder = writers.get(self._directory)
        if holder is not None and not self._is_reference:
            holder._give_up_lock()
        self._writer = directories.WriterLock(self._directory, self.name)
        weakref.finalize(self, self._writer.release)
        writers[self._directory] = self

    def _open_files(self):
        cache_bytes = self.nbytes_max if 'host' in self.layers.names else 0
        disk = abi.Disk(os.fsencode(self._directory),
                        int(self._manifest['store_id'], 16), cache_bytes,
                        self._writer is None)
        failure = abi.Failure()
        handle = abi.runtime().devitocomp_store_open(ct.byref(self._config),
                                                     ct.byref(disk), ct.byref(failure))
        if not handle:
            raise StoreError(f"The store of `{self.name}` in {self._directory} cannot be "
                             f"opened: {abi.status_name(failure.status)}: "
                             f"{failure.message.decode(errors='replace')}")
        return handle

    # From reading to writing, and back

    def begin(self, num_threads, write=True):
        with self._lock:
            super().begin(num_threads, write)
            if write and self._writer is None:
                # Nobody else is at it
                self.end()
                self._take_lock()
                try:
                    self._open_again()
                except DevitoCompError:
                    self._release_lock()
                    raise
                super().begin(num_threads, write)

    def _open_again(self):
        # Somebody else may have written to it meanwhile
        self._read_manifest()
        self._attach(self._open_files())
        provider, self.provider = self.provider, None
        if provider is not None:
            self.bind(provider, self.kind)

    def _give_up_lock(self):
        """
        Go back to reading, unless in a run, for another function of this process. Devito
        may keep this one for long after its user has dropped it.
        """
        # The lock of a temporary store tells that its owner is alive
        if self._is_temporary or not self._lock.acquire(blocking=False):
            return
        try:
            # In use, or gone: who asked will find out
            with suppress(DevitoCompError):
                super().begin(0)
                self.end()
                self._release_lock()
                self._open_again()
        finally:
            self._lock.release()

    def _release_lock(self):
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    # The provider

    @property
    def _held(self):
        provider = self._manifest['provider']
        if provider is None or not self.usage.stored_bytes:
            return None
        return provider

    def bind(self, provider, kind='host'):
        with self._lock:
            # It may have been empty when it was opened
            if self._writer is None and self._manifest['provider'] is None:
                self._read_manifest()
                if self._manifest['provider'] is not None:
                    self.provider = None
            super().bind(provider, kind)

    def _accept(self, record):
        if self._writer is not None and self._manifest['provider'] != record:
            self._manifest = {**self._manifest, 'provider': record}
            manifest.write(self._directory, self._manifest)

    # Pickling

    def dump(self):
        """The directory, if it is decided: pickles refer to it."""
        return None if self.path is None else {'path': self.path}

    def restore(self, dump):
        """Use that directory, and no other, once there is an access."""
        self.path = dump['path']
        self._is_reference = True
