"""Devito's Operators, able to handle compressed functions."""

from copy import copy

from devito.exceptions import InvalidArgument
from devito.logger import perf
from devito.operator.registry import operator_registry

from devitocomp_plugin.exceptions import DevitoCompError
from devitocomp_plugin.linking import link
from devitocomp_plugin.lowering.build import building, current_build
from devitocomp_plugin.lowering.clusters import has_snapshots, lower_snapshots
from devitocomp_plugin.lowering.halos import place_halo_exchanges
from devitocomp_plugin.lowering.iet import CopyLowerer, lower_copies
from devitocomp_plugin.parallel import find_comm, raise_together
from devitocomp_plugin.provider import current_provider
from devitocomp_plugin.types.functions import CompressedTimeFunction

__all__ = ['CompressionMixin', 'register']


# What Devito derives, once, from the source of an Operator
_cached = ('headers', 'ccode', '_soname')


class CompressionMixin:

    """
    Adds compressed functions to one of Devito's Operator classes.

    The passes come first in their stage, and do nothing if there is no compressed
    function: the generated code is then the very text that Devito generates.
    """

    _provider = None
    _link_token = None
    _stages = {}

    @classmethod
    def _get_lowerer(cls):
        # Languages may bring their own
        return getattr(cls, '_CopyLowerer', CopyLowerer)

    # Compilation

    @classmethod
    def _build(cls, expressions, **kwargs):
        with building() as build:
            op = super()._build(expressions, **kwargs)
            if build.is_compressed:
                op._attach(build.provider)
                op._stages = build.stages
        return op

    @classmethod
    def _specialize_clusters(cls, clusters, **kwargs):
        if has_snapshots(clusters):
            provider = current_build().provider
            strided = cls._get_lowerer().takes_strides(provider)
            clusters = lower_snapshots(clusters, strided=strided, **kwargs)
        return super()._specialize_clusters(clusters, **kwargs)

    @classmethod
    def _specialize_iet(cls, graph, **kwargs):
        if current_build().is_compressed:
            options = kwargs['options']
            if options['mpi'] and options['opt-comms']:
                place_halo_exchanges(graph, **kwargs)
                kwargs['options'] = {**options, 'opt-comms': False}
            lowerer = cls._get_lowerer()(current_build().provider,
                                         data_movs=graph.data_movs, **kwargs)
            lower_copies(graph, lowerer=lowerer, **kwargs)
            current_build().stages.update(lowerer.stages)
        return super()._specialize_iet(graph, **kwargs)

    def _attach(self, provider):
        # Devito's key for the JIT cache is the source: let the provider stand in it
        self._provider = provider
        token = link(provider).token
        for i in _cached:
            self.__dict__.pop(i, None)
        if self._link_token is not None:
            self._headers.discard(('DEVITOCOMP_LINK', f'"{self._link_token}"'))
        self._headers.add(('DEVITOCOMP_LINK', f'"{token}"'))
        self._link_token = token

    @property
    def _compressed(self):
        return tuple(p for p in self.parameters if isinstance(p, CompressedTimeFunction))

    def _jit_compile(self):
        if self._lib is not None or not self._compressed:
            return super()._jit_compile()

        if self._provider is None:
            self._attach(current_provider())
        record = link(self._provider)

        # Leave no trace of this provider behind, another may be in use after unpickling
        compiler, self._compiler = self._compiler, copy(self._compiler)
        self._compiler.ldflags = list(compiler.ldflags)
        self._compiler.add_include_dirs(record.include_dirs)
        self._compiler.add_library_dirs(record.library_dirs, rpath=True)
        self._compiler.add_libraries(record.libraries)
        try:
            super()._jit_compile()
        finally:
            self._compiler = compiler

    # Execution

    @property
    def cfunction(self):
        cfunction = super().cfunction
        return Run(self, cfunction) if self._compressed else cfunction

    def _emit_apply_profiling(self, args):
        summary = super()._emit_apply_profiling(args)
        for p in self._compressed:
            function = args[p.name].function
            perf(f"Compressed `{function.name}`: "
                 f"{function.compression_report().summary}")
        return summary

    # Pickling support

    def __getstate__(self):
        state = super().__getstate__()
        if self._compressed:
            # The binary is linked with the provider found here: build it again, with
            # the one found there
            for i in ('binary', 'soname', '_provider', *_cached):
                state.pop(i, None)
            state['_lib'] = state['_cfunction'] = None
        return state


class Run:

    """
    A compiled function with compressed functions among its arguments: brackets each call
    by the beginning and the end of a run of their stores, then raises what went wrong.
    """

    def __init__(self, op, cfunction):
        self.op = op
        self.cfunction = cfunction
        self.positions = [i for i, p in enumerate(op.parameters)
                          if isinstance(p, CompressedTimeFunction)]
        self.writes = [op.parameters[i] in op.writes for i in self.positions]

    def __call__(self, *args):
        arguments = [args[i] for i in self.positions]
        stores = [i.store for i in arguments]
        if len({id(i) for i in stores}) != len(stores):
            names = ', '.join(f'`{self.op.parameters[i].name}`' for i in self.positions)
            raise InvalidArgument(f"Two of {names} were given the same compressed "
                                  "function; use different ones")

        provider, lowerer = self.op._provider, self.op._get_lowerer()
        kinds = [lowerer.choose_kind(self.op.parameters[i], provider, self.op._language)
                 for i in self.positions]
        comm = find_comm(i.function for i in arguments)
        for i, writes, kind in zip(stores, self.writes, kinds, strict=True):
            i.open(writes, kind=kind)
        args = list(args)
        begun, error = [], None
        try:
            try:
                for n, i, writes, kind in zip(self.positions, stores, self.writes, kinds,
                                              strict=True):
                    i.bind(provider, kind)
                    i.begin(0, writes)
                    begun.append(i)
                    args[n] = i.pointer(CompressedTimeFunction._C_ctype)
            except DevitoCompError as e:
                error = e
            raise_together(error, comm)
            retval = self.cfunction(*args)
        finally:
            for i in begun:
                i.end()
        errors = [i.error for i in stores]
        if hasattr(self.op, '_as_device_error'):
            # Which is what has made the stores fail
            errors.insert(0, self.op._as_device_error(retval))
        raise_together(next((e for e in errors if e is not None), None), comm)
        return retval


def register():
    """
    Replace each entry of Devito's registry of Operators by a subclass that handles
    compressed functions. Doing it again has no effect.
    """
    for key, base in list(operator_registry.items()):
        if issubclass(base, CompressionMixin):
            continue
        name = f'Compressed{base.__name__}'
        if name not in globals():
            # In the module's namespace, so that instances can be pickled
            globals()[name] = type(name, (CompressionMixin, base),
                                   {'__module__': __name__, '__doc__': base.__doc__})
        operator_registry[key] = globals()[name]


