"""
How JIT-compiled operators find their provider.

All providers are called `libdevitocomp.so`, and glibc tells libraries that are linked in
apart by name only: a second operator, linked with another provider, would silently call
the provider of the first. So every provider gets a name of its own, made from a key (a
hash of its path, its content and the ABI version). A folder in the cache holds, per key:

    libdevitocomp-<key>-stub.so   what operators are linked against. It defines the
                                  functions of the ABI, as no-ops, and bears the SONAME
                                  libdevitocomp-<key>.so, which ends up in the operator
    libdevitocomp-<key>.so        symbolic link to the provider's library: what the
                                  loader finds when it looks for that SONAME
    lib                           symbolic link to the folder of the provider's library

The name for linking is not the one for loading, so one folder is right both as a library
directory and as a run path. Python loads `lib/libdevitocomp.so`: that path too is
different for each key (glibc never reads a path twice, hence would miss that a library
was rebuilt), and $ORIGIN in the provider's own run path means what its author meant.
Once that is done, the loader recognises the file behind an operator's symbolic link.
"""
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from devitocomp_plugin import abi, paths
from devitocomp_plugin.exceptions import ProviderError, ProviderLoadError

__all__ = ['LinkRecord', 'library_key', 'link', 'link_dir', 'load_private']


@dataclass(frozen=True)
class LinkRecord:
    """
    What a compiler needs to know to link with one provider and the runtime store.

    Attributes
    ----------
    key : str
        Identifies the provider's library: its path, content and ABI version.
    token : str
        Identifies all that compiled code depends on: the provider, the headers and the
        run path. It has to stand in the generated source, as otherwise Devito's JIT cache
        takes operators of different providers for equal.
    include_dirs, library_dirs, libraries : tuple of str
        For -I, -L and -l. The library directories are the run path too.
    """

    key: str
    token: str
    include_dirs: tuple
    library_dirs: tuple
    libraries: tuple

    @property
    def metadata(self):
        """What an `iet_pass` of Devito returns to have an operator linked."""
        return {
            'headers': [('DEVITOCOMP_LINK', f'"{self.token}"')],
            'include_dirs': self.include_dirs,
            'lib_dirs': self.library_dirs,
            'libs': self.libraries,
            'rpath': True,
        }

    @property
    def compile_flags(self):
        """The same for a command line: what comes before the source files."""
        return [f'-I{i}' for i in self.include_dirs]

    @property
    def link_flags(self):
        """The same for a command line: what comes after the source files."""
        return [*(f'-L{i}' for i in self.library_dirs),
                *(f'-Wl,-rpath,{i}' for i in self.library_dirs),
                *(f'-l{i}' for i in self.libraries)]


def library_key(library, content):
    """The key of a provider's library, given its path and the hash of its content."""
    text = f'{library}\0{content}\0{abi.ABI_VERSION}'
    return hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]


def signature(path):
    """What tells, without reading a file, that it is still the same."""
    info = path.stat()
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def content_hash(path):
    """Hash of a file's content."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as e:
        raise ProviderLoadError(f'cannot read {path}: {e.strerror}') from e


def link_dir(key):
    """The folder that belongs to a key."""
    return paths.cache_dir() / 'link' / key


_loaded = {}  # (device, inode) of each library -> hash of the content it was loaded with


def load_private(library, key, content):
    """
    Load a provider's library through a path that is different for each key.

    Parameters
    ----------
    library : Path
        The provider's library.
    key : str
        Its key.
    content : str
        Hash of its content.

    Returns
    -------
    ctypes.CDLL

    Raises
    ------
    ProviderLoadError
        If it cannot be loaded.
    """
    inode = signature(library)[:2]
    if _loaded.get(inode, content) != content:
        # The loader goes by the inode, hence would return what it has mapped already,
        # which by now is a mixture of both
        raise ProviderLoadError(
            f'{library} was overwritten while it was in use. Start Python again; to '
            f'replace a library in use, remove or rename the old one first, as '
            f'`install` does.'
        )
    folder = link_dir(key)
    folder.mkdir(parents=True, exist_ok=True)
    _place_symlink(folder / 'lib', library.parent)
    try:
        functions = ctypes.CDLL(str(folder / 'lib' / library.name),
                                mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as e:
        raise ProviderLoadError(
            f'{library} cannot be loaded: {e}. It has to be a shared library for this '
            f'machine, and the libraries that it needs must be found.'
        ) from e
    _loaded[inode] = content
    return functions


def link(provider):
    """
    Make it possible to link with a provider.

    May be called by any number of threads and processes at once. All that a previous
    call has prepared is checked, and repaired if need be, hence call it whenever an
    operator is about to be compiled or loaded.

    Parameters
    ----------
    provider : Provider
        As returned by `current_provider()`.

    Returns
    -------
    LinkRecord

    Raises
    ------
    ProviderError
        If the provider's library is gone, or another than when it was checked.
    """
    provider.check_unchanged()

    key = provider.key
    folder = link_dir(key)
    runtime = paths.runtime_library()
    include = paths.include_dir()
    for i in (folder, runtime.parent, include):
        if ',' in str(i):
            raise ProviderError(f'cannot link: the linker takes no path with a comma, '
                                f'such as {i}')

    folder.mkdir(parents=True, exist_ok=True)
    _place_symlink(folder / f'libdevitocomp-{key}.so', provider.library)
    stub = folder / f'libdevitocomp-{key}-stub.so'
    if not stub.is_file():
        _build_stub(stub, f'libdevitocomp-{key}.so')

    # Generated code includes our header, not the provider's. The latter may well define
    # longer structures, while the runtime store is compiled with ours
    return LinkRecord(
        key=key,
        token=f'{key}-{_environment_key(folder, runtime, include)}',
        include_dirs=(str(include),),
        library_dirs=(str(folder), str(runtime.parent)),
        libraries=(f'devitocomp-{key}-stub', 'devitocomp_store'),
    )


@cache
def _environment_key(folder, runtime, include):
    digest = hashlib.sha256(f'{folder}\0{runtime}'.encode(errors='surrogateescape'))
    for i in sorted(include.glob('*.h')):
        digest.update(i.read_bytes())
    return digest.hexdigest()[:8]


def _place_symlink(path, target):
    if path.is_symlink() and os.readlink(path) == str(target):
        return
    # Replaced in one step, since others may be doing the same
    with tempfile.TemporaryDirectory(prefix='.tmp-', dir=path.parent) as tmp:
        new = Path(tmp, path.name)
        new.symlink_to(target)
        new.replace(path)


def c_compiler():
    """
    The command of the system's C compiler: `CC`, or else cc, gcc or clang.

    Returns
    -------
    list of str
    """
    named = shlex.split(os.environ.get('CC', ''))
    candidates = [named] if named else [['cc'], ['gcc'], ['clang']]
    for cc in candidates:
        if shutil.which(cc[0]):
            return cc
    raise ProviderError(f'no C compiler to link with the provider: tried '
                        f'{", ".join(i[0] for i in candidates)}. Install one, or set CC.')


def _build_stub(stub, soname):
    code = ''.join(f'void {i}(void) {{}}\n' for i in abi.PROVIDER_FUNCTIONS)
    with tempfile.TemporaryDirectory(prefix='.tmp-', dir=stub.parent) as tmp:
        source, built = Path(tmp, 'stub.c'), Path(tmp, stub.name)
        source.write_text(code)
        cmd = [*c_compiler(), '-shared', '-fPIC', '-nostdlib', f'-Wl,-soname,{soname}',
               str(source), '-o', str(built)]
        done = subprocess.run(cmd, capture_output=True, text=True)
        if done.returncode != 0:
            raise ProviderError(f'could not build what operators are linked against:\n'
                                f'{shlex.join(cmd)}\n{done.stderr}')
        built.replace(stub)
