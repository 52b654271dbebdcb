"""
The Taylor test of gradients computed from compressed snapshots.

With J the misfit of a shot, g its gradient at a model m, and p a perturbation of m that
leaves source and receivers alone,

    J(m + h p) - J(m)               falls as h,
    J(m + h p) - J(m) - h <g, p>    falls as h**2,

the latter until the error of the gradient shows, which falls as h. Where that is tells
what compression costs:

    DEVITOCOMP_ROOT=$(devitocomp root zfp) python benchmarks/taylor.py
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'examples'))

os.environ.setdefault('DEVITO_LANGUAGE', 'openmp')
os.environ.setdefault('DEVITO_LOGGING', 'ERROR')

from acoustic import Shot, layered_model, smooth  # noqa: E402
from devito import Function  # noqa: E402
from gradient import (  # noqa: E402
    difference,
    forward_operator,
    gradient_operator,
    make_history,
)

from devitocomp_plugin import DevitoComp  # noqa: E402


class Taylor:

    """
    The misfit of a shot as a function of the model.

    Parameters
    ----------
    size : int
        Points along each of the two axes.
    steps : int
        Time steps.
    """

    def __init__(self, size, steps):
        vp = layered_model((size, size), 10.)
        self.shot = shot = Shot(vp, smooth(vp, 10), 10., 40, 8, 15., nt=steps)
        self.forward = forward_operator(shot)
        self.observed = self.record(shot.m_true)

        # Source and receivers are near the surface
        n = shot.nbl
        below = np.zeros(shot.grid.shape, dtype=bool)
        below[n:-n, n + 8:-n] = True
        self.p = np.where(below, np.array(shot.m_true.data - shot.m.data), 0)
        self.m = Function(name='m', grid=shot.grid)

    def record(self, m):
        """What receivers record in a model."""
        self.shot.reset()
        self.forward.apply(m=m, time_m=0, time_M=self.shot.nt - 1)
        return np.array(self.shot.rec.data)

    def misfit(self, h):
        """The misfit at m + h p, in float64."""
        self.m.data_with_halo[:] = self.shot.m.data_with_halo
        self.m.data[:] += h*self.p
        missed = (self.record(self.m) - self.observed).astype(np.float64)
        return 0.5*np.sum(missed**2)

    def gradient(self, compression=None):
        """The gradient at m, in float64."""
        shot = self.shot
        usave = make_history(shot, compression)
        grad = Function(name='grad', grid=shot.grid)
        shot.reset()
        forward_operator(shot, usave).apply(time_m=0, time_M=shot.nt - 1)
        shot.residual.data[:] = shot.rec.data - self.observed
        gradient_operator(shot, usave, grad).apply(time_m=0, time_M=shot.nt - 1)
        return np.array(grad.data).astype(np.float64)


def main(args=None):
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--error', type=float, action='append', metavar='E',
                        help='may be repeated (default: 1e-1 to 1e-4)')
    parser.add_argument('--size', type=int, default=101, help='(default: 101)')
    parser.add_argument('--steps', type=int, default=500, help='(default: 500)')
    options = parser.parse_args(args)
    errors = options.error or [1e-1, 1e-2, 1e-3, 1e-4]

    taylor = Taylor(options.size, options.steps)
    dense = taylor.gradient()
    gradients = [dense] + [taylor.gradient(DevitoComp(error=e)) for e in errors]
    slopes = [np.sum(g*taylor.p) for g in gradients]
    names = ['dense'] + [f'error {e:g}' for e in errors]

    print("Relative L2 difference of the gradient from dense:",
          ', '.join(f'{difference(g, dense):.1e} ({name})'
                    for g, name in zip(gradients[1:], names[1:], strict=True)))
    print("\nJ(m + h p) - J(m), and what remains of it without h <g, p>; in brackets the "
          "order\nbetween this h and the one before\n")
    print(f"{'h':>9} {'first order':>18}", *(f'{name:>18}' for name in names))
    start = taylor.misfit(0)
    before = None
    for h in 0.5**np.arange(9):
        change = taylor.misfit(h) - start
        row = [abs(change)] + [abs(change - h*s) for s in slopes]
        orders = ['' if before is None else f'({np.log2(b/a):.2f})'
                  for a, b in zip(row, before or row, strict=True)]
        print(f'{h:9.6f}', *(f'{value:11.3e}{order:>7}'
                             for value, order in zip(row, orders, strict=True)))
        before = row


if __name__ == '__main__':
    main()
