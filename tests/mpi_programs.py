"""
Run programs of the acceptance suites on several MPI ranks, dense and compressed, and
compare the parts of each rank. Started by test_mpi.py; arguments: programs.
"""

import os
import sys

from acceptance import differences, languages, rtol
from devito import configuration
from devito.mpi import MPI
from programs import Environment, programs
from ranks import run

from devitocomp_plugin import DevitoComp


def main(names):
    configuration['safe-math'] = True
    configuration['log-level'] = 'ERROR'
    comm = MPI.COMM_WORLD
    language = 'C' if 'C' in languages else languages[0]
    # Where exchanges overlap with sums, Devito adds twice at some points of parts
    # that are narrower than two halos
    wide = configuration['mpi'] in ('overlap', 'overlap2', 'full')
    kwargs = {'shape': (26, 24, 22) if wide else (13, 12, 11), 'language': language,
              'layers': os.environ.get('PROGRAM_LAYERS'),
              'serialization': os.environ.get('PROGRAM_SERIALIZATION')}
    failed = []
    for name in names:
        reference = Environment(None, **kwargs)
        expected = programs[name](reference)
        found = programs[name](Environment(DevitoComp(error=rtol), **kwargs))
        scale = comm.allreduce(reference.scale, op=MPI.MAX)
        failed += [f'{name}: {i} on rank {comm.rank}'
                   for i in differences(expected, found, scale)]
    failed = sum(comm.allgather(failed), [])
    if comm.rank == 0:
        print('\n'.join(failed) or f'{len(names)} programs exact on {comm.size} ranks')
    return bool(failed)


if __name__ == '__main__':
    run(main, sys.argv[1:])
