"""
What compressed saves cost on a device: forward modeling and gradient.

Each case saves every N-th step of an acoustic wavefield, and then reads the history back
in an imaging condition:

none            nothing is saved, and the gradient reads a constant
streaming       Devito's own way: dense snapshots on the host, copied asynchronously
device, ...     compressed, in these layers, by the provider that DEVITOCOMP_ROOT selects

Cases run one after the other, over and over; medians count. One JSON object for each,
then a table. Times on an emulator mean nothing.

    python benchmarks/cuda_snapshots.py --shape 512 512 512 --steps 200 --factor 4
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from statistics import median
from time import perf_counter

import numpy as np
from cuda_traffic import TARGET
from devito import (
    ConditionalDimension,
    Eq,
    Function,
    Grid,
    Inc,
    Operator,
    SparseTimeFunction,
    TimeFunction,
    configuration,
    solve,
)

import devitocomp_plugin as dcp

HISTORIES = {'none': None, 'streaming': None, 'device': dcp.Device,
             'host-device': dcp.HostDevice, 'disk-device': dcp.DiskDevice,
             'disk-host-device': dcp.DiskHostDevice, 'host': dcp.Host}


class Case:

    """Operators for one way of keeping the history."""

    def __init__(self, name, shape, steps, factor, error, space_order=8):
        self.name = name
        self.steps = steps
        grid = Grid(shape, extent=tuple(10.*(i - 1) for i in shape))
        self.u, self.v = (TimeFunction(name=i, grid=grid, time_order=2,
                                       space_order=space_order) for i in 'uv')
        m = Function(name='m', grid=grid, space_order=0)
        m.data[:] = 1/2000.**2
        self.dt = 1e-3
        src = SparseTimeFunction(name='src', grid=grid, npoint=1, nt=steps + 2)
        src.coordinates.data[:] = [5.*(i - 1) for i in shape]
        t = np.arange(steps + 2)*self.dt - 0.03
        a = (np.pi*30*t)**2
        src.data[:, 0] = (1 - 2*a)*np.exp(-a)*1e3
        self.grad = Function(name='grad', grid=grid, space_order=0)

        u, v = self.u, self.v
        forward = [Eq(u.forward, solve(m*u.dt2 - u.laplace, u.forward)),
                   src.inject(u.forward, expr=src)]
        backward = [Eq(v.backward, solve(m*v.dt2 - v.laplace, v.backward)),
                    src.inject(v.backward, expr=src)]
        t_sub = ConditionalDimension('t_sub', parent=grid.time_dim, factor=factor)
        opt = 'advanced'
        if name == 'streaming':
            opt = ('buffering', 'tasking', 'streaming', 'orchestrate', {'gpu-fit': ()})
        self.usave = None
        history = self.grad*0 + 1
        if name != 'none':
            kwargs = {} if name == 'streaming' else {
                'compression': dcp.DevitoComp(error=error), 'layers': HISTORIES[name]}
            history = self.usave = dcp.TimeFunction(
                name='usave', grid=grid, time_order=0, space_order=0,
                save=steps//factor + 2, time_dim=t_sub, **kwargs)
            forward.append(Eq(self.usave, u))
        backward.append(Inc(self.grad, history*v, implicit_dims=t_sub))
        self.forward = Operator(forward, opt=opt, name='Forward', **TARGET)
        self.gradient = Operator(backward, opt=opt, name='Gradient', **TARGET)

    def run(self, steps=None):
        """Seconds for forward modeling and for the gradient."""
        for f in (self.u, self.v, self.grad):
            f.data_with_halo[:] = 0
        times = []
        for op in (self.forward, self.gradient):
            start = perf_counter()
            op.apply(time_m=1, time_M=steps or self.steps, dt=self.dt)
            times.append(perf_counter() - start)
        return times

    @property
    def stored(self):
        """Bytes of the history."""
        if self.usave is None:
            return 0
        if self.name == 'streaming':
            return self.usave.nbytes
        return self.usave.compression_report().stored_bytes


def measure(names, repeat, *args):
    cases = {i: Case(i, *args) for i in names}
    times = {i: [] for i in names}
    for case in cases.values():
        # Compiles, and touches memory
        case.run(steps=min(2, case.steps))
    for _ in range(repeat):
        for name, case in cases.items():
            times[name].append(case.run())
    results = {}
    for name, case in cases.items():
        forward, gradient = (median(i) for i in zip(*times[name], strict=True))
        results[name] = {'case': name, 'forward_s': forward, 'gradient_s': gradient,
                         'total_s': forward + gradient, 'history_bytes': case.stored,
                         'grad_norm': float(np.linalg.norm(case.grad.data))}
    return results


def main():
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--shape', type=int, nargs=3, default=[512]*3)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--factor', type=int, default=4)
    parser.add_argument('--error', type=float, default=1e-3)
    parser.add_argument('--repeat', type=int, default=3)
    parser.add_argument('--cases', nargs='+', choices=HISTORIES,
                        default=['none', 'streaming', 'device', 'host-device'])
    args = parser.parse_args()
    configuration['log-level'] = 'WARNING'

    results = measure(args.cases, args.repeat, args.shape, args.steps, args.factor,
                      args.error)
    for i in results.values():
        print(json.dumps(i))
    base = results.get('none')
    print(f'\n{"case":18}{"forward s":>11}{"gradient s":>11}{"history MB":>11}'
          f'{"overhead":>10}')
    for name, i in results.items():
        more = f'{100*(i["total_s"]/base["total_s"] - 1):9.1f}%' if base else ''
        print(f'{name:18}{i["forward_s"]:11.3f}{i["gradient_s"]:11.3f}'
              f'{i["history_bytes"]/1e6:11.1f}{more:>10}')


if __name__ == '__main__':
    main()
