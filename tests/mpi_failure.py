"""
A provider that fails on one rank only: every rank has to raise the same exception.
Started by test_mpi.py; argument: compress or decompress.
"""

import os
import sys

from devito import Eq, Function, Grid, Operator, TimeFunction
from devito.mpi import MPI

import devitocomp_plugin as dcp
from devitocomp_plugin.exceptions import CompressionError

comm = MPI.COMM_WORLD
action = sys.argv[1]
grid = Grid(shape=(12, 12))
u = TimeFunction(name='u', grid=grid)
usave = dcp.TimeFunction(name='usave', grid=grid, save=9, compression='devitocomp')
g = Function(name='g', grid=grid)
forward = Operator([Eq(u.forward, u + 1), Eq(usave, u)])
adjoint = Operator(Eq(g, g + usave + usave.dx))


def fail():
    if comm.rank == comm.size - 1:
        os.environ['DEVITOCOMP_FAULT'] = f'{action}:4'


if action == 'compress':
    fail()
message = None
try:
    forward.apply(time_m=0, time_M=8)
    fail()
    adjoint.apply()
except CompressionError as e:
    assert e.snapshot == 4 and e.action == action, str(e)
    message = str(e)

messages = comm.allgather(message)
assert messages[0] and len(set(messages)) == 1, messages
assert f'rank {comm.size - 1}' in message, message

# The next run works, on all of them
os.environ.pop('DEVITOCOMP_FAULT', None)
u.data[:] = 0
forward.apply(time_m=0, time_M=8)
adjoint.apply()
if comm.rank == 0:
    print('the same exception on all ranks')
