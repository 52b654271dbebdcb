"""
One shot in an acoustic medium of constant density, with plain Devito.

What propagates here is the pressure `u` of

    m*u.dt2 + sponge*u.dt - laplace(u) = source,        m = 1/vp**2

in a box with a sponge around it, that lets waves out on all sides. Lengths are in m,
times in ms, velocities in km/s (which is m/ms), and frequencies in Hz.
"""

import numpy as np
from devito import Eq, Function, Grid, SparseTimeFunction, TimeFunction, solve
from sympy import finite_diff_weights

__all__ = ['Shot', 'layered_model', 'smooth', 'stable_dt']


class Shot:

    """
    A source, a spread of receivers, and the wave equations between them.

    Parameters
    ----------
    vp : numpy.ndarray
        The true velocities, in km/s. The last axis is depth.
    vp0 : numpy.ndarray
        The velocities of the model to be improved, in km/s.
    spacing : float
        Of the grid in all directions, in m.
    nbl : int
        Points in the sponge, on each side.
    space_order : int
    freq : float
        The peak frequency of the source, a Ricker wavelet, in Hz.
    nt : int, optional
        The number of time steps. Either this or `tn` has to be given.
    tn : float, optional
        The time to propagate for, in ms.
    """

    def __init__(self, vp, vp0, spacing, nbl, space_order, freq, nt=None, tn=None):
        self.nbl = nbl
        self.vmax = float(max(vp.max(), vp0.max()))
        self.dt = stable_dt(self.vmax, spacing, vp.ndim, space_order)
        self.nt = nt or int(tn / self.dt) + 1

        extended = tuple(i + 2*nbl for i in vp.shape)
        self.grid = Grid(shape=extended, extent=tuple((i - 1)*spacing for i in extended),
                         origin=(-nbl*spacing,)*vp.ndim, dtype=np.float32)
        self.m_true = self._parameter('m_true', self._extend(vp)**-2)
        self.m = self._parameter('m', self._extend(vp0)**-2)
        self.sponge = self._parameter('sponge', self._absorption(spacing, vp0.mean()))

        self.u = TimeFunction(name='u', grid=self.grid, time_order=2,
                              space_order=space_order)
        self.v = TimeFunction(name='v', grid=self.grid, time_order=2,
                              space_order=space_order)

        top = 2*spacing
        size = [(i - 1)*spacing for i in vp.shape[:-1]]
        self.src = self._points('src', [[i/2 for i in size] + [top]])
        self.src.data[:, 0] = ricker(self.dt*np.arange(self.nt), freq)

        # Along a line in 2D, in a plane in 3D, each receiver in a cell of its own: what
        # is injected there does not depend on the order in which threads get to it
        step = spacing*(4 if len(size) > 1 else 2)
        axes = np.meshgrid(*[np.arange(spacing/2, i, step) for i in size], indexing='ij')
        spread = np.stack([*axes, np.full_like(axes[0], top)], axis=-1)
        spread = spread.reshape(-1, vp.ndim)
        self.rec = self._points('rec', spread)
        self.residual = self._points('residual', spread)

    def _parameter(self, name, values):
        f = Function(name=name, grid=self.grid)
        # Injection next to the boundary looks one point beyond it
        f.data_with_halo[:] = np.pad(values, f.halo, mode='edge')
        return f

    def _points(self, name, coordinates):
        return SparseTimeFunction(name=name, grid=self.grid, nt=self.nt,
                                  npoint=len(coordinates), coordinates=coordinates)

    def _extend(self, values):
        return np.pad(values, self.nbl, mode='edge')

    def _absorption(self, spacing, vp):
        """Grows with the square of the depth in the sponge, along each direction."""
        shape = self.grid.shape
        total = np.zeros(shape, dtype=np.float32)
        if not self.nbl:
            return total
        # So that a wave that goes through the sponge and back loses all but this
        remains = 1e-3
        peak = -3*np.log(remains) / (vp*self.nbl*spacing)
        for axis, n in enumerate(shape):
            i = np.arange(n)
            depth = np.maximum(0, np.maximum(self.nbl - i, i - (n - 1 - self.nbl)))
            profile = peak*(depth/self.nbl)**2
            total += np.expand_dims(profile, [j for j in range(len(shape)) if j != axis])
        return total

    @property
    def subs(self):
        """The constants of the equations: with them, generated code is faster."""
        return {**self.grid.spacing_map, self.grid.time_dim.spacing: self.dt}

    @property
    def forward(self):
        """The equations of a forward step: advance `u`, shoot, and record."""
        u, m = self.u, self.m
        pde = m*u.dt2 + self.sponge*u.dtc - u.laplace
        return [Eq(u.forward, solve(pde, u.forward)),
                self.src.inject(field=u.forward, expr=self.src*self.dt**2/m),
                self.rec.interpolate(expr=u)]

    @property
    def adjoint(self):
        """The equations of an adjoint step: take `v` back, fed by the residual."""
        v, m = self.v, self.m
        pde = m*v.dt2 - self.sponge*v.dtc - v.laplace
        return [Eq(v.backward, solve(pde, v.backward)),
                self.residual.inject(field=v.backward, expr=self.residual*self.dt**2/m)]

    def reset(self):
        """Bring the fields to rest."""
        self.u.data.fill(0)
        self.v.data.fill(0)


def stable_dt(vmax, spacing, ndim, space_order, safety=0.9):
    """The time step in ms, short enough for what is the fastest wave on the grid."""
    half = space_order // 2
    weights = finite_diff_weights(2, range(-half, half + 1), 0)[2][-1]
    fastest = vmax*np.sqrt(ndim*float(sum(abs(i) for i in weights))) / spacing
    return float(safety*2/fastest)


def ricker(time, freq):
    """A Ricker wavelet of unit amplitude. The time is in ms, the frequency in Hz."""
    phase = (np.pi*freq*(time/1000 - 1.2/freq))**2
    return (1 - 2*phase)*np.exp(-phase)


def layered_model(shape, spacing):
    """Layers that dip, with velocities from 1.5 to 3.5 km/s."""
    points = np.meshgrid(*[np.linspace(0, 1, i) for i in shape], indexing='ij')
    depth = points[-1] + 0.1*points[0]*points[-1]
    vp = np.full(shape, 1.5, dtype=np.float32)
    for interface, value in ((0.2, 2.), (0.35, 2.4), (0.5, 2.2), (0.7, 3.), (0.9, 3.5)):
        vp[depth > interface] = value
    return vp


def smooth(vp, width):
    """Smooth velocities over `width` points, keeping traveltimes."""
    out = 1/vp.astype(np.float64)
    half = max(1, int(width) // 4)
    for axis in range(vp.ndim):
        # A moving average thrice is close to a Gaussian
        for _ in range(3):
            pad = [(half, half) if i == axis else (0, 0) for i in range(vp.ndim)]
            padded = np.pad(out, pad, mode='edge')
            windows = np.lib.stride_tricks.sliding_window_view(padded, 2*half + 1, axis)
            out = windows.mean(axis=-1)
    return (1/out).astype(np.float32)
