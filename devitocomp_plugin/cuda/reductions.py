"""Reductions in kernels."""

import numpy as np
from devito.exceptions import CompilationError, InvalidOperator
from devito.ir import Call, DummyExpr, Expression, FindNodes, List, Transformer
from devito.ir.equations import OpInc, OpMax, OpMin, identity_mapper
from devito.symbolics import Byref
from devito.types import Symbol

from devitocomp_plugin.cuda.objects import device, make_cell

__all__ = ['check_races', 'lower_reductions']

ATOMICS = {OpInc: 'devitocomp_atomic_add', OpMax: 'devitocomp_atomic_max',
           OpMin: 'devitocomp_atomic_min'}


def operand(e):
    """What a reduction adds to, or compares with, its left-hand side."""
    if e.operation is OpInc:
        return e.rhs
    args = [i for i in e.rhs.args if i != e.output]
    return e.rhs.func(*args) if len(args) > 1 else args[0]


def check(e):
    dtype = np.dtype(e.output.dtype)
    if e.operation not in ATOMICS or dtype.type not in identity_mapper:
        raise InvalidOperator(
            f'the reduction `{e.expr}` of type {dtype} is not '
            f'supported on the device: sums, minima and maxima of int32, int64, float32 '
            f'and float64 are'
        )


def check_races(loops):
    """
    Raise a CompilationError if threads may update the same element other than atomically,
    as nothing else would notice: results are wrong only at times.

    Parameters
    ----------
    loops : list of Iterations
        Those of a kernel that are spread over its threads.
    """
    for i in loops:
        indices = {i.dim, *i.uindices}
        for e in FindNodes(Expression).visit(i):
            if not (e.is_reduction and e.is_tensor) or e.write._mem_stack:
                continue
            if i.is_ParallelAtomic or not indices & e.output.free_symbols:
                raise CompilationError(
                    f'the reduction `{e.expr}` is not atomic, although threads along '
                    f'`{i.dim.name}` may update the same element'
                )


def lower_reductions(nodes, atomic, sregistry):
    """
    Make the reductions of a kernel safe against other threads.

    Parameters
    ----------
    nodes : tuple of Nodes
        The body of the kernel.
    atomic : bool
        True if threads may reduce into the same value.
    sregistry : SymbolRegistry

    Returns
    -------
    body : Node
    before, after : list of Nodes
        For the host to do before and after the launch: scalars live there.
    """
    exprs = FindNodes(Expression).visit(List(body=nodes))
    reductions = [e for e in exprs if e.is_reduction]
    if not atomic or not reductions:
        return List(body=nodes), [], []

    # A scalar that the kernel sets is a temporary, of each thread one
    private = {e.output for e in exprs if e.is_scalar and not e.is_reduction}
    mapper, scalars = {}, {}
    for e in reductions:
        if e.output in private or (e.is_tensor and e.write._mem_stack):
            continue
        check(e)
        if e.is_scalar:
            previous = scalars.setdefault(e.output, e.operation)
            if previous is not e.operation:
                raise InvalidOperator(f'several kinds of reductions into `{e.output}` in '
                                      f'one loop are not supported on the device')
            continue
        # By way of a variable, so that constants get its type
        value = Symbol(name=sregistry.make_name(prefix='v'), dtype=e.output.dtype)
        mapper[e] = List(body=[
            DummyExpr(value, operand(e), init=True),
            Call(ATOMICS[e.operation], (Byref(e.output), value), writes=e.write)
        ])
    nodes = Transformer(mapper).visit(nodes) if mapper else nodes

    # Each thread reduces into a variable of that name, and in the end into a cell
    head, tail, before, after = [], [], [], []
    for s, operation in scalars.items():
        cell = make_cell(sregistry.make_name(prefix=f'{s.name}_cell'), s.dtype)
        neutral = identity_mapper[np.dtype(s.dtype).type][operation]
        head.append(DummyExpr(s, neutral, init=True))
        tail.append(Call(ATOMICS[operation], (cell.indexed, s)))
        before.append(Call('devitocomp_put', (device, cell.indexed, s)))
        after.append(Call('devitocomp_get', (device, cell.indexed, s)))

    return List(body=[*head, *nodes, *tail]), before, after
