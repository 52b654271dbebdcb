"""
Mistakes made on purpose in generated CUDA, and in the runtime's headers, for the emulator
to find.
"""
import ctypes
import os
import re
import signal
import tempfile
import time
import traceback
from collections import namedtuple
from hashlib import sha1
from pathlib import Path

import numpy as np
from cuda_programs import DEVICE, HOST, fill, points
from devito import (
    Dimension,
    Eq,
    Function,
    Grid,
    Inc,
    Operator,
    SparseTimeFunction,
    TimeFunction,
    solve,
    sqrt,
)
from devito.exceptions import ExecutionError
from devito.types import Symbol
from devito.types.equation import ReduceMax

from devitocomp_plugin import paths

Program = namedtuple('Program', 'runs outputs')
"""Pairs of an Operator and arguments of `apply`; functions, to be compared after each."""

Mutant = namedtuple('Mutant', 'unit begin end text')
"""Other text in a part of the source: of 'runtime', or of an Operator by its name."""

SETTINGS = (
    {'CUDAEMUL_ORDER': 'lazy'},
    {'CUDAEMUL_ORDER': 'lazy', 'CUDAEMUL_THREADS': 'reverse',
     'CUDAEMUL_PAGEABLE': 'direct', 'CUDAEMUL_DEVICES': '2'},
    {'CUDAEMUL_ORDER': 'eager', 'CUDAEMUL_THREADS': 'shuffle'},
    *({'CUDAEMUL_ORDER': 'random', 'CUDAEMUL_SEED': i} for i in '12')
)
"""What is tried in turn until a mutant is caught."""

OUTCOMES = {0: 'nothing', 3: 'wrong result', 4: 'error', 5: 'leak', 6: 'wrong device',
            86: 'fault'}
LEAKS = ('live_allocations', 'live_pinned', 'live_streams', 'live_events')
SECONDS = 60

# What to remove: calls that order work, move data, or free something
STATEMENTS = ('sync|wait|follow|copy|free|leave|add_sections|map|unmap|put|get|launch|'
              'launch_few|to_host|to_host_async|to_device|to_device_async|host_free|'
              'atomic_add|atomic_min|atomic_max')
CALLS = ('SetDevice|StreamSynchronize|StreamWaitEvent|StreamDestroy|EventRecord|'
         'EventSynchronize|EventDestroy|MemcpyAsync|MemsetAsync|Free|HostUnregister')


def wave(target):
    """Injection and interpolation."""
    grid = Grid((14, 13))
    u = TimeFunction(name='u', grid=grid, time_order=2, space_order=4)
    m = fill(Function(name='m', grid=grid))
    m.data_with_halo[:] += 6
    src = points(SparseTimeFunction(name='src', grid=grid, npoint=3, nt=30), grid)
    src.data[:] = 1 + np.arange(src.data.size).reshape(src.data.shape)
    rec = points(SparseTimeFunction(name='rec', grid=grid, npoint=5, nt=30), grid, 1)
    op = Operator([Eq(u.forward, solve(m*u.dt2 - u.laplace, u.forward)),
                   src.inject(u.forward, expr=src), rec.interpolate(u)],
                  name='wave', **target)
    return Program([(op, {'time_M': 28, 'dt': 0.01})], [u, rec])


def reductions(target):
    """Into scalars and arrays; what stays on the device; values that the host reads."""
    grid = Grid((14, 13))
    f = fill(Function(name='f', grid=grid))
    i, j = Dimension('i'), Dimension('j')
    index = Function(name='index', dimensions=(i,), shape=(30,), dtype=np.int32)
    index.data[:] = np.arange(30) % 7
    g = Function(name='g', dimensions=(j,), shape=(7,))
    n = Function(name='n', dimensions=(j,), shape=(7,))
    s, t = Symbol(name='s', dtype=np.float32), Symbol(name='t', dtype=np.float32)
    eqns = [Eq(s, 2), Inc(s, f*f), Inc(g[index[i]], 1), ReduceMax(n[1], f + 1),
            Eq(t, g[2]), Eq(n[0], s + t)]
    w = Function(name='w', dimensions=(grid.time_dim,), shape=(8,))
    value = w[grid.time_dim]
    h = TimeFunction(name='h', grid=grid)
    values = Operator([Eq(w[grid.time_dim + 1], value/2 + 1),
                       Eq(h.forward, h + sqrt(value))], name='values', **target)
    if 'platform' in target:
        # From zero, also where it has stayed on the device
        g.data[:] = 77
        op = Operator(eqns, name='reductions', **target,
                      opt=('advanced', {'gpu-create': g}))
        keep = {'devicerm': 0}
    else:
        op = Operator([Eq(g, 0), *eqns], name='reductions', **target)
        keep = {}
    return Program([(op, keep), (op, {}), (values, {'time_M': 6})],
                   [g, n, h, w])


def tasks(target):
    """Saved in the background, and read back from there."""
    grid = Grid((9, 10))
    u = fill(TimeFunction(name='u', grid=grid))
    v = TimeFunction(name='v', grid=grid)
    g = Function(name='g', grid=grid)
    usave = TimeFunction(name='usave', grid=grid, save=12)

    def make(eqns, name, options):
        opt = {}
        if 'platform' in target:
            opt['opt'] = ('buffering', 'tasking', 'streaming', 'orchestrate', options)
        return Operator(eqns, name=name, **target, **opt)

    # Buffers of two parts, and of one
    save = make([Eq(u.forward, u + 1), Eq(usave, u.forward)], 'save',
                {'buf-async-degree': 2})
    load = make([Eq(v.backward, v + usave), Inc(g, usave*v)], 'load', {})
    return Program([(save, {'time_M': 10}), (load, {'time_M': 10, 'time_m': 1})],
                   [u, usave, v, g])


PROGRAMS = {i.__name__: i for i in (wave, reductions, tasks)}

# But for what only several ranks use; test_cuda_mpi.py looks at that
INCLUDED = re.compile(r'#include "(devitocomp_(?!mpi\b)\w+\.h)"')


def read_runtime(name='devitocomp_device.h'):
    """A header of the runtime, with those that it includes in it."""
    return INCLUDED.sub(lambda i: read_runtime(i.group(1)),
                        Path(paths.runtime_sources(), name).read_text())


def find(unit, source, pattern, text):
    """The mutant that has another text in place of the only match of a pattern."""
    found, = re.finditer(pattern, source, re.MULTILINE)
    group = 1 if found.re.groups else 0
    return Mutant(unit, *found.span(group), found.expand(text))


def remove_calls(unit, source):
    """
    Mutants that lack one call each: of what the generated code, or the runtime itself,
    calls the runtime for, or what the runtime calls the API for.

    Yields
    ------
    name : tuple
        The function that the call is in, what it calls, and the line.
    mutant : Mutant
    """
    definition = r'^(?:static|inline|int|extern)\b[^;{]*?\b(\w+)\([^;{]*\)\s*{'
    functions = [(i.start(), i.group(1))
                 for i in re.finditer(definition, source, re.MULTILINE)]

    def name(found):
        inside = [name for begin, name in functions if begin < found.start()]
        line = source[:found.start()].count('\n') + 1
        return (inside or [unit])[-1], found.group(1), line

    for i in re.finditer(rf'^ +(devitocomp_(?:{STATEMENTS}))\([^;]*\);$', source,
                         re.MULTILINE):
        yield name(i), Mutant(unit, i.start(1), i.end(), ';')
    for i in re.finditer(rf'DEVITOCOMP_API\(({CALLS})\)(?=\()', source):
        end = close(source, i.end())
        yield name(i), Mutant(unit, i.start(), end, 'DEVITOCOMP_API(Success)')


def close(source, begin):
    """Where the bracket that opens at `begin` is closed."""
    depth = 0
    for n, i in enumerate(source[begin:], begin):
        depth += (i == '(') - (i == ')')
        if depth == 0:
            return n + 1
    raise ValueError('not closed')


class Judge:

    """
    Runs the mutants of a program, and compares with the CPU's results.

    Each run is a fork of this process, which has built the Operators.

    Parameters
    ----------
    program : callable
    environment : dict
        For the emulator.
    """

    def __init__(self, program, environment):
        self.environment = environment
        expected = program(HOST)
        self.expected = []
        for op, arguments in expected.runs:
            op.apply(**arguments)
            self.expected.append([np.array(i.data) for i in expected.outputs])
        self.program = program(DEVICE)
        self.operators = {op.name: op for op, _ in self.program.runs}
        self.units = {'runtime': read_runtime(),
                      **{name: str(op) for name, op in self.operators.items()}}

    def outcome(self, mutant=None, **settings):
        """
        What a run comes to, and what it printed.

        Returns
        -------
        outcome : str
            One of OUTCOMES, or 'no end', 'signal N', 'broken'.
        output : str
        """
        with tempfile.TemporaryFile('w+') as output:
            pid = os.fork()
            if pid == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os._exit(self._run(mutant, settings))
            end = time.monotonic() + SECONDS
            done = 0
            while not done and time.monotonic() < end:
                time.sleep(0.01)
                done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return 'no end', ''
            output.seek(0)
            text = output.read()
        if os.WIFSIGNALED(status):
            return f'signal {os.WTERMSIG(status)}', text
        return OUTCOMES.get(os.WEXITSTATUS(status), 'broken'), text

    def verdict(self, mutant):
        """The first outcome that is not 'nothing', if there is one."""
        for settings in SETTINGS:
            outcome, text = self.outcome(mutant, **settings)
            if outcome == 'broken':
                raise RuntimeError(f'not a program: {mutant}\n{text}')
            if outcome != 'nothing':
                break
        return outcome

    def _run(self, mutant, settings):
        try:
            os.environ.update(settings)
            tempfile.tempdir = self.environment['TMPDIR']
            self._mutate(mutant)
            device = int(settings.get('CUDAEMUL_DEVICES', 1)) - 1
            for (op, arguments), expected in zip(self.program.runs, self.expected,
                                                 strict=True):
                op.apply(deviceid=device, **arguments)
                for f, i in zip(self.program.outputs, expected, strict=True):
                    if not np.allclose(f.data, i, rtol=2e-5, atol=1e-4):
                        print(f'{f.name} differs')
                        return 3
            return self._look_around(device)
        except ExecutionError as e:
            print(e)
            return 4
        except BaseException:
            traceback.print_exc()
            return 1

    def _mutate(self, mutant):
        units = dict(self.units)
        if mutant is not None:
            old = units[mutant.unit]
            units[mutant.unit] = old[:mutant.begin] + mutant.text + old[mutant.end:]
        for name, op in self.operators.items():
            # What is compiled, and what the cache of compiled code knows it by
            op.ccode = INCLUDED.sub(lambda _: units['runtime'], units[name])
            op._soname = sha1(op.ccode.encode()).hexdigest()
            # Compiling is what takes the time
            op._compiler.cflags = [i for i in op._compiler.cflags
                                   if i not in ('-O1', '-g', '-Wall')]

    def _look_around(self, device):
        library = ctypes.CDLL(str(Path(self.environment['DEVITOCOMP_EMULATOR'], 'lib',
                                       'libcudaemul.so')))
        leaks = [i for i in LEAKS if library.cudaemul_counter(i.encode())]
        if leaks:
            print(*leaks)
            return 5
        current = ctypes.c_int(-1)
        library.cudaGetDevice(ctypes.byref(current))
        return 0 if current.value == device else 6
