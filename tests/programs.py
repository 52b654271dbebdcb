"""
The programs of the acceptance suites: what a user may do with saved TimeFunctions.

Each runs twice, with dense and with compressed functions, and returns the arrays to
compare together with the error amplification of each: the sum of the absolute weights
with which snapshots enter it (0 if it must not depend on what compression loses).
"""

import numpy as np
from devito import (
    ConditionalDimension,
    Eq,
    Function,
    Ge,
    Grid,
    Gt,
    Inc,
    Le,
    Lt,
    Operator,
    SparseTimeFunction,
    SubDomain,
    TimeFunction,
    VectorTimeFunction,
    mmax,
    mmin,
    norm,
    solve,
    sumall,
)
from sympy import And

import devitocomp_plugin as dcp

programs = {}


def program(function):
    programs[function.__name__] = function
    return function


class Environment:

    """
    Where a program runs.

    Parameters
    ----------
    compression : DevitoComp or None
        None for dense functions.
    shape : tuple of int
    layers : Layers, optional
    serialization : str or Path, optional
    **kwargs
        Passed on to every Operator.
    """

    def __init__(self, compression=None, shape=(11, 12, 13), layers=None,
                 serialization=None, **kwargs):
        self.saving = {}
        if compression is not None:
            self.saving = {'compression': compression, 'layers': layers,
                           'serialization': serialization}
        self.opkwargs = kwargs
        self.grid = Grid(shape=shape, extent=tuple(i - 1. for i in shape))
        self.saved = []

    @property
    def time(self):
        return self.grid.time_dim

    def save(self, name, n, cls=dcp.TimeFunction, **kwargs):
        """A function with a history."""
        kwargs.setdefault('space_order', 2)
        kwargs.setdefault('grid', self.grid)
        f = cls(name=name, save=n, **self.saving, **kwargs)
        self.saved.append(f)
        return f

    def wave(self, name='u', **kwargs):
        """A propagated function, and an equation that advances it."""
        kwargs.setdefault('space_order', 4)
        u = TimeFunction(name=name, grid=self.grid, time_order=2, **kwargs)
        u.data[:] = 0
        center = tuple(i // 2 for i in self.grid.shape)
        u.data[(slice(None), *center)] = 1.
        # A source term in each step, so that no snapshot is like another
        src = self.noise('src' + name)
        return u, Eq(u.forward, 2*u - u.backward + 0.1*u.laplace + 0.01*self.time*src)

    def noise(self, name, seed=0, **kwargs):
        f = Function(name=name, grid=self.grid, **kwargs)
        rng = np.random.default_rng(seed)
        # Global shape and indices, as under MPI Devito hands out each rank's part
        f.data[:] = (rng.integers(-8, 8, size=f.shape_global)/8).astype(f.dtype)
        return f

    def operator(self, eqs, **kwargs):
        # Constant spacings, so that -ffast-math leaves no room for other roundings
        subs = {**self.grid.spacing_map, self.time.spacing: 1., **kwargs.pop('subs', {})}
        return Operator(eqs, subs=subs, **{**self.opkwargs, **kwargs})

    def run(self, eqs, **kwargs):
        opkwargs = {k: kwargs.pop(k) for k in ('name', 'subs') if k in kwargs}
        return self.operator(eqs, **opkwargs).apply(**kwargs)

    @property
    def scale(self):
        """The largest value in any saved snapshot."""
        scales = [np.max(np.abs(np.asarray(c.data))) for f in self.saved
                  for c in (f if hasattr(f, 'is_VectorValued') else [f])]
        return float(max(scales, default=0.))


def dense(f):
    return np.array(f.data)


def forward(env, n=9, name='usave', **kwargs):
    """Propagate, saving every step."""
    u, stencil = env.wave()
    usave = env.save(name, n, **kwargs)
    env.run([stencil, Eq(usave, u)], time_M=n-1)
    return u, usave


def accumulate(g, expr):
    # Unlike Inc, which may sum in any order, the same to the bit in any loop nest
    return Eq(g, g + expr)


# *** Saving

@program
def save_full_axis(env):
    u, usave = forward(env)
    return {'usave': (dense(usave), 1), 'u': (dense(u), 0)}


@program
def save_before_stencil(env):
    u, stencil = env.wave()
    usave = env.save('usave', 9)
    env.run([Eq(usave, u), stencil], time_M=8)
    return {'usave': (dense(usave), 1), 'u': (dense(u), 0)}


@program
def save_forward(env):
    u, stencil = env.wave()
    usave = env.save('usave', 10)
    env.run([stencil, Eq(usave.forward, u.forward)], time_M=8)
    return {'usave': (dense(usave), 1)}


@program
def save_backward(env):
    u, _ = env.wave()
    stencil = Eq(u.backward, 2*u - u.forward + 0.1*u.laplace)
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u)], time_m=0, time_M=8)
    return {'usave': (dense(usave), 1), 'u': (dense(u), 0)}


@program
def save_factor(env):
    u, stencil = env.wave()
    t_sub = ConditionalDimension('t_sub', parent=env.time, factor=3)
    usave = env.save('usave', 6, time_dim=t_sub)
    env.run([stencil, Eq(usave, u)], time_M=16)
    return {'usave': (dense(usave), 1), 'u': (dense(u), 0)}


@program
def save_condition(env):
    u, stencil = env.wave()
    cond = ConditionalDimension('cond', parent=env.time,
                                condition=Ge(env.time, 3) & Le(env.time, 6))
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u, implicit_dims=cond)], time_M=8)
    return {'usave': (dense(usave), 1)}


@program
def save_factor_and_condition(env):
    u, stencil = env.wave()
    t_sub = ConditionalDimension('t_sub', parent=env.time, factor=2,
                                 condition=Gt(env.time, 4))
    usave = env.save('usave', 8, time_dim=t_sub)
    env.run([stencil, Eq(usave, u)], time_M=14)
    return {'usave': (dense(usave), 1)}


@program
def save_condition_on_data(env):
    u, stencil = env.wave()
    x, y, z = env.grid.dimensions
    flag = TimeFunction(name='flag', dimensions=(env.time,), shape=(9,),
                        time_dim=env.time)
    flag.data[:] = [0, 1, 1, 0, 1, 0, 0, 1, 1]
    cond = ConditionalDimension('cond', parent=env.time, condition=Gt(flag, 0))
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u, implicit_dims=cond)], time_M=8)
    return {'usave': (dense(usave), 1)}


@program
def save_conditionally_and_read(env):
    """Written under a condition, read without and under another."""
    u, stencil = env.wave()
    usave = forward(env)[1]
    conds = [ConditionalDimension(f'cond{n}', parent=env.time, condition=c)
             for n, c in enumerate([Gt(env.time, 3), Le(env.time, 6)])]
    g, h, k = (Function(name=i, grid=env.grid) for i in 'ghk')
    m = env.noise('m', seed=6)
    expr = (env.time + 1)*usave
    env.run([stencil, Eq(usave, u + m, implicit_dims=conds[0]), accumulate(g, expr),
             Eq(usave, usave + m, implicit_dims=conds[1]),
             Eq(h, h + expr, implicit_dims=conds[0]), accumulate(k, expr)], time_M=8)
    return {'usave': (dense(usave), 3), 'g': (dense(g), 90), 'h': (dense(h), 135),
            'k': (dense(k), 135)}


@program
def save_expression(env):
    u, stencil = env.wave()
    m = env.noise('m', seed=1)
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u.dt2*m + 1)], time_M=8)
    return {'usave': (dense(usave), 1)}


@program
def save_two_functions(env):
    u, stencil = env.wave()
    usave, vsave = env.save('usave', 9), env.save('vsave', 9, space_order=4)
    env.run([stencil, Eq(usave, u), Eq(vsave, u.laplace + u)], time_M=8)
    return {'usave': (dense(usave), 1), 'vsave': (dense(vsave), 1)}


@program
def save_twice_in_a_step(env):
    u, stencil = env.wave()
    usave = env.save('usave', 9)
    env.run([Eq(usave, u), stencil, Eq(usave, usave + u.forward)], time_M=8)
    return {'usave': (dense(usave), 2)}


@program
def save_after_injection(env):
    u, stencil = env.wave()
    src = sparse(env, 'src')
    usave = env.save('usave', 9)
    env.run([stencil] + src.inject(field=u.forward, expr=src) + [Eq(usave, u)], time_M=8)
    return {'usave': (dense(usave), 1)}


@program
def save_before_injection(env):
    u, stencil = env.wave()
    src = sparse(env, 'src')
    usave = env.save('usave', 9)
    env.run([Eq(usave, u)] + src.inject(field=u, expr=src) + [stencil], time_M=8)
    return {'usave': (dense(usave), 1), 'u': (dense(u), 0)}


@program
def save_between_updates(env):
    """A copy of what changes before and after, in the same loop over space."""
    u, stencil = env.wave()
    src = env.noise('src')
    usave, vsave, wsave = (env.save(f'{i}save', 9) for i in 'uvw')
    env.run([Eq(usave, u), Eq(u, u + env.time*src), Eq(vsave, u), Eq(u, u - 1),
             Eq(wsave, u), stencil], time_M=8)
    return {i.name: (dense(i), 1) for i in (usave, vsave, wsave)}


@program
def save_condition_that_changes(env):
    """A condition on what the same iteration computes."""
    u, stencil = env.wave()
    x, y, z = env.grid.dimensions
    g = Function(name='g', grid=env.grid)
    g.data[:] = 1.
    origin = g[(0,)*len(g.dimensions)]
    cond = ConditionalDimension('cond', parent=env.time, condition=Gt(origin, 0))
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u, implicit_dims=cond), Eq(g, 3.5 - env.time)], time_M=8)
    return {'usave': (dense(usave), 1), 'g': (dense(g), 0)}


@program
def inject_into_saved(env):
    u, stencil = env.wave()
    src = sparse(env, 'src')
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u)] + src.inject(field=usave, expr=src), time_M=8)
    return {'usave': (dense(usave), 2)}


@program
def inject_only(env):
    src = sparse(env, 'src')
    usave = env.save('usave', 9)
    env.run(src.inject(field=usave, expr=src), time_M=8)
    env.run(src.inject(field=usave, expr=2*src), time_m=2, time_M=5)
    return {'usave': (dense(usave), 3)}


@program
def increment(env):
    u, usave = forward(env)
    env.run(Inc(usave, 2*u.forward), time_m=2, time_M=5)
    return {'usave': (dense(usave), 2)}


@program
def rewrite(env):
    u, usave = forward(env)
    env.run(Eq(usave, env.time*usave + 1), time_m=1, time_M=7)
    env.run(Eq(usave, u), time_m=3, time_M=5)
    return {'usave': (dense(usave), 8)}


@program
def windows(env):
    u, stencil = env.wave()
    usave = env.save('usave', 12)
    op = env.operator([stencil, Eq(usave, u)])
    for m, M in ((2, 4), (5, 5), (6, 9)):
        op.apply(time_m=m, time_M=M)
    return {'usave': (dense(usave), 1), 'u': (dense(u), 0)}


@program
def partial_bounds(env):
    u, usave = forward(env)
    env.run(Eq(usave, 10.), time_m=2, time_M=4, x_m=3, x_M=5, y_m=1)
    return {'usave': (dense(usave), 20)}


@program
def partial_bounds_of_copy(env):
    u, usave = forward(env)
    env.run(Eq(usave, u), time_m=2, time_M=4, x_m=3, z_M=5)
    return {'usave': (dense(usave), 2)}


@program
def subdomains(env):
    class Inner(SubDomain):
        name = 'inner'

        def define(self, dimensions):
            x, y, z = dimensions
            return {x: ('middle', 2, 3), y: ('left', 4), z: z}

    inner = Inner(grid=env.grid)
    u, stencil = env.wave()
    usave = env.save('usave', 9)
    env.run([stencil, Eq(usave, u), Eq(usave, 3*u, subdomain=inner)], time_M=8)
    env.run([Eq(usave, usave + 1, subdomain=inner)], time_m=1, time_M=3)
    return {'usave': (dense(usave), 6)}


@program
def rewrite_partly(env):
    """What a first write leaves alone stays as it was."""
    class Inner(SubDomain):
        name = 'inner'

        def define(self, dimensions):
            return {d: ('middle', 2, 3) for d in dimensions}

    _, usave = forward(env)
    x, y, z = env.grid.dimensions
    m = env.noise('m', seed=5)
    env.run(Eq(usave, m, subdomain=Inner(grid=env.grid)), time_m=1, time_M=3)
    env.run(Eq(usave[env.time, 0, y, z], 5.), time_m=2, time_M=5)
    cond = ConditionalDimension('cond', parent=z, condition=Gt(m, 0))
    env.run(Eq(usave, m, implicit_dims=cond), time_m=4, time_M=6)
    # Some snapshots are compressed thrice
    return {'usave': (dense(usave), 3)}


@program
def boundary_points(env):
    u, stencil = env.wave()
    x, y, z = env.grid.dimensions
    usave = env.save('usave', 9)
    t = env.time
    env.run([stencil, Eq(usave, u), Eq(usave[t, 0, y, z], 0.), Eq(usave[t, x, 3, z], 2.)],
            time_M=8)
    return {'usave': (dense(usave), 1)}


@program
def assign_data(env):
    usave = env.save('usave', 6)
    rng = np.random.default_rng(3)
    values = rng.integers(-8, 8, size=usave.shape).astype(np.float32)
    usave.data[:] = values
    usave.data[2] = 7.
    usave.data[3, 2:5, :, 1] = values[0, 2:5, :, 1]
    usave.data[-1, ..., 0] = 3.
    usave.data[1:5:2] += 1
    return {'usave': (dense(usave), 4), 'item': (dense(usave)[4, 1, 2], 4),
            'slice': (np.array(usave.data[1:4, 2]), 4)}


@program
def initializer(env):
    def init(data):
        data[:] = 2.
        data[1] = 3.

    usave = env.save('usave', 4, initializer=init)
    g = Function(name='g', grid=env.grid)
    env.run(accumulate(g, usave))
    return {'usave': (dense(usave), 1), 'g': (dense(g), 4)}


# *** Reading

@program
def read_forward(env):
    _, usave = forward(env)
    g = Function(name='g', grid=env.grid)
    env.run(accumulate(g, (env.time + 1)*usave))
    return {'g': (dense(g), 45)}


@program
def reduce_over_time(env):
    """A reduction, which with dense functions may be parallel over time."""
    usave = env.save('usave', 9)
    u = TimeFunction(name='u', grid=env.grid)
    src = env.noise('src')
    env.run([Eq(u.forward, u + 8*src), Eq(usave, u)], time_M=8)
    g = Function(name='g', grid=env.grid)
    env.run(Inc(g, (env.time + 1)*usave))
    return {'g': (dense(g), 45)}


@program
def read_backward(env):
    _, usave = forward(env)
    v, _ = env.wave('v')
    m = env.noise('m', seed=2)
    g = Function(name='g', grid=env.grid)
    env.run([Eq(v.backward, m + v), accumulate(g, usave*m)], time_m=0, time_M=8)
    return {'g': (dense(g), 9), 'v': (dense(v), 0)}


@program
def gradient(env):
    """The imaging condition of an adjoint propagation."""
    _, usave = forward(env)
    v, _ = env.wave('v')
    adjoint = Eq(v.backward, 2*v - v.forward + 0.1*v.laplace)
    g = Function(name='g', grid=env.grid)
    env.run([adjoint, Eq(g, g - usave*v.dt2)], time_m=1, time_M=8)
    amplification = 8*4*np.max(np.abs(dense(v)))
    return {'g': (dense(g), max(amplification, 1)), 'v': (dense(v), 0)}


@program
def read_subsampled(env):
    u, stencil = env.wave()
    t_sub = ConditionalDimension('t_sub', parent=env.time, factor=4)
    usave = env.save('usave', 5, time_dim=t_sub)
    env.run([stencil, Eq(usave, u)], time_M=18)
    g = Function(name='g', grid=env.grid)
    h = Function(name='h', grid=env.grid)
    env.run([accumulate(g, usave)], time_M=18)
    v = TimeFunction(name='v', grid=env.grid)
    env.run([Eq(v.backward, v + 1), accumulate(h, usave*v)], time_m=0, time_M=18)
    return {'g': (dense(g), 5), 'h': (dense(h), 100)}


@program
def read_under_inner_condition(env):
    """A condition inside the loops over space keeps the time index within bounds."""
    t_sub = ConditionalDimension('t_sub', parent=env.time, factor=4)
    usave = env.save('usave', 3, time_dim=t_sub)
    m = env.noise('m', seed=7)
    env.run(Eq(usave, m + t_sub), time_M=11)
    cond = ConditionalDimension('cond', parent=env.grid.dimensions[-1],
                                condition=And(Gt(m, 0), Lt(env.time, 12)))
    g = Function(name='g', grid=env.grid)
    env.run(Eq(g, g + usave, implicit_dims=cond), time_M=18)
    return {'g': (dense(g), 12)}


@program
def time_derivatives(env):
    _, usave = forward(env, time_order=2)
    out = {}
    for n, expr in enumerate([usave.dt, usave.dt2, usave.forward - usave.backward,
                              usave.dt2*usave.dt]):
        g = Function(name='g', grid=env.grid)
        env.run(accumulate(g, expr), time_m=1, time_M=7)
        out[f'g{n}'] = (dense(g), 7*4*max(1., 4*env.scale))
    return out


@program
def time_derivatives_backward(env):
    _, usave = forward(env, time_order=2)
    v, _ = env.wave('v')
    g = Function(name='g', grid=env.grid)
    env.run([Eq(v.backward, v + 1), accumulate(g, usave.dt2)], time_m=1, time_M=7)
    return {'g': (dense(g), 7*4)}


@program
def space_derivatives(env):
    _, usave = forward(env, space_order=4)
    out = {}
    for n, expr in enumerate([usave.laplace, usave.dx, usave.dx.dy, usave.dxl + usave.dzr,
                              usave.dt.dy]):
        g = Function(name='g', grid=env.grid)
        env.run(accumulate(g, expr), time_m=0, time_M=7)
        out[f'g{n}'] = (dense(g), 8*16)
    return out


@program
def many_equations(env):
    _, usave = forward(env, time_order=2)
    _, vsave = forward(env, name='vsave')
    a, b, c = (Function(name=i, grid=env.grid, space_order=2) for i in 'abc')
    env.run([accumulate(a, usave*2 + vsave.forward), accumulate(b, usave.forward - a),
             accumulate(c, usave.backward + b.dx + vsave)], time_m=1, time_M=7)
    return {i.name: (dense(i), s) for i, s in ((a, 21), (b, 91), (c, 400))}


@program
def read_and_write(env):
    _, usave = forward(env)
    wsave = env.save('wsave', 9)
    m = env.noise('m', seed=4)
    env.run(Eq(wsave, usave*m + usave.forward), time_M=7)
    return {'wsave': (dense(wsave), 3)}


@program
def read_modify_write(env):
    _, usave = forward(env)
    g = Function(name='g', grid=env.grid)
    env.run([accumulate(g, usave), Eq(usave, usave - g)], time_M=8)
    return {'usave': (dense(usave), 60), 'g': (dense(g), 60)}


@program
def shift_history(env):
    """Write one snapshot from a later one of the same function."""
    _, usave = forward(env)
    env.run(Eq(usave, usave.forward), time_M=7)
    return {'usave': (dense(usave), 2)}


@program
def interpolate(env):
    _, usave = forward(env)
    rec = sparse(env, 'rec')
    rec2 = sparse(env, 'rec2')
    env.run(rec.interpolate(usave) + rec2.interpolate(usave.dx + usave.forward), time_M=7)
    return {'rec': (dense(rec), 1), 'rec2': (dense(rec2), 2)}


@program
def interpolate_subsampled(env):
    u, stencil = env.wave()
    t_sub = ConditionalDimension('t_sub', parent=env.time, factor=2)
    usave = env.save('usave', 5, time_dim=t_sub)
    rec = sparse(env, 'rec')
    env.run([stencil, Eq(usave, u)] + rec.interpolate(usave), time_M=8)
    return {'rec': (dense(rec), 1), 'usave': (dense(usave), 1)}


@program
def constant_index(env):
    _, usave = forward(env)
    x, y, z = env.grid.dimensions
    g = Function(name='g', grid=env.grid)
    h = TimeFunction(name='h', grid=env.grid)
    env.run(Eq(g, usave[2, x, y, z] + 2*usave[7, x, y, z]))
    env.run(Eq(h.forward, h + usave[4, x, y, z]), time_M=5)
    return {'g': (dense(g), 3), 'h': (dense(h), 6)}


@program
def write_constant_index(env):
    u, stencil = env.wave()
    x, y, z = env.grid.dimensions
    usave = env.save('usave', 4)
    env.run([stencil, Eq(usave[2, x, y, z], u)], time_M=6)
    env.run([stencil, Inc(usave[1, x, y, z], u)], time_M=6)
    return {'usave': (dense(usave), 8)}


@program
def read_first_while_writing(env):
    """A constant time index, which some iteration writes."""
    u, stencil = env.wave()
    x, y, z = env.grid.dimensions
    usave = env.save('usave', 9)
    src = sparse(env, 'src')
    g = Function(name='g', grid=env.grid)
    env.run([Eq(usave, u)] + src.inject(field=u.forward, expr=src) +
            [stencil, accumulate(g, (env.time + 1)*usave[3, x, y, z])], time_M=8)
    return {'usave': (dense(usave), 1), 'g': (dense(g), 45)}


@program
def condition_on_compressed(env):
    _, usave = forward(env)
    x, y, z = env.grid.dimensions
    center = tuple(i // 2 for i in env.grid.shape)
    usave.data[(slice(None), *center)] = 0.
    usave.data[(5, *center)] = 1.
    usave.data[(6, *center)] = 2.
    cond = ConditionalDimension('cond', parent=env.time,
                                condition=Gt(usave[(env.time, *center)], 0.5))
    g = Function(name='g', grid=env.grid)
    h = TimeFunction(name='h', grid=env.grid)
    k = TimeFunction(name='k', grid=env.grid)
    env.run([Eq(h.forward, h + 1), Eq(g, g + 1, implicit_dims=cond),
             Eq(k.forward, k + h)], time_M=8)
    return {'g': (dense(g), 0), 'h': (dense(h), 0)}


@program
def never_written(env):
    usave = env.save('usave', 9)
    u, stencil = env.wave()
    env.run([stencil, Eq(usave, u)], time_m=3, time_M=5)
    g = Function(name='g', grid=env.grid)
    g.data[:] = 1.
    env.run(accumulate(g, usave + usave.laplace))
    return {'usave': (dense(usave), 1), 'g': (dense(g), 3*13)}


@program
def two_time_loops(env):
    u, stencil = env.wave()
    usave = env.save('usave', 9)
    rec = sparse(env, 'rec')
    g = Function(name='g', grid=env.grid)
    env.run([stencil, Eq(usave, u)] + rec.interpolate(usave) + [accumulate(g, usave)],
            time_M=8)
    return {'usave': (dense(usave), 1), 'g': (dense(g), 9), 'rec': (dense(rec), 1)}


@program
def builtins(env):
    _, usave = forward(env)
    n = usave.size_global if hasattr(usave, 'size_global') else usave.data.size
    return {'norm': (np.array([norm(usave)]), np.sqrt(n)),
            'sumall': (np.array([sumall(usave)]), n),
            'mmin': (np.array([mmin(usave)]), 1),
            'mmax': (np.array([mmax(usave)]), 1)}


# *** Advancing and saving the same function

def propagated(env, n=9, **kwargs):
    u = env.save('u', n, time_order=2, space_order=4, **kwargs)
    src = env.noise('src')
    stencil = Eq(u.forward, 2*u - u.backward + 0.1*u.laplace + 0.01*env.time*src)
    return u, stencil


@program
def propagate_saved(env):
    u, stencil = propagated(env)
    rec = sparse(env, 'rec')
    env.run([stencil] + rec.interpolate(u), time_m=1, time_M=7)
    return {'u': (dense(u), 1), 'rec': (dense(rec), 0)}


@program
def propagate_saved_with_source(env):
    u, stencil = propagated(env)
    src, rec = sparse(env, 'wavelet'), sparse(env, 'rec')
    g = Function(name='g', grid=env.grid)
    env.run([stencil] + src.inject(field=u.forward, expr=src) + rec.interpolate(u)
            + [accumulate(g, u)], time_m=1, time_M=7)
    return {'u': (dense(u), 1), 'rec': (dense(rec), 0), 'g': (dense(g), 0)}


@program
def propagate_saved_backward(env):
    v = env.save('v', 9, time_order=2, space_order=4)
    src = env.noise('src')
    rec = sparse(env, 'rec')
    stencil = Eq(v.backward, 2*v - v.forward + 0.1*v.laplace + 0.01*env.time*src)
    env.run([stencil] + rec.interpolate(v), time_m=1, time_M=7)
    return {'v': (dense(v), 1), 'rec': (dense(rec), 0)}


@program
def propagate_saved_from_data(env):
    u, stencil = propagated(env)
    center = tuple(i // 2 for i in env.grid.shape)
    u.data[0] = 1.
    u.data[(1, *center)] = 2.
    env.run(stencil, time_m=1, time_M=4)
    env.run(stencil, time_m=5, time_M=7)
    # What is lost of the initial snapshots grows by this much in seven steps
    return {'u': (dense(u), 2e4)}


@program
def propagate_saved_subdomain(env):
    u, _ = propagated(env)
    src = env.noise('src')
    interior = env.grid.interior
    x, y, z = env.grid.dimensions
    t = env.time
    # What the equations leave alone, on the other sides, differs from step to step
    env.run(Eq(u, (t + 1)*src), time_M=8)
    env.run([Eq(u.forward, 2*u - u.backward + 0.1*u.laplace + 0.01*t*src,
                subdomain=interior),
             Eq(u[t + 1, 0, y, z], 0.5)], time_m=1, time_M=7)
    return {'u': (dense(u), 100)}


@program
def propagate_first_order(env):
    u = env.save('u', 9, time_order=1)
    src = env.noise('src')
    env.run(Eq(u.forward, u + src), time_M=7)
    return {'u': (dense(u), 1)}


# *** Other functions

@program
def vector(env):
    src = env.noise('src')
    v = VectorTimeFunction(name='v', grid=env.grid, space_order=2, time_order=1)
    vsave = env.save('vsave', 6, cls=dcp.VectorTimeFunction)
    env.run([Eq(i, src + n) for n, i in enumerate(v)], time_M=1)
    eqs = [Eq(v.forward, v + 0.1*v.laplace + env.time*v)]
    env.run(eqs + [Eq(vsave, v)], time_M=5)
    g = Function(name='g', grid=env.grid, space_order=2)
    env.run(accumulate(g, sum(i for i in vsave)), time_M=5)
    return {**{i.name: (dense(i), 1) for i in vsave}, 'g': (dense(g), 6*6)}


@program
def staggered(env):
    x, y, z = env.grid.dimensions
    u = TimeFunction(name='u', grid=env.grid, staggered=x, space_order=2)
    usave = env.save('usave', 6, staggered=x)
    src = env.noise('src')
    env.run([Eq(u.forward, u + env.time*src), Eq(usave, u)], time_M=5)
    g = Function(name='g', grid=env.grid, staggered=y, space_order=2)
    h = Function(name='h', grid=env.grid)
    env.run([accumulate(g, usave), accumulate(h, usave.dx)], time_M=5)
    return {'usave': (dense(usave), 1), 'g': (dense(g), 6), 'h': (dense(h), 12)}


@program
def override(env):
    u, stencil = env.wave()
    usave = env.save('usave', 9)
    other = env.save('other', 12)
    op = env.operator([stencil, Eq(usave, u)])
    op.apply(time_M=4)
    op.apply(usave=other, time_m=5, time_M=11)
    g = Function(name='g', grid=env.grid)
    op = env.operator(accumulate(g, usave.laplace))
    op.apply(usave=other)
    op.apply()
    return {'usave': (dense(usave), 1), 'other': (dense(other), 1), 'g': (dense(g), 252)}


@program
def solved(env):
    """Devito's own way to write a propagator."""
    m = Function(name='m', grid=env.grid)
    m.data[:] = 4.
    u = TimeFunction(name='u', grid=env.grid, time_order=2, space_order=4)
    u.data[:] = 0
    src = sparse(env, 'src', nt=12)
    stencil = Eq(u.forward, solve(m*u.dt2 - u.laplace, u.forward))
    usave = env.save('usave', 12)
    env.run([stencil] + src.inject(field=u.forward, expr=src) + [Eq(usave, u)], time_M=11)
    return {'usave': (dense(usave), 1)}


# Several MPI ranks can run all but these, which Devito refuses, or (conditions on one
# point) gets wrong, also where functions are dense
parallel_programs = [i for i in programs if i not in (
    'assign_data', 'partial_bounds', 'partial_bounds_of_copy', 'condition_on_compressed',
    'save_condition_that_changes'
)]


def sparse(env, name, npoint=5, nt=9):
    s = SparseTimeFunction(name=name, grid=env.grid, npoint=npoint, nt=nt)
    rng = np.random.default_rng(npoint)
    extent = np.array(env.grid.extent)
    s.coordinates.data[:] = rng.integers(1, 7, size=(npoint, len(extent)))/8*extent
    s.data[:] = rng.integers(-8, 8, size=(nt, npoint))/4
    return s


