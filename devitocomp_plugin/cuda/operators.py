"""Operators for `language='cuda'` and `language='hip'`."""

from ctypes import c_char_p

import numpy as np
from devito.arch.archinfo import AmdDevice, NvidiaDevice
from devito.core.gpu import (
    DeviceAdvOperator,
    DeviceCustomOperator,
    DeviceFsgOperator,
    DeviceNoopOperator,
)
from devito.core.operator import ParTile
from devito.exceptions import ExecutionError, InvalidOperator
from devito.operator.registry import operator_registry
from devito.passes.iet import check_stability, linearize, mpiize
from devito.passes.iet.languages.CXX import CXXPrinter
from devito.passes.iet.languages.targets import Target
from devito.symbolics import retrieve_functions
from devito.tools import as_tuple, is_integer, prod
from devito.types import device_layer, host_layer

from devitocomp_plugin.cuda.compiler import adapt_compiler
from devitocomp_plugin.cuda.data import DeviceDataManager
from devitocomp_plugin.cuda.kernels import DeviceParizer
from devitocomp_plugin.cuda.language import DeviceOrchestrator
from devitocomp_plugin.cuda.messages import MPI_MODES, check_mode
from devitocomp_plugin.cuda.objects import Names
from devitocomp_plugin.cuda.snapshots import DeviceCopyLowerer
from devitocomp_plugin.cuda.timing import instrument
from devitocomp_plugin.types.buffer import SnapshotBuffer
from devitocomp_plugin.types.functions import CompressedTimeFunction

__all__ = ['register_operators']

DEVICE_ERROR = 999
"""From which on values that the entry function returns are the runtime's."""

SUPPORTED = {np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64,
             np.uint64, np.float32, np.float64}

DEFAULT_BLOCK = (32, 4, 4)
"""Threads along x, y, z."""

on_device = {}
"""The arrays, by address, that `devicerm=0` has left on the device."""


class DeviceTarget(Target):

    Parizer = DeviceParizer
    DataManager = DeviceDataManager
    Orchestrator = DeviceOrchestrator
    Printer = CXXPrinter
    instrument = staticmethod(instrument)


def read_block_shapes(par_tile):
    """
    The shapes of thread blocks that the option `par-tile` asks for.

    Like Devito's other languages, users give the outermost dimension first.

    Returns
    -------
    list of 3-tuples
        Threads along x, y, z for each kernel, the last one for all further kernels.
    """
    shapes = []
    for i in ParTile(par_tile, default=DEFAULT_BLOCK[::-1]) or [DEFAULT_BLOCK[::-1]]:
        shape = tuple(i)[::-1]
        good = all(is_integer(j) and j > 0 for j in shape) and len(shape) <= 3
        shape += (1,)*(3 - len(shape))
        if not good or shape[0]*shape[1]*shape[2] > 1024 or shape[2] > 64:
            raise InvalidOperator(
                f"Illegal `par-tile={tuple(i)}`: a block is 1 to 3 positive numbers of "
                f"threads, outermost dimension first, with a product up to 1024 and no "
                f"more than 64 in the first of three"
            )
        shapes.append(shape)
    return shapes


class DeviceOperatorMixin:

    """What an Operator needs to generate CUDA or HIP."""

    _Target = DeviceTarget
    _CopyLowerer = DeviceCopyLowerer
    LINEARIZE = True
    MPI_MODES = MPI_MODES

    @classmethod
    def _normalize_kwargs(cls, **kwargs):
        options = kwargs['options']
        options.pop('openmp', None)
        shapes = read_block_shapes(options.pop('par-tile', False))
        # Kernels get plain pointers
        options['linearize'] = True
        direct = options.pop('gpu-direct', None)
        check_mode(options['mpi'], direct)
        kwargs['compiler'] = adapt_compiler(kwargs['compiler'], kwargs['platform'],
                                            kwargs['language'])
        kwargs = super()._normalize_kwargs(**kwargs)
        kwargs['options'].update({'block-shapes': shapes, 'gpu-direct': direct})
        return kwargs

    @classmethod
    def _lower(cls, expressions, **kwargs):
        kwargs.setdefault('sregistry', Names())
        return super()._lower(expressions, **kwargs)

    @classmethod
    def _specialize_exprs(cls, expressions, **kwargs):
        taken = kwargs['sregistry'].taken
        for e in expressions:
            for f in retrieve_functions(e):
                check_function(f, e)
                taken.add(f.name)
            taken.update(i.name for i in e.free_symbols)
        return super()._specialize_exprs(expressions, **kwargs)

    @classmethod
    def _build(cls, expressions, **kwargs):
        op = super()._build(expressions, **kwargs)
        # Devito's key for the JIT cache is the source, which says nothing of the runtime
        op._headers.add(('DEVITOCOMP_DEVICE_KEY', f'"{op._compiler.key}"'))
        return op

    def _enrich_memreport(self, args):
        report = dict(super()._enrich_memreport(args))
        host, device = (args.nbytes_consumed[i] for i in (host_layer, device_layer))
        for p in self.parameters:
            if isinstance(p, SnapshotBuffer):
                # The host's part is never touched
                nbytes = args._get_nbytes(p)
                host, device = host - nbytes, device + nbytes
            elif isinstance(p, CompressedTimeFunction):
                f = args[p.name]
                f = getattr(f, 'function', f)
                raw = prod(f.shape[1:])*np.dtype(f.dtype).itemsize
                transit = f._store.nbytes_transit
                device += f.nbytes_max_device + self._stages[p.name]*raw + transit
                host += transit
        return {**report, 'host': host, 'device': device}

    def _autotune(self, args, setup):
        # Block shapes are those that the Operator was built with
        return args

    def _postprocess_arguments(self, args, **kwargs):
        super()._postprocess_arguments(args, **kwargs)
        keep = not args.get('devicerm', 1)
        for p in self.parameters:
            if p.is_DiscreteFunction and not p._mem_host:
                array = args[p.name]._obj.underlying_array
                # The runtime knows arrays by their address: no other may come to be there
                if keep:
                    on_device[array.ctypes.data] = array
                else:
                    on_device.pop(array.ctypes.data, None)

    def _as_device_error(self, retval):
        """The exception that a value of the generated code stands for, or None."""
        if retval < DEVICE_ERROR:
            return None
        message = self._lib.devitocomp_device_message
        message.restype = c_char_p
        return ExecutionError(f'Operator `{self.name}` failed on the device: '
                              f'{message().decode(errors="replace")}')

    def _postprocess_errors(self, retval, comm=None):
        error = self._as_device_error(retval)
        # All ranks have come to their end, and so all can raise
        if comm and any(comm.allgather(error is not None)) and error is None:
            error = ExecutionError(f'Operator `{self.name}` failed on the device: see '
                                   'the exception of another rank')
        if error is not None:
            raise error
        super()._postprocess_errors(retval, comm)


def check_function(f, e):
    """
    Raise if a function is of a kind that device code cannot handle.
    """
    if f.dtype is not None and f.dtype not in SUPPORTED:
        raise InvalidOperator(f'`{f.name}` is of a type that is not supported on '
                              f'devices: {f.dtype}, in `{e}`')


class DeviceNoopCudaOperator(DeviceOperatorMixin, DeviceNoopOperator):

    @classmethod
    def _specialize_iet(cls, graph, **kwargs):
        mpiize(graph, **kwargs)
        parizer = cls._Target.Parizer(**kwargs)
        parizer.make_parallel(graph)
        parizer.initialize(graph)
        check_stability(graph, **kwargs)
        cls._Target.DataManager(**kwargs).process(graph)
        linearize(graph, **kwargs)
        return graph


class DeviceAdvCudaOperator(DeviceOperatorMixin, DeviceAdvOperator):
    pass


class DeviceFsgCudaOperator(DeviceOperatorMixin, DeviceFsgOperator):
    pass


class DeviceCustomCudaOperator(DeviceOperatorMixin, DeviceCustomOperator):

    @classmethod
    def _specialize_iet(cls, graph, **kwargs):
        # It comes last, when there are pointers to linearize
        kwargs['mode'] = tuple(i for i in as_tuple(kwargs['mode']) if i != 'linearize')
        return super()._specialize_iet(graph, **kwargs)

    @classmethod
    def _make_iet_passes_mapper(cls, **kwargs):
        mapper = super()._make_iet_passes_mapper(**kwargs)
        mapper[kwargs['language']] = mapper['parallel']
        return mapper

    _known_passes = (*DeviceCustomOperator._known_passes, 'cuda', 'hip')


def register_operators():
    """Add our Operators to those that Devito chooses from."""
    for platform, language in ((NvidiaDevice, 'cuda'), (AmdDevice, 'hip')):
        for mode, operator in (('noop', DeviceNoopCudaOperator),
                               ('advanced', DeviceAdvCudaOperator),
                               ('advanced-fsg', DeviceFsgCudaOperator),
                               ('custom', DeviceCustomCudaOperator)):
            operator_registry.add(operator, platform, mode, language)
