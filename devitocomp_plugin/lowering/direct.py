"""Saves that need no buffer."""

from itertools import groupby

from devito.types.dense import DiscreteFunction
from sympy import Not

from devitocomp_plugin.lowering.accesses import accesses, home, is_full, is_partial
from devitocomp_plugin.lowering.buffers import innermost, level_key, make_save
from devitocomp_plugin.lowering.syncs import is_copy
from devitocomp_plugin.types.functions import CompressedTimeFunction

__all__ = ['save_directly']


def save_directly(clusters, n):
    """
    Compress a snapshot straight from the function that it is a plain copy of.

    Parameters
    ----------
    clusters : list of Cluster
        Input Clusters, which share `n` outer loops.
    n : int
        The depth at which snapshots are to be moved.

    Notes
    -----
    Not handled, hence left to go through a buffer: anything but one assignment of one
    Indexed of the same type and grid; snapshots accessed elsewhere in the same loop;
    sources overwritten in the same loop over space. So are, at run time, runs over part
    of the domain.

    Examples
    --------
        Eq(usave[time, x], u[t0, x])

    becomes, whatever `x_m` and `x_M` are at run time,

        if (x_m <= 0 && x_M >= x_size - 1)
          Eq(usave[time, x], u[t0, x])             <- SaveSnapshot
        if (x_m > 0 || x_M < x_size - 1)
          Eq(usave[time, x], u[t0, x])
    """
    uses = [a.indexed.function for c in clusters if not is_copy(c) for a in accesses(c)]

    processed = []
    for _, group in groupby(clusters, key=lambda c: level_key(c, n)):
        group = list(group)
        before, kept, after = [], [], []
        for i, c in enumerate(group):
            position = None
            if not is_copy(c) and _is_direct(c, n, uses):
                position = _find_position(group, i, before, after)
            if position is None:
                kept.append(c)
            else:
                position.extend(_split(c, n))
        processed.extend(before + kept + after)
    return processed


def _is_direct(c, n, uses):
    if len(c.exprs) != 1 or c.is_wild:
        return False
    a = accesses(c)
    if len(a) != 1 or not a[0].is_write:
        return False
    a, = a
    f, rhs = a.indexed.function, a.expr.rhs
    if uses.count(f) != 1 or home(c.ispace, a.index) > n or not is_full(a, n):
        return False
    if not rhs.is_Indexed:
        return False

    u = rhs.function
    if not isinstance(u, DiscreteFunction) or isinstance(u, CompressedTimeFunction):
        return False
    if u.dtype != f.dtype or u.grid is not f.grid:
        return False
    dims = f.dimensions[1:]
    if u.dimensions[u.ndim - len(dims):] != dims or u.ndim > len(dims) + 1:
        return False
    if any(rhs.indices[d] - u._size_nodomain[d].left != d for d in dims):
        return False
    return u.ndim == len(dims) or home(c.ispace, rhs.indices[0]) <= n


def _find_position(group, i, before, after):
    rhs = group[i].exprs[0].rhs
    if not any(_may_write(c, rhs) for c in group[i + 1:]):
        return after
    if not any(_may_write(c, rhs) for c in group[:i]):
        return before
    return None


def _may_write(c, rhs):
    for w in c.scope.writes.get(rhs.function, ()):
        i, j = w.access.indices[0], rhs.indices[0]
        if getattr(i, 'is_Modulo', False) and getattr(j, 'is_Modulo', False) and \
           i.modulo == j.modulo and (i.offset - j.offset) % i.modulo != 0:
            continue
        return True
    return False


def _split(c, n):
    a, = accesses(c)
    f, u = a.indexed.function, a.expr.rhs.function
    d = innermost(c, n)
    slot = a.expr.rhs.indices[0] if u.ndim == f.ndim else None

    whole = c.guards.xandg(d, Not(is_partial(f)))
    part = c.guards.xandg(d, is_partial(f))
    return [make_save(c, n, u, a.index, f, slot=slot, guards=whole),
            c.rebuild(guards=part)]
