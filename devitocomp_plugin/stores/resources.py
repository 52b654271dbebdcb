"""What stores on disk take of memory and of file systems, and what there is of it."""

import os
import shutil

from devito.logger import warning
from devito.tools import humanbytes

from devitocomp_plugin.exceptions import StoreError

__all__ = ['CAUTIOUS_RATIO', 'MEMORY_SHARE', 'check_free_space', 'room_bytes',
           'staging_cap']

STAGING_BYTES = 256 * 2**20
"""In which one function stages snapshots. More than a few of them gains little, as the
system keeps in memory what files it can, and costs the time that it takes to get it."""

MEMORY_SHARE = 0.25
"""The part of the physical memory that this is at most."""

CAUTIOUS_RATIO = 4
"""Raw over stored bytes, of a lossy provider, that the space on disk has to suffice for.
Half of what providers reached in the worst case that was measured."""

# Of rooms for snapshots in memory, and what the runtime puts behind each part of one
ALIGNMENT = 64
GUARD = 64


def room_bytes(limits):
    """The memory that one snapshot takes on its way to or from a file, at most."""
    alignment = max(ALIGNMENT, limits.payload_alignment, limits.sidecar_alignment)
    return limits.max_compressed_bytes + limits.sidecar_bytes + 2*(GUARD + alignment)


def staging_cap(ranks):
    """
    The memory in which a function with layers ``disk-host`` may stage snapshots, per
    MPI rank: the environment variable DEVITOCOMP_STAGING_BYTES, or else 256 MiB, but at
    most a quarter of the physical memory divided by the number of ranks.

    Parameters
    ----------
    ranks : int
        That share the memory.

    Raises
    ------
    StoreError
        If the variable is no number.
    """
    given = os.environ.get('DEVITOCOMP_STAGING_BYTES')
    if given is None:
        physical = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
        return min(STAGING_BYTES, int(MEMORY_SHARE * physical / ranks))
    if not given.isdecimal() or int(given) < 1:
        raise StoreError(f"DEVITOCOMP_STAGING_BYTES is {given!r}; it has to be a number "
                         "of bytes, at least 1")
    return int(given)


def check_free_space(path, function, raw_bytes, lossless):
    """
    Warn if a file system cannot be expected to hold some snapshots.

    Parameters
    ----------
    path : str
        The directory of the store.
    function : str
    raw_bytes : int
        Of all snapshots, uncompressed.
    lossless : bool
        Whether the provider is lossless: then no compression is counted on.
    """
    free = shutil.disk_usage(path).free
    if free < raw_bytes / (1 if lossless else CAUTIOUS_RATIO):
        warning(f"The snapshots of `{function}` are {humanbytes(raw_bytes)} when not "
                f"compressed, and {humanbytes(free)} are free in {path}: too little "
                f"unless they compress by a factor of {raw_bytes/max(free, 1):.1f}")
