"""Compressed functions on several MPI ranks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import programs

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.parallel

# Written for three space dimensions, or about the data of one process
not_parallel = {'builtins', 'assign_data', 'initializer', 'condition_on_compressed',
                'propagate_saved_from_data', 'partial_bounds', 'partial_bounds_of_copy'}
names = [i for i in programs if i not in not_parallel]


def mpirun(ranks, script, *args, mode='basic', **env):
    if shutil.which('mpirun') is None and not os.environ.get('CI'):
        pytest.skip('needs mpirun')
    # A stray rank must not wait for the others for ever
    cmd = ['timeout', '280', 'mpirun', '--oversubscribe', '-n', str(ranks),
           sys.executable, str(HERE / script), *args]
    env = {**os.environ, 'DEVITO_MPI': mode, 'OMP_NUM_THREADS': '1',
           'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
           'OMPI_MCA_rmaps_base_oversubscribe': '1', **env}
    done = subprocess.run(cmd, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f'{done.stdout}{done.stderr[-4000:]}'
    return done.stdout


@pytest.mark.parametrize('ranks,mode,chosen', [
    pytest.param(2, 'basic', names[0::5], id='2-basic'),
    pytest.param(2, 'diag2', names[1::5], id='2-diag2'),
    pytest.param(2, 'full', names[2::5], id='2-full'),
    pytest.param(4, 'overlap', names[3::10], id='4-overlap'),
    pytest.param(4, 'diag', names[4::10], id='4-diag'),
])
def test_semantics(ranks, mode, chosen):
    """The programs dealt out over Devito's MPI modes; decompositions are uneven."""
    out = mpirun(ranks, 'mpi_programs.py', *chosen, mode=mode)
    assert f'{len(chosen)} programs exact on {ranks} ranks' in out


@pytest.mark.slow
@pytest.mark.parametrize('ranks', [1, 2, 4])
@pytest.mark.parametrize('mode', ['basic', 'diag', 'diag2', 'overlap', 'full'])
@pytest.mark.parametrize('first', range(0, len(names), 6))
def test_product(ranks, mode, first):
    chosen = names[first:first + 6]
    out = mpirun(ranks, 'mpi_programs.py', *chosen, mode=mode)
    assert f'{len(chosen)} programs exact on {ranks} ranks' in out


@pytest.mark.parametrize('action', ['compress', 'decompress'])
def test_failure_on_one_rank(action, providers):
    out = mpirun(2, 'mpi_failure.py', action, DEVITOCOMP_ROOT=str(providers / 'faulty'))
    assert 'the same exception on all ranks' in out
