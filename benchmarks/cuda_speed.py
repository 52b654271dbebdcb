"""
How fast generated CUDA is, on a machine with a GPU.

Compares the acoustic kernel with a copy on the device: each grid point of the kernel
moves at least four values between memory and processor, as two time steps and the model
are read, and one time step is written; a copy moves two. At 100%, nothing but memory is
the limit. Times are from events on the device; of several runs, the median counts.

    python benchmarks/cuda_speed.py --shape 512 512 512 --par-tile 4 4 32 --par-tile 8 8 8
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from statistics import median

import numpy as np
from cuda_traffic import TARGET, acoustic
from devito import Eq, Grid, Operator, TimeFunction, configuration

steps = 50


def time_section(op, name, nruns=5, **arguments):
    """Seconds per time step of a section of an Operator."""
    op.apply(time_M=steps, **arguments)
    times = []
    for _ in range(nruns):
        summary = op.apply(time_M=steps, **arguments)
        found, = [v.time for k, v in summary.items() if k.name == name]
        times.append(found/(steps + 1))
    return median(times)


def copy_bandwidth(shape):
    """Bytes per second that a kernel which only copies reads and writes."""
    v = TimeFunction(name='v', grid=Grid(shape), space_order=0)
    v.data[:] = 1
    seconds = time_section(Operator(Eq(v.forward, v), **TARGET), 'section0')
    return 2*4*np.prod(shape)/seconds


def main():
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--shape', type=int, nargs=3, default=[512]*3)
    parser.add_argument('--space-order', type=int, default=8)
    parser.add_argument('--par-tile', type=int, nargs='+', action='append')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    configuration['log-level'] = 'WARNING'

    bandwidth = copy_bandwidth(args.shape)
    bound = bandwidth/16
    print(f'copy on the device: {bandwidth/1e9:.0f} GB/s, hence at most '
          f'{bound/1e9:.1f} Gpoints/s with 4 values per point')
    for tile in args.par_tile or [None]:
        options = {'par-tile': tuple(tile)} if tile else {}
        op = acoustic(args.space_order, args.shape, ('advanced', options), **TARGET)
        m, = [i for i in op.parameters if i.name == 'm']
        m.data_with_halo[:] = 100.
        speed = np.prod(args.shape)/time_section(op, 'section0', dt=1.)
        block = tuple(tile) if tile else 'default'
        print(f'acoustic, space order {args.space_order}, {args.shape}, block {block}: '
              f'{speed/1e9:.1f} Gpoints/s, {100*speed/bound:.0f}% of the bound')
        if args.json:
            print(json.dumps({'points_per_second': speed, 'bound': bound,
                              'block': block}))


if __name__ == '__main__':
    main()
