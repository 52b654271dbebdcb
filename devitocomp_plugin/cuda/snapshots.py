"""Snapshots of compressed functions on devices, and the calls that move them."""

from devito.exceptions import CompilationError, InvalidOperator
from devito.ir import Call, Callable, Return, make_callable
from devito.passes import is_on_device
from devito.symbolics import Byref, FieldFromPointer, Macro

from devitocomp_plugin.cuda.objects import (
    ExecutionPointer,
    Pipeline,
    PipelinePointer,
    SlotPointer,
    device,
)
from devitocomp_plugin.lowering.iet import CopyLowerer, status
from devitocomp_plugin.lowering.syncs import LoadSnapshot
from devitocomp_plugin.types.objects import Execution, PlanPointer, Tensor

__all__ = ['DeviceCopyLowerer']

DEFAULT_DEGREE = 2
"""Of `buf-async-degree`: one snapshot is worked on while the device computes another."""


class DeviceCopyLowerer(CopyLowerer):

    """
    Makes the calls that move snapshots between the memory of a device and a store.

    Parameters
    ----------
    provider, sregistry, language
        As in CopyLowerer.
    data_movs : 2-tuple of set
        The functions that are read, and those that are written, on the device.
    options : dict
        The optimization options.
        Accepted: ['buf-async-degree', 'gpu-fit'].
        * 'buf-async-degree': Snapshots that are worked on while the device computes, the
          one that it has just made or waits for included. With 1 it waits for each.
        * 'gpu-fit': The functions that are on the device.

    Examples
    --------
    The tagged nest

        for x
          usave[time][x] = u[t0][x]

    becomes

        write_snapshot0(u_vec,pipeline0,time,t0);

    with

        static void write_snapshot0(...)
        {
          struct devitocomp_view view = devitocomp_view(u_vec->dmap,...);
          devitocomp_save(pipeline0,index,view,compress0);
        }

        static int compress0(...)
        {
          return devitocomp_compress(plan,exec,slot->tensor,slot->payload,...);
        }

    where the pipeline (see devitocomp_snapshots.h) calls the latter from its own thread.
    """

    includes = (*CopyLowerer.includes, 'devitocomp_snapshots.h')

    def __init__(self, *args, data_movs=None, options=None, **kwargs):
        super().__init__(*args, options=options, **kwargs)
        self.reads, _ = data_movs
        self.gpu_fit = options['gpu-fit']
        self.degree = options['buf-async-degree'] or DEFAULT_DEGREE
        self.calls = {}
        self.indices = {}

    @classmethod
    def takes_strides(cls, provider):
        # They are packed first
        return True

    @classmethod
    def choose_kind(cls, function, provider, language):
        names = function.layers.names
        offered = provider.supports(language)
        if 'device' in names and not offered:
            raise InvalidOperator(
                f"`{function.name}` has layers={str(function.layers)!r}, but provider "
                f"{provider} does not compress on devices by {language}; choose "
                f"layers='host', 'disk' or 'disk-host', to have it compress on the host"
            )
        # Without layers, on the device if possible
        return language if offered and (not names or 'device' in names) else 'host'

    def lower_all(self, spots):
        ops = [s for i in spots for s in i.sync_ops]
        for s in ops:
            if not is_on_device(s.target, self.gpu_fit):
                raise CompilationError(
                    f"`{s.function.name}` is to be copied from `{s.target.name}`, which "
                    f"is not on the device because of the option 'gpu-fit'"
                )
            key = (s.function, isinstance(s, LoadSnapshot))
            self.indices.setdefault(key, set()).add(s.findex)
        self.reads.update(s.target for s in ops)
        return super().lower_all(spots)

    def _make_read(self, op, index, lead):
        return self._move(op, index, lead, 'load', 'decompress', lambda i: [
            i('payload'), i('payload_bytes'), i('sidecar'), i('tensor')
        ])

    def _make_write(self, op, index, lead):
        return self._move(op, index, lead, 'save', 'compress', lambda i: [
            i('tensor'), i('payload'), i('capacity'), Byref(i('payload_bytes')),
            i('sidecar')
        ])

    def _move(self, op, index, lead, name, verb, arguments):
        view, _, _ = self._make_locals()
        return [
            self._describe(op.target, lead, view),
            Call(f'devitocomp_{name}', [self._get_plan(op), index, view,
                                        self._get_call(verb, arguments)])
        ]

    def _get_call(self, verb, arguments):
        """The function that has the provider work on a slot."""
        if verb not in self.calls:
            plan, exec_ = PlanPointer('plan'), ExecutionPointer('exec')
            slot = SlotPointer('slot')
            call = Call(f'devitocomp_{verb}', [
                plan, exec_, *arguments(lambda i: FieldFromPointer(i, slot))
            ], retobj=status)
            self.calls[verb] = Callable(
                self.sregistry.make_name(prefix=verb), [call, Return(status)], 'int',
                parameters=(plan, exec_, slot), prefix='static'
            )
            self.efuncs.append(self.calls[verb])
        return Call(self.calls[verb].name, is_indirect=True)

    def _get_plan(self, op):
        f = op.function
        if f not in self.plans:
            name = self.sregistry.make_name(prefix='pipeline')
            self.plans[f] = Pipeline(name, factory=self._make_factory(op))
        return self.plans[f]

    def _make_factory(self, op):
        f = op.function
        plan, pipeline = PlanPointer('plan'), PipelinePointer('pipeline')
        exec_, tensor = Execution('exec'), Tensor('tensor')
        kind = Macro(f'DEVITOCOMP_EXECUTION_{self.kinds[f].upper()}')
        nloads, nsaves = (len(self.indices.get((f, i), ())) for i in (True, False))
        self.stages[f.name] = (self.degree*(nsaves > 0) +
                               (nloads + self.degree - 1)*(nloads > 0))
        body = [
            Call('devitocomp_exec', [device, kind], retobj=exec_),
            Call('devitocomp_store_packed', [f], retobj=tensor),
            *self._create_plan(f, tensor, exec_, plan),
            Call('devitocomp_begin_snapshots', [
                device, f, plan, exec_, nloads, nsaves, self.degree
            ], retobj=pipeline),
            Return(pipeline)
        ]
        return make_callable(self.sregistry.make_name(prefix='create_pipeline'), body,
                             retval=pipeline)

    def _get_data_field(self, target):
        return target._C_field_dmap
