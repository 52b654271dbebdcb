"""What is known about buffers while walking through the Clusters of one loop level."""

from devitocomp_plugin.lowering.accesses import is_distinct
from devitocomp_plugin.lowering.buffers import make_save

__all__ = ['Level']


class Pending:

    """A buffer written, and not yet stored."""

    def __init__(self, cluster, n, buffer, key, lenient):
        self.buffer = buffer
        self.key = key
        self.function, self.index, self.guards = key
        self.save = make_save(cluster, n, buffer, self.index, self.function,
                              lenient=lenient)


class Level:

    """
    The Clusters processed so far at one loop level, and what their buffers hold.

    Buffers are known by a key: the function, the time index of the snapshot, and the
    conditions under which it was moved.
    """

    def __init__(self):
        self.clusters = []
        self.clean = {}
        self.pending = {}

    def extend(self, clusters):
        self.clusters.extend(clusters)

    def touches(self, function):
        """True if snapshots of a function have been moved."""
        return any(function in c.functions for c in self.clusters)

    def find(self, key):
        """The buffer that holds what a key stands for; None if there is none."""
        if key in self.pending:
            return self.pending[key].buffer
        return self.clean.get(key)

    def write(self, *args):
        """Keep in mind that a buffer is going to be written."""
        pending = Pending(*args)
        self.pending[pending.key] = pending

    def store(self, function, index=None, key=None):
        """
        Store the pending snapshots of a function that may be the one at `index` (all of
        them without it), but for that of `key`.
        """
        self._store_if(lambda p: p.function is function and p.key != key and
                       (index is None or not is_distinct(p.index, index)))

    def store_all(self):
        """Store all pending snapshots."""
        self._store_if(lambda p: True)

    def forget(self, function, index=None):
        """
        Forget the clean snapshots of a function that may be the one at `index` (all of
        them without it): it was written.
        """
        self.clean = {k: v for k, v in self.clean.items() if k[0] is not function or
                      (index is not None and is_distinct(k[1], index))}

    def leave(self, guards):
        """Store and forget what depends on conditions that may be about to change."""
        self._store_if(lambda p: p.guards == guards)
        self.clean = {k: v for k, v in self.clean.items() if k[2] != guards}

    def _store_if(self, condition):
        stored = [p for p in self.pending.values() if condition(p)]
        for p in stored:
            self.clusters.append(self.pending.pop(p.key).save)
