"""
What a time step of the generated CUDA costs, counted, as that needs no GPU.

For the acoustic Operator (and others, with --all):

launches
    Kernels launched per time step.
moved
    Bytes that go between host and device per time step: the calls that copy, in the loop.
minimum
    Bytes of global memory per grid point if each value is read or written once.
blocks
    The same if each block of threads reads all that it needs, once, and blocks share
    nothing: an upper bound for a cache that holds what a block needs.
accesses
    The same if nothing is cached: loads and stores, as they stand in the source.

Prints one line for each kernel, and a JSON object per Operator with --json.

    python benchmarks/cuda_traffic.py --space-order 8 --par-tile 2 4 32
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np
from devito import Eq, Function, Grid, Operator, SparseTimeFunction, TimeFunction, solve
from devito.ir import Call, DeviceFunction, Expression, FindNodes, FindSymbols, Iteration

import devitocomp_plugin  # noqa: F401

TARGET = {'platform': 'nvidiaX', 'language': 'cuda', 'compiler': 'cuda'}
COPIES = ('devitocomp_to_host', 'devitocomp_to_device', 'devitocomp_get',
          'devitocomp_put', 'devitocomp_value')


def acoustic(space_order=8, shape=(512,)*3, opt=None, **target):
    """The Operator that is timed, by gpu_check.sh, on a GPU."""
    grid = Grid(shape)
    u = TimeFunction(name='u', grid=grid, time_order=2, space_order=space_order)
    m = Function(name='m', grid=grid, space_order=0)
    src = SparseTimeFunction(name='src', grid=grid, npoint=1, nt=100)
    rec = SparseTimeFunction(name='rec', grid=grid, npoint=100, nt=100)
    stencil = Eq(u.forward, solve(m*u.dt2 - u.laplace, u.forward))
    return Operator([stencil, src.inject(u.forward, expr=src), rec.interpolate(u)],
                    opt=opt or 'advanced', subs=grid.spacing_map, **target)


def block_shape(op, kernel):
    """The threads of a kernel's blocks along its loops, outermost first."""
    launch, = [i for i in FindNodes(Call).visit(op.body)
               if any(getattr(j, 'name', None) == kernel.name for j in i.arguments)]
    return [int(i) for i in launch.arguments[2].params][::-1]


def grid_loops(kernel):
    return [i for i in FindNodes(Iteration).visit(kernel)
            if 'devitocomp_stride' in str(i.limits[2])]


def offsets(access, dims):
    """The offsets of an access along the dimensions of loops."""
    found = []
    for d in dims:
        index = [i for i in access.indices if d in i.free_symbols]
        found.append(int(index[0] - d) if index else None)
    return tuple(found)


def footprint(found, block):
    """How many values a block accesses, as a multiple of its threads."""
    low = [min(i[n] or 0 for i in found) for n in range(len(block))]
    high = [max(i[n] or 0 for i in found) for n in range(len(block))]
    shape = [b + j - i for b, i, j in zip(block, low, high, strict=True)]
    touched = np.zeros(shape, bool)
    for i in found:
        touched[tuple(
            slice(0, 1) if j is None else slice(j - k, j - k + b)
            for j, k, b in zip(i, low, block, strict=True)
        )] = True
    return touched.sum()/np.prod(block)


def count_kernel(op, kernel):
    """Bytes per point of one kernel, or None if it is not over a dense grid."""
    if not all(i.is_Affine for i in grid_loops(kernel)):
        return None
    dims = [i.dim for i in grid_loops(kernel)]
    block = block_shape(op, kernel)[-len(dims):]
    arrays, accesses = {}, 0
    for e in FindNodes(Expression).visit(kernel):
        for i in FindSymbols('indexeds').visit(e):
            if i.function._mem_stack:
                continue
            size = np.dtype(i.dtype).itemsize
            accesses += size
            # Each time slot is an array of its own
            rest = tuple(j for j in i.indices if not j.free_symbols & set(dims))
            key = (i.function.name, rest, i == e.output)
            arrays.setdefault(key, (size, []))[1].append(offsets(i, dims))

    minimum = blocks = 0
    for size, found in arrays.values():
        minimum += size*all(i is not None for i in found[0])
        blocks += size*footprint(found, block)
    return {'kernel': kernel.name, 'minimum': minimum, 'blocks': round(blocks, 1),
            'accesses': accesses}


def count(op):
    """All that is counted of an Operator."""
    loop, = [i for i in FindNodes(Iteration).visit(op.body) if i.dim.is_Time]
    calls = FindNodes(Call).visit(loop)
    kernels = [i.root for i in op._func_table.values()
               if isinstance(i.root, DeviceFunction)]
    return {
        'launches': sum(i.name.startswith('devitocomp_launch') for i in calls),
        'copies in the loop': sum(i.name.startswith(COPIES) for i in calls),
        'kernels': [count_kernel(op, i) or {'kernel': i.name, 'sparse': True}
                    for i in kernels],
    }


def main():
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--space-order', type=int, nargs='+', default=[8])
    parser.add_argument('--par-tile', type=int, nargs='+',
                        help='threads of a block, outermost dimension first')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()

    options = {'par-tile': tuple(args.par_tile)} if args.par_tile else {}
    for so in args.space_order:
        found = count(acoustic(so, opt=('advanced', options), **TARGET))
        if args.json:
            print(json.dumps({'space_order': so, **found}))
            continue
        print(f'acoustic, space order {so}: per time step {found["launches"]} launches, '
              f'{found["copies in the loop"]} copies between host and device')
        for i in found['kernels']:
            if 'sparse' in i:
                print(f'  {i["kernel"]}: over the points of a sparse function')
            else:
                print(f'  {i["kernel"]}: bytes per grid point: at least {i["minimum"]}, '
                      f'without sharing among blocks {i["blocks"]} '
                      f'({i["blocks"]/i["minimum"]:.2f}x), as written {i["accesses"]}')


if __name__ == '__main__':
    main()
