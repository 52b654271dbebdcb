"""
Compressed functions on devices: what is generated, that nvcc compiles it, and, emulated,
what it computes.

As in test_cuda.py, each emulated test runs in a process of its own. The acceptance suites
themselves run on devices, or emulated, if Devito's configuration says so:

    DEVITO_PLATFORM=nvidiaX DEVITO_LANGUAGE=cuda pytest tests/test_compressed_funcs.py
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from acceptance import mpirun
from devito import Eq, Function, Grid, Operator, TimeFunction
from devito.exceptions import InvalidOperator
from devito.ir import Call, FindNodes, Iteration
from test_cuda import (  # noqa: F401
    DEVICE,
    STRICT,
    TARGETS,
    compile_library,
    compiler,
    emulate,
    emulator,
    kernels,
    run,
)

from devitocomp_plugin import DevitoComp, paths
from devitocomp_plugin import TimeFunction as Compressed
from devitocomp_plugin.linking import link
from devitocomp_plugin.provider import current_provider

HERE = Path(__file__).resolve().parent
CONFIGURATION = {'DEVITO_PLATFORM': 'nvidiaX', 'DEVITO_LANGUAGE': 'cuda'}
LAYERS = ('host-device', 'device', 'disk-device', 'disk-host-device')
SCENE = ('from cuda_snapshots import *\n'
         'from programs import Environment\nimport devitocomp_plugin as dcp\n')


@pytest.fixture(scope='session')
def device_providers(emulator, tmp_path_factory):  # noqa: F811
    """The roots of providers for the emulator: dummy, device_cuda and device_hip."""
    folder = tmp_path_factory.mktemp('device_providers')
    where = emulator['DEVITOCOMP_EMULATOR']
    run(['make', '-C', HERE / 'providers', 'device_cuda', 'device_hip', f'BUILD={folder}',
         f'EMULATOR={where}'])
    run(['make', '-C', HERE.parent / 'providers' / 'dummy', 'cuda',
         f'BUILD={folder / "dummy"}', f'NVCC={where}/bin/nvcc'])
    return {'dummy': folder / 'dummy' / 'cuda', 'cuda': folder / 'device_cuda',
            'hip': folder / 'device_hip'}


@pytest.fixture
def emulate_with(emulator, device_providers):  # noqa: F811
    """Run code of `cuda_snapshots` with a provider."""
    def emulate_code(code, provider='dummy', **settings):
        emulate(emulator, SCENE + code, DEVITOCOMP_ROOT=str(device_providers[provider]),
                OMP_NUM_THREADS='1', **settings)
    return emulate_code


def make(layers=None, target=DEVICE, **kwargs):
    grid = Grid((8, 9, 10))
    u = TimeFunction(name='u', grid=grid, space_order=4)
    usave = Compressed(name='usave', grid=grid, save=9, time_order=2,
                       compression=DevitoComp(error=0.5), layers=layers)
    g = Function(name='g', grid=grid)
    opt = ('advanced', kwargs)
    return (Operator([Eq(u.forward, u.laplace), Eq(usave, u)], opt=opt, **target),
            Operator(Eq(g, g + usave.dt2), opt=opt, name='Gradient', **target))


def calls_in_time_loop(op):
    loop = next(i for i in FindNodes(Iteration).visit(op.body) if i.dim.is_Time)
    return {i.name for i in FindNodes(Call).visit(loop)}


class TestGenerated:

    def test_provider_is_called_inline(self):
        forward, gradient = (str(i) for i in make())
        for code in (forward, gradient):
            assert ('devitocomp_plan_create(DEVITOCOMP_ABI_VERSION,&tensor,&exec,"0.5",'
                    '&plan)') in code
            assert code.count('devitocomp_plan_destroy(') == 1
            assert code.count('devitocomp_decompress(') == 1
            assert '__global__' in code
        assert forward.count('devitocomp_compress(') == 1
        assert 'devitocomp_compress(' not in gradient

    def test_nothing_waits_in_the_time_loop(self):
        forward, gradient = make()
        for op in (forward, gradient):
            others = calls_in_time_loop(op) - {i.name for i in kernels(op)}
            assert others <= {'devitocomp_launch', 'write_snapshot0', 'write_snapshot1',
                              'read_snapshot0'}
        assert {'write_snapshot0', 'devitocomp_launch'} <= calls_in_time_loop(forward)
        assert str(gradient).count('  read_snapshot0(') == 3

    def test_stages(self):
        # Snapshots read, snapshots written, degree
        assert ',exec,1,1,2)' in str(make()[0]) and ',exec,3,0,2)' in str(make()[1])
        assert ',exec,3,0,5)' in str(make(**{'buf-async-degree': 5})[1])

    def test_snapshots_never_cross_the_bus(self):
        forward, gradient = (str(i) for i in make())
        assert 'devitocomp_map(device,usaveb0_vec,sizeof(float),DEVITOCOMP_ZERO)' in \
            gradient
        for code in (forward, gradient):
            assert 'devitocomp_to_host(device,usave' not in code
            assert 'usave_vec->dmap' not in code

    def test_estimate(self):
        raw = 8*9*10*4
        forward, gradient = (i.estimate_memory() for i in make())
        small, _ = (i.estimate_memory() for i in make(**{'buf-async-degree': 1}))
        # A stage to save from and one to load ahead of time
        assert forward['device'] - small['device'] == 2*raw
        # Four stages, three buffers; `g` is on both sides
        g = gradient['host'] - 9*(raw + 8)
        assert g in range(1, 3*raw)


class TestRefused:

    @pytest.mark.parametrize('layers', LAYERS)
    def test_provider_for_the_host_only(self, layers):
        with pytest.raises(InvalidOperator,
                           match=f"layers='{layers}', but provider dummy .*does not "
                                 "compress on devices by cuda; choose layers='host'"):
            make(layers)

    @pytest.mark.parametrize('layers', LAYERS)
    @pytest.mark.parametrize('language', ['C', 'openmp', 'CXX'])
    def test_operators_on_the_host(self, layers, language):
        usave = Compressed(name='usave', grid=Grid((8, 9, 10)), save=9, layers=layers,
                           compression='devitocomp')
        with pytest.raises(InvalidOperator, match=f"layers='{layers}'.*'{language}' do "
                                                  "not.*'disk-host'"):
            Operator(Eq(usave, 1), language=language)

    def test_source_that_is_not_on_the_device(self):
        grid = Grid((8, 9, 10))
        dense = TimeFunction(name='dense', grid=grid, save=9)
        usave = Compressed(name='usave', grid=grid, save=9, compression='devitocomp')
        with pytest.raises(Exception, match="`dense`.*'gpu-fit'"):
            Operator(Eq(usave, dense), opt=('advanced', {'gpu-fit': ()}), **DEVICE)


class TestCompiled:

    """By nvcc and hipcc, linked with the provider; warnings are errors."""

    def test_operators(self, compiler, tmp_path):  # noqa: F811
        record = link(current_provider())
        for op in make(target=TARGETS[compiler]):
            source = tmp_path / f'{op.name}.cu'
            source.write_text(f'#pragma nv_diag_suppress 177\n{op}')
            library = compile_library(compiler, source, *record.compile_flags,
                                      *(f'-L{i}' for i in record.library_dirs),
                                      *(f'-l{i}' for i in record.libraries))
            symbols = run(['nm', '-D', library])
            assert ' U devitocomp_plan_create' in symbols
            assert ' U devitocomp_store_acquire' in symbols

    def test_memory(self, compiler, tmp_path):  # noqa: F811
        source = tmp_path / 'memory.cu'
        source.write_text((paths.runtime_sources() / 'device_memory.cu').read_text())
        compile_library(compiler, source, f'-I{paths.include_dir()}', *STRICT[compiler])


def slow(*args):
    return pytest.param(*args, marks=pytest.mark.slow)


class TestEmulated:

    """Results of the emulator, not of a GPU."""

    @pytest.mark.parametrize('layers,provider', [
        *((i, 'dummy') for i in (None, *LAYERS, 'host')), slow('disk', 'dummy'),
        ('device', 'cuda'), *(slow(i, 'cuda') for i in (None, *LAYERS[2:])),
        ('host-device', 'cuda')
    ])
    def test_layers(self, layers, provider, emulate_with):
        emulate_with(f'check_history({layers!r})\ncheck_rewriting({layers!r})', provider)

    @pytest.mark.parametrize('layers', ['device', 'disk-host-device', 'host'])
    @pytest.mark.parametrize('settings', [
        {'CUDAEMUL_ORDER': 'eager', 'CUDAEMUL_THREADS': 'reverse'},
        {'CUDAEMUL_ORDER': 'random', 'CUDAEMUL_THREADS': 'shuffle'},
        slow({'CUDAEMUL_ORDER': 'random', 'CUDAEMUL_SEED': '5'}),
    ], ids=['eager', 'random', 'seed'])
    def test_order(self, layers, settings, emulate_with):
        emulate_with(f'check_history({layers!r})', **settings)

    @pytest.mark.parametrize('degree', [1, 4])
    def test_degree(self, degree, emulate_with):
        emulate_with(f"same('gradient', 'device', **{{'buf-async-degree': {degree}}})\n"
                     f"same('read_and_write', None, **{{'buf-async-degree': {degree}}})")

    @pytest.mark.parametrize('name,layers,mode', [
        ('propagate_saved_with_source', 'host-device', 'advanced'),
        ('inject_into_saved', 'device', 'noop'),
        ('rewrite_partly', 'disk-device', 'advanced'),
        slow('shift_history', 'device', 'advanced-fsg'),
        slow('save_condition_on_data', 'device', 'advanced'),
        ('condition_on_compressed', 'device', 'advanced'),
        ('interpolate_subsampled', 'disk-host-device', ('fuse', 'cuda')),
        slow('vector', 'device', 'advanced'),
    ])
    def test_programs(self, name, layers, mode, emulate_with):
        emulate_with(f'same({name!r}, {layers!r}, mode={mode!r})')

    def test_hip(self, emulate_with):
        emulate_with("from cuda_programs import HIP\n"
                     "check_history('device', HIP)\ncheck_history('host-device', HIP)",
                     'hip')

    @pytest.mark.parametrize('provider,layers,extra', [
        ('dummy', 'host-device', 0), ('cuda', 'host-device', 4), ('dummy', 'device', 0),
        slow('cuda', 'device', 4), slow('dummy', 'disk-device', 0),
    ])
    def test_what_crosses_the_bus(self, provider, layers, extra, emulate_with):
        """Payloads, and what the provider itself asks for; raw snapshots never."""
        emulate_with(f"""
moved = []
for n in (9, 13):
    c = Counters()
    usave = save({layers!r}, n=n)
    saved = c.d2h_bytes
    stored = sum(usave._store.info(i).payload_bytes for i in range(n))
    launched = c.launches
    c = Counters()
    image(usave)
    moved.append((stored, saved, c.h2d_bytes, launched))
    assert not c.live_allocations and not c.live_streams and not c.live_events
(a, b, c, d), (e, f, g, h) = moved
assert e > a
on_device = {layers!r} == 'device'
assert f - b == (0 if on_device else e - a) + 4*{extra}, moved
assert g - c == (0 if on_device else e - a), moved
# The stencil, the packing, and what the provider launches
assert h - d == 4*(2 + ({extra} > 0)), moved
""", provider)

    def test_waiting(self, emulate_with):
        """One synchronization for each snapshot, in the thread of the pipeline."""
        emulate_with("""
counts = []
for n in (9, 29):
    usave = save('device', n=n)
    c = Counters()
    save('device', n=n)
    counts.append(c.synchronizations)
sections = 2 # whose times are taken in the end
assert counts[1] - counts[0] <= 20*(1 + sections), counts
""")

    def test_no_memory(self, emulate_with):
        """What is stored stays, and the message says what to do."""
        emulate_with("""
from devitocomp_plugin.exceptions import CompressionError
from devito import *
env = Environment(dcp.DevitoComp(), layers='device', shape=(256, 256, 17), **DEVICE)
u = TimeFunction(name='u', grid=env.grid)
usave = env.save('usave', 90)
op = env.operator([Eq(u.forward, u + 1), Eq(usave, u)])
try:
    op.apply(time_M=88)
except CompressionError as e:
    assert "layers='host-device'" in str(e) and 'OUT_OF_MEMORY' in str(e), e
    failed = e.snapshot
    assert f'snapshot {failed}' in str(e), e
else:
    raise AssertionError('no exception')
assert usave.compression_report().snapshots == failed > 2
for i in range(failed):
    assert np.all(usave.data[i] == i)
""", CUDAEMUL_MEMORY=str(300 << 20))

    @pytest.mark.parametrize('fail', ['cudaMemcpyAsync:5', 'kernel:9', 'cudaMalloc:4',
                                      slow('cudaStreamCreateWithFlags:2'),
                                      slow('cudaEventRecord:9')])
    def test_errors(self, fail, emulate_with):
        """Each failure is an exception, and nobody waits for ever."""
        emulate_with("""
from devito.exceptions import ExecutionError
from devitocomp_plugin.exceptions import CompressionError
try:
    save('host-device')
except (ExecutionError, CompressionError) as e:
    assert 'cuda' in str(e), e
else:
    raise AssertionError('no exception')
""", CUDAEMUL_FAIL=fail)

    def test_damaged_snapshots(self, emulate_with):
        """They are an error where they are needed, not where they are looked ahead to."""
        emulate_with("""
from devitocomp_plugin.exceptions import CompressionError
usave = save('disk-device')
data, = [i for i in usave._fnames if i.endswith('.data')]
del usave.grid
good = image(usave, time_m=2, time_M=4)
with open(data, 'r+b') as f:
    f.seek(6*7*8*9*4 + 100)
    f.write(b'damage')
assert np.array_equal(image(usave, time_m=2, time_M=4), good)
try:
    image(usave)
except CompressionError as e:
    assert 'usave' in str(e) and 'checksum' in str(e), e
else:
    raise AssertionError('no exception')
""".replace('del usave.grid\n', ''))

    def test_pickling(self, emulate_with):
        emulate_with("""
import pickle
usave = save('device')
good = image(usave)
again = pickle.loads(pickle.dumps(usave))
assert again.layers == dcp.Device
assert np.array_equal(image(again), good)
assert np.array_equal(again.data, usave.data)
again.data[3] = 7
assert np.all(again.data[3] == 7) and not np.any(usave.data[3] == 7)
assert np.max(np.abs(image(again) - good)) > 1
""", 'cuda')

    def test_kinds_that_do_not_mix(self, emulate_with, device_providers):
        """Payloads of a device that the host cannot decode."""
        emulate_with(f"""
import os, pickle
from devitocomp_plugin.exceptions import DevitoCompError
usave = save('host-device')
dump = pickle.dumps(usave)
os.environ['DEVITOCOMP_ROOT'] = {str(device_providers['dummy'])!r}
again = pickle.loads(dump)
try:
    again.data[3]
except DevitoCompError as e:
    assert 'device, payload version 1, on cuda' in str(e), e
else:
    raise AssertionError('no exception')
""", 'cuda')

    # Where they are missing, and in which order of work that shows
    @pytest.mark.parametrize('order,old,new', [
        ('lazy', """    devitocomp_wait_for_kernels(p, job.stage);
    if (devitocomp_on_host(p)) {""", '    if (devitocomp_on_host(p)) {'),
        ('lazy', """    devitocomp_drain(p);
    if (copy)""", '    if (copy)'),
        ('lazy', """    devitocomp_drain(p);
    status = devitocomp_outcome(p, status);""",
         '    status = devitocomp_outcome(p, status);'),
        ('random', """    p->change.wait(lock, [stage] { return !stage->busy; });
    for (auto &i : p->loads)""", '    for (auto &i : p->loads)'),
        ('lazy', """    if (stage != nullptr)
        p->change.wait(lock, [stage] { return !stage->busy; });
""", ''),
        ('lazy', 'stage->recorded = devitocomp_check(p->device, '
                 'DEVITOCOMP_API(EventRecord)(\n            stage->event, stream), '
                 '"recording an event");', 'stage->recorded = true;'),
        ('lazy', 'devitocomp_stream stream = devitocomp_queue(p->device, 0);\n'
                 '    if (!devitocomp_failed(p->device))\n        stage->recorded',
         'devitocomp_stream stream = p->stream;\n'
         '    if (!devitocomp_failed(p->device))\n        stage->recorded'),
        ('lazy', 'memcpy(room, p->pinned, slot.payload_bytes)',
         'memcpy(room, p->payload, slot.payload_bytes)'),
        ('lazy', 'memcpy(p->pinned, content, slot.payload_bytes);',
         'memset(p->pinned, 0, slot.payload_bytes);'),
        ('lazy', """        if (i.index == index)
            i.index = -1;
""", '        (void)i;\n'),
        ('lazy', 'job.stage->data, 0, p->nbytes, p->stream), "zeroing a snapshot");',
         'job.stage->data, 0, 4, p->stream), "zeroing a snapshot");'),
    ], ids=['kernels', 'payload', 'stage', 'reuse', 'load', 'record', 'stream',
            'dereference', 'copy', 'forget', 'zero'])
    def test_mutants(self, order, old, new, emulate_with, tmp_path):
        """What the ordering needs is needed: without it, results are wrong."""
        code = f"""
mutate({str(tmp_path / 'runtime')!r}, ({old!r}, {new!r}))
check_history('host-device')
check_rewriting('host-device')
"""
        with pytest.raises(AssertionError, match='emulated CUDA|differs|result'):
            emulate_with(code, CUDAEMUL_ORDER=order)


@pytest.mark.parallel
@pytest.mark.parametrize('mode,layers,name', [
    ('basic', 'device', 'gradient'),
    slow('overlap2', 'disk-device', 'interpolate'),
    slow('diag2', 'host-device', 'propagate_saved')
])
def test_ranks(mode, layers, name, emulator, device_providers):  # noqa: F811
    """Emulated, one device for two ranks."""
    out = mpirun(2, 'mpi_programs.py', name, mode=mode, **emulator,
                 DEVITOCOMP_ROOT=str(device_providers['dummy']), PROGRAM_LAYERS=layers,
                 **CONFIGURATION)
    assert '1 programs exact on 2 ranks' in out


@pytest.mark.parametrize('suite,chosen,provider', [
    ('test_compressed_funcs.py', 'claims or report or generated or save_factor', 'cuda'),
    ('test_composite_funcs.py', 'same_process or test_copy or mixed', 'dummy'),
    ('test_composite_funcs.py', 'test_copy or mixed', 'hip'),
])
def test_acceptance_suites(suite, chosen, provider, emulator,  # noqa: F811
                           device_providers):
    """Emulated, a part of both; all of it with `-m slow`."""
    accept(suite, f'devitocomp and ({chosen}) and not configurations', provider, emulator,
           device_providers)


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['test_compressed_funcs.py', 'test_composite_funcs.py'])
@pytest.mark.parametrize('provider', ['dummy', 'cuda', 'hip'])
def test_acceptance_suites_whole(suite, provider, emulator,  # noqa: F811
                                 device_providers):
    accept(suite, 'devitocomp and not parallel', provider, emulator, device_providers)


def accept(suite, chosen, provider, environment, roots):
    env = {**os.environ, **environment, 'DEVITOCOMP_ROOT': str(roots[provider]),
           'OMP_NUM_THREADS': '1', **CONFIGURATION}
    if provider == 'hip':
        env.update(DEVITO_PLATFORM='amdgpuX', DEVITO_LANGUAGE='hip')
    # Not of the suites' business: which worker this is
    env = {k: v for k, v in env.items() if not k.startswith('PYTEST_XDIST')}
    if not shutil.which('nvcc'):
        # Devito itself asks it for its version
        env['PATH'] = f"{env['DEVITOCOMP_EMULATOR']}/bin:{env['PATH']}"
    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-x', '-p',
                           'no:cacheprovider', str(HERE / suite), '-k', chosen],
                          capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-6000:]
