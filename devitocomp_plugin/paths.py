"""Where the parts of an installation are, and where caches go."""
import os
import tempfile
from functools import cache
from pathlib import Path

__all__ = ['bundled', 'cache_dir', 'dummy_root', 'include_dir', 'provider_sources',
           'runtime_library', 'runtime_sources']

BUNDLED = Path(__file__).resolve().parent / '_bundled'
"""Made by the installation; see setup.py."""


def bundled(*parts):
    """
    The path of something that the installation has put next to the Python code.

    Parameters
    ----------
    *parts : str
        The path below the folder of bundled things.

    Raises
    ------
    InstallationError
        If it is missing, which means that the package was never installed.
    """
    path = BUNDLED.joinpath(*parts)
    if not path.exists():
        from devitocomp_plugin.exceptions import InstallationError
        raise InstallationError(
            f'{path} is missing: devitocomp_plugin was not installed completely. Run '
            f'`pip install .` (or `pip install -e .`) in its source directory.'
        )
    return path


def include_dir():
    """The folder of the headers that generated code includes."""
    return bundled('include')


def runtime_library():
    """The runtime store, libdevitocomp_store.so."""
    return bundled('lib', 'libdevitocomp_store.so')


def runtime_sources():
    """The folder of the sources of the runtime store."""
    return bundled('runtime')


def dummy_root():
    """The bundled provider, laid out like any DEVITOCOMP_ROOT."""
    return bundled('dummy')


def provider_sources(name=None):
    """The folder of the sources of the providers, or of one of them."""
    return bundled('providers', *([name] if name else []))


def cache_dir():
    """
    The folder in which things may be kept between processes.

    It is the first of these that can be written to: `DEVITOCOMP_CACHE`,
    `XDG_CACHE_HOME`/devitocomp (~/.cache/devitocomp), a folder of this user's in the
    system's temporary directory.
    """
    return _cache_dir(os.environ.get('DEVITOCOMP_CACHE'),
                      os.environ.get('XDG_CACHE_HOME'), os.environ.get('HOME'))


@cache
def _cache_dir(explicit, xdg, home):
    # `home` is a parameter for the cache's sake: `expanduser` reads it
    if explicit:
        path = Path(explicit).expanduser().absolute()
    elif xdg and os.path.isabs(xdg):
        path = Path(xdg, 'devitocomp')
    else:
        path = Path(os.path.expanduser('~/.cache/devitocomp'))
    return path if _is_writable(path) else _temporary_cache_dir()


def _is_writable(path):
    # By trying: permission bits are not all there is to it (read-only or remote file
    # systems, root)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def _temporary_cache_dir():
    path = Path(tempfile.gettempdir(), f'devitocomp-{os.getuid()}')
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
        # Libraries are loaded from here, so nobody else may have put them there
        ours = path.is_dir() and not path.is_symlink()
        ours = ours and info.st_uid == os.getuid() and not info.st_mode & 0o022
    except OSError:
        ours = False
    return path if ours and _is_writable(path) else Path(tempfile.mkdtemp('-devitocomp'))
