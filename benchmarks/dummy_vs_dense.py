"""
What compressed functions cost when compression itself costs next to nothing.

With the bundled provider, which copies, everything that is slower than with dense
functions is the integration's doing. Measured are, in processes of their own, in turns:

gradient
    Forward propagation with every snapshot saved, and the gradient computed from them:
    the 3D case of examples/gradient.py. Memory is fresh in the first run of a process,
    and in place in the second. The bound is what dense functions take, plus one memcpy.
import
    Importing the package, instead of Devito alone.
build
    Building Operators without compressed functions, after importing the package, instead
    of Devito alone.
compressed
    Building Operators with compressed functions, instead of dense ones.

Prints a JSON object per line for each thing measured, with all samples, then a table.
Options that are not known here go to examples/gradient.py:

    python benchmarks/dummy_vs_dense.py
    python benchmarks/dummy_vs_dense.py -n 9 --only gradient --shape 60 60 60 --steps 100
"""

import ctypes
import json
import mmap
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from compileall import compile_dir
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter

# Only in functions, so that each process imports no more than it is about:
# * acoustic, gradient: from the examples
# * devito, devitocomp_plugin
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'examples'))

parts = ('gradient', 'import', 'build', 'compressed')


def in_fresh_process(function, *args):
    """Call a function in a process of its own, and return what it returns."""
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        return pool.submit(function, *args).result()


def in_turns(n, function, *argslist):
    """Call a function `n` times with each of several arguments, in fresh processes."""
    samples = [[] for _ in argslist]
    for i in range(n):
        # Whoever comes first might be at an advantage
        order = range(len(argslist)) if i % 2 == 0 else reversed(range(len(argslist)))
        for j in order:
            samples[j].append(in_fresh_process(function, *argslist[j]))
    return samples


class Clock:

    """Measures seconds: of wall clock, and of all CPUs on behalf of this process."""

    def __enter__(self):
        self.start = perf_counter(), self._cpu()
        return self

    def __exit__(self, *args):
        self.wall = perf_counter() - self.start[0]
        self.cpu = self._cpu() - self.start[1]

    def _cpu(self):
        usage = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        return sum(i.ru_utime + i.ru_stime for i in usage)


# *** Memory

class Memory:

    """Memory from the operating system, in ordinary pages, none of them touched yet."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self.view)

    def touch(self):
        ctypes.memset(self.address, 1, self.nbytes)

    def close(self):
        del self.view
        self.map.close()


def claim(nbytes):
    """
    Touch memory, and give it back at once.

    In a virtual machine the host may have taken back what was not in use for a while: the
    first to touch it waits for the host, which takes several times as long as a page
    fault, and hits now one, now another. It is not to be in the measurements. To the
    process memory is as fresh as before.
    """
    memory = Memory(nbytes)
    if hasattr(mmap, 'MADV_HUGEPAGE'):
        memory.map.madvise(mmap.MADV_HUGEPAGE)
    memory.touch()
    memory.close()


def time_memcpy(nbytes, n):
    """Seconds of `n` copies by one thread, into fresh memory and once more into it."""
    claim(2*nbytes)
    source = Memory(nbytes)
    source.touch()
    fresh, touched = [], []
    for _ in range(n):
        target = Memory(nbytes)
        for samples in (fresh, touched):
            with Clock() as clock:
                ctypes.memmove(target.address, source.address, nbytes)
            samples.append(clock.wall)
        target.close()
    source.close()
    return fresh, touched


# *** Running

def run(kind, options, observed, cold):
    """Seconds of the forward and the gradient run, in fresh and in touched memory."""
    from gradient import Case, make_history, make_shot, run_case

    from devitocomp_plugin import DevitoComp

    compression = DevitoComp() if kind == 'compressed' else None
    case = Case(kind, saves=kind != 'none', compression=compression)
    nbytes = make_history(make_shot(options), DevitoComp()).nbytes_max
    result = run_case(case, options, observed, runs=2,
                      prepare=None if cold else lambda: claim(int(1.3*nbytes)))
    return result


def measure_gradient(record, n, arguments, cold):
    from gradient import difference, parse

    options = parse(['--ndim', '3', *arguments])
    baseline = in_fresh_process(run, 'none', options, None, cold)
    kinds = ('dense', 'compressed')
    samples = in_turns(n, run, *((i, options, baseline.observed, cold) for i in kinds))
    (dense, *_), (compressed, *_) = samples

    medians = {}
    for kind, results in zip(kinds, samples, strict=True):
        for i, memory in enumerate(('fresh', 'touched')):
            for what in ('forward', 'gradient', 'total'):
                seconds = [getattr(r, f'{what}_s')[i] for r in results]
                medians[kind, memory, what] = record(f'{what}, {kind}, {memory}', seconds)
    for what in ('forward', 'gradient', 'total'):
        record(f'{what}, nothing saved', [getattr(baseline, f'{what}_s')[1]])
    memcpy = {}
    for memory, seconds in zip(('fresh', 'touched'), in_fresh_process(
            time_memcpy, compressed.stored, n), strict=True):
        memcpy[memory] = record(f'memcpy, {memory}', seconds, bytes=compressed.stored)

    error = difference(compressed.gradient, dense.gradient)
    record('gradient, relative difference', [float(error)], unit='1')
    # One memcpy into memory that is in place: into fresh memory it takes longer, but
    # dense functions have paid for fresh memory already
    return [(f'forward + gradient, {memory} memory / (dense + memcpy)',
             medians['compressed', memory, 'total']
             / (medians['dense', memory, 'total'] + memcpy['touched']), 1.05)
            for memory in ('fresh', 'touched')]


# *** Importing and building

def time_import(plugin):
    """CPU seconds of an import."""
    with Clock() as clock:
        import devito  # noqa: F401
        if plugin:
            import devitocomp_plugin  # noqa: F401
    return clock.cpu


def time_build(kind):
    """CPU seconds of building two operators: the first time, and later on."""
    os.environ['DEVITO_LANGUAGE'] = 'openmp'
    os.environ['DEVITO_LOGGING'] = 'WARNING'

    from devito import TimeFunction
    arguments = {}
    if kind != 'plain':
        from devitocomp_plugin import DevitoComp, TimeFunction
        if kind == 'compressed':
            arguments['compression'] = DevitoComp()

    return [build(TimeFunction, **arguments) for _ in range(4)]


def build(cls, **arguments):
    from acoustic import Shot, layered_model
    from devito import Eq, Function, Operator

    vp = layered_model((30, 30, 30), 10.)
    shot = Shot(vp, vp, 10., 10, 8, 15., nt=100)
    usave = cls(name='usave', grid=shot.grid, space_order=0, save=shot.nt, **arguments)
    grad = Function(name='grad', grid=shot.grid)
    forward = [*shot.forward, Eq(usave, shot.u)]
    gradient = [*shot.adjoint, Eq(grad, grad - usave*shot.v.dt2)]
    with Clock() as clock:
        Operator(forward, subs=shot.subs)
        Operator(gradient, subs=shot.subs)
    return clock.cpu


def measure_import(record, n):
    # As installing does, except in place
    package = find_spec('devitocomp_plugin').submodule_search_locations[0]
    compile_dir(package, quiet=1)
    plain, plugin = in_turns(n, time_import, (False,), (True,))
    ratio = (record('import, with the package', plugin, unit='CPU s')
             / record('import, Devito alone', plain, unit='CPU s'))
    return [('import / Devito alone', ratio, 1.05)]


def measure_build(record, n, one, other, label, target):
    rows = []
    samples = in_turns(n, time_build, (one,), (other,))
    for when, pick in (('first', lambda i: i[0]), ('later', lambda i: median(i[1:]))):
        a, b = (record(f'build, {kind}, {when}', [pick(i) for i in values], unit='CPU s')
                for kind, values in zip((one, other), samples, strict=True))
        rows.append((f'{label}, {when}', a/b, target))
    return rows


# *** The command line

def record(name, samples, unit='s', **more):
    """Print what was measured, and return the median."""
    value = median(samples)
    print(json.dumps({'name': name, 'unit': unit, 'median': float(f'{value:.5g}'),
                      'samples': [float(f'{i:.5g}') for i in samples], **more}),
          flush=True)
    return value


def parse(args=None):
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('-n', type=int, default=5, help='samples of each (default: 5)')
    parser.add_argument('--only', choices=parts, action='append', help='may be repeated')
    parser.add_argument('--cold', action='store_true', help='include what the host of a '
                        'virtual machine takes to provide memory')
    return parser.parse_known_args(args)


def main(args=None):
    options, arguments = parse(args)
    # Not measured here
    os.environ.pop('DEVITOCOMP_ROOT', None)

    rows = []
    for part in options.only or parts:
        if part == 'gradient':
            rows += measure_gradient(record, options.n, arguments, options.cold)
        elif part == 'import':
            rows += measure_import(record, options.n)
        elif part == 'build':
            rows += measure_build(record, options.n, 'dense', 'plain',
                                  'build without compression / Devito alone', 1.05)
        else:
            rows += measure_build(record, options.n, 'compressed', 'dense',
                                  'build with compression / dense', 1.5)

    print(f"\n{'ratio of medians':<58} {'measured':>8} {'target':>8}")
    for name, ratio, target in rows:
        verdict = 'met' if ratio <= target else 'MISSED'
        print(f"{name:<58} {ratio:8.3f} {f'<= {target:g}':>8}  {verdict}")


if __name__ == '__main__':
    main()
