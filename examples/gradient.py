"""
The gradient of full-waveform inversion, with dense and with compressed snapshots.

A shot is fired in a smoothed model, saving the pressure at every step. Then what the
receivers miss of a shot in the true model is propagated back in time, and correlated with
the saved pressure: the gradient of the data misfit. All of it is done without saving (no
gradient), with dense snapshots, and with compressed ones, each time in a fresh process:

    python examples/gradient.py
    python examples/gradient.py --ndim 3 --error 1e-2 --error 1e-4
    python examples/gradient.py --layers host --layers disk-host --scratch /scratch
    python examples/gradient.py --model vp.bin --shape 1601 401 --spacing 7.5 --tn 2000

The environment variable DEVITOCOMP_ROOT selects the provider of the compression. Without
it the bundled one is used, which copies: results are exact, and no memory is saved.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

# Before anyone looks at them. Whoever has set them knows better
os.environ.setdefault('DEVITO_LANGUAGE', 'openmp')
os.environ.setdefault('DEVITO_LOGGING', 'WARNING')

from acoustic import Shot, layered_model, smooth  # noqa: E402
from devito import ConditionalDimension, Eq, Function, Operator  # noqa: E402

from devitocomp_plugin import DevitoComp, TimeFunction  # noqa: E402

MB = 1e6


@dataclass(frozen=True)
class Case:

    """
    How to save.

    Parameters
    ----------
    name : str
    saves : bool, optional
        If False nothing is saved, and there is no gradient.
    compression : DevitoComp, optional
        Defaults to None, for dense snapshots.
    layers : str, optional
        Where compressed snapshots live.
    """

    name: str
    saves: bool = True
    compression: DevitoComp | None = None
    layers: str | None = None


@dataclass
class Result:

    """
    What came out of a case, and at which cost.

    Attributes
    ----------
    forward_s, gradient_s : list of float
        Seconds for forward propagation, and for the adjoint one with the imaging
        condition: for each run. The first includes what it takes to get the memory.
    peak : int
        The most bytes of memory that the process ever had.
    raw, stored : int
        Bytes of all snapshots, uncompressed and as they are kept.
    late_ratio : float
        Their ratio over the last third of the snapshots, when waves are everywhere.
    compress_s, decompress_s : float
        Seconds spent on compression, of all of the above.
    provider, error_kind, error_bound : str or float, optional
        As in a CompressionReport.
    records, gradient : numpy.ndarray
        What the receivers recorded, and the gradient without the sponge.
    observed : numpy.ndarray
        What they record in the true model.
    """

    forward_s: list
    gradient_s: list
    peak: int
    records: np.ndarray
    observed: np.ndarray
    gradient: np.ndarray | None = None
    raw: int = 0
    stored: int = 0
    late_ratio: float = 1.
    compress_s: float = 0.
    decompress_s: float = 0.
    provider: str | None = None
    error_kind: str | None = None
    error_bound: float | None = None

    @property
    def total_s(self):
        return [i + j for i, j in zip(self.forward_s, self.gradient_s, strict=True)]


# *** The computation

def make_history(shot, compression=None, factor=1, **kwargs):
    """Where the snapshots go: one of every `factor` steps."""
    time_dim = shot.grid.time_dim
    if factor > 1:
        time_dim = ConditionalDimension('t_sub', parent=time_dim, factor=factor)
    return TimeFunction(name='usave', grid=shot.grid, space_order=0, time_dim=time_dim,
                        save=(shot.nt + factor - 1) // factor, compression=compression,
                        **kwargs)


def forward_operator(shot, usave=None):
    """Forward propagation, saving into `usave` if there is one."""
    save = [] if usave is None else [Eq(usave, shot.u)]
    return Operator(shot.forward + save, subs=shot.subs, name='Forward')


def gradient_operator(shot, usave=None, grad=None, factor=1):
    """Adjoint propagation, correlated with what has been saved."""
    image = [] if usave is None else [Eq(grad, grad - factor*usave*shot.v.dt2)]
    return Operator(shot.adjoint + image, subs=shot.subs, name='Gradient')


def make_shot(options, kind=Shot):
    """A shot in the model that was asked for, of class Shot or a subclass."""
    vp = read_model(options) if options.model else layered_model(options.shape,
                                                                 options.spacing)
    spacing = options.spacing
    if options.decimate > 1:
        vp = np.ascontiguousarray(vp[(slice(None, None, options.decimate),)*vp.ndim])
        spacing *= options.decimate
    # Structure smaller than a wavelength is what the gradient is to bring back
    wavelength = 1000*vp.min()/options.freq
    return kind(vp, smooth(vp, wavelength/spacing), spacing, options.nbl,
                options.space_order, options.freq, nt=options.steps, tn=options.tn)


def read_model(options):
    """Velocities in km/s, as raw float32 numbers, the last axis varying fastest."""
    values = np.fromfile(options.model, dtype=np.float32)
    if values.size != np.prod(options.shape):
        sys.exit(f"{options.model} holds {values.size} float32 numbers, which is not "
                 f"{' x '.join(str(i) for i in options.shape)}")
    if not 0.1 < values.min() <= values.max() < 20:
        sys.exit(f"{options.model} holds values from {values.min()} to {values.max()}, "
                 "which are no velocities in km/s")
    return values.reshape(options.shape)


def run_case(case, options, observed=None, runs=1, prepare=None):
    """
    Compute a gradient, and measure.

    Parameters
    ----------
    case : Case
    options : Namespace
        Of the command line.
    observed : numpy.ndarray, optional
        Recorded in the true model. Computed if not given.
    runs : int, optional
        How often to do it. All runs but the first find their memory in place.
    prepare : callable, optional
        Called right before the first run, once all else is in place.

    Returns
    -------
    Result
    """
    shot = make_shot(options)
    usave = grad = None
    if case.saves:
        scratch = options.scratch if 'disk' in (case.layers or '') else None
        usave = make_history(shot, case.compression, options.factor, layers=case.layers,
                             serialization=scratch)
        grad = Function(name='grad', grid=shot.grid)
    forward = forward_operator(shot, usave)
    gradient = gradient_operator(shot, usave, grad, options.factor)
    for op in (forward, gradient):
        # Compile it
        op.cfunction  # noqa: B018

    if observed is None:
        op = forward if usave is None else forward_operator(shot)
        op.apply(m=shot.m_true, time_m=0, time_M=shot.nt - 1)
        observed = np.array(shot.rec.data)

    if prepare is not None:
        prepare()
    forward_s, gradient_s = [], []
    for _ in range(runs):
        shot.reset()
        if grad is not None:
            grad.data.fill(0)
        forward_s.append(timed(forward, time_m=0, time_M=shot.nt - 1))
        shot.residual.data[:] = shot.rec.data - observed
        gradient_s.append(timed(gradient, time_m=0, time_M=shot.nt - 1))

    result = Result(forward_s, gradient_s, peak_memory(), np.array(shot.rec.data),
                    observed)
    if usave is not None:
        inner = (slice(options.nbl, -options.nbl or None),)*shot.grid.dim
        result.gradient = np.array(grad.data[inner])
        result.raw = result.stored = int(np.prod(usave.shape))*usave.dtype().itemsize
    if case.compression is not None:
        account(result, usave.compression_report())
    return result


def account(result, report):
    """Take over what a CompressionReport says."""
    result.raw, result.stored = report.raw_bytes, report.stored_bytes
    late = report.per_snapshot[-(report.snapshots // 3 or 1):]
    result.late_ratio = sum(i.raw_bytes for i in late)/sum(i.stored_bytes for i in late)
    result.compress_s = report.compress_seconds
    result.decompress_s = report.decompress_seconds
    result.provider = report.provider
    result.error_kind, result.error_bound = report.error_kind, report.error_bound


def timed(op, **kwargs):
    """The seconds of an apply."""
    start = perf_counter()
    op.apply(**kwargs)
    return perf_counter() - start


def peak_memory():
    """The most bytes of memory that this process ever had."""
    try:
        # Unlike ru_maxrss, this does not start from what the parent process had
        status = Path('/proc/self/status').read_text()
        return 1024*int(status.partition('VmHWM:')[2].split()[0])
    except OSError:
        from resource import RUSAGE_SELF, getrusage
        return getrusage(RUSAGE_SELF).ru_maxrss*(1 if sys.platform == 'darwin' else 1024)


def in_fresh_process(function, *args, **kwargs):
    """Call a function in a process of its own, and return what it returns."""
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        return pool.submit(function, *args, **kwargs).result()


# *** The command line

def parse(args=None):
    """Parse the command line, and fill in what depends on other options."""
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--ndim', type=int, choices=(2, 3), help='of the layered model (default: 2)')
    add('--model', type=Path, metavar='FILE', help='velocities in km/s, raw float32, the '
        'last axis (depth) varying fastest; a layered model if not given')
    add('--shape', type=positive, nargs='+', metavar='N', help='points along each axis '
        '(default: 201 201 or 100 100 100)')
    add('--spacing', type=number, default=10., metavar='D', help='in m (default: 10)')
    add('--decimate', type=positive, default=1, metavar='N', help='use each Nth point')
    add('--error', type=number, action='append', metavar='E', help='tolerance relative '
        'to the largest value of a snapshot; may be repeated (default: 1e-3)')
    add('--layers', action='append', metavar='NAME', help='where compressed snapshots '
        'live: host, disk, disk-host; may be repeated (default: host)')
    add('--scratch', type=Path, metavar='DIR', help='for snapshots on disk, which stay '
        'there; without it, they are removed')
    add('--factor', type=positive, default=1, metavar='N', help='save each Nth step')
    length = parser.add_mutually_exclusive_group()
    length.add_argument('--steps', type=positive, metavar='NT', help='time steps '
                        '(default: 600 in 2D, 332 in 3D)')
    length.add_argument('--tn', type=number, metavar='T', help='time in ms, instead')
    add('--space-order', type=positive, default=8, metavar='N', help='(default: 8)')
    add('--nbl', type=int, metavar='N', help='points in the absorbing sponge on each '
        'side (default: 40 in 2D, 10 in 3D)')
    add('--freq', type=number, default=15., metavar='F', help='peak frequency of the '
        'source in Hz (default: 15)')
    add('--repeat', type=positive, default=1, metavar='N', help='compute each case N '
        'times, and print median times (default: 1)')
    options = parser.parse_args(args)

    if options.model and not options.shape:
        parser.error('--model requires --shape')
    ndim = options.ndim or len(options.shape or (0, 0))
    if options.shape is None:
        options.shape = [201]*2 if ndim == 2 else [100]*3
    if len(options.shape) != ndim or ndim not in (2, 3):
        parser.error(f"--shape has {len(options.shape)} numbers")
    if options.space_order % 2:
        parser.error('--space-order has to be even')
    if options.steps is None and options.tn is None:
        options.steps = 600 if ndim == 2 else 332
    if options.nbl is None:
        options.nbl = 40 if ndim == 2 else 10
    options.error = options.error or [1e-3]
    options.layers = options.layers or ['host']
    return options


def positive(text):
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f"{text} is not positive")
    return value


def number(text):
    value = float(text)
    if not 0 <= value < float('inf'):
        raise ArgumentTypeError(f"{text} is negative or infinite")
    return value


def describe(options):
    shot = make_shot(options)
    box = ' x '.join(str(i) for i in shot.grid.shape)
    print(f"Grid       : {box} points, {options.nbl} of them sponge on each side, "
          f"spacing {shot.grid.spacing[0]:g} m")
    print(f"Velocities : up to {shot.vmax:.2f} km/s, from "
          f"{options.model or 'a layered model'}; smoothed to start from")
    print(f"Time       : {shot.nt} steps of {shot.dt:.3f} ms, source of "
          f"{options.freq:g} Hz, saving "
          f"{'every step' if options.factor == 1 else f'1 of {options.factor} steps'}")
    print(f"Scheme     : space order {options.space_order}, time order 2, "
          f"{shot.rec.npoint} receivers, language {os.environ['DEVITO_LANGUAGE']}")


def describe_provider(result):
    where = os.environ.get('DEVITOCOMP_ROOT') or 'bundled'
    print(f"Provider   : {result.provider} ({where})", end='')
    if result.error_kind != 'lossless':
        print(f", lossy: guarantees errors of kind {result.error_kind}\n")
    elif result.stored >= result.raw:
        print("\n             It copies: nothing is lost, and no memory is saved. Set "
              "DEVITOCOMP_ROOT\n             to the directory of another to compress.\n")
    else:
        print(", lossless\n")


def tabulate(cases, results):
    """Print a table of cases, the first of which is the one without saving."""
    base = median(i.peak for i in results[0])
    dense = results[1][0].gradient
    print(f"{'case':<22} {'forward':>8} {'gradient':>8} {'total':>8} "
          f"{'peak':>8} {'stored':>8} {'ratio':>7} {'late':>7} {'rel. L2':>10}\n"
          f"{'':<22} {'s':>8} {'s':>8} {'s':>8} {'MB':>8} {'MB':>8} {'':>7} {'ratio':>7} "
          f"{'difference':>10}")
    for case, rs in zip(cases, results, strict=True):
        times = [median(getattr(i, name)[0] for i in rs)
                 for name in ('forward_s', 'gradient_s', 'total_s')]
        print(f"{case.name:<22} {' '.join(f'{i:8.2f}' for i in times)} ", end='')
        if case.saves:
            r, peak = rs[0], median(i.peak for i in rs) - base
            print(f"{peak/MB:8.1f} {r.stored/MB:8.1f} {r.raw/r.stored:7.2f} "
                  f"{r.late_ratio:7.2f} {difference(r.gradient, dense):10.1e}")
        else:
            print(f"{'-':>8} {'-':>8} {'-':>7} {'-':>7} {'-':>10}")


def difference(a, b):
    """The L2 norm of a difference, relative to that of the latter."""
    b = b.astype(np.float64)
    return np.linalg.norm(a - b)/np.linalg.norm(b)


def main(args=None):
    options = parse(args)
    describe(options)

    cases = [Case('none saved', saves=False), Case('dense')]
    cases += [Case(f"error {i:g}, {j}", compression=DevitoComp(error=i), layers=j)
              for i in options.error for j in options.layers]
    results = [[] for _ in cases]
    observed = None
    for _ in range(options.repeat):
        for case, done in zip(cases, results, strict=True):
            done.append(in_fresh_process(run_case, case, options, observed))
            observed = done[-1].observed

    describe_provider(results[-1][-1])
    tabulate(cases, results)
    base = results[0][0]
    same = all(np.array_equal(r.records, base.records) for rs in results for r in rs)
    print(f"\nPropagation identical in all cases, to the bit: {'yes' if same else 'NO'}")
    print("MB are 1e6 bytes. Peak is that of the process, less the "
          f"{base.peak/MB:.0f} MB of the one that saves\nnothing; ratio and "
          "difference refer to dense snapshots. Times do not include compiling.")


if __name__ == '__main__':
    main()
