"""
Stores on disk on several MPI ranks. Started by test_disk.py; arguments: what to do, a
directory, the layers.
"""

import os
import resource
import signal
import sys

import numpy as np
from devito import Eq, Function, Grid, Operator, TimeFunction
from devito.mpi import MPI

import devitocomp_plugin as dcp
from devitocomp_plugin.exceptions import DevitoCompError, StoreError
from devitocomp_plugin.stores.directories import WriterLock

comm = MPI.COMM_WORLD
what, directory, layers = sys.argv[1:]
SHAPE = (13, 12)
# Initializes MPI
Grid(shape=SHAPE)


def make(name='usave', serialization=directory, **kwargs):
    grid = Grid(shape=SHAPE, **kwargs)
    return dcp.TimeFunction(name=name, grid=grid, save=9, compression='devitocomp',
                            layers=layers, serialization=serialization)


def save(f):
    """Snapshot t is t plus the global index along x."""
    u, x = TimeFunction(name='u', grid=f.grid), Function(name='x0', grid=f.grid)
    for i in range(SHAPE[0]):
        x.data[i] = i
    Operator([Eq(u.forward, u + 1), Eq(f, u + x)]).apply(time_M=8)


def check(f):
    """Also a stencil, which takes the halo of the other rank."""
    g = Function(name='g', grid=f.grid)
    Operator(Eq(g, g + f.backward + f.dx*f.grid.dimensions[0].spacing)).apply(time_m=1)
    found = np.array(g.data_gather())
    if comm.rank == 0:
        # But for the last row, where the stencil reads zeros
        expected = np.add.outer(28 + 8*np.arange(SHAPE[0] - 1) + 8, np.zeros(SHAPE[1]))
        assert np.array_equal(found[:-1], expected), found


def same_exception(action, exception, *mentions):
    """All ranks raise the same."""
    message = None
    try:
        action()
    except exception as e:
        message = str(e)
    messages = comm.allgather(message)
    assert messages[0] and len(set(messages)) == 1, messages
    assert all(i in message for i in mentions), message
    if comm.rank == 0:
        print('the same exception on all ranks:', message)


if what == 'save':
    f = make()
    save(f)
    assert len(set(comm.allgather(f._fnbase))) == 1
    assert all(f'rank{comm.rank:05d}' in i for i in f._fnames)
    check(f)
    # A temporary one vanishes on all ranks
    g = make(serialization=None)
    g.data[0] = 1
    assert len(set(comm.allgather(g._fnbase))) == 1 and os.path.isdir(g._fnbase)
    if comm.rank == 0:
        print('saved to', f._fnbase)
elif what == 'read':
    check(make())
    # The newest in the parent directory is the same one, for all
    f = make(serialization=os.path.dirname(directory))
    check(f)
    assert f._fnbase == directory
    # Reading on some ranks and writing on others is writing
    f = make(serialization=f'{directory}-mixed')
    if comm.rank == 0:
        f.data[3] = 7
    else:
        assert np.all(f.data[3] == 0)
    assert len(set(comm.allgather(f._fnbase))) == 1
    if comm.rank == 0:
        print('read again')
elif what == 'refused':
    same_exception(lambda: np.asarray(make().data), StoreError, directory)
    same_exception(lambda: save(make()), StoreError, directory)
elif what == 'topology':
    same_exception(lambda: np.asarray(make(topology=(1, 2)).data), StoreError)
elif what == 'failures':
    last = comm.rank == comm.size - 1
    # Somebody else writes to the store of one rank
    f = make()
    save(f)
    path, pid = f._fnbase, comm.bcast(os.getpid(), comm.size - 1)
    g = make(serialization=path)
    check(g)
    if last:
        f._store._release_lock()
        lock = WriterLock(f'{path}/rank00001', 'another')
    same_exception(lambda: save(g), DevitoCompError, f'process {pid} on', 'rank00001')
    # The first rank, which decides, finds no place
    f = make(serialization=f'{path}/rank00000/manifest.json')
    same_exception(lambda: save(f), DevitoCompError, 'cannot make the directory')
    # Its part is damaged
    if last:
        with open(os.path.join(path, 'rank00001', 'manifest.json'), 'a') as file:
            file.write('x')
    comm.barrier()
    same_exception(lambda: check(make(serialization=path)), StoreError, 'rank00001')
    # It has no space, for a snapshot or for the store
    f = make(serialization=f'{directory}/full')
    Operator(Eq(f, 1)).apply(time_M=0)
    op = Operator(Eq(f, 1))
    if last:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1200, resource.RLIM_INFINITY))
    same_exception(op.apply, DevitoCompError, 'rank00001', 'snapshot 3')
    if last:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    g = make(serialization=f'{directory}/none')
    same_exception(lambda: g.data.fill(2), StoreError, 'rank00001')
    if last:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,)*2)
    # Nothing is left of it, and there is another chance
    comm.barrier()
    assert os.listdir(f'{directory}/none') == []
    comm.barrier()
    g.data[:] = 2
    assert np.all(g.data == 2)
