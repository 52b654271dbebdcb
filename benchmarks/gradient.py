"""
What it takes to compute a gradient: saving nothing, dense, compressed, and recomputing.

A forward run that saves its wavefield, then an adjoint run that is correlated with what
was saved, in 3D, with the equation and the model asked for. The ways to do it take turns,
each time in a fresh process, with everything compiled beforehand:

no saving                   no gradient, hence the least that there is
dense                       plain Devito, in memory that the process has never used
dense, touched              the same, after all of that memory has been written once
PROVIDER ERROR, LAYERS      compressed, with each provider that can be built here
pyrevolve, same memory      recomputing, from as many checkpoints as fit into the memory
                            that the first compressed history takes, rounded up
pyrevolve, its choice       ... from as many as pyrevolve takes by default
zfpy loop                   a loop over steps in Python, which calls zfpy for each

    python benchmarks/gradient.py
    python benchmarks/gradient.py --size 24 --steps 20 --repeat 1
    python benchmarks/gradient.py --factor 1 --factor 4 --case dense --case zfp
    python benchmarks/gradient.py --equation elastic --size 90

Prints a JSON object a line for each case, of medians, then a table. Bytes are those of
snapshots or checkpoints (history), and the most that the process ever had (peak). Errors
are of the L2 norm, relative to the gradient from dense snapshots. On a machine that is
busy with other work, the time of processors (CPU) is what still compares. Options that
are not known here go to examples/gradient.py: --model, --shape, --steps, and so on.
"""

import importlib.util
import json
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'examples'))

from dummy_vs_dense import Clock, claim  # noqa: E402

# The example. Importing it sets up the environment of Devito
from gradient import difference, make_shot, peak_memory  # noqa: E402
from gradient import parse as parse_example  # noqa: E402
from machine import available_bytes, describe, load  # noqa: E402
from methods import (  # noqa: E402
    Case,
    Checkpointed,
    Compressed,
    Dense,
    NoSaving,
    Touched,
    Zfpy,
)
from problems import problems  # noqa: E402
from processes import Template  # noqa: E402

from devitocomp_plugin.providers import bundled_provider, bundled_providers  # noqa: E402

MB = 1e6


# *** Measuring

@dataclass
class Outcome:

    """What came out of a case. Times are lists: of the first run, then of others."""

    forward_s: list
    gradient_s: list
    cpu_s: list
    history_bytes: int
    peak_rss_bytes: int
    codec_s: float
    gradient: np.ndarray | None
    observed: np.ndarray = field(repr=False)


def build(case, equation, options):
    """A method with compiled Operators, for `measure`."""
    if case.root is not None:
        os.environ['DEVITOCOMP_ROOT'] = str(case.root)
    problem = make_shot(options, problems[equation])
    problem.factor = case.factor
    method = case.method(problem, case)
    for op in (method.forward_op, method.gradient_op):
        # Compile it
        op.cfunction  # noqa: B018
    return method


def measure(method, case, observed, runs):
    """
    Compute a gradient. To be called in a fresh process.

    Parameters
    ----------
    method
        What `build` has returned.
    case : Case
        As for `build`, but for what is known by now only.
    observed : numpy.ndarray
        Recorded in the true model. Computed if it is None.
    runs : int
        How often to do it.

    Returns
    -------
    Outcome
    """
    method.case = case
    problem = method.problem
    if observed is None:
        op = problem.forward_operator()
        op.apply(m=problem.m_true, time_m=0, time_M=problem.nt - 1)
        observed = np.array(problem.rec.data)
    method.prepare()

    forward_s, gradient_s, cpu_s = [], [], []
    for _ in range(runs):
        method.reset()
        with Clock() as forward:
            method.forward()
        problem.residual.data[:] = problem.rec.data - observed
        with Clock() as adjoint:
            method.adjoint()
        forward_s.append(forward.wall)
        gradient_s.append(adjoint.wall)
        cpu_s.append(forward.cpu + adjoint.cpu)
    gradient = None if method.gradient is None else np.array(method.gradient.data)
    return Outcome(forward_s, gradient_s, cpu_s, int(method.history_bytes),
                   peak_memory(), method.codec_s, gradient, observed)


def make_cases(options, factor):
    """
    All cases for a factor of subsampling, and why others cannot be had.

    Returns
    -------
    (list of Case, dict)
    """
    suffix = '' if factor == 1 else f', factor {factor}'
    cases = [Case(f'no saving{suffix}', NoSaving, factor)] if factor == 1 else []
    cases += [Case(f'dense{suffix}', Dense, factor),
              Case(f'dense, touched{suffix}', Touched, factor)]
    missing = {}
    # Those that compress come first
    names = sorted(bundled_providers(), key=lambda i: (i == 'dummy', i != 'zfp'))
    for name in names:
        provider = bundled_provider(name)
        if provider.missing():
            missing[name] = provider.missing()
            continue
        # An error means nothing to what does not compress
        for error in options.error if name != 'dummy' else [0.]:
            cases += [Case(f'{name} {error:g}, {layers}{suffix}', Compressed, factor,
                           provider.build(), error, layers, options.scratch)
                      for layers in options.layers]
    if factor == 1:
        cases += [Case('pyrevolve, same memory', Checkpointed),
                  Case('pyrevolve, its choice', Checkpointed)]
        cases += [Case(f'zfpy loop {i:g}', Zfpy, error=i) for i in options.error]
        for name in ('pyrevolve', 'zfpy'):
            if importlib.util.find_spec(name) is None:
                missing[name] = f'pip install {name}'
    return cases, missing


# *** The command line

def parse(args=None):
    """Parse the command line: our options, and those of the example."""
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--equation', choices=problems, default='acoustic', help='what is saved: a '
        'pressure, two of them, the velocity, the stress (default: acoustic)')
    add('--size', type=int, metavar='N', help='points along each axis, with those in the '
        'sponge; not with --model or --shape (default: 120)')
    add('--factor', type=int, action='append', metavar='N', help='save each Nth step; '
        'may be repeated (default: 1)')
    add('--error', type=float, action='append', metavar='E', help='relative tolerance of '
        'compression; may be repeated (default: 1e-3)')
    add('--layers', action='append', metavar='NAME', help='where compressed snapshots '
        'live; may be repeated (default: host, disk, disk-host)')
    add('--case', action='append', metavar='TEXT', help='only cases whose name starts '
        'with this; may be repeated')
    add('--repeat', type=int, default=5, metavar='N', help='rounds (default: 5)')
    add('--minutes', type=float, default=float('inf'), metavar='N', help='start nothing '
        'after that time, and print what there is')
    add('--again', action='store_true', help='run compressed cases twice in each process,'
        ' to see what they take in memory that is in place')
    add('--scratch', metavar='DIR', help='for snapshots on disk, which stay there; '
        'without it, they are removed')
    add('--cold', action='store_true', help='include what the host of a virtual machine '
        'takes to provide memory')
    options, rest = parser.parse_known_args(args)
    options.deadline = perf_counter() + 60*options.minutes
    options.factor = options.factor or [1]
    options.error = options.error or [1e-3]
    options.layers = options.layers or ['host', 'disk', 'disk-host']
    if options.size is not None or not {'--model', '--shape'} & set(rest):
        size = options.size or 120
        nbl = min(10, size // 6)
        rest += ['--nbl', str(nbl), '--shape', *[str(size - 2*nbl)]*3]
    return options, parse_example(['--ndim', '3', *rest])


class Rounds:

    """
    All cases for a factor of subsampling, in turns.

    Parameters
    ----------
    options, shot_options : Namespace
        Of our command line, and of the example's.
    factor : int

    Attributes
    ----------
    outcomes : dict
        The name of each case to a list, of an Outcome for each round.
    skipped : dict
        What cannot be had, to the reason.
    """

    def __init__(self, options, shot_options, factor):
        self.options = options
        self.shot_options = shot_options
        problem = make_shot(shot_options, problems[options.equation])
        problem.factor = factor
        self.dense_bytes = problem.dense_bytes
        self.observed = self.reference = None
        cases, self.skipped = make_cases(options, factor)
        self.cases = [i for i in cases if self.is_wanted(i) and self.is_possible(i)]
        self.outcomes = {i.name: [] for i in self.cases}
        self.templates = {}

    def close(self):
        for i in self.templates.values():
            i.close()

    def is_wanted(self, case):
        names = self.options.case
        return not names or any(case.name.startswith(i) for i in names)

    def is_possible(self, case):
        if case.method is Checkpointed and 'pyrevolve' in self.skipped or \
           case.method is Zfpy and 'zfpy' in self.skipped:
            return False
        in_memory = case.method in (Dense, Touched) or case.layers == 'host' and \
            case.name.startswith('dummy')
        if in_memory and not self.fits:
            self.skipped[case.name] = f'takes {self.dense_bytes/1e9:.1f} GB'
            return False
        return True

    @property
    def fits(self):
        """Whether there is memory for dense snapshots."""
        return 1.2*self.dense_bytes + 5e8 < available_bytes()

    def measure(self, case):
        if case.name not in self.templates:
            self.templates[case.name] = Template(build, case, self.options.equation,
                                                 self.shot_options)
        if self.fits and not self.options.cold:
            claim(int(1.2*self.dense_bytes))
        runs = 2 if self.options.again and case.method is Compressed else 1
        return self.templates[case.name].run(measure, case, self.observed, runs)

    def run(self):
        """Two runs that are not counted, for reference, then the rounds."""
        first = next((i for i in self.cases if i.method is Compressed), None)
        reference = next((i for i in self.cases if i.method is Dense),
                         Case('reference', Dense if self.fits else NoSaving,
                              self.cases[0].factor))
        outcome = self.measure(reference)
        self.observed, self.reference = outcome.observed, outcome.gradient
        memory = self.measure(first).history_bytes if first else self.dense_bytes // 50
        # Now it is known what memory to compare with
        self.cases = [replace(i, memory=memory) if i.name.endswith('same memory') else i
                      for i in self.cases]
        for i in range(self.options.repeat):
            # Whoever comes first might be at an advantage
            for case in self.cases if i % 2 == 0 else reversed(self.cases):
                if perf_counter() > self.options.deadline:
                    return
                outcome = self.measure(case)
                self.outcomes[case.name].append(outcome)
                print(f'round {i + 1} of {self.options.repeat}, {case.name}: forward '
                      f'{outcome.forward_s[0]:.3f} s, gradient '
                      f'{outcome.gradient_s[0]:.3f} s, CPU {outcome.cpu_s[0]:.3f} s',
                      file=sys.stderr)

    def rows(self):
        """A Row for each case, and for each second run."""
        found = []
        for name, outcomes in self.outcomes.items():
            if not outcomes:
                self.skipped[name] = 'there was no time for it'
                continue
            error = None
            if outcomes[0].gradient is not None and self.reference is not None:
                error = max(float(difference(i.gradient, self.reference))
                            for i in outcomes)
            for n, label in enumerate((name, f'{name}, again')):
                if n < len(outcomes[0].forward_s):
                    found.append(Row(label, outcomes, n, error))
        dense = next((i.total for i in found if i.name.startswith('dense')
                      and 'touched' not in i.name), None)
        touched = next((i.total for i in found if 'touched' in i.name), None)
        for i in found:
            i.to_dense = i.total/dense if dense else None
            i.to_touched = i.total/touched if touched else None
        return found


class Row:

    """The medians of a case."""

    to_dense = to_touched = None

    def __init__(self, name, outcomes, n, error):
        def middle(values):
            return median(list(values))

        totals = [i.forward_s[n] + i.gradient_s[n] for i in outcomes]
        self.name = name
        self.rounds = len(outcomes)
        self.forward = middle(i.forward_s[n] for i in outcomes)
        self.gradient = middle(i.gradient_s[n] for i in outcomes)
        self.cpu = middle(i.cpu_s[n] for i in outcomes)
        self.total, self.least, self.most = middle(totals), min(totals), max(totals)
        self.history = outcomes[0].history_bytes
        self.peak = int(middle(i.peak_rss_bytes for i in outcomes))
        self.codec = middle(i.codec_s for i in outcomes)
        self.error = error

    def as_json(self):
        return json.dumps({
            'case': self.name, 'forward_s': short(self.forward),
            'gradient_s': short(self.gradient), 'total_s': short(self.total),
            'history_bytes': self.history, 'peak_rss_bytes': self.peak,
            'grad_rel_err': short(self.error), 'ratio_to_dense': short(self.to_dense)})

    def as_text(self):
        def cell(value, form):
            width = form.partition('.')[0]
            return f'{"-":>{width}}' if value is None else f'{value:{form}}'

        spread = f'{self.least:.2f}-{self.most:.2f}'
        return (f'{self.name:<28} {self.forward:8.2f} {self.gradient:8.2f} '
                f'{self.total:8.2f} {spread:>13} {self.cpu:7.2f} {self.codec:7.2f} '
                f'{self.history/MB:9.1f} {self.peak/MB:8.0f} {cell(self.error, "8.1e")} '
                f'{cell(self.to_dense, "7.2f")} {cell(self.to_touched, "9.2f")}')


COLUMNS = (('forward', 's', 8), ('gradient', 's', 8), ('total', 's', 8),
           ('from-to', 's', 13), ('CPU', 's', 7), ('codec', 's', 7), ('history', 'MB', 9),
           ('peak', 'MB', 8), ('error', '', 8), ('/ dense', '', 7), ('/ touched', '', 9))


def print_table(rows):
    for label, i in (('case', 0), ('', 1)):
        print(f'{label:<28}', *(f'{c[i]:>{c[2]}}' for c in COLUMNS))
    for row in rows:
        print(row.as_text())


def short(value):
    return None if value is None else float(f'{value:.5g}')


# *** Targets

def targets(rows):
    """What is asked of acoustic runs: (text, measured, bound, whether it is a least)."""
    by_name = {i.name: i for i in rows}

    def ratio(name, other, attribute='total'):
        if name in by_name and other in by_name:
            return getattr(by_name[name], attribute)/getattr(by_name[other], attribute)
        return None

    zfp = 'zfp 0.001, host'
    found = [
        ('zfp 0.001, host / dense', ratio(zfp, 'dense'), 0.5, False),
        ('zfp 0.001, host / dense, touched', ratio(zfp, 'dense, touched'), 1.5, False),
        ('history: dense / zfp 0.001', ratio('dense', zfp, 'history'), 50, True),
        ('factor 4: zfp 0.001, host / dense, touched',
         ratio(f'{zfp}, factor 4', 'dense, touched, factor 4'), 1.1, False),
        ('pyrevolve, same memory / zfp 0.001, host',
         ratio('pyrevolve, same memory', zfp), 1.8, True),
        ('zfp 0.001, disk-host / host', ratio('zfp 0.001, disk-host', zfp), 1.15, False),
        ('zfp 0.001, disk-host / host, again',
         ratio('zfp 0.001, disk-host, again', f'{zfp}, again'), 1.15, False),
    ]
    return [i for i in found if i[1] is not None]


def print_targets(found):
    """Print what was measured next to what was to be reached."""
    if not found:
        return
    print(f'\n{"ratio of medians":<50} {"measured":>8} {"target":>9}')
    for text, value, bound, at_least in found:
        met = value >= bound if at_least else value <= bound
        print(f'{text:<50} {value:8.3f} {">=" if at_least else "<=":>3} {bound:<5g}  '
              f'{"met" if met else "MISSED"}')


def main(args=None):
    options, shot_options = parse(args)
    before = load()
    rows, skipped = [], {}
    for factor in options.factor:
        rounds = Rounds(options, shot_options, factor)
        try:
            rounds.run()
        finally:
            rounds.close()
        found = rounds.rows()
        for row in found:
            print(row.as_json(), flush=True)
        rows += found
        skipped |= rounds.skipped

    shape = ' x '.join(str(i + 2*shot_options.nbl) for i in shot_options.shape)
    if not rows:
        sys.exit('There was no time for any case: raise --minutes')
    rounds = [str(f(i.rounds for i in rows)) for f in (min, max)]
    print(f'\n{options.equation}, {shape} points, {shot_options.steps} steps, space '
          f'order {shot_options.space_order}, medians of {" to ".join(rounds)} rounds')
    print('\n'.join(describe('pyrevolve', 'zfpy')))
    print(f'before: {before}; after: {load()}\n')
    print_table(rows)
    for name, reason in skipped.items():
        print(f'{name:<28} skipped: {reason}')
    if options.equation == 'acoustic':
        print_targets(targets(rows))


if __name__ == '__main__':
    main()
