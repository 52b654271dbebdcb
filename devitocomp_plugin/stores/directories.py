"""
The directories of stores on disk: how they are named and found, who may write into them,
and what becomes of temporary ones.
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
import tempfile
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from errno import EACCES, EAGAIN
from pathlib import Path

from devito.logger import info, warning

from devitocomp_plugin.exceptions import StoreError
from devitocomp_plugin.stores.manifest import MANIFEST

__all__ = ['WriterLock', 'is_store', 'locate', 'make_directory', 'make_part', 'of_rank',
           'remove', 'sweep']

LOCK = 'lock'

# How temporary stores begin
TEMPORARY = 'devitocomp-'

_STAMP = '%Y%m%dT%H%M%S.%f'
_NAME = re.compile(r'(?P<function>\w+)-\d{8}T\d{6}\.\d{6}-[0-9a-f]{8}')


def of_rank(store, rank):
    """The directory of one rank's part of a store."""
    return os.path.join(store, f'rank{rank:05d}')


def is_store(path):
    """Whether a directory is that of a store, whole or not."""
    return os.path.isdir(of_rank(path, 0))


def _names_store(path):
    return bool(_NAME.fullmatch(os.path.basename(path).removeprefix(TEMPORARY)))


def make_directory(parent, function, temporary=False):
    """
    Make a directory for a new store.

    Parameters
    ----------
    parent : str
        Where to make it. Is made, too, if need be.
    function : str
        The name of the function.
    temporary : bool, optional
        Whether the store vanishes with its owner.

    Returns
    -------
    str
        Its path, which no store ever had: function, time and a random number.
    """
    stamp = datetime.now(timezone.utc).strftime(_STAMP)
    name = f'{function}-{stamp}-{secrets.token_hex(4)}'
    path = os.path.join(parent, TEMPORARY + name if temporary else name)
    with _explained(path, function):
        os.makedirs(parent, exist_ok=True)
        os.mkdir(path, 0o700 if temporary else 0o777)
    return path


def make_part(directory, function):
    """Make the directory of one rank, perhaps on a host where the store's is not."""
    with _explained(directory, function):
        os.makedirs(directory, exist_ok=True)


@contextmanager
def _explained(path, function):
    try:
        yield
    except OSError as e:
        raise StoreError(f"There is no place for the snapshots of `{function}`: cannot "
                         f"make the directory {path}: {e.strerror}. Name another one "
                         f"with `serialization`") from e


# The functions, with directories, of which users know that there is nothing to read
told = set()


def locate(path, function, write, needed):
    """
    Find the store that `serialization` means.

    Parameters
    ----------
    path : str
        Of a store, or of the directory that stores are in.
    function : str
        The name of the function.
    write : bool
        Whether the store is to be written to.
    needed : bool
        Whether there has to be one even so.

    Returns
    -------
    tuple or None
        Its directory, and whether that is new. None if there is no store.

    Raises
    ------
    StoreError
        If it is gone, or cannot be made.
    """
    if is_store(path):
        return path, False
    if _names_store(path) and not os.path.exists(path):
        raise StoreError(f"`{function}` cannot be read from or written to {path}: that "
                         "is the name of a store, which is not there any more")
    if not write:
        found = _newest(path, function)
        if found is not None:
            info(f"Reading the snapshots of `{function}` from {found}")
            return found, False
        if (path, function) not in told:
            told.add((path, function))
            warning(f"There is no store of `{function}` in {path}: its snapshots read as "
                    "zeros")
    return (make_directory(path, function), True) if write or needed else None


def _newest(parent, function):
    def is_one(name):
        match = _NAME.fullmatch(name)
        # The manifest of the first rank is what is made last
        return match and match['function'] == function and \
            os.path.isfile(os.path.join(of_rank(os.path.join(parent, name), 0), MANIFEST))

    try:
        names = [i for i in os.listdir(parent) if is_one(i)]
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StoreError(f"No store of `{function}` can be looked for in {parent}: "
                         f"{e.strerror}") from e
    return os.path.join(parent, max(names)) if names else None


class WriterLock:

    """
    The right to write into a directory, which one holds at a time. The system takes it
    from a process that dies.

    Parameters
    ----------
    directory : str
    function : str
        For messages.

    Raises
    ------
    StoreError
        If somebody else has it, or if the directory cannot be written to.
    """

    def __init__(self, directory, function):
        path = os.path.join(directory, LOCK)
        self._pid = os.getpid()
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._lock(path, function)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f'{self._pid} {socket.gethostname()}\n'.encode(), 0)
        except OSError as e:
            self.release()
            raise StoreError(
                f"`{function}` cannot be written to {directory}: {path}: {e.strerror}. "
                "It can be read; to write, let `serialization` name another directory"
            ) from e

    def _lock(self, path, function):
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in (EACCES, EAGAIN):
                # There are parallel file systems without locks
                warning(f"{path} cannot be locked ({e.strerror}): see to it that nobody "
                        f"else writes to the store of `{function}`")
                return
            pid, host = holder_of(self._fd)
            self.release()
            raise StoreError(
                f"`{function}` cannot be written to {os.path.dirname(path)}: process "
                f"{pid} on {host} is writing to that store. It can be read; to write, "
                "wait for its end, or let `serialization` name another directory"
            ) from None

    def release(self):
        """Give it up."""
        if self._fd >= 0:
            # In a fork, the lock is the parent's
            if os.getpid() == self._pid:
                with suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1


def holder_of(fd):
    """Process and host that have taken a lock, the latter empty if nobody has."""
    words = os.pread(fd, 512, 0).decode(errors='replace').split()
    return (words[0], words[1]) if len(words) == 2 else ('unknown', '')


def remove(directory, pid):
    """Remove a rank's part of a store, and with the last one all, unless in a fork."""
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
        _remove_empty(os.path.dirname(directory))


def _remove_empty(directory):
    # Unless other ranks are still there
    with suppress(OSError):
        os.rmdir(directory)


def sweep():
    """Remove the temporary stores of processes of this user and host that died."""
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return
    for entry in entries:
        try:
            ours = _names_store(entry.name) and entry.name.startswith(TEMPORARY) and \
                entry.is_dir(follow_symlinks=False) and \
                entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            if ours:
                for i in Path(entry.path).iterdir():
                    _remove_orphan(i)
                _remove_empty(entry.path)
        except OSError:
            # Gone already, swept by somebody else
            continue


def _remove_orphan(directory):
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Whoever has no name yet has only begun. Locks may not be seen by other hosts
        if holder_of(fd)[1] == socket.gethostname():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(fd)
