"""
The providers that come with the package, as sources, and how they are built.

A provider is a folder with a `Makefile` and a `provider.ini`; nothing here knows any of
them by name. Of the Makefile, these targets are used, with BUILD, PREFIX and VARIANT set:

    probe    says on stderr what is missing, and what to install, and fails; or is silent
    install  lays out PREFIX as a DEVITOCOMP_ROOT
"""
import configparser
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from devitocomp_plugin import paths
from devitocomp_plugin.exceptions import ProviderBuildError, ProviderError
from devitocomp_plugin.linking import c_compiler
from devitocomp_plugin.provider import provider_at

__all__ = ['BundledProvider', 'bundled_provider', 'bundled_providers']

DESCRIPTION = 'provider.ini'

TOOLS = ('{tool} is missing. Install it: Debian, Ubuntu: {debian}; conda: {conda} '
         '(conda-forge); pip: no package has it.')


@dataclass(frozen=True)
class BundledProvider:
    """
    A provider that can be built.

    Attributes
    ----------
    name : str
        The name of its folder.
    folder : Path
        Its sources.
    summary, execution, dtypes, ranks : str
        What it is and offers, as its folder says; the built library has the last word.
    variants : tuple of str
        How it can be built, the default first.
    """
    name: str
    folder: Path
    summary: str
    execution: str
    dtypes: str
    ranks: str
    variants: tuple

    def missing(self, variant=None):
        """
        What has to be installed before it can be built.

        Returns
        -------
        str
            A sentence or more; '' if nothing is missing.
        """
        if shutil.which('make') is None:
            return TOOLS.format(tool='make', debian='make', conda='make')
        try:
            c_compiler()
        except ProviderError:
            return TOOLS.format(tool='a C compiler', debian='gcc and libc6-dev',
                                conda='c-compiler')
        done = self._make('probe', variant=self._variant(variant))
        if done.returncode == 0:
            return ''
        # Beyond that, make adds lines of its own
        said = [i for i in done.stderr.splitlines() if not i.startswith('make')]
        return ' '.join(' '.join(said).split()) or f'`make probe` fails in {self.folder}'

    def built(self, variant=None):
        """
        Where it has been built, from these very sources, by the compilers at hand; or,
        if something is missing that would be needed to build it, by any.

        Returns
        -------
        Path or None
            A directory fit for DEVITOCOMP_ROOT.
        """
        if self.missing(variant):
            stem = self._stem(variant)
            roots = sorted((i for i in stem.parent.glob(f'{stem.name}-*') if i.is_dir()),
                           key=lambda i: i.stat().st_mtime, reverse=True)
        else:
            roots = [self._root(variant)]
        return next((i for i in roots if _works(i)), None)

    def build(self, variant=None):
        """
        Build it into the user's cache, unless that has been done before.

        Parameters
        ----------
        variant : str, optional
            One of `variants`.

        Returns
        -------
        Path
            A directory fit for DEVITOCOMP_ROOT.

        Raises
        ------
        ProviderBuildError
            If it cannot be built. The message says what to install.
        """
        root = self.built(variant)
        if root:
            return root
        missing = self.missing(variant)
        if missing:
            raise ProviderBuildError(f'provider {self.name} cannot be built: {missing}')

        root = self._root(variant)
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix='.tmp-', dir=root.parent) as tmp:
            new = Path(tmp, 'root')
            done = self._make('install', build=Path(tmp, 'build'), prefix=new,
                              variant=self._variant(variant))
            if done.returncode != 0:
                log = root.with_name(f'{root.name}.log')
                log.write_text(f'{done.stdout}{done.stderr}')
                lines = done.stderr.strip().splitlines() or ['`make install` fails']
                error = next((i for i in lines if 'error' in i), lines[-1])
                raise ProviderBuildError(f'building provider {self.name} failed: {error} '
                                         f'(all of it: {log})')
            if root.exists() and not _works(root):
                # Say because a library that it needs has moved
                root.rename(Path(tmp, 'old'))
            try:
                new.rename(root)
            except OSError:
                # Somebody else was faster
                if not root.is_dir():
                    raise
        provider_at(root)  # Raises if unusable
        return root

    def _variant(self, variant):
        if variant is None:
            return self.variants[0]
        if variant not in self.variants:
            raise ValueError(f'provider {self.name} has no variant {variant}, only: '
                             f'{", ".join(self.variants)}')
        return variant

    def _stem(self, variant):
        digest = hashlib.sha256()
        for i in sorted(self._sources()):
            digest.update(f'{i.name}\0'.encode())
            digest.update(hashlib.sha256(i.read_bytes()).digest())
        return paths.cache_dir().joinpath(
            'providers', f'{self.name}-{self._variant(variant)}-{digest.hexdigest()[:16]}'
        )

    def _root(self, variant):
        # What would be run tells which compiler, flags and libraries it would be run with
        commands = self._make('-n', 'install', variant=self._variant(variant)).stdout
        version = subprocess.run([*c_compiler(), '--version'], capture_output=True)
        digest = hashlib.sha256(commands.encode() + version.stdout)
        stem = self._stem(variant)
        return stem.with_name(f'{stem.name}-{digest.hexdigest()[:8]}')

    def _sources(self):
        # Next to the providers, there are folders that they share
        shared = [i for i in self.folder.parent.iterdir()
                  if i.is_dir() and not (i / DESCRIPTION).exists()]
        for folder in (self.folder, *shared, paths.include_dir()):
            yield from (i for i in folder.rglob('*') if i.is_file())

    def _make(self, *targets, variant, build='/nonexistent', prefix='/nonexistent'):
        # In an environment without the flags of a make that runs us
        environment = {k: v for k, v in os.environ.items()
                       if k not in ('MAKEFLAGS', 'MFLAGS', 'MAKELEVEL', 'DESTDIR')}
        # For packages next to this one
        environment.setdefault('PYTHON', sys.executable)
        return subprocess.run(
            ['make', '--no-print-directory', '-C', str(self.folder), *targets,
             f'BUILD={build}', f'PREFIX={prefix}', f'VARIANT={variant}',
             f'INCLUDE={paths.include_dir()}', f'CC={shlex.join(c_compiler())}'],
            capture_output=True, text=True, errors='replace', env=environment
        )


def _works(root):
    try:
        provider_at(root)
    except ProviderError:
        return False
    return True


def bundled_providers():
    """
    The providers that come with the package.

    Returns
    -------
    dict
        From the name of each to a BundledProvider.
    """
    found = sorted(paths.provider_sources().glob(f'*/{DESCRIPTION}'))
    return {i.parent.name: _read(i) for i in found}


def bundled_provider(name):
    """The BundledProvider of a name; a ProviderError lists them if there is none."""
    providers = bundled_providers()
    if name not in providers:
        raise ProviderError(f'there is no bundled provider {name}, only: '
                            f'{", ".join(providers)}')
    return providers[name]


def _read(path):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(path, encoding='utf-8')
    section = parser['provider']
    return BundledProvider(
        name=path.parent.name, folder=path.parent, summary=section['summary'],
        execution=section['execution'], dtypes=section['dtypes'], ranks=section['ranks'],
        variants=tuple(section['variants'].split())
    )
