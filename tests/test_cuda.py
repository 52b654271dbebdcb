"""
The backend for CUDA: what it generates, that nvcc compiles it, and, emulated, what it
computes.

The emulator of tests/emulator runs generated code on the host, each test in a process of
its own; it says nothing about speed. `benchmarks/gpu_check.sh` is for machines with GPUs.
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from cuda_programs import DEVICE, HIP, PROGRAMS, run_code, sources
from devito import Eq, Function, Grid, Inc, Operator, TimeFunction
from devito.exceptions import CompilationError, ExecutionError, InvalidOperator
from devito.ir import Call, FindNodes, Iteration, retrieve_iteration_tree
from devito.ir.iet.efunc import DeviceFunction

from devitocomp_plugin import paths
from devitocomp_plugin.cuda.compiler import NvccCompiler
from devitocomp_plugin.exceptions import InstallationError

HERE = Path(__file__).resolve().parent
EMULATED = os.environ.get('DEVITOCOMP_EMULATE') == '1'

# Besides `advanced`, in which all programs run
MODES = ['noop', 'advanced-fsg', ('fuse', 'cire-sops', 'cse', 'cuda')]


def build(*args, **kwargs):
    return Operator(*args, **kwargs, **DEVICE)


def kernels(op):
    return [i.root for i in op._func_table.values() if isinstance(i.root, DeviceFunction)]


def launches(node):
    return [i for i in FindNodes(Call).visit(node)
            if i.name.startswith('devitocomp_launch')]


def time_loop(op):
    loop, = [i for i in FindNodes(Iteration).visit(op.body) if i.dim.is_Time]
    return loop


@pytest.fixture
def u():
    grid = Grid((8, 9, 10))
    return TimeFunction(name='u', grid=grid, space_order=4)


class TestGenerated:

    @pytest.mark.parametrize('mode', ['advanced', *MODES])
    def test_modes(self, u, mode):
        op = build(Eq(u.forward, u.laplace), opt=mode)
        kernel, = kernels(op)
        assert len(launches(op.body)) == 1
        assert '#pragma' not in str(op)
        # The innermost dimension is contiguous
        for i, axis in zip(retrieve_iteration_tree(kernel)[0], 'zyx', strict=True):
            assert f'devitocomp_first_{axis}' in str(i.limits[0])
            assert f'devitocomp_stride_{axis}' in str(i.limits[2])

    def test_kernels_get_plain_pointers(self):
        for op in sources('acoustic_3d'):
            for i in kernels(op):
                assert not any('struct' in str(j) or '_vec' in str(j) for j in [i.ccode])

    def test_nothing_moves_in_the_time_loop(self):
        op, = sources('acoustic_3d')
        loop = time_loop(op)
        assert len(launches(loop)) == 3
        assert {i.name for i in FindNodes(Call).visit(loop)} == {
            'devitocomp_launch', *(i.name for i in kernels(op))}

    def test_traffic(self, monkeypatch):
        monkeypatch.syspath_prepend(HERE.parent / 'benchmarks')
        from cuda_traffic import acoustic, count
        found = count(acoustic(8, (20, 20, 20), **DEVICE))
        assert found['launches'] == 3 and found['copies in the loop'] == 0
        stencil = found['kernels'][0]
        assert stencil['minimum'] == 16 and stencil['accesses'] == 4*28
        assert stencil['blocks'] < 2.2*stencil['minimum']

    def test_what_is_written_comes_back(self):
        op, = sources('acoustic_3d')
        calls = FindNodes(Call).visit(op.body)

        def moved(by):
            return {str(i.arguments[1])[:-len('_vec')] for i in calls if i.name == by}

        everything = {'u', 'm', 'src', 'src_coords', 'rec', 'rec_coords'}
        assert moved('devitocomp_map') == moved('devitocomp_unmap') == everything
        assert moved('devitocomp_to_host') == {'u', 'rec'}

    def test_copies_in_parts(self):
        op = sources('tasking')[0]
        copy, = [i for i in op._func_table.values() if 'copy_to_host' in i.root.name
                 and not i.root.name.startswith(('init', 'activate', 'shutdown'))]
        text = str(copy.root)
        assert text.index('devitocomp_to_host_async') < text.index('devitocomp_wait')
        assert text.index('devitocomp_wait') < text.index('lock0[0] = 1')

    def test_block_shapes(self, u):
        eqn = Eq(u.forward, u + 1)
        assert '{32, 4, 4}' in str(build(eqn))
        assert '{64, 8, 1}' in str(build(eqn, opt=('advanced', {'par-tile': (8, 64)})))
        op = build(eqn, opt=('advanced', {'par-tile': (2, 4, 16)}))
        assert '{16, 4, 2}' in str(op) and '__launch_bounds__(128)' in str(op)

    def test_options_of_the_environment(self):
        code = ('from devito import *; import devitocomp_plugin\n'
                'f = Function(name="f", grid=Grid((4, 4)))\n'
                'print(Operator(Eq(f, f + 1)))')
        env = {**os.environ, 'DEVITO_PLATFORM': 'nvidiaX', 'DEVITO_LANGUAGE': 'cuda'}
        for arch in ('cuda', 'custom'):
            if not shutil.which('nvcc'):
                pytest.skip('Devito itself asks nvcc for its version')
            done = subprocess.run([sys.executable, '-c', code], capture_output=True,
                                  text=True, env={**env, 'DEVITO_ARCH': arch})
            assert 'devitocomp_launch(' in done.stdout, done.stderr

    def test_hip_is_the_same(self, u):
        found = [re.sub('DEVICE_KEY.*', '', str(Operator(Eq(u.forward, u + 1), **i)))
                 for i in (DEVICE, HIP)]
        assert found[0] == found[1]

    def test_others_are_untouched(self, u):
        op = Operator(Eq(u.forward, u + 1), language='C')
        assert 'devitocomp' not in str(op)


class TestRefused:

    def refuses(self, error, message, eqns, **options):
        with pytest.raises(error, match=message):
            build(eqns, opt=('advanced', options))

    @pytest.mark.parametrize('dtype', [np.float16, np.complex64])
    def test_types(self, u, dtype):
        f = Function(name='f', grid=u.grid, dtype=dtype)
        self.refuses(InvalidOperator, f'`f` is of a type.*{np.dtype(dtype)}', Eq(f, 1))

    def test_reductions(self, u):
        f = Function(name='f', grid=u.grid, dtype=np.int16)
        n = Function(name='n', dimensions=u.grid.dimensions[:1], shape=(8,),
                     dtype=np.int16)
        self.refuses(InvalidOperator, 'reduction.*int16', Inc(n[0], f))

    @pytest.mark.parametrize('tile', [(64, 64), (128, 2, 2), (0, 4), (1, 2, 3, 4)])
    def test_block_shapes(self, u, tile):
        self.refuses(InvalidOperator, 'par-tile', Eq(u.forward, u), **{'par-tile': tile})

    def test_private_temporaries(self):
        with pytest.raises(InvalidOperator, match='shared by the threads along.*block'):
            sources('temporaries', options={'blocklevels': 1, 'cire-block-temps': True})

    def test_no_compiler(self, u, monkeypatch):
        op = build(Eq(u.forward, u + 2))
        monkeypatch.setenv('PATH', '/nowhere')
        with pytest.raises(InstallationError, match='compiler `nvcc` is not installed'):
            op.apply(time_M=1)

    def test_mpi(self, u):
        eqn = Eq(u.forward, u)
        self.refuses(InvalidOperator, "MPI mode 'full' is not supp.*'overlap2'", eqn,
                     mpi='full')
        self.refuses(InvalidOperator, 'gpu-direct=maybe', eqn, **{'gpu-direct': 'maybe'})

    def test_host_code_that_reads_the_device(self, u):
        usave = TimeFunction(name='usave', grid=u.grid, save=4)
        self.refuses(CompilationError, "`u` is not up to date.*`usave`.*'tasking'",
                     [Eq(u.forward, u + 1), Eq(usave, u)], **{'gpu-fit': ()})


def nvcc_flags():
    flags = [i for i in NvccCompiler().cflags if not i.startswith(('-arch', '-g', '-O'))]
    return [*flags, '-Werror', 'all-warnings', '-gencode', 'arch=compute_80,code=sm_80',
            '-gencode', 'arch=compute_90,code=sm_90']


def hipcc_flags():
    return ['-x', 'hip', '-std=c++17', '-O1', '-fPIC', '-Werror', '-Wno-unused-function',
            '--offload-arch=gfx90a']


FLAGS = {'nvcc': nvcc_flags, 'hipcc': hipcc_flags}
STRICT = {'nvcc': ['-Xcompiler', '-Wall,-Wextra,-Werror'], 'hipcc': ['-Wall', '-Wextra']}
TARGETS = {'nvcc': DEVICE, 'hipcc': HIP}


@pytest.fixture(params=list(FLAGS))
def compiler(request, monkeypatch):
    """The name of a real compiler, which is there."""
    if EMULATED:
        pytest.skip('a real compiler is not emulated')
    if not shutil.which(request.param):
        missing = f'{request.param} is not installed (Debian: nvidia-cuda-toolkit, hipcc)'
        pytest.fail(missing) if os.environ.get('CI') else pytest.skip(missing)
    # hipcc would hand over to nvcc where there is one
    monkeypatch.setenv('HIP_PLATFORM', 'amd')
    return request.param


def compile_library(compiler, source, *options):
    library = source.with_suffix('.so')
    run([compiler, *FLAGS[compiler](), *options, '-shared',
         f'-I{paths.runtime_sources()}', source, '-o', library])
    return library


def run(command, **kwargs):
    done = subprocess.run([str(i) for i in command], capture_output=True, text=True,
                          **kwargs)
    assert done.returncode == 0, f'{command}\n{done.stdout}\n{done.stderr}'[:8000]
    return done.stdout


@pytest.fixture(scope='module')
def all_sources():
    """All programs in one, as starting a compiler takes longer than compiling them."""
    includes, parts = set(), []
    for name, mode in [*((i, 'advanced') for i in PROGRAMS),
                       *(('acoustic_2d', i) for i in MODES)]:
        for op in sources(name, mode):
            text = str(op)
            includes.update(re.findall(r'^#include .*$', text, re.M))
            macros = re.findall(r'^#define (\w+)', text, re.M)
            text = re.sub(r'^#include .*$', '', text, flags=re.M)
            text = re.sub(r'^#define _POSIX.*$', '', text, flags=re.M)
            parts += [f'namespace {op.name}_source {{', text, '}',
                      *(f'#undef {i}' for i in macros if i != '_POSIX_C_SOURCE')]
    assert len(parts) >= 4*12
    return '\n'.join(['#pragma nv_diag_suppress 177', *sorted(includes), *parts])


HEADER_TEST = r"""
#include "devitocomp_device.h"

struct vec { void *data; unsigned long nbytes; void *dmap; };

template <typename T> __global__ void kernel(T *p, T v)
{
    devitocomp_atomic_add(p, v + devitocomp_first_x() + devitocomp_stride_x());
    devitocomp_atomic_min(p, v + devitocomp_first_y() + devitocomp_stride_y());
    devitocomp_atomic_max(p, v + devitocomp_first_z() + devitocomp_stride_z());
}

template <typename T> static void use(devitocomp_device *device, vec *v)
{
    T value = 0;
    T *p = (T *)devitocomp_array(device, 1, sizeof(T));
    devitocomp_put(device, p, value);
    devitocomp_launch(device, {1, 2, 3}, {4, 4, 4}, kernel<T>, p, value);
    devitocomp_launch_few(device, {1, 2, 3}, {4, 4, 4}, kernel<T>, p, value);
    devitocomp_get(device, p, value);
    devitocomp_free(device, p);
    devitocomp_map(device, v, sizeof(T), DEVITOCOMP_COPY);
    devitocomp_to_host(device, v, 0, (size_t)devitocomp_value(device, p));
    devitocomp_to_device(device, v, 0, 4);
    devitocomp_unmap(device, v, 1);
}

extern "C" int Kernel(vec *v)
{
    double seconds = 0;
    devitocomp_device *device = devitocomp_begin(0, INT32_MAX);
    devitocomp_timer timer(device);
    devitocomp_host_alloc(device, &v->data, 64, 64);
    use<float>(device, v);
    use<double>(device, v);
    use<int>(device, v);
    use<long>(device, v);
    devitocomp_host_free(v->data);
    timer.stop(&seconds);
    return devitocomp_end(device, 0);
}
"""


class TestCompiled:

    """By nvcc and hipcc, code for the host and for devices, which need not be there."""

    def test_header(self, compiler, tmp_path):
        source = tmp_path / 'header.cu'
        source.write_text(HEADER_TEST)
        compile_library(compiler, source, *STRICT[compiler])

    def test_programs(self, compiler, all_sources, tmp_path):
        source = tmp_path / 'programs.cu'
        source.write_text(all_sources)
        library = compile_library(compiler, source)
        assert {'nvcc': b'sm_90', 'hipcc': b'gfx90a'}[compiler] in library.read_bytes()
        found = ctypes.CDLL(str(library))
        assert all(hasattr(found, f'{i}_advanced0') for i in PROGRAMS)
        assert hasattr(found, 'acoustic_2d_noop0')

    def test_as_operators_do(self, u, compiler):
        """With the flags of the compiler class; where there is no device, it says so."""
        op = Operator(Eq(u.forward, u + 1), **TARGETS[compiler])
        if compiler == 'nvcc' and shutil.which('nvidia-smi'):
            op.apply(time_M=1)
        else:
            with pytest.raises(ExecutionError,
                               match='on the device: looking for a device: .*(cuda|hip)'):
                op.apply(time_M=1)


@pytest.fixture(scope='session')
def emulator(tmp_path_factory):
    """The environment for emulated runs."""
    folder = tmp_path_factory.mktemp('emulator')
    run(['make', '-C', HERE / 'emulator', f'BUILD={folder}'])
    # A cache of its own, as sources are compiled for the host
    (folder / 'tmp').mkdir()
    return {'DEVITOCOMP_EMULATE': '1', 'DEVITOCOMP_EMULATOR': str(folder),
            'TMPDIR': str(folder / 'tmp')}


def emulate(emulator, code, **settings):
    """Run code in a process with the emulator, which ends processes that are at fault."""
    # Forks of a process that has imported everything, which takes longest
    context = get_context('forkserver')
    context.set_forkserver_preload(['cuda_programs'])
    with tempfile.TemporaryFile('w+') as output:
        fd = output.fileno()
        process = context.Process(target=run_code, args=(
            code, {**emulator, **settings}, f'/proc/{os.getpid()}/fd/{fd}'))
        process.start()
        process.join(300)
        output.seek(0)
        text = output.read()
    assert process.exitcode == 0, text[-6000:]


def emulate_program(emulator, name, mode='advanced', **settings):
    emulate(emulator, f'compare({name!r}, {mode!r})', **settings)


class TestEmulated:

    """Results of the emulator, not of a GPU."""

    @pytest.mark.parametrize('name', sorted(PROGRAMS))
    def test_same_as_cpu(self, emulator, name):
        emulate_program(emulator, name)

    @pytest.mark.parametrize('name', ['acoustic_3d', 'points_in_time', 'weights',
                                      'scalar_reductions', 'unstable'])
    def test_noop(self, emulator, name):
        emulate_program(emulator, name, 'noop')

    @pytest.mark.parametrize('mode', MODES[1:])
    def test_modes(self, emulator, mode):
        emulate_program(emulator, 'acoustic_2d', mode)

    @pytest.mark.parametrize('name', ['acoustic_2d', 'scalar_reductions', 'tasking'])
    def test_hip(self, emulator, name):
        emulate(emulator, f"compare({name!r}, 'advanced', HIP)")

    @pytest.mark.parametrize('settings', [
        {'CUDAEMUL_ORDER': 'eager', 'CUDAEMUL_THREADS': 'reverse'},
        {'CUDAEMUL_ORDER': 'random', 'CUDAEMUL_THREADS': 'shuffle'},
        {'CUDAEMUL_ORDER': 'random', 'CUDAEMUL_SEED': '7'},
        {'CUDAEMUL_PAGEABLE': 'direct'}
    ], ids=['eager', 'random', 'seed', 'pageable'])
    @pytest.mark.parametrize('name', ['acoustic_2d', 'scalar_reductions', 'tasking'])
    def test_order(self, emulator, name, settings):
        emulate_program(emulator, name, **settings)

    @pytest.mark.parametrize('fail', ['cudaMalloc:1', 'cudaLaunchKernelEx:3', 'kernel:2',
                                      'cudaMemcpyAsync:1', 'cudaStreamCreateWithFlags:1'])
    def test_errors_become_exceptions(self, emulator, fail):
        emulate(emulator, """
from devito.exceptions import ExecutionError
grid = Grid((9, 10))
u = fill(TimeFunction(name='u', grid=grid))
op = DevitoOperator(Eq(u.forward, u + 1), **DEVICE)
try:
    op.apply(time_M=5)
except ExecutionError as e:
    assert 'failed on the device' in str(e) and 'cuda' in str(e), e
else:
    raise AssertionError('no exception')
""", CUDAEMUL_FAIL=fail)

    @pytest.mark.parametrize('fail', ['cudaMemcpyAsync:6', 'kernel:4',
                                      'cudaEventRecord:5'])
    def test_errors_in_tasks(self, emulator, fail):
        # The threads that copy are told, and the host does not wait for ever
        emulate(emulator, """
from devito.exceptions import ExecutionError
try:
    list(tasking(Operators(DEVICE)))
except ExecutionError as e:
    assert 'failed on the device' in str(e), e
else:
    raise AssertionError('no exception')
""", CUDAEMUL_FAIL=fail)

    def test_compiler_need_not_be_named(self, emulator):
        emulate(emulator, """
target = {'platform': 'nvidiaX', 'language': 'cuda'}
compare('acoustic_1d', 'advanced', target)
""")

    def test_too_large_for_int32(self, emulator):
        emulate(emulator, """
from devito.exceptions import ExecutionError
class Pretender(np.ndarray):
    nbytes = 2**34
f = Function(name='f', grid=Grid((9, 10)))
op = DevitoOperator(Eq(f, 1), **DEVICE)
try:
    op.apply(f=f.data_with_halo.view(Pretender))
except ExecutionError as e:
    assert 'index-mode' in str(e), e
else:
    raise AssertionError('no exception')
""")

    @pytest.mark.slow
    def test_large(self, emulator):
        # More than 2^31 elements, of which a few in the end are written
        emulate(emulator, """
grid = Grid((2**16 + 64, 2**15))
f = Function(name='f', grid=grid, space_order=0, dtype=np.int8)
op = DevitoOperator(Eq(f, 1), opt=('advanced', {'index-mode': 'int64'}), **DEVICE)
op.apply(x_m=2**16 + 61, x_M=2**16 + 63)
assert not np.any(f.data[:100]) and not np.any(f.data[-100:-3])
assert np.all(f.data[-3:] == 1)
""")

    def test_times_are_those_of_the_device(self, emulator):
        emulate(emulator, """
u = fill(TimeFunction(name='u', grid=Grid((50, 60))))
op = DevitoOperator(Eq(u.forward, u + 1), **DEVICE)
summary = op.apply(time_M=300)
section, = summary.values()
assert section.time > 1e-3, summary
""")

    def test_builtins(self, emulator):
        emulate(emulator, """
from devito import norm, mmin, mmax, sumall, inner, gaussian_smooth, assign
for i in DEVICE:
    configuration[i] = DEVICE[i]
f = Function(name='f', grid=Grid((21, 22)))
f.data[:] = np.random.default_rng(1).random(f.shape)
assert np.isclose(norm(f), np.linalg.norm(f.data))
assert np.isclose(inner(f, f), np.sum(f.data**2))
assert np.isclose(sumall(f), np.sum(f.data))
assert mmin(f) == f.data.min() and mmax(f) == f.data.max()
assert np.isclose(gaussian_smooth(f.data, 2).mean(), f.data.mean(), rtol=0.05)
assign(f, 3)
assert np.all(f.data == 3)
""")

    def test_pickling(self, emulator):
        emulate(emulator, """
import pickle
u = TimeFunction(name='u', grid=Grid((9, 10)))
op = DevitoOperator(Eq(u.forward, u + 1), **DEVICE)
op.apply(time_M=1)
pickle.loads(pickle.dumps(op)).apply(time_M=3, u=u)
assert u.data.max() == 6, u.data.max()
""")

    def test_needs_an_emulator(self, emulator):
        with pytest.raises(AssertionError, match='DEVITOCOMP_EMULATOR to be where'):
            emulate_program(emulator, 'acoustic_1d', DEVITOCOMP_EMULATOR='/nowhere')
