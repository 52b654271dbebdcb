"""Snapshot accesses: from compressed functions to buffers, at the Cluster level."""

from collections import OrderedDict
from itertools import combinations, groupby

from devito.exceptions import CompilationError
from devito.ir import Backward
from devito.ir.clusters.algorithms import HaloComms
from devito.symbolics import uxreplace
from devito.tools import filter_ordered, timed_pass
from sympy import true

from devitocomp_plugin.lowering.accesses import (
    Access,
    accesses,
    compressed,
    home,
    is_distinct,
    is_full,
    is_partial,
    time_index,
)
from devitocomp_plugin.lowering.buffers import (
    Buffers,
    innermost,
    iteration_order,
    level_key,
    make_load,
    outer_guards,
    relocate,
)
from devitocomp_plugin.lowering.direct import save_directly
from devitocomp_plugin.lowering.levels import Level
from devitocomp_plugin.lowering.rolling import roll
from devitocomp_plugin.lowering.syncs import SaveSnapshot, is_copy
from devitocomp_plugin.types.functions import CompressedTimeFunction

__all__ = ['has_snapshots', 'lower_snapshots']


def has_snapshots(clusters):
    """True if compressed functions are accessed."""
    return any(isinstance(f, CompressedTimeFunction) for c in clusters
               for f in c.functions) or any(_guard_accesses(c) for c in clusters)


@timed_pass(name='snapshots')
def lower_snapshots(clusters, sregistry=None, strided=False, **kwargs):
    """
    Replace the accesses to compressed functions by accesses to buffers, and insert the
    Clusters that move snapshots between buffers and compressed functions.

    Parameters
    ----------
    clusters : list of Cluster
        Input Clusters, subject of the pass.
    sregistry : SymbolRegistry
        The symbol registry, to create unique names for buffers and Dimensions.
    strided : bool
        True if the provider reads and writes strided tensors, so that a snapshot can be
        compressed straight from the function that it is a copy of.
    **kwargs
        Additional compilation options.

    Returns
    -------
    list of Cluster

    Raises
    ------
    CompilationError
        If an access isn't supported, naming the expression.

    Notes
    -----
    Not handled, hence refused: writing a compressed function at one time index and
    reading it, within the same loop over space, at another that may be the same at run
    time; time indices that depend on a space Dimension, or on values computed by the
    Operator; expression-level conditions on a compressed function. Writes to the halo
    are lost, since the halo isn't stored.

    Examples
    --------
    With `usave` compressed, the Cluster

        Eq(g[x], g[x] + usave[time, x]*v[t0, x])

    becomes

        Eq(usaveb0[x], usave[time, x])            <- LoadSnapshot
        Eq(g[x], g[x] + usaveb0[x]*v[t0, x])

    and the Cluster

        Eq(usave[time, x], u[t0, x]*m[x])

    becomes

        Eq(usaveb0[x], u[t0, x]*m[x])
        Eq(usave[time, x], usaveb0[x])            <- SaveSnapshot

    The tagged Clusters are one call each in the generated code.
    """
    found = [a for c in clusters if not c.is_wild for a in accesses(c)]
    found += [a for c in clusters for a in _guard_accesses(c)]
    _check_indices(clusters, found)

    # Halo exchanges are to be derived again, as they belong to the buffers
    clusters = [c for c in clusters if not c.is_halo_touch]

    buffers = Buffers(found, sregistry)
    clusters = roll(clusters, buffers, sregistry)
    clusters = Copies(buffers, strided).process(clusters)

    return HaloComms().process(clusters)


class Copies:

    """
    Carry out the bulk of `lower_snapshots`, recursively over loop nests.

    At each level, consecutive Clusters that share the next inner loop form a group:
    copies go before or after a group, never inside a loop that would be split.
    """

    def __init__(self, buffers, strided):
        self.buffers = buffers
        self.strided = strided

    def process(self, clusters, n=0):
        if self.strided:
            clusters = save_directly(clusters, n)

        level = Level()
        for _, group in groupby(clusters, key=lambda c: level_key(c, n)):
            group = list(group)

            # Copies made by other passes
            for f, written in _copied(group):
                level.store(f)
                if written:
                    level.forget(f)

            group = self._lower_guard(group, n, level)
            _, guards = level_key(group[0], n)

            handled, deferred = self._partition(group, n)
            for f in deferred:
                level.store(f)

            subs = {}
            for f, v in handled.items():
                for index, aa in _by_index(v).items():
                    buffer = self._enter((f, index, guards), aa, n, level)
                    subs.update({a.indexed: relocate(a.indexed, buffer) for a in aa})

            if handled:
                group = [_rebuild(c, subs, n) for c in group]
            if deferred or any(_has_guard_accesses(c, n) for c in group):
                group = self.process(group, n + 1)
            level.extend(group)

            for f, v in deferred.items():
                if any(a.is_write for a in v):
                    level.forget(f)
            if not _is_stable(guards):
                level.leave(guards)
        level.store_all()

        return level.clusters

    def _enter(self, key, aa, n, level):
        """Provide the buffer for a group's accesses to one snapshot."""
        f, index, guards = key
        template = aa[0].cluster
        lenient = any(_has_inner_guards(a.cluster, n) for a in aa)
        written = any(a.is_write for a in aa)

        level.store(f, index, key)
        if written:
            level.forget(f, index)

        buffer = level.find(key)
        if buffer is not None:
            return buffer

        buffer = self.buffers.get(f, index, written)
        when = outer_guards(template, n)
        early = False
        if written:
            level.write(template, n, buffer, key, lenient)
            if aa[0].is_write and is_full(aa[0], n):
                early = all(i is true for i in when.values()) and not level.touches(f)
                when = when.xandg(innermost(template, n), is_partial(f))
        else:
            level.clean[key] = buffer
        load = make_load(template, n, buffer, index, guards=when, modify=written,
                         lenient=lenient)
        # Not in between: a save can be fused with what comes before it
        level.clusters.insert(0 if early else len(level.clusters), load)
        return buffer

    def _partition(self, group, n):
        """
        Split the functions accessed in a group by whether copies can be made around the
        group, or have to be made deeper.
        """
        mapper = OrderedDict()
        for c in group:
            if is_copy(c) or c.is_wild:
                continue
            for a in accesses(c):
                mapper.setdefault(a.indexed.function, []).append(a)

        handled, deferred = OrderedDict(), OrderedDict()
        for f, v in mapper.items():
            indices = filter_ordered(a.index for a in v)
            if all(home(a.cluster.ispace, a.index) <= n for a in v) and \
               (not any(a.is_write for a in v) or
                    all(is_distinct(i, j) for i, j in combinations(indices, 2))):
                handled[f] = v
            else:
                deferred[f] = v
                self._check_deeper(f, v, n)
        return handled, deferred

    def _check_deeper(self, f, v, n):
        for a in v:
            itdims = a.cluster.ispace.itdims
            if n < len(itdims) and not itdims[n]._defines & set(f.dimensions[1:]) and \
               not itdims[n]._defines & a.cluster.dist_dimensions:
                continue
            indices = ', '.join(str(i) for i in filter_ordered(a.index for a in v))
            raise CompilationError(
                f"`{f.name}` is compressed, and `{a.expr}` needs it at a time index that "
                f"can only be known inside a loop over space (time indices used: "
                f"{indices}). A compressed function cannot be written and read, in one "
                "loop over space, at time indices that may coincide; split the "
                "equations over two Operators"
            )

    def _lower_guard(self, group, n, level):
        """Load what the condition shared by a group reads."""
        c = group[0]
        d = innermost(c, n)
        found = filter_ordered(compressed([c.guards.get(d)])) if n > 0 else []
        if not found or is_copy(c):
            return group

        guards = outer_guards(c, n - 1)
        subs = {}
        for i in found:
            index = time_index(i)
            if home(c.ispace, index) > n:
                raise CompilationError(f"The condition `{c.guards[d]}` reads `{i}` "
                                       "outside the loops that define its time index")
            level.store(i.function)
            buffer = self.buffers.get(i.function, index, False)
            level.extend([make_load(c, n, buffer, index, guards=guards, lenient=True,
                                    in_order=True)])
            subs[i] = relocate(i, buffer)
        guard = c.guards[d].xreplace(subs)
        return [_sequentialize(i.rebuild(guards=i.guards.impose(d, guard)), n)
                for i in group]


# *** Utils

def _has_inner_guards(c, n):
    return any(c.guards.get(d) is not true for d in c.ispace.itdims[n:])


def _is_stable(guards):
    """True if conditions cannot change within an iteration of the loops they are in."""
    symbols = {i for g in guards for i in g.free_symbols}
    return all(i.is_Dimension or getattr(i, 'is_const', False) for i in symbols)


def _has_guard_accesses(c, n):
    return compressed(c.guards.get(d) for d in c.ispace.itdims[n:])


def _by_index(aa):
    # In the order of iteration: a snapshot is then copied from the buffer that held it
    # in the previous iteration before that buffer is filled anew
    mapper = {}
    for a in aa:
        mapper.setdefault(a.index, []).append(a)
    c = aa[0].cluster
    backward = any(c.ispace.directions[d] is Backward for d in c.ispace.itdims
                   if d.is_Time)
    return {i: mapper[i] for i in sorted(mapper, key=iteration_order, reverse=backward)}


def _copied(group):
    found = []
    for c in group:
        if is_copy(c):
            op, = [s for v in c.syncs.values() for s in v]
            found.append((op.function, isinstance(op, SaveSnapshot)))
    return filter_ordered(found)


def _guard_accesses(c):
    return [Access(i, time_index(i), False, None, c)
            for i in compressed(c.guards.values())]


def _rebuild(c, subs, n):
    if is_copy(c):
        return c
    return _sequentialize(c.rebuild(exprs=[uxreplace(e, subs) for e in c.exprs]), n)


def _sequentialize(c, n):
    # Within a loop that moves snapshots, iterations come one after the other
    properties = c.properties.sequentialize(c.ispace.itdims[:n])
    return c.rebuild(properties=properties)


def _check_indices(clusters, found):
    computed = {e.lhs for c in clusters for e in c.exprs if e.lhs.is_Symbol}
    for a in found:
        symbols = getattr(a.index, 'free_symbols', set()) & computed
        if symbols or compressed([a.index]):
            raise CompilationError(
                f"`{a.indexed}` in `{a.expr}`: the time index of a compressed function "
                "cannot depend on values computed by the Operator"
            )
