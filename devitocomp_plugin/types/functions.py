"""TimeFunctions whose history is compressed."""

from ctypes import POINTER
from pathlib import PurePath

import devito
from devito.exceptions import InvalidArgument
from devito.logger import warning
from devito.symbolics.extended_dtypes import NoDeclStruct
from devito.tools import ReducerMap, is_integer

from devitocomp_plugin.config import as_compression
from devitocomp_plugin.data import SnapshotArray
from devitocomp_plugin.distributed import DistributedSnapshotArray
from devitocomp_plugin.layers import NoLayers, as_layers, stores
from devitocomp_plugin.provider import current_provider
from devitocomp_plugin.report import CompressionReport
from devitocomp_plugin.types.arguments import StoreArgument

__all__ = ['CompressedTimeFunction', 'TimeFunction']


class TimeFunction(devito.TimeFunction):

    """
    A devito.TimeFunction that may be compressed.

    Takes the parameters of devito.TimeFunction and, additionally, those below. Without
    `compression` a plain devito.TimeFunction is returned.

    Parameters
    ----------
    compression : None, str or DevitoComp, optional
        None (the default) for a plain, dense TimeFunction; ``'devitocomp'`` or
        ``DevitoComp()`` to compress with the provider's default tolerance;
        ``DevitoComp(error=e)`` to set it. Requires an integer `save`.
    layers : Layers, str or tuple of str, optional
        Where snapshots live: Host, in memory; Disk, in files, of which no more than one
        snapshot is in memory; DiskHost, in files, with as many in memory as there is
        room for; Device, in the memory of a device. HostDevice, DiskDevice and
        DiskHostDevice are compressed on a device and live on the host, as Host, Disk and
        DiskHost. Defaults to NoLayers, which means Host, or HostDevice for Operators on
        devices if the provider executes there.
    serialization : str or pathlib.Path, optional
        For layers with a disk, one of two directories. That of a store, as `_fnbase` of
        another function names it: then this is the store used. Or else one to keep
        stores in, which is made if need be: then the first access decides. If it is a
        write, or an apply that writes, a new store is made in it; if it is a read, the
        newest store of a function of that name is used. Without `serialization`, a
        temporary directory (see `tempfile.gettempdir`) is used, and removed with the
        function or at the end of the process.

    Raises
    ------
    ValueError
        If an argument is not one of the accepted values, if `compression` comes without
        an integer `save`, if `layers` or `serialization` come without `compression`, or
        if `serialization` comes with `layers` that have no disk.
    ProviderError
        If there is no usable provider, or if it refuses the dtype, the rank or the
        tolerance of the function.

    Examples
    --------
    >>> from devito import Grid
    >>> from devitocomp_plugin import DevitoComp, TimeFunction
    >>> grid = Grid(shape=(11, 11))
    >>> usave = TimeFunction(name='usave', grid=grid, save=100,
    ...                      compression=DevitoComp(error=1e-3))
    >>> usave.data.shape
    (100, 11, 11)
    """

    def __new__(cls, *args, **kwargs):
        if cls is not TimeFunction:
            return super().__new__(cls, *args, **kwargs)

        if as_compression(kwargs.get('compression')) is not None:
            if not is_integer(kwargs.get('save')):
                raise ValueError("`compression` requires an integer `save`, the number "
                                 f"of snapshots to keep; got save={kwargs.get('save')!r}")
            return CompressedTimeFunction(*args, **kwargs)

        kwargs.pop('compression', None)
        if as_layers(kwargs.pop('layers', None)) is not NoLayers:
            raise ValueError("`layers` says where compressed snapshots live, and this "
                             "TimeFunction is not compressed; pass "
                             "compression='devitocomp' too")
        if kwargs.pop('serialization', None) is not None:
            raise ValueError("`serialization` is the directory of compressed snapshots, "
                             "and this TimeFunction is not compressed; pass "
                             "compression='devitocomp' too")
        return devito.TimeFunction(*args, **kwargs)


def as_serialization(value):
    """
    Check the `serialization` argument of a TimeFunction.

    Raises
    ------
    ValueError
        If it is not the path of a directory that there is or could be.
    """
    if value is None or isinstance(value, (str, PurePath)) and str(value):
        return value
    raise ValueError(f"serialization={value!r} is not a directory: pass a path, as a str "
                     "or a pathlib.Path, or None for a temporary one")


# The providers about which the user has been told already
notified = set()


class StoreStruct(NoDeclStruct):
    """The opaque C type behind a compressed function; devitocomp_store.h declares it."""


StoreStruct.__name__ = 'devitocomp_store'


class CompressedTimeFunction(TimeFunction):

    """
    A TimeFunction that holds no dense data, but a store of compressed snapshots.

    It stays an ordinary Operator parameter, whose C type is an opaque pointer to the
    store. Users create it through TimeFunction.
    """

    # Never a source of strides or sizes for linearized accesses: it has no dense data
    is_regular = False
    is_autopaddable = False

    # Nor is it ever on a device, where its buffers are
    _mem_host = True

    __rkwargs__ = TimeFunction.__rkwargs__ + ('compression', 'layers', 'serialization')

    _C_structname = StoreStruct.__name__
    _C_ctype = POINTER(StoreStruct)

    def __init_finalize__(self, *args, function=None, **kwargs):
        self._compression = as_compression(kwargs.get('compression'))
        self._layers = as_layers(kwargs.get('layers'))
        self._serialization = as_serialization(kwargs.get('serialization'))
        initializer = kwargs.pop('initializer', None)
        snapshots = kwargs.pop('snapshots', None)

        if self._serialization is not None and 'disk' not in self._layers.names:
            raise ValueError(f"serialization={str(self._serialization)!r} is the "
                             "directory of the Disk layer, which is not in "
                             f"layers={str(self._layers)!r}; pass layers='disk' or "
                             "layers='disk-host' too")

        super().__init_finalize__(*args, function=function, **kwargs)

        if function is not None:
            self._store = function._store
            return

        self._store = stores[self._layers].of(self)
        if self.alias:
            return
        if all(self.shape[1:]):
            self._check_provider()
        if initializer is not None:
            self.data.initialize(initializer)
        if snapshots is not None:
            self._store.restore(snapshots)

    def _check_provider(self):
        # Fail here, not after an hour of propagation
        provider = current_provider()
        limits = provider.check_tensor(self.dtype, self.shape[1:],
                                       self._compression.options)
        if self._compression.error and limits and limits.lossless and \
           provider.key not in notified:
            notified.add(provider.key)
            warning(f"Provider {provider} is lossless: `{self.name}` will not be "
                    f"compressed by making use of error={self._compression.error}. "
                    "Select a provider that does with DEVITOCOMP_ROOT")

    @property
    def compression(self):
        """The DevitoComp configuration."""
        return self._compression

    @property
    def layers(self):
        """The stack of storage layers."""
        return self._layers

    @property
    def serialization(self):
        """The directory of the Disk layer as it was given, or None."""
        return self._serialization

    @property
    def _fnbase(self):
        """
        The directory of the store, the same string on all MPI ranks, which
        ``serialization=`` takes to open it again. None if there is no disk layer, or if
        the first access has not yet decided on a directory.
        """
        if self.serialization is None and self._store.path is None and \
           'disk' in self.layers.names:
            # A new, temporary one in any case
            self._store.open(write=True)
        return self._store.path

    @property
    def _fnames(self):
        """The files of the store, a tuple of paths: of this MPI rank's part."""
        return self._store.files

    # Data

    @property
    def data(self):
        """
        The snapshots, as a lazy array of shape ``(save, ...)``.

        Reading ``data[t]`` decompresses a snapshot, assigning to it compresses one. A
        snapshot never written reads as zeros. Under MPI it follows Devito's rules for
        distributed data.
        """
        return self._view()

    def _view(self, writeable=True):
        if self.grid is not None and self.grid.distributor.is_parallel:
            return DistributedSnapshotArray(self, writeable)
        return SnapshotArray(self._store, self.shape, self.dtype, writeable)

    data_domain = data
    data_local = data

    @property
    def data_ro_domain(self):
        """A read-only view of `data`."""
        return self._view(writeable=False)

    def _no_halo(self):
        raise NotImplementedError(f"`{self.name}` is compressed, and the halo of a "
                                  "compressed function is not stored; use `.data`")

    data_with_halo = property(_no_halo)
    data_ro_with_halo = property(_no_halo)
    _data_with_outhalo = property(_no_halo)
    _data_ro_with_outhalo = property(_no_halo)
    _data_with_inhalo = property(_no_halo)
    _data_ro_with_inhalo = property(_no_halo)
    _data_allocated = property(_no_halo)
    _data_ro_allocated = property(_no_halo)

    def data_gather(self, **kwargs):
        raise NotImplementedError(f"`{self.name}` is compressed, and cannot be gathered "
                                  "on one rank as a whole; gather `.data[t]` instead")

    @property
    def initializer(self):
        # Snapshots travel through the store, never as a dense array
        return None

    def clear(self):
        """Drop all snapshots, and the memory they occupy."""
        self._store.clear()

    def compression_report(self):
        """
        Account for the snapshots held and for the work done on them.

        Returns
        -------
        CompressionReport
        """
        return CompressionReport(self)

    @property
    def nbytes_max(self):
        """
        The most host memory that the snapshots can take, by the provider's limits and
        the layers, in bytes. What `Operator.estimate_memory` counts.
        """
        return self._store.nbytes_max

    @property
    def nbytes_max_device(self):
        """The most memory of a device that the snapshots can take, in bytes."""
        return self._store.nbytes_max_device

    def _cache_meta(self):
        # Nothing dense lives in Devito's cache
        return {'nbytes': 0}

    # Arguments processing

    def _arg_defaults(self, alias=None, metadata=None, estimate_memory=False):
        key = alias or self
        if not isinstance(key, CompressedTimeFunction):
            raise InvalidArgument(f"The Operator was built for a dense `{key.name}`; it "
                                  f"cannot run with the compressed `{self.name}`")
        args = ReducerMap({key.name: self if estimate_memory else StoreArgument(self)})
        for a, d, s in zip(key.dimensions, self.dimensions, self.shape, strict=True):
            args.update(d._arg_defaults(_min=0, size=s, alias=a))
        return args

    def _arg_values(self, **kwargs):
        new = kwargs.get(self.name, self)
        if not isinstance(new, CompressedTimeFunction):
            raise InvalidArgument(
                f"`{self.name}` is compressed, and can only be overridden by another "
                f"compressed TimeFunction, not by {type(new).__name__}; copy the values "
                "into the `.data` of one"
            )
        for i in ('compression', 'dtype', 'layers'):
            if getattr(new, i) != getattr(self, i):
                raise InvalidArgument(
                    f"Cannot override `{self.name}` by `{new.name}`: their {i} differ, "
                    f"{getattr(self, i)!r} and {getattr(new, i)!r}. Build the Operator "
                    f"with `{new.name}`, or create both alike"
                )
        return super()._arg_values(**kwargs)

    def _arg_finalize(self, args, alias=None):
        key = alias or self
        return {key.name: args[key.name]}

    # The autotuner makes shadow copies of what an Operator writes, through these two

    def _C_as_ndarray(self, dataobj):
        return dataobj

    def _C_make_dataobj(self, alias=None, **args):
        return args[(alias or self).name]

    # Pickling support

    @property
    def pickle_snapshots(self):
        """
        Whether pickling or copying the function (``copy.copy``, ``copy.deepcopy``)
        carries its compressed snapshots along, which is the default.

        In memory, the copy has snapshots of its own. On disk, it shares them: it refers
        to the directory, opens it when it is first accessed, and sees what the original
        writes, but cannot itself write (StoreError) as long as the original can. The
        directory has to be there, and a temporary one vanishes with the original.

        Set it to False to ship the function, or an Operator that uses it, to a worker
        that is going to fill it anew: the copy is empty then, and on disk has a
        temporary directory of its own.
        """
        return self._store.pickled

    @pickle_snapshots.setter
    def pickle_snapshots(self, value):
        self._store.pickled = bool(value)

    @property
    def snapshots(self):
        """The compressed snapshots, in a form that can be pickled; None if empty."""
        return self._store.dump() if self.pickle_snapshots else None

    @property
    def _pickle_rkwargs(self):
        return tuple(self.__rkwargs__) + ('snapshots',)

    def __getnewargs_ex__(self):
        args, kwargs = super().__getnewargs_ex__()
        if not self.pickle_snapshots:
            kwargs['serialization'] = None
        return args, kwargs
