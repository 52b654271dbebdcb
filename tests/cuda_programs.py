"""
Programs that run on a CPU and, emulated, with CUDA; the results are to be the same.

    python tests/cuda_programs.py NAME [MODE]     compare
    python tests/cuda_programs.py all [MODE]      compare all, one after the other
    python tests/cuda_programs.py --list

Each takes what makes its Operators, which chooses where they run, and yields results.
"""
import os
import sys
import tempfile

import numpy as np
from devito import (
    Abs,
    Buffer,
    ConditionalDimension,
    Constant,
    Dimension,
    Eq,
    Function,
    Ge,
    Grid,
    Inc,
    Lt,
    Max,
    Min,
    PrecomputedSparseTimeFunction,
    SparseFunction,
    SparseTimeFunction,
    SubDomain,
    TensorTimeFunction,
    TimeFunction,
    VectorTimeFunction,
    configuration,
    cos,
    diag,
    div,
    grad,
    sin,
    solve,
    sqrt,
)
from devito import Operator as DevitoOperator
from devito.types import Symbol
from devito.types.equation import ReduceMax, ReduceMin, ReduceMinMax

import devitocomp_plugin  # noqa: F401

PROGRAMS = {}
DEVICE = {'platform': 'nvidiaX', 'language': 'cuda', 'compiler': 'cuda'}
HIP = {'platform': 'amdgpuX', 'language': 'hip', 'compiler': 'hip'}
HOST = {'language': 'C'}


class Operators:

    """
    Makes a program's Operators, and keeps them.

    Parameters
    ----------
    target : dict
        Where they run.
    mode : str, optional
        Devito's optimization mode.
    name : str, optional
        What the names of the Operators begin with.
    run : bool, optional
        False to build them only.
    options : dict, optional
        Devito's options, besides those of the program.
    """

    def __init__(self, target, mode='advanced', name='Kernel', run=True, options=None):
        self.target = target
        self.mode = mode
        self.name = name
        self.run = run
        self.options = options or {}
        self.made = []

    @property
    def on_device(self):
        return 'platform' in self.target

    def __call__(self, eqs, mode=None, **options):
        op = DevitoOperator(eqs, name=f'{self.name}{len(self.made)}',
                            opt=(mode or self.mode, {**self.options, **options}),
                            **self.target)
        self.made.append(op)
        return op if self.run else Idle()


class Idle:

    """In place of an Operator that is not to run."""

    def apply(self, **kwargs):
        pass


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def part(values, decomposition):
    """
    What an MPI rank has of an array, which may have a halo, by the decomposition of its
    dimensions: None for those that ranks have all of.
    """
    index = [slice(None) if d is None else slice(0) if d.loc_empty else
             slice(d.loc_abs_min, d.loc_abs_max + 1 + size - d.size)
             for d, size in zip(decomposition, values.shape, strict=True)]
    return values[tuple(index)]


def whole(f):
    """The shape on all ranks together; Devito's `shape_global` isn't if f is sparse."""
    return tuple(size if d is None else d.size
                 for size, d in zip(f.shape, f._decomposition, strict=True))


def put(f, values):
    """Let data be those of an array for all ranks."""
    np.asarray(f.data)[...] = part(np.asarray(values), f._decomposition)
    return f


def numbers(f):
    """One for each element, in order."""
    return np.arange(np.prod(whole(f))).reshape(whole(f))


def noise(f, seed=0):
    return put(f, np.random.default_rng(seed).random(whole(f)))


def fill(f, seed=0):
    """Data of small integers, and so exact in sums, also in the halo."""
    rng = np.random.default_rng(seed + len(f.name))
    shape = [i + sum(j) for i, j in zip(whole(f), f._size_inhalo, strict=True)]
    values = rng.integers(-4, 5, shape)
    np.asarray(f._data_with_inhalo)[...] = part(values, f._decomposition)
    return f


def points(f, grid, seed=0):
    """Places for a sparse function, some of them outside of the grid."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(-0.1, 1.1, whole(f.coordinates))
    put(f.coordinates, places*grid.extent)
    return f


def wave(grid, operator, space_order=4, time_order=2, nt=12, dtype=None):
    u = TimeFunction(name='u', grid=grid, time_order=time_order, space_order=space_order)
    m = Function(name='m', grid=grid)
    put(m, 1 + numbers(m) % 3)
    src = points(SparseTimeFunction(name='src', grid=grid, npoint=3, nt=nt), grid)
    put(src, np.sin(numbers(src)))
    rec = points(SparseTimeFunction(name='rec', grid=grid, npoint=7, nt=nt), grid, 1)
    stencil = Eq(u.forward, solve(m*u.dt2 - u.laplace, u.forward))
    op = operator([stencil, src.inject(u.forward, expr=src), rec.interpolate(u)])
    op.apply(time_M=nt - 2, dt=0.004)
    yield from (u.data, rec.data)


@program
def acoustic_1d(operator):
    yield from wave(Grid((61,)), operator)


@program
def acoustic_2d(operator):
    yield from wave(Grid((31, 23)), operator, space_order=8)


@program
def acoustic_3d(operator):
    yield from wave(Grid((17, 15, 21)), operator)


@program
def acoustic_double(operator):
    yield from wave(Grid((15, 14, 13), dtype=np.float64), operator)


@program
def sparse_sinc(operator):
    grid = Grid((21, 22))
    f = fill(Function(name='f', grid=grid, space_order=6))
    s = points(SparseFunction(name='s', grid=grid, npoint=4, r=3, interpolation='sinc'),
               grid)
    s.data[:] = 1
    operator([s.interpolate(f)]).apply()
    g = Function(name='g', grid=grid, space_order=6)
    operator([s.inject(g, expr=s)]).apply()
    yield from (s.data, g.data)


@program
def saved(operator):
    grid = Grid((11, 12))
    u = fill(TimeFunction(name='u', grid=grid, save=9, space_order=2))
    operator([Eq(u.forward, u + u.laplace*0.001 + 1)]).apply(time_M=7)
    yield u.data


class Middle(SubDomain):
    name = 'middle'

    def define(self, dimensions):
        x, y = dimensions
        return {x: ('middle', 2, 3), y: ('left', 4)}


class Edge(SubDomain):
    name = 'edge'

    def define(self, dimensions):
        x, y = dimensions
        return {x: ('right', 2), y: y}


@program
def subdomains(operator):
    middle, edge = Middle(), Edge()
    grid = Grid((13, 14), subdomains=(middle, edge))
    u = fill(TimeFunction(name='u', grid=grid, space_order=2))
    operator([Eq(u.forward, u + 1, subdomain=grid.subdomains['middle']),
              Eq(u.forward, u.dx + 2, subdomain=grid.subdomains['edge'])]).apply(time_M=3)
    yield u.data


@program
def subsampled(operator):
    grid = Grid((11, 12))
    t = ConditionalDimension('t_sub', parent=grid.time_dim, factor=3)
    u = fill(TimeFunction(name='u', grid=grid))
    usave = TimeFunction(name='usave', grid=grid, save=5, time_dim=t)
    operator([Eq(u.forward, u + 1), Eq(usave, u)]).apply(time_M=11)
    yield from (u.data, usave.data)


@program
def conditions(operator):
    # `f` occurs in a condition only
    grid = Grid((11, 12))
    x, y = grid.dimensions
    f = fill(Function(name='f', grid=grid))
    g = Function(name='g', grid=grid)
    c = ConditionalDimension(name='c', parent=y, condition=Ge(f, 1))
    operator([Eq(g, 5, implicit_dims=(x, c))]).apply()
    yield g.data


@program
def condition_in_time(operator):
    grid = Grid((11, 12))
    time = grid.time_dim
    w = Function(name='w', dimensions=(time,), shape=(10,))
    w.data[:] = np.arange(10) % 3
    c = ConditionalDimension(name='c', parent=time, condition=Lt(w, 1))
    u = fill(TimeFunction(name='u', grid=grid))
    g = Function(name='g', grid=grid)
    operator([Eq(u.forward, u + 1),
              Inc(g, u.forward, implicit_dims=(c,))]).apply(time_M=9)
    yield g.data


@program
def scalar_reductions(operator):
    grid = Grid((41, 42))
    f = fill(Function(name='f', grid=grid))
    i = Dimension('i')
    n = Function(name='n', dimensions=(i,), shape=(1,), dtype=np.float32)
    s = Symbol(name='s', dtype=np.float32)
    operator([Eq(s, 0), Inc(s, f*f), Eq(n[0], s)]).apply()
    yield n.data
    h = Function(name='h', dimensions=(i,), shape=(1,), dtype=np.float32, space='host')
    operator([Eq(s, 0), Inc(s, Abs(f)), Eq(h[0], s)]).apply()
    yield h.data


@program
def minmax(operator):
    grid = Grid((21, 22))
    f = fill(Function(name='f', grid=grid))
    f.data[3, 4], f.data[5, 6] = 99, -77
    i = Dimension('i')
    n = Function(name='n', dimensions=(i,), shape=(2,), dtype=np.float32)
    for reduce in (ReduceMin, ReduceMax, ReduceMinMax):
        operator([reduce(n[0], f)]).apply()
        yield n.data.copy()


@program
def array_reductions(operator):
    grid = Grid((21, 22))
    x, y = grid.dimensions
    f = fill(Function(name='f', grid=grid))
    sums = Function(name='sums', dimensions=(x,), shape=(21,))
    columns = Function(name='columns', dimensions=(y,), shape=(22,))
    operator([Inc(sums, f), Inc(columns, 2*f)]).apply()
    yield from (sums.data, columns.data)


@program
def integer_reductions(operator):
    grid = Grid((21, 22), dtype=np.int32)
    f = fill(Function(name='f', grid=grid, dtype=np.int32))
    i = Dimension('i')
    for dtype in (np.int32, np.int64):
        n = Function(name='n', dimensions=(i,), shape=(1,), dtype=dtype)
        operator([Inc(n[0], f)]).apply()
        yield n.data


@program
def indirect(operator):
    i, j = Dimension('i'), Dimension('j')
    index = Function(name='index', dimensions=(i,), shape=(50,), dtype=np.int32)
    index.data[:] = np.arange(50) % 7
    f = Function(name='f', dimensions=(i,), shape=(50,))
    f.data[:] = np.arange(50)
    g = Function(name='g', dimensions=(j,), shape=(7,))
    operator([Inc(g[index[i]], f[i])]).apply()
    yield g.data


@program
def temporaries(operator):
    # Arrays that Devito makes for common subexpressions
    grid = Grid((15, 16, 17))
    u = noise(TimeFunction(name='u', grid=grid, space_order=4), 1)
    theta = noise(Function(name='theta', grid=grid, space_order=4), 2)
    a = cos(theta)*u.dx + sin(theta)*u.dz
    e = (a*cos(theta)).dx + (a*sin(theta)).dz
    operator([Eq(u.forward, u + 1e-4*e)]).apply(time_M=3)
    yield u.data


@program
def weights(operator):
    grid = Grid((15, 16))
    u = noise(TimeFunction(name='u', grid=grid, space_order=8), 1)
    operator([Eq(u.forward, u + 1e-4*u.laplace)], expand=False).apply(time_M=3)
    yield u.data


@program
def elastic(operator):
    grid = Grid((15, 14))
    v = VectorTimeFunction(name='v', grid=grid, space_order=4)
    tau = TensorTimeFunction(name='tau', grid=grid, space_order=4)
    for n, i in enumerate([*v, tau[0, 0], tau[1, 1], tau[0, 1]]):
        noise(i, n)
    strain = grad(v.forward) + grad(v.forward).transpose(inner=False)
    stress = diag(div(v.forward)) + strain
    operator([Eq(v.forward, v + 1e-3*div(tau)),
              Eq(tau.forward, tau + 1e-3*stress)]).apply(time_M=5)
    yield from (i.data for i in (*v, tau[0, 0], tau[1, 1], tau[0, 1]))


@program
def staggered(operator):
    grid = Grid((15, 14))
    x, y = grid.dimensions
    p = fill(TimeFunction(name='p', grid=grid, space_order=4))
    vx = TimeFunction(name='vx', grid=grid, space_order=4, staggered=x)
    operator([Eq(vx.forward, vx + 1e-3*p.dx),
              Eq(p.forward, p + 1e-3*vx.forward.dx)]).apply(time_M=4)
    yield from (p.data, vx.data)


@program
def sequential(operator):
    # Without any parallelism
    x = Dimension('x')
    f = Function(name='f', dimensions=(x,), shape=(20,))
    f.data[:] = np.arange(20) % 3
    operator([Eq(f[x + 1], f[x + 1] + f[x])]).apply()
    yield f.data


@program
def in_place(operator):
    # Sequential, with a scalar, and all that there is in the Operator
    grid = Grid((9, 10))
    u = fill(Function(name='u', grid=grid, space_order=2))
    v = fill(Function(name='v', grid=grid, space_order=2))
    weights = np.array([1, 2, 1])
    operator([Eq(u, 1e-3*(v*u.dx).dy(weights=weights))], expand=False).apply()
    yield u.data


@program
def time_within(operator):
    # Loops over time within a parallel one, with a section that Devito times
    grid = Grid((9, 10))
    time = grid.time_dim
    w = Function(name='w', dimensions=(time,), shape=(8,))
    w.data[:] = np.arange(8)
    f = fill(Function(name='f', grid=grid))
    g = fill(Function(name='g', grid=grid))
    operator([Eq(f, f + w[time]), Eq(g, g/2 + sqrt(w[time]))]).apply(time_M=6)
    yield from (f.data, g.data)


@program
def names(operator):
    # Those of the user's, which generated code has names of its own beside
    grid = Grid((9, 10))
    time = grid.time_dim
    w = Function(name='v2', dimensions=(time,), shape=(12,))
    w.data[:] = 1
    v = fill(TimeFunction(name='v0', grid=grid))
    s = points(SparseTimeFunction(name='v1', grid=grid, npoint=5, nt=12), grid)
    s.data[:] = 1
    operator([Eq(w[time + 1], w[time]/2 + 1), Eq(v.forward, v + sqrt(w[time])),
              s.inject(v.forward, expr=s)]).apply(time_M=4)
    yield from (w.data, v.data)


@program
def points_in_time(operator):
    # Values that live in time only, and are written
    grid = Grid((9, 10))
    time = grid.time_dim
    w = Function(name='w', dimensions=(time,), shape=(12,))
    w.data[:] = 1
    u = fill(TimeFunction(name='u', grid=grid))
    a = Constant(name='a', value=2.)
    operator([Eq(w[time + 1], a*w[time] - 1), Eq(u.forward, u + sqrt(w[time]))]).apply(
        time_M=8)
    yield from (w.data, u.data)


@program
def created(operator):
    # On the device only, from zero
    grid = Grid((9, 10))
    u = TimeFunction(name='u', grid=grid, space_order=2)
    if not operator.on_device:
        u.data[:] = 0
    else:
        u.data[:] = 77
    op = operator([Eq(u.forward, u + u.laplace + 1)],
                  **({'gpu-create': u} if operator.on_device else {}))
    op.apply(time_M=4)
    yield u.data


@program
def kept(operator):
    # What stays on the device is not copied again
    grid = Grid((9, 10))
    f = fill(Function(name='f', grid=grid))
    g = Function(name='g', grid=grid)
    op = operator([Eq(g, f + 1)])
    keep = {'devicerm': 0} if operator.on_device else {}
    op.apply(**keep)
    yield g.data.copy()
    op.apply(**keep)
    h = Function(name='h', grid=grid)
    operator([Eq(h, f + g)]).apply()
    yield from (g.data, h.data)


@program
def unstable(operator):
    grid = Grid((9, 10))
    u = TimeFunction(name='u', grid=grid, space_order=2)
    u.data[:] = 1
    op = operator([Eq(u.forward, 1e9*u)], errctl='max')
    try:
        op.apply(time_M=500)
        yield np.array([0])
    except Exception as e:
        assert 'nan' in str(e), e
        yield np.array([1])


@program
def long_indices(operator):
    grid = Grid((9, 10))
    u = fill(TimeFunction(name='u', grid=grid, space_order=2))
    op = operator([Eq(u.forward, u + u.dx)], **{'index-mode': 'int64'})
    op.apply(time_M=4)
    yield u.data


@program
def windows(operator):
    grid = Grid((9, 10))
    u = fill(TimeFunction(name='u', grid=grid))
    op = operator([Eq(u.forward, u + 1)])
    op.apply(time_M=2, x_m=2, x_M=5)
    # Nothing to do
    op.apply(time_M=2, x_m=5, x_M=4)
    yield u.data


@program
def aliased(operator):
    # One array under two names
    grid = Grid((9, 10))
    f = fill(Function(name='f', grid=grid))
    g = Function(name='g', grid=grid)
    h = Function(name='h', grid=grid)
    operator([Eq(h, f + 2*g)]).apply(g=f)
    yield h.data


def buffered(operator, mode, **options):
    grid = Grid((9, 10))
    u = fill(TimeFunction(name='u', grid=grid))
    usave = TimeFunction(name='usave', grid=grid, save=12)
    gpu = operator.on_device
    kw = {'mode': mode, **options} if gpu else {}
    operator([Eq(u.forward, u + 1), Eq(usave, u.forward)], **kw).apply(time_M=10)
    v = TimeFunction(name='v', grid=grid)
    g = Function(name='g', grid=grid)
    operator([Eq(v.backward, v + usave), Inc(g, usave*v)],
             **kw).apply(time_M=10, time_m=1)
    yield from (u.data, usave.data, v.data, g.data)


@program
def tasking(operator):
    yield from buffered(operator, ('buffering', 'tasking', 'streaming', 'orchestrate'))


@program
def tasking_optimised(operator):
    yield from buffered(operator, ('buffering', 'tasking', 'topofuse', 'streaming',
                                   'orchestrate', 'linearize'))


@program
def tasking_deep(operator):
    yield from buffered(operator, ('buffering', 'tasking', 'streaming', 'orchestrate'),
                        **{'buf-async-degree': 4})


@program
def tasking_parallel(operator):
    # Copies by several threads of the host
    yield from buffered(operator, ('buffering', 'tasking', 'streaming', 'orchestrate'),
                        **{'par-disabled': False})


@program
def ring(operator):
    # As many time steps as asked for, no more than needed
    grid = Grid((9, 10))
    u = fill(TimeFunction(name='u', grid=grid, save=Buffer(2)))
    operator([Eq(u.forward, u + 1)]).apply(time_M=5)
    yield u.data


@program
def subsampled_space(operator):
    grid = Grid((12, 14))
    x, y = grid.dimensions
    cx = ConditionalDimension('cx', parent=x, factor=2)
    cy = ConditionalDimension('cy', parent=y, factor=3)
    f = fill(Function(name='f', grid=grid))
    g = Function(name='g', dimensions=(cx, cy), shape=(6, 5))
    operator([Eq(g, f)]).apply()
    yield g.data


@program
def precomputed(operator):
    grid = Grid((12, 14))
    s = PrecomputedSparseTimeFunction(
        name='s', grid=grid, r=2, npoint=3, nt=6,
        gridpoints=np.array([[1, 2], [5, 6], [7, 1]]),
        interpolation_coeffs=np.arange(12).reshape(3, 2, 2))
    s.data[:] = 1
    u = fill(TimeFunction(name='u', grid=grid))
    operator([Eq(u.forward, u), s.inject(u.forward, expr=s)]).apply(time_M=4)
    operator([s.interpolate(u)]).apply(time_M=4)
    yield from (u.data, s.data)


@program
def four_dimensions(operator):
    # More parallel loops than a grid has axes
    grid = Grid((5, 6, 7))
    u = TimeFunction(name='u', grid=grid, save=8)
    operator([Eq(u, 3)]).apply()
    i = Dimension('i')
    n = Function(name='n', dimensions=(i,), shape=(1,))
    operator([Inc(n[0], u)]).apply()
    yield from (u.data, n.data)


@program
def functions_of_minmax(operator):
    grid = Grid((9, 10))
    f = fill(Function(name='f', grid=grid))
    g = Function(name='g', grid=grid)
    operator([Eq(g, Max(f, 1) + Min(f, -1) + Abs(f) + sqrt(Abs(f)))]).apply()
    yield g.data


def sources(name, mode='advanced', target=DEVICE, options=None):
    """The Operators of a program, built only."""
    label = '_'.join([name, mode] if isinstance(mode, str) else [name, *mode])
    operator = Operators(target, mode, name=label.replace('-', '_'), run=False,
                         options=options)
    for _ in PROGRAMS[name](operator):
        pass
    return operator.made


def results(name, target, mode):
    return [np.array(i, copy=True) for i in PROGRAMS[name](Operators(target, mode))]


def compare(name, mode, target=DEVICE):
    """Run a program on both, and raise unless the results are the same."""
    # They round alike then
    configuration['safe-math'] = True
    expected = results(name, HOST, 'advanced')
    found = results(name, target, mode)
    assert len(found) == len(expected)
    for i, j in zip(found, expected, strict=True):
        assert np.any(j != 0), 'all zero'
        assert np.allclose(i, j, rtol=2e-5, atol=2e-5*np.max(np.abs(j))), \
            f'{np.max(np.abs(i - j))} off'


def run_code(code, env, output):
    """Run code, in this module, in a process that is about to end."""
    fd = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.environ.update(env)
    tempfile.tempdir = env['TMPDIR']
    configuration['log-level'] = 'ERROR'
    exec(code, globals())


if __name__ == '__main__':
    where = 'emulated' if os.environ.get('DEVITOCOMP_EMULATE') == '1' else 'on a device'
    if sys.argv[1:] == ['--list']:
        print(*PROGRAMS)
    elif sys.argv[1] == 'all':
        for i in PROGRAMS:
            compare(i, (sys.argv + ['advanced'])[2])
            print(f'{i}: same ({where})')
    else:
        compare(sys.argv[1], (sys.argv + ['advanced'])[2])
        print(f'same ({where})')
