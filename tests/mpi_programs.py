"""
Run programs of the acceptance suites on several MPI ranks, dense and compressed, and
compare the parts of each rank. Started by test_mpi.py; arguments: programs.
"""

import os
import sys
import traceback

import numpy as np
from devito import configuration
from devito.mpi import MPI
from programs import Environment, programs

from devitocomp_plugin import DevitoComp


def main(names):
    configuration['safe-math'] = True
    configuration['log-level'] = 'ERROR'
    comm = MPI.COMM_WORLD
    shape = (13, 12, 11) if os.environ.get('PROGRAM_NDIM') != '2' else (13, 12)
    failed = []
    for name in names:
        expected = programs[name](Environment(None, shape=shape, language='C'))
        found = programs[name](Environment(DevitoComp(), shape=shape, language='C'))
        for k, (a, _) in expected.items():
            if not np.array_equal(a, found[k][0]):
                failed.append(f'{name}: `{k}` differs on rank {comm.rank}')
    failed = sum(comm.allgather(failed), [])
    if comm.rank == 0:
        print('\n'.join(failed) or f'{len(names)} programs exact on {comm.size} ranks')
    return bool(failed)


if __name__ == '__main__':
    try:
        status = main(sys.argv[1:])
    except BaseException:
        # The other ranks would wait for this one
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
