"""What the passes that build one Operator share."""

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

from devitocomp_plugin.provider import current_provider

__all__ = ['Build', 'building', 'current_build']


class Build:

    """
    The building of one Operator. The provider is looked for once, if at all.

    Attributes
    ----------
    stages : dict
        By the name of each compressed function, the snapshots of it that are held
        uncompressed in the memory of a device.
    """

    def __init__(self):
        self.stages = {}

    @cached_property
    def provider(self):
        return current_provider()

    @property
    def is_compressed(self):
        """True if compressed functions were met."""
        return 'provider' in self.__dict__


_current = ContextVar('devitocomp_build')


@contextmanager
def building():
    """Begin the building of an Operator."""
    token = _current.set(Build())
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def current_build():
    """The innermost Operator being built."""
    return _current.get()
