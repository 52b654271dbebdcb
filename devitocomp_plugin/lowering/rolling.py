"""Functions that an Operator both advances and saves."""

from itertools import groupby

from devito.ir import Backward
from devito.passes.clusters.buffering import BufferDimension
from devito.symbolics import uxreplace
from devito.types import ModuloDimension

from devitocomp_plugin.lowering.accesses import (
    accesses,
    is_full,
    is_partial,
    split_offset,
)
from devitocomp_plugin.lowering.buffers import make_load, make_save, relocate

__all__ = ['roll']


def roll(clusters, buffers, sregistry):
    """
    Give rolling buffers to the functions that are written at one time index and, in the
    same time loop, read at those of previous iterations.

    What is read are then the uncompressed values, whatever the provider loses; only the
    history is compressed, each snapshot once, after its last write.

    Parameters
    ----------
    clusters : list of Cluster
        Input Clusters, without HaloTouches.
    buffers : Buffers
        To make the buffers.
    sregistry : SymbolRegistry
        To create unique names.

    Notes
    -----
    Not handled, hence left to the caller: time loops over a ConditionalDimension, reads
    ahead of the write, writes at more than one time index.

    Examples
    --------
        Eq(u[time+1, x], 2*u[time, x] - u[time-1, x])

    becomes

        Eq(ub0[time_m % 3, x], u[time_m, x])              <- LoadSnapshot
        Eq(ub0[(time_m - 1) % 3, x], u[time_m - 1, x])    <- LoadSnapshot
        for time
          Eq(ub0[t2, x], 2*ub0[t0, x] - ub0[t1, x])
          Eq(u[time+1, x], ub0[t2, x])                    <- SaveSnapshot
    """
    processed = []
    for _, group in groupby(clusters, key=lambda c: (c.ispace[:1], c.guards.get(None))):
        group = list(group)
        prologue = []
        for window in _find_windows(group):
            loads, group = window.apply(group, buffers, sregistry)
            prologue.extend(loads)
        processed.extend(prologue + group)
    return processed


def _find_windows(group):
    if not group[0].ispace.itdims:
        return []
    d = group[0].ispace.itdims[0]

    mapper = {}
    for c in group:
        if not c.is_wild:
            for a in accesses(c):
                mapper.setdefault(a.indexed.function, []).append(a)
        if any(g.has(f.func) for g in c.guards.values() for f in mapper):
            return []

    windows = []
    for f in sorted(mapper, key=lambda f: f.name):
        window = Window(f, d, mapper[f])
        if window.is_legal:
            windows.append(window)
    return windows


class Window:

    """The time indices of one function within one time loop."""

    def __init__(self, function, dim, accesses):
        self.function = function
        self.dim = dim
        self.accesses = accesses

        self.backward = accesses[0].cluster.ispace.directions[dim] is Backward
        self.offsets = {}
        for a in accesses:
            rest, offset = split_offset(a.index)
            if rest is not dim:
                self.offsets = {}
                break
            self.offsets[a.index] = offset

    @property
    def writes(self):
        return [a for a in self.accesses if a.is_write]

    @property
    def is_legal(self):
        written = {self.offsets.get(a.index) for a in self.writes}
        if not self.offsets or len(written) != 1:
            return False
        w, = written
        behind = [o > w if self.backward else o < w for o in self.offsets.values()]
        return sum(behind) == len(behind) - 1 and any(behind)

    def apply(self, group, buffers, sregistry):
        lo, hi = min(self.offsets.values()), max(self.offsets.values())
        size = hi - lo + 1
        slots = BufferDimension(sregistry.make_name(prefix='db'), 0, size - 1, size,
                                self.dim)
        buffer = buffers.make_rolling(self.function, slots)
        steppers = self._make_steppers(slots, sregistry)

        first, last = self.writes[0], self.writes[-1]
        index = first.index
        subs = {a.indexed: relocate(a.indexed, buffer, steppers[a.index])
                for a in self.accesses}
        subiters = {self.dim: list(steppers.values())}

        processed = []
        for c in group:
            ispace = c.ispace.augment(subiters)
            if c is self._first_access.cluster:
                # The slot holds an older snapshot: get what partial writes leave alone
                guards = self._guards(c)
                if self._starts_full:
                    guards = guards.impose(self.dim, is_partial(self.function))
                processed.append(make_load(c.rebuild(ispace=ispace), 1, buffer, index,
                                           slot=steppers[index], modify=True,
                                           guards=guards))
            exprs = [uxreplace(e, subs) for e in c.exprs]
            properties = c.properties.sequentialize(self.dim)
            processed.append(c.rebuild(exprs=exprs, ispace=ispace, properties=properties))
        c = last.cluster.rebuild(ispace=last.cluster.ispace.augment(subiters))
        processed.append(make_save(c, 1, buffer, index, self.function,
                                   slot=steppers[index], guards=self._guards(c)))

        return self._make_prologue(group[0], buffer, size), processed

    @property
    def _first_access(self):
        # The first that touches the snapshot being written
        index = self.writes[0].index
        return [a for a in self.accesses if a.index == index][0]

    @property
    def _starts_full(self):
        a = self._first_access
        return a.is_write and a.cluster.guards.get(self.dim) == True and is_full(a, 1)  # noqa: E712

    def _guards(self, c):
        return c.guards.filter(lambda d: d is None)

    def _make_steppers(self, slots, sregistry):
        steppers = {}
        # In the order of names that dense functions would have; see Buffers
        for index, offset in sorted(self.offsets.items(),
                                    key=lambda i: (i[1] != 0, i[1])):
            name = sregistry.make_name(prefix='t')
            steppers[index] = ModuloDimension(name, slots, index, slots.symbolic_size,
                                              origin=slots + offset)
        return steppers

    def _make_prologue(self, c, buffer, size):
        w = self.offsets[self.writes[0].index]
        if self.backward:
            start = self.dim.symbolic_max
            offsets = range(max(self.offsets.values()), w, -1)
        else:
            start = self.dim.symbolic_min
            offsets = range(min(self.offsets.values()), w)
        return [make_load(c, 0, buffer, start + o, slot=(start + o) % size, modify=True,
                          guards=self._guards(c), lenient=True) for o in offsets]
