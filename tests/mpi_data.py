"""
The data of compressed functions on MPI ranks follows the rules of that of dense ones.
Started by test_mpi.py.
"""

import numpy as np
from devito import Grid, TimeFunction
from devito.mpi import MPI
from ranks import run

import devitocomp_plugin as dcp

comm = MPI.COMM_WORLD
grid = Grid(shape=(7, 6))
values = np.arange(4*7*6, dtype=np.float32).reshape(4, 7, 6)

reads = [1, -1, (1, 5, 2), (1, 4), (slice(None), 0), (slice(1, None), slice(1, 5), 3),
         (-1, -1), (2, slice(None, None, -1)), (slice(None, None, 2),), (0, ..., 1), ...,
         (slice(3, 1),)]

writes = [
    lambda d, other: d.__setitem__(slice(None), values),
    lambda d, other: d.__setitem__(1, 7.),
    lambda d, other: d.__setitem__((2, slice(1, 4)), -1.),
    lambda d, other: d.__setitem__((0, slice(2, 6), slice(None, 2)),
                                   np.arange(8.).reshape(4, 2)),
    lambda d, other: d.__setitem__((3, 5), values[1, 4]),
    lambda d, other: d.__setitem__((slice(1, 3), 4, 4), np.array([50., 60.])),
    lambda d, other: d.__iadd__(1),
]
if comm.size < 4:
    # Devito cannot do this where two dimensions are decomposed
    writes.append(lambda d, other: d.__setitem__(0, other[2]))


def same(a, b):
    if a is None or b is None:
        return a is b
    return np.shape(a) == np.shape(b) and np.array_equal(np.asarray(a), np.asarray(b))


def main():
    kwargs = {'grid': grid, 'save': 4, 'space_order': 0}
    other = TimeFunction(name='other', **kwargs)
    other.data[:] = -values
    u = TimeFunction(name='u', **kwargs)
    usave = dcp.TimeFunction(name='usave', compression='devitocomp', **kwargs)
    assert usave.data.shape == u.data.shape
    assert (u.data.shape != values.shape) == (comm.size > 1)

    for n, write in enumerate(writes):
        write(u.data, other.data)
        write(usave.data, other.data)
        for key in reads:
            a, b = u.data[key], usave.data[key]
            assert same(a, b), (n, key, np.asarray(a), np.asarray(b))
    assert np.asarray(usave.data).shape == u.data.shape
    assert usave.data.max() == np.max(np.asarray(u.data))
    for wrong in (values[:3], values[:, :3]):
        try:
            usave.data[:] = wrong
        except ValueError:
            continue
        raise AssertionError(f'shape {wrong.shape} was accepted')
    comm.barrier()
    if comm.rank == 0:
        print(f'{len(writes)*len(reads)} reads agree on {comm.size} ranks')


if __name__ == '__main__':
    run(main)
