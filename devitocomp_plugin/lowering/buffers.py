"""Buffers for snapshots, and the Clusters that fill and drain them."""

from devito.ir import Cluster, Forward, Interval, IntervalGroup, IterationSpace
from devito.tools import Stamp
from devito.types import Eq, Indexed

from devitocomp_plugin.lowering.accesses import split_offset
from devitocomp_plugin.lowering.syncs import InOrder, LoadSnapshot, SaveSnapshot
from devitocomp_plugin.types.buffer import SnapshotBuffer

__all__ = ['Buffers', 'innermost', 'iteration_order', 'level_key', 'make_load',
           'make_save', 'outer_guards', 'relocate']


class Buffers:

    """
    The buffers of the compressed functions of an Operator.

    Parameters
    ----------
    accesses : list of Access
        All accesses to compressed functions in the Operator.
    sregistry : SymbolRegistry
    """

    def __init__(self, accesses, sregistry):
        self._sregistry = sregistry
        self._buffers = {}

        # Sums are printed in the order of the names of their terms: name the buffers so
        # that a sum over time indices keeps the order that it has with dense functions,
        # and results are the same to the bit
        indices = {}
        for a in accesses:
            indices.setdefault(a.indexed.function, set()).add(a.index)
        self._names = {}
        for f in sorted(indices, key=lambda i: i.name):
            for i in sorted(indices[f], key=_dense_order):
                self._names[f, i] = sregistry.make_name(prefix=f'{f.name}b')

        # Without reads of neighbours there is no need for a halo, and the buffer is
        # contiguous, hence good for any provider
        self._halos = {}
        for f in indices:
            mine = [a.indexed for a in accesses if a.indexed.function is f]
            if all(_is_local(i) for i in mine):
                self._halos[f] = ((0, 0),)*(f.ndim - 1)
            else:
                self._halos[f] = tuple(tuple(i) for i in f._size_halo[1:])

    def get(self, function, index, written):
        """
        The buffer for a snapshot. What is only read and what is also written are kept
        apart, so that the former can be remembered as decoded.
        """
        key = (function, index, written)
        if key not in self._buffers:
            name = self._names[function, index]
            if (function, index, not written) in self._buffers:
                name = self._sregistry.make_name(prefix=f'{name}_')
            self._buffers[key] = self._make(name, function)
        return self._buffers[key]

    def make_rolling(self, function, slots):
        """A buffer with more than one slot, stepped through by a Dimension."""
        name = self._sregistry.make_name(prefix=f'{function.name}b')
        return self._make(name, function, slots=slots)

    def _make(self, name, function, **kwargs):
        return SnapshotBuffer(name=name, parent=function, halo=self._halos[function],
                              **kwargs)


def iteration_order(index):
    """Sort key for time indices, by when a forward iteration comes to them."""
    rest, offset = split_offset(index)
    return (str(rest), offset)


def _dense_order(index):
    rest, offset = split_offset(index)
    return (str(rest), offset != 0, offset)


def _is_local(indexed):
    f = indexed.function
    return all((i - f._size_nodomain[d].left).is_Symbol
               and (i - f._size_nodomain[d].left).is_Dimension
               and d in (i - f._size_nodomain[d].left)._defines
               for d, i in list(zip(f.dimensions, indexed.indices, strict=True))[1:])


def relocate(indexed, buffer, slot=None):
    """Turn an access to a compressed function into one to a buffer of its snapshots."""
    f = indexed.function
    shifted = []
    for d, i in list(zip(f.dimensions, indexed.indices, strict=True))[1:]:
        shifted.append(i - f._size_nodomain[d].left + buffer._size_nodomain[d].left)
    return buffer.indexed[shifted if slot is None else [slot, *shifted]]


def level_key(cluster, n):
    """
    What tells apart the groups of Clusters between which, `n` loops deep, others can be
    inserted: the loop that follows, and the conditions around it.
    """
    guards = tuple(cluster.guards.get(d) for d in (None, *cluster.ispace.itdims[:n]))
    return (cluster.ispace[:n + 1], guards)


def innermost(cluster, n):
    """The Dimension of the innermost of the `n` outer loops; None if there are none."""
    return cluster.ispace.itdims[n-1] if n > 0 else None


def outer_guards(cluster, n):
    """The guards of `cluster` on its `n` outer loops."""
    outer = (None, *cluster.ispace.itdims[:n])
    return cluster.guards.filter(lambda d: d in outer)


def make_load(cluster, n, buffer, index, slot=None, guards=None, in_order=False,
              **kwargs):
    """
    A Cluster bringing a snapshot into memory.

    Parameters
    ----------
    cluster : Cluster
        It is `n` loops deep in the nest of this Cluster, under its guards.
    n : int
    buffer : SnapshotBuffer
    index : expr-like
        Of the snapshot.
    slot : expr-like, optional
        Of the snapshot within the buffer.
    guards : Guards, optional
        Other conditions than those of `cluster`.
    in_order : bool, optional
        True if conditions read the buffer.
    **kwargs
        Passed on to LoadSnapshot.
    """
    f = buffer.parent
    op = LoadSnapshot(None, buffer, slot, f, index, **kwargs)
    access = f.indexed[[index, *_origin(f)]]
    return _make_copy(cluster, n, relocate(access, buffer, slot), access, guards, op,
                      in_order=in_order)


def make_save(cluster, n, target, index, function, slot=None, guards=None, **kwargs):
    """
    A Cluster compressing a snapshot of `function` from `target`, be it a SnapshotBuffer
    or the function that the snapshot is a copy of. Otherwise like `make_load`.
    """
    op = SaveSnapshot(None, target, slot, function, index, **kwargs)
    access = function.indexed[[index, *_origin(function)]]
    return _make_copy(cluster, n, access, relocate(access, target, slot), guards, op)


def _origin(f):
    return [d + f._size_nodomain[d].left for d in f.dimensions[1:]]


def _make_copy(cluster, n, lhs, rhs, guards, op, in_order=False):
    # The loop nest stands for the operation as long as Clusters are analyzed; in the end
    # it is replaced by a call
    dims = op.function.dimensions[1:]
    if guards is None:
        guards = outer_guards(cluster, n)
    if in_order or any(g.has(Indexed) for g in guards.values()):
        rhs = InOrder(rhs)

    prefix = cluster.ispace[:n]
    space = IterationSpace(IntervalGroup([Interval(d) for d in dims]), None,
                           dict.fromkeys(dims, Forward))
    ispace = IterationSpace.union(prefix, space, relations=(prefix.itdims + dims,))
    # Never share a loop with other Clusters
    ispace = ispace.lift(dims, Stamp())

    properties = cluster.properties.filter(lambda d: d in prefix.itdims)
    properties = properties.affine(dims).sequentialize((*prefix.itdims, *dims))

    syncs = {innermost(cluster, n): [op]}
    return Cluster(Eq(lhs, rhs), ispace, guards, properties, syncs)
