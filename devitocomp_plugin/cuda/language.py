"""How Devito's operations on devices are spelled: as calls of our runtime."""

from devito.arch import AMDGPUX, NVIDIAX
from devito.data import FULL
from devito.exceptions import CompilationError
from devito.ir import Call, DeviceCall
from devito.passes.iet.langbase import LangBB, infer_transfer_datashape
from devito.passes.iet.languages.openmp import CXXOmpBB
from devito.passes.iet.orchestration import Orchestrator
from devito.symbolics import FieldFromPointer, Macro, SizeOf, as_long
from devito.tools import prod

from devitocomp_plugin.cuda.objects import device

__all__ = ['DeviceBB', 'DeviceOrchestrator']


def element_size(f):
    """The bytes of an element."""
    return SizeOf(f.indexed._C_typedata)


def find_part(f, imask):
    """
    Where the part of a function that is to be copied begins, and its size, in bytes.

    Parameters
    ----------
    f : DiscreteFunction or Array
    imask : list or None
        For each of the first dimensions, FULL, an index, or a pair (begin, size).
    """
    if imask is None:
        return 0, FieldFromPointer(f._C_field_nbytes, f._C_symbol)
    shape = list(infer_transfer_datashape(f, imask))
    begin, sizes = 0, []
    for n, size in enumerate(shape):
        i = imask[n] if n < len(imask) else FULL
        if i is FULL:
            i = (0, size)
        elif not isinstance(i, tuple):
            i = (i, 1)
        elif any(j != 1 for j in sizes):
            raise CompilationError(
                f'cannot copy the part {imask} of `{f.name}`, which is not contiguous, '
                f'between host and device'
            )
        begin += i[0]*prod(shape[n + 1:])
        sizes.append(i[1])
    return tuple(as_long(i)*element_size(f) if i != 0 else 0
                 for i in (begin, prod(sizes)))


class DeviceBB(LangBB):

    """The runtime's functions, for CUDA and HIP alike."""

    BackendCall = DeviceCall

    mapper = {
        **CXXOmpBB.mapper,
        'name': 'CUDA',
        'header': 'devitocomp_device.h',
        NVIDIAX: None,
        AMDGPUX: None,
        'host-alloc-pin': lambda *args: Call('devitocomp_host_alloc', (device, *args)),
        'host-free-pin': lambda *args: Call('devitocomp_host_free', args),
        'device-alloc': lambda f: Call('devitocomp_array', (
            device, as_long(f.size), element_size(f)), retobj=f, cast=True),
        'device-free': lambda data: Call('devitocomp_free', (device, data)),
        'message-alloc': lambda f: Call('devitocomp_buffer', (
            device, as_long(f.size)*element_size(f)), retobj=f, cast=True),
        'message-free': lambda data: Call('devitocomp_buffer_free', (device, data)),
    }

    @classmethod
    def _map(cls, f, content):
        return Call('devitocomp_map', (device, f._C_symbol, element_size(f),
                                       Macro(f'DEVITOCOMP_{content}')))

    @classmethod
    def _map_to(cls, f, imask=None, qid=None):
        return cls._map(f, 'COPY')

    _map_to_wait = _map_to

    @classmethod
    def _map_alloc(cls, f, imask=None):
        return cls._map(f, 'ANY')

    @classmethod
    def _map_zero(cls, f):
        return cls._map(f, 'ZERO')

    @classmethod
    def _map_present(cls, f, imask=None):
        return None

    @classmethod
    def _copy(cls, name, f, imask, qid=None):
        queue = () if qid is None else (qid,)
        return Call(name, (device, f._C_symbol, *find_part(f, imask), *queue), writes=f)

    @classmethod
    def _map_update(cls, f, imask=None):
        return cls._copy('devitocomp_to_host', f, imask)

    @classmethod
    def _map_update_host(cls, f, imask=None, qid=None):
        return cls._copy('devitocomp_to_host', f, imask)

    @classmethod
    def _map_update_host_async(cls, f, imask=None, qid=None):
        return cls._copy('devitocomp_to_host_async', f, imask, qid)

    @classmethod
    def _map_update_device(cls, f, imask=None, qid=None):
        return cls._copy('devitocomp_to_device', f, imask)

    @classmethod
    def _map_update_device_async(cls, f, imask=None, qid=None):
        return cls._copy('devitocomp_to_device_async', f, imask, qid)

    @classmethod
    def _map_wait(cls, qid=None):
        return Call('devitocomp_wait', (device, qid))

    @classmethod
    def _map_release(cls, f, imask=None, devicerm=None):
        return Call('devitocomp_unmap', (device, f._C_symbol,
                                         1 if devicerm is None else devicerm))

    _map_delete = _map_release


class DeviceOrchestrator(Orchestrator):
    langbb = DeviceBB
