"""
The second acceptance suite of a provider: compressed TimeFunctions whose snapshots pass
through layers, that are written to disk and opened again, pickled, and spread over MPI
ranks.

    pytest tests/test_composite_funcs.py -k devitocomp

runs it against the provider that DEVITOCOMP_ROOT selects; DEVITOCOMP_RTOL is as in
test_compressed_funcs.py. The tests that start MPI ranks are those of ``-m parallel``.
"""

import gc
import os
import pickle
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from acceptance import (
    compare,
    composite_layers,
    configurations,
    label,
    layers_in_memory,
    layers_on_disk,
    mpi_modes,
    mpirun,
    pairwise,
    rtol,
)
from devito import Eq, Function, Operator
from programs import Environment, accumulate, forward, parallel_programs, programs

import devitocomp_plugin as dcp
from devitocomp_plugin import Disk, DiskHost

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.usefixtures('safe_math')

on_disk = [pytest.param(i, id=str(i)) for i in layers_on_disk]
pairs = pairwise(composite_layers)
all_layers = [pytest.param(i, id=str(i)) for i in (*layers_in_memory, *layers_on_disk)]


@pytest.mark.parametrize('layers,config,names', [
    pytest.param(layers, c, list(programs)[n::len(pairs)], id=f'{layers}-{label(c)}')
    for n, (layers, *c) in enumerate(pairs)
])
def test_semantics(layers, config, names, compression, tmp_path):
    """
    What works in memory works elsewhere: the programs dealt out over the layers and a
    pairwise selection of languages, modes and options. Disks are used in a directory of
    the user's.
    """
    on_disk = 'disk' in layers.names
    for name in names:
        compare(name, compression, config, layers=layers,
                serialization=tmp_path if on_disk else None)
    # All of them, in stores of their own
    assert len(list(tmp_path.iterdir())) >= on_disk*len(names)


@pytest.mark.slow
@pytest.mark.parametrize('config', [pytest.param(c, id=label(c))
                                    for c in configurations()])
@pytest.mark.parametrize('layers', all_layers)
@pytest.mark.parametrize('name', programs)
def test_product(name, layers, config, compression):
    """All programs over all layers, in all languages, modes and options."""
    compare(name, compression, config, layers=layers)


def image(usave, time_M=7):
    """What an imaging condition makes of a history."""
    g = Function(name='g', grid=usave.grid, space_order=2)
    subs = {**usave.grid.spacing_map, usave.grid.time_dim.spacing: 1.}
    op = Operator(accumulate(g, usave.dt + usave.laplace), subs=subs)
    op.apply(time_m=0, time_M=time_M)
    return np.array(g.data)


def check(found, expected, amplification=8*26):
    assert np.max(np.abs(expected)) > 0
    if rtol is None:
        assert np.array_equal(found, expected)
    else:
        # The wavefield of `forward` nowhere exceeds 1
        assert np.max(np.abs(found - expected)) <= rtol*amplification


@pytest.fixture(scope='module')
def dense_image(safe_math):
    return image(forward(Environment(), time_order=1)[1])


def save(compression, **kwargs):
    return forward(Environment(compression, **kwargs), time_order=1)[1]


def elsewhere(code, *args, **env):
    """Run code in another process, in which the names of this file are known."""
    scene = f'import sys; sys.path.insert(0, {str(HERE)!r})\n' \
            'from test_composite_funcs import *\n' \
            'from devito import configuration\n' \
            "configuration['safe-math'] = True\n"
    done = subprocess.run([sys.executable, '-c', scene + code, *map(str, args)],
                          capture_output=True, text=True, timeout=200,
                          env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_again(compression, usave, **kwargs):
    """Another function for the snapshots in the store of `usave`."""
    return dcp.TimeFunction(name='usave', grid=usave.grid, save=usave.save, time_order=1,
                            space_order=2, compression=compression, layers=usave.layers,
                            serialization=usave._fnbase, **kwargs)


@pytest.mark.parametrize('layers', on_disk)
class TestReopening:

    def test_same_process(self, layers, compression, tmp_path, dense_image):
        usave = save(compression, layers=layers, serialization=tmp_path)
        assert Path(usave._fnbase).parent == tmp_path
        assert all(Path(i).is_file() for i in usave._fnames) and usave._fnames
        check(image(make_again(compression, usave)), dense_image)

    def test_another_process(self, layers, compression, tmp_path, dense_image):
        usave = save(compression, layers=layers, serialization=tmp_path)
        elsewhere("""
from devitocomp_plugin import DevitoComp
env = Environment(DevitoComp(error=rtol), layers=sys.argv[1], serialization=sys.argv[2])
usave = env.save('usave', 9, time_order=1)
np.save(sys.argv[3], image(usave))
""", layers, usave._fnbase, tmp_path / 'image.npy')
        check(np.load(tmp_path / 'image.npy'), dense_image)

    def test_newest_of_a_name(self, layers, compression, tmp_path, dense_image):
        """A directory of stores: a run makes a new one, a reader finds the newest."""
        first = save(compression, layers=layers, serialization=tmp_path)
        first.data[:] = 0.
        second = save(compression, layers=layers, serialization=tmp_path)
        assert first._fnbase != second._fnbase
        env = Environment(compression, layers=layers, serialization=tmp_path)
        check(image(env.save('usave', 9, time_order=1)), dense_image)
        assert not np.any(np.asarray(first.data))

    def test_going_on(self, layers, compression, tmp_path, dense_image):
        """What one function began another completes."""
        env = Environment(compression, layers=layers, serialization=tmp_path)
        u, stencil = env.wave()
        usave = env.save('usave', 9, time_order=1)
        env.run([stencil, Eq(usave, u)], time_M=4)
        directory = usave._fnbase
        del usave
        env.saved.clear()
        gc.collect()

        again = Environment(compression, layers=layers, serialization=directory)
        rest = again.save('usave', 9, time_order=1, grid=env.grid)
        env.run([stencil, Eq(rest, u)], time_m=5, time_M=8)
        assert rest._fnbase == directory
        check(image(rest), dense_image)


@pytest.mark.parametrize('layers', all_layers)
class TestPickling:

    def test_function(self, layers, compression, dense_image, tmp_path):
        usave = save(compression, layers=layers)
        (tmp_path / 'usave.pkl').write_bytes(pickle.dumps(usave))
        elsewhere("""
usave = pickle.loads(open(sys.argv[1], 'rb').read())
assert str(usave.layers) == sys.argv[3], usave.layers
np.save(sys.argv[2], image(usave))
""", tmp_path / 'usave.pkl', tmp_path / 'image.npy', layers)
        check(np.load(tmp_path / 'image.npy'), dense_image)

    def test_operator(self, layers, compression, dense_image, tmp_path):
        """An Operator that saves, shipped to a process with a provider elsewhere."""
        env = Environment(compression, layers=layers)
        u, stencil = env.wave()
        usave = env.save('usave', 9, time_order=1)
        op = env.operator([stencil, Eq(usave, u)])
        op.apply(time_M=2)
        usave.pickle_snapshots = False
        (tmp_path / 'op.pkl').write_bytes(pickle.dumps((op, usave)))

        from devitocomp_plugin.provider import current_provider
        root = tmp_path / 'root'
        root.symlink_to(current_provider().root)
        elsewhere("""
op, usave = pickle.loads(open(sys.argv[1], 'rb').read())
assert not usave.compression_report().snapshots
u, stencil = Environment().wave()
op.apply(time_M=8, u=u, usave=usave)
np.save(sys.argv[2], image(usave))
""", tmp_path / 'op.pkl', tmp_path / 'image.npy', DEVITOCOMP_ROOT=str(root))
        check(np.load(tmp_path / 'image.npy'), dense_image)

    def test_copy(self, layers, compression, dense_image):
        usave = save(compression, layers=layers)
        check(image(deepcopy(usave)), dense_image)
        check(image(usave), dense_image)


def test_layers_mixed(compression, dense_image):
    """Functions in different layers, in one Operator."""
    env = Environment(compression)
    u, stencil = env.wave()
    saved = []
    for n, layers in enumerate((*layers_in_memory[1:], *layers_on_disk)):
        env.saving['layers'] = layers
        saved.append(env.save(f'usave{n}', 9, time_order=1))
    env.run([stencil] + [Eq(i, u) for i in saved], time_M=8)
    for i in saved:
        check(image(i), dense_image)


def test_out_of_order(compression, tmp_path):
    """Snapshots of any size written and read in any order, some twice."""
    usave = dcp.TimeFunction(name='usave', grid=Environment(shape=(23, 17)).grid, save=50,
                             compression=compression, layers=DiskHost,
                             serialization=tmp_path)
    rng = np.random.default_rng(0)
    expected = np.zeros(usave.shape, np.float32)
    for i in rng.integers(0, 50, 120):
        expected[i] = rng.normal(size=usave.shape[1:])*(i % 3)
        usave.data[i] = expected[i]
    again = dcp.TimeFunction(name='usave', grid=usave.grid, save=50, layers=Disk,
                             compression=compression, serialization=usave._fnbase)
    for f in (usave, again):
        for i in rng.permutation(50):
            error = np.max(np.abs(f.data[i] - expected[i]))
            assert error <= (rtol or 0)*np.max(np.abs(expected[i])), i


def run_parallel(ranks, mode, layers, chosen, folder):
    env = {'PROGRAM_LAYERS': str(layers)}
    if 'disk' in layers.names:
        env['PROGRAM_SERIALIZATION'] = str(folder)
    return mpirun(ranks, 'mpi_programs.py', *chosen, mode=mode, **env)


@pytest.mark.parallel
@pytest.mark.parametrize('ranks,mode,layers,chosen', [
    pytest.param(ranks, mode, layers, chosen, id=f'{ranks}-{mode}-{layers}')
    for ranks, mode, layers, chosen in (
        (2, 'basic', layers_on_disk[0], parallel_programs[2::9]),
        (2, mpi_modes[-1], layers_on_disk[1], parallel_programs[5::9]),
        (4, 'diag2', composite_layers[1], parallel_programs[8::18])
    )
])
def test_parallel(ranks, mode, layers, chosen, compression, tmp_path):
    out = run_parallel(ranks, mode, layers, chosen, tmp_path)
    assert f'{len(chosen)} programs exact on {ranks} ranks' in out


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize('ranks', [1, 2, 4])
@pytest.mark.parametrize('mode', mpi_modes)
@pytest.mark.parametrize('layers', on_disk)
@pytest.mark.parametrize('first', range(0, len(parallel_programs), 6))
def test_parallel_product(ranks, mode, layers, first, compression, tmp_path):
    chosen = parallel_programs[first:first + 6]
    out = run_parallel(ranks, mode, layers, chosen, tmp_path)
    assert f'{len(chosen)} programs exact on {ranks} ranks' in out
