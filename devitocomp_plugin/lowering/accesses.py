"""Questions about how Clusters access compressed functions."""

from collections import namedtuple

from devito.exceptions import CompilationError
from devito.symbolics import retrieve_indexed
from devito.tools import filter_ordered
from sympy import Or, sympify

from devitocomp_plugin.types.functions import CompressedTimeFunction

__all__ = ['Access', 'accesses', 'compressed', 'home', 'is_distinct', 'is_full',
           'is_partial', 'split_offset', 'time_index']


Access = namedtuple('Access', 'indexed index is_write expr cluster')


def time_index(indexed):
    """The index of an access along the time Dimension of the function."""
    return indexed.indices[indexed.function._time_position]


def compressed(exprs):
    """The accesses to compressed functions within some expressions, guards included."""
    return [i for e in exprs for i in retrieve_indexed(e)
            if isinstance(i.function, CompressedTimeFunction)]


def accesses(cluster):
    """
    The accesses to compressed functions in the expressions of a Cluster, in order of
    execution.
    """
    found = []
    for e in cluster.exprs:
        if compressed(e.conditionals.values()):
            raise CompilationError(f"The condition of `{e}` reads a compressed function "
                                   "point by point, which is not supported; use it "
                                   "inside the expression instead")
        reads = compressed([e.rhs]) + [i for j in e.lhs.args for i in compressed([j])]
        writes = compressed([e.lhs])[:1] if e.lhs.is_Indexed else []
        writes = [i for i in writes if i == e.lhs]
        if e.operation is not None:
            reads.extend(writes)
        for i in filter_ordered(reads):
            found.append(Access(i, time_index(i), False, e, cluster))
        for i in writes:
            found.append(Access(i, time_index(i), True, e, cluster))
    return found


def split_offset(index):
    """Split a time index into what varies and a constant: ``time - 1 -> (time, -1)``."""
    offset, rest = sympify(index).as_coeff_Add()
    return (rest, int(offset)) if offset.is_Integer else (index, 0)


def is_distinct(i, j):
    """True if two time indices can never be equal."""
    (rest0, offset0), (rest1, offset1) = split_offset(i), split_offset(j)
    return rest0 == rest1 and offset0 != offset1


def home(ispace, index):
    """
    The number of outer loops within which a time index is defined: that of the shortest
    prefix of `ispace` holding all Dimensions of `index`.
    """
    level = 0
    for s in sympify(index).free_symbols:
        if not s.is_Dimension:
            continue
        for n, d in enumerate(ispace.itdims, start=1):
            if d._defines & s._defines:
                level = max(level, n)
    return level


def is_full(access, n):
    """
    True if a write, `n` loops deep, sets every point of the snapshot at every run that
    iterates over the whole domain.
    """
    c, e = access.cluster, access.expr
    f = access.indexed.function

    if e.operation is not None or e.conditionals:
        return False
    if any(c.guards.get(d) != True for d in c.ispace.itdims[n:]):  # noqa: E712
        return False

    for d, i in list(zip(f.dimensions, access.indexed.indices, strict=True))[1:]:
        interval = c.ispace.intervals[d]
        if i - f._size_nodomain[d].left != d or d not in c.ispace.itdims[n:]:
            return False
        if interval.dim is not d or interval.lower != 0 or interval.upper != 0:
            return False
    return True


def is_partial(function):
    """
    The run-time condition under which writes to the whole domain of `function` set only
    part of it: the bounds of a space Dimension were overridden.
    """
    return Or(*[i for d in function.dimensions[1:]
                for i in (d.symbolic_min > 0, d.symbolic_max < d.symbolic_size - 1)])
