"""Where providers run, and the memory that they are given there."""
from devitocomp_plugin import abi
from devitocomp_plugin.conformance.memory import HostRegion

__all__ = ['SPACES', 'HostSpace']


class HostSpace:
    """
    Execution on the host.

    Attributes
    ----------
    code : int
        The `devitocomp_execution_kind_t`.
    stream : int or None
        That calls are given.
    region : type
        Of the memory for tensors and payloads.
    """

    name = 'host'
    code = abi.HOST
    stream = None
    region = HostRegion

    def synchronize(self):
        """Wait until queued work has run."""


SPACES = {'host': HostSpace}
