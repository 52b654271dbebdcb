"""
Gradients with different physics, whose forward wavefields are saved.

A problem is a Shot of the examples that says which of its fields are saved, and how they
are correlated with those of the adjoint run.
"""

import warnings

import numpy as np
from acoustic import Shot, ricker
from devito import (
    ConditionalDimension,
    Eq,
    Function,
    Operator,
    SparseTimeFunction,
    TensorFunction,
    VectorFunction,
    diag,
    div,
    grad,
    solve,
)
from devito import TensorTimeFunction as PlainTensor
from devito import TimeFunction as Plain
from devito import VectorTimeFunction as PlainVector
from sympy.utilities.exceptions import SymPyDeprecationWarning

from devitocomp_plugin import TensorTimeFunction, TimeFunction, VectorTimeFunction

__all__ = ['Bare', 'components', 'problems']

# About vectors and tensors, in Devito
warnings.filterwarnings('ignore', category=SymPyDeprecationWarning)


def components(functions):
    """The scalar functions that scalars, vectors and tensors are made of."""
    found = {}
    for i in functions:
        found.update((j.name, j) for j in (i if i.is_Matrix else (i,)))
    return list(found.values())


class Problem(Shot):

    """
    Forward and adjoint runs, and the gradient between them.

    Subclasses add the equations, and

    state, adjoint_state
        The fields of either run.
    saved
        Those of the state that are saved.
    correlation
        What the gradient gains in a step, given the snapshots of `saved`.
    """

    factor = 1
    """One of so many steps is saved."""

    history_order = 0
    """The space order of what is saved into."""

    def __init__(self, vp, vp0, spacing, nbl, space_order, freq, **kwargs):
        self.freq = freq
        self.space_order = space_order
        super().__init__(vp, vp0, spacing, nbl, space_order, freq, **kwargs)

    def _parameter(self, name, values):
        # Derived, or evaluated between points
        f = Function(name=name, grid=self.grid, space_order=self.space_order)
        f.data_with_halo[:] = np.pad(values, f.halo, mode='edge')
        return f

    def field(self, kind, name, time_order):
        return kind(name=name, grid=self.grid, time_order=time_order,
                    space_order=self.space_order)

    def shorten_steps(self, by):
        """For waves that are faster than those the time step was made for."""
        self.dt *= float(by)
        self.src.data[:, 0] = ricker(self.dt*np.arange(self.nt), self.freq)

    def make_histories(self, steps=None, **kwargs):
        """
        What to save into: a function for each in `saved`, of the same kind.

        Parameters
        ----------
        steps : int, optional
            Defaults to all of them.
        **kwargs
            Of devitocomp_plugin.TimeFunction.
        """
        time_dim = self.grid.time_dim
        if self.factor > 1:
            time_dim = ConditionalDimension('t_sub', parent=time_dim, factor=self.factor)
        save = self.snapshots(steps or self.nt)
        return [_of_kind(i, TimeFunction, VectorTimeFunction, TensorTimeFunction)(
            name=f'{i.name}save', grid=self.grid, space_order=self.history_order,
            time_dim=time_dim, save=save, **kwargs) for i in self.saved]

    def make_snapshots(self):
        """A single snapshot of each in `saved`."""
        return [_of_kind(i, Function, VectorFunction, TensorFunction)(
            name=f'{i.name}snap', grid=self.grid, space_order=self.history_order)
            for i in self.saved]

    def make_gradient(self):
        return Function(name='grad', grid=self.grid)

    def points(self, steps):
        """Source and receivers as they are, with room for fewer steps."""
        return [SparseTimeFunction(name=i.name, grid=self.grid, nt=steps, npoint=i.npoint,
                                   coordinates=np.array(i.coordinates.data))
                for i in (self.src, self.rec, self.residual)]

    def snapshots(self, steps):
        """How many there are of each function saved."""
        return -(-steps // self.factor)

    @property
    def dense_bytes(self):
        """What uncompressed snapshots take."""
        points = int(np.prod(self.grid.shape))*len(components(self.saved))
        return points*self.grid.dtype().itemsize*self.snapshots(self.nt)

    def forward_operator(self, histories=()):
        """Forward propagation, saving into histories if there are any."""
        save = [Eq(i, j) for i, j in zip(histories, self.saved, strict=False)]
        return Operator(self.forward + save, subs=self.subs, name='Forward')

    def gradient_operator(self, histories=(), gradient=None):
        """Adjoint propagation, correlated with histories if there are any."""
        image = []
        if gradient is not None:
            gain = self.factor*self.correlation(histories)
            image = [Eq(gradient, gradient + gain)]
        return Operator(self.adjoint + image, subs=self.subs, name='Gradient')

    def reset(self):
        for i in components(self.state + self.adjoint_state):
            i.data.fill(0)


def _of_kind(function, scalar, vector, tensor):
    if not function.is_Matrix:
        return scalar
    return vector if 1 in function.shape else tensor


class Acoustic(Problem):

    """Saves the pressure; with respect to squared slowness."""

    # As in the examples
    _parameter = Shot._parameter

    state = saved = property(lambda self: [self.u])
    adjoint_state = property(lambda self: [self.v])

    def correlation(self, histories):
        return -histories[0]*self.v.dt2


class Bare(Acoustic):

    """Acoustic, without anything that grows with the number of steps but the source."""

    @property
    def forward(self):
        return super().forward[:2]

    @property
    def adjoint(self):
        return super().adjoint[:1]

    def points(self, steps):
        return super().points(steps)[:1]


class TTI(Problem):

    """
    Tilted transverse isotropy: two pressures, coupled by operators that are self-adjoint,
    both of which are saved.
    """

    epsilon, delta = 0.15, 0.08
    tilt, azimuth = 0.5, 0.3

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.shorten_steps(1/np.sqrt(1 + 2*self.epsilon))
        self.p, self.r, self.q, self.s = (self.field(Plain, i, 2) for i in 'prqs')
        self.state = self.saved = [self.p, self.r]
        self.adjoint_state = [self.q, self.s]

        # The axis of symmetry is upright at the surface
        tilt = self.tilt*np.linspace(0, 1, self.grid.shape[-1])
        axis = (np.sin(tilt)*np.cos(self.azimuth), np.sin(tilt)*np.sin(self.azimuth),
                np.cos(tilt))
        self.axis = [self._parameter(f'a{i}', np.broadcast_to(a, self.grid.shape))
                     for i, a in enumerate(axis)]
        self.slopes = [Function(name=f'slope{i}', grid=self.grid,
                                space_order=self.space_order) for i in range(2)]

    def _slopes(self, fields):
        """The derivatives of two fields along the axis."""
        return [Eq(i, sum(a*getattr(f, f'd{d.name}')
                          for a, d in zip(self.axis, self.grid.dimensions, strict=True)))
                for i, f in zip(self.slopes, fields, strict=True)]

    def _along(self, slope):
        """The second derivative along the axis, of what has this slope."""
        return sum(getattr(a*slope, f'd{d.name}')
                   for a, d in zip(self.axis, self.grid.dimensions, strict=True))

    def _advance(self, f, goal, sign, space):
        pde = self.m*f.dt2 + sign*self.sponge*f.dtc - space
        return Eq(goal, solve(pde, goal))

    @property
    def forward(self):
        p, r = self.p, self.r
        a, b = 1 + 2*self.epsilon, np.sqrt(1 + 2*self.delta)
        along_p, along = (self._along(i) for i in self.slopes)
        across = p.laplace - along_p
        shoot = self.src*self.dt**2/self.m
        return [*self._slopes((p, r)),
                self._advance(p, p.forward, 1, a*across + b*along),
                self._advance(r, r.forward, 1, b*across + along),
                *(self.src.inject(field=i.forward, expr=shoot) for i in (p, r)),
                self.rec.interpolate(expr=p + r)]

    @property
    def adjoint(self):
        q, s = self.q, self.s
        a, b = 1 + 2*self.epsilon, np.sqrt(1 + 2*self.delta)
        # The transposed of what is above
        along_q, along_s = (self._along(i) for i in self.slopes)
        across = a*(q.laplace - along_q) + b*(s.laplace - along_s)
        along = b*along_q + along_s
        feed = self.residual*self.dt**2/self.m
        return [*self._slopes((q, s)),
                self._advance(q, q.backward, -1, across),
                self._advance(s, s.backward, -1, along),
                *(self.residual.inject(field=i.backward, expr=feed) for i in (q, s))]

    def correlation(self, histories):
        return -(histories[0]*self.q.dt2 + histories[1]*self.s.dt2)


class Elastic(Problem):

    """
    Velocity and stress on a staggered grid, density 1, vp = 2 vs. Saves the velocity, a
    vector; with respect to density.
    """

    # Correlated where the gradient is, which is in between
    history_order = 2

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.shorten_steps(0.9)
        self.vel, self.adj_vel = (self.field(PlainVector, i, 1) for i in ('vel', 'avel'))
        self.tau, self.adj_tau = (self.field(PlainTensor, i, 1) for i in ('tau', 'atau'))
        self.state = [self.vel, self.tau]
        self.adjoint_state = [self.adj_vel, self.adj_tau]

        loss = self.dt*np.array(self.sponge.data)/(2*np.array(self.m.data))
        self.keep = self._parameter('keep', 1/(1 + loss))

    saved = property(lambda self: [self.vel])

    def _strain(self, vel):
        """The rate of stress, with Lame parameters of 1/2m and 1/4m."""
        rate = grad(vel) + grad(vel).transpose(inner=False)
        return (2*diag(div(vel)) + rate) * (1/(4*self.m))

    @property
    def forward(self):
        vel, tau, dt = self.vel, self.tau, self.grid.time_dim.spacing
        pressure = sum(tau[i, i] for i in range(self.grid.dim))
        shoot = self.dt*self.src/self.m
        return [Eq(vel.forward, self.keep*(vel + dt*div(tau))),
                Eq(tau.forward, self.keep*(tau + dt*self._strain(vel.forward))),
                *(self.src.inject(field=tau.forward[i, i], expr=shoot)
                  for i in range(self.grid.dim)),
                self.rec.interpolate(expr=pressure)]

    @property
    def adjoint(self):
        # The system is skew: but for the sign of velocities, it is its own adjoint
        vel, tau, dt = self.adj_vel, self.adj_tau, self.grid.time_dim.spacing
        feed = self.dt*self.residual/self.m
        return [Eq(tau.backward, self.keep*(tau + dt*self._strain(vel))),
                *(self.residual.inject(field=tau.backward[i, i], expr=feed)
                  for i in range(self.grid.dim)),
                Eq(vel.backward, self.keep*(vel + dt*div(tau.backward)))]

    def correlation(self, histories):
        return _product(histories[0], self.adj_vel.backward - self.adj_vel)


class ElasticStress(Elastic):

    """Saves the stress, a symmetric tensor; with respect to compliance."""

    saved = property(lambda self: [self.tau])

    def correlation(self, histories):
        return _product(histories[0], self.adj_tau.backward - self.adj_tau)


def _product(a, b):
    return sum(i*j for i, j in zip(a, b, strict=True))


problems = {'acoustic': Acoustic, 'tti': TTI, 'elastic': Elastic,
            'elastic-stress': ElasticStress}
