"""Where providers run, and the memory that they are given there."""
import ctypes as ct
import sysconfig
from functools import cache, partial
from pathlib import Path

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.memory import GUARD, HostRegion, Region

__all__ = ['SPACES', 'CudaSpace', 'HostSpace', 'unavailable']


class HostSpace:
    """
    Execution on the host.

    Attributes
    ----------
    name : str
    code : int
        The `devitocomp_execution_kind_t`.
    stream : int or None
        That calls are given.
    region : type
        Of the memory for tensors and payloads.
    """

    name = 'host'
    code = abi.HOST
    stream = None
    region = HostRegion

    @staticmethod
    def unavailable():
        """Why nothing can run there; None if it can."""
        return None

    def synchronize(self):
        """Wait until queued work has run."""


class CudaSpace:
    """
    Execution on a CUDA device, on a stream of its own. See HostSpace.

    All that is needed is the CUDA runtime's library, called through ctypes.
    """

    name = 'cuda'
    code = abi.CUDA

    def __init__(self):
        self._runtime = _cudart()
        stream = ct.c_void_p()
        # cudaStreamNonBlocking: what a provider does on the default stream, which it is
        # not given, is not waited for
        self._call('cudaStreamCreateWithFlags', ct.byref(stream), 1)
        self.stream = stream.value
        self.region = partial(_CudaRegion, self)

    @staticmethod
    def unavailable():
        if _cudart() is None:
            return 'the CUDA runtime, libcudart.so, is not found'
        count = ct.c_int()
        error = _cudart().cudaGetDeviceCount(ct.byref(count))
        if error or not count.value:
            return f'there is no CUDA device (cudaGetDeviceCount returns {error})'
        return None

    def _call(self, name, *args):
        error = getattr(self._runtime, name)(*args)
        if error:
            raise OSError(f'{name} returns {error}')

    def synchronize(self):
        self._call('cudaStreamSynchronize', ct.c_void_p(self.stream))

    def allocate(self, nbytes):
        """Device memory: its address."""
        address = ct.c_void_p()
        self._call('cudaMalloc', ct.byref(address), ct.c_size_t(nbytes))
        return address.value

    def free(self, address):
        """Give it back."""
        self._runtime.cudaFree(ct.c_void_p(address))

    def copy(self, target, source, nbytes):
        """Copy between host and device, whichever is where, and wait for it."""
        # cudaMemcpyDefault
        self._call('cudaMemcpyAsync', ct.c_void_p(target), ct.c_void_p(source),
                   ct.c_size_t(nbytes), 4, ct.c_void_p(self.stream))
        self.synchronize()


class _CudaRegion(Region):
    """A Region in the memory of a CUDA device."""

    def __init__(self, space, nbytes, alignment=1, offset=0):
        self._space = space
        # At least 256 bytes is what cudaMalloc aligns to
        before = GUARD + max(2*alignment, 256) + offset
        self._base = space.allocate(before + nbytes + GUARD)
        start = before - (self._base + before - offset) % max(2*alignment, 256)
        super().__init__(nbytes, self._base + start)

    def __del__(self):
        self._space.free(self._base)

    def _write(self, at, data):
        data = np.ascontiguousarray(data)
        self._space.copy(self.address + at, data.ctypes.data, data.size)

    def _read(self, at, nbytes):
        data = np.empty(nbytes, dtype=np.uint8)
        self._space.copy(data.ctypes.data, self.address + at, nbytes)
        return data


@cache
def _cudart():
    packages = Path(sysconfig.get_path('purelib'), 'nvidia')
    names = ['libcudart.so', *(f'libcudart.so.{i}' for i in ('13', '12', '11.0')),
             *(str(i) for i in sorted(packages.glob('*/lib/libcudart.so.*')))]
    for i in names:
        try:
            return ct.CDLL(i)
        except OSError:
            continue
    return None


SPACES = {i.name: i for i in (HostSpace, CudaSpace)}


def unavailable(kind):
    """
    Why nothing can run on an execution kind; None if it can.

    To be called where it does no harm to load a runtime.
    """
    if kind not in SPACES:
        return f'this suite has no means to run anything on {kind}'
    return SPACES[kind].unavailable()
