"""Snapshot copies: from tagged loop nests to calls, at the IET level."""

import numpy as np
from devito.exceptions import InvalidOperator
from devito.ir.iet import (
    Break,
    Call,
    Conditional,
    Definition,
    EntryFunction,
    Expression,
    FindNodes,
    Iteration,
    List,
    Return,
    SyncSpot,
    Transformer,
    make_callable,
)
from devito.passes.iet.engine import iet_pass
from devito.symbolics import (
    Byref,
    DefFunction,
    FieldFromComposite,
    FieldFromPointer,
    Macro,
    String,
)
from devito.tools import filter_ordered
from devito.types import Symbol

from devitocomp_plugin.lowering.accesses import time_index
from devitocomp_plugin.lowering.syncs import InOrder, LoadSnapshot, SnapshotOp
from devitocomp_plugin.types.buffer import SnapshotBuffer
from devitocomp_plugin.types.objects import (
    Execution,
    Plan,
    PlanPointer,
    Slot,
    Tensor,
    View,
)

__all__ = ['CopyLowerer', 'lower_copies', 'status']


@iet_pass
def lower_copies(iet, lowerer=None, options=None, **kwargs):
    """
    Replace the loop nests that stand for snapshot copies by calls.

    Parameters
    ----------
    iet : Callable
        The input Iteration/Expression tree.
    lowerer : CopyLowerer
        What makes the calls.
    options : dict
        The optimization options.
        Accepted: ['mpi'].
        * 'mpi': If False, leave the time loop once a store has failed. If True, go on to
          the end (a failed store ignores what it is asked), or other ranks would wait.

    Examples
    --------
    The tagged nest

        for x
          usaveb0[x] = usave[time][x]

    becomes

        read_snapshot0(usave_vec,usaveb0_vec,plan0,time,nthreads);

    with

        static void read_snapshot0(...)
        {
          struct devitocomp_view view = devitocomp_view(usaveb0_vec->data,...);
          struct devitocomp_slot slot = devitocomp_store_acquire(usave_vec,index,view,0);
          if (slot.ready)
          {
            struct devitocomp_execution exec = devitocomp_host(nthreads);
            int status = devitocomp_decompress(plan0,&exec,slot.payload,...);
            devitocomp_store_release(usave_vec,&slot,status,devitocomp_message(plan0));
          }
        }
    """
    if not isinstance(iet, EntryFunction):
        return iet, {}

    spots = _find_spots(iet)
    if not spots:
        return iet, {}

    if not options['mpi']:
        iet = _stop_on_failure(iet)
        spots = _find_spots(iet)

    iet = Transformer(lowerer.lower_all(spots)).visit(iet)

    return iet, {'efuncs': lowerer.efuncs, 'includes': lowerer.includes}


def _find_spots(iet):
    return [i for i in FindNodes(SyncSpot).visit(iet)
            if any(isinstance(s, SnapshotOp) for s in i.sync_ops)]


def _stop_on_failure(iet):
    """Leave the outermost loops that move snapshots once a store has failed."""
    mapper, seen = {}, set()
    for n in FindNodes(Iteration).visit(iet):
        spots = _find_spots(n)
        if n in seen or not spots:
            continue
        seen.update(FindNodes(Iteration).visit(n))
        functions = filter_ordered(s.function for i in spots for s in i.sync_ops)
        stops = [Conditional(DefFunction('devitocomp_store_failed', [f._C_symbol]),
                             Break()) for f in functions]
        mapper[n] = n._rebuild(nodes=(*n.nodes, *stops))
    return Transformer(mapper).visit(iet)


class CopyLowerer:

    """
    Make the calls that move snapshots, and the functions that they call.

    Parameters
    ----------
    provider : Provider
    sregistry : SymbolRegistry
        The symbol registry, to create unique names.
    language : str
        The language that is generated.
    options : dict
        The optimization options.
        Accepted: ['openmp'].
        * 'openmp': Give the provider the Operator's number of threads, otherwise one.
    """

    includes = ('devitocomp.h', 'devitocomp_store.h')

    def __init__(self, provider, sregistry=None, language=None, options=None, **kwargs):
        self.provider = provider
        self.sregistry = sregistry
        self.language = language
        self.nthreads = sregistry.nthreads if options.get('openmp') else 1

        self.kinds = {}
        self.stages = {}
        self.plans = {}
        self.efuncs = []

    @classmethod
    def takes_strides(cls, provider):
        """True if snapshots can be compressed from where they are, halo around them."""
        return 'strided' in provider.claims.flags

    @classmethod
    def choose_kind(cls, function, provider, language):
        """
        The execution kind that the snapshots of a function are compressed with.

        Raises
        ------
        InvalidOperator
            If there is none that goes with its layers.
        """
        if 'device' in function.layers.names:
            raise InvalidOperator(
                f"`{function.name}` has layers={str(function.layers)!r}, but Operators "
                f"of language={language!r} do not compress on devices; choose "
                f"layers='host', 'disk' or 'disk-host', or language='cuda' or 'hip'"
            )
        return 'host'

    def lower_all(self, spots):
        """The calls that take the place of loop nests."""
        for f in filter_ordered(s.function for i in spots for s in i.sync_ops):
            self.kinds[f] = self.choose_kind(f, self.provider, self.language)
        return {i: self._lower(i) for i in spots}

    def _lower(self, spot):
        op, = spot.sync_ops
        expr, = FindNodes(Expression).visit(spot)
        lhs, rhs = expr.expr.args
        if isinstance(rhs, InOrder):
            rhs, = rhs.args
        is_load = isinstance(op, LoadSnapshot)
        target, access = (lhs, rhs) if is_load else (rhs, lhs)

        # Take the indices from the nest, as earlier passes may have renamed what they
        # are made of
        index = Symbol(name='index', dtype=np.int32, is_const=True)
        formals = {index: time_index(access)}
        lead = -1
        if op.tindex is not None:
            lead = Symbol(name='lead', dtype=np.int32, is_const=True)
            formals[lead] = target.indices[0]

        name, make = (('read_snapshot', self._make_read) if is_load else
                      ('write_snapshot', self._make_write))
        body = make(op, index, lead)
        if op.lenient:
            covers = DefFunction('devitocomp_store_covers',
                                 [op.function._C_symbol, index])
            body = Conditional(covers, List(body=body))
        efunc = make_callable(self.sregistry.make_name(prefix=name), body)
        self.efuncs.append(efunc)

        return Call(efunc.name, [formals.get(i, i) for i in efunc.parameters])

    def _make_read(self, op, index, lead):
        plan = self._get_plan(op)
        view, exec_, slot = self._make_locals()
        return [
            self._describe(op.target, lead, view),
            Call('devitocomp_store_acquire', [
                op.function, index, view,
                Macro('DEVITOCOMP_WILL_MODIFY') if op.modify else 0
            ], retobj=slot),
            Conditional(FieldFromComposite('ready', slot), List(body=[
                Call('devitocomp_host', [self.nthreads], retobj=exec_),
                Call('devitocomp_decompress', [
                    plan, Byref(exec_), *_fields(slot, 'payload', 'payload_bytes',
                                                 'sidecar', 'tensor')
                ], retobj=status),
                Call('devitocomp_store_release', [
                    op.function, Byref(slot), status, Call('devitocomp_message', [plan])
                ])
            ]))
        ]

    def _make_write(self, op, index, lead):
        plan = self._get_plan(op)
        view, exec_, slot = self._make_locals()
        payload_bytes, = _fields(slot, 'payload_bytes')
        return [
            self._describe(op.target, lead, view),
            Call('devitocomp_store_reserve', [op.function, index, view],
                 retobj=slot),
            Conditional(FieldFromComposite('ready', slot), List(body=[
                Call('devitocomp_host', [self.nthreads], retobj=exec_),
                Call('devitocomp_compress', [
                    plan, Byref(exec_),
                    *_fields(slot, 'tensor', 'payload', 'capacity'),
                    Byref(payload_bytes), *_fields(slot, 'sidecar')
                ], retobj=status),
                Call('devitocomp_store_commit', [
                    op.function, Byref(slot), status, Call('devitocomp_message', [plan])
                ])
            ]))
        ]

    def _get_plan(self, op):
        """One plan for each function and memory layout of its snapshots."""
        key = (op.function, op.target, op.tindex is None)
        if isinstance(op.target, SnapshotBuffer):
            # All buffers of a function are laid out alike
            key = (op.function, op.target.halo[-op.function.ndim + 1:])
        if key not in self.plans:
            name = self.sregistry.make_name(prefix='plan')
            self.plans[key] = Plan(name, factory=self._make_factory(op))
        return self.plans[key]

    def _make_factory(self, op):
        view, exec_, _ = self._make_locals()
        plan, tensor = PlanPointer('plan'), Tensor('tensor')
        lead = -1 if op.tindex is None else 0
        body = [
            self._describe(op.target, lead, view),
            Call('devitocomp_host', [self.nthreads], retobj=exec_),
            Call('devitocomp_store_tensor', [op.function, view], retobj=tensor),
            *self._create_plan(op.function, tensor, exec_, plan),
            Return(plan)
        ]
        return make_callable(self.sregistry.make_name(prefix='create_plan'), body,
                             retval=plan)

    def _create_plan(self, function, tensor, exec_, plan):
        options = function.compression.options
        return [
            Definition(plan),
            Call('devitocomp_plan_create', [
                Macro('DEVITOCOMP_ABI_VERSION'), Byref(tensor), Byref(exec_),
                Macro('NULL') if options is None else String(f'"{options}"'), Byref(plan)
            ], retobj=status),
            Call('devitocomp_store_planned', [
                function, status, Call('devitocomp_message', [plan]),
                Call('devitocomp_limits', [plan])
            ])
        ]

    def _get_data_field(self, target):
        return target._C_field_data

    def _make_locals(self):
        return View('view'), Execution('exec'), Slot('slot')

    def _describe(self, target, lead, view):
        fields = [FieldFromPointer(i, target._C_symbol)
                  for i in (self._get_data_field(target), target._C_field_size,
                            target._C_field_domain_size, target._C_field_owned_ofs)]
        return Call('devitocomp_view', [*fields, target.ndim, lead], retobj=view)


status = Symbol(name='status', dtype=np.int32)


def _fields(slot, *names):
    return [FieldFromComposite(i, slot) for i in names]

