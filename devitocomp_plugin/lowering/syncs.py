"""Synchronization operations tagging the Clusters that move snapshots."""

from devito.ir.support.syncs import SnapIn, SnapOut
from devito.types.misc import Fence
from sympy import Function

__all__ = ['InOrder', 'LoadSnapshot', 'SaveSnapshot', 'is_copy']


class SnapshotOp:

    """
    Mixin for the operations between a store and the memory of an Operator.

    Parameters
    ----------
    handle, target, tindex, function, findex, dim
        As in SyncOp. `target` is what holds the uncompressed snapshot, at `tindex` along
        its first Dimension if that isn't None; `function` is the compressed function.
    modify : bool, optional
        True if the Operator writes into `target`.
    lenient : bool, optional
        True if an index outside the store is to be ignored, because the conditions that
        protect the access were dropped.
    """

    __rkwargs__ = SnapIn.__rkwargs__ + ('modify', 'lenient')

    def __init__(self, *args, modify=False, lenient=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.modify = modify
        self.lenient = lenient

    # Each operation is unique, or the Clusters carrying it might be fused
    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)


class LoadSnapshot(SnapshotOp, SnapIn):

    """Bring a snapshot into memory."""

    def __repr__(self):
        return f"LoadSnapshot<{self.function}->{self.target}>"


class SaveSnapshot(SnapshotOp, SnapOut):

    """Compress a snapshot from memory."""

    def __repr__(self):
        return f"SaveSnapshot<{self.target}->{self.function}>"


class InOrder(Function, Fence):

    """
    The source of a copy that other Clusters must not be moved across.

    Devito's dependence analysis does not look at what conditions read. Where conditions
    read data, whose value may change within an iteration, copies stay where they are.
    """

    nargs = 1


def is_copy(cluster):
    """True if `cluster` moves a snapshot."""
    return any(isinstance(s, SnapshotOp) for v in cluster.syncs.values() for s in v)
