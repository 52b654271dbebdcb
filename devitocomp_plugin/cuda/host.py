"""Host code around kernels that touches data on the device."""

from devito.exceptions import CompilationError
from devito.ir import (
    Call,
    Conditional,
    DeviceCall,
    Expression,
    ExpressionBundle,
    FindNodes,
    FindSymbols,
    HaloSpot,
    Iteration,
    List,
    SyncSpot,
    Transformer,
    While,
)
from devito.passes import is_on_device
from devito.symbolics import Byref, retrieve_indexed
from devito.types import Symbol

from devitocomp_plugin.cuda.objects import device

__all__ = ['check_host_code', 'find_serial_code', 'get_values']


def lives_on_device(f, gpu_fit):
    """True for functions and arrays with memory on the device."""
    return (f.is_AbstractFunction and not f._mem_stack and not f._mem_constant and
            (f._mem_mapped or f._mem_local) and is_on_device(f, gpu_fit))


def lives_on_host(f, gpu_fit):
    """True for functions that only the host has."""
    return f.is_DiscreteFunction and not is_on_device(f, gpu_fit)


def find_serial_code(iet, gpu_fit):
    """
    The largest parts of the host code that compute values on the device one after the
    other: loops without parallelism, and equations without loops. It takes one thread of
    the device.
    """
    found = []

    def visit(node):
        if isinstance(node, (Iteration, Conditional, ExpressionBundle, Expression)):
            if is_serial(node):
                found.append(node)
                return
        for i in node.children:
            for j in (i if isinstance(i, tuple) else (i,)):
                visit(j)

    def is_serial(node):
        if FindNodes((Call, SyncSpot, HaloSpot, While)).visit(node):
            return False
        exprs = FindNodes(Expression).visit(node)
        if not any(lives_on_device(i.write, gpu_fit) for i in exprs):
            return False
        if any(lives_on_host(f, gpu_fit) for f in FindSymbols().visit(node)):
            return False
        # Scalars of a kernel are gone with it
        scalars = {i.output for i in exprs if i.is_scalar}
        rest = Transformer({node: None}).visit(iet) if scalars else None
        return rest is None or scalars.isdisjoint(FindSymbols('basics').visit(rest.body))

    visit(iet.body)
    return found


def get_values(iet, writes, sregistry):
    """
    Let scalar equations and conditions on the host read values that kernels have written,
    which are on the device.
    """
    def fetch(expr):
        subs, calls = {}, []
        for i in retrieve_indexed(expr):
            if i.function not in writes or i.function.is_Array or i in subs:
                continue
            subs[i] = Symbol(name=sregistry.make_name(prefix='v'), dtype=i.dtype)
            calls.append(DeviceCall('devitocomp_value', (device, Byref(i)),
                                    retobj=subs[i]))
        return subs, calls

    mapper = {}
    for e in FindNodes(Expression).visit(iet):
        subs, calls = fetch(e.rhs) if e.is_scalar else ({}, [])
        if calls:
            expr = e.expr._rebuild(rhs=e.rhs.xreplace(subs))
            mapper[e] = List(body=[*calls, e._rebuild(expr=expr)])
    for c in FindNodes(Conditional).visit(iet):
        subs, calls = fetch(c.condition)
        if calls:
            condition = c.condition.xreplace(subs)
            mapper[c] = List(body=[*calls, c._rebuild(condition=condition)])
    return Transformer(mapper, nested=True).visit(iet)


def check_host_code(iet, writes, gpu_fit):
    """
    Raise a CompilationError if host code reads or writes data that is on the device.
    """
    # Asynchronous tasks begin, or will begin, with copies to the host
    copied = {f for i in FindNodes(Call).visit(iet) for f in i.writes}
    copied.update(s.target for i in FindNodes(SyncSpot).visit(iet) for s in i.sync_ops)
    for e in FindNodes(Expression).visit(iet):
        functions = [f for f in e.functions
                     if lives_on_device(f, gpu_fit) and f not in copied]
        # The host has its own copy of mapped arrays, the buffers of tasks
        functions = [f for f in functions if not (f.is_Array and f._mem_mapped)]
        bad = next((f for f in functions
                    if f is e.write or f in writes or f._mem_local), None)
        if bad is not None:
            host = next((f.name for f in e.functions if lives_on_host(f, gpu_fit)), '')
            raise CompilationError(
                f'`{e.expr}` would be computed on the host, where `{bad.name}` is not up '
                f'to date, as kernels compute on the device'
                + (f'; `{host}` is not on the device because of the option `gpu-fit`, so '
                   f"use 'buffering', 'tasking' or 'streaming'" if host else '')
            )
    for i in FindNodes(While).visit(iet):
        for j in retrieve_indexed(i.condition):
            if j.function in writes and not j.function.is_Array:
                raise CompilationError(
                    f'the condition `{i.condition}` is evaluated on the host, but '
                    f'`{j.function.name}` is written on the device'
                )
