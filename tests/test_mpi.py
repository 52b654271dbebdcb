"""Compressed functions on several MPI ranks."""

import pytest
from acceptance import mpirun
from programs import parallel_programs as names

pytestmark = pytest.mark.parallel


@pytest.mark.parametrize('ranks,mode,chosen', [
    pytest.param(2, 'basic', names[0::8], id='2-basic'),
    pytest.param(2, 'diag2', names[1::8], id='2-diag2'),
    pytest.param(2, 'full', names[2::8], id='2-full'),
    pytest.param(4, 'overlap', names[3::16], id='4-overlap'),
    pytest.param(4, 'diag', names[4::16], id='4-diag'),
    # With eight, all three dimensions are decomposed
    pytest.param(8, 'basic', ['never_written', 'gradient'], id='8-basic'),
])
def test_semantics(ranks, mode, chosen):
    """Half of the programs, dealt out over Devito's MPI modes, unevenly decomposed."""
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


@pytest.mark.parametrize('ranks', [1, 2, 4])
def test_data(ranks):
    """Reading and assigning `.data` follows the rules of dense distributed data."""
    assert f'reads agree on {ranks} ranks' in mpirun(ranks, 'mpi_data.py')
