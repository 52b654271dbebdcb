"""The memory of devices, and provider plans that work there, used from Python."""

import ctypes as ct
import hashlib
from contextlib import contextmanager
from functools import cache

import numpy as np
from devito.arch import platform_registry

from devitocomp_plugin import abi, paths
from devitocomp_plugin.cuda.compiler import COMPILERS
from devitocomp_plugin.exceptions import CompressionError, InstallationError

__all__ = ['DevicePlan', 'device_memory']

PLATFORMS = {'cuda': 'nvidiaX', 'hip': 'amdgpuX'}


@cache
def device_memory(kind):
    """
    The functions that manage the memory of a device, compiled if need be.

    Parameters
    ----------
    kind : str
        'cuda' or 'hip'.

    Returns
    -------
    Memory
        Never freed, as stores keep a pointer to it.

    Raises
    ------
    InstallationError
        If it cannot be compiled.
    """
    compiler = COMPILERS[kind](name=kind, platform=platform_registry[PLATFORMS[kind]](),
                               language=kind, mpi=False)
    compiler.add_include_dirs(str(paths.include_dir()))
    code = (paths.runtime_sources() / 'device_memory.cu').read_text()
    key = hashlib.sha256(f'{compiler.key}{code}'.encode()).hexdigest()
    try:
        compiler.jit_compile(key, code)
        library = compiler.load(str(compiler.get_jit_dir() / key))
    except Exception as e:
        raise InstallationError(f'snapshots in the memory of a device need the compiler '
                                f'of {kind}: {e}') from e
    library.devitocomp_device_memory.restype = ct.POINTER(abi.Memory)
    return library.devitocomp_device_memory().contents


class DevicePlan:

    """
    A provider's plan on a device, for arrays on the host: snapshots, and payloads too if
    they are there, are copied to the device and back.

    Parameters
    ----------
    provider : Provider
    dtype, shape, options, kind
        As for `Provider.plan`.
    on_device : bool, optional
        True if payloads are in the memory of the device.
    """

    def __init__(self, provider, dtype, shape, options=None, kind='cuda',
                 on_device=False):
        self._memory = device_memory(kind)
        self._plan = provider.plan(dtype, shape, options=options, kind=kind)
        self._nbytes = int(np.prod(shape, dtype=np.int64))*np.dtype(dtype).itemsize
        self._on_device = on_device

    def compress(self, tensor, payload, capacity, sidecar=None):
        """As `Plan.compress`."""
        with self._put(tensor, self._nbytes) as data, \
             self._place(payload, capacity) as room:
            used = self._plan.compress(data, room, capacity, sidecar)
            # Waits for what the provider has queued
            self._copy(payload, room, used)
        return used

    def decompress(self, payload, nbytes, sidecar, tensor):
        """As `Plan.decompress`."""
        with self._place(payload, nbytes) as content, \
             self._allocate(self._nbytes) as data:
            if content != payload:
                self._copy(content, payload, nbytes)
            self._plan.decompress(content, nbytes, sidecar, data)
            self._copy(tensor.ctypes.data, data, self._nbytes)

    @contextmanager
    def _allocate(self, nbytes):
        memory = self._memory.allocate(max(nbytes, 1))
        if not memory:
            raise CompressionError(f'cannot allocate {nbytes} bytes of device memory',
                                   status=abi.OUT_OF_MEMORY)
        try:
            yield memory
        finally:
            self._memory.release(memory)

    @contextmanager
    def _put(self, array, nbytes):
        with self._allocate(nbytes) as memory:
            self._copy(memory, array.ctypes.data, nbytes)
            yield memory

    @contextmanager
    def _place(self, payload, nbytes):
        """Where the device finds the payload, or is to leave it."""
        if self._on_device:
            yield payload
        else:
            with self._allocate(nbytes) as memory:
                yield memory

    def _copy(self, to, source, nbytes):
        if not self._memory.copy(to, source, 0 if to == source else nbytes):
            raise CompressionError(f'copying {nbytes} bytes to or from the device failed',
                                   status=abi.PROVIDER_ERROR)
