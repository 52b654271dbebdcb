"""
The provider: found, checked before any code is generated, and called from Python.
"""
import ctypes as ct
import os
import re
import threading
from pathlib import Path

from devitocomp_plugin import abi, linking, paths
from devitocomp_plugin.exceptions import (
    ProviderLoadError,
    ProviderNotFound,
    ProviderRefusal,
    ProviderSymbolError,
    ProviderVersionError,
)
from devitocomp_plugin.plan import Claims, Plan

__all__ = ['Provider', 'current_provider', 'provider_at']

HEADER = Path('include', 'devitocomp.h')
LIBRARY = Path('lib', 'libdevitocomp.so')

_VERSION = re.compile(r'^[ \t]*#[ \t]*define[ \t]+DEVITOCOMP_ABI_VERSION[ \t]+'
                      r'(?:UINT32_C)?[( \t]*(0[xX][0-9a-fA-F]+|\d+)', re.MULTILINE)


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

    def plan(self, dtype, shape, strides=None, options=None, num_threads=0, kind='host'):
        """
        Create a plan.

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
        kind : str, optional
            The execution kind: 'host', 'cuda' or 'hip', of which the latter are on the
            device that is active, and take pointers to its memory.

        Returns
        -------
        Plan
            A context manager, which destroys the plan at its end.

        Raises
        ------
        ProviderRefusal
            If the provider does not offer that, or what it says is no use.
        """
        if not self.supports(kind):
            offered = ', '.join(sorted(self.claims.execution_kinds)) or 'none'
            where = 'on the host' if kind == 'host' else f'by {kind}'
            raise ProviderRefusal(f'provider {self} does not run {where}, only on: '
                                  f'{offered}')
        self.claims.check(str(self), dtype, len(shape))
        return Plan(self, dtype, shape, strides, options, num_threads, kind)

    def check_tensor(self, dtype, shape, options=None, kind='host'):
        """
        Find out whether the provider takes snapshots of a kind.

        Parameters
        ----------
        dtype, shape, options, kind
            As for `plan`.

        Returns
        -------
        Limits or None
            Those of a plan; None if there is no execution of that kind, as then only the
            provider's general claims can be checked.

        Raises
        ------
        ProviderRefusal
            If it does not. The message names the provider, the value it refuses, and
            gives its reason.
        """
        self.claims.check(str(self), dtype, len(shape))
        if not self.supports(kind):
            return None
        with self.plan(dtype, shape, options=options, kind=kind) as plan:
            return plan.limits

    def decoders(self, kind):
        """The execution kinds that can decompress what that kind has compressed."""
        portable = self.claims.portable_kinds
        return {kind} | (portable if kind in portable else set())

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
    return provider_at(os.environ.get('DEVITOCOMP_ROOT') or paths.dummy_root())


def provider_at(named):
    """
    The provider in a directory that is, or could be, DEVITOCOMP_ROOT.

    Parameters
    ----------
    named : str or Path
        The directory.

    Returns
    -------
    Provider

    Raises
    ------
    ProviderError
        As `current_provider`.
    """
    root = Path(named).expanduser().resolve()
    header, library = root / HEADER, root / LIBRARY
    check_layout(named, root)

    with _lock:
        signatures = (linking.signature(header), linking.signature(library))
        known, provider = _current.get(root, (None, None))
        if known == signatures:
            return provider
        check_header(header)
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


def check_layout(named, root):
    """Raise a ProviderNotFound unless a directory has what a provider consists of."""
    hint = ('Set DEVITOCOMP_ROOT to a directory that contains include/devitocomp.h and '
            'lib/libdevitocomp.so, or unset it to use the bundled provider.')
    if not root.is_dir():
        raise ProviderNotFound(f'DEVITOCOMP_ROOT is {named}, which is not a directory. '
                               f'{hint}')
    for i in (HEADER, LIBRARY):
        if not (root / i).is_file():
            raise ProviderNotFound(f'there is no {root / i}, which a provider needs. '
                                   f'{hint}')


def check_header(header):
    """Raise a ProviderError unless a header is of this version of the interface."""
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
