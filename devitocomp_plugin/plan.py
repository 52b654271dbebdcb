"""
What a provider offers and guarantees, and its plans, called from Python.
"""
import ctypes as ct
import threading
from dataclasses import dataclass, field, replace

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.exceptions import CompressionError, ProviderError, ProviderRefusal

__all__ = ['Claims', 'Limits', 'Plan']


# What our own allocators can align to, by execution kind
MAX_ALIGNMENT = {'host': 4096, 'cuda': 256, 'hip': 256}
MAX_BYTES = 2**62


def _members(mask, names):
    return frozenset(v for k, v in names.items() if mask >> k & 1)


@dataclass(frozen=True)
class Claims:
    """
    What a provider offers, whatever the plan.

    Attributes
    ----------
    flags : frozenset of str
        Some of 'strided', 'deterministic', 'thread-independent', 'detects-corruption' and
        'uses-sidecar'.
    execution_kinds, portable_kinds : frozenset of str
        Some of 'host', 'cuda' and 'hip': where it runs, and which of these decompress
        each other's payloads.
    dtypes : frozenset of numpy.dtype
    ranks : frozenset of int
    payload_version : int
    """

    flags: frozenset
    execution_kinds: frozenset
    portable_kinds: frozenset
    dtypes: frozenset
    ranks: frozenset
    payload_version: int

    @classmethod
    def from_struct(cls, struct):
        """Read them from a `devitocomp_limits_t`. Bits without a meaning are left out."""
        return cls(
            flags=frozenset(v for k, v in abi.FLAGS.items() if struct.flags & k),
            execution_kinds=_members(struct.execution_kinds, abi.EXECUTION_KINDS),
            portable_kinds=_members(struct.portable_kinds, abi.EXECUTION_KINDS),
            dtypes=_members(struct.dtypes, abi.DTYPES),
            ranks=_members(struct.ranks, {i: i for i in range(1, abi.MAX_RANK + 1)}),
            payload_version=struct.payload_version
        )

    def check(self, label, dtype, rank):
        """Raise a ProviderRefusal if a dtype or rank is not offered."""
        dtype = np.dtype(dtype)
        if dtype not in self.dtypes:
            offered = ', '.join(sorted(str(i) for i in self.dtypes)) or 'nothing'
            raise ProviderRefusal(f'provider {label} does not offer dtype {dtype}, only: '
                                  f'{offered}')
        if rank not in self.ranks:
            offered = ', '.join(str(i) for i in sorted(self.ranks)) or 'nothing'
            raise ProviderRefusal(f'provider {label} does not offer tensors with {rank} '
                                  f'dimensions, only with: {offered}')


@dataclass(frozen=True)
class Limits:
    """
    What a plan needs, and what it guarantees.

    Attributes
    ----------
    error_kind : str
        'none', 'lossless', 'relative-max' or 'absolute'.
    error_bound : float
        In the sense of `error_kind`.
    max_compressed_bytes, payload_alignment : int
        Of every payload.
    sidecar_bytes, sidecar_alignment : int
        Of every sidecar.
    struct : LimitsStruct
        The same as the provider filled it in, for `devitocomp_store_bind`.
    """

    error_kind: str
    error_bound: float
    max_compressed_bytes: int
    payload_alignment: int
    sidecar_bytes: int
    sidecar_alignment: int
    struct: abi.LimitsStruct = field(repr=False, compare=False)

    @property
    def lossless(self):
        """Whether decompression returns the very bits that were compressed."""
        return self.error_kind == 'lossless'

    def join(self, other):
        """Limits that payloads of both obey. Their sidecars have to be alike."""
        names = ('max_compressed_bytes', 'payload_alignment')
        most = {i: max(getattr(self, i), getattr(other, i)) for i in names}
        struct = abi.LimitsStruct.from_buffer_copy(self.struct)
        for k, v in most.items():
            setattr(struct, k, v)
        return replace(self, struct=struct, **most)

    @classmethod
    def from_struct(cls, struct, label, options=None, kind='host'):
        """
        Check what a provider has filled in. All that the rest of the package takes for
        granted is checked here.

        Parameters
        ----------
        struct : LimitsStruct
            As the provider filled it in.
        label : str
            Names the provider in messages.
        options : str, optional
            The error tolerance that was asked for.
        kind : str, optional
            The execution kind of the plan.

        Raises
        ------
        ProviderRefusal
            Naming the value that is no use, and what it should be.
        """
        def refuse(what):
            raise ProviderRefusal(f'provider {label} is unusable here: {what}')

        for i in ('payload_alignment', 'sidecar_alignment'):
            value, most = getattr(struct, i), MAX_ALIGNMENT[kind]
            # Sidecars are on the host always
            most = MAX_ALIGNMENT['host'] if i == 'sidecar_alignment' else most
            if value < 1 or value & (value - 1) or value > most:
                refuse(f'its {i} is {value}, but has to be a power of two from 1 to '
                       f'{most}')
        for i in ('max_compressed_bytes', 'sidecar_bytes'):
            value = getattr(struct, i)
            if value >= MAX_BYTES:
                refuse(f'its {i} is {value}, but has to be less than 2^62')

        error_kind = abi.ERROR_KINDS.get(struct.error_kind)
        bound = struct.error_bound
        if error_kind is None:
            refuse(f'its error_kind is {struct.error_kind}, which has no meaning')
        if not 0 <= bound < float('inf') or (error_kind == 'lossless' and bound != 0):
            refuse(f'its error_bound is {bound}, with error_kind {error_kind}')
        requested = _as_tolerance(options)
        if requested is not None and error_kind != 'lossless':
            if error_kind != 'relative-max':
                refuse(f'asked for a relative error of at most {options}, it promises an '
                       f'error of kind: {error_kind}')
            # It may have rounded when reading the number, but no more than that
            if bound > requested*(1 + 1e-9):
                refuse(f'asked for a relative error of at most {options}, it promises '
                       f'{bound!r} only')

        return cls(error_kind, bound, struct.max_compressed_bytes,
                   struct.payload_alignment, struct.sidecar_bytes,
                   struct.sidecar_alignment, struct)


def _as_tolerance(options):
    try:
        return None if options is None else float(options)
    except ValueError:
        # A string with a meaning to the provider only
        return None


def _address(memory):
    if isinstance(memory, np.ndarray):
        return memory.ctypes.data
    return memory


class Plan:
    """
    A provider's state for one kind of snapshots. See `Provider.plan`.

    Pointers are integers, or arrays whose first element is meant. One call at a time is
    made, from whatever threads.

    Attributes
    ----------
    provider : Provider
    limits : Limits
    """

    def __init__(self, provider, dtype, shape, strides, options, num_threads, kind):
        self._handle = ct.c_void_p()
        self._lock = threading.Lock()
        self._exec = abi.execution(kind, num_threads)
        self._tensor = abi.make_tensor(dtype, shape, strides)
        self.provider = provider

        status = provider.functions.devitocomp_plan_create(
            abi.ABI_VERSION, ct.byref(self._tensor), ct.byref(self._exec),
            None if options is None else options.encode(), ct.byref(self._handle)
        )
        if status != abi.OK or not self._handle:
            self._handle.value = None
            what = (f'dtype {np.dtype(dtype)}, shape {tuple(shape)}, error '
                    f'{"default" if options is None else options}')
            refused = status in (abi.INVALID_ARGUMENT, abi.UNSUPPORTED)
            raise (ProviderRefusal if refused else ProviderError)(
                f'provider {provider} refuses {what}: {abi.status_name(status)}: '
                f'{provider.message() or "it gives no reason"}'
            )
        try:
            struct = abi.LimitsStruct(ct.sizeof(abi.LimitsStruct))
            status = provider.functions.devitocomp_plan_limits(self._handle,
                                                               ct.byref(struct))
            if status != abi.OK:
                raise ProviderError(
                    f'provider {provider} does not tell its limits: '
                    f'{abi.status_name(status)}: {provider.message(self._handle)}'
                )
            self.limits = Limits.from_struct(struct, str(provider), options, kind)
        except ProviderError:
            self.close()
            raise

    def compress(self, tensor, payload, capacity, sidecar=None):
        """
        Compress one snapshot.

        Parameters
        ----------
        tensor : numpy.ndarray or int
            Where the first element is. An array has to fit the plan.
        payload, sidecar : numpy.ndarray or int
            Where to write, aligned as the limits ask.
        capacity : int
            Bytes available at `payload`.

        Returns
        -------
        int
            Bytes used at `payload`.

        Raises
        ------
        CompressionError
            If the provider fails.
        """
        used = ct.c_size_t()
        self._call('compress', self._check(tensor), _address(payload), capacity,
                   ct.byref(used), _address(sidecar))
        if used.value > capacity:
            raise CompressionError(f'it reports {used.value} bytes where there is room '
                                   f'for {capacity}', action='compress',
                                   provider=str(self.provider))
        return used.value

    def decompress(self, payload, nbytes, sidecar, tensor):
        """
        Decompress one snapshot.

        Parameters
        ----------
        payload, sidecar : numpy.ndarray or int
            As `compress` left them, aligned as the limits ask.
        nbytes : int
            What `compress` returned.
        tensor : numpy.ndarray or int
            Where to write. An array has to fit the plan.

        Raises
        ------
        CompressionError
            If the provider fails.
        """
        self._call('decompress', _address(payload), nbytes, _address(sidecar),
                   self._check(tensor))

    def close(self):
        """Destroy the plan."""
        with self._lock:
            if self._handle:
                self.provider.functions.devitocomp_plan_destroy(self._handle)
                self._handle.value = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _call(self, action, *args):
        function = getattr(self.provider.functions, f'devitocomp_{action}')
        with self._lock:
            if not self._handle:
                raise ValueError('the plan has been closed')
            status = function(self._handle, ct.byref(self._exec), *args)
            if status != abi.OK:
                raise CompressionError(self.provider.message(self._handle), action=action,
                                       provider=str(self.provider), status=status)

    def _check(self, tensor):
        if isinstance(tensor, np.ndarray):
            plan, rank = self._tensor, self._tensor.rank
            got = (tensor.dtype, tensor.shape,
                   tuple(i / tensor.itemsize for i in tensor.strides))
            want = (abi.dtype_of(plan.dtype), tuple(plan.dims[:rank]),
                    tuple(plan.strides[:rank]))
            if got != want:
                raise ValueError(f'the plan is for (dtype, shape, strides) {want}, got '
                                 f'{got}')
        return _address(tensor)
