"""Compilers for generated CUDA and HIP: nvcc, hipcc, or g++ for an emulator."""

import hashlib
import os
import shutil
from pathlib import Path

from devito import configuration
from devito.arch import compiler_registry, get_nvidia_cc
from devito.arch.compiler import Compiler, CudaCompiler, HipCompiler, sniff_mpi_flags

from devitocomp_plugin import paths
from devitocomp_plugin.exceptions import InstallationError

__all__ = ['adapt_compiler', 'register_compilers']


def is_emulated():
    """True if kernels are to be run by tests' emulator, on the host."""
    return os.environ.get('DEVITOCOMP_EMULATE') == '1'


class DeviceCompiler(Compiler):

    """
    What both compilers have in common.

    With `DEVITOCOMP_EMULATE=1` in the environment, code is compiled for the host instead,
    with the emulator in the folder `DEVITOCOMP_EMULATOR`.
    """

    _default_cpp = True
    # What CUDA 13 and HIP 7 need at least
    _cxxstd = 'c++17'

    @property
    def std(self):
        return self._cxxstd

    def __lookup_cmds__(self):
        if is_emulated():
            self.CC = self.CXX = self.MPICC = self.MPICXX = os.environ.get('CXX', 'g++')
        else:
            super().__lookup_cmds__()

    def __init_finalize__(self, **kwargs):
        self.emulated = is_emulated()
        if self.emulated:
            self._init_emulator()
        else:
            super().__init_finalize__(**kwargs)
        self.src_ext = 'cu'
        self.add_include_dirs(str(paths.runtime_sources()))

    def _init_emulator(self):
        root = os.environ.get('DEVITOCOMP_EMULATOR')
        if not root or not Path(root, 'include', 'cuda_runtime.h').is_file():
            raise InstallationError(
                f'DEVITOCOMP_EMULATE=1 needs DEVITOCOMP_EMULATOR to be where '
                f'tests/emulator was built, not {root!r}'
            )
        self.linker_opt = '-Wl,'
        self.cflags = ['-O1', '-g', '-fPIC', '-std=c++17', '-fopenmp', '-Wall',
                       '-Wno-unused', '-DDEVITOCOMP_EMULATE', '-x', 'c++']
        if not configuration['safe-math']:
            self.cflags.append('-ffast-math')
        self.ldflags = ['-shared', '-pthread']
        self.add_include_dirs(str(Path(root, 'include')))
        self.add_library_dirs(str(Path(root, 'lib')), rpath=True)
        self.add_libraries('cudaemul')
        if configuration['mpi']:
            compile_flags, link_flags = sniff_mpi_flags('mpicxx')
            self.cflags += compile_flags
            self.ldflags += link_flags

    def jit_compile(self, soname, code):
        if not shutil.which(self.cc):
            raise InstallationError(f'the compiler `{self.cc}` is not installed, or not '
                                    f'in a folder of PATH')
        return super().jit_compile(soname, code)

    @property
    def key(self):
        """Identifies all that the binary depends on besides the generated source."""
        digest = hashlib.sha256(' '.join(
            [self.cc, *self.cflags, *self.ldflags, *map(str, self.include_dirs)]
        ).encode())
        for i in sorted(paths.runtime_sources().glob('devitocomp_*.h')):
            digest.update(i.read_bytes())
        return digest.hexdigest()[:16]


class NvccCompiler(DeviceCompiler, CudaCompiler):

    """
    NVIDIA's nvcc, which compiles also where there is no device.

    It does so for the architecture in `DEVITOCOMP_CUDA_ARCH`, such as sm_90; by default,
    for that of the device that there is, or else sm_80, which newer devices run as well.
    """

    def __init_finalize__(self, **kwargs):
        super().__init_finalize__(**kwargs)
        if self.emulated:
            return
        arch = os.environ.get('DEVITOCOMP_CUDA_ARCH')
        if arch or get_nvidia_cc() is None:
            self.cflags = [i for i in self.cflags if not i.startswith('-arch')]
            self.cflags.append(f'-arch={arch or "sm_80"}')
        # Unused functions of the runtime
        self.cflags.extend(['--diag-suppress', '177'])
        self.cflags.extend(['-Xcompiler', '-fopenmp'])
        # What of <cmath> takes arguments of mixed types is constexpr, and for the host
        self.cflags.append('--expt-relaxed-constexpr')


class HipccCompiler(DeviceCompiler, HipCompiler):

    """
    AMD's hipcc, or another clang if `DEVITOCOMP_HIPCC` says so.

    It compiles for the device that there is, or for the architecture in
    `DEVITOCOMP_HIP_ARCH`, such as gfx90a.
    """

    def __lookup_cmds__(self):
        super().__lookup_cmds__()
        if not is_emulated():
            cc = os.environ.get('DEVITOCOMP_HIPCC', 'hipcc')
            self.CC = self.CXX = self.MPICC = self.MPICXX = cc

    def __init_finalize__(self, **kwargs):
        super().__init_finalize__(**kwargs)
        if self.emulated:
            # As clang defines itself, for the header to know
            self.cflags.append('-D__HIP__')
            return
        self.cflags.extend(['-x', 'hip', '-Wno-unused-function'])
        if arch := os.environ.get('DEVITOCOMP_HIP_ARCH'):
            self.cflags.append(f'--offload-arch={arch}')


COMPILERS = {'cuda': NvccCompiler, 'nvcc': NvccCompiler, 'hip': HipccCompiler}


def register_compilers():
    """Let Devito's names of compilers stand for ours."""
    compiler_registry.update(COMPILERS)


def adapt_compiler(compiler, platform, language):
    """
    The compiler for an Operator, given the one that Devito has chosen.

    That may have been made before this package was imported, from `DEVITO_ARCH`.
    """
    if isinstance(compiler, DeviceCompiler):
        return compiler
    name = compiler.name if compiler.name in COMPILERS else language
    new = COMPILERS[language](name=name, platform=platform, language=language,
                              mpi=configuration['mpi'])
    if compiler.name == 'custom':
        # As Devito's custom compiler does
        new.cflags += os.environ.get('CFLAGS', '').split()
        new.ldflags += os.environ.get('LDFLAGS', '').split()
    return new
