"""Halo exchanges of buffers, at the IET level."""

from devito.ir.iet import Expression, FindNodes, HaloSpot, Transformer
from devito.passes.iet.engine import iet_pass
from devito.passes.iet.mpi import OverlappableHaloSpot, optimize_halospots

from devitocomp_plugin.types.buffer import SnapshotBuffer

__all__ = ['place_halo_exchanges']


def place_halo_exchanges(graph, **kwargs):
    """
    Optimize the halo exchanges, as Devito does, while it can still be seen which loop
    nests write buffers: calls will hide that.

    An exchange of a buffer does not overlap with a computation that adds to what it
    writes. In a rank's part that is narrower than two halos, Devito computes the points
    next to one side and the points next to the other, some of them twice. Dense functions
    are spared where they are only read, as then there is nothing to exchange.
    """
    optimize_halospots(graph, **kwargs)
    _separate_sums(graph, **kwargs)


@iet_pass
def _separate_sums(iet, **kwargs):
    mapper = {}
    for hs in FindNodes(HaloSpot).visit(iet):
        if not isinstance(hs, OverlappableHaloSpot) or \
           not any(isinstance(f, SnapshotBuffer) for f in hs.fmapper):
            continue
        if any(_updates(i.expr) for i in FindNodes(Expression).visit(hs)):
            mapper[hs] = HaloSpot(**hs.args)
    return Transformer(mapper, nested=True).visit(iet), {}


def _updates(expr):
    written = expr.lhs.function
    return expr.is_Reduction or any(i.function is written for i in expr.reads)
