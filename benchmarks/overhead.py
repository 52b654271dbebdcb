"""
Where the time of a compressed run goes, and what else it takes.

Runs are in fresh processes, with a provider (zfp by default) behind a probe that measures
each of its calls. Measured are:

time
    Propagation, provider, store, and everything else: the parts of a forward run that
    saves every step, and of the adjoint run that reads them, of the acoustic problem of
    benchmarks/gradient.py. They add up to what the calls of apply take. Propagation is
    what loops over space take, store what is left of the calls around the provider's.
provider
    The provider called from Python on the same snapshots, in memory of the same layout;
    and copies of as many bytes, by one thread.
growth
    The same parts with 100, 1000 and 10,000 snapshots of 64^3 points, and with 64^3,
    128^3 and 256^3 points; the peak of memory, with snapshots in memory and on disk; and
    how many bytes the store takes for a snapshot besides its payload.
allocations
    Calls of malloc and the like, and of mmap, per time step once a run is warm, from the
    whole process: by the library that makes them.
build
    Building and compiling the two Operators with compressed functions, with dense ones,
    and with Devito alone, without any cached code.

Prints a JSON object a line for each thing measured, then tables. Options that are not
known here go to examples/gradient.py:

    python benchmarks/overhead.py
    python benchmarks/overhead.py --only time --only allocations
    python benchmarks/overhead.py -n 1 --size 24 --steps 20 --snapshots 9 18 --grids 16 24
"""

import ctypes as ct
import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / 'examples'))

from dummy_vs_dense import (  # noqa: E402
    Clock,
    in_fresh_process,
    in_turns,
    record,
    time_memcpy,
)
from processes import Template  # noqa: E402

parts = ('time', 'provider', 'growth', 'allocations', 'build')

MAX_CALLS = 1 << 17


class Probe(ct.Structure):
    """As in probes/provider.c."""

    _fields_ = [('calls', ct.c_int64), ('first', ct.c_int64), ('last', ct.c_int64),
                ('seconds', ct.c_double), ('duration', ct.c_float*MAX_CALLS)]


def compile_probe(source, target, *flags):
    subprocess.run([os.environ.get('CC', 'cc'), '-std=gnu11', '-O2', '-fPIC', '-shared',
                    *flags, str(HERE / 'probes' / source), '-o', str(target), '-ldl'],
                   check=True)


@contextmanager
def probed(name):
    """The DEVITOCOMP_ROOT of a provider behind a probe, and what counts allocations."""
    from devitocomp_plugin.provider import provider_at
    from devitocomp_plugin.providers import bundled_provider

    provider = provider_at(bundled_provider(name).build())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, 'root')
        copytree(provider.include_dir, root / 'include')
        (root / 'lib').mkdir()
        compile_probe('provider.c', root / 'lib' / 'libdevitocomp.so',
                      f'-I{root / "include"}', f'-DPROBED="{provider.library}"')
        compile_probe('allocations.c', Path(folder, 'allocations.so'))
        yield root, Path(folder, 'allocations.so')


# *** Runs, in fresh processes

def prepare(root, arguments, bare=False, layers='host', error=1e-3):
    """
    A method with compiled Operators, for `run`.

    Parameters
    ----------
    root : str
        The DEVITOCOMP_ROOT of a provider behind a probe.
    arguments : list of str
        Of the example.
    bare : bool, optional
        Whether to leave out what grows with the number of steps.
    layers : str, optional
        None to save nothing.
    error : float, optional
    """
    os.environ['DEVITOCOMP_ROOT'] = root
    # The example comes first: it sets up the environment of Devito
    from gradient import make_shot, parse  # noqa: I001
    from methods import Case, Compressed, NoSaving
    from problems import Bare, problems

    problem = make_shot(parse(arguments), Bare if bare else problems['acoustic'])
    case = Case('', Compressed, error=error, layers=layers)
    method = (Compressed if layers else NoSaving)(problem, case)
    for op in (method.forward_op, method.gradient_op):
        # Compile it
        op.cfunction  # noqa: B018
    return method


def run(method, window=None):
    """
    A forward and an adjoint run, accounted for.

    Parameters
    ----------
    method
        What `prepare` has returned.
    window : tuple of int, optional
        Count allocations between these calls of the provider, in either run.

    Returns
    -------
    dict
        Of `account` for 'forward' and 'adjoint'; with the peak of memory and what the
        store takes; with allocations, and the durations of calls of the provider.
    """
    from gradient import peak_memory
    from problems import Bare

    method.prepare()
    root = os.environ['DEVITOCOMP_ROOT']
    library = ct.CDLL(str(Path(root, 'lib', 'libdevitocomp.so')))
    found = {}
    for name, action, op, apply in (
            ('forward', 'compress', method.forward_op, method.forward),
            ('adjoint', 'decompress', method.gradient_op, method.adjoint)):
        probe = Probe.in_dll(library, f'probe_{action}')
        probe.calls, probe.seconds = 0, 0.
        probe.first, probe.last = window or (0, 0)
        with Clock() as clock:
            summary = apply()
        found[name] = account(op, summary, clock.wall, probe.seconds)
        found[f'{name} calls'] = list(probe.duration[:probe.calls])
        if not isinstance(method.problem, Bare):
            method.problem.residual.data[:] = method.problem.rec.data
    if window:
        found['allocations'] = allocations()
    found['peak'] = peak_memory()
    if method.histories:
        found.update(footprint(method.histories[0]))
    return found


def account(op, summary, wall, provider):
    """Divide the seconds of an apply among propagation, provider, store, and the rest."""
    code = str(op.ccode)
    around = set(re.findall(r'START\((section\d+)\)\s*(?:read|write)_snapshot', code))
    seconds = {k.name: v.time for k, v in summary.items()}
    calls = sum(v for k, v in seconds.items() if k in around)
    return {'propagation': sum(seconds.values()) - calls, 'provider': provider,
            'store': calls - provider, 'rest': wall - sum(seconds.values())}


def footprint(usave):
    """What a store takes: in memory for itself, and in files next to the payloads."""
    report = usave.compression_report()
    return {'metadata': usave._store.usage.metadata_bytes,
            'files': sum(Path(i).stat().st_size for i in usave._fnames),
            'stored': report.stored_bytes, 'raw': report.raw_bytes}


def allocations():
    """What has been counted: library -> (calls, bytes)."""
    text = ct.create_string_buffer(1 << 16)
    ct.CDLL(None).list_allocations(text, ct.c_size_t(len(text)))
    found = {}
    for line in text.value.decode().splitlines():
        calls, nbytes, _, library = line.split(' ', 3)
        name = Path(library).name.partition('.so')[0]
        # Compiled Operators are named by a hash
        name = 'Operator' if re.fullmatch('[0-9a-f]{20,}', name) else name
        old = found.get(name, (0, 0))
        found[name] = (old[0] + int(calls), old[1] + int(nbytes))
    return found


def direct(root, arguments, error, count):
    """
    Call the provider from Python, on snapshots with a halo around, as they are in a run.

    Returns
    -------
    (list of int, list of float, list of float)
        The indices of the snapshots, and seconds to compress and decompress each.
    """
    os.environ['DEVITOCOMP_ROOT'] = root
    from gradient import make_shot, parse  # noqa: I001
    from devitocomp_plugin.provider import current_provider
    from problems import problems

    problem = make_shot(parse(arguments), problems['acoustic'])
    problem.factor = max(1, problem.nt // count)
    usave, = problem.make_histories()
    problem.forward_operator([usave]).apply(time_m=0, time_M=problem.nt - 1)

    shape, halo = problem.grid.shape, problem.space_order
    padded = np.zeros([i + 2*halo for i in shape], dtype=np.float32)
    tensor = padded[(slice(halo, -halo),)*len(shape)]
    strides = tuple(i // tensor.itemsize for i in tensor.strides)
    provider = current_provider()
    if 'strided' not in provider.claims.flags:
        tensor, strides = np.zeros(shape, dtype=np.float32), None
    seconds = [], []
    with provider.plan(np.float32, shape, strides, repr(error),
                       num_threads=len(os.sched_getaffinity(0))) as plan:
        payload = aligned(plan.limits.max_compressed_bytes)
        sidecar = aligned(plan.limits.sidecar_bytes)
        for i in range(len(usave.data)):
            tensor[:] = usave.data[i]
            for _ in range(2):
                # The second time counts, all memory being in place
                with Clock() as compress:
                    used = plan.compress(tensor, payload, payload.size, sidecar)
                with Clock() as decompress:
                    plan.decompress(payload, used, sidecar, tensor)
            seconds[0].append(compress.wall)
            seconds[1].append(decompress.wall)
    return [i*problem.factor for i in range(len(usave.data))], *seconds


def aligned(nbytes):
    """Memory that has been touched."""
    array = np.ones(nbytes + 4096, dtype=np.uint8)
    start = -array.ctypes.data % 4096
    return array[start:start + nbytes]


def build(kind, root):
    """Seconds to build two Operators, and to compile them, without cached code."""
    os.environ['DEVITOCOMP_ROOT'] = root
    with tempfile.TemporaryDirectory() as folder:
        os.environ['TMPDIR'] = tempfile.tempdir = folder
        os.environ['DEVITO_LANGUAGE'] = 'openmp'
        os.environ['DEVITO_LOGGING'] = 'WARNING'
        if kind == 'Devito alone':
            from devito import TimeFunction
        else:
            from devitocomp_plugin import TimeFunction
        from acoustic import Shot, layered_model
        from devito import Eq, Function, Operator

        vp = layered_model((20, 20, 20), 10.)
        shot = Shot(vp, vp, 10., 5, 8, 15., nt=100)
        more = {'compression': 'devitocomp'} if kind == 'compressed' else {}
        usave = TimeFunction(name='usave', grid=shot.grid, space_order=0, save=shot.nt,
                             **more)
        grad = Function(name='grad', grid=shot.grid)
        equations = ([*shot.forward, Eq(usave, shot.u)],
                     [*shot.adjoint, Eq(grad, grad - usave*shot.v.dt2)])
        with Clock() as building:
            operators = [Operator(i, subs=shot.subs) for i in equations]
        with Clock() as compiling:
            for op in operators:
                op.cfunction  # noqa: B018
    return building.cpu, compiling.cpu, building.wall, compiling.wall


# *** What is measured

class Setting:

    """
    What is measured with.

    Parameters
    ----------
    options : Namespace
        Of the command line.
    root, counter : Path
        What `probed` has made.
    """

    def __init__(self, options, root, counter):
        self.root, self.counter = str(root), counter
        vars(self).update(vars(options))

    def in_turns(self, *kinds, n=None, arguments=None, window=None):
        """
        Samples of `run`, for each of several kinds.

        Parameters
        ----------
        *kinds : tuple
            Whether to leave out what grows with the number of steps, and layers.
        n : int, optional
            How many. Defaults to what the command line says.
        arguments : list of str, optional
            Of the example. Likewise.
        window : tuple of int, optional
            Of `run`.
        """
        templates = [Template(prepare, self.root, arguments or self.arguments, *i,
                              self.error) for i in kinds]
        samples = [[] for _ in kinds]
        for _ in range(n or self.n):
            for template, found in zip(templates, samples, strict=True):
                found.append(template.run(run, window))
        for i in templates:
            i.close()
        return samples


def measure_time(setting):
    """The parts of a run."""
    kinds = (None, 'host', 'disk-host')
    samples = setting.in_turns(*((False, i) for i in kinds))
    runs = dict(zip(kinds, samples, strict=True))
    rows, shares = [], []
    for layers, found in runs.items():
        where = layers or 'nothing saved'
        for name in ('forward', 'adjoint'):
            row = {i: record(f'{name}, {where}, {i}', [r[name][i] for r in found])
                   for i in found[0][name]}
            rows.append((f'{name}, {where}', row))
        if layers:
            totals = [add(r['forward'], r['adjoint']) for r in found]
            # Of each run, as parts of one run are what can be compared
            share = record(f'store and rest, {where}', [
                (i['store'] + i['rest'])/sum(i.values()) for i in totals], unit='1')
            shares.append((f'store and rest, of the run, {where}', share, 0.05))
    print_parts(rows)
    return shares


def add(a, b):
    return {k: a[k] + b[k] for k in a}


def print_parts(rows):
    names = list(rows[0][1])
    print(f'\n{"seconds":<28}', *(f'{i:>11}' for i in names), f'{"sum":>11}')
    for label, row in rows:
        print(f'{label:<28}', *(f'{row[i]:11.4f}' for i in names),
              f'{sum(row.values()):11.4f}')
    print()


def measure_provider(setting):
    """The provider in a run, and called directly."""
    (inside, *_), = setting.in_turns((False, 'host'), n=1)
    indices, compress, decompress = in_fresh_process(
        direct, setting.root, setting.arguments, setting.error, 16)
    found = []
    for name, action, seconds in (('forward', 'compress', compress),
                                  ('adjoint', 'decompress', decompress)):
        calls = inside[f'{name} calls']
        if name == 'adjoint':
            calls = calls[::-1]
        there = record(f'{action}, in the run', [sum(calls[i] for i in indices)])
        here = record(f'{action}, called directly', [sum(seconds)])
        found.append((f'{action}: provider in the run / called directly', there/here,
                      None))
    nbytes = min(inside['raw'], 1 << 30)
    for memory, seconds in zip(('fresh', 'touched'), in_fresh_process(
            time_memcpy, nbytes, setting.n), strict=True):
        record(f'memcpy, {memory}', [nbytes/i/1e9 for i in seconds], unit='GB/s')
    return found


def measure_growth(setting):
    """The same parts, with more snapshots and with more points."""
    base = [(setting.grids[0], i) for i in setting.snapshots]
    larger = [(i, setting.snapshots[0]) for i in setting.grids[1:]]
    results = {}
    for size, steps in base + larger:
        arguments = shot_arguments(size, ['--steps', str(steps)])
        kinds = ('host', 'disk') if (size, steps) in base else ('host',)
        samples = setting.in_turns(*((True, i) for i in kinds), arguments=arguments)
        for layers, found in zip(kinds, samples, strict=True):
            results[layers, size, steps] = found

    print(f'\n{"grid, snapshots, layers":<28} {"propag.":>9} {"provider":>9} '
          f'{"store":>9} {"rest":>9} {"store+rest":>11} {"peak":>7} {"payload":>9} '
          f'{"metadata":>9} {"files":>7}\n{"":<28} {"us/step":>9} {"us/step":>9} '
          f'{"us/step":>9} {"us/step":>9} {"ns/pt/step":>11} {"MB":>7} {"B/snap.":>9} '
          f'{"B/snap.":>9} {"B/snap.":>7}')
    costs, peaks = {}, {}
    for (layers, size, steps), found in results.items():
        label = f'{size}^3, {steps}, {layers}'
        totals = [add(r['forward'], r['adjoint']) for r in found]
        parts = {i: record(f'{label}, {i}', [t[i]/steps for t in totals], unit='s/step')
                 for i in totals[0]}
        cost = record(f'{label}, store and rest', [
            (t['store'] + t['rest'])/steps/size**3 for t in totals],
            unit='s/point/step')
        peak = record(f'{label}, peak', [r['peak'] for r in found], unit='B')
        payload = record(f'{label}, payload', [r['stored']/steps for r in found],
                         unit='B/snapshot')
        metadata = record(f'{label}, metadata', [r['metadata']/steps for r in found],
                          unit='B/snapshot')
        files = record(f'{label}, files next to payloads', [
            max(0, r['files'] - r['stored'])/steps for r in found], unit='B/snapshot')
        costs[layers, size, steps], peaks[layers, size, steps] = cost, peak
        print(f'{label:<28}', *(f'{1e6*i:9.1f}' for i in parts.values()),
              f'{1e9*cost:11.4f} {peak/1e6:7.0f} {payload:9.0f} {metadata:9.1f} '
              f'{files:7.1f}')
    print()

    size, few, many = setting.grids[0], setting.snapshots[0], setting.snapshots[-1]
    first = costs['host', size, few]
    worst = max(v for (i, *_), v in costs.items() if i == 'host')
    return [
        ('store and rest, per point and step: largest / smallest grid and least '
         'snapshots', worst/first, 1.1),
        (f'peak on disk, {many} snapshots / {few}',
         peaks['disk', size, many]/peaks['disk', size, few], 1.1),
    ]


def measure_allocations(setting):
    """Allocations per step, once warm."""
    steps = setting.steps
    warm = steps // 4
    window = (warm, steps - 1)
    rows = []
    for layers in ('host', 'disk-host'):
        with preloaded(setting.counter):
            (found, *_), = setting.in_turns((False, layers), n=1, window=window)
        # Of a forward and of an adjoint run
        per_step = window[1] - window[0]
        for library, (calls, nbytes) in sorted(found['allocations'].items()):
            record(f'allocations, {layers}, {library}', [calls/per_step],
                   unit='calls/step', bytes_per_step=round(nbytes/per_step))
        ours = sum(calls for library, (calls, _) in found['allocations'].items()
                   if library in ('libdevitocomp_store', 'Operator'))
        rows.append((f'allocations per step by store and Operator, {layers}',
                     ours/per_step, 0))
    return rows


@contextmanager
def preloaded(library):
    """Let processes that are started load a library before all others."""
    os.environ['LD_PRELOAD'] = str(library)
    try:
        yield
    finally:
        del os.environ['LD_PRELOAD']


def measure_build(setting):
    """Building and compiling."""
    kinds = ('Devito alone', 'dense', 'compressed')
    samples = in_turns(setting.n, build, *((i, setting.root) for i in kinds))
    medians = {}
    for kind, found in zip(kinds, samples, strict=True):
        for i, name in enumerate(('build', 'compile')):
            medians[kind, name] = record(f'{name}, {kind}', [r[i] for r in found],
                                         unit='CPU s')
            record(f'{name}, {kind}, wall', [r[i + 2] for r in found])
    rows = [(f'{name}: {kind} / Devito alone',
             medians[kind, name]/medians['Devito alone', name], None)
            for name in ('build', 'compile') for kind in kinds[1:]]
    return rows


# *** The command line

def shot_arguments(size, rest=()):
    """Options of the example for a cube with so many points along each axis."""
    nbl = min(10, size // 6)
    return ['--ndim', '3', '--nbl', str(nbl), '--shape', *[str(size - 2*nbl)]*3, *rest]


def parse(args=None):
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('-n', type=int, default=3, help='samples of each (default: 3)')
    add('--only', choices=parts, action='append', help='may be repeated')
    add('--provider', default='zfp', help='one that comes with the package (default: '
        'zfp)')
    add('--error', type=float, default=1e-3, help='(default: 1e-3)')
    add('--size', type=int, default=120, help='points along each axis, with those in the '
        'sponge (default: 120)')
    add('--steps', type=int, default=332, help='(default: 332)')
    add('--snapshots', type=int, nargs='+', default=[100, 1000, 10000], metavar='N',
        help='to look for growth with (default: 100 1000 10000)')
    add('--grids', type=int, nargs='+', default=[64, 128, 256], metavar='N',
        help='points along each axis, to look for growth with (default: 64 128 256)')
    options, rest = parser.parse_known_args(args)
    options.arguments = shot_arguments(options.size, ['--steps', str(options.steps),
                                                      *rest])
    return options


def main(args=None):
    from machine import describe, load
    options = parse(args)
    measures = {'time': measure_time, 'provider': measure_provider,
                'growth': measure_growth, 'allocations': measure_allocations,
                'build': measure_build}
    before = load()
    rows = []
    with probed(options.provider) as found:
        setting = Setting(options, *found)
        for part in options.only or parts:
            rows += measures[part](setting)

    print('\n' + '\n'.join(describe()))
    print(f'{options.provider} at {options.error:g}, {options.size}^3 points, '
          f'{options.steps} steps; before: {before}; after: {load()}\n')
    print(f"{'ratio of medians':<78} {'measured':>8} {'target':>8}")
    for name, ratio, target in rows:
        bound, verdict = '', ''
        if target is not None:
            bound, verdict = f'<= {target:g}', 'met' if ratio <= target else 'MISSED'
        print(f'{name:<78} {ratio:8.3f} {bound:>8}  {verdict}')


if __name__ == '__main__':
    main()
