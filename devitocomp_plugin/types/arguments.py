"""What Operators get as the value of a compressed function."""

__all__ = ['StoreArgument']


class StoreArgument:

    """
    The run-time value of a compressed function: mimics the attributes of an array that
    Devito looks at. The pointer that goes to the generated code is known when it runs.
    """

    def __init__(self, function, store=None):
        self.function = function
        self.store = store or function._store

        self.shape = function.shape_allocated
        self.dtype = function.dtype
        # What generated code indexes are buffers of one snapshot
        self.size = function.size_allocated // function.shape_allocated[0]

    def copy(self):
        """A scratch store, for runs whose output is thrown away."""
        return StoreArgument(self.function, self.store.empty_like())

    @property
    def nbytes_max(self):
        """See CompressedTimeFunction."""
        return self.store.nbytes_max
