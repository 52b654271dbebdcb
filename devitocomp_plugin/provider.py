"""
The provider: found, checked before any code is generated, and called from Python.
"""
import ctypes as ct
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from devitocomp_plugin import abi, linking, paths
from devitocomp_plugin.exceptions import (
    CompressionError,
    ProviderError,
    ProviderLoadError,
    ProviderNotFound,
    ProviderRefusal,
    ProviderSymbolError,
    ProviderVersionError,
)

__all__ = ['Claims', 'Limits', 'Plan', 'Provider', 'aligned_buffer', 'current_provider']

HEADER = Path('include', 'devitocomp.h')
LIBRARY = Path('lib', 'libdevitocomp.so')

_VERSION = re.compile(r'^[ \t]*#[ \t]*define[ \t]+DEVITOCOMP_ABI_VERSION[ \t]+'
                      r'(?:UINT32_C)?[( \t]*(0[xX][0-9a-fA-F]+|\d+)', re.MULTILINE)


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


def aligned_buffer(nbytes, alignment):
    """A zeroed byte array whose first byte is aligned."""
    raw = np.zeros(nbytes + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start:start + nbytes]


def _address(memory):
    if isinstance(memory, np.ndarray):
        return memory.ctypes.data
    return memory


class Plan:
    """
    A provider's state for one kind of snapshots, on the host. See `Provider.plan`.

    Pointers are integers, or arrays whose first element is meant. One call at a time is
    made, from whatever threads.

    Attributes
    ----------
    provider : Provider
    limits : Limits
    """

    def __init__(self, provider, dtype, shape, strides, options, num_threads):
        self._handle = ct.c_void_p()
        self._lock = threading.Lock()
        self._exec = abi.host_execution(num_threads)
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
            self.limits = Limits.from_struct(struct, str(provider), options)
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


class Provider:
    """
    A provider that has passed all checks. Obtained from `current_provider()`.

    Attributes
    ----------
    root, include_dir, library : Path
        The root, and its folder of headers and shared library.
    key : str
        Identifies the library: its path, content and ABI version.
    name, version : str
        What the provider calls itself.
    claims : Claims
        What it offers.
    functions : ctypes.CDLL
        The loaded library, whose functions have prototypes.
    """

    def __init__(self, root, library, functions, key, content_hash, signature):
        self.root = root
        self.include_dir = root / HEADER.parent
        self.library = library
        self.functions = functions
        self.key = key
        self.name = self._string('devitocomp_provider_name')
        self.version = self._string('devitocomp_provider_version')
        self.claims = self._query_claims()
        self._content_hash = content_hash
        self._signature = signature

    def __repr__(self):
        return f'<Provider {self} in {self.root}>'

    def __str__(self):
        return f'{self.name} {self.version}'

    @property
    def payload_version(self):
        """Changes when old payloads can no longer be decompressed."""
        return self.claims.payload_version

    def supports(self, kind):
        """Whether the provider offers execution of a kind: 'host', 'cuda' or 'hip'."""
        return kind in self.claims.execution_kinds

    def plan(self, dtype, shape, strides=None, options=None, num_threads=0):
        """
        Create a plan for host execution.

        Parameters
        ----------
        dtype : numpy.dtype
            Of the snapshots.
        shape : tuple of int
            Of the snapshots, slowest dimension first.
        strides : tuple of int, optional
            In elements; contiguous by default.
        options : str, optional
            The relative error tolerance, as a decimal number; the provider's default if
            it is not given.
        num_threads : int, optional
            Threads to use; 0 for the provider's choice.

        Returns
        -------
        Plan
            A context manager, which destroys the plan at its end.

        Raises
        ------
        ProviderRefusal
            If the provider does not offer that, or what it says is no use.
        """
        if not self.supports('host'):
            offered = ', '.join(sorted(self.claims.execution_kinds)) or 'none'
            raise ProviderRefusal(f'provider {self} does not run on the host, only on: '
                                  f'{offered}')
        self.claims.check(str(self), dtype, len(shape))
        return Plan(self, dtype, shape, strides, options, num_threads)

    def check_tensor(self, dtype, shape, options=None):
        """
        Find out whether the provider takes snapshots of a kind.

        Parameters
        ----------
        dtype, shape, options
            As for `plan`.

        Returns
        -------
        Limits or None
            Those of a plan on the host; None if there is no execution on the host, as
            then only the provider's general claims can be checked.

        Raises
        ------
        ProviderRefusal
            If it does not. The message names the provider, the value it refuses, and
            gives its reason.
        """
        self.claims.check(str(self), dtype, len(shape))
        if not self.supports('host'):
            return None
        with self.plan(dtype, shape, options=options) as plan:
            return plan.limits

    def message(self, plan=None):
        """The provider's description of the last failure."""
        return (self.functions.devitocomp_message(plan) or b'').decode(errors='replace')

    def check_unchanged(self):
        """Raise a ProviderError unless the library is still the one that was checked."""
        try:
            signature = linking.signature(self.library)
        except OSError as e:
            raise ProviderNotFound(
                f'the library of provider {self}, {self.library}, has gone since it was '
                f'loaded ({e.strerror}). Restore it, or set DEVITOCOMP_ROOT to another.'
            ) from None
        if signature == self._signature:
            return
        if linking.content_hash(self.library) != self._content_hash:
            raise ProviderLoadError(
                f'{self.library} has changed since provider {self} was loaded from it. '
                f'Build the operator again.'
            )
        self._signature = signature

    def _string(self, function):
        value = getattr(self.functions, function)()
        if not value:
            raise ProviderLoadError(f'{self.library}: {function}() returns no string')
        return value.decode(errors='replace')

    def _query_claims(self):
        struct = abi.LimitsStruct(ct.sizeof(abi.LimitsStruct))
        status = self.functions.devitocomp_plan_limits(None, ct.byref(struct))
        if status != abi.OK:
            raise ProviderLoadError(
                f'{self.library}: provider {self} does not tell its claims: '
                f'devitocomp_plan_limits(NULL, ...) returns {abi.status_name(status)}'
            )
        return Claims.from_struct(struct)


_lock = threading.RLock()
_current = {}  # root -> (signatures of the files, Provider)
_providers = {}  # key -> Provider


def current_provider():
    """
    The provider that `DEVITOCOMP_ROOT` selects, or else the bundled one.

    The environment variable is read, and the files are looked at, in each call: changing
    one or rebuilding the others takes effect at once. If nothing has changed, the same
    object is returned.

    Returns
    -------
    Provider

    Raises
    ------
    ProviderError
        If the provider cannot be used. The message says why, and what to do.
    """
    named = os.environ.get('DEVITOCOMP_ROOT')
    root = Path(named or paths.dummy_root()).expanduser().resolve()
    header, library = root / HEADER, root / LIBRARY
    _check_layout(named or root, root, header, library)

    with _lock:
        signatures = (linking.signature(header), linking.signature(library))
        known, provider = _current.get(root, (None, None))
        if known == signatures:
            return provider
        _check_header(header)
        content_hash = linking.content_hash(library)
        key = linking.library_key(library, content_hash)
        provider = _providers.get(key)
        if provider is None:
            functions = _load(library, key, content_hash)
            provider = Provider(root, library, functions, key, content_hash,
                                signatures[1])
            _providers[key] = provider
        _current[root] = (signatures, provider)
        return provider


def _check_layout(named, root, header, library):
    hint = ('Set DEVITOCOMP_ROOT to a directory that contains include/devitocomp.h and '
            'lib/libdevitocomp.so, or unset it to use the bundled provider.')
    if not root.is_dir():
        raise ProviderNotFound(f'DEVITOCOMP_ROOT is {named}, which is not a directory. '
                               f'{hint}')
    for i in (header, library):
        if not i.is_file():
            raise ProviderNotFound(f'there is no {i}, which a provider needs. {hint}')


def _check_header(header):
    try:
        found = _VERSION.search(header.read_text(errors='replace'))
    except OSError as e:
        raise ProviderLoadError(f'cannot read {header}: {e.strerror}') from e
    version = int(found.group(1), 0) if found else None
    if version != abi.ABI_VERSION:
        says = 'no DEVITOCOMP_ABI_VERSION' if found is None else f'version {version}'
        raise ProviderVersionError(
            f'{header} defines {says} of the interface, but devitocomp_plugin needs '
            f'version {abi.ABI_VERSION}. {_upgrade(version)}'
        )


def _upgrade(version):
    if version is not None and version > abi.ABI_VERSION:
        return 'Update devitocomp_plugin, or use an older build of the provider.'
    return 'Build the provider again, with the header that comes with devitocomp_plugin.'


def _load(library, key, content_hash):
    functions = linking.load_private(library, key, content_hash)
    missing = abi.declare(functions, abi.PROVIDER_FUNCTIONS)
    # An old or new library may lack a function for the very reason that it is one
    if 'devitocomp_abi_version' not in missing:
        version = functions.devitocomp_abi_version()
        if version != abi.ABI_VERSION:
            raise ProviderVersionError(
                f'{library} implements version {version} of the interface, but '
                f'devitocomp_plugin needs version {abi.ABI_VERSION}. {_upgrade(version)}'
            )
    if missing:
        raise ProviderSymbolError(
            f'{library} does not export {", ".join(missing)}. Build it so that all '
            f'functions declared in devitocomp.h are visible (DEVITOCOMP_EXPORT).'
        )
    return functions
