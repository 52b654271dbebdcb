"""
Build the parts of devitocomp_plugin that are not Python.

Everything ends up in `devitocomp_plugin/_bundled`, in the wheel or, for an editable
install, in the source tree:

    include/      devitocomp.h, devitocomp_store.h
    lib/          libdevitocomp_store.so, the runtime store
    dummy/        the dummy provider, a complete DEVITOCOMP_ROOT
    providers/    sources of the providers  } to build, from an installed wheel, what
    runtime/      sources of the runtime    } depends on the machine (device parts)

They are plain shared libraries, not extension modules, hence one wheel serves all Python
versions of a platform.
"""
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.build import build as _build

try:
    from setuptools.command.bdist_wheel import bdist_wheel as _bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel as _bdist_wheel

ROOT = Path(__file__).resolve().parent
PACKAGE = 'devitocomp_plugin'

HEADERS = ['include/devitocomp.h', f'{PACKAGE}/runtime/devitocomp_store.h']

# What may be copied from the source folders: never a build product
SOURCE_SUFFIXES = {'.c', '.h', '.cc', '.cpp', '.hpp', '.cu', '.cuh', '.hip', '.mk', '.md',
                   '.txt', '.map', '.py', '.ini'}
SOURCE_NAMES = {'Makefile', 'LICENSE', 'README'}


class BuildFailed(SystemExit):
    """Ends the build with a message instead of a traceback."""


class Toolchain:
    """The system's C compiler, as far as it is needed here."""

    def __init__(self):
        self.cc = self._find()
        self.cflags = ['-O3', '-std=gnu99', '-fPIC', '-fvisibility=hidden']
        self.extra_cflags = shlex.split(os.environ.get('CFLAGS', ''))
        self.extra_ldflags = shlex.split(os.environ.get('LDFLAGS', ''))
        self.openmp = self._find_openmp()

    def _find(self):
        named = shlex.split(os.environ.get('CC', ''))
        candidates = [named] if named else [['cc'], ['gcc'], ['clang']]
        for cc in candidates:
            if shutil.which(cc[0]):
                return cc
        raise BuildFailed(
            f'devitocomp_plugin: no C compiler found (tried '
            f'{", ".join(i[0] for i in candidates)}). Install one, such as gcc, or set '
            f'the environment variable CC.'
        )

    def _find_openmp(self):
        with tempfile.TemporaryDirectory() as tmp:
            source = Path(tmp, 'probe.c')
            source.write_text('#include <omp.h>\n'
                              'int probe(void) { return omp_get_max_threads(); }\n')
            done = subprocess.run([*self.cc, '-fPIC', '-shared', '-fopenmp', str(source),
                                   '-o', str(Path(tmp, 'probe.so'))], capture_output=True)
        if done.returncode == 0:
            return ['-fopenmp']
        print('devitocomp_plugin: the C compiler has no OpenMP; building without')
        return []

    def shared_library(self, target, sources, include_dirs, libs):
        """Compile `sources` into the shared library `target`."""
        target.parent.mkdir(parents=True, exist_ok=True)
        cmd = [*self.cc, *self.cflags, *self.extra_cflags, *self.openmp, '-shared',
               f'-Wl,-soname,{target.name}',
               *(f'-I{i}' for i in include_dirs), *(str(i) for i in sources),
               '-o', str(target), *self.extra_ldflags, *(f'-l{i}' for i in libs)]
        print(shlex.join(cmd))
        done = subprocess.run(cmd, capture_output=True, text=True)
        if done.stderr:
            print(done.stderr)
        if done.returncode != 0:
            raise BuildFailed(
                f'devitocomp_plugin: compiling {target.name} failed:\n'
                f'{shlex.join(cmd)}\n{done.stderr}'
            )


def source_files(folder):
    """The files below `folder` that are sources, relative to the project."""
    return sorted(
        i.relative_to(ROOT) for i in (ROOT / folder).rglob('*')
        if i.is_file() and (i.suffix in SOURCE_SUFFIXES or i.name in SOURCE_NAMES)
        and 'build' not in i.relative_to(ROOT).parts
    )


def library_sources(folder):
    """The C files right in `folder` that make up its library."""
    sources = sorted(i for i in (ROOT / folder).glob('*.c')
                     if not i.name.startswith('test'))
    if not sources:
        raise BuildFailed(f'devitocomp_plugin: no C sources in {ROOT / folder}')
    return sources


def fill(bundled):
    """Put everything into the new directory `bundled`."""
    toolchain = Toolchain()

    include = bundled / 'include'
    include.mkdir(parents=True)
    for i in HEADERS:
        shutil.copy(ROOT / i, include)

    runtime = f'{PACKAGE}/runtime'
    toolchain.shared_library(
        bundled / 'lib' / 'libdevitocomp_store.so', library_sources(runtime),
        [ROOT / 'include', ROOT / runtime], ['pthread', 'm']
    )

    dummy = 'providers/dummy'
    (bundled / 'dummy' / 'include').mkdir(parents=True)
    shutil.copy(ROOT / HEADERS[0], bundled / 'dummy' / 'include')
    toolchain.shared_library(
        bundled / 'dummy' / 'lib' / 'libdevitocomp.so', library_sources(dummy),
        [ROOT / 'include', ROOT / dummy], ['m']
    )

    for i in source_files('providers'):
        copy_to(bundled / i, ROOT / i)
    for i in source_files(runtime):
        copy_to(bundled / 'runtime' / i.relative_to(runtime), ROOT / i)


def copy_to(target, source):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


class build_native(Command):
    """Compile the libraries and gather what else goes into `_bundled`."""

    description = 'build the runtime store and the dummy provider'
    user_options = [('build-lib=', None, 'directory to build into')]

    def initialize_options(self):
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self):
        self.set_undefined_options('build_py', ('build_lib', 'build_lib'))

    def run(self):
        parent = (ROOT if self.editable_mode else Path(self.build_lib)) / PACKAGE
        parent.mkdir(parents=True, exist_ok=True)
        bundled = parent / '_bundled'
        # Always from scratch, which takes seconds and so can never be stale, but in
        # place only when all of it has succeeded
        tmp = Path(tempfile.mkdtemp(prefix='_bundled.', dir=parent))
        try:
            fill(tmp / 'new')
            if bundled.exists():
                bundled.rename(tmp / 'old')
            (tmp / 'new').rename(bundled)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)

    def get_source_files(self):
        files = [*source_files('include'), *source_files('providers'),
                 *source_files(f'{PACKAGE}/runtime'), *source_files('tests')]
        return [str(i) for i in files]

    def get_outputs(self):
        bundled = Path(self.build_lib, PACKAGE, '_bundled')
        return [str(i) for i in bundled.rglob('*') if i.is_file()]

    def get_output_mapping(self):
        return {}


class build(_build):

    sub_commands = [*_build.sub_commands, ('build_native', None)]


class bdist_wheel(_bdist_wheel):

    def get_tag(self):
        # Nothing is compiled against Python itself
        return ('py3', 'none', super().get_tag()[2])


class NativeDistribution(Distribution):

    def has_ext_modules(self):
        # There are none, but this is what makes a distribution platform-specific
        return True


setup(
    distclass=NativeDistribution,
    cmdclass={'build': build, 'build_native': build_native, 'bdist_wheel': bdist_wheel},
)
