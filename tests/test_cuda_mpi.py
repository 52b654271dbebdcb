"""
The backend for CUDA on several MPI ranks: what it generates, that nvcc and hipcc compile
it, and, emulated, what it computes, with messages that travel by way of the host and
between devices.
"""
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from acceptance import mpirun
from cuda_mutants import remove_calls
from test_cuda import (  # noqa: F401
    HEADER_TEST,
    STRICT,
    compile_library,
    compiler,
    emulator,
    run,
)

from devitocomp_plugin import paths

HERE = Path(__file__).resolve().parent

MODES = ['basic', 'diag', 'diag2', 'overlap', 'overlap2']

needs_mpi = pytest.mark.skipif(
    not (shutil.which('mpicxx') or os.environ.get('CI')),
    reason='MPI is not installed (Debian: openmpi-bin, libopenmpi-dev)'
)
pytestmark = [pytest.mark.parallel, needs_mpi]


@cache
def source(mode, code="sources('acoustic_2d')[0]"):
    """What is generated, by a process with MPI."""
    text = ('from cuda_programs import *; configuration["log-level"] = "ERROR"; '
            f'print({code})')
    done = subprocess.run(
        [sys.executable, '-c', text], capture_output=True, text=True, timeout=200,
        env={**os.environ, 'DEVITO_MPI': mode, 'PYTHONPATH': str(HERE),
             'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def function(name, text):
    """The body of a function in a source."""
    return re.search(rf'^[^;\n]* {name}\([^;\n]*\)\n{{\n(.*?)^}}', text, re.M | re.S)[1]


class TestGenerated:

    @pytest.mark.parametrize('mode', MODES)
    def test_messages(self, mode):
        """MPI gets what the runtime says; packing is for kernels."""
        text = source(mode)
        given = re.findall(r'MPI_I(send|recv)\((\w+)', text)
        assert {i for i, _ in given} == {'send', 'recv'}
        assert {i for _, i in given} == {'devitocomp_for_mpi'}
        for name in ('gather0', 'scatter0'):
            body = function(name, text)
            assert body.count('devitocomp_launch(') == 1 and 'for (' not in body
        assert re.search(r' gather0\(devitocomp_packing\(.*\n +devitocomp_packed\(', text)
        assert re.search(r' scatter0\(devitocomp_unpacking\(', text)

    @pytest.mark.parametrize('mode', ['diag2', 'overlap2'])
    def test_all_are_packed_before_one_is_sent(self, mode):
        # So that the host waits once
        loops = re.split(r'^  for ', function('haloupdate0', source(mode)), flags=re.M)
        assert [re.findall('MPI_I[a-z]*|gather0', i) for i in loops] == [
            [], ['MPI_Irecv'], ['gather0'], ['MPI_Isend']]

    def test_devices_of_ranks(self):
        assert 'devitocomp_begin_rank(deviceid,INT32_MAX,comm,DEVITOCOMP_ASK)' in \
            source('basic')
        # Where nothing is exchanged as well
        text = source('basic', "sources('ring', options={'gpu-direct': False})[0]")
        assert 'MPI_Isend' not in text
        assert 'devitocomp_begin_rank(deviceid,INT32_MAX,comm,DEVITOCOMP_STAGED)' in text


class TestCompiled:

    @pytest.fixture(scope='class')
    def flags(self):
        return run(['mpicxx', '--showme:compile']).split()

    def test_header(self, compiler, flags, tmp_path):  # noqa: F811
        header = tmp_path / 'header.cu'
        header.write_text('#define OMPI_SKIP_MPICXX 1\n#define DEVITOCOMP_MPI 1\n' +
                          HEADER_TEST.replace('devitocomp_begin(0, INT32_MAX)', (
                              'devitocomp_begin_rank(0, INT32_MAX, MPI_COMM_WORLD, '
                              'DEVITOCOMP_ASK)')) + MPI_TEST)
        compile_library(compiler, header, *flags, *STRICT[compiler])

    @pytest.mark.parametrize('mode', ['basic', 'overlap2'])
    def test_sources(self, compiler, flags, tmp_path, mode):  # noqa: F811
        path = tmp_path / 'source.cu'
        path.write_text(source(mode))
        compile_library(compiler, path, *flags, *(
            ['--diag-suppress', '177'] if compiler == 'nvcc' else []))


MPI_TEST = r"""
extern "C" void exchange(devitocomp_device *device, MPI_Comm comm)
{
    float *host = (float *)devitocomp_buffer(device, 16);
    devitocomp_packing(device, host, 4, MPI_FLOAT);
    devitocomp_packed(device, host);
    devitocomp_for_mpi(device, host, 4, MPI_FLOAT);
    devitocomp_unpacking(device, host);
    devitocomp_buffer_free(device, host);
    devitocomp_allreduce(device, host, MPI_FLOAT, MPI_SUM, comm);
}
"""


@pytest.fixture(scope='session')
def aware(emulator):  # noqa: F811
    """The environment for emulated runs, with an MPI that accesses emulated devices."""
    folder = emulator['DEVITOCOMP_EMULATOR']
    run(['make', '-s', '-C', HERE / 'emulator', f'BUILD={folder}', 'mpi'])
    return {**emulator, 'LD_PRELOAD': f'{folder}/lib/libcudaemulmpi.so'}


def slow(*args):
    return pytest.param(*args, marks=pytest.mark.slow)


class TestEmulated:

    """Results of the emulator, not of GPUs."""

    @pytest.mark.parametrize('ranks,mode,settings,names', [
        (2, 'basic', {}, ['acoustic_2d', 'scalar_reductions']),
        slow(2, 'basic', {'CUDAEMUL_ORDER': 'eager'}, ['elastic', 'minmax', 'tasking']),
        slow(2, 'diag', {'MODE': 'noop'}, ['sparse_sinc', 'staggered']),
        slow(4, 'diag2', {}, ['acoustic_2d', 'subdomains']),
        slow(2, 'overlap', {'LANGUAGE': 'hip'}, ['acoustic_double', 'conditions']),
        slow(2, 'overlap2', {'CUDAEMUL_ORDER': 'random'}, ['elastic', 'temporaries']),
    ], ids=lambda i: i if isinstance(i, str) else None)
    def test_by_way_of_the_host(self, aware, ranks, mode, settings, names):
        out = mpirun(ranks, 'cuda_mpi.py', *names, mode=mode, **aware, **settings,
                     GPU_DIRECT='0')
        assert f'{len(names)} programs the same on {ranks} ranks' in out
        assert ' 0 messages between devices' in out

    @pytest.mark.parametrize('ranks,mode,settings,name', [
        slow(2, 'basic', {}, 'elastic'),
        slow(4, 'diag2', {'CUDAEMUL_ORDER': 'random'}, 'acoustic_2d'),
        (2, 'overlap2', {}, 'elastic')
    ], ids=lambda i: i if isinstance(i, str) else None)
    def test_between_devices(self, aware, ranks, mode, settings, name):
        # As this MPI says that it can
        out = mpirun(ranks, 'cuda_mpi.py', name, mode=mode, **aware, **settings)
        assert f'1 programs the same on {ranks} ranks' in out
        assert int(re.search(r'(\d+) messages between devices', out)[1]) > 20

    @pytest.mark.parametrize('count,devices', [slow(2, [0, 1, 0]),
                                               slow(4, [0, 1, 2])])
    def test_devices_of_ranks(self, aware, count, devices):
        out = mpirun(3, 'cuda_mpi.py', 'ring', CUDAEMUL_DEVICES=str(count), **aware)
        assert f'on devices {devices}' in out

    @pytest.mark.parametrize('where,direct', [('kernel:5', '0'),
                                              slow('cudaMalloc:3', '1')])
    def test_failure_on_one_rank(self, aware, where, direct):
        """The others neither wait for ever nor take it for a success."""
        out = mpirun(2, 'cuda_mpi.py', '--fail', where, GPU_DIRECT=direct, **aware)
        assert re.search('rank 0: .*failed on the device: see the exception of another',
                         out)
        assert re.search(r'rank 1: .*failed on the device: .*\(emulated\)', out)

    @pytest.mark.slow
    def test_every_call(self, aware, tmp_path):
        """No call of the runtime's header for MPI can be left out."""
        folder = Path(shutil.copytree(paths.runtime_sources(), tmp_path / 'runtime'))
        header = folder / 'devitocomp_mpi.h'
        text = header.read_text()
        survivors = []
        for name, mutant in remove_calls('MPI', text):
            header.write_text(text[:mutant.begin] + mutant.text + text[mutant.end:])
            if not any(self.finds_fault(aware, folder, direct) for direct in '01'):
                survivors.append(name)
        assert not survivors

    @staticmethod
    def finds_fault(environment, runtime, direct):
        try:
            mpirun(2, 'cuda_mpi.py', 'acoustic_2d', 'minmax', **environment,
                   GPU_DIRECT=direct, RUNTIME=str(runtime), CUDAEMUL_ORDER='lazy')
        except AssertionError as e:
            # And no other one
            assert re.search(' on rank |failed on the device', str(e)), e
            return True
        return False
